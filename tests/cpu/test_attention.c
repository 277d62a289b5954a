/* kernels/cpu/attention.c: against plain softmax attention in f64, its gradient also against finite
 * differences; strides as a packed projection has them; the same bits from every instruction set
 * where our own product computes the tiles. */
#include "backend.h"
#include "ms_test.h"
#include "typed.h"

typedef struct shape {
    int64_t b, h, t, s, d;
    bool causal;
} shape;

/* Operands as (B, T, H, D) memory seen as (B, H, T, D), rows `pad` elements apart from dense. */
typedef struct attention {
    shape n;
    msi_attention_args args;
    typed q, k, v, o, lse, dout, dq, dk, dv;
    void *work;
    ms_status status;
} attention;

static void strides(int64_t *stride, const shape *n, int64_t len, int64_t pad)
{
    stride[2] = n->h * n->d + pad;
    stride[1] = n->d;
    stride[0] = len * stride[2];
}

static void make(attention *a, const shape *n, int32_t dtype, int64_t pad)
{
    int64_t q_size = n->b * n->t * (n->h * n->d + pad), k_size = n->b * n->s * (n->h * n->d + pad);
    int32_t stat = dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;

    memset(a, 0, sizeof(*a));
    a->n = *n;
    a->q = typed_filled(dtype, q_size, 1);
    a->k = typed_filled(dtype, k_size, 2);
    a->v = typed_filled(dtype, k_size, 3);
    a->o = typed_filled(dtype, q_size, 4); /* garbage to be overwritten */
    a->dout = typed_filled(dtype, q_size, 5);
    a->dq = typed_filled(dtype, q_size, 6);
    a->dk = typed_filled(dtype, k_size, 7);
    a->dv = typed_filled(dtype, k_size, 8);
    a->lse = typed_filled(stat, n->b * n->h * n->t, 9);
    a->args = (msi_attention_args){.batch = n->b,
                                   .heads = n->h,
                                   .q_len = n->t,
                                   .kv_len = n->s,
                                   .head_dim = n->d,
                                   .q = a->q.data,
                                   .k = a->k.data,
                                   .v = a->v.data,
                                   .scale = 2.5 / sqrt((double)n->d),
                                   .causal = n->causal,
                                   .out = a->o.data,
                                   .lse = a->lse.data,
                                   .o = a->o.data,
                                   .dout = a->dout.data,
                                   .dq = a->dq.data,
                                   .dk = a->dk.data,
                                   .dv = a->dv.data,
                                   .ctx = msi_context(),
                                   .status = &a->status};
    strides(a->args.q_stride, n, n->t, pad);
    strides(a->args.o_stride, n, n->t, pad);
    strides(a->args.do_stride, n, n->t, pad);
    strides(a->args.dq_stride, n, n->t, pad);
    strides(a->args.k_stride, n, n->s, pad);
    strides(a->args.v_stride, n, n->s, pad);
    strides(a->args.dk_stride, n, n->s, pad);
    strides(a->args.dv_stride, n, n->s, pad);
}

static void discard(attention *a)
{
    typed_free(&a->q);
    typed_free(&a->k);
    typed_free(&a->v);
    typed_free(&a->o);
    typed_free(&a->lse);
    typed_free(&a->dout);
    typed_free(&a->dq);
    typed_free(&a->dk);
    typed_free(&a->dv);
}

/* Work space of exactly the bytes asked for, so that sanitizers see an overrun. */
static void run(attention *a, const msi_kernel_table *table, int32_t dtype, bool gradient)
{
    void *work = aligned_alloc(
        64, (size_t)(msi_attention_work_bytes(&a->args, dtype, gradient) + 63) / 64 * 64);

    memset(work, 0xff, (size_t)msi_attention_work_bytes(&a->args, dtype, gradient)); /* NaN */
    a->args.work = work;
    table->fn[gradient ? MSI_K_attention_grad : MSI_K_attention][dtype](&a->args);
    assert_ok(a->status);
    free(work);
}

static double at(const typed *x, const int64_t *stride, int64_t b, int64_t h, int64_t t, int64_t d)
{
    return typed_get(x, b * stride[0] + h * stride[1] + t * stride[2] + d);
}

