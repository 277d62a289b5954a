/* Backward: nodes run in descending order of creation, each once, its gradients complete.
 *
 * Operands' nodes are older than the nodes that use them, so descending order is topological, and
 * contributions to one gradient always add in the same order: that of the program, reversed. A walk
 * comes first: it refuses graphs that were differentiated before, tells pre hooks what comes, and
 * counts what each leaf will get, so a leaf is finished (and may be reduced, and its memory reused)
 * while backward goes on. */
#include "tape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* -- the walk ---------------------------------------------------------------------------------- */

static ms_status reach_leaf(msi_tape *tape, msi_node *leaf)
{
    if (leaf->walk != tape->walk) {
        MS_TRY(msi_list_push(&tape->leaves, leaf));
        msi_node_retain(leaf);
        leaf->walk = tape->walk;
        leaf->pending = 0;
        leaf->reached = leaf->newborn = false;
        leaf->gathers = msi_hooks_any(leaf->leaf->hooks, MSI_HOOK_GRAD);
    }
    leaf->pending++;
    return MS_OK;
}

static ms_status reach(msi_tape *tape, msi_node *node)
{
    if (node->op == NULL) {
        return reach_leaf(tape, node);
    }
    if (node->walk == tape->walk) {
        return MS_OK;
    }
    if (node->spent) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "cannot go backward through this graph a second time: '%s' gave up what it "
                       "saved when it was differentiated; run forward again",
                       node->op->name);
    }
    node->walk = tape->walk;
    if (node->pre != NULL) {
        MS_TRY(msi_list_push(&tape->hooked, node));
    }
    return msi_list_push(&tape->to_visit, node);
}

/* Between forwards a unit's parameter shows a shard. A gradient of that has no place in the whole
 * one's, which the unit averages over ranks. */
static ms_status refuse_shard(const char *user, const ms_tensor *leaf, int32_t ndim,
                              const int64_t *shape)
{
    return MS_FAIL(MS_RUNTIME_ERROR,
                   "backward: '%s' was given this rank's shard %s of '%s', expected the whole "
                   "parameter %s: a term over parameters belongs into the forward of the module "
                   "that FSDP wraps with them (the weight_decay of an optimizer does without)",
                   user, msi_shape_text(ndim, shape), msi_tensor_label(leaf),
                   msi_shape_text(leaf->param->ndim, leaf->param->shape));
}

/* (The leaf's node may have been made for a shard that was only looked at.) */
static ms_status expect_whole(const msi_node *node, const msi_edge *edge)
{
    const ms_tensor *leaf = edge->node->leaf;
    const msi_param *p = leaf != NULL ? leaf->param : NULL;
    msi_output *whole = &edge->node->out[0];

    if (p == NULL || p->unit == NULL) {
        return MS_OK;
    }
    if (edge->shard) {
        return refuse_shard(node->op->name, leaf, edge->ndim, edge->shape);
    }
    whole->dtype = edge->dtype;
    whole->ndim = edge->ndim;
    memcpy(whole->shape, p->shape, sizeof(*p->shape) * (size_t)p->ndim);
    return MS_OK;
}

/* A leaf that was frozen since it was used gets nothing. */
static void drop_frozen(msi_edge *edge)
{
    msi_node *node = edge->node;

    if (node != NULL && node->op == NULL && MSI_UNLIKELY(!node->leaf->requires_grad)) {
        edge->node = NULL;
        msi_node_release(node);
    }
}

/* A rule may read a leaf's own .grad, as in (w * w.grad).sum(). What comes for leaves that have one
 * is then added when they are finished, behind the rules that made it. */
static void gather_apart(const msi_tape *tape)
{
    for (int32_t i = 0; i < tape->leaves.n; i++) {
        msi_node *node = tape->leaves.item[i];

        node->gathers |= node->leaf->grad != NULL && node->leaf->sink == NULL;
    }
}

