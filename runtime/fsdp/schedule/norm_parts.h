/* The norm of sharded gradients.
 *
 * Each parameter is cut into blocks counted from its element 0 (norm.h). A rank sends the results
 * of its whole blocks, and the raw elements (fragments) of blocks that a shard boundary cuts, to
 * the ranks of its shard group. Every rank then folds all blocks, parameter by parameter in the
 * model's order. For plain parameters every rank sends all blocks to all ranks of the tree,
 * replicas among them. If they differ (nobody reduced their gradients) the mean over ranks counts,
 * so that all ranks clip by one norm. */
#ifndef MSI_FSDP_NORM_PARTS_H
#define MSI_FSDP_NORM_PARTS_H

#include "norm.h"
#include "schedule.h"

/* One rank's message: block results, then fragments, each padded to 8 bytes. `plain` are the blocks
 * of plain parameters, a message of their own. Entry r of an array of messages has the sharded
 * parts of rank r of the shard group, and the plain ones of rank r of the tree. */
typedef struct msi_norm_message {
    double *blocks;
    char *fragments;
    double *plain;
} msi_norm_message;

/* Bytes of a rank's two messages, and of the blocks it keeps to itself. */
typedef struct msi_norm_room {
    int64_t sharded, plain, kept;
} msi_norm_room;

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
/* Bytes of the block results and fragments of a rank of the shard group. */
ms_status msi_norm_measure(const msi_param_list *o, int32_t rank, int64_t *blocks,
                           int64_t *fragments);

/* -- norm_message.c: this rank's message ------------------------------------------------------- */
/* Write this rank's sharded message, its plain one, then the blocks that are not sent, to host
 * memory at `to`. Waits for the device. */
ms_status msi_norm_know(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                        const msi_norm_room *room, char *to);

/* -- norm_fold.c: the total -------------------------------------------------------------------- */
/* Fold all blocks of `messages` (the tree's W), consuming them, and `kept`. */
ms_status msi_norm_fold_all(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                            msi_norm_message *messages, const double *kept, double *total);

#endif
