/* Optimizer objects: groups, parameters, state buffers. The update is in step.c. */
#include "optim.h"
#include "array.h"
#include "moonshard/autograd.h"

#include <stdlib.h>

ms_status msi_optim_alive(const ms_optim *optim)
{
    if (optim->witness->generation != optim->witness_generation) {
        return MS_FAIL(MS_RUNTIME_ERROR, "the context this optimizer was made in is closed");
    }
    return MS_OK;
}

ms_status ms_optim_new(ms_optim **out, int32_t kind)
{
    const int64_t nothing = 0;
    msi_view empty = {0};
    const msi_rule *rule;
    ms_optim *o;
    ms_status status;

    *out = NULL;
    MS_TRY(msi_rule_find(&rule, kind));
    MS_TRY(msi_new_array(&o, 1, "optimizer"));
    o->rule = rule;
    o->ctx = msi_context();
    msi_view_set_contiguous(&empty, MS_DTYPE_U8, 1, &nothing);
    MS_TRY_GOTO(msi_storage_wrap(&empty.storage, o->ctx, MS_STORAGE_NONE, NULL, 0), failed);
    status = msi_tensor_new_internal(&o->witness, o->ctx, &empty);
    msi_storage_release(empty.storage);
    if (status != MS_OK) {
        goto failed;
    }
    o->witness_generation = o->witness->generation;
    o->magic = MSI_MAGIC_OPTIM;
    *out = o;
    return MS_OK;
failed:
    free(o);
    return status;
}

void ms_optim_free(ms_optim *optim)
{
    if (optim == NULL) {
        return;
    }
    MSI_HANDLE(optim, MSI_MAGIC_OPTIM);
    if (optim->witness->generation == optim->witness_generation) {
        for (int32_t i = 0; i < optim->n_params; i++) {
            for (int32_t s = 0; s < MSI_OPTIM_MAX_STATES; s++) {
                msi_storage_release(optim->params[i].state[s].storage);
            }
            ms_tensor_free(optim->params[i].tensor);
        }
        ms_tensor_free(optim->witness);
    }
    free(optim->groups);
    free(optim->named);
    free(optim->params);
    free(optim);
}

static ms_status check_param(const ms_optim *optim, ms_tensor *const *params, int32_t i)
{
    const ms_tensor *t = params[i];

    if (t == NULL || t->ctx != optim->ctx) {
        return MS_FAIL(MS_VALUE_ERROR, "parameter %d of the group is %s", i,
                       t == NULL ? "NULL" : "of another context");
    }
    if (t->grad_fn != NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "can't optimize a non-leaf Tensor");
    }
    if (!ms_dtype_is_floating(t->v.dtype)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "can't optimize a tensor of dtype %s, expected f32, f64, bf16 or f16",
                       ms_dtype_name(t->v.dtype));
    }
    if (t->param == NULL && !msi_view_contiguous(&t->v)) {
        return MS_FAIL(MS_VALUE_ERROR, "can't optimize a tensor of shape %s with gaps",
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    return MS_OK;
}

static int compare_pointers(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (ms_tensor *const *)a, y = (uintptr_t) * (ms_tensor *const *)b;

    return (x > y) - (x < y);
}

/* Error if a tensor occurs twice among present and new parameters. Sorts, for many groups. */
static ms_status check_distinct(const ms_optim *optim, ms_tensor *const *params, int32_t n_params)
{
    int64_t n = (int64_t)optim->n_params + n_params;
    ms_tensor **all;
    bool distinct = true;

    MS_TRY(msi_new_array(&all, n, "parameters"));
    for (int32_t i = 0; i < optim->n_params; i++) {
        all[i] = optim->params[i].tensor;
    }
    for (int32_t i = 0; i < n_params; i++) {
        all[optim->n_params + i] = params[i];
    }
    qsort(all, (size_t)n, sizeof(ms_tensor *), compare_pointers);
    for (int64_t i = 1; i < n; i++) {
        distinct = distinct && all[i] != all[i - 1];
    }
    free(all);
    return distinct
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "some parameters appear in more than one parameter group");
}

