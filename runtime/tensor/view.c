/* Views: arithmetic of shapes and strides, no memory. */
#include "tensor.h"

#include <stdio.h>
#include <string.h>

int64_t msi_view_numel(const msi_view *v)
{
    int64_t n = 1;

    for (int32_t i = 0; i < v->ndim; i++) {
        n *= v->shape[i];
    }
    return n;
}

bool msi_view_contiguous(const msi_view *v)
{
    int64_t expected = 1;
    bool dense = true;

    for (int32_t i = v->ndim - 1; i >= 0; i--) {
        if (v->shape[i] == 0) {
            return true; /* for any strides */
        }
        dense = dense && (v->shape[i] == 1 || v->stride[i] == expected);
        expected *= v->shape[i];
    }
    return dense;
}

int64_t msi_view_span(const msi_view *v)
{
    int64_t last = 0;

    for (int32_t i = 0; i < v->ndim; i++) {
        if (v->shape[i] == 0) {
            return 0;
        }
        last += (v->shape[i] - 1) * v->stride[i];
    }
    return last + 1;
}

static ms_status absent(const msi_view *v)
{
    const msi_storage *s = v->storage;

    if (s->kind == MS_STORAGE_NONE && s->absent != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "parameter '%s' has no values yet: call its module's materialize(), or set "
                       "them by nn.init",
                       s->absent);
    }
    if (s->kind == MS_STORAGE_NONE) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "a meta tensor of shape %s has no values yet; a parameter gets some when "
                       "its module is called, or from that module's materialize()",
                       msi_shape_text(v->ndim, v->shape));
    }
    if (s->host != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "a tensor of shape %s is on cpu, and operators of this process run on %s; "
                       "move it with to('%s')",
                       msi_shape_text(v->ndim, v->shape), msi_device_label(s->ctx),
                       ms_device_kind());
    }
    return MS_FAIL(MS_RUNTIME_ERROR, "a tensor of shape %s has no memory now: %s",
                   msi_shape_text(v->ndim, v->shape),
                   s->absent != NULL ? s->absent : "its storage was given up");
}

ms_status msi_view_data(const msi_view *v, void **data)
{
    if (MSI_UNLIKELY(v->storage->data == NULL) && msi_view_numel(v) > 0) {
        return absent(v);
    }
    *data = msi_view_ptr(v);
    return MS_OK;
}

void *msi_view_address(const msi_view *v)
{
    char *base = v->storage->host != NULL ? v->storage->host : v->storage->data;

    return base != NULL ? base + v->offset * ms_dtype_size(v->dtype) : NULL;
}

ms_status msi_view_present(const msi_view *v)
{
    void *data;

    return MSI_UNLIKELY(v->storage->host != NULL) ? MS_OK : msi_view_data(v, &data);
}

void *msi_view_ptr(const msi_view *v)
{
    char *base = v->storage->data;

    return base != NULL ? base + v->offset * ms_dtype_size(v->dtype) : NULL;
}

void msi_view_set_contiguous(msi_view *v, int32_t dtype, int32_t ndim, const int64_t *shape)
{
    int64_t stride = 1;

    v->dtype = (int8_t)dtype;
    v->ndim = (int8_t)ndim;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        v->shape[i] = shape[i];
        v->stride[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
    }
}

bool msi_view_same_shape(const msi_view *a, const msi_view *b)
{
    bool same = a->ndim == b->ndim;

    for (int32_t d = 0; same && d < a->ndim; d++) {
        same = a->shape[d] == b->shape[d];
    }
    return same;
}

/* A size has at most 20 characters and ", " before it. */
_Static_assert(MS_MAX_DIMS * 22 + sizeof("()") <= MSI_PART_TEXT, "a shape is a part of a message");

const char *msi_shape_text(int32_t ndim, const int64_t *shape)
{
    char *text = msi_part_text();
    int n = snprintf(text, MSI_PART_TEXT, "(");

    for (int32_t i = 0; i < ndim; i++) {
        n += snprintf(text + n, MSI_PART_TEXT - (size_t)n, "%s%lld", i > 0 ? ", " : "",
                      (long long)shape[i]);
    }
    snprintf(text + n, MSI_PART_TEXT - (size_t)n, ")");
    return text;
}

