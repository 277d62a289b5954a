/* Recording: the operators of a running program, as the observer sees them.
 *
 * A value is known by its storage's serial number, its view, and the node that made it, so nothing
 * is retained while the program runs, and its memory is freed as without recording. */
#include "graph.h"

#include "pool.h"

#include <stdlib.h>
#include <string.h>

bool msi_same_view(const msi_view *a, const msi_view *b)
{
    const size_t n = sizeof(int64_t) * (size_t)a->ndim;

    return a->offset == b->offset && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, n) == 0 && memcmp(a->stride, b->stride, n) == 0;
}

void msi_program_break(ms_program *p, const char *format, ...)
{
    char text[MSI_MESSAGE_BYTES];
    va_list args;

    if (p->broken != NULL) {
        return;
    }
    va_start(args, format);
    msi_text_write(text, sizeof(text), format, args);
    va_end(args);
    p->broken = strdup(text);
    if (p->broken == NULL) {
        p->broken = p->no_memory;
    }
}

/* True if a handle `t` is `v`, also for autograd. */
static bool shows(const msi_value *v, const ms_tensor *t)
{
    if (v->serial != t->v.storage->serial || v->requires_grad != t->requires_grad ||
        !msi_same_view(&v->view, &t->v)) {
        return false;
    }
    if (t->grad_fn != NULL && t->grad_fn->spent) { /* a backward left no more of it */
        return v->node != 0;
    }
    if (t->grad_fn != NULL) {
        return v->node == t->grad_fn->sequence && v->node_out == t->out_index && v->node != 0;
    }
    return v->node == 0 && (!t->requires_grad || v->handle == t);
}

static ms_status add_value(ms_program *p, const ms_tensor *t, int32_t kind, int32_t *index)
{
    MS_TRY(msi_grow(&p->values, p->n_values, &p->cap_values, sizeof(*p->values)));
    msi_value *v = &p->values[p->n_values];

    *v = (msi_value){.kind = kind,
                     .segment = kind == MSI_VALUE_RESULT ? p->n_segments : -1,
                     .last = -1,
                     .used = -1,
                     .out_of = -1,
                     .serial = t->v.storage->serial,
                     .node = t->grad_fn != NULL ? t->grad_fn->sequence : 0,
                     .node_out = t->out_index,
                     .requires_grad = t->requires_grad,
                     .view = t->v};
    v->view.storage = NULL;
    *index = p->n_values++;
    return MS_OK;
}

static ms_status add_op(ms_program *p, const msi_op *op, const void *attrs, int32_t n_in,
                        int32_t n_out, msi_recorded **out)
{
    MS_TRY(msi_grow(&p->ops, p->n_ops, &p->cap_ops, sizeof(*p->ops)));
    msi_recorded *r = &p->ops[p->n_ops];

    *r = (msi_recorded){.op = op, .n_in = n_in, .n_out = n_out, .place = p->place};
    r->in = calloc((size_t)(n_in + n_out + 1), sizeof(*r->in));
    r->attrs = op->attrs_size > 0 ? malloc((size_t)op->attrs_size) : NULL;
    if (r->in == NULL || (r->attrs == NULL && op->attrs_size > 0)) {
        free(r->in);
        free(r->attrs);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to record an operator");
    }
    if (r->attrs != NULL) {
        memcpy(r->attrs, attrs, (size_t)op->attrs_size);
    }
    r->out = r->in + n_in;
    *out = r;
    p->n_ops++;
    return MS_OK;
}

static ms_status add_outer(ms_program *p, ms_tensor *t, int32_t *index)
{
    if (t->grad_fn != NULL) {
        msi_program_break(p,
                          "it uses a tensor of shape %s that was computed before it, and is no "
                          "argument",
                          msi_shape_text(t->v.ndim, t->v.shape));
        *index = -1;
        return MS_OK;
    }
    MS_TRY(add_value(p, t, MSI_VALUE_OUTER, index));
    p->values[*index].handle = ms_tensor_retain(t);
    return MS_OK;
}

