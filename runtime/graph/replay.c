/* Replay: a segment runs as one operator, whose forward and backward are lists of kernels. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* What a forward leaves to its backward. */
typedef struct msi_run {
    msi_graph_segment *s;
    struct msi_run *next; /* in the list of free ones */
    msi_storage *saved;   /* or NULL */
    msi_draw *draws;      /* (n_draws) random masks */
    msi_saved *kept;      /* (n_in + n_storages) what rules read: inputs, then outputs' storages */
} msi_run;

/* Memory by region; pointers of kernels are offsets in it. */
typedef struct bases {
    char **at;
    ms_context *ctx;
    const msi_draw *draws; /* of the forward */
    msi_fault fault;
    ms_status failed;
} bases;

int32_t msi_graph_segment_regions(const msi_graph_segment *s)
{
    return MSI_REGIONS + 2 * s->n_in + 2 * s->n_out; /* as many storages as outputs, or fewer */
}

static char **input_base(const msi_graph_segment *s, int32_t i)
{
    return s->bases + MSI_REGIONS + i;
}

static char **dest_base(const msi_graph_segment *s, int32_t i)
{
    return s->bases + MSI_REGIONS + s->n_in + i;
}

static char **storage_base(const msi_graph_segment *s, int32_t i)
{
    return s->bases + MSI_REGIONS + 2 * s->n_in + i;
}

static char **grad_base(const msi_graph_segment *s, int32_t i)
{
    return s->bases + MSI_REGIONS + 2 * s->n_in + s->n_storages + i;
}

/* -- linking: buffers to regions --------------------------------------------------------------- */

static int32_t region_of(const msi_graph_segment *s, const msi_plan *plan, const msi_buffer *b,
                         int64_t *offset)
{
    switch (b->kind) {
    case MSI_BUFFER_INPUT:
        return MSI_REGIONS + b->index;
    case MSI_BUFFER_DEST:
        return MSI_REGIONS + s->n_in + b->index;
    case MSI_BUFFER_OUTPUT:
        return MSI_REGIONS + 2 * s->n_in + b->index;
    case MSI_BUFFER_GRAD:
        return MSI_REGIONS + 2 * s->n_in + s->n_storages + b->index;
    case MSI_BUFFER_BACKWARD:
        if (b->offset >= plan->saved_bytes) {
            *offset += b->offset - plan->saved_bytes;
            return MSI_REGION_ARENA;
        }
        *offset += b->offset;
        return MSI_REGION_SAVED;
    default:
        *offset += b->offset;
        return b->kind == MSI_BUFFER_SAVED ? MSI_REGION_SAVED : MSI_REGION_ARENA;
    }
}

void msi_graph_segment_link(const msi_graph_segment *s, msi_plan *plan)
{
    for (int32_t i = 0; i < plan->n_relocs; i++) {
        msi_reloc *r = &plan->relocs[i];

        if (r->buffer >= 0) {
            r->buffer = region_of(s, plan, &plan->buffers[r->buffer], &r->offset);
        }
    }
}

/* -- kernels ----------------------------------------------------------------------------------- */

static void relocate(const msi_plan *plan, const msi_entry *e, bases *b)
{
    for (int32_t i = e->reloc; i < e->reloc + e->n_relocs; i++) {
        const msi_reloc *r = &plan->relocs[i];
        void *p;

        if (MSI_LIKELY(r->buffer >= 0)) {
            p = b->at[r->buffer] + r->offset;
        } else if (r->buffer == -1 - MSI_FIELD_FAULT) {
            p = msi_device_fault(b->ctx, &b->fault);
        } else if (r->buffer == -1 - MSI_FIELD_STATUS) {
            p = msi_device_status(b->ctx, &b->failed);
        } else if (r->buffer == -1 - MSI_FIELD_DRAW) {
            memcpy(plan->bytes + r->at, &b->draws[r->offset], offsetof(msi_draw, active));
            continue;
        } else {
            p = b->ctx;
        }
        memcpy(plan->bytes + r->at, &p, sizeof(p));
    }
}