ms_status msi_view_make(msi_view *v, int32_t dtype, int32_t ndim, const int64_t *shape)
{
    int64_t stride = 1;

    v->dtype = (int8_t)dtype;
    v->ndim = (int8_t)ndim;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        v->shape[i] = shape[i];
        v->stride[i] = stride;
        if (MSI_UNLIKELY(__builtin_mul_overflow(stride, shape[i] > 0 ? shape[i] : 1, &stride) ||
                         stride > MSI_MAX_NUMEL)) {
            return MS_FAIL(MS_VALUE_ERROR, "a tensor of shape %s has too many elements",
                           msi_shape_text(ndim, shape));
        }
    }
    return MS_OK;
}

ms_status msi_check_sizes(int32_t ndim, const int64_t *shape)
{
    msi_view v;

    return msi_view_make(&v, 0, ndim, shape);
}

ms_status msi_broadcast(const msi_view *a, const msi_view *b, int32_t *ndim, int64_t *shape)
{
    int32_t n = a->ndim > b->ndim ? a->ndim : b->ndim;

    for (int32_t i = 0; i < n; i++) {
        int32_t ia = i - (n - a->ndim), ib = i - (n - b->ndim);
        int64_t sa = ia >= 0 ? a->shape[ia] : 1, sb = ib >= 0 ? b->shape[ib] : 1;

        if (sa != sb && sa != 1 && sb != 1) {
            return MS_FAIL(MS_VALUE_ERROR, "shapes %s and %s do not broadcast: %lld meets %lld",
                           msi_shape_text(a->ndim, a->shape), msi_shape_text(b->ndim, b->shape),
                           (long long)sa, (long long)sb);
        }
        shape[i] = sa == 1 ? sb : sa;
    }
    *ndim = n;
    return MS_OK;
}

void msi_view_expand(const msi_view *v, int32_t ndim, const int64_t *shape, msi_view *out)
{
    const int32_t shift = ndim - v->ndim;

    for (int32_t i = 0; i < ndim; i++) {
        out->stride[i] =
            i < shift || (v->shape[i - shift] == 1 && shape[i] != 1) ? 0 : v->stride[i - shift];
        out->shape[i] = shape[i];
    }
    out->storage = v->storage;
    out->offset = v->offset;
    out->dtype = v->dtype;
    out->ndim = (int8_t)ndim;
}

bool msi_view_reshape(const msi_view *v, int32_t ndim, const int64_t *shape, msi_view *out)
{
    msi_view r = {.storage = v->storage, .offset = v->offset};
    int32_t i = 0, j = 0;

    msi_view_set_contiguous(&r, v->dtype, ndim, shape);
    if (msi_view_contiguous(v)) {
        *out = r;
        return true;
    }
    /* Match groups of old and new dimensions with equal products; inside a group the old ones must
     * be mergeable. */
    while (i < v->ndim || j < ndim) {
        int64_t old_n = i < v->ndim ? v->shape[i] : 1, new_n = j < ndim ? shape[j] : 1;
        int32_t i0 = i, j0 = j;

        i += i < v->ndim;
        j += j < ndim;
        while (old_n != new_n) {
            if (old_n < new_n) {
                old_n *= v->shape[i++];
            } else {
                new_n *= shape[j++];
            }
        }
        int64_t stride = 1; /* of the innermost one with size > 1 */
        int32_t last = -1;

        for (int32_t k = i - 1; k >= i0; k--) {
            if (v->shape[k] == 1) {
                continue; /* size 1: any stride */
            }
            if (last < 0) {
                stride = v->stride[k];
            } else if (v->stride[k] != v->stride[last] * v->shape[last]) {
                return false;
            }
            last = k;
        }
        for (int32_t k = j - 1; k >= j0; k--) {
            r.stride[k] = stride;
            stride *= shape[k];
        }
    }
    *out = r;
    return true;
}

void msi_loop_make(msi_loop *loop, int32_t ndim, const int64_t *shape, const msi_view *const *ops,
                   int32_t n)
{
    int32_t out = 0;

    memset(loop, 0, sizeof(*loop));
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] == 1) {
            continue;
        }
        bool merge = out > 0;

        for (int32_t k = 0; merge && k < n; k++) {
            merge = ops[k] == NULL || loop->stride[k][out - 1] == ops[k]->stride[i] * shape[i];
        }
        if (merge) {
            loop->shape[out - 1] *= shape[i];
        } else {
            loop->shape[out++] = shape[i];
        }
        for (int32_t k = 0; k < n; k++) {
            if (ops[k] != NULL) {
                loop->stride[k][out - 1] = ops[k]->stride[i];
            }
        }
    }
    loop->ndim = out;
}