ms_status msi_record_value(ms_program *p, ms_tensor *t, int32_t *value)
{
    for (int32_t i = p->n_values - 1; i >= 0; i--) {
        if (shows(&p->values[i], t)) {
            *value = i;
            return MS_OK;
        }
    }
    if (t->v.storage->serial <= p->since) {
        return add_outer(p, t, value);
    }
    msi_program_break(p, "it uses a tensor of shape %s that no operator made",
                      msi_shape_text(t->v.ndim, t->v.shape));
    *value = -1;
    return MS_OK;
}

ms_status msi_record_argument(ms_program *p, ms_tensor *t)
{
    int32_t index;

    MS_TRY(add_value(p, t, MSI_VALUE_ARGUMENT, &index));
    p->values[index].handle = ms_tensor_retain(t);
    p->values[index].first = 0;
    while (!shows(&p->values[p->values[index].first], t)) {
        p->values[index].first++;
    }
    p->n_arguments++;
    return MS_OK;
}

ms_status msi_record_made(ms_program *p, const char *step, ms_tensor *t, int32_t *value)
{
    bool shares = t->v.storage->serial <= p->since;

    *value = -1;
    for (int32_t i = 0; i < p->n_values; i++) {
        shares |= p->values[i].serial == t->v.storage->serial;
    }
    if (shares) {
        msi_program_break(p, "'%s' returned a tensor that it did not make", step);
        return MS_OK;
    }
    if (t->requires_grad && t->grad_fn == NULL) {
        msi_program_break(p, "'%s' returned a leaf that requires grad", step);
        return MS_OK;
    }
    MS_TRY(add_value(p, t, MSI_VALUE_RESULT, value));
    p->values[*value].segment = -1;
    return MS_OK;
}

bool msi_record_is_constant(const ms_program *p, const ms_tensor *t)
{
    for (int32_t i = 0; i < p->n_values; i++) {
        if (p->values[i].constant && p->values[i].serial == t->v.storage->serial) {
            return true;
        }
    }
    return false;
}

/* -- the observer ------------------------------------------------------------------------------ */

static bool is_of_unit(const msi_op *op)
{
    return strncmp(op->name, "fsdp.", 5) == 0;
}

static void observe_begin(void *user, const msi_op_call *call)
{
    ms_program *p = user;

    if (p->depth++ == 0) {
        p->into = call->n_out > 0 && call->out[0] != NULL;
    }
}

/* True if `t` shows memory that the innermost region did not allocate. */
static bool is_outside(const ms_program *p, const ms_tensor *t)
{
    for (int32_t i = 0; i < p->n_values; i++) {
        const msi_value *v = &p->values[i];

        if (v->serial == t->v.storage->serial &&
            (v->kind != MSI_VALUE_RESULT || i < p->regions[p->region].first_value)) {
            return true;
        }
    }
    return false;
}

/* Every value of the memory that `t` shows is written, which none may be that is kept from run to
 * run. */
static void record_write(ms_program *p, const msi_op *op, const ms_tensor *t)
{
    if (msi_record_is_constant(p, t)) {
        msi_program_break(p, "'%s' writes to a constant", op->name);
    }
    if (p->region >= 0 && is_outside(p, t)) { /* twice: by forward and by backward */
        msi_program_break(
            p, "'%s' inside an activation checkpoint writes to a tensor from outside it", op->name);
    }
    for (int32_t i = 0; i < p->n_values; i++) {
        p->values[i].written |= p->values[i].serial == t->v.storage->serial;
    }
}

static ms_status record(ms_program *p, const msi_op_call *call)
{
    msi_recorded *r = NULL;
    int32_t in[MSI_OP_MAX_IN];

    for (int32_t i = 0; i < call->n_in; i++) {
        in[i] = -1;
        if (call->in[i] != NULL) {
            MS_TRY(msi_record_value(p, call->in[i], &in[i]));
        }
    }
    MS_TRY(add_op(p, call->op, call->attrs, call->n_in, call->n_out, &r));
    r->draw = -1;
    if (call->op->draw != 0 && msi_draw_in(call->op, call->attrs)->active) {
        MS_TRY(msi_grow(&p->draws, p->n_draws, &p->cap_draws, sizeof(*p->draws)));
        r->draw = p->n_draws++;
    }
    r->into = p->into;
    r->grads = call->ctx->recorder->recording(call->ctx);
    memcpy(r->in, in, sizeof(*in) * (size_t)call->n_in);
    const int32_t at = p->n_ops - 1;

    for (int32_t i = 0; i < call->n_in; i++) {
        if (in[i] >= 0) {
            p->values[in[i]].used = at;
        }
    }
    for (int32_t i = 0; i < call->n_out; i++) {
        int32_t value;

        MS_TRY(p->into ? msi_record_value(p, call->out[i], &value)
                       : add_value(p, call->out[i], MSI_VALUE_RESULT, &value));
        p->ops[at].out[i] = value;
        if (p->into) {
            record_write(p, call->op, call->out[i]);
        }
    }
    return MS_OK;
}

