/* Making tensors, and reading and writing their elements. */
#include "op.h"

#include <stdio.h>
#include <string.h>

static ms_status check_shape(int32_t dtype, int32_t ndim, const int64_t *shape)
{
    if (ms_dtype_size(dtype) == 0) {
        return MS_FAIL(MS_VALUE_ERROR, "dtype %d is none, expected 0 to %d", (int)dtype,
                       MS_DTYPE_COUNT - 1);
    }
    if (ndim < 0 || ndim > MS_MAX_DIMS) {
        return MS_FAIL(MS_VALUE_ERROR, "a tensor has 0 to %d dimensions, got %d", MS_MAX_DIMS,
                       (int)ndim);
    }
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0) {
            return MS_FAIL(MS_VALUE_ERROR, "size of dimension %d is %lld, expected 0 or more",
                           (int)i, (long long)shape[i]);
        }
    }
    return MS_OK;
}

/* -- operators without operands ---------------------------------------------------------------- */

typedef struct create_attrs {
    double value; /* of `full` */
    int32_t dtype, ndim;
    int64_t shape[MS_MAX_DIMS];
} create_attrs;

static ms_status create_meta(const msi_meta *m)
{
    const create_attrs *a = m->attrs;

    return msi_result(&m->out[0], a->dtype, a->ndim, a->shape);
}

static ms_status empty_forward(msi_op_call *call)
{
    (void)call;
    return MS_OK;
}

static ms_status full_forward(msi_op_call *call)
{
    return msi_fill(&call->out[0]->v, ((const create_attrs *)call->attrs)->value);
}

static const msi_op op_empty = {.name = "empty",
                                .meta = create_meta,
                                .forward = empty_forward,
                                .attrs_size = sizeof(create_attrs)};
static const msi_op op_full = {.name = "full",
                               .meta = create_meta,
                               .forward = full_forward,
                               .attrs_size = sizeof(create_attrs)};

static ms_status create(ms_tensor **out, const msi_op *op, int32_t dtype, int32_t ndim,
                        const int64_t *shape, double value)
{
    create_attrs attrs = {.value = value, .dtype = dtype, .ndim = ndim};

    *out = NULL;
    MS_TRY(check_shape(dtype, ndim, shape));
    for (int32_t i = 0; i < ndim; i++) {
        attrs.shape[i] = shape[i];
    }
    return msi_op_run(op, &attrs, NULL, 0, out, 1);
}

ms_status ms_tensor_empty(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape)
{
    return create(out, &op_empty, dtype, ndim, shape, 0);
}

/* Return `status`; on failure free the unfinished `*out`. */
static ms_status finish(ms_tensor **out, ms_status status)
{
    if (status != MS_OK) {
        ms_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

ms_status ms_tensor_full(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape,
                         double value)
{
    *out = NULL;
    MS_TRY(ms_dtype_check("full", dtype, value));
    return create(out, &op_full, dtype, ndim, shape, value);
}

/* Copy between a tensor and doubles through a borrowed f64 view. */
static ms_status with_doubles(const ms_tensor *t, double *values, int64_t n, bool write)
{
    msi_view host = {0};
    int64_t numel = msi_view_numel(&t->v);

    if (n != numel) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "got room for %lld values, expected %lld of a tensor of shape %s",
                       (long long)n, (long long)numel, msi_shape_text(t->v.ndim, t->v.shape));
    }
    msi_view_set_contiguous(&host, MS_DTYPE_F64, t->v.ndim, t->v.shape);
    MS_TRY(msi_storage_of_host(&host.storage, t->ctx, values, n * 8));
    const ms_status status = write ? msi_copy(&t->v, &host, false) : msi_copy(&host, &t->v, false);

    msi_storage_release(host.storage);
    return status;
}

ms_status ms_tensor_from_doubles(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape,
                                 const double *values, int64_t n)
{
    msi_op_host(msi_context(), "a tensor is made from values of the host");
    MS_TRY(ms_tensor_empty(out, dtype, ndim, shape));
    const int64_t misfit = ms_dtype_misfit(dtype, values, n);

    if (misfit < n) {
        char what[64];

        snprintf(what, sizeof(what), "tensor_from_doubles: value %lld", (long long)misfit);
        return finish(out, ms_dtype_check(what, dtype, values[misfit]));
    }
    return finish(out, with_doubles(*out, (double *)(uintptr_t)values, n, true));
}

ms_status ms_tensor_to_doubles(const ms_tensor *t, double *values, int64_t n)
{
    msi_op_host(t->ctx, "the host reads values of a tensor");
    MS_TRY(with_doubles(t, values, n, false));
    for (int64_t i = 0; i < n; i++) {
        values[i] = msi_plain_nan(values[i]);
    }
    return MS_OK;
}

