/* Parameters: declared without memory, materialized whole or, by a unit, shard by shard. */
#include "array.h"
#include "op.h"

#include <stdlib.h>
#include <string.h>

static ms_status new_param(ms_tensor *t)
{
    msi_param *p;

    MS_TRY(msi_new_array(&p, 1, "parameter record"));
    p->seed = t->ctx->seed;
    p->dtype = t->v.dtype;
    p->ndim = t->v.ndim;
    memcpy(p->shape, t->v.shape, sizeof(p->shape));
    t->param = p;
    t->v.storage->meta = false; /* values will follow */
    t->requires_grad = true;
    return MS_OK;
}

ms_status ms_tensor_parameter(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape,
                              int32_t init, double a, double b)
{
    if (!ms_dtype_is_floating(dtype)) {
        *out = NULL;
        return MS_FAIL(MS_TYPE_ERROR, "a parameter has a floating dtype, got %s",
                       ms_dtype_name(dtype));
    }
    MS_TRY(msi_init_check(init));
    MS_TRY(ms_tensor_meta(out, dtype, ndim, shape));
    ms_status status = new_param(*out);

    if (status != MS_OK) {
        ms_tensor_free(*out);
        *out = NULL;
        return status;
    }
    (*out)->param->init = init;
    (*out)->param->a = a;
    (*out)->param->b = b;
    return ms_scope_keep(*out); /* parameters outlive their scope */
}

/* The master is the tensor's own memory. */
static void adopt_master(ms_tensor *t)
{
    msi_param *p = t->param;
    int64_t numel = msi_view_numel(&t->v);

    p->master = t->v;
    msi_view_set_contiguous(&p->master, t->v.dtype, 1, &numel);
    msi_storage_retain(p->master.storage);
    p->drawn = p->master.storage->version;
    p->start = 0;
    p->materialized = true;
}

ms_status ms_tensor_make_parameter(ms_tensor *t)
{
    if (t->param != NULL) {
        return MS_OK;
    }
    msi_op_host(t->ctx, "a tensor becomes a parameter");
    if (t->grad_fn != NULL || !ms_dtype_is_floating(t->v.dtype)) {
        return MS_FAIL(MS_TYPE_ERROR, "a parameter is a floating leaf, got a %s of dtype %s",
                       t->grad_fn != NULL ? "recorded result" : "tensor",
                       ms_dtype_name(t->v.dtype));
    }
    if (!msi_view_contiguous(&t->v)) {
        return MS_FAIL(MS_VALUE_ERROR, "a parameter is contiguous, got shape %s with gaps",
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    MS_TRY(new_param(t));
    if (t->v.storage->kind == MS_STORAGE_OWNED) {
        msi_mem_set_kind(t->v.storage->block, MS_MEM_PARAMETER);
        t->v.storage->mem_kind = MS_MEM_PARAMETER;
    }
    if (t->v.storage->kind != MS_STORAGE_NONE) {
        adopt_master(t);
    }
    return ms_scope_keep(t);
}

/* Make errors of an unmaterialized parameter show its name; it owns the text. */
static void label(ms_tensor *t)
{
    if (t->v.storage->kind == MS_STORAGE_NONE) {
        t->v.storage->absent = t->param->name;
    }
}

ms_status ms_tensor_set_name(ms_tensor *t, const char *name)
{
    char *copy;

    if (t->param == NULL) {
        return MS_FAIL(MS_TYPE_ERROR, "only parameters have names");
    }
    copy = strdup(name);
    if (copy == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the name '%s'", name);
    }
    free(t->param->name);
    t->param->name = copy;
    label(t);
    return MS_OK;
}

ms_status ms_tensor_name(const ms_tensor *t, const char **name)
{
    *name = t->param != NULL && t->param->name != NULL ? t->param->name : "";
    return MS_OK;
}

ms_status ms_tensor_set_stream(ms_tensor *t, int64_t stream)
{
    if (t->param == NULL) {
        return MS_FAIL(MS_TYPE_ERROR, "only parameters have random streams");
    }
    t->param->stream = stream;
    return MS_OK;
}

ms_status ms_tensor_initial_zeros(ms_tensor *t, int64_t first, int64_t n)
{
    if (t->param == NULL) {
        return MS_FAIL(MS_TYPE_ERROR, "only parameters have initial values");
    }
    const int64_t numel = msi_view_numel(&t->v);

    if (first < 0 || n < 0 || first > numel - n) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "initial_zeros: %lld elements from %lld, expected a range of the %lld "
                       "elements of %s",
                       (long long)n, (long long)first, (long long)numel, msi_tensor_label(t));
    }
    t->param->zero_first = first;
    t->param->zero_n = n;
    return MS_OK;
}

ms_status msi_param_draw(const msi_param *p, const msi_init_args *args, int32_t dtype)
{
    const int64_t begin = p->zero_first > args->first ? p->zero_first : args->first;
    const int64_t last = args->first + args->n, zero_end = p->zero_first + p->zero_n;
    msi_init_args zeros = {.kind = MS_INIT_CONSTANT};

    MS_TRY(msi_dispatch("init", MSI_K_init, dtype, args));
    zeros.n = (zero_end < last ? zero_end : last) - begin;
    if (zeros.n <= 0) {
        return MS_OK;
    }
    zeros.out = (char *)args->out + (begin - args->first) * ms_dtype_size(dtype);
    return msi_dispatch("init", MSI_K_init, dtype, &zeros);
}

uint64_t msi_param_key(const msi_param *p, const char *name)
{
    return ms_stream_key(p->name != NULL ? p->name : name, p->stream);
}

