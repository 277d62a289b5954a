/* Memory of a forward and its backward, from the plans: what a run allocates, in its order. */
#include "graph.h"

#include <stdlib.h>

/* The memory of one run. */
typedef struct run_memory {
    const ms_program *p;
    bool planned;        /* or each buffer by itself */
    int32_t *base;       /* (n_segments + 1) number of a segment's first storage */
    int32_t *storage_of; /* (n_values); -1: not of the run */
    int32_t *owners;     /* (storages) */
    int64_t *bytes;      /* (storages) */
    int64_t *grad;       /* (n_values) bytes of the gradient that exists */
    int64_t live, peak;
} run_memory;

static ms_status prepare(run_memory *m)
{
    const ms_program *p = m->p;

    MS_TRY(msi_new_array(&m->base, p->n_segments + 1, "segments"));
    for (int32_t i = 0; i < p->n_segments; i++) {
        m->base[i + 1] = m->base[i] + p->segments[i]->n_storages;
    }
    MS_TRY(msi_new_array(&m->storage_of, p->n_values + 1, "values"));
    MS_TRY(msi_new_array(&m->grad, p->n_values + 1, "values"));
    MS_TRY(msi_new_array(&m->owners, m->base[p->n_segments] + 1, "storages"));
    MS_TRY(msi_new_array(&m->bytes, m->base[p->n_segments] + 1, "storages"));
    for (int32_t v = 0; v < p->n_values; v++) {
        m->storage_of[v] = -1;
    }
    return MS_OK;
}

static void dispose(run_memory *m)
{
    free(m->base);
    free(m->storage_of);
    free(m->grad);
    free(m->owners);
    free(m->bytes);
}

static void allocate(run_memory *m, int64_t nbytes, int64_t for_a_time)
{
    m->live += nbytes;
    if (m->live + for_a_time > m->peak) {
        m->peak = m->live + for_a_time;
    }
}

static void own(run_memory *m, int32_t storage, int32_t n)
{
    if (storage >= 0) {
        m->owners[storage] += n;
        m->live -= m->owners[storage] == 0 ? m->bytes[storage] : 0;
    }
}

/* What a node keeps of inputs and outputs. */
static void own_kept(run_memory *m, const msi_graph_segment *s, int32_t n)
{
    for (int32_t i = 0; i < s->n_in; i++) {
        own(m, s->keeps[i] ? m->storage_of[s->in[i]] : -1, n);
    }
    for (int32_t i = 0; i < s->n_storages; i++) {
        own(m, s->keeps[s->n_in + i] ? m->base[s->number] + i : -1, n);
    }
}

static int64_t saved_bytes(const run_memory *m, const msi_graph_segment *s)
{
    return m->planned ? s->forward.saved_bytes : msi_plan_live(&s->forward, MSI_BUFFER_SAVED, -1);
}

static void run_forward(run_memory *m, const msi_graph_segment *s)
{
    const int64_t saved = saved_bytes(m, s);
    int64_t outputs = 0;

    for (int32_t i = 0; i < s->n_storages; i++) {
        m->bytes[m->base[s->number] + i] = s->storage_bytes[i];
        outputs += s->storage_bytes[i];
    }
    allocate(m, outputs, m->planned ? saved + s->forward.arena_bytes : s->forward.unplanned_bytes);
    for (int32_t i = 0; i < s->n_out; i++) {
        const int32_t k = s->storage_of[i];

        m->storage_of[s->out[i]] = k >= 0 ? m->base[s->number] + k : m->storage_of[s->in[-1 - k]];
        own(m, m->storage_of[s->out[i]], 1);
    }
    if (s->recorded) {
        m->live += saved;
        own_kept(m, s, 1);
    }
    for (int32_t i = 0; i < s->n_drops; i++) {
        own(m, m->storage_of[s->drops[i]], -1);
    }
}

/* A leaf's gradient is no activation. */
static bool has_gradient(const run_memory *m, const msi_graph_segment *s,
                         const msi_backward_plan *b, int32_t i)
{
    const msi_value *v = &m->p->values[s->in[i]];

    return b->reached[i] && b->key.needed[i] && v->node != 0;
}

static void run_backward(run_memory *m, const msi_graph_segment *s, const msi_backward_plan *b)
{
    const int64_t saved = saved_bytes(m, s);

    for (int32_t i = 0; i < s->n_out; i++) { /* else from outside */
        if (b->key.present[i] && m->grad[s->out[i]] == 0) {
            m->grad[s->out[i]] = msi_value_bytes(&m->p->values[s->out[i]]);
            allocate(m, m->grad[s->out[i]], 0);
        }
    }
    for (int32_t i = 0; i < s->n_in; i++) {
        if (has_gradient(m, s, b, i) && m->grad[s->in[i]] == 0) {
            m->grad[s->in[i]] = msi_value_bytes(&m->p->values[s->in[i]]);
            allocate(m, m->grad[s->in[i]], 0);
        }
    }
    allocate(m, 0, m->planned ? b->plan.arena_bytes : b->plan.unplanned_bytes - saved);
    m->live -= saved;
    own_kept(m, s, -1);
    for (int32_t i = 0; i < s->n_out; i++) {
        m->live -= m->grad[s->out[i]];
        m->grad[s->out[i]] = 0;
    }
}

static ms_status run(const ms_program *p, bool planned, int64_t *peak)
{
    run_memory m = {.p = p, .planned = planned};
    const ms_status status = prepare(&m);

    for (int32_t i = 0; i < p->n_segments && status == MS_OK; i++) {
        run_forward(&m, p->segments[i]);
    }
    for (int32_t i = p->n_segments - 1; i >= 0 && status == MS_OK; i--) {
        if (p->segments[i]->recorded && p->segments[i]->backward != NULL) {
            run_backward(&m, p->segments[i], p->segments[i]->backward);
        }
    }
    dispose(&m);
    *peak = m.peak;
    return status;
}

ms_status ms_program_memory_get(const ms_program *p, ms_program_memory *out)
{
    *out = (ms_program_memory){.planned_peak = 0};
    if (p->broken != NULL || p->recording) {
        return MS_OK;
    }
    for (int32_t i = 0; i < p->n_segments; i++) {
        for (const msi_backward_plan *b = p->segments[i]->backward; b != NULL; b = b->next) {
            out->backward_plans++;
            out->backward_kernels += b == p->segments[i]->backward ? b->plan.n_entries : 0;
        }
    }
    MS_TRY(run(p, true, &out->planned_peak));
    return run(p, false, &out->unplanned_peak);
}
