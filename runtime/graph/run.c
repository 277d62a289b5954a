/* Runs: the steps of a recorded program with new arguments, if these are as recorded. */
#include "graph.h"

#include <stdio.h>
#include <string.h>

static bool misfits(ms_program *p, int32_t value, const char *format, ...) MSI_PRINTF(3, 4);

static bool misfits(ms_program *p, int32_t value, const char *format, ...)
{
    const msi_value *v = &p->values[value];
    const int n = v->kind == MSI_VALUE_ARGUMENT
                      ? snprintf(p->misfit, sizeof(p->misfit), "argument %d ", (int)value + 1)
                      : snprintf(p->misfit, sizeof(p->misfit), "%.100s ",
                                 v->handle != NULL ? msi_tensor_label(v->handle) : "a result");
    va_list args;

    va_start(args, format);
    msi_text_write(p->misfit + n, sizeof(p->misfit) - (size_t)n, format, args);
    va_end(args);
    return true;
}

/* True if two handles are one value, also for autograd. */
static bool is_same(const ms_tensor *a, const ms_tensor *b)
{
    if (a == b || a->v.storage != b->v.storage || !msi_same_view(&a->v, &b->v) ||
        a->grad_fn != b->grad_fn || a->requires_grad != b->requires_grad) {
        return a == b;
    }
    return a->grad_fn != NULL ? a->out_index == b->out_index : !a->requires_grad;
}

static bool misfit_alone(ms_program *p, int32_t value, const ms_tensor *t)
{
    const msi_value *v = &p->values[value];
    const size_t n = sizeof(int64_t) * (size_t)v->view.ndim;

    if (t->v.dtype != v->view.dtype) {
        return misfits(p, value, "is %s, recorded as %s", ms_dtype_name(t->v.dtype),
                       ms_dtype_name(v->view.dtype));
    }
    if (t->v.ndim != v->view.ndim || memcmp(t->v.shape, v->view.shape, n) != 0) {
        return misfits(p, value, "has shape %s, recorded with %s",
                       msi_shape_text(t->v.ndim, t->v.shape),
                       msi_shape_text(v->view.ndim, v->view.shape));
    }
    if (memcmp(t->v.stride, v->view.stride, n) != 0) {
        return misfits(p, value, "has strides %s, recorded with %s",
                       msi_shape_text(t->v.ndim, t->v.stride),
                       msi_shape_text(v->view.ndim, v->view.stride));
    }
    return t->requires_grad != v->requires_grad &&
           misfits(p, value, "%s grad", t->requires_grad ? "requires" : "no longer requires");
}

static bool misfit(ms_program *p, int32_t value, const ms_tensor *t)
{
    const msi_value *v = &p->values[value];

    if (misfit_alone(p, value, t)) {
        return true;
    }
    if (v->handle != NULL && v->handle != t) {
        return misfits(p, value, "is another tensor than the parameter recorded");
    }
    for (int32_t i = 0; i < value; i++) {
        const msi_value *other = &p->values[i];
        const bool recorded = other->first == v->first;

        if (p->frame[i] == NULL) {
            continue;
        }
        if (is_same(p->frame[i], t) != recorded) {
            return misfits(p, value, "%s argument %d, unlike when it was recorded",
                           recorded ? "is not" : "is", (int)i + 1);
        }
        if ((other->written || v->written) && other->serial != v->serial &&
            p->frame[i]->v.storage == t->v.storage) {
            return misfits(p, value, "shares memory with argument %d, and one of them is written",
                           (int)i + 1);
        }
    }
    return p->ctx->recorder->recording(p->ctx) != p->grads &&
           misfits(p, value, "is used with grad mode %s, recorded with %s", p->grads ? "off" : "on",
                   p->grads ? "on" : "off");
}

/* Of the current run. */
static ms_tensor *value_of(const ms_program *p, int32_t value)
{
    return p->values[value].kind == MSI_VALUE_OUTER ? p->values[value].handle : p->frame[value];
}

/* What a step made: it is read where other values are not, so it may share no memory with them. */
static bool misfit_made(ms_program *p, int32_t value, const ms_tensor *t)
{
    for (int32_t i = 0; i < p->n_values; i++) {
        const ms_tensor *other = value_of(p, i);

        if (i != value && other != NULL && other->v.storage == t->v.storage) {
            return misfits(p, value, "is a tensor that the step did not make");
        }
    }
    return misfit_alone(p, value, t) || (t->requires_grad && t->grad_fn == NULL &&
                                         misfits(p, value, "is a leaf that requires grad"));
}