ms_status ms_tensor_item(const ms_tensor *t, double *value)
{
    if (msi_view_numel(&t->v) != 1) {
        return MS_FAIL(MS_VALUE_ERROR, "item() needs a tensor with one element, got shape %s",
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    return ms_tensor_to_doubles(t, value, 1);
}

static ms_status wrap(ms_tensor **out, int32_t kind, int32_t dtype, int32_t ndim,
                      const int64_t *shape, void *data)
{
    msi_view v = {0};
    ms_context *ctx = msi_context();

    *out = NULL;
    MS_TRY(check_shape(dtype, ndim, shape));
    MS_TRY(msi_view_make(&v, dtype, ndim, shape));
    const int64_t nbytes = msi_view_numel(&v) * ms_dtype_size(dtype);

    MS_TRY(kind == MS_STORAGE_BORROWED ? msi_storage_of_host(&v.storage, ctx, data, nbytes)
                                       : msi_storage_wrap(&v.storage, ctx, kind, data, nbytes));
    ms_status status = msi_tensor_new(out, ctx, &v);

    msi_storage_release(v.storage);
    return status;
}

ms_status ms_tensor_borrow(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape,
                           void *data)
{
    msi_op_host(msi_context(), "a tensor is made from memory of the host");
    return wrap(out, MS_STORAGE_BORROWED, dtype, ndim, shape, data);
}

ms_status ms_tensor_meta(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape)
{
    MS_TRY(wrap(out, MS_STORAGE_NONE, dtype, ndim, shape, NULL));
    (*out)->v.storage->meta = true;
    return MS_OK;
}

/* Check that an integer dtype can hold `n` numbers from `start`. */
static ms_status check_count(int32_t dtype, double start, double step, int64_t n)
{
    int64_t last = 0;

    MS_TRY(ms_dtype_check("arange: the start", dtype, start));
    MS_TRY(ms_dtype_check("arange: the step", MS_DTYPE_I64, step));
    if (n > 0 && (__builtin_mul_overflow((int64_t)step, n - 1, &last) ||
                  __builtin_add_overflow((int64_t)start, last, &last))) {
        return MS_FAIL(MS_VALUE_ERROR, "arange: %lld numbers from %.17g by %.17g do not fit in %s",
                       (long long)n, start, step, ms_dtype_name(dtype));
    }
    return dtype == MS_DTYPE_I64 ? MS_OK
                                 : ms_dtype_check("arange: the last number", dtype, (double)last);
}

typedef struct arange_attrs {
    double start, step;
    int64_t n;
    int32_t dtype;
} arange_attrs;

static ms_status arange_meta(const msi_meta *m)
{
    const arange_attrs *a = m->attrs;

    return msi_result(&m->out[0], a->dtype, 1, &a->n);
}

static ms_status arange_forward(msi_op_call *call)
{
    enum { CHUNK = 256 };
    const arange_attrs *a = call->attrs;
    const bool whole = !ms_dtype_is_floating(a->dtype) && a->dtype != MS_DTYPE_BOOL;
    union {
        double real[CHUNK];
        int64_t whole[CHUNK];
    } values;
    msi_view chunk = {0};
    ms_status status = msi_storage_of_host(&chunk.storage, call->ctx, &values, sizeof(values));

    for (int64_t first = 0; first < a->n && status == MS_OK; first += CHUNK) {
        int64_t count = a->n - first < CHUNK ? a->n - first : CHUNK;
        msi_view part = call->out[0]->v;

        for (int64_t i = 0; i < count; i++) {
            if (whole) {
                values.whole[i] = (int64_t)a->start + (int64_t)a->step * (first + i);
            } else {
                values.real[i] = a->start + a->step * (double)(first + i);
            }
        }
        part.offset += first;
        part.shape[0] = count;
        msi_view_set_contiguous(&chunk, whole ? MS_DTYPE_I64 : MS_DTYPE_F64, 1, &count);
        status = msi_copy(&part, &chunk, false);
    }
    msi_storage_release(chunk.storage);
    return status;
}

static const msi_op op_arange = {.name = "arange",
                                 .meta = arange_meta,
                                 .forward = arange_forward,
                                 .attrs_size = sizeof(arange_attrs),
                                 .constant = true};

ms_status ms_tensor_arange(ms_tensor **out, int32_t dtype, double start, double step, int64_t n)
{
    const arange_attrs attrs = {start, step, n, dtype};

    *out = NULL;
    MS_TRY(check_shape(dtype, 1, &n));
    if (!ms_dtype_is_floating(dtype) && dtype != MS_DTYPE_BOOL) { /* doubles have gaps */
        MS_TRY(check_count(dtype, start, step, n));
    }
    return msi_op_run(&op_arange, &attrs, NULL, 0, out, 1);
}

/* Writes are not recorded, so writing a value that requires grad would lose its gradient. */
static ms_status check_write_of(const ms_tensor *src, const ms_tensor *t, const char *what)
{
    MS_TRY(msi_check_source(what, &t->v, &src->v));
    if (src->requires_grad && ms_dtype_is_floating(t->v.dtype) &&
        src->ctx->recorder->recording(src->ctx)) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "%s: what is written requires grad, and in-place writes are not "
                       "differentiable; build the tensor with ms.cat or ms.where, or write "
                       "x:detach(), or inside ms.no_grad",
                       what);
    }
    return msi_tensor_check_write(t, what);
}

