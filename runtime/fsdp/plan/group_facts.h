/* What a plan must know of a parameter group: numbers alone, so that a model of any size can be
 * planned for any number of ranks, whoever is there. */
#ifndef MSI_FSDP_GROUP_FACTS_H
#define MSI_FSDP_GROUP_FACTS_H

#include "base.h"
#include "moonshard/tensor.h"

typedef struct msi_group_facts {
    int64_t full_numel;    /* of the unsharded flat, with all padding */
    int64_t shard_numel;   /* of this rank's part: all of a replica */
    int64_t trained_numel; /* of this rank's part, without padding and what is frozen */
    int32_t n_params;
    int32_t orig_dtype, param_dtype, reduce_dtype;
    bool trains;     /* any parameter of it is trainable */
    bool is_sharded; /* false: a replica */
    bool shares;     /* full parameters are gathered in a slot */
    bool keeps;      /* ... which is held after forward */
    bool is_root;    /* open from the first op of forward to the last of backward */
} msi_group_facts;

/* dtype of inner nodes of the tree over micro-batches. */
static inline int32_t msi_node_dtype(int32_t reduce_dtype)
{
    return reduce_dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;
}

#endif
