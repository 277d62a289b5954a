/* Public calls: backward(), which adds to leaves' gradients, and grad(), which returns some. */
#include "array.h"
#include "tape.h"

#include <stdlib.h>

static ms_status check_given(const char *what, const ms_tensor *root, const ms_tensor *grad)
{
    if (grad == NULL && msi_view_numel(&root->v) != 1) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "%s: a tensor of shape %s needs a gradient; only with one element it is 1 "
                       "by default",
                       what, msi_shape_text(root->v.ndim, root->v.shape));
    }
    if (grad != NULL && !msi_view_same_shape(&grad->v, &root->v)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: the gradient has shape %s, expected %s", what,
                       msi_shape_text(grad->v.ndim, grad->v.shape),
                       msi_shape_text(root->v.ndim, root->v.shape));
    }
    if (grad != NULL && !ms_dtype_is_floating(grad->v.dtype)) {
        return MS_FAIL(MS_TYPE_ERROR, "%s: the gradient is %s, expected %s", what,
                       ms_dtype_name(grad->v.dtype), ms_dtype_name(root->v.dtype));
    }
    return MS_OK;
}

static ms_status check_root(const char *what, const msi_tape *tape, const ms_tensor *root,
                            const ms_tensor *grad)
{
    if (tape->running) {
        return MS_FAIL(MS_RUNTIME_ERROR, "%s: another backward is running; hooks cannot start one",
                       what);
    }
    if (!root->requires_grad) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "%s: the tensor does not require grad, and no recorded op made it", what);
    }
    if (root->grad_fn == NULL && msi_tensor_is_shard(root)) {
        return msi_refuse_shard(what, root, root->v.ndim, root->v.shape);
    }
    return check_given(what, root, grad);
}

/* -- roots ------------------------------------------------------------------------------------- */

/* The node with output `t`. */
static ms_status node_of(msi_node **out, msi_tape *tape, ms_tensor *t)
{
    if (t->grad_fn == NULL) {
        return msi_node_of_leaf(out, tape, t);
    }
    *out = msi_node_retain(t->grad_fn);
    return MS_OK;
}

static ms_status root_init(msi_root *root, const char *what, msi_tape *tape, ms_tensor *t,
                           ms_tensor *grad)
{
    MS_TRY(check_root(what, tape, t, grad));
    MS_TRY(node_of(&root->node, tape, t));
    root->tensor = ms_tensor_retain(t);
    root->grad = grad != NULL ? ms_tensor_retain(grad) : NULL;
    root->out = t->grad_fn != NULL ? t->out_index : 0;
    root->by_reference = false;
    return MS_OK;
}

static void root_dispose(msi_root *root)
{
    ms_tensor_free(root->tensor);
    ms_tensor_free(root->grad);
    msi_node_release(root->node);
}

/* -- backward ---------------------------------------------------------------------------------- */

static ms_status check_flags(const char *what, int32_t flags, int32_t known)
{
    return (flags & ~known) == 0
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "%s: 'flags' is %d, expected no more than %d", what,
                         (int)flags, (int)known);
}

ms_status ms_backward_with(ms_tensor *root, ms_tensor *grad, int32_t flags)
{
    msi_op_host(root->ctx, "a backward runs");
    msi_tape *tape = msi_tape_of(root->ctx);
    msi_root from;

    if (tape == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(check_flags("backward", flags, MS_RETAIN_GRAPH));
    MS_TRY(root_init(&from, "backward", tape, root, grad));
    tape->retains = (flags & MS_RETAIN_GRAPH) != 0;
    ms_status status = msi_backward_run(tape, &from, 1);

    tape->retains = false;
    root_dispose(&from);
    return status;
}

ms_status ms_backward(ms_tensor *root, ms_tensor *grad)
{
    return ms_backward_with(root, grad, 0);
}

/* -- grad -------------------------------------------------------------------------------------- */

/* One call of ms_grad(). */
typedef struct request {
    msi_root *roots;
    msi_capture *captures;
    int32_t n_roots, n_captures; /* number initialised */
} request;

static ms_status check_list(ms_tensor *const *list, int32_t n, const char *name)
{
    if (list == NULL || n <= 0) {
        return MS_FAIL(MS_VALUE_ERROR, "grad: '%s' is empty, expected one tensor at least", name);
    }
    for (int32_t i = 0; i < n; i++) {
        if (list[i] == NULL || list[i]->refcount <= 0) {
            return MS_FAIL(MS_VALUE_ERROR, "grad: '%s' %d is %s, expected a tensor", name,
                           (int)i + 1, list[i] == NULL ? "NULL" : "a freed tensor");
        }
    }
    return MS_OK;
}

/* Error unless `t` is NULL or a tensor of this context. */
static ms_status check_given_to(const ms_context *ctx, const ms_tensor *t, const char *name,
                                int32_t i)
{
    if (t == NULL) {
        return MS_OK;
    }
    if (t->refcount <= 0) {
        return MS_FAIL(MS_VALUE_ERROR, "grad: '%s' %d is a freed tensor, expected a tensor", name,
                       (int)i + 1);
    }
    return t->ctx == ctx
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "grad: '%s' %d is of another thread than 'outputs' 1",
                         name, (int)i + 1);
}

