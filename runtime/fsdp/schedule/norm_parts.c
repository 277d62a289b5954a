#include "norm_parts.h"

msi_stretch msi_norm_stretch(int64_t first, int64_t end, int64_t numel)
{
    int64_t begin = first / MSI_NORM_BLOCK * MSI_NORM_BLOCK;
    int64_t stop = begin + MSI_NORM_BLOCK < numel ? begin + MSI_NORM_BLOCK : numel;
    int64_t last = stop < end ? stop : end;

    return (msi_stretch){first, last - first, first == begin && last == stop};
}

ms_status msi_norm_piece(const ms_fsdp_unit *u, int32_t rank, int32_t param, ms_layout_piece *piece)
{
    MS_TRY(ms_layout_piece_get(u->layout, u->is_sharded ? rank : 0, param, piece));
    if (!piece->present) {
        piece->numel = 0;
    }
    return MS_OK;
}

bool msi_norm_is_cut(const msi_listed_param *at)
{
    return at->unit != NULL && at->unit->is_sharded && at->unit->shard_world > 1;
}

bool msi_norm_is_sent(const ms_fsdp_tree *tree, const msi_listed_param *at)
{
    return msi_norm_is_cut(at) || (at->unit == NULL && tree->world > 1);
}

int64_t msi_norm_padded(const ms_fsdp_unit *u, int64_t n)
{
    return msi_round_up(n * ms_dtype_size(u->grad_dtype), 8);
}

int64_t msi_norm_plain_blocks(const msi_listed_param *at)
{
    return msi_norm_n_blocks(msi_view_numel(&at->tensor->v));
}

int64_t msi_norm_kept_blocks(const ms_fsdp_tree *tree, const msi_listed_param *at)
{
    const ms_tensor *grad = at->tensor->grad;

    return msi_norm_is_sent(tree, at) || grad == NULL ? 0
                                                      : msi_norm_n_blocks(msi_view_numel(&grad->v));
}

ms_status msi_norm_measure(const msi_param_list *o, int32_t rank, int64_t *blocks,
                           int64_t *fragments)
{
    *blocks = *fragments = 0;
    for (int32_t i = 0; i < o->n; i++) {
        const msi_listed_param *at = &o->places[i];
        const ms_fsdp_unit *u = at->unit;
        ms_layout_piece piece;

        if (!msi_norm_is_cut(at)) {
            continue;
        }
        MS_TRY(msi_norm_piece(u, rank, at->index, &piece));
        for (int64_t first = piece.start, end = piece.start + piece.numel; first < end;) {
            msi_stretch s = msi_norm_stretch(first, end, u->params[at->index].numel);

            *blocks += s.whole ? (int64_t)sizeof(double) : 0;
            *fragments += s.whole ? 0 : msi_norm_padded(u, s.n);
            first += s.n;
        }
    }
    return MS_OK;
}
