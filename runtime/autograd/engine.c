/* Backward: nodes run once each, in descending order of creation, with complete gradients.
 *
 * Operands' nodes are older than their users, so this order is topological, and contributions to a
 * gradient always add in reverse program order. walk.c runs first. */
#include "tape.h"

#include <stdlib.h>

/* -- the queue: a heap, the youngest node on top ----------------------------------------------- */

static msi_node *at(const msi_list *heap, int32_t i)
{
    return heap->item[i];
}

static ms_status enqueue(msi_tape *tape, msi_node *node)
{
    msi_list *heap = &tape->queue;

    if (node->queued) {
        return MS_OK;
    }
    MS_TRY(msi_list_push(heap, node));
    msi_node_retain(node);
    node->queued = true;
    int32_t i = heap->n - 1;

    for (; i > 0 && at(heap, (i - 1) / 2)->sequence < node->sequence; i = (i - 1) / 2) {
        heap->item[i] = heap->item[(i - 1) / 2];
    }
    heap->item[i] = node;
    return MS_OK;
}

/* The caller gets the queue's reference. */
static msi_node *dequeue(msi_tape *tape)
{
    msi_list *heap = &tape->queue;
    msi_node *top = heap->item[0], *last = heap->item[--heap->n];
    int32_t i = 0;

    for (int32_t child = 1; child < heap->n; child = 2 * i + 1) {
        if (child + 1 < heap->n && at(heap, child)->sequence < at(heap, child + 1)->sequence) {
            child++;
        }
        if (at(heap, child)->sequence < last->sequence) {
            break;
        }
        heap->item[i] = heap->item[child];
        i = child;
    }
    heap->item[i] = last;
    top->queued = false;
    return top;
}

/* -- running ----------------------------------------------------------------------------------- */

/* Each result has its own memory, writable by its owner. */
static ms_status capture(msi_tape *tape, const msi_view *v, ms_tensor **grad)
{
    const bool whole = msi_storage_is_private(v->storage) && msi_view_contiguous(v) &&
                       v->storage->kind == MS_STORAGE_OWNED;
    msi_view own = *v;

    if (whole) {
        return msi_tensor_new(grad, tape->ctx, &own);
    }
    MS_TRY(msi_view_like(&own, tape->ctx, v, v->dtype, MS_MEM_ACTIVATION, true));
    ms_status status = msi_tensor_new(grad, tape->ctx, &own);

    msi_storage_release(own.storage);
    return status;
}

/* The gradients of the node's outputs are complete: return the requested ones. */
static ms_status capture_all(msi_node *node)
{
    msi_tape *tape = node->tape;

    for (int32_t i = 0; i < tape->n_captures; i++) {
        msi_capture *c = &tape->captures[i];

        if (c->node == node && node->out[c->out].grad != NULL) {
            MS_TRY(capture(tape, &node->out[c->out].grad->view, &c->grad));
        }
    }
    return MS_OK;
}

/* All contributions to this leaf are in. */
static ms_status finish_leaf(msi_node *node)
{
    ms_tensor *leaf = node->leaf;

    if (node->gathers && node->out[0].grad != NULL) {
        MS_TRY(msi_hooks_run_grad(&leaf->hooks, 0, &node->out[0], node->tape));
        if (node->captured) {
            return capture_all(node);
        }
        MS_TRY(msi_grad_deliver(node));
    }
    if (leaf->sink != NULL) {
        return leaf->sink->done(leaf->sink->user, leaf->sink->index);
    }
    return node->reached ? msi_hooks_run_accumulate(leaf) : MS_OK;
}

static ms_status settle(msi_node *target)
{
    if (target->op != NULL) {
        return enqueue(target->tape, target);
    }
    return --target->pending == 0 ? finish_leaf(target) : MS_OK;
}

