/* Lowering: a segment's operators, and backward over them, run in a context that executes nothing.
 *
 * The context's tape records as the program's did, so the kernels are those of eager execution, in
 * its order. Inputs are leaves whose gradients go to destinations outside (as a unit's do): the
 * first contribution stores or adds as the destination demands, later ones add. Lowering is
 * deterministic: the buffers of a forward are the same in every lowering of it.
 *
 * A region is a checkpoint of that tape: its operators are dropped when they have run, and run
 * again when backward reaches them. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* A region whose backward has not run. */
typedef struct checkpoint {
    struct checkpoint *next, **link; /* in the pass's list */
    struct pass *l;
    int32_t region;
    int32_t *given;     /* (n_given) values that it computes again */
    int32_t *in;        /* (n_in) values from outside it */
    ms_tensor **handle; /* (n_in), retained; NULL: used */
    int64_t *version;   /* (n_in) */
    int32_t n_given, n_in;
} checkpoint;

/* One lowering of a segment. */
typedef struct pass {
    const msi_graph_segment *s;
    const ms_program *p;
    ms_context *ctx;
    msi_plan *plan;
    ms_tensor **handle; /* (n_values), owned */
    int32_t *last_use;  /* (n_values) operator behind which a value is dropped; -1: none */
    checkpoint *checkpoints;
    int32_t n_regions;    /* that run now, one in another */
    msi_grad_sink *sinks; /* (n_in) */
    const msi_backward_key *key;
    bool *reached;  /* (n_in) */
    msi_view *dest; /* (n_in); storage owned */
} pass;

static int32_t buffer_of(const pass *l, const msi_view *v)
{
    return msi_plan_buffer_at(l->plan, v->storage->data);
}

/* Bytes from the first to the last element. */
static int64_t extent_of(const msi_view *v)
{
    int64_t last = 0;

    for (int32_t d = 0; d < v->ndim; d++) {
        last += v->stride[d] * (v->shape[d] - 1);
    }
    return msi_view_numel(v) > 0 ? (last + 1) * ms_dtype_size(v->dtype) : 0;
}

/* Memory for `v` that comes from outside: a buffer of this kind. The caller owns `v->storage`. */
static ms_status new_buffer(const pass *l, msi_view *v, int32_t kind, int32_t index)
{
    v->offset = 0;
    MS_TRY(msi_storage_new(&v->storage, l->ctx, extent_of(v), MS_MEM_ACTIVATION));
    const ms_status status = msi_lowering_status(MS_OK);

    if (status != MS_OK) { /* the plan has no such buffer */
        msi_storage_release(v->storage);
        v->storage = NULL;
        return status;
    }
    msi_buffer *b = &l->plan->buffers[buffer_of(l, v)];

    b->kind = kind;
    b->index = index;
    return MS_OK;
}

/* -- destinations of gradients ----------------------------------------------------------------- */

static ms_status expect(void *user, int32_t index)
{
    (void)user;
    (void)index;
    return MS_OK;
}

static ms_status destination(void *user, int32_t index, msi_view *dst, bool *add)
{
    pass *l = user;
    const msi_view *in = &l->p->values[l->s->in[index]].view;
    msi_view *d = &l->dest[index];

    *add = l->reached[index] || l->key->add[index];
    if (!l->reached[index]) {
        msi_view_set_contiguous(d, l->key->dtype[index], in->ndim, in->shape);
        MS_TRY(
            new_buffer(l, d, l->key->needed[index] ? MSI_BUFFER_DEST : MSI_BUFFER_BACKWARD, index));
        l->reached[index] = true;
    }
    *dst = *d;
    return MS_OK;
}

static ms_status make_input(pass *l, int32_t i)
{
    const int32_t value = l->s->in[i];
    const msi_value *v = &l->p->values[value];
    msi_view view = v->view;

    MS_TRY(new_buffer(l, &view, MSI_BUFFER_INPUT, i));
    ms_status status = msi_tensor_new_internal(&l->handle[value], l->ctx, &view);

    msi_storage_release(view.storage);
    MS_TRY(status);
    l->handle[value]->requires_grad = v->requires_grad;
    l->sinks[i] = (msi_grad_sink){
        .expect = expect, .dest = destination, .done = expect, .user = l, .index = i};
    l->handle[value]->sink = &l->sinks[i];
    return MS_OK;
}

