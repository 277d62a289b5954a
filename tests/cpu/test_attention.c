/* kernels/cpu/attention.c: against plain softmax attention in f64, its gradient also against finite
 * differences; strides as a packed projection has them; every length, start and instruction set. */
#include "kernel_test.h"

typedef struct shape {
    int64_t b, h, t, s, d;
    bool causal;
} shape;

/* An operand: (B, T, H, D) memory seen as (B, H, T, D), rows `pad` elements apart from dense, from
 * element `start` of a buffer that goes on for 64 elements. */
typedef struct operand {
    typed memory;
    int64_t start, len, stride[3];
} operand;

enum { Q, K, V, O, DOUT, DQ, DK, DV, N_OPERANDS };

typedef struct attention {
    shape n;
    int32_t dtype;
    msi_attention_args args;
    operand x[N_OPERANDS];
    typed max, rsum;
    void *work;
    ms_status status;
} attention;

enum { GUARD = 64 };

static operand make_operand(const shape *n, int32_t which, int32_t dtype, int64_t pad,
                            int64_t start)
{
    bool keys = which == K || which == V || which == DK || which == DV;
    operand x = {.start = start, .len = keys ? n->s : n->t};

    x.stride[2] = n->h * n->d + pad;
    x.stride[1] = n->d;
    x.stride[0] = x.len * x.stride[2];
    x.memory = typed_filled(dtype, start + n->b * x.stride[0] + GUARD, (uint64_t)which + 1);
    return x;
}

static void *first_of(operand *x)
{
    return (char *)x->memory.data + x->start * dtype_bytes(x->memory.dtype);
}

/* Operand i starts at element first + step i (mod 64) of its buffer. */
static void make_at(attention *a, const shape *n, int32_t dtype, int32_t tile_dtype, int64_t pad,
                    int64_t first, int64_t step)
{
    int32_t stat = dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;

    memset(a, 0, sizeof(*a));
    a->n = *n;
    a->dtype = dtype;
    for (int32_t i = 0; i < N_OPERANDS; i++) {
        a->x[i] = make_operand(n, i, dtype, pad, (first + step * i) % 64);
    }
    a->max = typed_filled(stat, n->b * n->h * n->t, 9);
    a->rsum = typed_filled(stat, n->b * n->h * n->t, 10);
    a->args = (msi_attention_args){.tile_dtype = tile_dtype,
                                   .batch = n->b,
                                   .heads = n->h,
                                   .q_len = n->t,
                                   .kv_len = n->s,
                                   .head_dim = n->d,
                                   .q = first_of(&a->x[Q]),
                                   .k = first_of(&a->x[K]),
                                   .v = first_of(&a->x[V]),
                                   .scale = 2.5 / sqrt((double)n->d),
                                   .causal = n->causal,
                                   .out = first_of(&a->x[O]),
                                   .max = a->max.data,
                                   .rsum = a->rsum.data,
                                   .o = first_of(&a->x[O]),
                                   .dout = first_of(&a->x[DOUT]),
                                   .dq = first_of(&a->x[DQ]),
                                   .dk = first_of(&a->x[DK]),
                                   .dv = first_of(&a->x[DV]),
                                   .ctx = msi_context(),
                                   .status = &a->status};
    int64_t *const stride[N_OPERANDS] = {a->args.q_stride,  a->args.k_stride,  a->args.v_stride,
                                         a->args.o_stride,  a->args.do_stride, a->args.dq_stride,
                                         a->args.dk_stride, a->args.dv_stride};

    for (int32_t i = 0; i < N_OPERANDS; i++) {
        memcpy(stride[i], a->x[i].stride, sizeof(a->x[i].stride));
    }
}

static void make(attention *a, const shape *n, int32_t dtype, int64_t pad)
{
    int32_t tile_dtype;

    assert_ok(msi_gemm_operands(msi_context(), dtype, &tile_dtype));
    make_at(a, n, dtype, tile_dtype, pad, 0, 0);
}

static void discard(attention *a)
{
    for (int32_t i = 0; i < N_OPERANDS; i++) {
        typed_free(&a->x[i].memory);
    }
    typed_free(&a->max);
    typed_free(&a->rsum);
}

