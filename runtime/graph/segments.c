/* Segments: how recorded operators are divided, and what each segment gets, makes and leaves. */
#include "graph.h"

#include <stdlib.h>

/* -- pieces ------------------------------------------------------------------------------------ */

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
        nbytes += msi_value_bytes(&p->values[r->out[i]]);
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

            nbytes += v->used >= at ? msi_value_bytes(v) : 0;
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
ms_status msi_segment_add(ms_program *p)
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

/* -- inputs and outputs ------------------------------------------------------------------------ */

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
            msi_value_use(&s->program->values[value], s->number);
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
            msi_value_use(&p->values[c->in[k]], s);
        }
    }
}

ms_status msi_segments_prepare(ms_program *p)
{
    int32_t *index;

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
