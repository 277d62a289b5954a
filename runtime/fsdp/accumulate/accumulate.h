/* The tree over the micro-batches of one rank. Knows neither units nor ranks.
 *
 * [Note: gradient tree] The gradients of one rank's micro-batches merge as a binary counter
 * (no_sync): the k-th merges as often as k has trailing ones. Then the ranks' sums merge by the
 * same rule. With m micro-batches a rank (m a power of two) number i = r m + k stands at the same
 * place of the same tree whatever the number of ranks, so the sum has the same bits. Inner nodes
 * are f32 (f64 for f64); the one multiplication comes after the tree, then one rounding.
 *
 * The model counts, not the unit: one that a micro-batch does not reach has an empty gradient
 * there, and empty + x = x. So it is the same tree for every unit, however the model was wrapped.
 * Level j may hold something when bit j of the count is set. */
#ifndef MSI_FSDP_ACCUMULATE_H
#define MSI_FSDP_ACCUMULATE_H

#include "backend.h"
#include "group_facts.h"

enum { MSI_MAX_LEVELS = 40 };

/* A node of the tree. */
typedef struct msi_node {
    msi_mem_block *block; /* NULL: empty */
    int32_t dtype;
} msi_node;

typedef struct msi_accumulator {
    ms_context *ctx;
    int64_t numel; /* of every node */
    int32_t micro_dtype;
    int32_t node_dtype; /* of inner nodes */
    msi_node level[MSI_MAX_LEVELS];
    void *micro; /* where this backward's gradient is born, or what it has become; NULL: nowhere */
    msi_mem_block *own; /* what that is in; NULL: a slot */
} msi_accumulator;

/* A place of our own for the running micro-batch's gradient; or one in a slot. */
ms_status msi_micro_new(msi_accumulator *a);
void msi_micro_in_slot(msi_accumulator *a, void *slot);
void msi_micro_drop(msi_accumulator *a);

bool msi_accumulator_holds(const msi_accumulator *a);
/* The micro-batch's gradient, be it empty, joins those of `n_kept` before it. */
ms_status msi_accumulator_keep(msi_accumulator *a, uint64_t n_kept);
/* With that of the last micro-batch, if there is one, all levels become one, smallest first, in
 * `slot`, of `dtype`. After an error nothing is lost. */
ms_status msi_accumulator_fold(msi_accumulator *a, void *slot, int32_t dtype);
void msi_accumulator_free_levels(msi_accumulator *a);

/* The levels' sum of elements [first, first + n), as the fold will be, in `out` (node dtype). */
ms_status msi_accumulator_sum(const msi_accumulator *a, int64_t first, int64_t n, void *out);

#endif
