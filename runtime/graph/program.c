/* The life of a program: recording, steps, freeing; what it describes of itself. */
#include "graph.h"

#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- recording --------------------------------------------------------------------------------- */

static void forget(msi_value *v)
{
    ms_tensor_free(v->handle);
    v->handle = NULL;
}

static void delist(ms_program *p)
{
    *p->link = p->next;
    if (p->next != NULL) {
        p->next->link = p->link;
    }
}

static void close_program(ms_program *p)
{
    if (p->ctx == NULL) {
        return;
    }
    msi_record_stop(p);
    ms_program_done(p);
    for (int32_t i = 0; i < p->n_values; i++) {
        forget(&p->values[i]);
    }
    delist(p);
    p->ctx = NULL;
}

static void release_program(ms_program *p)
{
    if (--p->refcount > 0) {
        return;
    }
    close_program(p);
    for (int32_t i = 0; i < p->n_segments; i++) {
        msi_runs_free(p->segments[i]);
        msi_graph_segment_free(p->segments[i]);
    }
    for (int32_t i = 0; i < p->n_regions; i++) {
        free(p->regions[i].result);
    }
    for (int32_t i = 0; i < p->n_ops; i++) {
        free(p->ops[i].attrs);
        free(p->ops[i].in);
    }
    if (p->broken != p->no_memory) {
        free(p->broken);
    }
    free(p->segments);
    free(p->values);
    free(p->ops);
    free(p->regions);
    free(p->draws);
    free(p->steps);
    free(p->calls);
    free(p->frame);
    free(p);
}

