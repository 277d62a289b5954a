/* Elementwise comparisons: bool results, no gradients. Kernels exist for ==, !=, < and <=; > and >=
 * exchange the operands. */
#include "dtype.h"
#include "meta.h"
#include "operand.h"

#include <math.h>

typedef struct compare_attrs {
    int32_t relation; /* MS_COMPARE_* */
    double value;     /* the number to compare with */
} compare_attrs;

static const struct {
    int32_t kernel;
    bool exchange;
} relations[] = {
    [MS_COMPARE_EQ] = {MSI_K_eq, false}, [MS_COMPARE_NE] = {MSI_K_ne, false},
    [MS_COMPARE_LT] = {MSI_K_lt, false}, [MS_COMPARE_LE] = {MSI_K_le, false},
    [MS_COMPARE_GT] = {MSI_K_lt, true},  [MS_COMPARE_GE] = {MSI_K_le, true},
};

static ms_status compare(const msi_op_call *c, int32_t relation, const msi_view *a,
                         const msi_view *b)
{
    const bool exchange = relations[relation].exchange;
    const msi_view *in[2] = {exchange ? b : a, exchange ? a : b};

    return msi_ew(c->op->name, relations[relation].kernel, &c->out[0]->v, in, 2, NULL, false);
}

static ms_status check_relation(int32_t relation)
{
    if (relation < MS_COMPARE_EQ || relation > MS_COMPARE_GE) {
        return MS_FAIL(MS_VALUE_ERROR, "compare: relation %d is none, expected %d to %d",
                       (int)relation, MS_COMPARE_EQ, MS_COMPARE_GE);
    }
    return MS_OK;
}

/* -- two tensors ------------------------------------------------------------------------------- */

static ms_status tensors_meta(const msi_meta *m)
{
    return msi_meta_broadcast(m, MS_DTYPE_BOOL);
}

static ms_status tensors_forward(msi_op_call *c)
{
    const compare_attrs *attrs = c->attrs;

    return compare(c, attrs->relation, &c->in[0]->v, &c->in[1]->v);
}

#define TENSORS_OP(name_)                                                                          \
    {                                                                                              \
        .name = name_, .meta = tensors_meta, .forward = tensors_forward,                           \
        .attrs_size = sizeof(compare_attrs)                                                        \
    }
const msi_op msi_op_eq = TENSORS_OP("eq");
const msi_op msi_op_ne = TENSORS_OP("ne");
const msi_op msi_op_lt = TENSORS_OP("lt");
const msi_op msi_op_le = TENSORS_OP("le");
const msi_op msi_op_gt = TENSORS_OP("gt");
const msi_op msi_op_ge = TENSORS_OP("ge");

ms_status ms_op_compare(ms_tensor **out, ms_tensor *a, ms_tensor *b, int32_t relation)
{
    static const msi_op *const ops[] = {
        [MS_COMPARE_EQ] = &msi_op_eq, [MS_COMPARE_NE] = &msi_op_ne, [MS_COMPARE_LT] = &msi_op_lt,
        [MS_COMPARE_LE] = &msi_op_le, [MS_COMPARE_GT] = &msi_op_gt, [MS_COMPARE_GE] = &msi_op_ge,
    };
    const compare_attrs attrs = {.relation = relation};
    ms_tensor *const in[2] = {a, b};

    *out = NULL;
    MS_TRY(check_relation(relation));
    return msi_op_run(ops[relation], &attrs, in, 2, out, 1);
}

/* -- a tensor and a number --------------------------------------------------------------------- */

/* [Note: numbers and integers] Integers compare with the exact number, not with its cast: 2 < 2.5
 * is true. A fraction is replaced by the integer below; a number outside the dtype's range decides
 * for all elements.
 * @return true if *answer is the result everywhere; else compare by *relation with *value */
