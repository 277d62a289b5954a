/* where(cond, a, b): a's element if cond is true, else b's, with broadcasting. The gradient goes to
 * the chosen element; the other one's is 0, whatever the gradient is. */
#include "meta.h"
#include "operand.h"

enum { COND, A, B };
enum { SAVED_COND };

static ms_status where_shape(const msi_meta *m, int32_t *ndim, int64_t *shape)
{
    msi_view both = {0};

    MS_TRY(msi_broadcast(m->in[A], m->in[B], ndim, shape));
    msi_view_set_contiguous(&both, m->in[A]->dtype, *ndim, shape);
    return msi_broadcast(m->in[COND], &both, ndim, shape);
}

static ms_status where_meta(const msi_meta *m)
{
    int64_t shape[MS_MAX_DIMS];
    int32_t ndim;

    if (m->in[COND]->dtype != MS_DTYPE_BOOL) {
        return MS_FAIL(MS_TYPE_ERROR, "where: cond is %s, expected bool",
                       ms_dtype_name(m->in[COND]->dtype));
    }
    MS_TRY(msi_same_dtype("where", "a", m->in[A], "b", m->in[B]));
    ms_status status = where_shape(m, &ndim, shape);

    if (status != MS_OK) {
        return msi_fail_prefix(status, "where: ");
    }
    return msi_result(m->out, m->in[A]->dtype, ndim, shape);
}

static ms_status where_forward(msi_op_call *c)
{
    const msi_view *in[3] = {&c->in[COND]->v, &c->in[A]->v, &c->in[B]->v};

    MS_TRY(msi_ew("where", MSI_K_where, &c->out[0]->v, in, 3, NULL, false));
    msi_save(c, SAVED_COND, in[COND]);
    return MS_OK;
}

static ms_status where_backward(msi_bwd *b)
{
    const msi_view *cond, *g = msi_bwd_grad(b, 0);
    msi_view zero;

    MS_TRY(msi_bwd_saved(b, SAVED_COND, &cond));
    MS_TRY(msi_bwd_temp(b, g->dtype, 0, NULL, &zero));
    MS_TRY(msi_fill(&zero, 0));
    const msi_view *to_a[3] = {cond, g, &zero}, *to_b[3] = {cond, &zero, g};

    MS_TRY(msi_bwd_elementwise(b, A, "where", MSI_K_where, to_a, 3));
    return msi_bwd_elementwise(b, B, "where", MSI_K_where, to_b, 3);
}

const msi_op msi_op_where = {.name = "where",
                             .meta = where_meta,
                             .forward = where_forward,
                             .backward = where_backward,
                             .n_saved = 1};

ms_status ms_op_where(ms_tensor **out, ms_tensor *cond, ms_tensor *a, ms_tensor *b)
{
    ms_tensor *const in[3] = {cond, a, b};

    *out = NULL;
    return msi_op_run(&msi_op_where, NULL, in, 3, out, 1);
}
