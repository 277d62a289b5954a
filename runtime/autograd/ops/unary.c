/* Elementwise functions of one operand. Attributes give the kernels of function and gradient, and
 * whether the gradient needs x or y; all share one rule. */
#include "dtype.h"
#include "meta.h"
#include "operand.h"

#include <math.h>

typedef struct unary {
    int32_t kernel, gradient;
    int32_t n_in;      /* of the gradient: (g, saved), or (g, saved, saved) */
    bool saves_out;    /* y, else x */
    double scalars[2]; /* of both */
} unary;

static ms_status unary_meta(const msi_meta *m)
{
    const unary *f = m->attrs;

    MS_TRY(msi_meta_like(m));
    return msi_meta_kernel(m, f->kernel, m->in[0]->dtype);
}

static ms_status unary_forward(msi_op_call *c)
{
    const unary *f = c->attrs;
    const msi_view *x = &c->in[0]->v;

    MS_TRY(msi_ew(c->op->name, f->kernel, &c->out[0]->v, &x, 1, f->scalars, false));
    msi_save(c, 0, f->saves_out ? &c->out[0]->v : x);
    return MS_OK;
}

static ms_status unary_backward(msi_bwd *b)
{
    const unary *f = msi_bwd_attrs(b);
    const msi_view *saved;
    msi_target t;

    MS_TRY(msi_bwd_saved(b, 0, &saved));
    const msi_view *in[3] = {msi_bwd_grad(b, 0), saved, saved};

    MS_TRY(msi_target_open_over(&t, b, 0, 0));
    MS_TRY(
        msi_ew(msi_kernel_name(f->gradient), f->gradient, &t.view, in, f->n_in, f->scalars, t.add));
    return msi_target_close(&t);
}

#define UNARY_OP(name_, saves_out_)                                                                \
    {                                                                                              \
        .name = name_, .meta = unary_meta, .forward = unary_forward, .backward = unary_backward,   \
        .attrs_size = sizeof(unary), .n_saved = 1, .overwrites = !(saves_out_)                     \
    }

static ms_status run(const msi_op *op, const unary *f, ms_tensor **out, ms_tensor *x)
{
    *out = NULL;
    return msi_op_run(op, f, &x, 1, out, 1);
}

/* The functions of unary.h. */
enum { SAVES_X = false, SAVES_Y = true };