/* Work space of exactly the bytes asked for, so that sanitizers see an overrun; NaN at first. */
static void take_work(attention *a, bool gradient)
{
    int64_t nbytes = msi_attention_work_bytes(&a->args, a->dtype, gradient);

    a->args.work = aligned_alloc(64, (size_t)(nbytes + 63) / 64 * 64);
    memset(a->args.work, 0xff, (size_t)nbytes);
}

static void run(attention *a, bool gradient)
{
    take_work(a, gradient);
    msi_kernels()->fn[gradient ? MSI_K_attention_grad : MSI_K_attention][a->dtype](&a->args);
    assert_ok(a->status);
    free(a->args.work);
}

/* The same on every instruction set, which must agree in every bit. */
static void run_everywhere(attention *a, bool gradient)
{
    operand *out = &a->x[gradient ? DQ : O];
    kernel_call call = {.kernel = gradient ? MSI_K_attention_grad : MSI_K_attention,
                        .dtype = a->dtype,
                        .args = &a->args};

    for (int32_t i = 0; i < (gradient ? 3 : 1); i++) {
        call.out[i] = out[i].memory.data;
        call.nbytes[i] = typed_nbytes(&out[i].memory);
    }
    if (!gradient) {
        call.out[1] = a->max.data;
        call.nbytes[1] = typed_nbytes(&a->max);
        call.out[2] = a->rsum.data;
        call.nbytes[2] = typed_nbytes(&a->rsum);
    }
    take_work(a, gradient);
    run_on_all_isas(&call, "attention");
    assert_ok(a->status);
    free(a->args.work);
}

static int64_t place(const operand *x, int64_t b, int64_t h, int64_t t, int64_t d)
{
    return x->start + b * x->stride[0] + h * x->stride[1] + t * x->stride[2] + d;
}

static double at(const operand *x, int64_t b, int64_t h, int64_t t, int64_t d)
{
    return typed_get(&x->memory, place(x, b, h, t, d));
}

/* -- the oracle: one head, dense, in f64 ------------------------------------------------------- */

/* Results beside the size of what was summed for them, which bounds the rounding error. */
typedef struct head {
    double *q, *k, *v, *dout;                        /* (T, D), (S, D), (S, D), (T, D) */
    double *o, *max, *rsum, *dq, *dk, *dv;           /* (T, D), (T), (T), (T, D), (S, D), (S, D) */
    double *dq_size, *dk_size, *dv_size, *p, *block; /* ..., (S), all of them */
} head;

static void fill_head(double *to, const operand *x, int64_t b, int64_t h, int64_t depth)
{
    for (int64_t i = 0; i < x->len * depth; i++) {
        to[i] = at(x, b, h, i / depth, i % depth);
    }
}

static head head_of(const attention *a, int64_t b, int64_t h)
{
    const int64_t t = a->n.t * a->n.d, s = a->n.s * a->n.d;
    head x = {.block = calloc((size_t)(5 * t + 6 * s + 2 * a->n.t + a->n.s + 1), sizeof(double))};

    x.q = x.block;
    x.dout = x.q + t;
    x.o = x.dout + t;
    x.dq = x.o + t;
    x.dq_size = x.dq + t;
    x.k = x.dq_size + t;
    x.v = x.k + s;
    x.dk = x.v + s;
    x.dk_size = x.dk + s;
    x.dv = x.dk_size + s;
    x.dv_size = x.dv + s;
    x.max = x.dv_size + s;
    x.rsum = x.max + a->n.t;
    x.p = x.rsum + a->n.t;
    fill_head(x.q, &a->x[Q], b, h, a->n.d);
    fill_head(x.k, &a->x[K], b, h, a->n.d);
    fill_head(x.v, &a->x[V], b, h, a->n.d);
    fill_head(x.dout, &a->x[DOUT], b, h, a->n.d);
    return x;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

/* Probabilities of one query over the keys it sees (the first `seen`), and its statistics. */
static void probabilities(double *p, const head *x, int64_t t, int64_t seen, int64_t depth,
                          double scale)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t s = 0; s < seen; s++) {
        p[s] = scale * dot(x->q + t * depth, x->k + s * depth, depth);
        largest = p[s] > largest ? p[s] : largest;
    }
    for (int64_t s = 0; s < seen; s++) {
        p[s] = exp(p[s] - largest);
        sum += p[s];
    }
    for (int64_t s = 0; s < seen; s++) {
        p[s] /= sum;
    }
    x->max[t] = largest;
    x->rsum[t] = seen > 0 ? 1 / sum : 0;
}