static ms_status run_entry(const msi_plan *plan, const msi_entry *e, bases *b)
{
    void *args = plan->bytes + e->args;
    msi_copy_args copy;

    switch (e->kind) {
    case MSI_ENTRY_KERNEL:
        if (MSI_LIKELY(b->ctx->device == NULL)) {
            msi_kernels()->fn[e->kernel][e->dtype](args);
            return MS_OK;
        }
        return msi_device_run(b->ctx->device, msi_kernel_name(e->kernel), e->kernel, e->dtype,
                              args);
    case MSI_ENTRY_PRODUCT:
        return msi_gemm(b->ctx, args);
    default:
        memcpy(&copy, args, sizeof(copy));
        return e->kind == MSI_ENTRY_COPY ? msi_mem_copy(b->ctx, copy.to, copy.from, copy.nbytes)
                                         : msi_mem_set(b->ctx, copy.to, e->kernel, copy.nbytes);
    }
}

static ms_status run_plan(const msi_plan *plan, bases *b)
{
    for (int32_t i = 0; i < plan->n_entries; i++) {
        const msi_entry *e = &plan->entries[i];

        relocate(plan, e, b);
        MS_TRY(run_entry(plan, e, b));
        if (MSI_UNLIKELY(e->faults) && b->ctx->device == NULL) {
            MS_TRY(b->failed);
            MS_TRY(msi_fault_report(&b->fault));
        }
    }
    return MS_OK;
}

/* -- runs -------------------------------------------------------------------------------------- */

static ms_status run_new(msi_run **out, msi_graph_segment *s)
{
    msi_run *r = s->free_runs;

    if (r != NULL) {
        s->free_runs = r->next;
        *out = r;
    } else {
        const int64_t n = s->n_in + s->n_storages;

        MS_TRY(msi_new_array(&r, 1, "run of a segment"));
        ms_status status = msi_new_array(&r->kept, n + 1, "what a segment keeps");

        if (status == MS_OK) {
            status = msi_new_array(&r->draws, s->n_draws + 1, "random masks");
        }
        if (status != MS_OK) {
            free(r->kept);
            free(r);
            return status;
        }
        *out = r;
    }
    r->s = s;
    s->program->refcount++;
    return MS_OK;
}

static void release_kept(msi_run *r)
{
    msi_storage_release(r->saved);
    r->saved = NULL;
    for (int32_t i = 0; i < r->s->n_in + r->s->n_storages; i++) {
        msi_storage_release(r->kept[i].view.storage);
        r->kept[i].view.storage = NULL;
    }
}

static void run_drop(void *run)
{
    msi_run *r = run;
    msi_graph_segment *s = r->s;

    release_kept(r);
    r->next = s->free_runs;
    s->free_runs = r;
    s->program->release(s->program);
}

void msi_runs_free(msi_graph_segment *s)
{
    while (s->free_runs != NULL) {
        msi_run *r = s->free_runs;

        s->free_runs = r->next;
        free(r->kept);
        free(r->draws);
        free(r);
    }
}

static void keep(msi_saved *saved, const msi_view *v)
{
    saved->view = *v;
    msi_storage_retain(v->storage);
    saved->version = v->storage->version;
}

/* -- forward ----------------------------------------------------------------------------------- */

typedef struct segment_attrs {
    msi_run *run;
} segment_attrs;

static ms_status segment_backward(msi_bwd *b);

static const msi_op segment_op = {
    .name = "compiled segment", .backward = segment_backward, .attrs_size = sizeof(segment_attrs)};

static ms_status check_input(msi_graph_segment *s, int32_t i, const ms_tensor *t)
{
    const msi_value *v = &s->program->values[s->in[i]];
    const size_t n = sizeof(int64_t) * (size_t)v->view.ndim;

    if (MSI_LIKELY(t->v.dtype == v->view.dtype && t->v.ndim == v->view.ndim &&
                   memcmp(t->v.shape, v->view.shape, n) == 0 &&
                   memcmp(t->v.stride, v->view.stride, n) == 0 &&
                   t->requires_grad == v->requires_grad)) {
        return MS_OK;
    }
    return MS_FAIL(MS_RUNTIME_ERROR,
                   "compiled segment %d: %s is %s of shape %s%s, expected %s of shape %s%s",
                   (int)s->number, msi_tensor_label(t), ms_dtype_name(t->v.dtype),
                   msi_shape_text(t->v.ndim, t->v.shape), t->requires_grad ? ", requires grad" : "",
                   ms_dtype_name(v->view.dtype), msi_shape_text(v->view.ndim, v->view.shape),
                   v->requires_grad ? ", requires grad" : "");
}

