/* Nodes whose backward is a call of the program: custom functions, and segments of a graph that are
 * computed again (activation checkpointing, arXiv:1604.06174).
 *
 * [Note: segments] A segment's forward records as usual. Its node takes over the edges that leave
 * the recorded part, to leaves and to nodes made before, and the part is dropped. In backward the
 * program runs the forward again, with the same operands, and ms_backward_extend() adds what that
 * recorded to the running backward. The new nodes are younger than all that is left, so they run
 * next, in the order and with the contributions of a backward without the segment. The node's own
 * edges to leaves count as contributions until it has run: no leaf is finished before the new nodes
 * have been walked. */
#include "host.h"
#include "tape.h"

#include <string.h>

typedef struct custom_attrs {
    ms_custom_backward backward; /* of a function, or */
    ms_recompute recompute;      /* of a segment */
    void *user;
} custom_attrs;

static void free_all(ms_tensor **t, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        ms_tensor_free(t[i]);
        t[i] = NULL;
    }
}

/* Handles on the gradients of the node's outputs; NULL where none arrived. */
static ms_status gradients_of(const msi_node *node, ms_tensor **grads)
{
    for (int32_t i = 0; i < node->n_out; i++) {
        if (node->out[i].grad != NULL) {
            MS_TRY(msi_tensor_new(&grads[i], node->tape->ctx, &node->out[i].grad->view));
        }
    }
    return MS_OK;
}

/* -- functions --------------------------------------------------------------------------------- */

static ms_status pass_on(msi_bwd *b, int32_t i, const ms_tensor *grad)
{
    const msi_view *operand = msi_bwd_operand(b, i);
    msi_view copy;

    if (!msi_bwd_needs(b, i) || grad == NULL) {
        return MS_OK;
    }
    if (!msi_view_same_shape(&grad->v, operand) || !ms_dtype_is_floating(grad->v.dtype)) {
        return MS_FAIL(
            MS_VALUE_ERROR, "the gradient of input %d is %s of shape %s, expected %s of shape %s",
            (int)i + 1, ms_dtype_name(grad->v.dtype), msi_shape_text(grad->v.ndim, grad->v.shape),
            ms_dtype_name(operand->dtype), msi_shape_text(operand->ndim, operand->shape));
    }
    MS_TRY(msi_bwd_temp(b, operand->dtype, operand->ndim, operand->shape, &copy));
    MS_TRY(msi_copy(&copy, &grad->v, false)); /* the program may go on writing to its own */
    return msi_bwd_pass(b, i, &copy);
}

static ms_status function_backward(msi_bwd *b)
{
    const custom_attrs *attrs = msi_bwd_attrs(b);
    const msi_node *node = msi_bwd_node(b);
    ms_context *ctx = msi_bwd_context(b);
    ms_tensor *grads[MS_CUSTOM_MAX] = {NULL}, *given[MS_CUSTOM_MAX] = {NULL};
    ms_status status = gradients_of(node, grads);

    if (status == MS_OK) {
        const char aside = msi_host_begin(ctx);

        status = attrs->backward(attrs->user, grads, node->n_out, given, node->n_in);
        status = msi_host_end(ctx, aside, status, "a custom function's backward");
    }
    for (int32_t i = 0; i < node->n_in && status == MS_OK; i++) {
        status = pass_on(b, i, given[i]);
    }
    free_all(given, node->n_in);
    free_all(grads, node->n_out);
    return status;
}

static ms_status segment_backward(msi_bwd *b)
{
    const custom_attrs *attrs = msi_bwd_attrs(b);
    const msi_node *node = msi_bwd_node(b);
    ms_context *ctx = msi_bwd_context(b);
    ms_tensor *grads[MS_CUSTOM_MAX] = {NULL};
    ms_status status = gradients_of(node, grads);

    if (status == MS_OK) {
        const char aside = msi_host_begin(ctx);

        status = attrs->recompute(attrs->user, grads, node->n_out);
        status = msi_host_end(ctx, aside, status, "a checkpoint's forward");
    }
    free_all(grads, node->n_out);
    return status;
}

