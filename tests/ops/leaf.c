/* Operands: forms, values, and the memory they lie in. */
#include "row.h"

#include "tensor.h"

static void draw_small(form *f, uint64_t *rng)
{
    static const int64_t sizes[] = {1, 1, 2, 3, 4, 5, 7, 16};
    int64_t n = 1;

    f->ndim = below(rng, 6);
    for (int32_t d = 0; d < f->ndim; d++) {
        f->shape[d] = sizes[below(rng, 8)];
        if (n * f->shape[d] > 120) {
            f->shape[d] = 1;
        }
        n *= f->shape[d];
    }
    if (f->ndim > 0 && below(rng, 12) == 0) {
        f->shape[below(rng, f->ndim)] = 0;
    }
}

static void draw_big(form *f, uint64_t *rng)
{
    const int64_t n = 130 + below(rng, below(rng, 2) ? 900 : 270), other = 1 + below(rng, 3);
    const int64_t shapes[5][3] = {{n}, {other, n}, {n, other}, {2, n / 4, 3}, {33, 45}};
    const int32_t k = below(rng, 5);

    f->ndim = k == 0 ? 1 : k == 3 ? 3 : 2;
    memcpy(f->shape, shapes[k], sizeof(shapes[k]));
    if (numel_of(f) > 2000) {
        f->shape[k == 2 ? 1 : 0] = 1;
    }
}

static void draw_form(form *f, int32_t size, uint64_t *rng)
{
    if (size == SIZE_SMALL) {
        draw_small(f, rng);
    } else if (size == SIZE_BIG) {
        draw_big(f, rng);
    } else {
        f->ndim = 1 + below(rng, 3);
        for (int32_t d = 0; d < f->ndim; d++) {
            f->shape[d] = d + 1 < f->ndim ? 1 + below(rng, 3) : below(rng, 131);
        }
    }
}

bool draw_call(call *c, const op_row *op, int32_t dtype, int32_t size, uint64_t *rng)
{
    for (int32_t tries = 0; tries < 200; tries++) {
        *c = (call){.op = op, .size = size, .rng = rng};
        c->in[0].dtype = dtype;
        draw_form(&c->in[0], size, rng);
        if (op->begin != NULL) {
            op->begin(c);
        }
        if (op->plan(c)) {
            return true;
        }
    }
    return false;
}

static double draw_special(int32_t dtype, uint64_t *rng)
{
    const double least = dtype == MS_DTYPE_F64   ? 0x1p-1074
                         : dtype == MS_DTYPE_F32 ? 0x1p-149
                         : dtype == MS_DTYPE_F16 ? 0x1p-24
                                                 : 0x1p-133;
    const double most = (double)largest_of(dtype);
    const double values[] = {NAN,  INFINITY, -INFINITY, 0, -0.0, least, -3 * least,
                             most, -most,    1 / most,  1, -1,   100};

    return values[below(rng, COUNT(values))];
}

static double draw_value(const form *f, int32_t values, uint64_t *rng)
{
    const bool special = values == LEAF_SPECIAL;
    const double x = values == LEAF_GRID ? (2 * below(rng, 64) - 63) / 32.0 : 4 * uniform(rng) - 2;

    switch (f->draw) {
    case DRAW_IDS:
        return below(rng, (int32_t)f->limit);
    case DRAW_POSITIONS:
        return 1 + below(rng, (int32_t)f->limit);
    case DRAW_BOOL:
        return below(rng, 2);
    case DRAW_POSITIVE:
        if (!special) {
            return x / 2 + 1.5;
        }
        break;
    default:
        break;
    }
    if (!is_float(f)) {
        return f->dtype == MS_DTYPE_BOOL ? below(rng, 2)
               : f->dtype == MS_DTYPE_U8 ? below(rng, 256)
               : special                 ? below(rng, 1 << 21) - (1 << 20)
                                         : below(rng, 19) - 9;
    }
    return special && below(rng, 3) == 0 ? draw_special(f->dtype, rng) : x;
}

/* How a leaf lies in memory: dimensions of the base in another order, some cut out of larger ones,
 * some repeated, and perhaps one more that an entry is selected of. */
typedef struct layout {
    int32_t perm[MS_MAX_DIMS]; /* base dimension that shows dimension d */
    int64_t base[MS_MAX_DIMS], start[MS_MAX_DIMS], index;
    bool repeated[MS_MAX_DIMS]; /* by dimension of the leaf */
    int32_t selected;           /* base dimension, or -1 */
    int32_t ndim;               /* of the base */
} layout;

