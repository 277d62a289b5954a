/* The larger and the smaller of two tensors; equal elements share the gradient. */
#include "meta.h"
#include "operand.h"

enum { A, B };

typedef struct extreme {
    int32_t kernel, gradient;
} extreme;

static ms_status extreme_meta(const msi_meta *m)
{
    const extreme *f = m->attrs;

    MS_TRY(msi_meta_broadcast(m, m->in[A]->dtype));
    return msi_meta_kernel(m, f->kernel, m->in[A]->dtype);
}

static ms_status extreme_forward(msi_op_call *c)
{
    const extreme *f = c->attrs;
    const msi_view *in[2] = {&c->in[A]->v, &c->in[B]->v};

    MS_TRY(msi_ew(c->op->name, f->kernel, &c->out[0]->v, in, 2, NULL, false));
    msi_save(c, A, in[A]);
    msi_save(c, B, in[B]);
    return MS_OK;
}

static ms_status extreme_backward(msi_bwd *b)
{
    const extreme *f = msi_bwd_attrs(b);
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
                                   .attrs_size = sizeof(extreme),                                  \
                                   .n_saved = 2};                                                  \
                                                                                                   \
    ms_status ms_op_##name_(ms_tensor **out, ms_tensor *a, ms_tensor *b)                           \
    {                                                                                              \
        const extreme attrs = {MSI_K_##name_, MSI_K_##name_##_grad};                               \
        ms_tensor *const in[2] = {a, b};                                                           \
                                                                                                   \
        *out = NULL;                                                                               \
        return msi_op_run(&msi_op_##name_, &attrs, in, 2, out, 1);                                 \
    }
EXTREME(maximum)
EXTREME(minimum)