static void solve_query(head *x, const attention *a, int64_t t)
{
    const int64_t depth = a->n.d, seen = a->n.causal && t < a->n.s ? t + 1 : a->n.s;
    const double *q = x->q + t * depth, *dout = x->dout + t * depth, scale = a->args.scale;
    double *o = x->o + t * depth;

    probabilities(x->p, x, t, seen, depth, scale);
    for (int64_t s = 0; s < seen; s++) {
        for (int64_t d = 0; d < depth; d++) {
            o[d] += x->p[s] * x->v[s * depth + d];
        }
    }
    const double delta = dot(o, dout, depth);

    for (int64_t s = 0; s < seen; s++) {
        const double p = x->p[s], ds = p * (dot(dout, x->v + s * depth, depth) - delta) * scale;
        const double size = p * (double)depth * scale;

        for (int64_t d = 0; d < depth; d++) {
            x->dv[s * depth + d] += p * dout[d];
            x->dv_size[s * depth + d] += fabs(p * dout[d]);
            x->dk[s * depth + d] += ds * q[d];
            x->dk_size[s * depth + d] += size * fabs(q[d]);
            x->dq[t * depth + d] += ds * x->k[s * depth + d];
            x->dq_size[t * depth + d] += size;
        }
    }
}

/* Tolerance: `eps` of the dtype times the size of what is summed, with a margin for roundings in a
 * row (scores, probabilities, sums). */
static double margin(int32_t dtype)
{
    return dtype == MS_DTYPE_BF16  ? 8 * 0x1p-8
           : dtype == MS_DTYPE_F16 ? 8 * 0x1p-11
           : dtype == MS_DTYPE_F32 ? 300 * 0x1p-24
                                   : 300 * 0x1p-53;
}

/* `size` NULL: 1 for every element. */
static void compare(const attention *a, int32_t which, int64_t b, int64_t h, const double *want,
                    const double *size)
{
    static const char *const names[] = {"q", "k", "v", "out", "dout", "dq", "dk", "dv"};
    const int64_t depth = a->n.d;

    for (int64_t i = 0; i < a->x[which].len * depth; i++) {
        const double bound = margin(a->dtype) * (size != NULL ? size[i] + fabs(want[i]) : 1) +
                             8 * typed_rounding(a->dtype, 0);

        check_element(names[which], i, at(&a->x[which], b, h, i / depth, i % depth), want[i],
                      bound);
    }
}

/* The results of both kernels, everywhere, are the oracle's. */
static void compare_all(const attention *a)
{
    const shape *n = &a->n;
    const double stat = margin(a->dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32);

    for (int64_t i = 0; i < n->b * n->h; i++) {
        const int64_t b = i / n->h, h = i % n->h;
        head x = head_of(a, b, h);

        for (int64_t t = 0; t < n->t; t++) {
            solve_query(&x, a, t);
            if (n->s > 0 && !isnan(x.rsum[t])) { /* beside NaN the maximum says nothing */
                check_element("max", i * n->t + t, typed_get(&a->max, i * n->t + t), x.max[t],
                              stat * (1 + fabs(x.max[t])));
            }
            check_element("rsum", i * n->t + t, typed_get(&a->rsum, i * n->t + t), x.rsum[t],
                          stat * (1 + fabs(x.max[t])) * x.rsum[t]);
        }
        compare(a, O, b, h, x.o, NULL);
        compare(a, DQ, b, h, x.dq, x.dq_size);
        compare(a, DK, b, h, x.dk, x.dk_size);
        compare(a, DV, b, h, x.dv, x.dv_size);
        free(x.block);
    }
}

