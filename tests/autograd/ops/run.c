/* Making operands as a row asks, running its operator, collecting values and gradients. */
#include "op_test.h"

#include "autograd.h"

/* -- operands ---------------------------------------------------------------------------------- */

int64_t numel_of(const operand *o)
{
    int64_t n = 1;

    for (int32_t d = 0; d < o->ndim; d++) {
        n *= o->shape[d];
    }
    return n;
}

int64_t broadcast_position(const operand *out, int64_t i, const operand *o)
{
    int64_t position = 0, stride = 1;

    for (int32_t d = out->ndim - 1, k = o->ndim - 1; d >= 0; d--, k--) {
        int64_t index = i % out->shape[d];

        i /= out->shape[d];
        if (k >= 0) {
            position += o->shape[k] > 1 ? index * stride : 0;
            stride *= o->shape[k];
        }
    }
    return position;
}

void oracle_map(const op_case *c, const real *const *in, real *out)
{
    for (int64_t i = 0; i < numel_of(&c->out); i++) {
        real b = c->n_in > 1 ? in[1][broadcast_position(&c->out, i, &c->in[1])] : 0;

        out[i] = c->map(c, in[0][broadcast_position(&c->out, i, &c->in[0])], b);
    }
}

/* An unset view of the row's shape, cut from or permuted out of other memory. */
static ms_tensor *strided(const operand *o, int32_t dtype)
{
    ms_tensor *space, *view;
    int64_t shape[5];
    int32_t reverse[5];

    for (int32_t d = 0; d < o->ndim; d++) {
        shape[d] = o->layout == LAYOUT_PERMUTED ? o->shape[o->ndim - 1 - d] : o->shape[d] + 2;
        reverse[d] = o->ndim - 1 - d;
    }
    assert_ok(ms_tensor_full(&space, dtype, o->ndim, shape, 3)); /* what lies in the gaps */
    if (o->layout == LAYOUT_PERMUTED) {
        assert_ok(ms_op_permute(&view, space, o->ndim, reverse));
        ms_tensor_free(space);
        return view;
    }
    for (int32_t d = 0; d < o->ndim; d++) {
        assert_ok(ms_op_narrow(&view, space, d, 1, o->shape[d]));
        ms_tensor_free(space);
        space = view;
    }
    return space;
}

ms_tensor *make_operand(const operand *o, int32_t dtype, const double *values)
{
    ms_tensor *plain, *view;

    dtype = o->values == VALUES_IDS ? MS_DTYPE_I64 : dtype;
    assert_ok(ms_tensor_from_doubles(&plain, dtype, o->ndim, o->shape, values, numel_of(o)));
    if (o->layout == LAYOUT_PLAIN) {
        return plain;
    }
    view = strided(o, dtype);
    assert_ok(ms_tensor_copy(view, plain));
    ms_tensor_free(plain);
    return view;
}

/* -- running a row ----------------------------------------------------------------------------- */

/* A leaf's gradient kept by this test, as a unit keeps that of its parameters. */
typedef struct keeper {
    ms_tensor *grad;
    bool stored;
} keeper;

static ms_status keeper_nothing(void *user, int32_t index)
{
    return MS_OK;
}

static ms_status keeper_dest(void *user, int32_t index, msi_view *dst, bool *add)
{
    keeper *k = (keeper *)user + index;

    *dst = k->grad->v;
    *add = k->stored;
    k->stored = true;
    return MS_OK;
}

static void keep_gradient(keeper *keepers, msi_grad_sink *sink, int32_t i, ms_tensor *leaf,
                          const operand *o, int32_t mode)
{
    const int32_t dtype = leaf->v.dtype;
    int32_t born = ms_dtype_is_narrow(dtype) ? MS_DTYPE_F32 : MS_DTYPE_F64;

    if (mode == RUN_BORN_ODD) {
        born = dtype == MS_DTYPE_F64 ? MS_DTYPE_F32 : MS_DTYPE_F64;
    }
    assert_ok(ms_tensor_full(&keepers[i].grad, born, o->ndim, o->shape, 1e30));
    *sink = (msi_grad_sink){.expect = keeper_nothing,
                            .dest = keeper_dest,
                            .done = keeper_nothing,
                            .user = keepers,
                            .index = i};
    leaf->sink = sink;
}

