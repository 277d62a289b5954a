/* Interface of backward rules to their node: incoming gradients, saved views, destinations,
 * scratch. */
#include "tape.h"

struct msi_bwd {
    msi_node *node;
    msi_tape *tape;
};

ms_status msi_rule_run(msi_node *node)
{
    msi_tape *tape = node->tape;
    msi_bwd b = {node, tape};
    ms_status status = node->op->backward(&b);

    while (tape->temps.n > 0) {
        msi_storage_release(tape->temps.item[--tape->temps.n]);
    }
    return status;
}

const msi_node *msi_bwd_node(const msi_bwd *b)
{
    return b->node;
}

ms_context *msi_bwd_context(const msi_bwd *b)
{
    return b->tape->ctx;
}

const char *msi_bwd_name(const msi_bwd *b)
{
    return b->node->op->name;
}

const void *msi_bwd_attrs(const msi_bwd *b)
{
    return b->node->attrs;
}

const msi_view *msi_bwd_grad(const msi_bwd *b, int32_t i)
{
    return b->node->out[i].grad != NULL ? &b->node->out[i].grad->view : NULL;
}

const msi_view *msi_bwd_operand(const msi_bwd *b, int32_t i)
{
    const msi_edge *edge = &b->node->edge[i];
    msi_view *v = &b->tape->operand[i];

    if (edge->ndim < 0) {
        return NULL;
    }
    v->storage = NULL;
    v->offset = 0;
    msi_view_set_contiguous(v, edge->dtype, edge->ndim, edge->shape);
    return v;
}

bool msi_bwd_needs(const msi_bwd *b, int32_t i)
{
    return msi_edge_needs(&b->node->edge[i]);
}

/* -- saved views ------------------------------------------------------------------------------- */

ms_status msi_saved_check(const msi_saved *saved, int32_t which)
{
    const msi_storage *s = saved->view.storage;
    const bool shared = s->unit != NULL;

    if (MSI_LIKELY(saved->version == s->version)) {
        return MS_OK;
    }
    return MS_FAIL(MS_RUNTIME_ERROR,
                   "saved tensor %d of shape %s was modified by an in-place operation: it is at "
                   "version %lld, expected %lld%s%s%s",
                   (int)which, msi_shape_text(saved->view.ndim, saved->view.shape),
                   (long long)s->version, (long long)saved->version,
                   shared ? "; the version counts writes to any parameter of unit '" : "",
                   shared ? s->unit : "",
                   shared ? "', by optimizers, loads and summon_full_params too" : "");
}

ms_status msi_bwd_saved(msi_bwd *b, int32_t which, const msi_view **v)
{
    const msi_saved *saved = &b->node->saved[which];
    void *data;

    MS_ASSERT(which < b->node->n_saved && saved->view.storage != NULL);
    MS_TRY(msi_saved_check(saved, which));
    *v = &saved->view;
    return msi_view_data(&saved->view, &data);
}

bool msi_bwd_saved_exclusive(msi_bwd *b, int32_t which)
{
    const msi_storage *s = b->node->saved[which].view.storage;

    return s != NULL && !b->tape->retains && msi_storage_is_private(s);
}

bool msi_bwd_overwrites(msi_bwd *b, int32_t i, int32_t which)
{
    const msi_edge *edge = &b->node->edge[i];
    const msi_view *v = &b->node->saved[which].view;

    return msi_edge_needs(edge) && msi_bwd_saved_exclusive(b, which) &&
           (msi_view_contiguous(v) || b->node->op->overwrites_rows) &&
           msi_grad_takes(edge->node, edge->out, v);
}

/* -- operands' gradients ----------------------------------------------------------------------- */

ms_status msi_bwd_dest(msi_bwd *b, int32_t i, msi_view *dst, bool *add)
{
    const msi_edge *edge = &b->node->edge[i];

    MS_ASSERT(msi_edge_needs(edge));
    return msi_grad_dest(edge->node, edge->out, dst, add);
}

ms_status msi_bwd_pass(msi_bwd *b, int32_t i, const msi_view *v)
{
    const msi_edge *edge = &b->node->edge[i];

    MS_ASSERT(edge->node == NULL || msi_view_same_shape(v, msi_bwd_operand(b, i)));
    return msi_edge_needs(edge) ? msi_grad_pass(edge->node, edge->out, v) : MS_OK;
}

ms_status msi_bwd_temp(msi_bwd *b, int32_t dtype, int32_t ndim, const int64_t *shape, msi_view *v)
{
    v->offset = 0;
    msi_view_set_contiguous(v, dtype, ndim, shape);
    MS_TRY(msi_storage_new(&v->storage, b->tape->ctx, msi_view_numel(v) * ms_dtype_size(dtype),
                           MS_MEM_ACTIVATION));
    ms_status status = msi_list_push(&b->tape->temps, v->storage);

    if (status != MS_OK) {
        msi_storage_release(v->storage);
    }
    return status;
}