static void check(const shape *n, int32_t dtype, int64_t pad)
{
    attention a;

    make(&a, n, dtype, pad);
    run(&a, false);
    run(&a, true);
    compare_all(&a);
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

static void test_cpu_attention__narrow_dtypes_equal_plain_softmax(void **state)
{
    (void)state;
    run_shapes(MS_DTYPE_BF16);
    run_shapes(MS_DTYPE_F16);
}

/* sum(out * dout) as a function of one element. */
static double objective(attention *a)
{
    double sum = 0;

    run(a, false);
    for (int64_t i = 0; i < a->x[O].memory.n - GUARD; i++) {
        sum += typed_get(&a->x[O].memory, i) * typed_get(&a->x[DOUT].memory, i);
    }
    return sum;
}

static void test_cpu_attention__gradients_equal_finite_differences(void **state)
{
    (void)state;
    const shape n = {1, 2, 70, 280, 3, true};
    attention a;

    make(&a, &n, MS_DTYPE_F64, 0);
    run(&a, false);
    run(&a, true);
    for (int32_t which = Q; which <= V; which++) {
        typed *in = &a.x[which].memory;
        const typed *grad = &a.x[DQ + which].memory;

        for (int64_t i = which; i < in->n - GUARD; i += 29) {
            double x = typed_get(in, i), step = 1e-5, plus, minus;

            typed_set(in, i, x + step);
            plus = objective(&a);
            typed_set(in, i, x - step);
            minus = objective(&a);
            typed_set(in, i, x);
            check_element("gradient", i, typed_get(grad, i), (plus - minus) / (2 * step), 1e-7);
        }
    }
    discard(&a);
}

/* What the kernels may write: the elements of an operand, neither the space between rows nor what
 * lies before and after. `before` is the operand's memory as it was. */
static void check_untouched(const attention *a, int32_t which, typed *before)
{
    const operand *x = &a->x[which];

    for (int64_t i = 0; i < a->n.b * a->n.h * x->len * a->n.d; i++) {
        const int64_t d = i % a->n.d, t = i / a->n.d % x->len;
        const int64_t h = i / (a->n.d * x->len) % a->n.h, b = i / (a->n.d * x->len * a->n.h);
        const int64_t e = place(x, b, h, t, d) * dtype_bytes(a->dtype);

        memcpy((char *)before->data + e, (char *)x->memory.data + e, (size_t)dtype_bytes(a->dtype));
    }
    assert_memory_equal(before->data, x->memory.data, (size_t)typed_nbytes(before));
}

static void check_everywhere(const shape *n, int32_t dtype, int32_t tile_dtype, int64_t pad,
                             int64_t first)
{
    attention a;
    typed before[N_OPERANDS];

    make_at(&a, n, dtype, tile_dtype, pad, first, 27);
    for (int32_t i = 0; i < N_OPERANDS; i++) {
        before[i] = typed_copy(&a.x[i].memory);
    }
    run_everywhere(&a, false);
    run_everywhere(&a, true);
    compare_all(&a);
    for (int32_t i = 0; i < N_OPERANDS; i++) {
        if (i == O || i >= DQ) {
            check_untouched(&a, i, &before[i]);
        } else {
            assert_memory_equal(before[i].data, a.x[i].memory.data,
                                (size_t)typed_nbytes(&before[i]));
        }
        typed_free(&before[i]);
    }
    discard(&a);
}

/* The walk: case i has i queries and 37 i + 11 (mod 131) keys, so both take every length from 0 to
 * 130; a second case has i of both, causal. Operands start 27 elements (mod 64) apart, the first of
 * case i at 29 i, so 64 cases in a row give each of them every start. Widths go round with a period
 * of 7, row gaps with 3, heads and the oblong's mask with 2: all pairs of them occur. */
static void walk_lengths_and_starts(int32_t dtype, int32_t tile_dtype)
{
    static const int64_t depths[] = {8, 16, 17, 32, 64, 80, 128};

    for (int64_t i = 0; i <= 130; i++) {
        const int64_t depth = depths[i % 7], first = i * 29 % 64, pad = i % 3 * 5;
        const shape square = {1, 1 + i % 2, i, i, depth, true};
        const shape oblong = {1, 1, i, (37 * i + 11) % 131, depth, i % 2};

        check_everywhere(&square, dtype, tile_dtype, pad, first);
        check_everywhere(&oblong, dtype, tile_dtype, pad, first);
    }
}

static void test_cpu_attention__every_length_and_start_f32(void **state)
{
    (void)state;
    report_missing_isas();
    walk_lengths_and_starts(MS_DTYPE_F32, MS_DTYPE_F32);
}

static void test_cpu_attention__every_length_and_start_f64(void **state)
{
    (void)state;
    walk_lengths_and_starts(MS_DTYPE_F64, MS_DTYPE_F64);
}

static void test_cpu_attention__every_length_and_start_bf16(void **state)
{
    (void)state;
    walk_lengths_and_starts(MS_DTYPE_BF16, MS_DTYPE_BF16);
}

static void test_cpu_attention__every_length_and_start_bf16_in_f32_tiles(void **state)
{
    (void)state;
    walk_lengths_and_starts(MS_DTYPE_BF16, MS_DTYPE_F32);
}

/* More keys and queries than one tile holds. */
static void test_cpu_attention__many_tiles_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    const shape n = {1, 2, 140, 600, 20, true};

    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        check_everywhere(&n, float_dtypes[d], float_dtypes[d], 7, 5);
    }
    check_everywhere(&n, MS_DTYPE_BF16, MS_DTYPE_F32, 7, 5);
}