static void call_and_differentiate(const op_case *c, const numbers *n, ms_tensor *const *in,
                                   bool twice, double *out_values)
{
    const int64_t numel = numel_of(&c->out);
    ms_tensor *out, *again, *both, *weight;
    ms_tensor_info info;

    assert_ok(c->run(&out, in, c));
    assert_ok(ms_tensor_describe(out, &info));
    assert_int_equal(info.ndim, c->out.ndim);
    for (int32_t d = 0; d < info.ndim; d++) {
        assert_int_equal(info.shape[d], c->out.shape[d]);
    }
    assert_ok(ms_tensor_to_doubles(out, out_values, numel));
    if (twice) {
        assert_ok(c->run(&again, in, c));
        assert_ok(ms_op_add(&both, out, again));
        ms_tensor_free(again);
        ms_tensor_free(out);
        out = both;
    }
    assert_ok(ms_tensor_from_doubles(&weight, info.dtype, info.ndim, info.shape, n->weight, numel));
    assert_ok(ms_backward(out, weight));
    ms_tensor_free(weight);
    ms_tensor_free(out);
}

int32_t run_integers(const op_case *c, int32_t dtype, const numbers *n, double *out)
{
    ms_tensor *in[OP_MAX_IN], *result;
    ms_tensor_info info;

    for (int32_t i = 0; i < c->n_in; i++) {
        in[i] = make_operand(&c->in[i], dtype, n->in[i]);
    }
    assert_ok(c->run(&result, in, c));
    assert_ok(ms_tensor_describe(result, &info));
    assert_true(info.dtype == dtype || info.dtype == MS_DTYPE_I64); /* sums */
    assert_ok(ms_tensor_to_doubles(result, out, numel_of(&c->out)));
    ms_tensor_free(result);
    for (int32_t i = 0; i < c->n_in; i++) {
        ms_tensor_free(in[i]);
    }
    return info.dtype;
}

void run_case(const op_case *c, const numbers *n, int32_t dtype, int32_t mode, results *r)
{
    ms_tensor *leaf[OP_MAX_IN], *in[OP_MAX_IN], *grad;
    keeper keepers[OP_MAX_IN] = {{NULL}};
    msi_grad_sink sinks[OP_MAX_IN];

    for (int32_t i = 0; i < c->n_in; i++) {
        in[i] = leaf[i] = make_operand(&c->in[i], dtype, n->in[i]);
        if (c->in[i].values == VALUES_IDS) {
            continue;
        }
        assert_ok(ms_tensor_set_requires_grad(leaf[i], true));
        if (mode >= RUN_BORN_WIDE) {
            keep_gradient(keepers, &sinks[i], i, leaf[i], &c->in[i], mode);
        }
        if (mode == RUN_INNER) {
            assert_ok(ms_op_affine(&in[i], leaf[i], 1, 0));
        }
    }
    call_and_differentiate(c, n, in, mode == RUN_TWICE, r->out);
    if (mode == RUN_REPEATED) {
        call_and_differentiate(c, n, in, false, r->out);
    }
    for (int32_t i = 0; i < c->n_in; i++) {
        if (in[i] != leaf[i]) {
            ms_tensor_free(in[i]);
        }
        if (c->in[i].values != VALUES_IDS) {
            grad = keepers[i].grad;
            if (grad == NULL) {
                assert_ok(ms_tensor_grad(&grad, leaf[i]));
            }
            assert_non_null(grad);
            assert_ok(ms_tensor_to_doubles(grad, r->grad[i], numel_of(&c->in[i])));
            ms_tensor_free(grad);
        }
        ms_tensor_free(leaf[i]);
    }
}