static ms_status walk(msi_tape *tape, msi_node *root)
{
    bool reads_grad = false;

    tape->walk++;
    tape->to_visit.n = tape->hooked.n = 0;
    MS_TRY(reach(tape, root));
    while (tape->to_visit.n > 0) {
        msi_node *node = tape->to_visit.item[--tape->to_visit.n];

        reads_grad |= node->reads_grad;
        for (int32_t i = 0; i < node->n_in; i++) {
            msi_edge *edge = &node->edge[i];

            drop_frozen(edge);
            if (edge->node != NULL) {
                MS_TRY(expect_whole(node, edge));
                MS_TRY(reach(tape, edge->node));
            }
        }
    }
    if (MSI_UNLIKELY(reads_grad)) {
        gather_apart(tape);
    }
    return MS_OK;
}

/* -- running ----------------------------------------------------------------------------------- */

/* Nothing more will come for this leaf. */
static ms_status finish_leaf(msi_node *node)
{
    ms_tensor *leaf = node->leaf;

    if (node->gathers && node->out[0].grad != NULL) {
        MS_TRY(msi_hooks_run_grad(&leaf->hooks, 0, &node->out[0], node->tape));
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

/* Rules count on one operand at least that needs a gradient. */
static bool leads_on(const msi_node *node)
{
    for (int32_t i = 0; i < node->n_in; i++) {
        if (node->edge[i].node != NULL) {
            return true;
        }
    }
    return false;
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
    if (!leads_on(node)) {
        return MS_OK;
    }
    ms_status status = msi_rule_run(node);

    return status == MS_OK || ms_error_is_late()
               ? status /* which names what failed itself */
               : msi_fail_prefix(status, "backward of '%s': ", node->op->name);
}

/* Tell those who wait until only nodes up to `sequence` are left. */
static ms_status pass_milestones(msi_tape *tape, uint64_t sequence)
{
    while (tape->n_milestones > 0 && tape->milestones[tape->n_milestones - 1].place >= sequence) {
        const msi_milestone passed = tape->milestones[--tape->n_milestones];

        MS_TRY(passed.fn(passed.user));
    }
    return MS_OK;
}

/* What the node held for its rule goes before anybody hears of finished leaves. */
static ms_status run_node(msi_node *node)
{
    ms_status status = pass_milestones(node->tape, node->sequence);

    if (status == MS_OK) {
        status = differentiate(node);
    }
    msi_grads_clear(node);
    msi_node_drop_saved(node);
    for (int32_t i = 0; status == MS_OK && i < node->n_in; i++) {
        if (node->edge[i].node != NULL) {
            status = settle(node->edge[i].node);
        }
    }
    msi_node_spend(node);
    return status;
}

/* The root's gradient: `grad`, or 1. */
static ms_status seed(msi_node *root, int32_t out, const ms_tensor *root_tensor,
                      const ms_tensor *grad)
{
    msi_view one = {.storage = NULL};

    if (grad != NULL && grad->v.storage->refcount == 1) {
        return msi_grad_pass(root, out, &grad->v);
    }
    if (grad != NULL) { /* it may lie in a leaf's gradient, which rules write while they read it */
        msi_view copy;

        MS_TRY(msi_view_like(&copy, root->tape->ctx, &grad->v, grad->v.dtype, MS_MEM_ACTIVATION,
                             true));
        ms_status passed = msi_grad_pass(root, out, &copy);

        msi_storage_release(copy.storage);
        return passed;
    }
    msi_view_set_contiguous(&one, root_tensor->v.dtype, root_tensor->v.ndim, root_tensor->v.shape);
    MS_TRY(msi_storage_new(&one.storage, root->tape->ctx, ms_dtype_size(one.dtype),
                           MS_MEM_ACTIVATION));
    ms_status status = msi_fill(&one, 1);

    if (status == MS_OK) {
        status = msi_grad_pass(root, out, &one);
    }
    msi_storage_release(one.storage);
    return status;
}

static ms_status tell_begin(msi_tape *tape)
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

        if (sink != NULL) {
            MS_TRY(sink->expect(sink->user, sink->index));
        }
    }
    for (int32_t i = 0; i < tape->hooked.n; i++) {
        MS_TRY(msi_hooks_expect(at(&tape->hooked, i)));
    }
    return MS_OK;
}