static ms_status differentiate(msi_node *node)
{
    bool came = false;

    for (int32_t i = 0; i < node->n_out; i++) {
        came |= node->out[i].grad != NULL;
    }
    if (!came) {
        return MS_OK;
    }
    MS_TRY(msi_hooks_run_pre(node));
    for (int32_t i = 0; node->hooks != NULL && i < node->n_out; i++) {
        if (node->out[i].grad != NULL) {
            MS_TRY(msi_hooks_run_grad(&node->hooks, i, &node->out[i], node->tape));
        }
    }
    if (MSI_UNLIKELY(node->captured)) {
        MS_TRY(capture_all(node));
    }
    if (!msi_node_leads_on(node)) {
        return MS_OK;
    }
    ms_status status = msi_rule_run(node);

    return status == MS_OK || ms_error_is_late()
               ? status /* it already identifies its cause */
               : msi_fail_prefix(status, "backward of '%s': ", node->op->name);
}

/* Call those that wait until only nodes up to `sequence` are left. */
static ms_status pass_milestones(msi_tape *tape, uint64_t sequence)
{
    while (tape->n_milestones > 0 && tape->milestones[tape->n_milestones - 1].place >= sequence) {
        const msi_milestone passed = tape->milestones[--tape->n_milestones];

        MS_TRY(passed.fn(passed.user));
    }
    return MS_OK;
}

/* True if the node is spent after its run. */
static bool is_used_up(const msi_node *node)
{
    return !node->tape->retains && (!node->captured || msi_node_leads_on(node));
}

/* Drops what the node saved before finished leaves are reported. */
static ms_status run_node(msi_node *node)
{
    const bool used_up = is_used_up(node);
    ms_status status = pass_milestones(node->tape, node->sequence);

    if (status == MS_OK) {
        status = differentiate(node);
    }
    msi_grads_clear(node);
    if (used_up) {
        msi_node_drop_saved(node);
    }
    for (int32_t i = 0; status == MS_OK && i < node->n_in; i++) {
        if (msi_edge_needs(&node->edge[i])) {
            status = settle(node->edge[i].node);
        }
    }
    if (used_up) {
        msi_node_spend(node);
    }
    return status;
}

/* Set the root's gradient: the given one, or 1. */
static ms_status seed(const msi_root *root)
{
    const ms_tensor *grad = root->grad;
    ms_context *ctx = root->tensor->ctx;
    msi_view one = {.storage = NULL};

    if (grad != NULL && (root->by_reference || grad->v.storage->refcount == 1)) {
        return msi_grad_pass(root->node, root->out, &grad->v);
    }
    if (grad != NULL) { /* it may share a leaf's gradient, which rules write */
        msi_view copy;

        MS_TRY(msi_view_like(&copy, ctx, &grad->v, grad->v.dtype, MS_MEM_ACTIVATION, true));
        ms_status passed = msi_grad_pass(root->node, root->out, &copy);

        msi_storage_release(copy.storage);
        return passed;
    }
    msi_view_set_contiguous(&one, root->tensor->v.dtype, root->tensor->v.ndim,
                            root->tensor->v.shape);
    MS_TRY(msi_storage_new(&one.storage, ctx, ms_dtype_size(one.dtype), MS_MEM_ACTIVATION));
    ms_status status = msi_fill(&one, 1);

    if (status == MS_OK) {
        status = msi_grad_pass(root->node, root->out, &one);
    }
    msi_storage_release(one.storage);
    return status;
}

static ms_status notify_begin(msi_tape *tape)
{
    for (int32_t i = 0; i < tape->n_watchers; i++) {
        msi_watcher *w = &tape->watchers[i];

        w->told = true;
        if (w->observer.begin != NULL) {
            MS_TRY(w->observer.begin(w->observer.user));
        }
    }
    for (int32_t i = 0; i < tape->leaves.n; i++) {
        const msi_grad_sink *sink = at(&tape->leaves, i)->leaf->sink;

        if (sink != NULL && !tape->returns) {
            MS_TRY(sink->expect(sink->user, sink->index));
        }
    }
    for (int32_t i = 0; i < tape->hooked.n; i++) {
        if (!at(&tape->hooked, i)->idle) {
            MS_TRY(msi_hooks_expect(at(&tape->hooked, i)));
        }
    }
    return MS_OK;
}