static void test_cpu_attention__without_keys_it_gives_zeros(void **state)
{
    (void)state;
    for (int32_t causal = 0; causal < 2; causal++) {
        const shape n = {1, 1, 200, 0, 4, causal};
        attention a;

        make(&a, &n, MS_DTYPE_F32, 0);
        run(&a, false);
        run(&a, true);
        for (int64_t i = 0; i < n.t * n.d; i++) {
            assert_true(typed_get(&a.x[O].memory, i) == 0);
            assert_true(typed_get(&a.x[DQ].memory, i) == 0);
        }
        discard(&a);
    }
}

/* The first query sees the first key alone and the last key is beyond every query. */
static void test_cpu_attention__causal_counts_from_the_first_key(void **state)
{
    (void)state;
    const shape n = {1, 1, 3, 5, 1, true};
    attention a;

    make(&a, &n, MS_DTYPE_F32, 0);
    for (int64_t s = 0; s < n.s; s++) {
        typed_set(&a.x[K].memory, s, 0); /* equal weights */
        typed_set(&a.x[V].memory, s, 1 << s);
    }
    run(&a, false);
    run(&a, true);
    assert_true(typed_get(&a.x[O].memory, 0) == 1);
    assert_true(typed_get(&a.x[O].memory, 1) == 1.5);
    assert_float_equal(typed_get(&a.x[O].memory, 2), 7. / 3, 1e-6);
    assert_true(typed_get(&a.x[DV].memory, 3) == 0 && typed_get(&a.x[DV].memory, 4) == 0);
    discard(&a);
}

/* Scores of 9984 to 9991, exact in f32: only their statistics can lose digits. */
static void test_cpu_attention__large_scores_keep_their_probabilities(void **state)
{
    (void)state;
    const shape n = {1, 1, 8, 8, 1, false};
    attention a;

    make(&a, &n, MS_DTYPE_F32, 0);
    a.args.scale = 1;
    for (int64_t i = 0; i < n.t; i++) {
        typed_set(&a.x[Q].memory, i, 64);
        typed_set(&a.x[K].memory, i, 156 + (double)i / 64);
    }
    run_everywhere(&a, false);
    run_everywhere(&a, true);
    compare_all(&a);
    discard(&a);
}

static void test_cpu_attention__large_scores_do_not_overflow(void **state)
{
    (void)state;
    const shape n = {1, 1, 20, 20, 8, true};
    attention a;

    make(&a, &n, MS_DTYPE_F32, 0);
    a.args.scale = 1e4;
    run(&a, false);
    run(&a, true);
    for (int64_t i = 0; i < a.x[O].memory.n - GUARD; i++) {
        assert_true(fabs(typed_get(&a.x[O].memory, i)) <= 1.001 &&
                    isfinite(typed_get(&a.x[DQ].memory, i)));
    }
    discard(&a);
}

/* Keys beyond reach, some of them so that a whole tile has only such: they have the probability 0,
 * and one key is left. `far` is what they score; with none left the result is 0, as PyTorch's. */
