#include "norm_parts.h"

#include <string.h>

/* Fold one parameter's blocks from the messages of its shard group's ranks. */
static ms_status fold_param(const ms_fsdp_unit *u, int32_t index, double order,
                            msi_norm_message *messages, double *total)
{
    double cut[MSI_NORM_BLOCK]; /* elements of a cut block, in the gradients' dtype */
    int64_t size = ms_dtype_size(u->grad_dtype), numel = u->params[index].numel;

    for (int32_t q = 0; q < u->shard_world; q++) {
        ms_layout_piece piece;

        MS_TRY(msi_norm_piece(u, q, index, &piece));
        for (int64_t at = piece.start, end = piece.start + piece.numel; at < end;) {
            msi_stretch s = msi_norm_stretch(at, end, numel);
            int64_t in_block = s.first % MSI_NORM_BLOCK;
            double result;

            at += s.n;
            if (s.whole) {
                *total = msi_norm_fold(*total, messages[q].blocks++, 1, order);
                continue;
            }
            memcpy((char *)cut + in_block * size, messages[q].fragments, (size_t)(s.n * size));
            messages[q].fragments += msi_norm_padded(u, s.n);
            if (at % MSI_NORM_BLOCK == 0 || at == numel) { /* the block is complete */
                msi_norm_args args = {.n = in_block + s.n,
                                      .block = MSI_NORM_BLOCK,
                                      .x = cut,
                                      .out = &result,
                                      .order = order};

                MS_TRY(msi_dispatch_host("norm", MSI_K_norm, u->grad_dtype, &args));
                *total = msi_norm_fold(*total, &result, 1, order);
            }
        }
    }
    return MS_OK;
}

/* The value of a block for which every rank sent a result. */
static double agreed_block(const ms_fsdp_tree *tree, msi_norm_message *messages, double order)
{
    double first = *messages[0].plain, total = 0;
    bool equal = true;

    for (int32_t q = 0; q < tree->world; q++) {
        double result = *messages[q].plain++;

        equal = equal && memcmp(&result, &first, sizeof(first)) == 0;
        total = msi_norm_fold(total, &result, 1, order);
    }
    return equal ? first : order == HUGE_VAL ? total : total / tree->world;
}

/* Fold one parameter's blocks. */
static ms_status fold_listed(const ms_fsdp_tree *tree, const msi_listed_param *at, double order,
                             msi_norm_message *messages, const double **kept, double *total)
{
    if (msi_norm_is_cut(at)) {
        return fold_param(at->unit, at->index, order, messages, total);
    }
    if (msi_norm_is_sent(tree, at)) {
        for (int64_t n = msi_norm_plain_blocks(at); n > 0; n--) {
            double result = agreed_block(tree, messages, order);

            *total = msi_norm_fold(*total, &result, 1, order);
        }
    } else {
        const int64_t n = msi_norm_kept_blocks(tree, at);

        *total = msi_norm_fold(*total, *kept, n, order);
        *kept += n;
    }
    return MS_OK;
}

ms_status msi_norm_fold_all(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                            msi_norm_message *messages, const double *kept, double *total)
{
    *total = 0;
    for (int32_t i = 0; i < o->n; i++) {
        double one = 0; /* order 0 counts tensors, not blocks */

        MS_TRY(fold_listed(tree, &o->places[i], order, messages, &kept, order == 0 ? &one : total));
        *total = order == 0 ? *total + (one != 0) : *total;
    }
    return MS_OK;
}