/* Holds edges of a segment with more than one node takes; no gradient comes to it. */
static ms_status nothing_backward(msi_bwd *b)
{
    (void)b;
    return MS_OK;
}

static const msi_op function_op = {
    .name = "custom function", .backward = function_backward, .attrs_size = sizeof(custom_attrs)};
static const msi_op segment_op = {
    .name = "checkpoint", .backward = segment_backward, .attrs_size = sizeof(custom_attrs)};
static const msi_op edges_op = {.name = "checkpoint's operands", .backward = nothing_backward};

/* Handles on the results' memory; those of floating ones are outputs of `node`, if there is one. */
static ms_status show_results(ms_tensor **out, ms_tensor *const *results, int32_t n, msi_node *node)
{
    for (int32_t i = 0; i < n; i++) {
        MS_TRY(msi_tensor_new(&out[i], results[i]->ctx, &results[i]->v));
        if (node != NULL && ms_dtype_is_floating(out[i]->v.dtype)) {
            msi_node_output(node, i, out[i]);
        }
    }
    return MS_OK;
}

static ms_status check_counts(const char *what, int32_t n_out, int32_t n_in)
{
    return n_out >= 1 && n_out <= MS_CUSTOM_MAX && n_in <= MS_CUSTOM_MAX
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR,
                         "%s: %d results and %d inputs, expected 1 to %d and 0 to "
                         "%d",
                         what, (int)n_out, (int)n_in, MS_CUSTOM_MAX, MS_CUSTOM_MAX);
}

/* After an error `drop` was called, or will be with the node. */
static ms_status finish(msi_node *node, ms_tensor **out, ms_tensor *const *results, int32_t n_out,
                        void *user, void (*drop)(void *user))
{
    ms_status status = msi_node_own(node, user, drop);

    if (status != MS_OK) {
        if (drop != NULL) {
            drop(user);
        }
    } else {
        status = show_results(out, results, n_out, node);
    }
    if (status != MS_OK) {
        free_all(out, n_out);
    }
    msi_node_release(node); /* its outputs own it */
    return status;
}

ms_status ms_custom(ms_tensor **out, ms_tensor *const *results, int32_t n_out,
                    ms_tensor *const *inputs, int32_t n_in, ms_custom_backward backward, void *user,
                    void (*drop)(void *user))
{
    msi_op_host(msi_context(), "a custom function runs");
    const custom_attrs attrs = {.backward = backward, .user = user};
    ms_status status = check_counts("custom function", n_out, n_in);
    msi_node *node = NULL;

    memset(out, 0, sizeof(*out) * (size_t)(n_out > 0 ? n_out : 0));
    if (status == MS_OK) {
        status = msi_node_record(&node, &function_op, &attrs, inputs, n_in, n_out);
    }
    if (node != NULL) {
        return finish(node, out, results, n_out, user, drop);
    }
    if (drop != NULL) {
        drop(user);
    }
    return status == MS_OK ? show_results(out, results, n_out, NULL) : status;
}

/* -- segments ---------------------------------------------------------------------------------- */

/* The edges that leave what `results` were made by since `since`, each node once. */
static ms_status collect(msi_tape *tape, ms_tensor *const *results, int32_t n, uint64_t since,
                         msi_list *edges)
{
    msi_list to_visit = {.item = NULL};
    ms_status status = MS_OK;

    tape->mark++;
    for (int32_t i = 0; i < n && status == MS_OK; i++) {
        msi_node *node = results[i]->grad_fn;

        if (node != NULL && node->sequence > since && node->mark != tape->mark) {
            node->mark = tape->mark;
            status = msi_list_push(&to_visit, node);
        }
    }
    while (to_visit.n > 0 && status == MS_OK) {
        msi_node *node = to_visit.item[--to_visit.n];

        for (int32_t i = 0; i < node->n_in && status == MS_OK; i++) {
            msi_edge *edge = &node->edge[i];

            if (edge->node == NULL || edge->node->mark == tape->mark) {
                continue;
            }
            edge->node->mark = tape->mark;
            const bool inside = edge->node->op != NULL && edge->node->sequence > since;

            status = inside ? msi_list_push(&to_visit, edge->node) : msi_list_push(edges, edge);
        }
    }
    msi_list_free(&to_visit);
    return status;
}