static bool decide(int32_t dtype, int32_t *relation, double *value, bool *answer)
{
    const double whole = floor(*value);
    double low, end;

    msi_dtype_range(dtype, &low, &end);
    if (isnan(*value) || (whole != *value && *relation <= MS_COMPARE_NE)) {
        *answer = *relation == MS_COMPARE_NE;
        return true;
    }
    if (whole < low || whole >= end) {
        const bool below = *relation == MS_COMPARE_LT || *relation == MS_COMPARE_LE;
        const bool above = *relation == MS_COMPARE_GT || *relation == MS_COMPARE_GE;

        *answer = *relation == MS_COMPARE_NE || (whole < low ? above : below);
        return true;
    }
    if (whole != *value) { /* x < 2.5 as x <= 2, x >= 2.5 as x > 2 */
        *relation = *relation == MS_COMPARE_LT   ? MS_COMPARE_LE
                    : *relation == MS_COMPARE_GE ? MS_COMPARE_GT
                                                 : *relation;
        *value = whole;
    }
    return false;
}

static ms_status number_meta(const msi_meta *m)
{
    return msi_result(m->out, MS_DTYPE_BOOL, m->in[0]->ndim, m->in[0]->shape);
}

static ms_status number_forward(msi_op_call *c)
{
    const compare_attrs *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;
    int32_t relation = attrs->relation;
    double value = attrs->value;
    msi_view number;
    bool answer;

    if (!ms_dtype_is_floating(x->dtype) && decide(x->dtype, &relation, &value, &answer)) {
        return msi_fill(&c->out[0]->v, answer);
    }
    MS_TRY(msi_internal(&number, c->ctx, x->dtype, 0, NULL));
    ms_status status = msi_fill(&number, value);

    if (status == MS_OK) {
        status = compare(c, relation, x, &number);
    }
    msi_storage_release(number.storage);
    return status;
}

#define NUMBER_OP(name_)                                                                           \
    {                                                                                              \
        .name = name_, .meta = number_meta, .forward = number_forward,                             \
        .attrs_size = sizeof(compare_attrs)                                                        \
    }
const msi_op msi_op_eq_number = NUMBER_OP("eq");
const msi_op msi_op_ne_number = NUMBER_OP("ne");
const msi_op msi_op_lt_number = NUMBER_OP("lt");
const msi_op msi_op_le_number = NUMBER_OP("le");
const msi_op msi_op_gt_number = NUMBER_OP("gt");
const msi_op msi_op_ge_number = NUMBER_OP("ge");

ms_status ms_op_compare_number(ms_tensor **out, ms_tensor *x, double value, int32_t relation)
{
    static const msi_op *const ops[] = {
        [MS_COMPARE_EQ] = &msi_op_eq_number, [MS_COMPARE_NE] = &msi_op_ne_number,
        [MS_COMPARE_LT] = &msi_op_lt_number, [MS_COMPARE_LE] = &msi_op_le_number,
        [MS_COMPARE_GT] = &msi_op_gt_number, [MS_COMPARE_GE] = &msi_op_ge_number,
    };
    const compare_attrs attrs = {relation, value};

    *out = NULL;
    MS_TRY(check_relation(relation));
    return msi_op_run(ops[relation], &attrs, &x, 1, out, 1);
}

/* -- classification: an element is compared with itself ---------------------------------------- */

static ms_status class_forward(msi_op_call *c)
{
    const int32_t *kernel = c->attrs;
    const msi_view *in[2] = {&c->in[0]->v, &c->in[0]->v};

    return msi_ew(c->op->name, *kernel, &c->out[0]->v, in, 2, NULL, false);
}

#define CLASS(name_, kernel_)                                                                      \
    const msi_op msi_op_##name_ = {.name = #name_,                                                 \
                                   .meta = number_meta,                                            \
                                   .forward = class_forward,                                       \
                                   .attrs_size = sizeof(int32_t)};                                 \
                                                                                                   \
    ms_status ms_op_##name_(ms_tensor **out, ms_tensor *x)                                         \
    {                                                                                              \
        static const int32_t kernel = kernel_;                                                     \
                                                                                                   \
        *out = NULL;                                                                               \
        return msi_op_run(&msi_op_##name_, &kernel, &x, 1, out, 1);                                \
    }
CLASS(isnan, MSI_K_ne)
CLASS(isinf, MSI_K_is_inf)
CLASS(isfinite, MSI_K_is_finite)
