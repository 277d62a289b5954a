/* Drawing, shapes and comparison for the rows and their drivers. */
#include "row.h"

#include "tensor.h"

#include <float.h>

enum { MAX_ROWS = 128 };

static const op_row *all[MAX_ROWS];

int32_t collect_rows(const op_row *const **rows)
{
    static const op_row *const families[] = {elementwise_rows, matrix_rows, reduction_rows,
                                             shape_rows,       gather_rows, spatial_rows};
    int32_t n = 0;

    for (int32_t f = 0; f < COUNT(families); f++) {
        for (const op_row *row = families[f]; row->name != NULL; row++) {
            assert_true(n < MAX_ROWS);
            all[n++] = row;
        }
    }
    *rows = all;
    return n;
}

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

bool is_integer(const form *f)
{
    return f->dtype == MS_DTYPE_I64 || f->dtype == MS_DTYPE_I32;
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

void copy_array(array *to, const array *from)
{
    to->form = from->form;
    to->n = from->n;
    memcpy(to->v, from->v, (size_t)from->n * sizeof(*to->v));
    memcpy(to->slack, from->slack, (size_t)from->n * sizeof(*to->slack));
}

bool is_away(const array *x, real at)
{
    bool away = true;

    for (int64_t i = 0; i < x->n; i++) {
        away = away && !(fabsl(x->v[i] - at) < 0.004L);
    }
    return away;
}

/* -- comparison -------------------------------------------------------------------------------- */

static double wrapped(int32_t dtype, real want)
{
    return dtype == MS_DTYPE_I32 ? (double)(int32_t)(uint32_t)(uint64_t)(int64_t)want
                                 : (double)want;
}

bool agrees(int32_t dtype, double got, real want, real slack)
{
    const real largest = largest_of(dtype);
    const real least = dtype == MS_DTYPE_F64   ? 0x1p-1073L
                       : dtype == MS_DTYPE_F16 ? 0x1p-25L
                                               : 0x1p-126L * 0x1p-7L;

    if (isnan(slack) || isinf(slack)) {
        return true;
    }
    if (!ms_dtype_is_floating(dtype)) {
        return got == wrapped(dtype, want);
    }
    if (isnan(want) || isnan(got)) {
        return isnan(want) && isnan(got);
    }
    const real room = slack + unit_of(dtype) * fabsl(want) * 1.001L + least;

    if (isinf(got)) {
        return !signbit(got) == !signbit(want) && fabsl(want) + room >= largest;
    }
    if (want == 0 && got == 0 && slack == 0) {
        return !signbit(got) == !signbit(want);
    }
    return isfinite(want) && fabsl(got - want) <= room;
}

void describe(const call *c, ms_tensor *const *in)
{
    print_message("%s(", c->op->name);
    for (int32_t k = 0; k < c->n_in; k++) {
        print_message("%s%s %s strides %s start %lld", k > 0 ? ", " : "",
                      ms_dtype_name(in[k]->v.dtype), msi_shape_text(in[k]->v.ndim, in[k]->v.shape),
                      msi_shape_text(in[k]->v.ndim, in[k]->v.stride), (long long)in[k]->v.offset);
    }
    print_message("; %lld %lld %lld %lld, %g %g)\n", (long long)c->i[0], (long long)c->i[1],
                  (long long)c->i[2], (long long)c->i[3], c->p[0], c->p[1]);
}

void compare_values(const call *c, ms_tensor *const *in, ms_tensor *t, const array *want,
                    double *got)
{
    const form *f = &want->form;
    bool same = t->v.dtype == f->dtype && t->v.ndim == f->ndim;

    for (int32_t d = 0; same && d < f->ndim; d++) {
        same = t->v.shape[d] == f->shape[d];
    }
    if (!same) {
        describe(c, in);
        fail_msg("the result is %s %s, expected %s %s", ms_dtype_name(t->v.dtype),
                 msi_shape_text(t->v.ndim, t->v.shape), ms_dtype_name(f->dtype),
                 msi_shape_text(f->ndim, f->shape));
    }
    assert_ok(ms_tensor_to_doubles(t, got, want->n));
    for (int64_t i = 0; i < want->n; i++) {
        if (!agrees(f->dtype, got[i], want->v[i], want->slack[i])) {
            describe(c, in);
            fail_msg("element %lld is %.9g, expected %.9Lg within %.3Lg", (long long)i, got[i],
                     want->v[i], want->slack[i]);
        }
    }
}

int32_t from_environment(const char *name, int32_t otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : otherwise;
}