ms_status ms_program_set(ms_program *p, int32_t value, ms_tensor *t, bool *fits)
{
    MS_ASSERT(p->broken == NULL && value >= 0 && value < p->n_values);
    const msi_value *v = &p->values[value];

    MS_ASSERT(value < p->n_arguments || (v->kind == MSI_VALUE_RESULT && v->segment < 0));
    *fits = value < p->n_arguments ? !misfit(p, value, t) : !misfit_made(p, value, t);
    if (*fits) {
        ms_tensor_free(p->frame[value]);
        p->frame[value] = ms_tensor_retain(t);
    }
    return MS_OK;
}

/* (A unit's parameters are compared when it has gathered them.) */
ms_status ms_program_fits(ms_program *p, bool *fits)
{
    *fits = true;
    for (int32_t i = p->n_arguments; i < p->n_values && *fits; i++) {
        const msi_value *v = &p->values[i];

        if (v->kind == MSI_VALUE_OUTER &&
            (v->handle->param == NULL || v->handle->param->unit == NULL)) {
            *fits = !misfit_alone(p, i, v->handle);
        }
    }
    return MS_OK;
}

const char *ms_program_misfit(const ms_program *p)
{
    return p->misfit;
}

static ms_status run_segment(ms_program *p, msi_graph_segment *s)
{
    MS_TRY(msi_graph_segment_run(s, p->frame));
    for (int32_t i = 0; i < s->n_drops; i++) {
        ms_tensor_free(p->frame[s->drops[i]]);
        p->frame[s->drops[i]] = NULL;
    }
    return MS_OK;
}

static ms_status set_results(ms_program *p, const msi_call *c, ms_tensor *const *out)
{
    for (int32_t i = 0; i < c->n_out; i++) {
        bool fits = out[i] != NULL;

        if (!fits) {
            return MS_FAIL(MS_RUNTIME_ERROR, "'%s': result %d is missing", c->name, (int)i + 1);
        }
        MS_TRY(ms_program_set(p, c->out[i], out[i], &fits));
        if (!fits) {
            return MS_FAIL(MS_RUNTIME_ERROR, "'%s', result %d: %s", c->name, (int)i + 1, p->misfit);
        }
    }
    return MS_OK;
}

static ms_status run_call(ms_program *p, const msi_call *c)
{
    ms_tensor *in[MS_CUSTOM_OP_MAX], *out[MS_CUSTOM_OP_MAX] = {NULL};

    for (int32_t i = 0; i < c->n_in; i++) {
        in[i] = value_of(p, c->in[i]);
    }
    MS_TRY(ms_scope_open(c->name));
    ms_status status = c->fn(c->user, in, c->n_in, out, c->n_out);

    if (status == MS_OK) {
        status = set_results(p, c, out);
    }
    const ms_status closed = ms_scope_close(NULL, 0);

    return status == MS_OK ? closed : status;
}

ms_status ms_program_run(ms_program *p, int32_t segment)
{
    MS_ASSERT(p->broken == NULL && segment >= 0 && segment < p->n_steps);
    const msi_step from = segment > 0 ? p->steps[segment - 1] : (msi_step){0},
                   to = p->steps[segment];
    int32_t call = from.calls;

    for (int32_t i = from.segments; i <= to.segments; i++) {
        while (call < to.calls && p->calls[call].segment <= i) {
            MS_TRY(run_call(p, &p->calls[call++]));
        }
        if (i < to.segments) {
            MS_TRY(run_segment(p, p->segments[i]));
        }
    }
    return MS_OK;
}

ms_status ms_program_get(ms_tensor **out, ms_program *p, int32_t value)
{
    *out = NULL;
    MS_ASSERT(value >= 0 && value < p->n_values);
    ms_tensor *t = value_of(p, value);

    MS_ASSERT(t != NULL);
    return ms_tensor_alias(out, t);
}

void ms_program_done(ms_program *p)
{
    for (int32_t i = 0; p->frame != NULL && i < p->n_values; i++) {
        ms_tensor_free(p->frame[i]);
        p->frame[i] = NULL;
    }
}