static ms_status find_inputs(msi_graph_segment *s, ms_tensor *const *in)
{
    for (int32_t i = 0; i < s->n_in; i++) {
        void *data;

        MS_TRY(check_input(s, i, in[i]));
        MS_TRY(msi_view_data(&in[i]->v, &data));
        if (s->writes[i]) {
            MS_TRY(msi_tensor_check_write(in[i], "a compiled program"));
        }
        *input_base(s, i) = data;
    }
    return MS_OK;
}

/* Memory of one forward. */
typedef struct forward {
    msi_storage **outputs; /* (n_storages), owned */
    msi_mem_block *arena;
    msi_storage *saved;
} forward;

static ms_status take_memory(msi_graph_segment *s, ms_context *ctx, forward *f)
{
    for (int32_t i = 0; i < s->n_storages; i++) {
        MS_TRY(msi_storage_new(&f->outputs[i], ctx, s->storage_bytes[i], MS_MEM_ACTIVATION));
        *storage_base(s, i) = f->outputs[i]->data;
    }
    if (s->forward.saved_bytes > 0) {
        MS_TRY(msi_storage_new(&f->saved, ctx, s->forward.saved_bytes, MS_MEM_ACTIVATION));
        s->bases[MSI_REGION_SAVED] = f->saved->data;
    }
    if (s->forward.arena_bytes > 0) {
        MS_TRY(msi_alloc(ctx, s->forward.arena_bytes, MS_MEM_ACTIVATION, &f->arena));
        s->bases[MSI_REGION_ARENA] = f->arena->data;
    }
    return MS_OK;
}

static void give_memory(const msi_graph_segment *s, forward *f)
{
    for (int32_t i = 0; i < s->n_storages; i++) {
        msi_storage_release(f->outputs[i]);
        f->outputs[i] = NULL;
    }
    msi_release(f->arena);
    msi_storage_release(f->saved);
}

static ms_status make_output(const msi_graph_segment *s, const forward *f, ms_tensor *const *in,
                             int32_t i, ms_tensor **out)
{
    msi_view v = s->view_of[i];

    if (s->storage_of[i] >= 0) {
        v.storage = f->outputs[s->storage_of[i]];
    } else {
        const msi_view *of = &in[-1 - s->storage_of[i]]->v;

        v.storage = of->storage;
        v.offset += of->offset;
    }
    return msi_tensor_new_internal(out, s->program->ctx, &v);
}

/* What rules will read, and the node that leads to the inputs. */
static ms_status record_node(msi_graph_segment *s, const forward *f, ms_tensor *const *in,
                             ms_tensor **out)
{
    segment_attrs attrs;
    msi_node *node;

    MS_TRY(run_new(&attrs.run, s));
    for (int32_t i = 0; i < s->n_in; i++) {
        if (s->keeps[i]) {
            keep(&attrs.run->kept[i], &in[i]->v);
        }
    }
    for (int32_t i = 0; i < s->n_storages; i++) {
        const msi_view whole = {.storage = f->outputs[i]};

        if (s->keeps[s->n_in + i]) {
            keep(&attrs.run->kept[s->n_in + i], &whole);
        }
    }
    memcpy(attrs.run->draws, s->draws, sizeof(*s->draws) * (size_t)s->n_draws);
    attrs.run->saved = f->saved != NULL ? msi_storage_retain(f->saved) : NULL;
    ms_status status = msi_node_record(&node, &segment_op, &attrs, in, s->n_in, s->n_out);

    if (status == MS_OK && node != NULL) {
        status = msi_node_own(node, attrs.run, run_drop);
    }
    if (status != MS_OK || node == NULL) {
        run_drop(attrs.run);
    }
    for (int32_t i = 0; i < s->n_out && status == MS_OK && node != NULL; i++) {
        if (s->grad_of[i]) {
            msi_node_output(node, i, out[i]);
        }
    }
    if (node != NULL) {
        msi_node_release(node);
    }
    return status;
}

