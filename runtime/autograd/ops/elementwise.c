/* a + b, a - b, a * b, a / b, the remainder of a / b and a^b with broadcasting. Gradients are
 * computed in the result's shape and summed over broadcast dimensions. */
#include "meta.h"
#include "operand.h"

enum { A, B };
enum { SAVED_A = 0, SAVED_B = 1, SAVED_Y = 0, SAVED_POWER = 2 };

static ms_status binary_meta(const msi_meta *m, int32_t kernel)
{
    MS_TRY(msi_meta_broadcast(m, m->in[A]->dtype));
    return msi_meta_kernel(m, kernel, m->in[A]->dtype);
}

static ms_status binary(const msi_op_call *c, int32_t kernel)
{
    const msi_view *in[2] = {&c->in[A]->v, &c->in[B]->v};

    return msi_ew(c->op->name, kernel, &c->out[0]->v, in, 2, NULL, false);
}

static ms_status run(const msi_op *op, ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    ms_tensor *const in[2] = {a, b};

    *out = NULL;
    return msi_op_run(op, NULL, in, 2, out, 1);
}

/* -- add, sub ---------------------------------------------------------------------------------- */

static ms_status add_meta(const msi_meta *m)
{
    return binary_meta(m, MSI_K_add);
}

static ms_status add_forward(msi_op_call *c)
{
    return binary(c, MSI_K_add);
}

static ms_status add_backward(msi_bwd *b)
{
    MS_TRY(msi_bwd_reduce_pass(b, A, msi_bwd_grad(b, 0), 1));
    return msi_bwd_reduce_pass(b, B, msi_bwd_grad(b, 0), 1);
}

const msi_op msi_op_add = {
    .name = "add", .meta = add_meta, .forward = add_forward, .backward = add_backward};

ms_status ms_op_add(ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    return run(&msi_op_add, out, a, b);
}

static ms_status sub_meta(const msi_meta *m)
{
    return binary_meta(m, MSI_K_sub);
}

static ms_status sub_forward(msi_op_call *c)
{
    return binary(c, MSI_K_sub);
}

static ms_status sub_backward(msi_bwd *b)
{
    MS_TRY(msi_bwd_reduce_pass(b, A, msi_bwd_grad(b, 0), 1));
    return msi_bwd_reduce_pass(b, B, msi_bwd_grad(b, 0), -1);
}

const msi_op msi_op_sub = {
    .name = "sub", .meta = sub_meta, .forward = sub_forward, .backward = sub_backward};

ms_status ms_op_sub(ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    return run(&msi_op_sub, out, a, b);
}

/* -- mul --------------------------------------------------------------------------------------- */

static ms_status mul_meta(const msi_meta *m)
{
    return binary_meta(m, MSI_K_mul);
}

static ms_status mul_forward(msi_op_call *c)
{
    MS_TRY(binary(c, MSI_K_mul));
    if (msi_call_needs(c, B)) {
        msi_save(c, SAVED_A, &c->in[A]->v);
    }
    if (msi_call_needs(c, A)) {
        msi_save(c, SAVED_B, &c->in[B]->v);
    }
    return MS_OK;
}

static ms_status mul_backward(msi_bwd *b)
{
    const msi_view *in[2] = {msi_bwd_grad(b, 0)};

    if (msi_bwd_needs(b, A)) {
        MS_TRY(msi_bwd_saved(b, SAVED_B, &in[1]));
        MS_TRY(msi_bwd_elementwise(b, A, "mul", MSI_K_mul, in, 2));
    }
    if (msi_bwd_needs(b, B)) {
        MS_TRY(msi_bwd_saved(b, SAVED_A, &in[1]));
        MS_TRY(msi_bwd_elementwise(b, B, "mul", MSI_K_mul, in, 2));
    }
    return MS_OK;
}

const msi_op msi_op_mul = {.name = "mul",
                           .meta = mul_meta,
                           .forward = mul_forward,
                           .backward = mul_backward,
                           .n_saved = 2};

ms_status ms_op_mul(ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    return run(&msi_op_mul, out, a, b);
}

/* -- div: with y = a / b, da = g / b and db = -g y / b ----------------------------------------- */

static ms_status div_meta(const msi_meta *m)
{
    return binary_meta(m, MSI_K_div);
}