static layout draw_layout(const form *f, uint64_t *rng)
{
    layout l = {.ndim = f->ndim, .selected = -1};
    const int32_t way = below(rng, 3);

    for (int32_t d = 0; d < f->ndim; d++) {
        const int32_t k = way > 0 ? below(rng, d + 1) : d;

        l.perm[d] = l.perm[k];
        l.perm[k] = d;
    }
    for (int32_t d = 0; d < f->ndim; d++) {
        const int32_t b = l.perm[d];

        l.repeated[d] = way == 2 && f->shape[d] > 1 && below(rng, 4) == 0;
        l.base[b] = l.repeated[d] ? 1 : f->shape[d];
        if (way == 2 && !l.repeated[d] && below(rng, 3) == 0) {
            l.start[b] = below(rng, 2);
            l.base[b] += l.start[b] + below(rng, 2);
        }
    }
    if (way == 2 && below(rng, 3) == 0) { /* the base's last dimension is selected from */
        l.selected = l.ndim;
        l.base[l.ndim++] = 2;
        l.index = below(rng, 2);
    }
    return l;
}

static void replace(ms_tensor **t, ms_tensor *by)
{
    ms_tensor_free(*t);
    *t = by;
}

ms_tensor *make_leaf(const form *f, int32_t values, uint64_t *rng, array *a)
{
    static double held[MAX_NUMEL * 8];
    const layout l = draw_layout(f, rng);
    const int64_t offset = below(rng, 4) == 0 ? 0 : below(rng, 64);
    int64_t n = 1, stride[MS_MAX_DIMS + 1], first = offset;
    ms_tensor *base, *t;

    for (int32_t b = l.ndim - 1; b >= 0; b--) {
        stride[b] = n;
        n *= l.base[b];
    }
    n += offset;
    assert_true(n <= COUNT(held));
    for (int64_t i = 0; i < n; i++) {
        held[i] = draw_value(f, values, rng);
    }
    assert_ok(ms_tensor_from_doubles(&base, f->dtype, 1, &n, held, n));
    assert_ok(ms_tensor_to_doubles(base, held, n)); /* rounded to the dtype */
    msi_view v = base->v;

    first += l.selected >= 0 ? l.index * stride[l.selected] : 0;
    v.ndim = (int8_t)f->ndim;
    for (int32_t d = 0; d < f->ndim; d++) {
        const int32_t b = l.perm[d];

        first += l.start[b] * stride[b];
        v.shape[d] = f->shape[d];
        v.stride[d] = l.repeated[d] ? 0 : stride[b];
    }
    v.offset = first;
    assert_ok(msi_tensor_new(&t, base->ctx, &v));
    ms_tensor_free(base);
    set_form(a, f->dtype, f->ndim, f->shape);
    for (int64_t i = 0; i < a->n; i++) {
        int64_t at = first, rest = i;

        for (int32_t d = f->ndim - 1; d >= 0; d--) {
            at += rest % f->shape[d] * v.stride[d];
            rest /= f->shape[d];
        }
        a->v[i] = (real)held[at];
    }
    return t;
}

double *lend_gradient(ms_tensor *lender, const array *lends, ms_tensor **borrower,
                      const array *shown)
{
    const form *f = &shown->form;
    const int64_t n = lends->n;
    double *held = calloc((size_t)n, sizeof(*held));
    int64_t shape[MS_MAX_DIMS];
    int32_t perm[MS_MAX_DIMS];
    ms_tensor *zeros, *grad, *t, *next;
    ms_tensor_info info;

    for (int32_t d = 0; d < f->ndim; d++) {
        perm[d] = f->ndim - 1 - d;
        shape[perm[d]] = f->shape[d];
    }
    assert_ok(ms_tensor_full(&zeros, f->dtype, lends->form.ndim, lends->form.shape, 0));
    assert_ok(ms_tensor_set_grad(lender, zeros));
    ms_tensor_free(zeros);
    assert_ok(ms_tensor_grad(&grad, lender));
    assert_ok(ms_op_reshape(&t, grad, 1, &n));
    assert_ok(ms_op_narrow(&next, t, 0, n - shown->n, shown->n));
    replace(&t, next);
    assert_ok(ms_op_reshape(&next, t, f->ndim, shape));
    replace(&t, next);
    assert_ok(ms_op_permute(&next, t, f->ndim, perm));
    replace(&t, next);
    assert_ok(ms_tensor_describe(*borrower, &info));
    assert_ok(ms_tensor_set_requires_grad(*borrower, false));
    assert_ok(ms_tensor_copy(t, *borrower));
    assert_ok(ms_tensor_set_requires_grad(t, info.requires_grad));
    replace(borrower, t);
    assert_ok(ms_tensor_to_doubles(grad, held, n));
    ms_tensor_free(grad);
    return held;
}
