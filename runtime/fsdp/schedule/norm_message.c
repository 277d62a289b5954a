#include "norm_parts.h"

/* One rank's contribution: its messages, and blocks that are not sent. */
typedef struct knowledge {
    msi_norm_message sent;
    double *kept;
} knowledge;

/* View of elements [first, first + n) of this rank's gradient of a parameter. */
static msi_view grad_view(const ms_fsdp_unit *u, const msi_unit_param *p, int64_t first, int64_t n)
{
    msi_view v = p->tensor->grad->v;

    v.offset += first - p->piece.start;
    msi_view_set_contiguous(&v, u->grad_dtype, 1, &n);
    return v;
}

/* Write the gradient's n blocks, or 0, at `*to`. */
static ms_status write_blocks(const ms_tensor *grad, int64_t n, double order, double **to)
{
    double *out = *to;

    *to += n;
    return grad != NULL ? msi_norm_blocks(&grad->v, order, out) : MS_OK;
}

static ms_status write_param(const ms_fsdp_unit *u, const msi_unit_param *p, double order,
                             msi_norm_message *m)
{
    int64_t end = p->piece.start + p->piece.numel;

    for (int64_t at = p->piece.start; at < end;) {
        msi_stretch s = msi_norm_stretch(at, end, p->numel);

        if (s.whole) { /* with all following whole blocks */
            int64_t stop = end == p->numel ? end : end / MSI_NORM_BLOCK * MSI_NORM_BLOCK;

            if (p->tensor->grad != NULL) {
                msi_view v = grad_view(u, p, at, stop - at);

                MS_TRY(msi_norm_blocks(&v, order, m->blocks));
            }
            m->blocks += msi_norm_n_blocks(stop - at);
            at = stop;
            continue;
        }
        if (p->tensor->grad != NULL) {
            msi_view v = grad_view(u, p, s.first, s.n);

            MS_TRY(msi_mem_copy(u->ctx, m->fragments, msi_view_ptr(&v),
                                s.n * ms_dtype_size(u->grad_dtype)));
        }
        m->fragments += msi_norm_padded(u, s.n);
        at += s.n;
    }
    return MS_OK;
}

static ms_status write_all(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                           knowledge own)
{
    for (int32_t i = 0; i < o->n; i++) {
        const msi_listed_param *at = &o->places[i];
        const ms_tensor *grad = at->tensor->grad;

        if (msi_norm_is_cut(at)) {
            MS_TRY(write_param(at->unit, &at->unit->params[at->index], order, &own.sent));
        } else if (msi_norm_is_sent(tree, at)) {
            MS_TRY(write_blocks(grad, msi_norm_plain_blocks(at), order, &own.sent.plain));
        } else {
            MS_TRY(write_blocks(grad, msi_norm_kept_blocks(tree, at), order, &own.kept));
        }
    }
    return MS_OK;
}

static int64_t total_room(const msi_norm_room *room)
{
    return room->sharded + room->plain + room->kept;
}

/* Compute this rank's messages, then its kept blocks, by kernels, at `to`. */
static ms_status make_messages(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                               const msi_norm_room *room, char *to)
{
    int64_t blocks, fragments;

    MS_TRY(msi_norm_measure(o, tree->shard_rank, &blocks, &fragments));
    char *plain = to + room->sharded;
    const knowledge own = {{(double *)(void *)to, to + blocks, (double *)(void *)plain},
                           (double *)(void *)(plain + room->plain)};

    MS_TRY(msi_mem_set(tree->ctx, to, 0, total_room(room)));
    return write_all(tree, o, order, own);
}

ms_status msi_norm_know(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                        const msi_norm_room *room, char *to)
{
    msi_mem_block *made;
    ms_status status;

    if (tree->ctx->device == NULL) {
        return make_messages(tree, o, order, room, to);
    }
    MS_TRY(msi_alloc(tree->ctx, total_room(room), MS_MEM_SCRATCH, &made));
    MS_TRY_GOTO(make_messages(tree, o, order, room, made->data), done);
    MS_TRY_GOTO(msi_mem_copy(tree->ctx, to, made->data, total_room(room)), done);
    status = msi_settle_stream(tree->ctx);
done:
    msi_release(made);
    return status;
}