/* Probabilities of one query over s keys; returns log-sum-exp. */
static double probabilities(const attention *a, int64_t b, int64_t h, int64_t t, double *p)
{
    const shape *n = &a->n;
    double largest = -INFINITY, sum = 0;

    for (int64_t s = 0; s < n->s; s++) {
        p[s] = -INFINITY;
        if (!n->causal || s <= t + n->s - n->t) {
            p[s] = 0;
            for (int64_t d = 0; d < n->d; d++) {
                p[s] += at(&a->q, a->args.q_stride, b, h, t, d) *
                        at(&a->k, a->args.k_stride, b, h, s, d);
            }
            p[s] *= a->args.scale;
        }
        largest = p[s] > largest ? p[s] : largest;
    }
    for (int64_t s = 0; s < n->s; s++) {
        p[s] = exp(p[s] - largest);
        sum += p[s];
    }
    for (int64_t s = 0; s < n->s; s++) {
        p[s] /= sum;
    }
    return largest + log(sum);
}

static void expect(double got, double want, double bound, const char *what, int64_t i)
{
    if (!(fabs(got - want) <= bound)) {
        fail_msg("%s %lld is %.17g, expected %.17g +- %g", what, (long long)i, got, want, bound);
    }
}

/* Tolerance: `eps` of the dtype times the size of what is summed, with a margin for roundings in a
 * row (scores, probabilities, sums). */
static double margin(int32_t dtype)
{
    return dtype == MS_DTYPE_BF16  ? 8 * 0x1p-8
           : dtype == MS_DTYPE_F32 ? 300 * 0x1p-24
                                   : 300 * 0x1p-53;
}

static void check(const shape *n, int32_t dtype, int64_t pad)
{
    attention a;
    double *p = calloc((size_t)(n->s + 1), sizeof(double));
    double *ds = calloc((size_t)(n->s + 1), sizeof(double));
    int64_t kv = n->b * n->h * n->s * n->d;
    double *dk = calloc((size_t)(2 * kv + 1), sizeof(double)), *dv = dk + kv;
    double *dk_size = calloc((size_t)(2 * kv + 1), sizeof(double)), *dv_size = dk_size + kv;

    make(&a, n, dtype, pad);
    run(&a, msi_kernels(), dtype, false);
    run(&a, msi_kernels(), dtype, true);
    for (int64_t r = 0; r < n->b * n->h * n->t; r++) {
        int64_t b = r / (n->h * n->t), h = r / n->t % n->h, t = r % n->t;
        double lse = probabilities(&a, b, h, t, p), delta = 0;

        expect(typed_get(&a.lse, r), lse,
               margin(dtype == MS_DTYPE_BF16 ? MS_DTYPE_F32 : dtype) * (1 + fabs(lse)), "lse", r);
        for (int64_t d = 0; d < n->d; d++) {
            double o = 0;

            for (int64_t s = 0; s < n->s; s++) {
                o += p[s] * at(&a.v, a.args.v_stride, b, h, s, d);
            }
            expect(at(&a.o, a.args.o_stride, b, h, t, d), o, margin(dtype), "out", r * n->d + d);
            delta += o * at(&a.dout, a.args.do_stride, b, h, t, d);
        }
        for (int64_t s = 0; s < n->s; s++) {
            double dp = 0;

            for (int64_t d = 0; d < n->d; d++) {
                double g = at(&a.dout, a.args.do_stride, b, h, t, d);
                int64_t i = ((b * n->h + h) * n->s + s) * n->d + d;

                dp += g * at(&a.v, a.args.v_stride, b, h, s, d);
                dv[i] += p[s] * g;
                dv_size[i] += fabs(p[s] * g);
            }
            ds[s] = p[s] * (dp - delta) * a.args.scale;
            for (int64_t d = 0; d < n->d; d++) {
                int64_t i = ((b * n->h + h) * n->s + s) * n->d + d;
                double q = at(&a.q, a.args.q_stride, b, h, t, d);

                dk[i] += ds[s] * q;
                dk_size[i] += p[s] * (double)n->d * fabs(q) * a.args.scale;
            }
        }
        for (int64_t d = 0; d < n->d; d++) {
            double dq = 0, size = 0;

            for (int64_t s = 0; s < n->s; s++) {
                dq += ds[s] * at(&a.k, a.args.k_stride, b, h, s, d);
                size += p[s] * (double)n->d * a.args.scale;
            }
            expect(at(&a.dq, a.args.dq_stride, b, h, t, d), dq, margin(dtype) * (size + fabs(dq)),
                   "dq", r * n->d + d);
        }
    }
    for (int64_t i = 0; i < kv; i++) {
        int64_t d = i % n->d, s = i / n->d % n->s, h = i / (n->d * n->s) % n->h,
                b = i / (n->d * n->s * n->h);

        expect(at(&a.dk, a.args.dk_stride, b, h, s, d), dk[i],
               margin(dtype) * (dk_size[i] + fabs(dk[i])), "dk", i);
        expect(at(&a.dv, a.args.dv_stride, b, h, s, d), dv[i],
               margin(dtype) * (dv_size[i] + fabs(dv[i])), "dv", i);
    }
    free(p);
    free(ds);
    free(dk);
    free(dk_size);
    discard(&a);
}

