/* The larger and the smaller of two tensors, and bounds. */
#include "dtype.h"
#include "meta.h"
#include "operand.h"
#include "table.h"

#include <math.h>

/* -- maximum, minimum: equal elements share the gradient --------------------------------------- */

enum { A, B };

typedef struct extreme {
    int32_t kernel, gradient;
} extreme;

/* As of unary.c: a pointer to a row. */
typedef const extreme *extreme_attrs;

static ms_status extreme_meta(const msi_meta *m)
{
    const extreme *f = *(const extreme_attrs *)m->attrs;

    MS_TRY(msi_meta_broadcast(m, m->in[A]->dtype));
    return msi_meta_kernel(m, f->kernel, m->in[A]->dtype);
}

static ms_status extreme_forward(msi_op_call *c)
{
    const extreme *f = *(const extreme_attrs *)c->attrs;
    const msi_view *in[2] = {&c->in[A]->v, &c->in[B]->v};

    MS_TRY(msi_ew(c->op->name, f->kernel, &c->out[0]->v, in, 2, NULL, false));
    msi_save(c, A, in[A]);
    msi_save(c, B, in[B]);
    return MS_OK;
}

static ms_status extreme_backward(msi_bwd *b)
{
    const extreme *f = *(const extreme_attrs *)msi_bwd_attrs(b);
    const msi_view *g = msi_bwd_grad(b, 0), *x, *y;

    MS_TRY(msi_bwd_saved(b, A, &x));
    MS_TRY(msi_bwd_saved(b, B, &y));
    const msi_view *to_a[3] = {g, x, y}, *to_b[3] = {g, y, x};

    MS_TRY(msi_bwd_elementwise(b, A, msi_bwd_name(b), f->gradient, to_a, 3));
    return msi_bwd_elementwise(b, B, msi_bwd_name(b), f->gradient, to_b, 3);
}

#define EXTREME(name_)                                                                             \
    const msi_op msi_op_##name_ = {.name = #name_,                                                 \
                                   .meta = extreme_meta,                                           \
                                   .forward = extreme_forward,                                     \
                                   .backward = extreme_backward,                                   \
                                   .attrs_size = sizeof(extreme_attrs),                            \
                                   .n_saved = 2};                                                  \
                                                                                                   \
    ms_status ms_op_##name_(ms_tensor **out, ms_tensor *a, ms_tensor *b)                           \
    {                                                                                              \
        static const extreme row = {MSI_K_##name_, MSI_K_##name_##_grad};                          \
        const extreme_attrs attrs = &row;                                                          \
        ms_tensor *const in[2] = {a, b};                                                           \
                                                                                                   \
        *out = NULL;                                                                               \
        return msi_op_run(&msi_op_##name_, &attrs, in, 2, out, 1);                                 \
    }
EXTREME(maximum)
EXTREME(minimum)

/* -- clamp ------------------------------------------------------------------------------------- */

typedef struct clamp_attrs {
    double bounds[2]; /* low, high */
} clamp_attrs;

static ms_status clamp_meta(const msi_meta *m)
{
    MS_TRY(msi_meta_like(m));
    return msi_meta_kernel(m, MSI_K_clamp, m->in[0]->dtype);
}

static ms_status clamp_forward(msi_op_call *c)
{
    const clamp_attrs *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;

    msi_save(c, 0, x);
    if (isnan(attrs->bounds[0]) || isnan(attrs->bounds[1])) {
        return msi_fill(&c->out[0]->v, NAN);
    }
    return msi_ew("clamp", MSI_K_clamp, &c->out[0]->v, &x, 1, attrs->bounds, false);
}

static ms_status clamp_backward(msi_bwd *b)
{
    const clamp_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *x;
    msi_target t;

    MS_TRY(msi_bwd_saved(b, 0, &x));
    const msi_view *in[2] = {msi_bwd_grad(b, 0), x};

    MS_TRY(msi_target_open(&t, b, 0, x->dtype, MSI_CAN_ADD));
    MS_TRY(msi_ew("clamp_grad", MSI_K_clamp_grad, &t.view, in, 2, attrs->bounds, t.add));
    return msi_target_close(&t);
}

const msi_op msi_op_clamp = {.name = "clamp",
                             .meta = clamp_meta,
                             .forward = clamp_forward,
                             .backward = clamp_backward,
                             .attrs_size = sizeof(clamp_attrs),
                             .n_saved = 1};

/* Infinities are no bounds: of integers the ends of their range. */
static ms_status whole_bound(int32_t dtype, double *bound)
{
    double low, end;

    if (!isinf(*bound)) {
        return msi_check_number("clamp", dtype, *bound);
    }
    msi_dtype_range(dtype, &low, &end);
    *bound = *bound < 0 ? low : dtype == MS_DTYPE_I64 ? end : end - 1;
    return MS_OK;
}

ms_status ms_op_clamp(ms_tensor **out, ms_tensor *x, double low, double high)
{
    clamp_attrs attrs = {{low, high}};

    *out = NULL;
    for (int32_t i = 0; i < 2 && !ms_dtype_is_floating(x->v.dtype); i++) {
        MS_TRY(whole_bound(x->v.dtype, &attrs.bounds[i]));
    }
    return msi_op_run(&msi_op_clamp, &attrs, &x, 1, out, 1);
}
