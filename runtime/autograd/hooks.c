/* Hooks: on gradients of results (in their node) and leaves (in the handle), on finished leaves,
 * and pre hooks of units. */
#include "host.h"
#include "tape.h"

/* -- lists, in ascending order of ids ---------------------------------------------------------- */

static void append(msi_hooks **list, msi_hooks *hook)
{
    while (*list != NULL) {
        list = &(*list)->next;
    }
    *list = hook;
}

bool msi_hooks_any(const msi_hooks *list, int32_t kind)
{
    while (list != NULL && list->kind != kind) {
        list = list->next;
    }
    return list != NULL;
}

/* The first hook of a kind and output after `id`. */
static msi_hooks *after(msi_hooks *list, int32_t kind, int32_t out, int64_t id)
{
    while (list != NULL && (list->id <= id || list->kind != kind || list->out != out)) {
        list = list->next;
    }
    return list;
}

/* -- running ----------------------------------------------------------------------------------- */

/* Make `output` own the replacement. Copied if it shares a leaf's .grad, which rules write. */
static ms_status replace(msi_output *output, ms_tensor *replacement)
{
    msi_view *now = &output->grad->view;
    const msi_view *v = &replacement->v;
    ms_status status = MS_OK;

    if (v->dtype != now->dtype || !msi_view_same_shape(v, now)) {
        status = MS_FAIL(MS_RUNTIME_ERROR,
                         "a gradient hook returned %s of shape %s, expected %s of shape %s",
                         ms_dtype_name(v->dtype), msi_shape_text(v->ndim, v->shape),
                         ms_dtype_name(now->dtype), msi_shape_text(now->ndim, now->shape));
    } else {
        msi_view kept = *v;

        if (v->storage->mem_kind == MS_MEM_GRADIENT) {
            status = msi_view_like(&kept, replacement->ctx, v, v->dtype, MS_MEM_ACTIVATION, true);
        } else {
            msi_storage_retain(v->storage);
        }
        if (status == MS_OK) {
            msi_storage_release(now->storage);
            *now = kept;
        }
    }
    ms_tensor_free(replacement);
    return status;
}

static ms_status run_grad_hook(const msi_hooks *hook, msi_output *output, ms_context *ctx)
{
    ms_tensor *grad, *replacement = NULL;

    MS_TRY(msi_tensor_new_internal(&grad, ctx, &output->grad->view));
    const char aside = msi_host_begin(ctx);
    ms_status status =
        msi_host_end(ctx, aside, hook->grad(hook->user, grad, &replacement), "a gradient hook");

    if (replacement == grad) { /* it returned its argument */
        replacement = NULL;
    }
    ms_tensor_free(grad);
    if (replacement == NULL) {
        return status;
    }
    if (status != MS_OK) {
        ms_tensor_free(replacement);
        return status;
    }
    return replace(output, replacement);
}

ms_status msi_hooks_run_grad(msi_hooks **list, int32_t out, msi_output *output, msi_tape *tape)
{
    const int64_t newest = tape->hook_id; /* hooks added now run in the next backward */
    msi_hooks *hook = after(*list, MSI_HOOK_GRAD, out, 0);

    while (hook != NULL && hook->id <= newest) {
        const int64_t id = hook->id; /* the hook may remove itself */

        MS_TRY(run_grad_hook(hook, output, tape->ctx));
        hook = after(*list, MSI_HOOK_GRAD, out, id);
    }
    return MS_OK;
}

ms_status msi_hooks_run_accumulate(ms_tensor *leaf)
{
    msi_hooks *hook = after(leaf->hooks, MSI_HOOK_ACCUMULATE, 0, 0);
    const int64_t newest = hook != NULL ? hook->tape->hook_id : 0;

    while (hook != NULL && hook->id <= newest) {
        const int64_t id = hook->id;
        const char aside = msi_host_begin(leaf->ctx);

        MS_TRY(msi_host_end(leaf->ctx, aside, hook->accumulate(hook->user, leaf),
                            "an accumulate hook"));
        hook = after(leaf->hooks, MSI_HOOK_ACCUMULATE, 0, id);
    }
    return MS_OK;
}