static ms_status div_forward(msi_op_call *c)
{
    MS_TRY(binary(c, MSI_K_div));
    msi_save(c, SAVED_B, &c->in[B]->v);
    if (msi_call_needs(c, B)) {
        msi_save(c, SAVED_Y, &c->out[0]->v);
    }
    return MS_OK;
}

static ms_status div_backward(msi_bwd *b)
{
    const msi_view *divisor, *g = msi_bwd_grad(b, 0), *y;

    MS_TRY(msi_bwd_saved(b, SAVED_B, &divisor));
    const msi_view *quotient[2] = {g, divisor};

    MS_TRY(msi_bwd_elementwise(b, A, "div", MSI_K_div, quotient, 2));
    if (!msi_bwd_needs(b, B)) {
        return MS_OK;
    }
    MS_TRY(msi_bwd_saved(b, SAVED_Y, &y));
    const msi_view *product[3] = {g, y, divisor}; /* not by 1 / b, which may be infinite */

    return msi_bwd_elementwise(b, B, "div", MSI_K_div_neg, product, 3);
}

const msi_op msi_op_div = {.name = "div",
                           .meta = div_meta,
                           .forward = div_forward,
                           .backward = div_backward,
                           .n_saved = 2};

ms_status ms_op_div(ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    return run(&msi_op_div, out, a, b);
}

/* -- remainder, power: gradients of their own -------------------------------------------------- */

static ms_status save_both(msi_op_call *c)
{
    msi_save(c, SAVED_A, &c->in[A]->v);
    msi_save(c, SAVED_B, &c->in[B]->v);
    return MS_OK;
}

/* The remainder's gradients are da = g and db = -g floor(a / b). */
static ms_status remainder_meta(const msi_meta *m)
{
    return binary_meta(m, MSI_K_remainder);
}

static ms_status remainder_forward(msi_op_call *c)
{
    MS_TRY(binary(c, MSI_K_remainder));
    return save_both(c);
}

static ms_status remainder_backward(msi_bwd *b)
{
    const msi_view *in[3] = {msi_bwd_grad(b, 0)};

    MS_TRY(msi_bwd_reduce_pass(b, A, in[0], 1));
    MS_TRY(msi_bwd_saved(b, SAVED_A, &in[1]));
    MS_TRY(msi_bwd_saved(b, SAVED_B, &in[2]));
    return msi_bwd_elementwise(b, B, "remainder", MSI_K_remainder_grad, in, 3);
}

const msi_op msi_op_remainder = {.name = "remainder",
                                 .meta = remainder_meta,
                                 .forward = remainder_forward,
                                 .backward = remainder_backward,
                                 .n_saved = 2};

ms_status ms_op_remainder(ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    return run(&msi_op_remainder, out, a, b);
}

/* With y = a^b, da = g b a^(b - 1) and db = g y log(a). */
static ms_status power_meta(const msi_meta *m)
{
    return binary_meta(m, MSI_K_power);
}

static ms_status power_forward(msi_op_call *c)
{
    MS_TRY(binary(c, MSI_K_power));
    if (msi_call_needs(c, B)) {
        msi_save(c, SAVED_POWER, &c->out[0]->v);
    }
    return save_both(c);
}

static ms_status power_backward(msi_bwd *b)
{
    const msi_view *a, *exponent, *y, *g = msi_bwd_grad(b, 0);

    MS_TRY(msi_bwd_saved(b, SAVED_A, &a));
    MS_TRY(msi_bwd_saved(b, SAVED_B, &exponent));
    const msi_view *of_base[3] = {g, a, exponent};

    MS_TRY(msi_bwd_elementwise(b, A, "power", MSI_K_power_grad, of_base, 3));
    if (!msi_bwd_needs(b, B)) {
        return MS_OK;
    }
    MS_TRY(msi_bwd_saved(b, SAVED_POWER, &y));
    const msi_view *of_exponent[3] = {g, y, a};

    return msi_bwd_elementwise(b, B, "power", MSI_K_power_grad_exponent, of_exponent, 3);
}

const msi_op msi_op_power = {.name = "pow",
                             .meta = power_meta,
                             .forward = power_forward,
                             .backward = power_backward,
                             .n_saved = 3};

ms_status ms_op_power(ms_tensor **out, ms_tensor *a, ms_tensor *b)
{
    return run(&msi_op_power, out, a, b);
}