static void check_unreachable(int32_t dtype, double far, bool all)
{
    const shape n = {1, 1, 2, MSI_ATTENTION_COLS + 3, 1, false};
    const int64_t left = all ? -1 : n.s - 2;
    attention a;

    make(&a, &n, dtype, 0);
    a.args.scale = 1;
    for (int64_t t = 0; t < n.t; t++) {
        typed_set(&a.x[Q].memory, t, 1);
        typed_set(&a.x[DOUT].memory, t, 1);
    }
    for (int64_t s = 0; s < n.s; s++) {
        typed_set(&a.x[K].memory, s, s == left ? 1 : far);
        typed_set(&a.x[V].memory, s, 3);
    }
    run_everywhere(&a, false);
    run_everywhere(&a, true);
    for (int64_t t = 0; t < n.t; t++) {
        assert_true(typed_get(&a.x[O].memory, t) == (all ? 0 : 3));
    }
    for (int64_t s = 0; s < n.s; s++) {
        assert_true(typed_get(&a.x[DV].memory, s) == (s == left ? 2 : 0));
    }
    discard(&a);
}

static void test_cpu_attention__keys_beyond_reach_have_probability_0(void **state)
{
    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        check_unreachable(float_dtypes[d], -1e5, false);
        check_unreachable(float_dtypes[d], -INFINITY, false);
        check_unreachable(float_dtypes[d], -INFINITY, true);
    }
    check_unreachable(MS_DTYPE_F32, -87, false); /* 88 below the largest: less than 2^-126 */
}

/* One element of `which` is no number. The oracle sums what is seen alone. */
static void check_hidden(const shape *n, int32_t dtype, int32_t tile_dtype, int32_t which,
                         double value)
{
    attention a;

    make_at(&a, n, dtype, tile_dtype, 0, 0, 0);
    const int64_t row = a.x[which].len * 5 / 8;

    typed_set(&a.x[which].memory, place(&a.x[which], 0, n->h - 1, row, n->d / 2), value);
    run(&a, false);
    run(&a, true);
    compare_all(&a);
    discard(&a);
}

static void test_cpu_attention__what_the_mask_hides_may_be_nan_or_inf(void **state)
{
    (void)state;
    static const shape n[] = {
        {1, 1, 20, 20, 8, true}, {1, 2, 130, 130, 17, true}, {1, 1, 300, 280, 16, true}};
    static const double values[] = {NAN, INFINITY, -INFINITY};
    static const int32_t operands[] = {Q, K, V, DOUT};

    for (size_t i = 0; i < sizeof(n) / sizeof(n[0]) * 3 * 4; i++) {
        const shape *of = &n[i / 12];
        const double value = values[i % 3];
        const int32_t which = operands[i / 3 % 4];

        for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
            check_hidden(of, float_dtypes[d], float_dtypes[d], which, value);
        }
        check_hidden(of, MS_DTYPE_BF16, MS_DTYPE_F32, which, value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_attention__f64_equals_plain_softmax),
        cmocka_unit_test(test_cpu_attention__f32_equals_plain_softmax),
        cmocka_unit_test(test_cpu_attention__narrow_dtypes_equal_plain_softmax),
        cmocka_unit_test(test_cpu_attention__gradients_equal_finite_differences),
        cmocka_unit_test(test_cpu_attention__every_length_and_start_f32),
        cmocka_unit_test(test_cpu_attention__every_length_and_start_f64),
        cmocka_unit_test(test_cpu_attention__every_length_and_start_bf16),
        cmocka_unit_test(test_cpu_attention__every_length_and_start_bf16_in_f32_tiles),
        cmocka_unit_test(test_cpu_attention__many_tiles_have_the_same_bits_everywhere),
        cmocka_unit_test(test_cpu_attention__without_keys_it_gives_zeros),
        cmocka_unit_test(test_cpu_attention__causal_counts_from_the_first_key),
        cmocka_unit_test(test_cpu_attention__large_scores_keep_their_probabilities),
        cmocka_unit_test(test_cpu_attention__large_scores_do_not_overflow),
        cmocka_unit_test(test_cpu_attention__keys_beyond_reach_have_probability_0),
        cmocka_unit_test(test_cpu_attention__what_the_mask_hides_may_be_nan_or_inf),
    };

    return cmocka_run_group_tests_name("cpu/attention", tests, NULL, NULL);
}