/* End of a write; a failing kernel has written nothing. */
static ms_status written(ms_tensor *t, ms_status status)
{
    t->v.storage->version += status == MS_OK;
    return status;
}

ms_status ms_tensor_check_copy(const ms_tensor *t, const ms_tensor *src, const char *what)
{
    MS_TRY(check_write_of(src, t, what));
    return msi_view_present(&src->v);
}

static ms_status copy_forward(msi_op_call *call)
{
    return msi_copy_of("copy_", &call->out[0]->v, &call->in[0]->v, false);
}

static ms_status fill_forward(msi_op_call *call)
{
    return msi_fill(&call->out[0]->v, *(const double *)call->attrs);
}

static ms_status add_scaled_forward(msi_op_call *call)
{
    const double scalars[2] = {*(const double *)call->attrs, -0.0};
    const msi_view *in = &call->in[0]->v;

    return msi_ew("add_", MSI_K_affine, &call->out[0]->v, &in, 1, scalars, true);
}

static const msi_op op_copy = {.name = "copy_", .forward = copy_forward};
static const msi_op op_fill = {
    .name = "fill_", .forward = fill_forward, .attrs_size = sizeof(double)};
static const msi_op op_add_scaled = {
    .name = "add_", .forward = add_scaled_forward, .attrs_size = sizeof(double)};

/* Run an operator that writes to `t`. */
static ms_status write_to(ms_tensor *t, const msi_op *op, double number, const ms_tensor *src)
{
    ms_tensor *in = (ms_tensor *)(uintptr_t)src;

    return written(t, msi_op_run_into(t->ctx, op, op->attrs_size > 0 ? &number : NULL, &in,
                                      src != NULL, &t, 1));
}

ms_status ms_tensor_copy(ms_tensor *t, const ms_tensor *src)
{
    MS_TRY(check_write_of(src, t, "copy_"));
    return write_to(t, &op_copy, 0, src);
}

ms_status ms_tensor_fill(ms_tensor *t, double value)
{
    MS_TRY(ms_dtype_check("fill_", t->v.dtype, value));
    MS_TRY(msi_tensor_check_write(t, "fill_"));
    return write_to(t, &op_fill, value, NULL);
}

ms_status ms_tensor_add_scaled(ms_tensor *t, const ms_tensor *src, double alpha)
{
    if (src->v.dtype != t->v.dtype) {
        return MS_FAIL(MS_TYPE_ERROR, "add_: dtypes are %s and %s, expected one",
                       ms_dtype_name(t->v.dtype), ms_dtype_name(src->v.dtype));
    }
    MS_TRY(msi_check_number("add_", t->v.dtype, alpha));
    MS_TRY(check_write_of(src, t, "add_"));
    return write_to(t, &op_add_scaled, alpha, src);
}

ms_status msi_init_check(int32_t kind)
{
    return kind >= MS_INIT_NONE && kind <= MS_INIT_NORMAL
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "rule %d for first values is none, expected %d to %d",
                         (int)kind, MS_INIT_NONE, MS_INIT_NORMAL);
}

ms_status ms_tensor_hash(const ms_tensor *t, uint64_t *hash)
{
    msi_op_host(t->ctx, "the host reads values of a tensor");
    return msi_view_hash(&t->v, hash);
}

static ms_status detach_meta(const msi_meta *m)
{
    msi_result_view(&m->out[0], m->in[0]);
    return MS_OK;
}

static const msi_op op_detach = {.name = "detach", .meta = detach_meta};

ms_status ms_tensor_detach(ms_tensor **out, const ms_tensor *t)
{
    ms_tensor *in = (ms_tensor *)(uintptr_t)t;

    return msi_op_run(&op_detach, NULL, &in, 1, out, 1);
}

ms_status ms_tensor_wait(const ms_tensor *t)
{
    msi_op_host(t->ctx, "the host waits for a tensor");
    return msi_settle(t->ctx);
}
