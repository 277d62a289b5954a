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

ms_status ms_tensor_empty(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape)
{
    *out = NULL;
    MS_TRY(check_shape(dtype, ndim, shape));
    return msi_tensor_make(out, msi_context(), dtype, ndim, shape, MS_MEM_ACTIVATION);
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
    MS_TRY(ms_tensor_empty(out, dtype, ndim, shape));
    return finish(out, msi_fill(&(*out)->v, value));
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

ms_status ms_tensor_arange(ms_tensor **out, int32_t dtype, double start, double step, int64_t n)
{
    enum { CHUNK = 256 };
    const bool whole = !ms_dtype_is_floating(dtype) && dtype != MS_DTYPE_BOOL;
    union {
        double real[CHUNK];
        int64_t whole[CHUNK];
    } values;
    msi_view chunk = {0};
    ms_status status;

    *out = NULL;
    if (whole) { /* doubles have gaps beyond 2^53 */
        MS_TRY(check_count(dtype, start, step, n));
    }
    MS_TRY(ms_tensor_empty(out, dtype, 1, &n));
    MS_TRY_GOTO(msi_storage_of_host(&chunk.storage, (*out)->ctx, &values, sizeof(values)), done);
    for (int64_t first = 0; first < n && status == MS_OK; first += CHUNK) {
        int64_t count = n - first < CHUNK ? n - first : CHUNK;
        msi_view part = (*out)->v;

        for (int64_t i = 0; i < count; i++) {
            if (whole) {
                values.whole[i] = (int64_t)start + (int64_t)step * (first + i);
            } else {
                values.real[i] = start + step * (double)(first + i);
            }
        }
        part.offset += first;
        part.shape[0] = count;
        msi_view_set_contiguous(&chunk, whole ? MS_DTYPE_I64 : MS_DTYPE_F64, 1, &count);
        status = msi_copy(&part, &chunk, false);
    }
    msi_storage_release(chunk.storage);
done:
    return finish(out, status);
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

ms_status ms_tensor_copy(ms_tensor *t, const ms_tensor *src)
{
    MS_TRY(check_write_of(src, t, "copy_"));
    return written(t, msi_copy_of("copy_", &t->v, &src->v, false));
}

ms_status ms_tensor_fill(ms_tensor *t, double value)
{
    MS_TRY(ms_dtype_check("fill_", t->v.dtype, value));
    MS_TRY(msi_tensor_check_write(t, "fill_"));
    return written(t, msi_fill(&t->v, value));
}

ms_status ms_tensor_add_scaled(ms_tensor *t, const ms_tensor *src, double alpha)
{
    const double scalars[2] = {alpha, -0.0};
    const msi_view *in = &src->v;

    if (src->v.dtype != t->v.dtype) {
        return MS_FAIL(MS_TYPE_ERROR, "add_: dtypes are %s and %s, expected one",
                       ms_dtype_name(t->v.dtype), ms_dtype_name(src->v.dtype));
    }
    MS_TRY(msi_check_number("add_", t->v.dtype, alpha));
    MS_TRY(check_write_of(src, t, "add_"));
    return written(t, msi_ew("add_", MSI_K_affine, &t->v, &in, 1, scalars, true));
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
    return msi_view_hash(&t->v, hash);
}
