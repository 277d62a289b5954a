/* The norm of sharded gradients.
 *
 * Each parameter is cut into blocks counted from its element 0 (norm.h). A rank sends the results
 * of its whole blocks, and the raw elements (fragments) of blocks that a shard boundary cuts. Every
 * rank then folds all blocks, parameter by parameter in the model's order. For plain parameters
 * every rank sends all blocks. If they differ (nobody reduced their gradients) the mean over ranks
 * counts, so that all ranks clip by one norm. */
#ifndef MSI_FSDP_NORM_PARTS_H
#define MSI_FSDP_NORM_PARTS_H

#include "norm.h"
#include "schedule.h"

/* One rank's message: block results, then fragments, each padded to 8 bytes. */
typedef struct msi_norm_message {
    double *blocks;
    char *fragments;
} msi_norm_message;

/* A range of one parameter inside one block. */
typedef struct msi_stretch {
    int64_t first, n; /* elements of the parameter */
    bool whole;       /* the whole block */
} msi_stretch;

/* -- norm_parts.c: positions ------------------------------------------------------------------- */
/* The stretch at `first` in the piece [.., end) of a parameter of `numel` elements. */
msi_stretch msi_norm_stretch(int64_t first, int64_t end, int64_t numel);
/* Rank's piece of a parameter; may be empty. */
ms_status msi_norm_piece(const ms_fsdp_unit *u, int32_t rank, int32_t param,
                         ms_layout_piece *piece);
/* True if all ranks' parts make up the norm. Replicas are already equal. */
bool msi_norm_is_cut(const msi_listed_param *at);
/* True if any of it is sent. */
bool msi_norm_is_sent(const ms_fsdp_tree *tree, const msi_listed_param *at);
/* Bytes of a fragment of n elements. */
int64_t msi_norm_padded(const ms_fsdp_unit *u, int64_t n);
/* Blocks of a plain parameter; blocks of a parameter that is not sent (0 without a gradient). */
int64_t msi_norm_plain_blocks(const msi_listed_param *at);
int64_t msi_norm_kept_blocks(const ms_fsdp_tree *tree, const msi_listed_param *at);
/* Bytes of rank's block results and fragments. */
ms_status msi_norm_measure(const ms_fsdp_tree *tree, const msi_param_list *o, int32_t rank,
                           int64_t *blocks, int64_t *fragments);

/* -- norm_message.c: this rank's message ------------------------------------------------------- */
/* Write this rank's message, `room` bytes, then `kept` bytes of blocks that are not sent, to host
 * memory at `to`. Waits for the device. */
ms_status msi_norm_know(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                        int64_t room, int64_t kept, char *to);

/* -- norm_fold.c: the total -------------------------------------------------------------------- */
/* Fold all blocks of `messages` (W), consuming them, and `kept`. */
ms_status msi_norm_fold_all(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                            msi_norm_message *messages, const double *kept, double *total);

#endif