/* -- forward ----------------------------------------------------------------------------------- */

/* Attributes with a mark for the call of a random mask, which a run replaces. */
static const void *attrs_of(const pass *l, const msi_recorded *r, void *room)
{
    if (r->draw < 0) {
        return r->attrs;
    }
    memcpy(room, r->attrs, (size_t)r->op->attrs_size);
    msi_draw_in(r->op, room)->call = MSI_FIRST_CALL + r->draw - l->s->first_draw;
    return room;
}

static ms_status run_op(pass *l, const msi_recorded *r)
{
    double room[32];
    const void *attrs = attrs_of(l, r, room);
    ms_tensor *in[MSI_OP_MAX_IN], *out[MSI_OP_MAX_OUT] = {NULL};
    msi_tape *tape = msi_tape_of(l->ctx);

    MS_ASSERT(r->n_out <= MSI_OP_MAX_OUT &&
              (r->draw < 0 || r->op->attrs_size <= (int32_t)sizeof(room)));
    for (int32_t i = 0; i < r->n_in; i++) {
        in[i] = r->in[i] >= 0 ? l->handle[r->in[i]] : NULL;
    }
    if (tape == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    tape->recording = r->grads;
    if (r->into) {
        for (int32_t i = 0; i < r->n_out; i++) {
            out[i] = l->handle[r->out[i]];
        }
        MS_TRY(msi_op_run_into(l->ctx, r->op, attrs, in, r->n_in, out, r->n_out));
        for (int32_t i = 0; i < r->n_out; i++) { /* a rule that saved it before is an error */
            out[i]->v.storage->version++;
        }
        return MS_OK;
    }
    MS_TRY(msi_op_run(r->op, attrs, in, r->n_in, out, r->n_out));
    for (int32_t i = 0; i < r->n_out; i++) {
        l->handle[r->out[i]] = out[i];
    }
    return MS_OK;
}

static void drop(pass *l, int32_t value)
{
    ms_tensor_free(l->handle[value]);
    l->handle[value] = NULL;
}

/* Free the values that operator `i` uses last, as early as their memory can be reused. */
static void drop_used(pass *l, int32_t i)
{
    const msi_recorded *r = &l->p->ops[i];

    for (int32_t k = 0; k < r->n_in + r->n_out; k++) {
        const int32_t value = r->in[k];

        if (value >= 0 && l->last_use[value] == i && l->handle[value] != NULL) {
            drop(l, value);
        }
    }
}

static bool is_made_here(const pass *l, int32_t value)
{
    return l->p->values[value].kind == MSI_VALUE_RESULT &&
           l->p->values[value].segment == l->s->number;
}

static void find_last_uses(pass *l)
{
    for (int32_t v = 0; v < l->p->n_values; v++) {
        l->last_use[v] = -1;
    }
    for (int32_t i = l->s->first; i < l->s->first + l->s->n; i++) {
        const msi_recorded *r = &l->p->ops[i];

        for (int32_t k = 0; k < r->n_in + r->n_out; k++) {
            const int32_t value = r->in[k];

            if (value >= 0 && is_made_here(l, value) && l->p->values[value].out_of < 0) {
                l->last_use[value] = i;
            }
        }
    }
}

static ms_status run_region(pass *l, int32_t region);

/* Run operators [first, end), of which regions from `region` on may be parts. */
static ms_status run_ops(pass *l, int32_t first, int32_t end, int32_t region)
{
    for (int32_t i = first; i < end;) {
        const msi_region *r = &l->p->regions[region];

        if (region < l->p->n_regions && (r->first < i || r->n == 0)) {
            region++;
        } else if (region < l->p->n_regions && r->first == i) {
            l->n_regions++;
            MS_TRY(run_region(l, region));
            l->n_regions--;
            i += r->n;
        } else {
            l->plan->op = i;
            l->plan->in_region = l->n_regions > 0;
            const ms_status status = msi_lowering_status(run_op(l, &l->p->ops[i]));

            if (status != MS_OK) {
                return msi_fail_prefix(status, "'%s': ", l->p->ops[i].op->name);
            }
            drop_used(l, i++);
        }
    }
    return MS_OK;
}

static ms_status run_forward(pass *l)
{
    find_last_uses(l);
    for (int32_t i = 0; i < l->s->n_in; i++) {
        MS_TRY(make_input(l, i));
    }
    return run_ops(l, l->s->first, l->s->first + l->s->n, 0);
}

/* -- regions ----------------------------------------------------------------------------------- */

static void forget_inputs(checkpoint *c)
{
    for (int32_t i = 0; i < c->n_in; i++) {
        ms_tensor_free(c->handle[i]);
        c->handle[i] = NULL;
    }
}

static void checkpoint_drop(void *user)
{
    checkpoint *c = user;

    *c->link = c->next;
    if (c->next != NULL) {
        c->next->link = c->link;
    }
    forget_inputs(c);
    free(c->given);
    free(c->in);
    free(c->handle);
    free(c->version);
    free(c);
}

/* Retain the values that the region uses and did not make, each once. */
static void retain_inputs(checkpoint *c)
{
    const msi_region *region = &c->l->p->regions[c->region];

    for (int32_t i = region->first; i < region->first + region->n; i++) {
        const msi_recorded *r = &c->l->p->ops[i];

        for (int32_t k = 0; k < r->n_in; k++) {
            ms_tensor *t = r->in[k] >= 0 ? c->l->handle[r->in[k]] : NULL;
            int32_t at = 0;

            while (at < c->n_in && c->in[at] != r->in[k]) {
                at++;
            }
            if (t != NULL && at == c->n_in) {
                c->in[at] = r->in[k];
                c->handle[at] = ms_tensor_retain(t);
                c->version[at] = t->v.storage->version;
                c->n_in++;
            }
        }
    }
}

static ms_status checkpoint_new(checkpoint **out, pass *l, int32_t region)
{
    const msi_region *r = &l->p->regions[region];
    checkpoint *c;
    int32_t most = 1;

    for (int32_t i = r->first; i < r->first + r->n; i++) {
        most += l->p->ops[i].n_in;
    }
    MS_TRY(msi_new_array(&c, 1, "checkpoint"));
    *c = (checkpoint){.next = l->checkpoints, .link = &l->checkpoints, .l = l, .region = region};
    if (c->next != NULL) {
        c->next->link = &c->next;
    }
    l->checkpoints = c;
    ms_status status = msi_new_array(&c->given, r->n_result + 1, "results of a checkpoint");

    status = status == MS_OK ? msi_new_array(&c->in, most, "inputs") : status;
    status = status == MS_OK ? msi_new_array(&c->handle, most, "inputs") : status;
    status = status == MS_OK ? msi_new_array(&c->version, most, "inputs") : status;
    if (status != MS_OK) {
        checkpoint_drop(c);
        return status;
    }
    retain_inputs(c);
    *out = c;
    return MS_OK;
}

static ms_status check_versions(const checkpoint *c)
{
    for (int32_t i = 0; i < c->n_in; i++) {
        if (c->handle[i]->v.storage->version != c->version[i]) {
            return MS_FAIL(MS_RUNTIME_ERROR,
                           "checkpoint: an input of shape %s was modified by an in-place operation "
                           "after the forward; backward needs it to run the forward again",
                           msi_shape_text(c->handle[i]->v.ndim, c->handle[i]->v.shape));
        }
    }
    return MS_OK;
}

/* Run the region over handles of its own, and go on with what that recorded. */
static ms_status run_again(checkpoint *c, ms_tensor *const *grads)
{
    pass *l = c->l;
    const msi_region *r = &l->p->regions[c->region];
    ms_tensor *results[MS_CUSTOM_MAX];

    for (int32_t i = 0; i < c->n_in; i++) {
        l->handle[c->in[i]] = ms_tensor_retain(c->handle[i]);
    }
    l->n_regions++;
    MS_TRY(run_ops(l, r->first, r->first + r->n, c->region + 1));
    l->n_regions--;
    for (int32_t i = 0; i < c->n_given; i++) {
        results[i] = l->handle[c->given[i]];
    }
    return ms_backward_extend(results, grads, c->n_given);
}

static void free_handles(const pass *l, ms_tensor **handle)
{
    for (int32_t i = 0; handle != NULL && i < l->p->n_values; i++) {
        ms_tensor_free(handle[i]);
    }
    free(handle);
}

static ms_status recompute(void *user, ms_tensor *const *grads, int32_t n)
{
    checkpoint *c = user;
    pass *l = c->l;
    ms_tensor **before = l->handle;
    msi_tape *tape = msi_tape_of(l->ctx);
    const bool recording = tape->recording;

    MS_ASSERT(n == c->n_given);
    MS_TRY(check_versions(c));
    MS_TRY(msi_new_array(&l->handle, l->p->n_values, "values"));
    const ms_status status = run_again(c, grads);

    free_handles(l, l->handle);
    l->handle = before;
    tape->recording = recording;
    if (!tape->retains) {
        forget_inputs(c);
    }
    return status;
}

/* Replace the graph of the region's results by a node that runs it again. */
static ms_status replace(pass *l, checkpoint *c, uint64_t since)
{
    const msi_region *r = &l->p->regions[c->region];
    ms_tensor *results[MS_CUSTOM_MAX], *out[MS_CUSTOM_MAX];

    for (int32_t i = 0; i < r->n_result; i++) {
        ms_tensor *t = l->handle[r->result[i]];

        if (t != NULL && t->requires_grad) { /* it is used behind the region */
            results[c->n_given] = t;
            c->given[c->n_given++] = r->result[i];
        }
    }
    if (c->n_given == 0) {
        checkpoint_drop(c);
        return MS_OK;
    }
    const int32_t n = c->n_given;

    MS_TRY(ms_checkpoint_graph(out, results, n, since, recompute, c, checkpoint_drop));
    for (int32_t i = 0; i < n; i++) {
        const int32_t value = c->given[i];

        drop(l, value);
        l->handle[value] = out[i];
    }
    return MS_OK;
}

static ms_status run_region(pass *l, int32_t region)
{
    const msi_region *r = &l->p->regions[region];
    const uint64_t since = msi_autograd_now(l->ctx);
    checkpoint *c;

    if (r->n_result == 0) {
        return run_ops(l, r->first, r->first + r->n, region + 1);
    }
    MS_TRY(checkpoint_new(&c, l, region));
    const ms_status status = run_ops(l, r->first, r->first + r->n, region + 1);

    if (status != MS_OK) {
        checkpoint_drop(c);
        return status;
    }
    return replace(l, c, since);
}

/* -- a lowering -------------------------------------------------------------------------------- */

static ms_status pass_init(pass *l, const msi_graph_segment *s, msi_plan *plan)
{
    *l = (pass){.s = s, .p = s->program, .plan = plan};
    MS_TRY(msi_new_array(&l->handle, s->program->n_values, "values"));
    MS_TRY(msi_new_array(&l->last_use, s->program->n_values, "values"));
    MS_TRY(msi_new_array(&l->sinks, s->n_in + 1, "inputs"));
    MS_TRY(msi_new_array(&l->reached, s->n_in + 1, "inputs"));
    MS_TRY(msi_new_array(&l->dest, s->n_in + 1, "inputs"));
    return msi_lowering_begin(s->program->ctx, &l->ctx, plan);
}

/* The plan keeps its buffers; handles and the tape's nodes go. */
static void pass_dispose(pass *l)
{
    if (l->ctx != NULL) {
        free_handles(l, l->handle);
        for (int32_t i = 0; i < l->s->n_in; i++) {
            msi_storage_release(l->dest[i].storage);
        }
        msi_lowering_end();
    } else {
        free(l->handle);
    }
    free(l->last_use);
    free(l->sinks);
    free(l->reached);
    free(l->dest);
}

/* -- what leaves a segment --------------------------------------------------------------------- */

/* Number of the storage in this buffer: an input's, an earlier output's, or a new one. */
static int32_t storage_of(const pass *l, msi_graph_segment *s, int32_t buffer)
{
    msi_buffer *b = &l->plan->buffers[buffer];

    if (b->kind == MSI_BUFFER_INPUT) {
        return -1 - b->index;
    }
    if (b->kind != MSI_BUFFER_OUTPUT) {
        b->kind = MSI_BUFFER_OUTPUT;
        b->index = s->n_storages;
        s->storage_bytes[s->n_storages++] = b->nbytes;
    }
    return b->index;
}

static ms_status describe_outputs(const pass *l, msi_graph_segment *s)
{
    for (int32_t i = 0; i < s->n_out; i++) {
        const ms_tensor *t = l->handle[s->out[i]];
        const int32_t buffer = buffer_of(l, &t->v);

        MS_ASSERT(buffer >= 0);
        s->storage_of[i] = storage_of(l, s, buffer);
        s->view_of[i] = t->v;
        s->view_of[i].storage = NULL;
        s->grad_of[i] = t->requires_grad;
        s->recorded |= t->requires_grad;
        if (t->requires_grad && (t->grad_fn == NULL || t->grad_fn->op == NULL)) {
            return MS_FAIL(MS_RUNTIME_ERROR, "a result is a leaf");
        }
    }
    return MS_OK;
}

/* Blocks that are live behind the last operator belong to outputs, or were saved for backward. */
static void classify(msi_plan *plan)
{
    for (int32_t i = 0; i < plan->n_buffers; i++) {
        msi_buffer *b = &plan->buffers[i];

        if (b->kind == MSI_BUFFER_TEMP && b->died == INT32_MAX) {
            b->kind = MSI_BUFFER_SAVED;
            b->born = 0;
        }
    }
}

static void mark_kept(const pass *l, msi_graph_segment *s, const msi_view *v)
{
    const int32_t buffer = v->storage != NULL ? buffer_of(l, v) : -1;
    const msi_buffer *b = buffer >= 0 ? &l->plan->buffers[buffer] : NULL;

    if (b != NULL && b->kind == MSI_BUFFER_INPUT) {
        s->keeps[b->index] = true;
    } else if (b != NULL && b->kind == MSI_BUFFER_OUTPUT) {
        s->keeps[s->n_in + b->index] = true;
    }
}

/* Mark what the rules of a node read of inputs and outputs. */
static void find_kept(const pass *l, msi_graph_segment *s, const msi_node *node)
{
    for (int32_t i = 0; i < node->n_saved; i++) {
        mark_kept(l, s, &node->saved[i].view);
    }
}

static ms_status visit(msi_list *to_visit, msi_tape *tape, msi_node *node)
{
    if (node == NULL || node->op == NULL || node->mark == tape->mark) {
        return MS_OK;
    }
    node->mark = tape->mark;
    return msi_list_push(to_visit, node);
}

static ms_status find_all_kept(const pass *l, msi_graph_segment *s)
{
    msi_tape *tape = msi_tape_of(l->ctx);
    msi_list to_visit = {.item = NULL};
    ms_status status = tape != NULL ? MS_OK : MS_OUT_OF_MEMORY;

    for (const checkpoint *c = l->checkpoints; c != NULL; c = c->next) {
        for (int32_t i = 0; i < c->n_in; i++) {
            mark_kept(l, s, &c->handle[i]->v);
        }
    }
    for (int32_t i = 0; i < s->n_out && status == MS_OK; i++) {
        tape->mark += i == 0;
        status = visit(&to_visit, tape, l->handle[s->out[i]]->grad_fn);
    }
    while (to_visit.n > 0 && status == MS_OK) {
        const msi_node *node = to_visit.item[--to_visit.n];

        find_kept(l, s, node);
        for (int32_t i = 0; i < node->n_in && status == MS_OK; i++) {
            status = visit(&to_visit, tape, node->edge[i].node);
        }
    }
    msi_list_free(&to_visit);
    return status;
}

ms_status msi_lower_forward(msi_graph_segment *s)
{
    pass l;
    ms_status status = pass_init(&l, s, &s->forward);

    if (status == MS_OK) {
        status = run_forward(&l);
    }
    if (status == MS_OK) {
        status = describe_outputs(&l, s);
    }
    if (status == MS_OK) {
        status = find_all_kept(&l, s);
        s->forward.unplanned_bytes = msi_plan_live(l.plan, MSI_BUFFER_TEMP, -1);
        classify(l.plan);
        status = s->program->level >= MS_PROGRAM_PARTITION ? msi_partition_forward(s) : MS_OK;
    }
    pass_dispose(&l);
    if (status == MS_OK) {
        status = msi_plan_place(&s->forward, MSI_BUFFER_SAVED, 0, &s->forward.saved_bytes);
    }
    return status == MS_OK
               ? msi_plan_place(&s->forward, MSI_BUFFER_TEMP, 0, &s->forward.arena_bytes)
               : status;
}

/* -- backward ---------------------------------------------------------------------------------- */

/* A gradient that comes to output `i`. */
static ms_status make_gradient(pass *l, int32_t i, msi_root *root)
{
    ms_tensor *t = l->handle[l->s->out[i]];
    msi_view v = t->v;

    memcpy(v.stride, l->key->stride[i], sizeof(v.stride));
    MS_TRY(new_buffer(l, &v, MSI_BUFFER_GRAD, i));
    *root = (msi_root){.tensor = t, .node = t->grad_fn, .out = t->out_index, .by_reference = true};
    ms_status status = msi_tensor_new_internal(&root->grad, l->ctx, &v);

    if (status != MS_OK) {
        msi_storage_release(v.storage);
    }
    return status; /* the storage has two owners, so no rule writes to it */
}

static ms_status run_backward(pass *l)
{
    msi_tape *tape = msi_tape_of(l->ctx);
    msi_root *roots;
    int32_t n = 0;

    MS_TRY(msi_new_array(&roots, l->s->n_out + 1, "outputs"));
    ms_status status = MS_OK;

    for (int32_t i = 0; i < l->s->n_out && status == MS_OK; i++) {
        if (l->key->present[i]) {
            status = make_gradient(l, i, &roots[n]);
            n += status == MS_OK;
        }
    }
    if (status == MS_OK) {
        tape->retains = l->key->retains;
        status = msi_backward_run(tape, roots, n);
        tape->retains = false;
    }
    for (int32_t i = 0; i < n; i++) {
        msi_storage *storage = roots[i].grad->v.storage;

        ms_tensor_free(roots[i].grad);
        msi_storage_release(storage);
    }
    free(roots);
    return msi_lowering_status(status);
}

ms_status msi_key_new(msi_backward_key *key, const msi_graph_segment *s)
{
    MS_TRY(msi_new_array(&key->present, s->n_out + 1, "outputs"));
    MS_TRY(msi_new_array(&key->needed, s->n_in + 1, "inputs"));
    MS_TRY(msi_new_array(&key->add, s->n_in + 1, "inputs"));
    MS_TRY(msi_new_array(&key->dtype, s->n_in + 1, "inputs"));
    return msi_new_array(&key->stride, s->n_out + 1, "outputs");
}

void msi_key_free(msi_backward_key *key)
{
    free(key->present);
    free(key->needed);
    free(key->add);
    free(key->dtype);
    free(key->stride);
}

static ms_status copy_key(msi_backward_plan *b, const msi_graph_segment *s,
                          const msi_backward_key *key)
{
    MS_TRY(msi_key_new(&b->key, s));
    MS_TRY(msi_new_array(&b->reached, s->n_in + 1, "inputs"));
    b->key.retains = key->retains;
    memcpy(b->key.present, key->present, (size_t)s->n_out);
    memcpy(b->key.needed, key->needed, (size_t)s->n_in);
    memcpy(b->key.add, key->add, (size_t)s->n_in);
    memcpy(b->key.dtype, key->dtype, (size_t)s->n_in);
    memcpy(b->key.stride, key->stride, sizeof(*key->stride) * (size_t)s->n_out);
    return MS_OK;
}

/* Buffers of the forward are where its plan put them; temporary ones of it are gone. */
static ms_status take_forward(msi_plan *plan, const msi_plan *forward)
{
    MS_ASSERT(plan->n_buffers >= forward->n_buffers);
    for (int32_t i = 0; i < forward->n_buffers; i++) {
        msi_buffer *b = &plan->buffers[i];
        const msi_buffer *f = &forward->buffers[i];

        MS_ASSERT(b->nbytes == f->nbytes);
        b->kind = f->kind;
        b->index = f->index;
        b->maker = f->maker;
        b->offset = f->offset;
    }
    return MS_OK;
}

static ms_status lower_backward(msi_graph_segment *s, msi_backward_plan *b)
{
    pass l;
    ms_status status = pass_init(&l, s, &b->plan);
    int32_t n_forward = 0, n_buffers = 0;

    l.key = &b->key;
    if (status == MS_OK) {
        status = run_forward(&l);
        n_forward = b->plan.n_entries;
        n_buffers = b->plan.n_buffers;
    }
    if (status == MS_OK) {
        b->plan.op = -1;
        status = run_backward(&l);
    }
    for (int32_t i = n_buffers; i < b->plan.n_buffers; i++) {
        if (b->plan.buffers[i].kind == MSI_BUFFER_TEMP) {
            b->plan.buffers[i].kind = MSI_BUFFER_BACKWARD;
        }
    }
    if (l.reached != NULL) {
        memcpy(b->reached, l.reached, (size_t)s->n_in);
    }
    pass_dispose(&l);
    MS_TRY(status);
    MS_TRY(take_forward(&b->plan, &s->forward));
    MS_TRY(msi_partition_backward(&b->plan, n_forward, s->forward.n_buffers));
    b->plan.saved_bytes = s->forward.saved_bytes;
    b->plan.unplanned_bytes = msi_plan_live(&b->plan, MSI_BUFFER_SAVED, MSI_BUFFER_BACKWARD);
    int64_t end;

    MS_TRY(msi_plan_place(&b->plan, MSI_BUFFER_BACKWARD, b->plan.saved_bytes, &end));
    b->plan.arena_bytes = end - b->plan.saved_bytes;
    return MS_OK;
}

static void backward_free(msi_backward_plan *b)
{
    msi_key_free(&b->key);
    free(b->reached);
    msi_plan_free(&b->plan);
    free(b);
}

ms_status msi_lower_backward(msi_graph_segment *s, const msi_backward_key *key,
                             msi_backward_plan **out)
{
    msi_backward_plan *b;

    MS_TRY(msi_new_array(&b, 1, "plan of a backward"));
    ms_status status = copy_key(b, s, key);

    if (status == MS_OK) {
        status = lower_backward(s, b);
    }
    if (status != MS_OK) {
        backward_free(b);
        return status;
    }
    b->next = s->backward;
    s->backward = b;
    *out = b;
    return MS_OK;
}

void msi_graph_segment_free(msi_graph_segment *s)
{
    if (s == NULL) {
        return;
    }
    while (s->backward != NULL) {
        msi_backward_plan *b = s->backward;

        s->backward = b->next;
        backward_free(b);
    }
    msi_key_free(&s->key);
    msi_plan_free(&s->forward);
    free(s->bases);
    free(s->handles);
    free(s->outputs);
    free(s->keeps);
    free(s->draws);
    free(s->in);
    free(s->writes);
    free(s->drops);
    free(s->out);
    free(s->storage_of);
    free(s->view_of);
    free(s->grad_of);
    free(s->storage_bytes);
    free(s);
}
