/* Overlap of two views. An in-place write between partly overlapping views would depend on the
 * order of elements.
 *
 * Strides are not negative, and dimensions nest: the span of the inner dimensions does not exceed a
 * dimension's stride, except for expanded ones (stride 0). */
#include "tensor.h"

#include <string.h>

/* Numbers stride * x, low <= x <= high. */
typedef struct term {
    int64_t stride, low, high;
} term;

/* A sum of terms with distinct strides, longest first. */
typedef struct sum {
    term term[2 * MS_MAX_DIMS + 1];
    int32_t n;
} sum;

static void add_term(sum *s, int64_t stride, int64_t low, int64_t high)
{
    int32_t i = 0;

    while (i < s->n && s->term[i].stride > stride) {
        i++;
    }
    if (i < s->n && s->term[i].stride == stride) {
        s->term[i].low += low;
        s->term[i].high += high;
        return;
    }
    memmove(&s->term[i + 1], &s->term[i], sizeof(term) * (size_t)(s->n - i));
    s->term[i] = (term){stride, low, high};
    s->n++;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* True if the terms from `first` on can sum to `value`. The span of the shorter strides leaves few
 * x to try. */
static bool reaches(const sum *s, int32_t first, int64_t value)
{
    const term *t = &s->term[first];
    int64_t low = 0, high = 0;

    if (first == s->n) {
        return value == 0;
    }
    for (int32_t i = first + 1; i < s->n; i++) {
        low += s->term[i].stride * s->term[i].low;
        high += s->term[i].stride * s->term[i].high;
    }
    int64_t from = -floor_div(high - value, t->stride), to = floor_div(value - low, t->stride);

    from = from > t->low ? from : t->low;
    to = to < t->high ? to : t->high;
    for (int64_t x = from; x <= to; x++) {
        if (reaches(s, first + 1, value - t->stride * x)) {
            return true;
        }
    }
    return false;
}

bool msi_view_shares(const msi_view *a, const msi_view *b)
{
    const char *at = msi_view_address(a), *bt = msi_view_address(b);
    const int64_t a_size = ms_dtype_size(a->dtype), b_size = ms_dtype_size(b->dtype);
    int64_t a_span = a_size, b_span = b_size;
    sum s = {.n = 0};

    if (at == NULL || bt == NULL || msi_view_numel(a) == 0 || msi_view_numel(b) == 0) {
        return false;
    }
    for (int32_t d = 0; d < a->ndim; d++) {
        a_span += a->stride[d] * (a->shape[d] - 1) * a_size;
    }
    for (int32_t d = 0; d < b->ndim; d++) {
        b_span += b->stride[d] * (b->shape[d] - 1) * b_size;
    }
    if ((uintptr_t)at >= (uintptr_t)bt + (uintptr_t)b_span ||
        (uintptr_t)bt >= (uintptr_t)at + (uintptr_t)a_span) {
        return false;
    }
    /* Byte of a minus byte of b equals the distance of their starts. */
    for (int32_t d = 0; d < a->ndim; d++) {
        if (a->shape[d] > 1 && a->stride[d] > 0) {
            add_term(&s, a->stride[d] * a_size, 0, a->shape[d] - 1);
        }
    }
    for (int32_t d = 0; d < b->ndim; d++) {
        if (b->shape[d] > 1 && b->stride[d] > 0) {
            add_term(&s, b->stride[d] * b_size, 1 - b->shape[d], 0);
        }
    }
    add_term(&s, 1, 1 - b_size, a_size - 1);
    return reaches(&s, 0, (int64_t)((intptr_t)bt - (intptr_t)at));
}

/* True if element i of one is element i of the other, for all i. */
static bool same_elements(const msi_view *a, const msi_view *b)
{
    int32_t i = 0, j = 0;

    if (msi_view_address(a) != msi_view_address(b) || a->dtype != b->dtype) {
        return false;
    }
    for (;;) {
        for (; i < a->ndim && a->shape[i] == 1; i++) {
        }
        for (; j < b->ndim && b->shape[j] == 1; j++) {
        }
        if (i == a->ndim || j == b->ndim) {
            return i == a->ndim && j == b->ndim;
        }
        if (a->shape[i] != b->shape[j] || a->stride[i] != b->stride[j]) {
            return false;
        }
        i++;
        j++;
    }
}

ms_status msi_check_source(const char *op, const msi_view *dst, const msi_view *src)
{
    if (MSI_UNLIKELY(msi_view_shares(dst, src) && !same_elements(dst, src))) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "%s: the source of shape %s overlaps the tensor of shape %s it is written "
                       "to without being the same view: the result would depend on the order of "
                       "writing; clone the source first",
                       op, msi_shape_text(src->ndim, src->shape),
                       msi_shape_text(dst->ndim, dst->shape));
    }
    return MS_OK;
}

ms_status msi_check_expanded(const char *op, const msi_view *dst)
{
    for (int32_t d = 0; d < dst->ndim; d++) {
        if (MSI_UNLIKELY(dst->stride[d] == 0 && dst->shape[d] > 1)) {
            return MS_FAIL(MS_RUNTIME_ERROR,
                           "%s: elements of the tensor of shape %s overlap (it is expanded along "
                           "dimension %d); write to a clone of it",
                           op, msi_shape_text(dst->ndim, dst->shape), (int)d);
        }
    }
    return MS_OK;
}
