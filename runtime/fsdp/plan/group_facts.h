/* What a plan needs of a parameter group: numbers only, so that any model can be planned for any
 * number of ranks without them. */
#ifndef MSI_FSDP_GROUP_FACTS_H
#define MSI_FSDP_GROUP_FACTS_H

#include "base.h"
#include "moonshard/fsdp.h"

typedef ms_fsdp_group msi_group_facts;

/* dtype of inner nodes of the tree over micro-batches. */
static inline int32_t msi_node_dtype(const msi_group_facts *g)
{
    const bool wide = g->reduce_dtype == MS_DTYPE_F64 ||
                      (g->full_precision_in_eval && g->orig_dtype == MS_DTYPE_F64);

    return wide ? MS_DTYPE_F64 : MS_DTYPE_F32;
}

/* The wider of a dtype and, if it may be used in evaluation, the parameters' own. */
static inline int32_t msi_widest_dtype(const msi_group_facts *g, int32_t dtype)
{
    return g->full_precision_in_eval && ms_dtype_size(g->orig_dtype) > ms_dtype_size(dtype)
               ? g->orig_dtype
               : dtype;
}

/* Ranks among which its parameters are divided. */
static inline int32_t msi_group_shards(const msi_group_facts *g, int32_t world)
{
    return g->n_shards > 0 ? g->n_shards : world;
}

/* True if the full parameters are not the shards in a row. */
static inline bool msi_group_packs(const msi_group_facts *g)
{
    return g->is_sharded && g->layout == MS_FSDP_ROWS;
}

/* Elements of all shards in a row. */
static inline int64_t msi_group_gathered(const msi_group_facts *g, int32_t world)
{
    return msi_group_packs(g) ? g->shard_numel * msi_group_shards(g, world) : g->full_numel;
}

/* Elements of this rank's reduced gradient: [Note: layout of the reduced gradient]. */
static inline int64_t msi_reduced_numel(const msi_group_facts *g)
{
    return !g->trains ? 0 : g->freezes ? g->trained_numel : g->shard_numel;
}

/* The range of a replica's gradient that rank q reduces for all. */
typedef struct msi_chunk {
    int64_t first, numel;
} msi_chunk;

/* Elements of all chunks but the last. */
static inline int64_t msi_plan_chunk_size(int64_t total, int32_t world)
{
    return msi_round_up((total + world - 1) / world, 16);
}

static inline msi_chunk msi_plan_chunk(int64_t total, int32_t q, int32_t world)
{
    const int64_t each = msi_plan_chunk_size(total, world);
    const int64_t first = each * q < total ? each * q : total;

    return (msi_chunk){first, first + each < total ? each : total - first};
}

#endif