ms_status ms_program_begin(ms_program **out, int32_t level)
{
    ms_context *ctx = msi_context();
    ms_program *p;

    *out = NULL;
    if (msi_tensor_state_of(ctx) == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    if (msi_op_is_observed(ctx)) {
        return MS_FAIL(MS_RUNTIME_ERROR, "this thread's operators are watched already");
    }
    MS_TRY(msi_new_array(&p, 1, "program"));
    p->refcount = 1;
    p->ctx = ctx;
    p->level = level;
    snprintf(p->no_memory, sizeof(p->no_memory), "no memory");
    p->close = close_program;
    p->release = release_program;
    ms_status status = msi_graph_enlist(p);

    if (status != MS_OK) {
        free(p);
        return status;
    }
    msi_record_start(p);
    *out = p;
    return MS_OK;
}

ms_status ms_program_argument(ms_program *p, ms_tensor *t)
{
    MS_ASSERT(p->recording && p->n_ops == 0);
    return msi_record_argument(p, t);
}

ms_status ms_program_value(ms_program *p, ms_tensor *t, bool keep, int32_t *value)
{
    MS_ASSERT(p->recording);
    *value = -1;
    if (p->broken != NULL) {
        return MS_OK;
    }
    MS_TRY(msi_record_value(p, t, value));
    if (*value >= 0 && msi_record_is_constant(p, t)) {
        msi_program_break(p, "a constant is a result");
    } else if (*value >= 0) {
        msi_value_use(&p->values[*value], p->n_segments);
        p->values[*value].held |= keep;
    }
    return MS_OK;
}

ms_status ms_program_made(ms_program *p, const char *step, ms_tensor *t, int32_t *value)
{
    MS_ASSERT(p->recording);
    *value = -1;
    return p->broken == NULL ? msi_record_made(p, step, t, value) : MS_OK;
}

ms_status ms_program_region_begin(ms_program *p)
{
    MS_ASSERT(p->recording);
    return msi_record_region(p);
}

ms_status ms_program_region_end(ms_program *p)
{
    MS_ASSERT(p->recording && p->region >= 0);
    msi_record_region_end(p);
    return MS_OK;
}

ms_status ms_program_cut(ms_program *p, int32_t *segment)
{
    *segment = -1;
    if (p->region >= 0) {
        msi_program_break(p, "a step of the host, as of a sharded unit, is inside an activation "
                             "checkpoint");
    }
    if ((p->n_ops == p->cut && p->n_calls == p->cut_calls) || p->broken != NULL) {
        return MS_OK;
    }
    MS_TRY(msi_grow(&p->steps, p->n_steps, &p->cap_steps, sizeof(*p->steps)));
    while (p->cut < p->n_ops) {
        MS_TRY(msi_segment_add(p));
    }
    p->cut_calls = p->n_calls;
    *segment = p->n_steps;
    p->steps[p->n_steps++] = (msi_step){.segments = p->n_segments, .calls = p->n_calls};
    return MS_OK;
}

void ms_program_pause(ms_program *p, bool pause)
{
    msi_op_observe(p->ctx, pause ? NULL : &p->observer);
}

void ms_program_place(ms_program *p, int32_t place)
{
    p->place = place;
}

int32_t ms_program_n_draws(const ms_program *p)
{
    return p->n_draws;
}

ms_status ms_program_draw(ms_program *p, int32_t draw, int64_t call)
{
    MS_ASSERT(draw >= 0 && draw < p->n_draws && call >= 0 && call < MSI_FIRST_CALL);
    p->draws[draw] = call;
    return MS_OK;
}

void ms_program_break(ms_program *p, const char *why)
{
    msi_program_break(p, "%s", why);
}

const char *ms_program_broken(const ms_program *p)
{
    return p->broken;
}

/* An argument that was a parameter stays that parameter, whose other uses are recorded as uses of
 * the argument; others are free. */
static void forget_arguments(ms_program *p)
{
    for (int32_t i = 0; i < p->n_values; i++) {
        if (p->values[i].kind == MSI_VALUE_ARGUMENT && p->values[i].handle->param == NULL) {
            forget(&p->values[i]);
        }
    }
}

ms_status ms_program_end(ms_program *p)
{
    MS_ASSERT(p->recording);
    msi_record_stop(p);
    int32_t ignored;
    ms_status status = ms_program_cut(p, &ignored);

    if (p->broken == NULL && status == MS_OK) {
        status = msi_segments_prepare(p);
    }

    for (int32_t i = 0; i < p->n_segments && status == MS_OK && p->broken == NULL; i++) {
        msi_graph_segment *s = p->segments[i];

        status = msi_lower_forward(s);
        if (status == MS_OK) {
            msi_graph_segment_link(s, &s->forward);
        } else if (status != MS_OUT_OF_MEMORY) {
            msi_program_break(p, "%s", ms_error_message());
            status = MS_OK;
        }
    }
    forget_arguments(p);
    if (status != MS_OK) {
        msi_program_break(p, "%s", ms_error_message());
    }
    return status;
}

void ms_program_free(ms_program *p)
{
    if (p == NULL) {
        return;
    }
    msi_record_stop(p);
    ms_program_done(p);
    release_program(p);
}

void ms_program_info_get(const ms_program *p, ms_program_info *info)
{
    *info = (ms_program_info){.segments = p->n_segments, .steps = p->n_steps, .ops = p->n_ops};
    for (int32_t i = 0; i < p->n_segments; i++) {
        const msi_graph_segment *s = p->segments[i];

        info->kernels += s->forward.n_entries;
        info->saved_bytes += s->forward.saved_bytes;
        if (s->forward.arena_bytes > info->arena_bytes) {
            info->arena_bytes = s->forward.arena_bytes;
        }
    }
}

/* What the caller runs at a time, by which operator `op` runs. */
static int32_t step_of(const ms_program *p, int32_t op)
{
    int32_t segment = 0, step = 0;

    while (p->segments[segment]->first + p->segments[segment]->n <= op) {
        segment++;
    }
    while (p->steps[step].segments <= segment) {
        step++;
    }
    return step;
}

ms_status ms_program_op_get(const ms_program *p, int32_t op, ms_program_op *out)
{
    MS_ASSERT(p->broken == NULL && !p->recording && op >= 0 && op < p->n_ops);
    const msi_recorded *r = &p->ops[op];

    *out = (ms_program_op){.name = r->op->name,
                           .in = r->in,
                           .out = r->out,
                           .n_in = r->n_in,
                           .n_out = r->n_out,
                           .step = step_of(p, op),
                           .place = r->place,
                           .in_place = r->into};
    return MS_OK;
}

ms_status ms_program_value_get(const ms_program *p, int32_t value, ms_program_value_info *out)
{
    MS_ASSERT(value >= 0 && value < p->n_values);
    const msi_value *v = &p->values[value];

    *out = (ms_program_value_info){.kind = v->kind,
                                   .dtype = v->view.dtype,
                                   .ndim = v->view.ndim,
                                   .requires_grad = v->requires_grad};
    if (v->handle != NULL && v->handle->param != NULL) {
        out->name = v->handle->param->name;
    }
    memcpy(out->shape, v->view.shape, sizeof(out->shape[0]) * (size_t)v->view.ndim);
    return MS_OK;
}