ms_status ms_optim_add_group(ms_optim *optim, ms_tensor *const *params, int32_t n_params,
                             const ms_optim_options *options, int32_t *group)
{
    ms_optim_options taken = optim->rule->defaults;

    MS_TRY(msi_optim_alive(optim));
    if (options != NULL) {
        MS_TRY(msi_optim_options_take(&taken, options));
    }
    for (int32_t i = 0; i < n_params; i++) {
        MS_TRY(check_param(optim, params, i));
    }
    MS_TRY(check_distinct(optim, params, n_params));

    ms_optim_options *groups =
        realloc(optim->groups, ((size_t)optim->n_groups + 1) * sizeof(*groups));
    if (groups != NULL) {
        optim->groups = groups;
    }
    msi_optim_param *all =
        realloc(optim->params, ((size_t)optim->n_params + (size_t)n_params + 1) * sizeof(*all));
    if (all != NULL) {
        optim->params = all;
    }
    msi_named_group *named = realloc(optim->named, ((size_t)optim->n_groups + 1) * sizeof(*named));
    if (named != NULL) {
        optim->named = named;
    }
    if (groups == NULL || all == NULL || named == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a group of %d parameters", n_params);
    }
    for (int32_t i = 0; i < n_params; i++) {
        all[optim->n_params++] =
            (msi_optim_param){.tensor = ms_tensor_retain(params[i]), .group = optim->n_groups};
    }
    groups[optim->n_groups] = taken;
    if (group != NULL) {
        *group = optim->n_groups;
    }
    optim->n_groups++;
    return MS_OK;
}

int32_t ms_optim_n_groups(const ms_optim *optim)
{
    return optim->n_groups;
}

static ms_status check_group(const ms_optim *optim, int32_t group)
{
    if (group < 0 || group >= optim->n_groups) {
        return MS_FAIL(MS_INDEX_ERROR, "parameter group %d of an optimizer with %d", group,
                       optim->n_groups);
    }
    return MS_OK;
}

ms_status ms_optim_options_get(const ms_optim *optim, int32_t group, ms_optim_options *o)
{
    MS_TRY(check_group(optim, group));
    return msi_optim_options_give(o, &optim->groups[group]);
}

ms_status ms_optim_options_set(ms_optim *optim, int32_t group, const ms_optim_options *o)
{
    MS_TRY(check_group(optim, group));
    return msi_optim_options_take(&optim->groups[group], o);
}

ms_status ms_optim_zero_grad(ms_optim *optim)
{
    MSI_HANDLE(optim, MSI_MAGIC_OPTIM);
    MS_TRY(msi_optim_alive(optim));
    for (int32_t i = 0; i < optim->n_params; i++) {
        MS_TRY(msi_param_check_gradient(optim->params[i].tensor, "zero_grad"));
    }
    for (int32_t i = 0; i < optim->n_params; i++) {
        MS_TRY(ms_tensor_set_grad(optim->params[i].tensor, NULL));
    }
    return MS_OK;
}

int32_t ms_optim_n_params(const ms_optim *optim)
{
    MSI_HANDLE(optim, MSI_MAGIC_OPTIM);
    return optim->n_params;
}

int32_t ms_optim_n_states(const ms_optim *optim)
{
    return msi_rule_n_states(optim->rule);
}

const char *ms_optim_state_name(const ms_optim *optim, int32_t state)
{
    return state >= 0 && state < ms_optim_n_states(optim) ? optim->rule->state[state].name : "";
}

static ms_status check_index(const ms_optim *optim, int32_t i)
{
    MS_TRY(msi_optim_alive(optim));
    if (i < 0 || i >= optim->n_params) {
        return MS_FAIL(MS_INDEX_ERROR, "parameter %d of an optimizer with %d", i, optim->n_params);
    }
    return MS_OK;
}

/* The same, after waiting for enqueued steps. */
static ms_status check_settled(const ms_optim *optim, int32_t i)
{
    MS_TRY(check_index(optim, i));
    MS_TRY(msi_settle(optim->ctx));
    return MS_OK;
}

ms_status ms_optim_param(ms_tensor **out, const ms_optim *optim, int32_t i)
{
    *out = NULL;
    MS_TRY(check_index(optim, i));
    *out = ms_tensor_retain(optim->params[i].tensor);
    return MS_OK;
}

ms_status msi_optim_local(ms_tensor *t, msi_view *local)
{
    if (t->param == NULL) {
        int64_t numel = msi_view_numel(&t->v);

        *local = t->v;
        msi_view_set_contiguous(local, t->v.dtype, 1, &numel);
        return MS_OK;
    }
    MS_TRY(ms_tensor_materialize(t));
    *local = t->param->master;
    if (local->storage == NULL) {
        const int64_t nothing = 0;

        msi_view_set_contiguous(local, t->param->dtype, 1, &nothing);
    }
    return MS_OK;
}

