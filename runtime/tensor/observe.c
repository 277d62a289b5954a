/* The observer of operators. */
#include "op.h"

#include "pool.h"

void msi_op_observe(ms_context *ctx, const msi_op_observer *observer)
{
    msi_tensor_state *state = msi_tensor_state_of(ctx);

    if (state != NULL) {
        state->observer = observer;
    }
}

/* The context must have tensors. */
bool msi_op_is_observed(const ms_context *ctx)
{
    return ((const msi_tensor_state *)ctx->room[MSI_ROOM_TENSOR])->observer != NULL;
}

static const msi_op_observer *observer_of(const ms_context *ctx)
{
    const msi_tensor_state *state = ctx != NULL ? ctx->room[MSI_ROOM_TENSOR] : NULL;

    return state != NULL ? state->observer : NULL;
}

void msi_op_host(const ms_context *ctx, const char *what)
{
    const msi_op_observer *observer = observer_of(ctx);

    if (MSI_UNLIKELY(observer != NULL) && observer->host != NULL) {
        observer->host(observer->user, what);
    }
}

void msi_op_checkpoint(const ms_context *ctx, ms_tensor *const *results, ms_tensor *const *out,
                       int32_t n)
{
    const msi_op_observer *observer = observer_of(ctx);

    if (MSI_UNLIKELY(observer != NULL) && observer->checkpoint != NULL) {
        observer->checkpoint(observer->user, results, out, n);
    } else {
        msi_op_host(ctx, "a checkpoint is made");
    }
}