/* All finish before any runs what the script wants: a hook may use another's gradients. (It may add
 * observers, too, which were told of no beginning.) */
static ms_status tell_finish(const msi_tape *tape)
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

static void tell_end(msi_tape *tape, ms_status status)
{
    for (int32_t i = 0; i < tape->n_watchers; i++) {
        msi_watcher *w = &tape->watchers[i];

        if (w->told && w->observer.end != NULL) {
            w->observer.end(w->observer.user, status);
        }
        w->told = false;
    }
}

/* Leave nothing of this backward behind, but the leaves' gradients when it went well. */
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

/* Everybody lets go of it; why it failed is still told afterwards. */
static void end(msi_tape *tape, ms_status status)
{
    msi_error why;

    msi_error_keep(&why);
    tell_end(tape, status);
    clean_up(tape, status);
    tape->running = false;
    run_deferred(tape);
    msi_error_put_back(&why);
}

static ms_status run(msi_tape *tape, msi_node *root, int32_t out, const ms_tensor *root_tensor,
                     const ms_tensor *grad)
{
    MS_TRY(tell_begin(tape));
    if (root->op != NULL) {
        MS_TRY(enqueue(tape, root));
    }
    MS_TRY(seed(root, out, root_tensor, grad));
    if (root->op == NULL) {
        return settle(root);
    }
    while (tape->queue.n > 0) {
        msi_node *node = dequeue(tape);
        ms_status status = run_node(node);

        msi_node_release(node);
        MS_TRY(status);
    }
    return MS_OK;
}

static ms_status check(const msi_tape *tape, const ms_tensor *root, const ms_tensor *grad)
{
    if (tape->running) {
        return MS_FAIL(MS_RUNTIME_ERROR, "backward: another backward is running; hooks cannot "
                                         "start one");
    }
    if (!root->requires_grad) {
        return MS_FAIL(MS_RUNTIME_ERROR, "backward: the tensor does not require grad, and no "
                                         "recorded op made it");
    }
    if (root->grad_fn == NULL && msi_tensor_is_shard(root)) {
        return refuse_shard("backward", root, root->v.ndim, root->v.shape);
    }
    if (grad == NULL && msi_view_numel(&root->v) != 1) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "backward: a tensor of shape %s needs a gradient; only with one element it "
                       "is 1 by default",
                       msi_shape_text(root->v.ndim, root->v.shape));
    }
    if (grad != NULL && !msi_view_same_shape(&grad->v, &root->v)) {
        return MS_FAIL(MS_VALUE_ERROR, "backward: the gradient has shape %s, expected %s",
                       msi_shape_text(grad->v.ndim, grad->v.shape),
                       msi_shape_text(root->v.ndim, root->v.shape));
    }
    if (grad != NULL && !ms_dtype_is_floating(grad->v.dtype)) {
        return MS_FAIL(MS_TYPE_ERROR, "backward: the gradient is %s, expected %s",
                       ms_dtype_name(grad->v.dtype), ms_dtype_name(root->v.dtype));
    }
    return MS_OK;
}

ms_status ms_backward(ms_tensor *root, ms_tensor *grad)
{
    msi_tape *tape = msi_tape_of(root->ctx);
    const int32_t out = root->out_index;
    msi_node *node;

    if (tape == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(check(tape, root, grad));
    if (root->grad_fn != NULL) {
        node = msi_node_retain(root->grad_fn);
    } else {
        MS_TRY(msi_node_of_leaf(&node, tape, root));
    }
    const bool recording = tape->recording;
    ms_status status = walk(tape, node);

    tape->running = true;
    tape->recording = false;
    ms_tensor_retain(root); /* hooks may free it */
    if (status == MS_OK) {
        status = run(tape, node, out, root, grad);
    }
    if (status == MS_OK) {
        status = tell_finish(tape);
    }
    end(tape, status);
    tape->recording = recording;
    ms_tensor_free(root);
    msi_node_release(node);
    return status;
}

/* -- who watches ------------------------------------------------------------------------------- */

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
