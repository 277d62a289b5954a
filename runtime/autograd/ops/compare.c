/* Comparisons, elementwise: bool results, no gradients. The kernels know ==, !=, < and <=; the
 * other two are those with exchanged operands. */
#include "operand.h"

#include <math.h>

typedef struct compare_attrs {
    int32_t relation; /* MS_COMPARE_* */
    double value;     /* what a tensor is compared with, when it is a number */
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

static ms_status tensors_forward(msi_op_call *c)
{
    const compare_attrs *attrs = c->attrs;
    const msi_view *a = &c->in[0]->v, *b = &c->in[1]->v;
    int64_t shape[MS_MAX_DIMS];
    int32_t ndim;

    MS_TRY(msi_same_dtype(c->op->name, "a", c->in[0], "b", c->in[1]));
    ms_status status = msi_broadcast(a, b, &ndim, shape);

    if (status != MS_OK) {
        return msi_fail_prefix(status, "%s: ", c->op->name);
    }
    MS_TRY(msi_out(c, 0, MS_DTYPE_BOOL, ndim, shape));
    return compare(c, attrs->relation, a, b);
}

ms_status ms_op_compare(ms_tensor **out, ms_tensor *a, ms_tensor *b, int32_t relation)
{
    static const msi_op ops[] = {
        {.name = "eq", .forward = tensors_forward}, {.name = "ne", .forward = tensors_forward},
        {.name = "lt", .forward = tensors_forward}, {.name = "le", .forward = tensors_forward},
        {.name = "gt", .forward = tensors_forward}, {.name = "ge", .forward = tensors_forward},
    };
    const compare_attrs attrs = {.relation = relation};
    ms_tensor *const in[2] = {a, b};

    *out = NULL;
    MS_TRY(check_relation(relation));
    return msi_op_run(&ops[relation], &attrs, in, 2, out, 1);
}

/* -- a tensor and a number --------------------------------------------------------------------- */

/* [Note: numbers and integers] Integers are compared with the number itself, not with what is left
 * of it in their dtype: 2 < 2.5 holds. A fraction is replaced by the integer below it, and what
 * lies outside the dtype's range decides for every element.
 * @return true when *answer holds for every element, else compare by *relation with *value */
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

static ms_status number_forward(msi_op_call *c)
{
    const compare_attrs *attrs = c->attrs;
    const msi_view *x = &c->in[0]->v;
    int32_t relation = attrs->relation;
    double value = attrs->value;
    msi_view number;
    bool answer;

    MS_TRY(msi_out(c, 0, MS_DTYPE_BOOL, x->ndim, x->shape));
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

ms_status ms_op_compare_number(ms_tensor **out, ms_tensor *x, double value, int32_t relation)
{
    static const msi_op ops[] = {
        {.name = "eq", .forward = number_forward}, {.name = "ne", .forward = number_forward},
        {.name = "lt", .forward = number_forward}, {.name = "le", .forward = number_forward},
        {.name = "gt", .forward = number_forward}, {.name = "ge", .forward = number_forward},
    };
    const compare_attrs attrs = {relation, value};

    *out = NULL;
    MS_TRY(check_relation(relation));
    return msi_op_run(&ops[relation], &attrs, &x, 1, out, 1);
}