/* Every `finish` precedes any `finished`: a hook may read other gradients. (Hooks may add
 * observers; those had no begin.) */
static ms_status notify_finish(const msi_tape *tape)
{
    for (int32_t i = 0; i < tape->n_watchers; i++) {
        const msi_watcher *w = &tape->watchers[i];

        if (w->told && w->observer.finish != NULL) {
            MS_TRY(w->observer.finish(w->observer.user));
        }
    }
    for (int32_t i = 0; i < tape->n_watchers; i++) {
        const msi_watcher *w = &tape->watchers[i];

        if (w->told && w->observer.finished != NULL) {
            MS_TRY(w->observer.finished(w->observer.user));
        }
    }
    return MS_OK;
}

static void notify_end(msi_tape *tape, ms_status status)
{
    for (int32_t i = 0; i < tape->n_watchers; i++) {
        msi_watcher *w = &tape->watchers[i];

        if (w->told && w->observer.end != NULL) {
            w->observer.end(w->observer.user, status);
        }
        w->told = false;
    }
}

/* Drop this backward's state; after success the leaves' gradients stay. */
static void clean_up(msi_tape *tape, ms_status status)
{
    tape->to_visit.n = 0;
    tape->n_milestones = 0;
    while (tape->queue.n > 0) {
        msi_node *node = dequeue(tape);

        msi_grads_clear(node);
        msi_node_release(node);
    }
    while (tape->leaves.n > 0) {
        msi_node *node = tape->leaves.item[--tape->leaves.n];

        msi_grads_clear(node);
        if (status != MS_OK && node->newborn) {
            ms_tensor_free(node->leaf->grad);
            node->leaf->grad = NULL;
        }
        node->newborn = false;
        msi_node_release(node);
    }
}

static void run_deferred(msi_tape *tape)
{
    while (tape->deferred != NULL) {
        msi_deferred *call = tape->deferred;

        tape->deferred = call->next;
        call->fn(call->user);
    }
}

/* Call every `end`; keeps the error of the failure. */
static void end(msi_tape *tape, ms_status status)
{
    msi_error why;

    msi_error_keep(&why);
    notify_end(tape, status);
    clean_up(tape, status);
    tape->running = false;
    run_deferred(tape);
    msi_error_put_back(&why);
}

/* Give the root its gradient and enqueue it. */
static ms_status start_from(msi_tape *tape, const msi_root *root)
{
    if (root->node->idle) {
        return MS_OK;
    }
    if (root->node->op != NULL) {
        MS_TRY(enqueue(tape, root->node));
    }
    MS_TRY(seed(root));
    return root->node->op == NULL ? settle(root->node) : MS_OK;
}

static ms_status run(msi_tape *tape, const msi_root *roots, int32_t n_roots)
{
    MS_TRY(notify_begin(tape));
    for (int32_t i = 0; i < n_roots; i++) {
        MS_TRY(start_from(tape, &roots[i]));
    }
    while (tape->queue.n > 0) {
        msi_node *node = dequeue(tape);
        ms_status status = run_node(node);

        msi_node_release(node);
        MS_TRY(status);
    }
    return MS_OK;
}

static ms_status extend(msi_tape *tape, const msi_root *roots, int32_t n)
{
    const int32_t n_leaves = tape->leaves.n, n_hooked = tape->hooked.n;

    MS_TRY(msi_walk_on(tape, roots, n));
    if (tape->leaves.n > n_leaves) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "backward: what was computed again uses %s, which the forward did not; make "
                       "tensors that require grad outside of the checkpointed function",
                       msi_tensor_label(at(&tape->leaves, n_leaves)->leaf));
    }
    for (int32_t i = n_hooked; i < tape->hooked.n; i++) {
        MS_TRY(msi_hooks_expect(at(&tape->hooked, i)));
    }
    for (int32_t i = 0; i < n; i++) {
        MS_TRY(start_from(tape, &roots[i]));
    }
    return MS_OK;
}