static void find_draws(msi_graph_segment *s)
{
    const ms_program *p = s->program;

    for (int32_t i = s->first; i < s->first + s->n && s->n_draws > 0; i++) {
        const msi_recorded *r = &p->ops[i];

        if (r->draw >= 0) {
            s->draws[r->draw - s->first_draw] =
                msi_draw_of(&p->values[r->in[0]].view, p->ctx, msi_draw_in(r->op, r->attrs)->site,
                            p->draws[r->draw], true);
        }
    }
}

static ms_status run_forward(msi_graph_segment *s, const forward *f, ms_tensor *const *in,
                             ms_tensor **out)
{
    bases b = {.at = s->bases, .ctx = s->program->ctx, .draws = s->draws, .failed = MS_OK};

    find_draws(s);
    for (int32_t i = 0; i < s->n_in; i++) {
        in[i]->v.storage->version += s->writes[i]; /* kernels before one that fails have written */
    }
    MS_TRY(run_plan(&s->forward, &b));
    for (int32_t i = 0; i < s->n_out; i++) {
        MS_TRY(make_output(s, f, in, i, &out[i]));
    }
    return s->recorded ? record_node(s, f, in, out) : MS_OK;
}

ms_status msi_graph_segment_run(msi_graph_segment *s, ms_tensor **frame)
{
    ms_tensor **in = s->handles, **out = s->handles + s->n_in;
    forward f = {.outputs = s->outputs};

    for (int32_t i = 0; i < s->n_in; i++) {
        const msi_value *v = &s->program->values[s->in[i]];

        in[i] = v->kind == MSI_VALUE_OUTER ? v->handle : frame[s->in[i]];
        MS_ASSERT(in[i] != NULL);
    }
    memset(out, 0, sizeof(*out) * (size_t)s->n_out);
    MS_TRY(find_inputs(s, in));
    ms_status status = take_memory(s, s->program->ctx, &f);

    if (status == MS_OK) {
        status = run_forward(s, &f, in, out);
    }
    give_memory(s, &f);
    for (int32_t i = 0; i < s->n_out; i++) {
        if (status == MS_OK) {
            ms_tensor_free(frame[s->out[i]]);
            frame[s->out[i]] = out[i];
        } else {
            ms_tensor_free(out[i]);
        }
    }
    return status;
}

/* -- backward ---------------------------------------------------------------------------------- */

/* True if a plan's gradients come and go alike; where they are added may differ. */
static bool same_gradients(const msi_graph_segment *s, const msi_backward_key *a,
                           const msi_backward_key *b)
{
    return a->retains == b->retains && memcmp(a->present, b->present, (size_t)s->n_out) == 0 &&
           memcmp(a->needed, b->needed, (size_t)s->n_in) == 0 &&
           memcmp(a->stride, b->stride, sizeof(*a->stride) * (size_t)s->n_out) == 0;
}

static bool same_destinations(const msi_graph_segment *s, const msi_backward_key *a,
                              const msi_backward_key *b)
{
    return memcmp(a->add, b->add, (size_t)s->n_in) == 0 &&
           memcmp(a->dtype, b->dtype, (size_t)s->n_in) == 0;
}

/* The plan for `key`, exactly or but for the destinations; NULL: not lowered yet. */
static const msi_backward_plan *find(const msi_graph_segment *s, const msi_backward_key *key,
                                     bool exact)
{
    for (const msi_backward_plan *b = s->backward; b != NULL; b = b->next) {
        if (same_gradients(s, &b->key, key) && (!exact || same_destinations(s, &b->key, key))) {
            return b;
        }
    }
    return NULL;
}