static const shape shapes[] = {
    {1, 1, 1, 1, 1, true},      {1, 1, 6, 6, 4, true},       {2, 3, 6, 6, 4, false},
    {1, 2, 17, 33, 5, true},    {1, 1, 64, 64, 16, true},    {1, 2, 65, 65, 32, true},
    {2, 1, 63, 130, 20, false}, {1, 2, 130, 130, 64, true},  {1, 1, 100, 300, 64, true},
    {1, 1, 3, 257, 8, true},    {1, 1, 200, 200, 16, false}, {1, 1, 300, 300, 33, true},
};

static void run_shapes(int32_t dtype)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        check(&shapes[i], dtype, 0);
        check(&shapes[i], dtype, 2 * shapes[i].h * shapes[i].d); /* as packed q, k, v */
    }
}

static void test_cpu_attention__f64_equals_plain_softmax(void **state)
{
    (void)state;
    run_shapes(MS_DTYPE_F64);
}

static void test_cpu_attention__f32_equals_plain_softmax(void **state)
{
    (void)state;
    run_shapes(MS_DTYPE_F32);
}

static void test_cpu_attention__bf16_equals_plain_softmax(void **state)
{
    (void)state;
    run_shapes(MS_DTYPE_BF16);
}

/* sum(out * dout) as a function of one element. */
static double objective(attention *a)
{
    double sum = 0;

    run(a, msi_kernels(), MS_DTYPE_F64, false);
    for (int64_t i = 0; i < a->o.n; i++) {
        sum += typed_get(&a->o, i) * typed_get(&a->dout, i);
    }
    return sum;
}

static void test_cpu_attention__gradients_equal_finite_differences(void **state)
{
    (void)state;
    const shape n = {1, 2, 70, 280, 3, true};
    attention a;

    make(&a, &n, MS_DTYPE_F64, 0);
    run(&a, msi_kernels(), MS_DTYPE_F64, false);
    run(&a, msi_kernels(), MS_DTYPE_F64, true);
    typed *const in[3] = {&a.q, &a.k, &a.v};
    const typed *const grad[3] = {&a.dq, &a.dk, &a.dv};

    for (int32_t which = 0; which < 3; which++) {
        for (int64_t i = which; i < in[which]->n; i += 29) {
            double x = typed_get(in[which], i), step = 1e-5, plus, minus;

            typed_set(in[which], i, x + step);
            plus = objective(&a);
            typed_set(in[which], i, x - step);
            minus = objective(&a);
            typed_set(in[which], i, x);
            expect(typed_get(grad[which], i), (plus - minus) / (2 * step), 1e-7, "gradient", i);
        }
    }
    discard(&a);
}