ms_status ms_backward_extend(ms_tensor *const *outputs, ms_tensor *const *grads, int32_t n)
{
    msi_tape *tape = n > 0 ? msi_tape_of(outputs[0]->ctx) : NULL;
    msi_root roots[MS_CUSTOM_MAX];
    int32_t n_roots = 0;

    if (tape == NULL || !tape->running || tape->returns || n > MS_CUSTOM_MAX) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       tape != NULL && tape->returns
                           ? "grad: a checkpoint is computed again by backward() only"
                           : "backward: no backward runs that could be extended");
    }
    for (int32_t i = 0; i < n; i++) {
        if (grads[i] != NULL && outputs[i]->grad_fn != NULL) {
            roots[n_roots++] = (msi_root){.tensor = outputs[i],
                                          .grad = grads[i],
                                          .node = outputs[i]->grad_fn,
                                          .out = outputs[i]->out_index};
        }
    }
    return extend(tape, roots, n_roots);
}

ms_status msi_backward_run(msi_tape *tape, const msi_root *roots, int32_t n_roots)
{
    const bool recording = tape->recording;
    ms_status status = msi_walk(tape, roots, n_roots);

    tape->running = true;
    tape->recording = false;
    if (status == MS_OK) {
        status = run(tape, roots, n_roots);
    }
    if (status == MS_OK) {
        status = notify_finish(tape);
    }
    end(tape, status);
    tape->recording = recording;
    return status;
}

bool msi_backward_accumulates(const ms_context *ctx)
{
    const msi_tape *tape = ctx->room[MSI_ROOM_AUTOGRAD];

    return tape != NULL && tape->running && !tape->returns;
}

/* -- observers --------------------------------------------------------------------------------- */

uint64_t msi_autograd_now(ms_context *ctx)
{
    const msi_tape *tape = ctx->room[MSI_ROOM_AUTOGRAD];

    return tape != NULL ? tape->sequence : 0;
}

ms_status msi_backward_when_behind(ms_context *ctx, uint64_t place, ms_status (*fn)(void *user),
                                   void *user)
{
    msi_tape *tape = ctx->room[MSI_ROOM_AUTOGRAD];

    MS_ASSERT(tape != NULL && tape->running);
    if (tape->n_milestones == tape->milestone_capacity) {
        const int32_t capacity = tape->milestone_capacity * 2 + 8;
        msi_milestone *grown = realloc(tape->milestones, sizeof(*grown) * (size_t)capacity);

        if (grown == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for %d milestones of backward",
                           (int)capacity);
        }
        tape->milestones = grown;
        tape->milestone_capacity = capacity;
    }
    int32_t i = tape->n_milestones++;

    for (; i > 0 && tape->milestones[i - 1].place > place; i--) {
        tape->milestones[i] = tape->milestones[i - 1];
    }
    tape->milestones[i] = (msi_milestone){place, fn, user};
    return MS_OK;
}

ms_status msi_backward_observe(ms_context *ctx, const msi_backward_observer *observer)
{
    msi_tape *tape = msi_tape_of(ctx);

    if (tape == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    msi_watcher *grown = realloc(tape->watchers, sizeof(*grown) * (size_t)(tape->n_watchers + 1));

    if (grown == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for %d observers of backward",
                       (int)tape->n_watchers + 1);
    }
    tape->watchers = grown;
    tape->watchers[tape->n_watchers++] = (msi_watcher){.observer = *observer};
    return MS_OK;
}

void msi_backward_unobserve(ms_context *ctx, void *user)
{
    msi_tape *tape = ctx->room[MSI_ROOM_AUTOGRAD];
    int32_t kept = 0;

    for (int32_t i = 0; tape != NULL && i < tape->n_watchers; i++) {
        if (tape->watchers[i].observer.user != user) {
            tape->watchers[kept++] = tape->watchers[i];
        }
    }
    if (tape != NULL) {
        tape->n_watchers = kept;
    }
}

void msi_backward_defer(ms_context *ctx, msi_deferred *call)
{
    msi_tape *tape = ctx->room[MSI_ROOM_AUTOGRAD];

    if (tape == NULL || !tape->running) {
        call->fn(call->user);
        return;
    }
    call->next = tape->deferred;
    tape->deferred = call;
}