static ms_status check_one_context(ms_tensor *const *outputs, ms_tensor *const *grad_outputs,
                                   int32_t n_outputs, ms_tensor *const *inputs, int32_t n_inputs)
{
    const ms_context *ctx = outputs[0]->ctx;

    for (int32_t i = 0; i < n_outputs; i++) {
        MS_TRY(check_given_to(ctx, outputs[i], "outputs", i));
        MS_TRY(
            check_given_to(ctx, grad_outputs != NULL ? grad_outputs[i] : NULL, "grad_outputs", i));
    }
    for (int32_t i = 0; i < n_inputs; i++) {
        MS_TRY(check_given_to(ctx, inputs[i], "inputs", i));
    }
    return MS_OK;
}

static ms_status check_input(const ms_tensor *t, int32_t i)
{
    if (!t->requires_grad) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "grad: one of the differentiated tensors does not require grad: input %d",
                       (int)i + 1);
    }
    if (t->sink != NULL) {
        return MS_FAIL(
            MS_NOT_IMPLEMENTED_ERROR,
            "grad: input %d, '%s', is a parameter of a sharded model, whose gradient the "
            "ranks sum: call backward, and read its .grad",
            (int)i + 1, msi_tensor_label(t));
    }
    return MS_OK;
}

static ms_status capture_init(msi_capture *c, msi_tape *tape, ms_tensor *input, int32_t i)
{
    MS_TRY(check_input(input, i));
    MS_TRY(node_of(&c->node, tape, input));
    c->node->captured = true;
    c->out = input->grad_fn != NULL ? input->out_index : 0;
    return MS_OK;
}

static ms_status request_init(request *r, msi_tape *tape, ms_tensor *const *outputs,
                              ms_tensor *const *grad_outputs, int32_t n_outputs,
                              ms_tensor *const *inputs, int32_t n_inputs)
{
    MS_TRY(msi_new_array(&r->roots, n_outputs, "outputs of grad"));
    MS_TRY(msi_new_array(&r->captures, n_inputs, "inputs of grad"));
    for (; r->n_roots < n_outputs; r->n_roots++) {
        const int32_t i = r->n_roots;

        MS_TRY(root_init(&r->roots[i], "grad", tape, outputs[i],
                         grad_outputs != NULL ? grad_outputs[i] : NULL));
    }
    for (; r->n_captures < n_inputs; r->n_captures++) {
        const int32_t i = r->n_captures;

        MS_TRY(capture_init(&r->captures[i], tape, inputs[i], i));
    }
    return MS_OK;
}

static void request_dispose(request *r)
{
    for (int32_t i = 0; i < r->n_captures; i++) {
        r->captures[i].node->captured = false;
        msi_node_release(r->captures[i].node);
        ms_tensor_free(r->captures[i].grad);
    }
    for (int32_t i = 0; i < r->n_roots; i++) {
        root_dispose(&r->roots[i]);
    }
    free(r->captures);
    free(r->roots);
}

static ms_status request_run(const request *r, msi_tape *tape, int32_t flags)
{
    tape->returns = true;
    tape->retains = (flags & MS_RETAIN_GRAPH) != 0;
    tape->captures = r->captures;
    tape->n_captures = r->n_captures;
    ms_status status = msi_backward_run(tape, r->roots, r->n_roots);

    tape->returns = tape->retains = false;
    tape->captures = NULL;
    tape->n_captures = 0;
    for (int32_t i = 0; i < r->n_captures && status == MS_OK; i++) {
        if (r->captures[i].grad == NULL && (flags & MS_ALLOW_UNUSED) == 0) {
            status =
                MS_FAIL(MS_RUNTIME_ERROR,
                        "grad: one of the differentiated tensors appears to not have been used "
                        "in the graph: input %d; set allow_unused = true if that is as it "
                        "should be",
                        (int)i + 1);
        }
    }
    return status;
}

ms_status ms_grad(ms_tensor **grads, ms_tensor *const *outputs, ms_tensor *const *grad_outputs,
                  int32_t n_outputs, ms_tensor *const *inputs, int32_t n_inputs, int32_t flags)
{
    msi_op_host(msi_context(), "a backward runs");
    request r = {.roots = NULL};

    if (grads == NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "grad: 'grads' is NULL, expected room for %d",
                       (int)n_inputs);
    }
    for (int32_t i = 0; i < n_inputs; i++) {
        grads[i] = NULL;
    }
    MS_TRY(check_list(outputs, n_outputs, "outputs"));
    MS_TRY(check_list(inputs, n_inputs, "inputs"));
    MS_TRY(check_one_context(outputs, grad_outputs, n_outputs, inputs, n_inputs));
    MS_TRY(check_flags("grad", flags, MS_RETAIN_GRAPH | MS_ALLOW_UNUSED));
    msi_tape *tape = msi_tape_of(outputs[0]->ctx);

    if (tape == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    ms_status status = request_init(&r, tape, outputs, grad_outputs, n_outputs, inputs, n_inputs);

    if (status == MS_OK) {
        status = request_run(&r, tape, flags);
    }
    for (int32_t i = 0; i < r.n_captures && status == MS_OK; i++) {
        grads[i] = r.captures[i].grad;
        r.captures[i].grad = NULL;
    }
    request_dispose(&r);
    return status;
}
