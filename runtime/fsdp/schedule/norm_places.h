/* What the ranks' messages for a norm and their fold share: sizes and places. */
#ifndef MSI_FSDP_NORM_PLACES_H
#define MSI_FSDP_NORM_PLACES_H

#include "norm_messages.h"

/* Cut parameters whose pieces are equal on every rank, measured once. */
typedef struct msi_norm_measured {
    const msi_listed_param *at;
    int64_t times;
} msi_norm_measured;

/* Bytes of a rank's two messages, the largest of any rank, and of the blocks that this one keeps.
 */
typedef struct msi_norm_sizes {
    msi_norm_measured *cut; /* (n_cut) */
    int32_t n_cut;
    int64_t sharded, plain, kept;
    int64_t n_blocks, n_pieces; /* in all; fragments of all ranks */
} msi_norm_sizes;

/* [Note: places] The fold reads one piece of memory: every rank's sharded message, every rank's
 * plain one, this rank's kept blocks, then results of the blocks that are cut, which a kernel
 * computes from their fragments. Its list has the place of each block's result, parameter by
 * parameter. */
typedef struct msi_norm_places {
    int64_t n_blocks, n_cut, n_pieces;
    int64_t *of_block;                /* (n_blocks) in f64, from 1 */
    int64_t *first;                   /* (n_cut + 1) of the pieces of each cut block */
    msi_norm_piece *pieces;           /* (n_pieces) */
    int64_t *dtype;                   /* (n_cut) of the gradients */
    int64_t plain, kept, cut, nbytes; /* offsets and size of the memory */
    msi_mem_block *block;             /* host memory of the arrays */
} msi_norm_places;

/* Measure the ranks' messages. The caller frees `sizes->cut`, in any case. */
ms_status msi_norm_measure(const ms_fsdp_tree *tree, const msi_param_list *o,
                           msi_norm_sizes *sizes);
/* Compute this rank's messages by kernels: the sharded one, and at `rest` the plain one, then the
 * kept blocks. */
ms_status msi_norm_write(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                         const msi_norm_sizes *sizes, char *sharded, char *rest);
/* List the blocks' places. The caller releases `p->block`, in any case. In a fake group the arrays
 * are not filled. */
ms_status msi_norm_places_new(msi_norm_places *p, const ms_fsdp_tree *tree, const msi_param_list *o,
                              const msi_norm_sizes *sizes);

#endif