enum { EDGES_PER_NODE = 200 };

/* A node with these edges; more than it takes are those of other nodes, which it leads to. */
static ms_status node_over(msi_node **out, msi_tape *tape, const msi_op *op, const void *attrs,
                           msi_edge *const *edges, int32_t n, int32_t n_out)
{
    msi_node *rest = NULL;

    if (n > EDGES_PER_NODE) {
        MS_TRY(node_over(&rest, tape, &edges_op, NULL, edges + EDGES_PER_NODE - 1,
                         n - EDGES_PER_NODE + 1, 1));
        n = EDGES_PER_NODE - 1;
    }
    const ms_status status =
        msi_node_of_edges(out, tape, op, attrs, edges, n, rest, n_out); /* takes `rest` */

    if (rest != NULL) {
        msi_node_release(rest);
    }
    return status;
}

/* A result that was not recorded in the segment is an output of its own node. */
static ms_status check_recorded(ms_tensor *const *results, int32_t n, uint64_t since)
{
    for (int32_t i = 0; i < n; i++) {
        const ms_tensor *t = results[i];

        if (t->requires_grad && (t->grad_fn == NULL || t->grad_fn->sequence <= since)) {
            return MS_FAIL(MS_VALUE_ERROR,
                           "checkpoint: result %d is an operand of the function, expected what it "
                           "computed",
                           (int)i + 1);
        }
    }
    return MS_OK;
}

ms_status ms_checkpoint_graph(ms_tensor **out, ms_tensor *const *results, int32_t n_out,
                              uint64_t since, ms_recompute recompute, void *user,
                              void (*drop)(void *user))
{
    const custom_attrs attrs = {.recompute = recompute, .user = user};
    ms_status status = check_counts("checkpoint", n_out, 0);
    msi_list edges = {.item = NULL};
    msi_node *node = NULL;

    memset(out, 0, sizeof(*out) * (size_t)(n_out > 0 ? n_out : 0));
    if (status == MS_OK) {
        status = check_recorded(results, n_out, since);
    }
    msi_tape *tape = status == MS_OK ? msi_tape_of(results[0]->ctx) : NULL;

    if (tape != NULL) {
        status = collect(tape, results, n_out, since, &edges);
    }
    if (status == MS_OK && edges.n > 0) {
        status = node_over(&node, tape, &segment_op, &attrs, (msi_edge *const *)edges.item, edges.n,
                           n_out);
    }
    msi_list_free(&edges);
    if (node != NULL) {
        status = finish(node, out, results, n_out, user, drop);
    } else {
        if (drop != NULL) {
            drop(user);
        }
        status = status == MS_OK ? show_results(out, results, n_out, NULL) : status;
    }
    if (status == MS_OK) {
        msi_op_checkpoint(msi_context(), results, out, n_out);
    }
    return status;
}

uint64_t ms_graph_now(void)
{
    return msi_autograd_now(msi_context());
}

bool ms_graph_retained(void)
{
    const msi_tape *tape = msi_tape_of(msi_context());

    return tape != NULL && tape->running && tape->retains;
}

ms_status ms_tensor_alias(ms_tensor **out, const ms_tensor *t)
{
    MS_TRY(msi_tensor_new(out, t->ctx, &t->v));
    if (t->grad_fn != NULL) {
        (*out)->grad_fn = msi_node_retain(t->grad_fn);
        (*out)->out_index = t->out_index;
        (*out)->requires_grad = true;
    }
    return MS_OK;
}
