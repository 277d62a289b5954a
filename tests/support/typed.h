/* Arrays of f32, f64, bf16 or f16 seen as doubles: what kernel tests fill, run and compare. The
 * conversions are plain scalar code of their own, those of f16 the compiler's. */
#ifndef MS_TYPED_H
#define MS_TYPED_H

#include "ms_test.h"

typedef struct typed {
    int32_t dtype;
    int64_t n;
    void *data; /* from malloc, exactly n elements, so sanitizers see an overrun */
} typed;

static inline double typed_get(const typed *t, int64_t i)
{
    if (t->dtype == MS_DTYPE_F64) {
        return ((const double *)t->data)[i];
    }
    if (t->dtype == MS_DTYPE_F32) {
        return ((const float *)t->data)[i];
    }
    if (t->dtype == MS_DTYPE_F16) {
        return (double)((const _Float16 *)t->data)[i];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)t->data)[i] << 16;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Rounds to nearest even, through f32 for bf16 and f16 (fillers have few enough bits not to round
 * twice in a way that matters: what was stored is read back with typed_get()). */
static inline void typed_set(typed *t, int64_t i, double value)
{
    if (t->dtype == MS_DTYPE_F64) {
        ((double *)t->data)[i] = value;
        return;
    }
    if (t->dtype == MS_DTYPE_F32) {
        ((float *)t->data)[i] = (float)value;
        return;
    }
    if (t->dtype == MS_DTYPE_F16) {
        ((_Float16 *)t->data)[i] = (_Float16)(float)value;
        return;
    }
    float x = (float)value;
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits += isnan(x) ? 0 : 0x7fffu + ((bits >> 16) & 1);
    ((uint16_t *)t->data)[i] = (uint16_t)(bits >> 16);
}

static inline int64_t typed_nbytes(const typed *t)
{
    return t->n * (t->dtype == MS_DTYPE_F64 ? 8 : t->dtype == MS_DTYPE_F32 ? 4 : 2);
}

static inline typed typed_make(int32_t dtype, int64_t n)
{
    typed t = {.dtype = dtype, .n = n};
    int64_t nbytes = typed_nbytes(&t);

    t.data = malloc(nbytes > 0 ? (size_t)nbytes : 1);
    if (t.data == NULL) {
        abort();
    }
    return t;
}

/* n elements of filler stream `stream`. */
static inline typed typed_filled(int32_t dtype, int64_t n, uint64_t stream)
{
    typed t = typed_make(dtype, n);

    for (int64_t i = 0; i < n; i++) {
        typed_set(&t, i, filler(stream, i));
    }
    return t;
}

static inline typed typed_copy(const typed *from)
{
    typed t = typed_make(from->dtype, from->n);

    memcpy(t.data, from->data, (size_t)typed_nbytes(&t));
    return t;
}

static inline void typed_free(typed *t)
{
    free(t->data);
    t->data = NULL;
}

/* Half a unit in the last place, relative. */
static inline double typed_epsilon(int32_t dtype)
{
    return dtype == MS_DTYPE_F64   ? 0x1p-53
           : dtype == MS_DTYPE_F32 ? 0x1p-24
           : dtype == MS_DTYPE_F16 ? 0x1p-11
                                   : 0x1p-8;
}

/* The most that rounding to a dtype changes x. Below 2^-14 f16 has steps of 2^-24. */
static inline double typed_rounding(int32_t dtype, double x)
{
    const double relative = typed_epsilon(dtype) * fabs(x);

    return dtype == MS_DTYPE_F16 && relative < 0x1p-25 ? 0x1p-25 : relative;
}

#endif
