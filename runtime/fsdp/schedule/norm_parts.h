/* The norm of gradients that lie cut over ranks.
 *
 * Each parameter is cut into blocks counted from its element 0 (norm.h). A rank sends the results
 * of the blocks it holds whole, and the raw elements of those a shard boundary cuts; every rank
 * then folds all blocks, parameter after parameter in the model's order. Of plain parameters every
 * rank sends all blocks: where they differ (nobody reduced their gradients) their mean over ranks
 * counts, so that all ranks clip by one norm. */
#ifndef MSI_FSDP_NORM_PARTS_H
#define MSI_FSDP_NORM_PARTS_H

#include "norm.h"
#include "schedule.h"

/* What one rank sends: block results first, then fragments, each padded to 8 bytes. */
typedef struct msi_norm_message {
    double *blocks;
    char *fragments;
} msi_norm_message;

/* A stretch of one parameter that lies in one block. */
typedef struct msi_stretch {
    int64_t first, n; /* elements of the parameter */
    bool whole;       /* all of the block */
} msi_stretch;

/* -- norm_parts.c: what lies where ------------------------------------------------------------- */
/* The stretch that begins at `first` in the piece [.., end) of a parameter of `numel` elements. */
msi_stretch msi_norm_stretch(int64_t first, int64_t end, int64_t numel);
/* What rank holds of a parameter; perhaps 0 elements. */
ms_status msi_norm_piece(const ms_fsdp_unit *u, int32_t rank, int32_t param,
                         ms_layout_piece *piece);
/* Is the parameter's norm put together from what all ranks send? Replicas are equal already. */
bool msi_norm_is_cut(const msi_listed_param *at);
/* Is anything of it sent? */
bool msi_norm_is_sent(const ms_fsdp_tree *tree, const msi_listed_param *at);
/* Bytes of a fragment of n elements. */
int64_t msi_norm_padded(const ms_fsdp_unit *u, int64_t n);
/* Blocks of a plain parameter; and of one of which nothing is sent, 0 without a gradient. */
int64_t msi_norm_plain_blocks(const msi_listed_param *at);
int64_t msi_norm_kept_blocks(const ms_fsdp_tree *tree, const msi_listed_param *at);
/* Bytes of rank's block results and fragments. */
ms_status msi_norm_measure(const ms_fsdp_tree *tree, const msi_param_list *o, int32_t rank,
                           int64_t *blocks, int64_t *fragments);

/* -- norm_message.c: what this rank knows ------------------------------------------------------ */
/* Its message, `room` bytes, and behind it the `kept` bytes of blocks of which nothing is sent, to
 * the host's memory at `to`. Waits for the device. */
ms_status msi_norm_know(const ms_fsdp_tree *tree, const msi_param_list *o, bool largest,
                        int64_t room, int64_t kept, char *to);

/* -- norm_fold.c: what all say comes to -------------------------------------------------------- */
/* Fold all blocks of `messages` (W), which it reads to their ends, and `kept`. */
ms_status msi_norm_fold_all(const ms_fsdp_tree *tree, const msi_param_list *o, bool largest,
                            msi_norm_message *messages, const double *kept, double *total);

#endif