ms_status msi_hooks_expect(const msi_node *node)
{
    for (const msi_hooks *hook = node->pre; hook != NULL; hook = hook->next) {
        if (hook->pre.expect != NULL) {
            MS_TRY(hook->pre.expect(hook->pre.user));
        }
    }
    return MS_OK;
}

ms_status msi_hooks_run_pre(msi_node *node)
{
    for (msi_hooks *hook = node->pre; node->tape->retains && hook != NULL; hook = hook->next) {
        MS_TRY(hook->pre.fn(hook->pre.user));
    }
    while (!node->tape->retains && node->pre != NULL) {
        msi_hooks *hook = node->pre;

        node->pre = hook->next;
        ms_status status = hook->pre.fn(hook->pre.user);

        msi_tape_drop_hook(hook);
        MS_TRY(status);
    }
    return MS_OK;
}

/* -- registering ------------------------------------------------------------------------------- */

static ms_status add(msi_hooks **list, msi_tape *tape, const msi_hooks *as, int64_t *id)
{
    msi_hooks *hook;

    if (tape == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(msi_tape_hook(&hook, tape));
    const int64_t given = hook->id;

    *hook = *as;
    hook->tape = tape;
    hook->id = given;
    append(list, hook);
    if (id != NULL) {
        *id = given;
    }
    return MS_OK;
}

ms_status ms_tensor_hook(ms_tensor *t, ms_grad_hook fn, void *user, void (*drop)(void *),
                         int64_t *id)
{
    msi_op_host(t->ctx,
                t->grad_fn != NULL ? "a hook is added to a result" : "a hook is added to a leaf");
    if (!t->requires_grad) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "cannot hook the gradient of %s, which does not require grad",
                       msi_tensor_label(t));
    }
    if (t->grad_fn != NULL && t->grad_fn->spent) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "cannot hook the gradient of a result of '%s' whose graph was "
                       "differentiated: no gradient comes there any more; hook it before backward",
                       t->grad_fn->op->name);
    }
    const msi_hooks hook = {.kind = MSI_HOOK_GRAD,
                            .out = t->grad_fn != NULL ? t->out_index : 0,
                            .grad = fn,
                            .user = user,
                            .drop = drop};

    return add(t->grad_fn != NULL ? &t->grad_fn->hooks : &t->hooks, msi_tape_of(t->ctx), &hook, id);
}

ms_status ms_tensor_accumulate_hook(ms_tensor *t, ms_accumulate_hook fn, void *user,
                                    void (*drop)(void *), int64_t *id)
{
    msi_op_host(t->ctx, "a hook is added to a leaf");
    if (t->grad_fn != NULL || !t->requires_grad) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "gradients accumulate in leaves that require grad only, got %s that %s",
                       msi_tensor_label(t),
                       t->grad_fn != NULL ? "a recorded op made" : "does not require it");
    }
    const msi_hooks hook = {
        .kind = MSI_HOOK_ACCUMULATE, .accumulate = fn, .user = user, .drop = drop};

    return add(&t->hooks, msi_tape_of(t->ctx), &hook, id);
}

ms_status ms_hook_remove(ms_tensor *t, int64_t id)
{
    msi_hooks **place = t->grad_fn != NULL ? &t->grad_fn->hooks : &t->hooks;

    msi_op_host(t->ctx, "a hook is removed");
    while (*place != NULL &&
           ((*place)->id != id || (t->grad_fn != NULL && (*place)->out != t->out_index))) {
        place = &(*place)->next;
    }
    msi_hooks *hook = *place;

    if (hook == NULL) {
        return MS_FAIL(MS_KEY_ERROR, "%s has no hook with id %lld", msi_tensor_label(t),
                       (long long)id);
    }
    *place = hook->next;
    msi_tape_drop_hook(hook);
    return MS_OK;
}

ms_status msi_autograd_pre_hook(ms_tensor *t, msi_pre_hook pre)
{
    const msi_hooks hook = {.kind = MSI_HOOK_PRE, .pre = pre, .user = pre.user, .drop = pre.drop};

    if (t->grad_fn == NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "%s is no result of a recorded op", msi_tensor_label(t));
    }
    if (t->grad_fn->spent) { /* no backward comes here again */
        if (pre.drop != NULL) {
            pre.drop(pre.user);
        }
        return MS_OK;
    }
    return add(&t->grad_fn->pre, t->grad_fn->tape, &hook, NULL);
}