ms_status ms_tensor_materialize(ms_tensor *t)
{
    msi_param *p = t->param;
    msi_view v = {0};

    if (p == NULL) {
        return MS_FAIL(MS_TYPE_ERROR, "materialize: the tensor of shape %s is no parameter",
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    if (p->materialized) {
        return MS_OK;
    }
    if (p->unit != NULL) {
        return p->ops->materialize(p->unit);
    }
    msi_op_host(t->ctx, "a parameter gets its initial values");
    msi_init_args args = {.n = msi_view_numel(&t->v),
                          .kind = p->init,
                          .a = p->a,
                          .b = p->b,
                          .key = msi_param_key(p, ""),
                          .seed = p->seed};

    msi_view_set_contiguous(&v, p->dtype, p->ndim, p->shape);
    MS_TRY(msi_storage_new(&v.storage, t->ctx, args.n * ms_dtype_size(p->dtype), MS_MEM_PARAMETER));
    args.out = v.storage->data;
    ms_status status =
        p->init == MS_INIT_NONE ? msi_fill(&v, 0) : msi_param_draw(p, &args, p->dtype);

    if (status == MS_OK) {
        msi_tensor_rebind(t, &v);
        adopt_master(t);
    }
    msi_storage_release(v.storage);
    return status;
}

uint64_t msi_params_fold(uint64_t h, uint64_t values, const char *name)
{
    return msi_mix64(h ^ values) + ms_name_key(name);
}

ms_status ms_params_hash(ms_tensor *const *params, int32_t n_params, uint64_t *hash)
{
    uint64_t h = 0, values;

    msi_op_host(msi_context(), "the host reads values of a tensor");
    for (int32_t i = 0; i < n_params; i++) {
        const ms_tensor *t = params[i];

        if (t->param != NULL && t->param->unit != NULL) {
            return MS_FAIL(MS_RUNTIME_ERROR,
                           "hash: %s is sharded, its values are on all ranks; call hash() of the "
                           "model that FSDP wraps",
                           msi_tensor_label(t));
        }
        MS_TRY(msi_view_hash(&t->v, &values));
        h = msi_params_fold(h, values, msi_tensor_label(t));
    }
    *hash = h;
    return MS_OK;
}

static ms_status check_cast(const ms_tensor *t)
{
    if (t->param == NULL) {
        return MS_FAIL(MS_TYPE_ERROR, "cast: the tensor of shape %s is no parameter",
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    if (t->leaf_node != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "cast: a graph that waits for its backward holds %s; run that, or release "
                       "what was computed",
                       msi_tensor_label(t));
    }
    return MS_OK;
}

/* Casts value and gradient, or neither. */
static ms_status cast_param(ms_tensor *t, int32_t dtype)
{
    msi_param *p = t->param;
    msi_view values, grad;

    if (p->dtype == dtype) {
        return MS_OK;
    }
    if (p->unit != NULL) {
        return p->ops->cast(p->unit, dtype);
    }
    if (!p->materialized) {
        p->dtype = t->v.dtype = (int8_t)dtype;
        return MS_OK;
    }
    MS_TRY(msi_view_like(&values, t->ctx, &t->v, dtype, MS_MEM_PARAMETER, true));
    if (t->grad != NULL) {
        ms_status status = msi_view_like(&grad, t->ctx, &t->grad->v, dtype, MS_MEM_GRADIENT, true);

        if (status != MS_OK) {
            msi_storage_release(values.storage);
            return status;
        }
        msi_tensor_rebind(t->grad, &grad);
        msi_storage_release(grad.storage);
    }
    msi_tensor_rebind(t, &values);
    msi_storage_release(values.storage);
    msi_storage_release(p->master.storage);
    p->dtype = dtype;
    adopt_master(t);
    p->drawn = -1; /* rounded values follow no rule */
    return MS_OK;
}

ms_status ms_params_cast(ms_tensor *const *params, int32_t n_params, int32_t dtype)
{
    if (!ms_dtype_is_floating(dtype)) {
        return MS_FAIL(MS_TYPE_ERROR, "a parameter has a floating dtype, got %s",
                       ms_dtype_name(dtype));
    }
    msi_op_host(msi_context(), "the dtype of parameters is changed");
    for (int32_t i = 0; i < n_params; i++) {
        MS_TRY(check_cast(params[i]));
    }
    for (int32_t i = 0; i < n_params; i++) {
        MS_TRY(cast_param(params[i], dtype));
    }
    return MS_OK;
}

ms_status msi_param_check_master(const ms_tensor *t, const char *what)
{
    const msi_param *p = t->param;

    return p != NULL && p->ops != NULL && p->ops->check_master != NULL
               ? p->ops->check_master(p->unit, what)
               : MS_OK;
}

ms_status msi_param_check_gradient(const ms_tensor *t, const char *what)
{
    const msi_param *p = t->param;

    return p != NULL && p->ops != NULL && p->ops->check_gradient != NULL
               ? p->ops->check_gradient(p->unit, what)
               : MS_OK;
}

ms_status msi_param_await_gradient(const ms_tensor *t)
{
    const msi_param *p = t->param;

    return p != NULL && p->ops != NULL && p->ops->await_gradient != NULL
               ? p->ops->await_gradient(p->unit)
               : MS_OK;
}

void msi_param_touched(const ms_tensor *t)
{
    const msi_param *p = t->param;

    if (p != NULL && p->ops != NULL && p->ops->touched != NULL) {
        p->ops->touched(p->unit, p->unit_index);
    }
}
