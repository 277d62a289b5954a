/* Drawing and shapes for random programs. */
#include "program.h"

#include <float.h>

int32_t below(uint64_t *rng, int32_t n)
{
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((*rng >> 33) % (uint64_t)n);
}

double uniform(uint64_t *rng)
{
    return below(rng, 1 << 30) * 0x1p-30;
}

int64_t numel_of(const form *f)
{
    int64_t n = 1;

    for (int32_t d = 0; d < f->ndim; d++) {
        n *= f->shape[d];
    }
    return n;
}

bool is_float(const form *f)
{
    return ms_dtype_is_floating(f->dtype);
}

bool same_form(const form *a, const form *b)
{
    bool same = a->dtype == b->dtype && a->ndim == b->ndim;

    for (int32_t d = 0; same && d < a->ndim; d++) {
        same = a->shape[d] == b->shape[d];
    }
    return same;
}

real unit_of(int32_t dtype)
{
    return dtype == MS_DTYPE_F64    ? 0x1p-53L
           : dtype == MS_DTYPE_F32  ? 0x1p-24L
           : dtype == MS_DTYPE_BF16 ? 0x1p-8L
           : dtype == MS_DTYPE_F16  ? 0x1p-11L
                                    : 0;
}

real compute_unit_of(int32_t dtype)
{
    return ms_dtype_is_narrow(dtype) ? 0x1p-24L : unit_of(dtype);
}

real largest_of(int32_t dtype)
{
    return dtype == MS_DTYPE_F64    ? (real)DBL_MAX
           : dtype == MS_DTYPE_F32  ? (real)FLT_MAX
           : dtype == MS_DTYPE_BF16 ? 0x1.fep127L
           : dtype == MS_DTYPE_F16  ? 65504.0L
           : dtype == MS_DTYPE_I32  ? 0x1p30L
                                    : 0x1p62L;
}

void set_form(array *out, int32_t dtype, int32_t ndim, const int64_t *shape)
{
    out->form = (form){.dtype = dtype, .ndim = ndim};
    for (int32_t d = 0; d < ndim; d++) {
        out->form.shape[d] = shape[d];
    }
    out->n = numel_of(&out->form);
    assert_true(out->n <= MAX_NUMEL);
    for (int64_t i = 0; i < out->n; i++) {
        out->slack[i] = 0;
    }
}

int64_t broadcast_at(const form *in, int32_t ndim, const int64_t *shape, int64_t i)
{
    int64_t at = 0, stride = 1;

    for (int32_t d = ndim - 1; d >= 0; d--) {
        const int32_t own = d - (ndim - in->ndim);
        const int64_t index = i % shape[d];

        i /= shape[d];
        if (own >= 0) {
            at += in->shape[own] == 1 ? 0 : index * stride;
            stride *= in->shape[own];
        }
    }
    return at;
}

void draw_broadcast(form *out, const form *f, uint64_t *rng)
{
    const int32_t skip = below(rng, 3) == 0 ? below(rng, f->ndim + 1) : 0;

    bool widened = false; /* one size of 1 may meet a larger one */

    *out = (form){.dtype = f->dtype, .ndim = f->ndim - skip};
    for (int32_t d = skip; d < f->ndim; d++) {
        const int64_t n = f->shape[d];

        if (n == 1 && !widened && below(rng, 3) == 0) {
            out->shape[d - skip] = 3;
            widened = true;
        } else {
            out->shape[d - skip] = below(rng, 4) == 0 ? 1 : n;
        }
    }
}

void broadcast_shape(const form *a, const form *b, int32_t *ndim, int64_t *shape)
{
    *ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int32_t d = 0; d < *ndim; d++) {
        const int32_t i = d - (*ndim - a->ndim), j = d - (*ndim - b->ndim);
        const int64_t m = i < 0 ? 1 : a->shape[i], n = j < 0 ? 1 : b->shape[j];

        shape[d] = m == 1 ? n : m;
    }
}
