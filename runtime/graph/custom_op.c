/* Custom operators of C: functions that a program calls. */
#include "graph.h"

#include <stdio.h>

/* The values of tensors that `call` gets. */
static ms_status record_operands(ms_program *p, msi_call *call, ms_tensor *const *in)
{
    for (int32_t i = 0; i < call->n_in; i++) {
        MS_TRY(ms_program_value(p, in[i], false, &call->in[i]));
    }
    return MS_OK;
}

static ms_status record_results(ms_program *p, msi_call *call, ms_tensor *const *out)
{
    for (int32_t i = 0; i < call->n_out; i++) {
        MS_TRY(ms_program_made(p, call->name, out[i], &call->out[i]));
    }
    if (p->broken != NULL) {
        return MS_OK;
    }
    MS_TRY(msi_grow(&p->calls, p->n_calls, &p->cap_calls, sizeof(*p->calls)));
    p->calls[p->n_calls++] = *call;
    return MS_OK;
}

static ms_status run(const msi_call *call, ms_tensor *const *in, ms_tensor **out)
{
    MS_TRY(call->fn(call->user, in, call->n_in, out, call->n_out));
    for (int32_t i = 0; i < call->n_out; i++) {
        if (out[i] == NULL) {
            return MS_FAIL(MS_RUNTIME_ERROR, "custom_op: '%s' made no result %d of %d", call->name,
                           (int)i + 1, (int)call->n_out);
        }
    }
    return MS_OK;
}

static ms_status run_recorded(ms_program *p, msi_call *call, ms_tensor *const *in, ms_tensor **out)
{
    call->op = p->n_ops;
    if (p->region >= 0) {
        ms_program_break(p, "a custom operator is inside an activation checkpoint");
    }
    MS_TRY(record_operands(p, call, in));
    ms_program_pause(p, true);
    const ms_status status = run(call, in, out);

    ms_program_pause(p, false);
    return status == MS_OK ? record_results(p, call, out) : status;
}

ms_status ms_custom_op(const char *name, ms_custom_op_fn fn, void *user, ms_tensor *const *in,
                       int32_t n_in, ms_tensor **out, int32_t n_out)
{
    msi_call call = {.fn = fn, .user = user, .n_in = n_in, .n_out = n_out};
    ms_program *p = msi_graph_recording();

    for (int32_t i = 0; i < n_out; i++) {
        out[i] = NULL;
    }
    if (n_in < 0 || n_in > MS_CUSTOM_OP_MAX || n_out < 0 || n_out > MS_CUSTOM_OP_MAX) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "custom_op: '%s' has %d operands and %d results, the most "
                       "of either are %d",
                       name, (int)n_in, (int)n_out, MS_CUSTOM_OP_MAX);
    }
    snprintf(call.name, sizeof(call.name), "%s", name);
    const ms_status status = p != NULL ? run_recorded(p, &call, in, out) : run(&call, in, out);

    for (int32_t i = 0; i < n_out && status != MS_OK; i++) {
        if (out[i] != NULL) {
            (void)ms_scope_keep(out[i]); /* so that no scope frees it again */
            ms_tensor_free(out[i]);
        }
        out[i] = NULL;
    }
    return status;
}
