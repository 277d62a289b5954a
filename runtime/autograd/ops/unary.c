/* Elementwise functions of one operand. A row of the table says which kernels compute the function
 * and its gradient, and whether the gradient wants x or y; one rule serves them all. */
#include "operand.h"

typedef struct unary {
    int32_t kernel, gradient;
    int32_t n_in;   /* of the gradient: (g, saved), or (g, saved, saved) */
    bool saves_out; /* y, else x */
    double scalar;  /* of the function */
} unary;

/* Attributes are copied into nodes: a pointer to a row will do. */
typedef const unary *unary_attrs;

static ms_status unary_forward(msi_op_call *c)
{
    const unary *f = *(const unary_attrs *)c->attrs;
    const msi_view *x = &c->in[0]->v;
    const double scalars[2] = {f->scalar, 0};

    MS_TRY(msi_out(c, 0, x->dtype, x->ndim, x->shape));
    MS_TRY(msi_ew(c->op->name, f->kernel, &c->out[0]->v, &x, 1, scalars, false));
    msi_save(c, 0, f->saves_out ? &c->out[0]->v : x);
    return MS_OK;
}

static ms_status unary_backward(msi_bwd *b)
{
    const unary *f = *(const unary_attrs *)msi_bwd_attrs(b);
    const msi_view *saved;
    msi_target t;

    MS_TRY(msi_bwd_saved(b, 0, &saved));
    const msi_view *in[3] = {msi_bwd_grad(b, 0), saved, saved};

    MS_TRY(msi_target_open(&t, b, 0, saved->dtype, MSI_CAN_ADD));
    MS_TRY(msi_ew(msi_kernel_name(f->gradient), f->gradient, &t.view, in, f->n_in, NULL, t.add));
    return msi_target_close(&t);
}

#define UNARY_OP(name_)                                                                            \
    {                                                                                              \
        .name = name_, .forward = unary_forward, .backward = unary_backward,                       \
        .attrs_size = sizeof(unary_attrs), .n_saved = 1                                            \
    }

static ms_status run(const msi_op *op, const unary *f, ms_tensor **out, ms_tensor *x)
{
    *out = NULL;
    return msi_op_run(op, &f, &x, 1, out, 1);
}

ms_status ms_op_reciprocal(ms_tensor **out, ms_tensor *x)
{
    static const msi_op op = UNARY_OP("reciprocal");
    static const unary f = {MSI_K_reciprocal, MSI_K_mul_neg, 3, true, 1}; /* -g y y */

    return run(&op, &f, out, x);
}

ms_status ms_op_exp(ms_tensor **out, ms_tensor *x)
{
    static const msi_op op = UNARY_OP("exp");
    static const unary f = {MSI_K_exp, MSI_K_mul, 2, true, 0}; /* g y */

    return run(&op, &f, out, x);
}

ms_status ms_op_log(ms_tensor **out, ms_tensor *x)
{
    static const msi_op op = UNARY_OP("log");
    static const unary f = {MSI_K_log, MSI_K_div, 2, false, 0}; /* g / x */

    return run(&op, &f, out, x);
}

ms_status ms_op_sqrt(ms_tensor **out, ms_tensor *x)
{
    static const msi_op op = UNARY_OP("sqrt");
    static const unary f = {MSI_K_sqrt, MSI_K_sqrt_grad, 2, true, 0};

    return run(&op, &f, out, x);
}

ms_status ms_op_tanh(ms_tensor **out, ms_tensor *x)
{
    static const msi_op op = UNARY_OP("tanh");
    static const unary f = {MSI_K_tanh, MSI_K_tanh_grad, 2, true, 0};

    return run(&op, &f, out, x);
}

ms_status ms_op_relu(ms_tensor **out, ms_tensor *x)
{
    static const msi_op op = UNARY_OP("relu");
    static const unary f = {MSI_K_relu, MSI_K_relu_grad, 2, true, 0};

    return run(&op, &f, out, x);
}

ms_status ms_op_gelu(ms_tensor **out, ms_tensor *x, bool approximate)
{
    static const msi_op op = UNARY_OP("gelu");
    static const unary exact = {MSI_K_gelu, MSI_K_gelu_grad, 2, false, 0};
    static const unary tanh_form = {MSI_K_gelu_tanh, MSI_K_gelu_tanh_grad, 2, false, 0};

    return run(&op, approximate ? &tanh_form : &exact, out, x);
}

/* -- scale * x + shift: nothing to save -------------------------------------------------------- */

typedef struct affine_attrs {
    double scale, shift;
} affine_attrs;

static ms_status affine_forward(msi_op_call *c)
{
    const affine_attrs *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;
    const double scalars[2] = {attrs->scale, attrs->shift};

    MS_TRY(msi_out(c, 0, x->dtype, x->ndim, x->shape));
    return msi_ew(c->op->name, MSI_K_affine, &c->out[0]->v, &x, 1, scalars, false);
}

static ms_status affine_backward(msi_bwd *b)
{
    const affine_attrs *attrs = msi_bwd_attrs(b);

    return msi_bwd_reduce_pass(b, 0, msi_bwd_grad(b, 0), attrs->scale);
}

#define AFFINE_OP(name_)                                                                           \
    {                                                                                              \
        .name = name_, .forward = affine_forward, .backward = affine_backward,                     \
        .attrs_size = sizeof(affine_attrs)                                                         \
    }

ms_status ms_op_affine(ms_tensor **out, ms_tensor *x, double scale, double shift)
{
    static const msi_op op = AFFINE_OP("affine");
    const affine_attrs attrs = {scale, shift};

    *out = NULL;
    MS_TRY(msi_check_number(op.name, x->v.dtype, scale));
    MS_TRY(msi_check_number(op.name, x->v.dtype, shift));
    return msi_op_run(&op, &attrs, &x, 1, out, 1);
}

ms_status ms_op_with_number(ms_tensor **out, ms_tensor *x, double number, int32_t operation)
{
    static const msi_op ops[] = {
        [MS_NUMBER_ADD] = AFFINE_OP("add"),
        [MS_NUMBER_SUB] = AFFINE_OP("sub"),
        [MS_NUMBER_SUB_FROM] = AFFINE_OP("sub"),
        [MS_NUMBER_MUL] = AFFINE_OP("mul"),
    };
    const affine_attrs attrs[] = {
        [MS_NUMBER_ADD] = {1, number},
        [MS_NUMBER_SUB] = {1, -number},
        [MS_NUMBER_SUB_FROM] = {-1, number},
        [MS_NUMBER_MUL] = {number, -0.0}, /* adding -0 keeps the sign of zeros */
    };

    *out = NULL;
    if (operation < MS_NUMBER_ADD || operation > MS_NUMBER_MUL) {
        return MS_FAIL(MS_VALUE_ERROR, "with_number: operation %d is none, expected %d to %d",
                       (int)operation, MS_NUMBER_ADD, MS_NUMBER_MUL);
    }
    MS_TRY(msi_check_number(ops[operation].name, x->v.dtype, number));
    return msi_op_run(&ops[operation], &attrs[operation], &x, 1, out, 1);
}