static void test_cpu_attention__bits_are_equal_on_every_instruction_set(void **state)
{
    (void)state;
    /* f64 tiles are always our own product's; f32 and bf16 ones while they are tiny */
    static const struct {
        shape n;
        int32_t dtype;
    } cases[] = {{{1, 2, 70, 300, 20, true}, MS_DTYPE_F64},
                 {{2, 3, 6, 6, 4, true}, MS_DTYPE_F64},
                 {{2, 2, 30, 31, 4, true}, MS_DTYPE_F32},
                 {{2, 2, 15, 17, 16, false}, MS_DTYPE_BF16}};

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        attention first = {0};

        for (int32_t isa = 2; isa <= 4; isa++) {
            const msi_kernel_table *table = msi_kernels_of(isa);
            attention a;

            if (table == NULL) {
                continue;
            }
            make(&a, &cases[c].n, cases[c].dtype, 0);
            run(&a, table, cases[c].dtype, false);
            run(&a, table, cases[c].dtype, true);
            if (first.o.data == NULL) {
                first = a;
                continue;
            }
            assert_memory_equal(first.o.data, a.o.data, (size_t)typed_nbytes(&a.o));
            assert_memory_equal(first.lse.data, a.lse.data, (size_t)typed_nbytes(&a.lse));
            assert_memory_equal(first.dq.data, a.dq.data, (size_t)typed_nbytes(&a.dq));
            assert_memory_equal(first.dk.data, a.dk.data, (size_t)typed_nbytes(&a.dk));
            assert_memory_equal(first.dv.data, a.dv.data, (size_t)typed_nbytes(&a.dv));
            discard(&a);
        }
        discard(&first);
    }
}

static void test_cpu_attention__a_query_that_sees_nothing_gives_zeros(void **state)
{
    (void)state;
    const shape cases[] = {{1, 1, 200, 70, 4, true}, {1, 1, 5, 0, 4, false}};

    for (int32_t c = 0; c < 2; c++) {
        const shape *n = &cases[c];
        int64_t blind = n->t - n->s; /* queries before the first key */
        attention a;

        make(&a, n, MS_DTYPE_F32, 0);
        run(&a, msi_kernels(), MS_DTYPE_F32, false);
        run(&a, msi_kernels(), MS_DTYPE_F32, true);
        for (int64_t i = 0; i < blind * n->d; i++) {
            assert_true(typed_get(&a.o, i) == 0);
            assert_true(typed_get(&a.dq, i) == 0);
        }
        for (int64_t i = 0; i < a.dk.n; i++) {
            assert_true(isfinite(typed_get(&a.dk, i)) && isfinite(typed_get(&a.dv, i)));
        }
        discard(&a);
    }
}

static void test_cpu_attention__large_scores_do_not_overflow(void **state)
{
    (void)state;
    const shape n = {1, 1, 20, 20, 8, true};
    attention a;

    make(&a, &n, MS_DTYPE_F32, 0);
    a.args.scale = 1e4;
    run(&a, msi_kernels(), MS_DTYPE_F32, false);
    run(&a, msi_kernels(), MS_DTYPE_F32, true);
    for (int64_t i = 0; i < a.o.n; i++) {
        assert_true(fabs(typed_get(&a.o, i)) <= 1.001 && isfinite(typed_get(&a.dq, i)));
    }
    discard(&a);
}

static void test_cpu_attention__nan_in_a_key_reaches_the_queries_that_see_it(void **state)
{
    (void)state;
    const shape n = {1, 1, 20, 20, 8, true};

    for (int32_t dtype = 0; dtype < 3; dtype++) { /* f32, f64, bf16 */
        attention a;

        make(&a, &n, dtype, 0);
        typed_set(&a.k, 13 * 8, NAN);
        run(&a, msi_kernels(), dtype, false);
        for (int64_t t = 0; t < 20; t++) {
            assert_int_equal(t >= 13, isnan(typed_get(&a.o, t * 8)) != 0);
        }
        discard(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_attention__f64_equals_plain_softmax),
        cmocka_unit_test(test_cpu_attention__f32_equals_plain_softmax),
        cmocka_unit_test(test_cpu_attention__bf16_equals_plain_softmax),
        cmocka_unit_test(test_cpu_attention__gradients_equal_finite_differences),
        cmocka_unit_test(test_cpu_attention__bits_are_equal_on_every_instruction_set),
        cmocka_unit_test(test_cpu_attention__a_query_that_sees_nothing_gives_zeros),
        cmocka_unit_test(test_cpu_attention__large_scores_do_not_overflow),
        cmocka_unit_test(test_cpu_attention__nan_in_a_key_reaches_the_queries_that_see_it),
    };

    return cmocka_run_group_tests_name("cpu/attention", tests, NULL, NULL);
}