ms_status msi_optim_ensure_state(ms_optim *optim, msi_optim_param *p, int32_t state,
                                 const msi_view *local)
{
    msi_view *view = &p->state[state];
    ms_status status;

    if (view->storage != NULL) {
        if (view->dtype != local->dtype || !msi_view_same_shape(view, local)) {
            return MS_FAIL(MS_RUNTIME_ERROR,
                           "%s of %s has %lld elements of %s, the parameter now has %lld of %s; "
                           "make the optimizer after the model is sharded or cast",
                           optim->rule->state[state].name, msi_tensor_label(p->tensor),
                           (long long)msi_view_numel(view), ms_dtype_name(view->dtype),
                           (long long)msi_view_numel(local), ms_dtype_name(local->dtype));
        }
        return MS_OK;
    }
    const int64_t nbytes = msi_view_numel(local) * ms_dtype_size(local->dtype);
    const int32_t first = optim->rule->state[state].first;
    msi_storage *made;

    MS_TRY(local->storage != NULL
               ? msi_storage_new_beside(&made, local->storage, nbytes, MS_MEM_OPTIMIZER)
               : msi_storage_new(&made, optim->ctx, nbytes, MS_MEM_OPTIMIZER));
    *view = *local;
    view->storage = made;
    view->offset = 0;
    status = msi_fill(
        view, first != MSI_OPTION_NONE ? msi_option_value(&optim->groups[p->group], first) : 0);
    if (status != MS_OK) {
        msi_storage_release(view->storage);
        view->storage = NULL;
    }
    return status;
}

static ms_status check_state(const ms_optim *optim, int32_t state)
{
    if (state < 0 || state >= ms_optim_n_states(optim)) {
        return MS_FAIL(MS_INDEX_ERROR, "state %d of an optimizer with %d per parameter", state,
                       ms_optim_n_states(optim));
    }
    return MS_OK;
}

static bool has_state(const ms_optim *optim, const msi_optim_param *p, int32_t state)
{
    if (optim->rule->state[state].is_from_gradient) {
        return p->primed > 0;
    }
    return p->state[state].storage != NULL ||
           msi_rule_uses_state(optim->rule, &optim->groups[p->group], state);
}

ms_status ms_optim_state(ms_tensor **out, ms_optim *optim, int32_t i, int32_t state)
{
    msi_view local;

    *out = NULL;
    MS_TRY(check_settled(optim, i));
    MS_TRY(check_state(optim, state));
    if (!has_state(optim, &optim->params[i], state)) {
        return MS_OK;
    }
    MS_TRY(msi_optim_local(optim->params[i].tensor, &local));
    MS_TRY(msi_optim_ensure_state(optim, &optim->params[i], state, &local));
    return msi_tensor_new(out, optim->ctx, &optim->params[i].state[state]);
}

ms_status ms_optim_steps(const ms_optim *optim, int32_t i, int64_t *steps)
{
    MS_TRY(check_settled(optim, i));
    *steps = optim->params[i].steps;
    return MS_OK;
}

ms_status ms_optim_steps_set(ms_optim *optim, int32_t i, int64_t steps)
{
    MS_TRY(check_settled(optim, i));
    if (steps < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "a parameter has taken 0 or more steps, got %lld",
                       (long long)steps);
    }
    optim->params[i].steps = steps;
    optim->n_taken = 0;
    return MS_OK;
}

ms_status ms_optim_state_set(ms_optim *optim, int32_t i, int32_t state, bool exists)
{
    msi_optim_param *p;
    msi_view local;
    bool is_from_gradient;

    MS_TRY(check_settled(optim, i));
    MS_TRY(check_state(optim, state));
    if (optim->rule->state[state].needs == MSI_OPTION_NONE) {
        return MS_FAIL(MS_VALUE_ERROR, "%s always has the state '%s'", optim->rule->name,
                       ms_optim_state_name(optim, state));
    }
    p = &optim->params[i];
    is_from_gradient = optim->rule->state[state].is_from_gradient;
    if (is_from_gradient && (p->primed > 0) == exists) {
        return MS_OK;
    }
    if (is_from_gradient || !exists) {
        msi_storage_release(p->state[state].storage); /* also if made by a step that failed */
        p->state[state].storage = NULL;
        p->primed = 0;
    }
    if (exists) {
        MS_TRY(msi_optim_local(p->tensor, &local));
        MS_TRY(msi_optim_ensure_state(optim, p, state, &local));
        p->primed = is_from_gradient;
    }
    return MS_OK;
}
