/* Operands of random programs: values, and memory they lie in. */
#include "program.h"

#include "tensor.h"

static double draw_special(int32_t dtype, uint64_t *rng)
{
    const double least = dtype == MS_DTYPE_F64   ? 0x1p-1074
                         : dtype == MS_DTYPE_F32 ? 0x1p-149
                                                 : 0x1p-133;
    const double most = (double)largest_of(dtype);
    const double values[] = {NAN,  INFINITY, -INFINITY, 0, -0.0, least, -3 * least,
                             most, -most,    1 / most,  1, -1,   100};

    return values[below(rng, COUNT(values))];
}

static double draw_value(const form *f, bool special, uint64_t *rng)
{
    const double x = 4 * uniform(rng) - 2;

    switch (f->draw) {
    case DRAW_IDS:
        return below(rng, (int32_t)f->limit);
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

ms_tensor *make_leaf(const form *f, bool special, uint64_t *rng, array *a)
{
    const layout l = draw_layout(f, rng);
    double values[MAX_NUMEL * 8];
    int64_t n = 1, stride[MS_MAX_DIMS + 1];
    ms_tensor *t, *next;

    for (int32_t b = l.ndim - 1; b >= 0; b--) {
        stride[b] = n;
        n *= l.base[b];
    }
    assert_true(n <= COUNT(values));
    for (int64_t i = 0; i < n; i++) {
        values[i] = draw_value(f, special, rng);
    }
    assert_ok(ms_tensor_from_doubles(&t, f->dtype, l.ndim, l.base, values, n));
    assert_ok(ms_tensor_to_doubles(t, values, n)); /* rounded to the dtype */
    if (l.selected >= 0) {
        assert_ok(ms_op_select(&next, t, l.selected, l.index));
        replace(&t, next);
    }
    for (int32_t d = 0; d < f->ndim; d++) {
        const int32_t b = l.perm[d];

        if (!l.repeated[d] && l.base[b] != f->shape[d]) {
            assert_ok(ms_op_narrow(&next, t, b, l.start[b], f->shape[d]));
            replace(&t, next);
        }
    }
    assert_ok(ms_op_permute(&next, t, f->ndim, l.perm));
    replace(&t, next);
    msi_view v;

    msi_view_expand(&t->v, f->ndim, f->shape, &v);
    assert_ok(msi_tensor_new(&next, t->ctx, &v));
    replace(&t, next);
    set_form(a, f->dtype, f->ndim, f->shape);
    for (int64_t i = 0; i < a->n; i++) {
        int64_t at = l.selected >= 0 ? l.index * stride[l.selected] : 0, rest = i;

        for (int32_t d = f->ndim - 1; d >= 0; d--) {
            const int32_t b = l.perm[d];

            at += (l.repeated[d] ? 0 : l.start[b] + rest % f->shape[d]) * stride[b];
            rest /= f->shape[d];
        }
        a->v[i] = (real)values[at];
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
