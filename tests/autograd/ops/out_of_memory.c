/* Operators when memory runs out. */
#include "books.h"
#include "op_test.h"

#include "backend.h"

/* The weights, as a tensor like the operator's result. */
static ms_tensor *make_weight(const op_case *c, const numbers *n, ms_tensor *const *in)
{
    ms_tensor *out, *weight;
    ms_tensor_info info;

    assert_ok(c->run(&out, in, c));
    assert_ok(ms_tensor_describe(out, &info));
    assert_ok(
        ms_tensor_from_doubles(&weight, info.dtype, info.ndim, info.shape, n->weight, info.numel));
    assert_ok(ms_backward(out, weight)); /* work space that is kept exists from here on */
    ms_tensor_free(out);
    return weight;
}

static void drop_gradients(const op_case *c, ms_tensor *const *in)
{
    for (int32_t i = 0; i < c->n_in; i++) {
        assert_ok(ms_tensor_set_grad(in[i], NULL));
    }
}

void run_out_of_memory(const op_case *c, const numbers *n, int32_t dtype)
{
    ms_context *ctx = msi_context();
    ms_tensor *in[OP_MAX_IN], *weight;
    ms_status status = MS_OUT_OF_MEMORY;

    for (int32_t i = 0; i < c->n_in; i++) {
        in[i] = make_operand(&c->in[i], dtype, n->in[i]);
        if (c->in[i].values != VALUES_IDS) {
            assert_ok(ms_tensor_set_requires_grad(in[i], true));
        }
    }
    weight = make_weight(c, n, in);
    drop_gradients(c, in);
    for (int64_t k = 0; status != MS_OK; k++) {
        ms_memory_stats before, after;
        ms_tensor *out;

        assert_true(k < 1000);
        ms_memory_stats_get(&before);
        msi_alloc_fail_at(ctx, k);
        status = c->run(&out, in, c);
        if (status == MS_OK) {
            status = ms_backward(out, weight);
        } else {
            assert_null(out);
        }
        msi_alloc_fail_at(ctx, -1);
        if (status != MS_OK) {
            assert_int_equal(status, MS_OUT_OF_MEMORY);
        }
        ms_tensor_free(out);
        drop_gradients(c, in);
        ms_memory_stats_get(&after);
        assert_int_equal(after.live_handles, before.live_handles);
        assert_int_equal(after.live_total, before.live_total);
    }
    ms_tensor_free(weight);
    for (int32_t i = 0; i < c->n_in; i++) {
        ms_tensor_free(in[i]);
    }
}
