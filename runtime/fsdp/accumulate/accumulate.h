/* The tree over the micro-batches of one rank. Knows neither units nor ranks.
 *
 * [Note: gradient tree] The gradients of one rank's micro-batches merge as a binary counter
 * (no_sync): the k-th merges as often as k has trailing ones. The ranks' sums then merge by the
 * same rule. With m micro-batches per rank (m a power of two), micro-batch i = r m + k is at the
 * same position of the same tree for any number of ranks, so the sum has the same bits. Inner nodes
 * are f32 (f64 for f64). One multiplication and one rounding follow.
 *
 * The count is the model's, not the unit's: a unit that a micro-batch does not reach has an empty
 * gradient there, and empty + x = x. So the tree is the same for every unit and wrapping. Level j
 * is used only if bit j of the count is set. */
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
    void *micro;        /* this backward's gradient, or its partial sum; NULL: none */
    msi_mem_block *own; /* owns `micro`; NULL: in a slot */
} msi_accumulator;

/* Put the running micro-batch's gradient into own memory, or into a slot. */
ms_status msi_micro_new(msi_accumulator *a);
void msi_micro_in_slot(msi_accumulator *a, void *slot);
void msi_micro_drop(msi_accumulator *a);

bool msi_accumulator_holds(const msi_accumulator *a);
/* Merge the micro-batch's gradient, even an empty one, with the `n_kept` before it. */
ms_status msi_accumulator_keep(msi_accumulator *a, uint64_t n_kept);
/* Sum the last micro-batch's gradient, if any, and all levels, smallest first, into `slot`, in
 * `dtype`. After an error nothing is lost. */
ms_status msi_accumulator_fold(msi_accumulator *a, void *slot, int32_t dtype);
void msi_accumulator_free_levels(msi_accumulator *a);

/* Sum of elements [first, first + n) of the levels, equal to the fold's, to `out` (node dtype). */
ms_status msi_accumulator_sum(const msi_accumulator *a, int64_t first, int64_t n, void *out);

#endif
