/* The one observable point. */
#include "op.h"

#include "pool.h"

/* Add to an op's error that an operand is a shard, which may be the cause. */
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

/* Memory for a result that is not a view. */
static ms_status take_memory(const msi_op_call *call, msi_view *v)
{
    const int64_t nbytes = msi_view_span(v) * ms_dtype_size(v->dtype);

    if (MSI_LIKELY(!call->meta)) {
        return msi_storage_new(&v->storage, call->ctx, nbytes, MS_MEM_ACTIVATION);
    }
    MS_TRY(msi_storage_wrap(&v->storage, call->ctx, MS_STORAGE_NONE, NULL, nbytes));
    v->storage->meta = true;
    return MS_OK;
}

static ms_status make_result(msi_op_call *call, int32_t i, msi_view *v)
{
    if (v->storage != NULL) {
        return msi_tensor_new(&call->out[i], call->ctx, v);
    }
    MS_TRY(take_memory(call, v));
    ms_status status = msi_tensor_new(&call->out[i], call->ctx, v);

    msi_storage_release(v->storage); /* the handle has its own */
    return status;
}

/* Make the results; fill those that are neither views nor meta. */
static ms_status compute(msi_op_call *call, const msi_view *const *in)
{
    msi_view result[MSI_OP_MAX_OUT];
    const msi_meta m = {call->op, call->attrs, in, call->n_in, result};
    bool empty = false;

    MS_TRY(call->op->meta(&m));
    for (int32_t i = 0; i < call->n_out; i++) {
        empty |= result[i].storage == NULL;
        MS_TRY(make_result(call, i, &result[i]));
    }
    return empty && !call->meta ? call->op->forward(call) : MS_OK;
}

static void notify_begin(const msi_op_observer *observer, const msi_op_call *call)
{
    if (MSI_UNLIKELY(observer != NULL) && observer->begin != NULL) {
        observer->begin(observer->user, call);
    }
}

static void notify_end(const msi_op_observer *observer, const msi_op_call *call, ms_status status)
{
    if (MSI_UNLIKELY(observer != NULL) && observer->end != NULL) {
        observer->end(observer->user, call, status);
    }
}

static void drop_results(msi_op_call *call)
{
    for (int32_t i = 0; i < call->n_out; i++) {
        ms_tensor_free(call->out[i]);
        call->out[i] = NULL;
    }
}

/* Of operands in two places. */
static ms_status run_moved(const msi_op_call *call)
{
    ms_tensor *moved[MSI_OP_MAX_IN] = {NULL}, *in[MSI_OP_MAX_IN];
    ms_status status = msi_bring_scalars(call->op->name, call->in, call->n_in, moved);

    for (int32_t i = 0; i < call->n_in; i++) {
        in[i] = moved[i] != NULL ? moved[i] : call->in[i];
    }
    if (status == MS_OK) {
        status = msi_op_run(call->op, call->attrs, in, call->n_in, call->out, call->n_out);
    }
    for (int32_t i = 0; i < call->n_in; i++) {
        ms_tensor_free(moved[i]);
    }
    return status;
}

ms_status msi_op_run(const msi_op *op, const void *attrs, ms_tensor *const *in, int32_t n_in,
                     ms_tensor **out, int32_t n_out)
{
    msi_op_call call = {
        .op = op, .attrs = attrs, .in = in, .n_in = n_in, .out = out, .n_out = n_out};
    const msi_op_recorder *recorder;
    const msi_op_observer *observer;
    const msi_view *views[MSI_OP_MAX_IN];
    ms_status status;

    for (int32_t i = 0; i < n_out; i++) {
        out[i] = NULL;
    }
    for (int32_t i = 0; i < n_in; i++) {
        views[i] = NULL;
        if (in[i] != NULL) {
            views[i] = &in[i]->v;
            call.ctx = call.ctx != NULL ? call.ctx : in[i]->ctx;
            call.meta |= in[i]->v.storage->meta;
        }
    }
    if (call.ctx == NULL) {
        call.ctx = msi_context();
    }
    msi_tensor_state *state = msi_tensor_state_of(call.ctx);

    if (MSI_UNLIKELY(state == NULL)) {
        return MS_OUT_OF_MEMORY;
    }
    if (MSI_UNLIKELY(call.ctx->device != NULL) && MSI_UNLIKELY(msi_places_differ(in, n_in))) {
        return run_moved(&call);
    }
    recorder = call.ctx->recorder;
    observer = state->observer;
    notify_begin(observer, &call);
    status = recorder->begin(&call);
    if (MSI_LIKELY(status == MS_OK)) {
        status = compute(&call, views);
    }
    if (MSI_UNLIKELY(status != MS_OK)) {
        status = about_shards(status, &call);
    }
    recorder->end(&call, status);
    if (MSI_UNLIKELY(status != MS_OK)) {
        drop_results(&call);
    }
    notify_end(observer, &call, status);
    return status;
}

/* The context must have tensors. */
static const msi_op_observer *observer_of(const ms_context *ctx)
{
    return ((const msi_tensor_state *)ctx->room[MSI_ROOM_TENSOR])->observer;
}

static bool are_meta(ms_tensor *const *t, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (!t[i]->v.storage->meta) {
            return false;
        }
    }
    return true;
}

ms_status msi_op_run_into(ms_context *ctx, const msi_op *op, const void *attrs,
                          ms_tensor *const *in, int32_t n_in, ms_tensor **out, int32_t n_out)
{
    msi_op_call call = {.ctx = ctx,
                        .op = op,
                        .attrs = attrs,
                        .in = in,
                        .n_in = n_in,
                        .out = out,
                        .n_out = n_out,
                        .meta = n_out > 0 && are_meta(out, n_out) && are_meta(in, n_in)};
    const msi_op_observer *observer = observer_of(ctx);

    notify_begin(observer, &call);
    ms_status status = call.meta ? MS_OK : op->forward(&call);

    notify_end(observer, &call, status);
    return status;
}

ms_status msi_result(msi_view *out, int32_t dtype, int32_t ndim, const int64_t *shape)
{
    out->storage = NULL;
    out->offset = 0;
    return msi_view_make(out, dtype, ndim, shape);
}

void msi_result_view(msi_view *out, const msi_view *v)
{
    *out = *v;
}

msi_draw msi_draw_of(const msi_view *x, const ms_context *ctx, uint64_t site, int64_t call,
                     bool active)
{
    return (msi_draw){.seed = ctx->seed,
                      .site = site,
                      .call = call,
                      .sample_base = ctx->sample_base_known
                                         ? ctx->sample_base
                                         : ctx->sample_rank * (x->ndim > 0 ? x->shape[0] : 1),
                      .active = active};
}