#define UNARY_FUNCTION(A, f, gradient_, saved)                                                     \
    const msi_op msi_op_##f = UNARY_OP(#f, SAVES_##saved);                                         \
                                                                                                   \
    ms_status ms_op_##f(ms_tensor **out, ms_tensor *x)                                             \
    {                                                                                              \
        static const unary row = {MSI_K_##f, MSI_K_##gradient_, 2, SAVES_##saved, {0}};            \
                                                                                                   \
        return run(&msi_op_##f, &row, out, x);                                                     \
    }
MSI_UNARY(UNARY_FUNCTION, )

const msi_op msi_op_reciprocal = UNARY_OP("reciprocal", SAVES_Y);

ms_status ms_op_reciprocal(ms_tensor **out, ms_tensor *x)
{
    static const unary f = {MSI_K_reciprocal, MSI_K_mul_neg, 3, SAVES_Y, {1}}; /* -g y y */

    return run(&msi_op_reciprocal, &f, out, x);
}

const msi_op msi_op_gelu = UNARY_OP("gelu", SAVES_X);

ms_status ms_op_gelu(ms_tensor **out, ms_tensor *x, bool approximate)
{
    static const unary exact = {MSI_K_gelu, MSI_K_gelu_grad, 2, SAVES_X, {0}};
    static const unary tanh_form = {MSI_K_gelu_tanh, MSI_K_gelu_tanh_grad, 2, SAVES_X, {0}};

    return run(&msi_op_gelu, approximate ? &tanh_form : &exact, out, x);
}

const msi_op msi_op_softplus = UNARY_OP("softplus", SAVES_X);

ms_status ms_op_softplus(ms_tensor **out, ms_tensor *x, double beta, double threshold)
{
    const unary f = {MSI_K_softplus, MSI_K_softplus_grad, 2, SAVES_X, {beta, threshold}};

    return run(&msi_op_softplus, &f, out, x);
}

const msi_op msi_op_leaky_relu = UNARY_OP("leaky_relu", SAVES_X);

ms_status ms_op_leaky_relu(ms_tensor **out, ms_tensor *x, double negative_slope)
{
    const unary f = {MSI_K_leaky_relu, MSI_K_leaky_relu_grad, 2, SAVES_X, {negative_slope}};

    return run(&msi_op_leaky_relu, &f, out, x);
}

const msi_op msi_op_clamp = UNARY_OP("clamp", SAVES_X);

/* An infinite bound becomes the end of the integer range. */
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
    const bool never = isnan(low) || isnan(high); /* then x * low + high is NaN, as required */
    unary f = {never ? MSI_K_affine : MSI_K_clamp, MSI_K_clamp_grad, 2, SAVES_X, {low, high}};

    *out = NULL;
    for (int32_t i = 0; i < 2 && !ms_dtype_is_floating(x->v.dtype); i++) {
        MS_TRY(whole_bound(x->v.dtype, &f.scalars[i]));
    }
    return run(&msi_op_clamp, &f, out, x);
}

/* -- scale * x + shift: nothing to save -------------------------------------------------------- */

typedef struct affine_attrs {
    double scale, shift;
} affine_attrs;

static ms_status affine_meta(const msi_meta *m)
{
    MS_TRY(msi_meta_like(m));
    return msi_meta_kernel(m, MSI_K_affine, m->in[0]->dtype);
}

static ms_status affine_forward(msi_op_call *c)
{
    const affine_attrs *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;
    const double scalars[2] = {attrs->scale, attrs->shift};

    return msi_ew(c->op->name, MSI_K_affine, &c->out[0]->v, &x, 1, scalars, false);
}

static ms_status affine_backward(msi_bwd *b)
{
    const affine_attrs *attrs = msi_bwd_attrs(b);

    return msi_bwd_reduce_pass(b, 0, msi_bwd_grad(b, 0), attrs->scale);
}

#define AFFINE_OP(name_)                                                                           \
    {                                                                                              \
        .name = name_, .meta = affine_meta, .forward = affine_forward,                             \
        .backward = affine_backward, .attrs_size = sizeof(affine_attrs)                            \
    }

const msi_op msi_op_affine = AFFINE_OP("affine");

ms_status ms_op_affine(ms_tensor **out, ms_tensor *x, double scale, double shift)
{
    const affine_attrs attrs = {scale, shift};

    *out = NULL;
    MS_TRY(msi_check_number(msi_op_affine.name, x->v.dtype, scale));
    MS_TRY(msi_check_number(msi_op_affine.name, x->v.dtype, shift));
    return msi_op_run(&msi_op_affine, &attrs, &x, 1, out, 1);
}

const msi_op msi_op_neg = AFFINE_OP("neg");

ms_status ms_op_neg(ms_tensor **out, ms_tensor *x)
{
    static const affine_attrs attrs = {-1, -0.0};

    *out = NULL;
    return msi_op_run(&msi_op_neg, &attrs, &x, 1, out, 1);
}

const msi_op msi_op_add_number = AFFINE_OP("add");
const msi_op msi_op_sub_number = AFFINE_OP("sub");
const msi_op msi_op_sub_from_number = AFFINE_OP("sub");
const msi_op msi_op_mul_number = AFFINE_OP("mul");

ms_status ms_op_with_number(ms_tensor **out, ms_tensor *x, double number, int32_t operation)
{
    static const msi_op *const ops[] = {
        [MS_NUMBER_ADD] = &msi_op_add_number,
        [MS_NUMBER_SUB] = &msi_op_sub_number,
        [MS_NUMBER_SUB_FROM] = &msi_op_sub_from_number,
        [MS_NUMBER_MUL] = &msi_op_mul_number,
    };
    const bool least = x->v.dtype == MS_DTYPE_I64 && number == -0x1p63; /* its own negative */
    const affine_attrs attrs[] = {
        [MS_NUMBER_ADD] = {1, number},
        [MS_NUMBER_SUB] = {1, least ? number : -number},
        [MS_NUMBER_SUB_FROM] = {-1, number},
        [MS_NUMBER_MUL] = {number, -0.0}, /* adding -0 keeps the sign of zeros */
    };

    *out = NULL;
    if (operation < MS_NUMBER_ADD || operation > MS_NUMBER_MUL) {
        return MS_FAIL(MS_VALUE_ERROR, "with_number: operation %d is none, expected %d to %d",
                       (int)operation, MS_NUMBER_ADD, MS_NUMBER_MUL);
    }
    MS_TRY(msi_check_number(ops[operation]->name, x->v.dtype, number));
    return msi_op_run(ops[operation], &attrs[operation], &x, 1, out, 1);
}
