/* The life of a program: recording, segments, runs, freeing. */
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

static void use(msi_value *v, int32_t segment)
{
    v->last = v->last > segment ? v->last : segment;
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
        use(&p->values[*value], p->n_segments);
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

/* [Note: pieces] A node holds what it saved, and asks for the destinations of all its gradients,
 * until its backward has run. So operators whose results exceed PIECE_BYTES are divided, and memory
 * is released as in eager execution, piece by piece. A region is not divided; one that would exceed
 * them begins a piece, since backward needs memory for all of it. An operator whose backward
 * overwrites the last result belongs to its piece: across pieces the gradient has a destination of
 * its own. */
enum { PIECE_BYTES = 4 << 20 };

static int64_t result_bytes(const ms_program *p, const msi_recorded *r)
{
    int64_t nbytes = 0;

    for (int32_t i = 0; i < r->n_out && !r->into; i++) {
        const msi_view *v = &p->values[r->out[i]].view;

        nbytes += msi_view_numel(v) * ms_dtype_size(v->dtype);
    }
    return nbytes;
}

/* The operators from `first` on that are not divided: one, or the outermost region there. */
static int32_t undivided(const ms_program *p, int32_t first)
{
    for (int32_t i = 0; i < p->n_regions; i++) {
        if (p->regions[i].first == first && p->regions[i].n > 0) {
            return p->regions[i].n;
        }
    }
    return 1;
}

/* Take the next operator. */
static void add_op(ms_program *p, const msi_graph_segment *s)
{
    const msi_recorded *r = &p->ops[p->cut++];

    for (int32_t i = 0; i < r->n_out && !r->into; i++) {
        p->values[r->out[i]].segment = s->number;
    }
    p->cut_draws += r->draw >= 0;
}

static uint64_t memory_of(const ms_program *p, const msi_recorded *r, int32_t k)
{
    return k < r->n_in + r->n_out && r->in[k] >= 0 ? p->values[r->in[k]].serial : 0;
}

/* True if the operators from `at` on are views of the result before them, up to one that
 * overwrites it. */
static bool is_overwritten(const ms_program *p, int32_t at)
{
    const msi_recorded *last = &p->ops[at - 1];
    const uint64_t memory = memory_of(p, last, last->n_in);

    for (int32_t i = at; i < p->n_ops && memory_of(p, &p->ops[i], 0) == memory; i++) {
        if (p->ops[i].op->overwrites) {
            return true;
        }
        if (memory_of(p, &p->ops[i], p->ops[i].n_in) != memory) {
            return false;
        }
    }
    return false;
}

/* The next custom operator that the segments so far do not reach; NULL: none. */
static const msi_call *next_call(const ms_program *p)
{
    for (int32_t i = p->cut_calls; i < p->n_calls; i++) {
        if (p->calls[i].op > p->cut) {
            return &p->calls[i];
        }
    }
    return NULL;
}

static int64_t bytes_of(const ms_program *p, int32_t first, int32_t end)
{
    int64_t nbytes = 0;

    for (int32_t i = first; i < end; i++) {
        nbytes += result_bytes(p, &p->ops[i]);
    }
    return nbytes;
}

/* The end of the piece that begins with the next operator, at most `limit`. */
static int32_t end_of_piece(const ms_program *p, int32_t limit)
{
    int64_t nbytes = 0;
    int32_t at = p->cut;

    while (at < limit && (nbytes <= PIECE_BYTES || is_overwritten(p, at))) {
        const int32_t end = at + undivided(p, at);

        nbytes += bytes_of(p, at, end);
        if (end - at > 1 && at > p->cut && nbytes > PIECE_BYTES) {
            break;
        }
        at = end;
    }
    return at;
}

/* Bytes of results before `at` that later operators use. */
static int64_t bytes_across(const ms_program *p, int32_t at)
{
    int64_t nbytes = 0;

    for (int32_t i = p->cut; i < at; i++) {
        const msi_recorded *r = &p->ops[i];

        for (int32_t k = 0; k < r->n_out && !r->into; k++) {
            const msi_value *v = &p->values[r->out[k]];

            nbytes += v->used >= at ? msi_view_numel(&v->view) * ms_dtype_size(v->view.dtype) : 0;
        }
    }
    return nbytes;
}

/* A piece computes again what it made, but not what another one did. So at levels that recompute it
 * ends where the fewest bytes go on, from half a piece on and up to MORE operators behind `end`. */
static int32_t with_least_across(const ms_program *p, int32_t end, int32_t limit)
{
    enum { MORE = 3 };
    int64_t least = bytes_across(p, end), nbytes = 0;
    int32_t best = end, more = 0;

    for (int32_t at = p->cut, n; at < limit && more < MORE; at += n) {
        n = undivided(p, at);
        if (at >= end && n > 1) {
            break;
        }
        nbytes += bytes_of(p, at, at + n);
        more += at >= end;
        const int64_t across = bytes_across(p, at + n);

        if (nbytes >= PIECE_BYTES / 2 && across < least && !is_overwritten(p, at + n)) {
            least = across;
            best = at + n;
        }
    }
    return best;
}

/* Take the next operators as a segment. */
static ms_status add_segment(ms_program *p)
{
    msi_graph_segment *s;
    const msi_call *call = next_call(p);
    const int32_t limit = call != NULL ? call->op : p->n_ops;
    int32_t end = end_of_piece(p, limit);

    MS_TRY(msi_grow(&p->segments, p->n_segments, &p->cap_segments, sizeof(*p->segments)));
    MS_TRY(msi_new_array(&s, 1, "segment"));
    *s = (msi_graph_segment){
        .program = p, .number = p->n_segments, .first = p->cut, .first_draw = p->cut_draws};
    if (end < limit && p->level >= MS_PROGRAM_PARTITION) {
        end = with_least_across(p, end, limit);
    }
    while (p->cut < end) {
        add_op(p, s);
    }
    s->n = p->cut - s->first;
    s->n_draws = p->cut_draws - s->first_draw;
    p->segments[p->n_segments++] = s;
    return MS_OK;
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
        MS_TRY(add_segment(p));
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

/* -- segments ---------------------------------------------------------------------------------- */

static bool is_made_by(const msi_value *v, const msi_graph_segment *s)
{
    return v->kind == MSI_VALUE_RESULT && v->segment == s->number;
}

/* `index[value]` becomes its place among the inputs. */
static void add_inputs(msi_graph_segment *s, const msi_recorded *r, int32_t *index)
{
    for (int32_t k = 0; k < r->n_in + r->n_out; k++) {
        const int32_t value = r->in[k];

        if (value < 0 || is_made_by(&s->program->values[value], s)) {
            continue;
        }
        if (index[value] < 0) {
            index[value] = s->n_in;
            s->in[s->n_in++] = value;
            use(&s->program->values[value], s->number);
        }
    }
}

static ms_status find_inputs(msi_graph_segment *s, int32_t *index)
{
    int32_t n = 0;

    for (int32_t i = s->first; i < s->first + s->n; i++) {
        n += s->program->ops[i].n_in + s->program->ops[i].n_out;
    }
    MS_TRY(msi_new_array(&s->in, n + 1, "inputs"));
    for (int32_t v = 0; v < s->program->n_values; v++) {
        index[v] = -1;
    }
    for (int32_t i = s->first; i < s->first + s->n; i++) {
        add_inputs(s, &s->program->ops[i], index);
    }
    return MS_OK;
}

/* Mark the inputs whose memory an operator writes. A plan has separate buffers for inputs that
 * share memory, so it does not notice that a write to one changes what was saved of another. */
static void find_writes(msi_graph_segment *s, const msi_recorded *r)
{
    const msi_value *values = s->program->values;

    for (int32_t k = 0; r->into && k < r->n_out; k++) {
        int32_t n = 0;

        for (int32_t i = 0; i < s->n_in; i++) {
            if (values[s->in[i]].serial == values[r->out[k]].serial) {
                s->writes[i] = true;
                n++;
            }
        }
        if (n > 1) {
            msi_program_break(s->program,
                              "'%s' writes to memory that %d tensors from outside share",
                              r->op->name, (int)n);
        }
    }
}

/* The values of the program that are `chosen`, in order. */
static ms_status choose(const msi_graph_segment *s,
                        bool (*chosen)(const msi_value *v, const msi_graph_segment *s),
                        int32_t **out, int32_t *n)
{
    const ms_program *p = s->program;

    for (int32_t v = 0; v < p->n_values; v++) {
        *n += chosen(&p->values[v], s);
    }
    MS_TRY(msi_new_array(out, *n + 1, "values"));
    *n = 0;
    for (int32_t v = 0; v < p->n_values; v++) {
        if (chosen(&p->values[v], s)) {
            (*out)[(*n)++] = v;
        }
    }
    return MS_OK;
}

static bool is_output(const msi_value *v, const msi_graph_segment *s)
{
    return is_made_by(v, s) && v->last >= 0;
}

static bool is_dropped(const msi_value *v, const msi_graph_segment *s)
{
    return v->last == s->number && !v->held;
}

static ms_status find_outputs(msi_graph_segment *s)
{
    MS_TRY(choose(s, is_output, &s->out, &s->n_out));
    for (int32_t i = 0; i < s->n_out; i++) {
        s->program->values[s->out[i]].out_of = i;
    }
    return choose(s, is_dropped, &s->drops, &s->n_drops);
}

static ms_status make_tables(msi_graph_segment *s)
{
    const int32_t n_in = s->n_in + 1, n_out = s->n_out + 1;

    MS_TRY(msi_new_array(&s->storage_of, n_out, "outputs"));
    MS_TRY(msi_new_array(&s->view_of, n_out, "outputs"));
    MS_TRY(msi_new_array(&s->grad_of, n_out, "outputs"));
    MS_TRY(msi_new_array(&s->storage_bytes, n_out, "outputs"));
    MS_TRY(msi_new_array(&s->outputs, n_out, "outputs"));
    MS_TRY(msi_new_array(&s->keeps, n_in + n_out, "inputs"));
    MS_TRY(msi_new_array(&s->handles, n_in + n_out, "inputs"));
    MS_TRY(msi_new_array(&s->bases, msi_graph_segment_regions(s), "regions"));
    MS_TRY(msi_new_array(&s->writes, n_in, "inputs"));
    MS_TRY(msi_new_array(&s->draws, s->n_draws + 1, "random masks"));
    for (int32_t i = s->first; i < s->first + s->n; i++) {
        find_writes(s, &s->program->ops[i]);
    }
    return msi_key_new(&s->key, s);
}

/* Values of custom operators last until the segment behind them has run. */
static void place_calls(ms_program *p)
{
    for (int32_t i = 0, s = 0; i < p->n_calls; i++) {
        msi_call *c = &p->calls[i];

        while (s < p->n_segments && p->segments[s]->first < c->op) {
            s++;
        }
        c->segment = s;
        for (int32_t k = 0; k < c->n_in; k++) {
            use(&p->values[c->in[k]], s);
        }
    }
}

static ms_status prepare(ms_program *p)
{
    int32_t *index, ignored;

    MS_TRY(ms_program_cut(p, &ignored));
    MS_TRY(msi_new_array(&index, p->n_values + 1, "values"));
    ms_status status = msi_new_array(&p->frame, p->n_values + 1, "values");

    place_calls(p);
    for (int32_t i = 0; i < p->n_segments && status == MS_OK; i++) {
        status = find_inputs(p->segments[i], index);
    }
    for (int32_t i = 0; i < p->n_segments && status == MS_OK; i++) {
        status = find_outputs(p->segments[i]);
        if (status == MS_OK) {
            status = make_tables(p->segments[i]);
        }
    }
    free(index);
    return status;
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
    ms_status status = p->broken == NULL ? prepare(p) : MS_OK;

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

/* -- runs -------------------------------------------------------------------------------------- */

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