static ms_status plan_for(msi_graph_segment *s, const msi_backward_key *key, bool exact,
                          const msi_backward_plan **out)
{
    msi_backward_plan *made;

    *out = find(s, key, exact);
    if (MSI_LIKELY(*out != NULL)) {
        return MS_OK;
    }
    MS_TRY(msi_lower_backward(s, key, &made));
    msi_graph_segment_link(s, &made->plan);
    *out = made;
    return MS_OK;
}

static void clear(const msi_graph_segment *s, msi_backward_key *key)
{
    memset(key->add, 0, (size_t)s->n_in);
    memset(key->stride, 0, sizeof(*key->stride) * (size_t)s->n_out);
}

static ms_status find_gradients(const msi_bwd *b, msi_graph_segment *s, msi_backward_key *key)
{
    const msi_node *node = msi_bwd_node(b);

    clear(s, key);
    for (int32_t i = 0; i < s->n_out; i++) {
        const msi_view *g = msi_bwd_grad(b, i);
        void *data = NULL;

        key->present[i] = g != NULL;
        if (g != NULL) {
            memcpy(key->stride[i], g->stride, sizeof(int64_t) * (size_t)g->ndim);
            MS_TRY(msi_view_data(g, &data));
        }
        *grad_base(s, i) = data;
    }
    for (int32_t i = 0; i < s->n_in; i++) {
        key->needed[i] = msi_edge_needs(&node->edge[i]);
        key->dtype[i] = (int8_t)s->program->values[s->in[i]].view.dtype;
    }
    return MS_OK;
}

static ms_status find_destinations(msi_bwd *b, msi_graph_segment *s, const msi_backward_key *key,
                                   const bool *reached)
{
    for (int32_t i = 0; i < s->n_in; i++) {
        msi_view dst;
        void *data;

        if (!reached[i] || !key->needed[i]) {
            continue;
        }
        MS_TRY(msi_bwd_dest(b, i, &dst, &key->add[i]));
        MS_TRY(msi_view_data(&dst, &data));
        key->dtype[i] = dst.dtype;
        *dest_base(s, i) = data;
    }
    return MS_OK;
}

static ms_status find_kept(msi_graph_segment *s, const msi_run *r)
{
    for (int32_t i = 0; i < s->n_in + s->n_storages; i++) {
        const msi_saved *saved = &r->kept[i];
        void *data;

        if (saved->view.storage == NULL) {
            continue;
        }
        MS_TRY(msi_saved_check(saved, i));
        MS_TRY(msi_view_data(&saved->view, &data));
        *(i < s->n_in ? input_base(s, i) : storage_base(s, i - s->n_in)) = data;
    }
    s->bases[MSI_REGION_SAVED] = r->saved != NULL ? r->saved->data : NULL;
    return MS_OK;
}

static ms_status run_backward(msi_graph_segment *s, const msi_plan *plan, const msi_run *r)
{
    ms_context *ctx = s->program->ctx;
    bases b = {.at = s->bases, .ctx = ctx, .draws = r->draws, .failed = MS_OK};
    msi_mem_block *arena = NULL;

    if (plan->arena_bytes > 0) {
        MS_TRY(msi_alloc(ctx, plan->arena_bytes, MS_MEM_ACTIVATION, &arena));
        s->bases[MSI_REGION_ARENA] = arena->data;
    }
    const ms_status status = run_plan(plan, &b);

    msi_release(arena);
    return status;
}

static ms_status segment_backward(msi_bwd *b)
{
    msi_run *r = ((const segment_attrs *)msi_bwd_attrs(b))->run;
    msi_graph_segment *s = r->s;
    msi_backward_key *key = &s->key;
    const msi_backward_plan *plan;

    key->retains = msi_bwd_node(b)->tape->retains;
    MS_TRY(find_gradients(b, s, key));
    MS_TRY(plan_for(s, key, false, &plan));
    MS_TRY(find_destinations(b, s, key, plan->reached));
    MS_TRY(plan_for(s, key, true, &plan));
    MS_TRY(find_kept(s, r));
    MS_TRY(run_backward(s, &plan->plan, r));
    if (!key->retains) {
        release_kept(r);
    }
    return MS_OK;
}
