/* The one observable point. */
#include "op.h"

#include "pool.h"

/* An op failed: it may be for the shape of an operand that is a shard. */
static ms_status about_shards(ms_status status, const msi_op_call *call)
{
    for (int32_t i = 0; i < call->n_in; i++) {
        const ms_tensor *t = call->in[i];

        if (t != NULL && msi_tensor_is_shard(t)) {
            return MS_FAIL(status,
                           "%s; '%s' is this rank's shard of a parameter of shape %s: its unit "
                           "shows all of it in the forward of the module that FSDP wraps alone (a "
                           "container without a forward is left out of the policy), and inside "
                           "summon_full_params",
                           ms_error_message(), msi_tensor_label(t),
                           msi_shape_text(t->param->ndim, t->param->shape));
        }
    }
    return status;
}

ms_status msi_op_run(const msi_op *op, const void *attrs, ms_tensor *const *in, int32_t n_in,
                     ms_tensor **out, int32_t n_out)
{
    msi_op_call call = {
        .ctx = NULL, .op = op, .attrs = attrs, .in = in, .n_in = n_in, .n_out = n_out};
    const msi_op_recorder *recorder;
    const msi_op_observer *observer;
    ms_status status;

    for (int32_t i = 0; i < n_out; i++) {
        out[i] = NULL;
    }
    for (int32_t i = 0; i < n_in && call.ctx == NULL; i++) {
        call.ctx = in[i] != NULL ? in[i]->ctx : NULL;
    }
    if (call.ctx == NULL) {
        call.ctx = msi_context();
    }
    msi_tensor_state *state = msi_tensor_state_of(call.ctx);

    if (MSI_UNLIKELY(state == NULL)) {
        return MS_OUT_OF_MEMORY;
    }
    recorder = call.ctx->recorder;
    observer = state->observer;
    if (observer != NULL && observer->begin != NULL) {
        observer->begin(observer->user, &call);
    }
    status = recorder->begin(&call);
    if (MSI_LIKELY(status == MS_OK)) {
        status = op->forward(&call);
    }
    if (MSI_UNLIKELY(status != MS_OK)) {
        status = about_shards(status, &call);
    }
    recorder->end(&call, status);
    for (int32_t i = 0; i < n_out; i++) {
        if (status == MS_OK) {
            out[i] = call.out[i];
        } else {
            ms_tensor_free(call.out[i]);
        }
    }
    if (observer != NULL && observer->end != NULL) {
        observer->end(observer->user, &call, status);
    }
    return status;
}

ms_status msi_out(msi_op_call *c, int32_t i, int32_t dtype, int32_t ndim, const int64_t *shape)
{
    return msi_tensor_make(&c->out[i], c->ctx, dtype, ndim, shape, MS_MEM_ACTIVATION);
}

ms_status msi_out_view(msi_op_call *c, int32_t i, const msi_view *v)
{
    return msi_tensor_new(&c->out[i], c->ctx, v);
}

void msi_op_observe(ms_context *ctx, const msi_op_observer *observer)
{
    msi_tensor_state *state = msi_tensor_state_of(ctx);

    if (state != NULL) {
        state->observer = observer;
    }
}