/* Its result is the same in every run, and kept. */
static ms_status record_constant(ms_program *p, const msi_op_call *call)
{
    int32_t value;

    MS_TRY(add_outer(p, call->out[0], &value));
    p->values[value].constant = true;
    return MS_OK;
}

static void observe_end(void *user, const msi_op_call *call, ms_status status)
{
    ms_program *p = user;

    p->depth--;
    if (p->depth > 0 || status != MS_OK || p->broken != NULL || is_of_unit(call->op)) {
        return;
    }
    if (call->meta) {
        msi_program_break(p, "'%s' runs on meta tensors", call->op->name);
    } else if (call->attrs != NULL && call->op->attrs_size == 0) {
        msi_program_break(p, "'%s' has attributes that cannot be kept", call->op->name);
    } else if ((call->op->constant ? record_constant(p, call) : record(p, call)) != MS_OK) {
        msi_program_break(p, "%s", ms_error_message());
    }
}

static void observe_host(void *user, const char *what)
{
    ms_program *p = user;

    if (p->depth == 0) {
        msi_program_break(p, "%s", what);
    }
}

/* -- activation checkpoints -------------------------------------------------------------------- */

ms_status msi_record_region(ms_program *p)
{
    MS_TRY(msi_grow(&p->regions, p->n_regions, &p->cap_regions, sizeof(*p->regions)));
    p->regions[p->n_regions] =
        (msi_region){.first = p->n_ops, .n = -1, .first_value = p->n_values, .outer = p->region};
    p->region = p->n_regions++;
    return MS_OK;
}

void msi_record_region_end(ms_program *p)
{
    msi_region *r = &p->regions[p->region];

    r->n = p->n_ops - r->first;
    p->region = r->outer;
}

static ms_status record_checkpoint(ms_program *p, ms_tensor *const *results, ms_tensor *const *out,
                                   int32_t n)
{
    msi_region *r = &p->regions[p->region];

    MS_TRY(msi_new_array(&r->result, n, "results of a checkpoint"));
    for (r->n_result = 0; r->n_result < n && p->broken == NULL; r->n_result++) {
        const int32_t i = r->n_result;
        int32_t *value = &r->result[i];

        MS_TRY(msi_record_value(p, results[i], value));
        if (*value >= 0) { /* it is an output of the checkpoint's node now */
            msi_value *v = &p->values[*value];

            v->node = out[i]->grad_fn != NULL ? out[i]->grad_fn->sequence : 0;
            v->node_out = out[i]->out_index;
            v->requires_grad = out[i]->requires_grad;
        }
    }
    return MS_OK;
}

static void observe_checkpoint(void *user, ms_tensor *const *results, ms_tensor *const *out,
                               int32_t n)
{
    ms_program *p = user;

    if (p->broken != NULL) {
        return;
    }
    if (p->region < 0 || p->regions[p->region].result != NULL) {
        msi_program_break(p, "a checkpoint is made");
    } else if (record_checkpoint(p, results, out, n) != MS_OK) {
        msi_program_break(p, "%s", ms_error_message());
    }
}

void msi_record_start(ms_program *p)
{
    p->observer = (msi_op_observer){.begin = observe_begin,
                                    .end = observe_end,
                                    .host = observe_host,
                                    .checkpoint = observe_checkpoint,
                                    .user = p};
    p->region = -1;
    p->since = msi_tensor_state_of(p->ctx)->n_storages;
    p->grads = p->ctx->recorder->recording(p->ctx);
    p->recording = true;
    msi_op_observe(p->ctx, &p->observer);
}

void msi_record_stop(ms_program *p)
{
    if (p->recording) {
        msi_op_observe(p->ctx, NULL);
    }
    p->recording = false;
}
