/* Attention of bf16 and f16 on tensor cores, after FlashAttention-2, and its gradient. A block has
 * four warps with 16 or 32 rows each, M tiles of 16: queries, or for dk and dv keys. Tiles of the
 * other operands follow one another through two stages of shared memory, one loading while one is
 * used. Scores, sums and statistics are f32; probabilities and ds are rounded to the operands'
 * dtype for their products.
 *
 *   forward           rows q       tiles k, v      out
 *   backward_queries  rows q, dout tiles k, v      dq
 *   backward_keys     rows k, v    tiles q, dout   dk, dv
 *
 * Head dimensions are padded with zeros to D, 64 or 128. */
#include "attention.h"
#include "mma.h"

enum { WARPS = 4, THREADS = 32 * WARPS };

static const float LOG2_E = 1.44269504088896340736f, LN_2 = 0.69314718055994530942f;

/* -- tiles ------------------------------------------------------------------------------------- */

/* Eight elements of a tile of rows of D, so placed that rows below each other share no banks: the
 * same place in rows 8 apart, which callers add a constant for. */
template <class T, int D> static __device__ inline T *cell(T *tile, int row, int chunk)
{
    return tile + row * D + (chunk ^ row % 8) * 8;
}

/* Where a thread's part of the tile that begins at row x begins: it copies one chunk of every
 * THREADS / (D / 8)-th row. */
template <class T, int D> static __device__ inline const T *part_of(const T *x, int64_t step)
{
    return x + threadIdx.x / (D / 8) * step + threadIdx.x % (D / 8) * 8;
}

/* A tile of N rows, from part_of() its first one on: zeros behind the `rows` that exist and beyond
 * `depth`. */
template <class T, int D, int N>
static __device__ inline void load(T *to, const T *from, int64_t step, int64_t rows, int depth,
                                   bool aligned)
{
    enum { EVERY = THREADS / (D / 8) }; /* a multiple of 8: their chunks have the same places */
    const int row = threadIdx.x / (D / 8), chunk = threadIdx.x % (D / 8);
    T *at = cell<T, D>(to, row, chunk);

    if (aligned && rows >= N) {
        MS_UNROLL
        for (int i = 0; i < N / EVERY; i++) {
            copy_16(at + i * (EVERY * D), from, 8 * chunk < depth);
            from += EVERY * step;
        }
        return;
    }
    MS_ROLLED
    for (int i = row; i < N; i += EVERY) {
        if (aligned) {
            copy_16(at, from, i < rows && 8 * chunk < depth);
        } else {
            for (int e = 0; e < 8; e++) {
                at[e] = i < rows && 8 * chunk + e < depth ? from[e] : T{0};
            }
        }
        at += EVERY * D;
        from += EVERY * step;
    }
}

/* Two operands whose tiles follow one another: this thread's part of the next ones, and how many
 * rows there are from their first on. */
template <class T> struct pair {
    const T *x, *y;
    int64_t x_step, y_step, rows;
};

template <class T, int D>
static __device__ inline pair<T> pair_of(const void *x, const int64_t x_stride[3], const void *y,
                                         const int64_t y_stride[3], int64_t b, int64_t h,
                                         int64_t first, int64_t len)
{
    return pair<T>{part_of<T, D>(at<const T>(x, x_stride, b, h, first), x_stride[2]),
                   part_of<T, D>(at<const T>(y, y_stride, b, h, first), y_stride[2]), x_stride[2],
                   y_stride[2], len - first};
}

/* The next tiles of N rows of both, one behind the other. */
template <class T, int D, int N>
static __device__ inline void load_next(T *to, pair<T> *p, int depth, bool aligned)
{
    load<T, D, N>(to, p->x, p->x_step, p->rows, depth, aligned);
    load<T, D, N>(to + N * D, p->y, p->y_step, p->rows, depth, aligned);
    p->x += N * p->x_step;
    p->y += N * p->y_step;
    p->rows -= N;
}

/* True for all threads if some of n rows holds inf or NaN. */
template <class T, int D> static __device__ inline bool unbounded(const T *tile, int n)
{
    const uint32_t all = (int)dtype_of<T>::value == MS_DTYPE_BF16 ? 0x7f80 : 0x7c00;
    bool found = false;

    for (int i = (int)threadIdx.x; i < n * (D / 2); i += THREADS) {
        const uint32_t pair = ((const uint32_t *)tile)[i];

        found = found || (pair & all) == all || ((pair >> 16) & all) == all;
    }
    return __syncthreads_or(found);
}

/* c (16 M, COLS) += 16 M rows of a, from `row` on, times COLS rows of b, over D. */
template <class T, int D, int COLS, int M>
static __device__ inline void scores(float c[M][COLS / 8][4], T *a, int row, T *b)
{
    const int lane = threadIdx.x % 32;

    MS_UNROLL
    for (int k = 0; k < D / 16; k++) {
        uint32_t x[M][4], y[4];

        MS_UNROLL
        for (int m = 0; m < M; m++) {
            load_matrices<false>(x[m],
                                 cell<T, D>(a, row + lane % 16, 2 * k + lane / 16) + 16 * m * D);
        }
        MS_UNROLL
        for (int j = 0; j < COLS / 16; j++) {
            load_matrices<false>(y, cell<T, D>(b, lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2) +
                                        16 * j * D);
            MS_UNROLL
            for (int m = 0; m < M; m++) {
                mma<T>(c[m][2 * j], x[m], y);
                mma<T>(c[m][2 * j + 1], x[m], y + 2);
            }
        }
    }
}

/* The weights (16, COLS) as an operand. */
template <class T, int COLS>
static __device__ inline void narrow(uint32_t a[COLS / 16][4], const float w[COLS / 8][4])
{
    MS_UNROLL
    for (int k = 0; k < COLS / 16; k++) {
        a[k][0] = pack<T>(w[2 * k][0], w[2 * k][1]);
        a[k][1] = pack<T>(w[2 * k][2], w[2 * k][3]);
        a[k][2] = pack<T>(w[2 * k + 1][0], w[2 * k + 1][1]);
        a[k][3] = pack<T>(w[2 * k + 1][2], w[2 * k + 1][3]);
    }
}

template <class T> static __device__ inline float half_of(uint32_t pair, int which)
{
    return get(T{(uint16_t)(pair >> 16 * which)});
}

/* combine() where b holds inf or NaN, which count only where they are not hidden. */
template <class T, int D, int COLS>
static __device__ inline void combine_seen(float c[D / 8][4], const float w[COLS / 8][4], T *b)
{
    const int lane = threadIdx.x % 32;
    uint32_t a[COLS / 16][4];

    narrow<T, COLS>(a, w);
    MS_ROLLED
    for (int k = 0; k < COLS / 16; k++) {
        MS_ROLLED
        for (int by = 0; by < 4; by++) {
            const int source = lane % 4 ^ by;
            uint32_t x[4];

            MS_UNROLL
            for (int i = 0; i < 4; i++) {
                x[i] = __shfl_xor_sync(0xffffffffu, a[0][i], by);
            }
            MS_UNROLL
            for (int e = 0; e < 4; e++) {
                const int row = 16 * k + 2 * source + e % 2 + e / 2 * 8;
                const float upper = half_of<T>(x[e / 2 * 2], e % 2);
                const float lower = half_of<T>(x[e / 2 * 2 + 1], e % 2);

                MS_UNROLL
                for (int j = 0; j < D / 8; j++) {
                    const uint32_t pair = *(const uint32_t *)(cell<T, D>(b, row, j) + lane % 4 * 2);

                    c[j][0] += times(upper, half_of<T>(pair, 0));
                    c[j][1] += times(upper, half_of<T>(pair, 1));
                    c[j][2] += times(lower, half_of<T>(pair, 0));
                    c[j][3] += times(lower, half_of<T>(pair, 1));
                }
            }
        }
        MS_UNROLL
        for (int i = 0; i < 4; i++) { /* the next weights to the front: registers have no index */
            MS_UNROLL
            for (int j = 0; j + 1 < COLS / 16; j++) {
                a[j][i] = a[j + 1][i];
            }
        }
    }
}

/* c (16 M, D) += w (16 M, COLS) b (COLS, D). `unbounded`: b holds inf or NaN. */
template <class T, int D, int COLS, int M>
static __device__ inline void combine(float c[M][D / 8][4], const float w[M][COLS / 8][4], T *b,
                                      bool unbounded)
{
    const int lane = threadIdx.x % 32;
    uint32_t a[M][COLS / 16][4];

    if (unbounded) {
        MS_UNROLL
        for (int m = 0; m < M; m++) {
            combine_seen<T, D, COLS>(c[m], w[m], b);
        }
        return;
    }
    MS_UNROLL
    for (int m = 0; m < M; m++) {
        narrow<T, COLS>(a[m], w[m]);
    }
    MS_UNROLL
    for (int k = 0; k < COLS / 16; k++) {
        MS_UNROLL
        for (int j = 0; j < D / 16; j++) {
            uint32_t y[4];

            load_matrices<true>(y, cell<T, D>(b, lane % 16, 2 * j + lane / 16) + 16 * k * D);
            MS_UNROLL
            for (int m = 0; m < M; m++) {
                mma<T>(c[m][2 * j], a[m][k], y);
                mma<T>(c[m][2 * j + 1], a[m][k], y + 2);
            }
        }
    }
}

/* This thread's part of rows row, row + 8 of (16, D), as rows t, t + 8 of an operand of `len`. */
template <class T, int D>
static __device__ inline void write(T *to, int64_t step, int64_t t, int64_t len, int depth,
                                    const float c[D / 8][4], float upper, float lower, bool aligned)
{
    MS_UNROLL
    for (int j = 0; j < D / 8; j++) {
        MS_UNROLL
        for (int half = 0; half < 2; half++) {
            const int d = 8 * j + threadIdx.x % 4 * 2;
            const float by = half == 0 ? upper : lower;
            const float x = c[j][2 * half] * by, y = c[j][2 * half + 1] * by;
            T *at = to + (t + 8 * half) * step + d;

            if (t + 8 * half >= len || d >= depth) {
                continue;
            }
            if (aligned) {
                *(uint32_t *)at = pack<T>(x, y);
            } else {
                at[0] = element<T>::put(x);
                if (d + 1 < depth) {
                    at[1] = element<T>::put(y);
                }
            }
        }
    }
}

/* -- scores ------------------------------------------------------------------------------------ */

/* PLAIN kernels have neither mask nor dropout, and a scale above 0. Their scores stay the products
 * of rows, and `base`, which an exponent is relative to, is in powers of two. Others have complete
 * scores and a base in powers of e, since an added mask may be as large as floats are. */
template <bool PLAIN> static __device__ inline float power(float x, float scale, float base)
{
    return exp2_of(PLAIN ? fmaf(x, scale, -base) : (x - base) * LOG2_E);
}

/* How many columns of a tile of keys from k0 on query t sees: the first ones. */
template <int COLS>
static __device__ inline int reach(const msi_attention_args &a, int64_t t, int64_t k0)
{
    const int64_t end = a.causal && t + 1 < a.kv_len ? t + 1 : a.kv_len;

    return t >= a.q_len || end <= k0 ? 0 : end - k0 < COLS ? (int)(end - k0) : COLS;
}

/* Which columns of a tile of queries from q0 on see a key: those from `first` to `end` - 1. */
struct columns {
    int first, end;
};

template <int COLS>
static __device__ inline columns seeing(const msi_attention_args &a, int64_t key, int64_t q0)
{
    const int64_t first = key >= a.kv_len ? COLS : a.causal && key > q0 ? key - q0 : 0;

    return columns{first < COLS ? (int)first : COLS,
                   a.q_len - q0 < COLS ? (int)(a.q_len - q0) : COLS};
}

/* -- forward ----------------------------------------------------------------------------------- */

struct larger {
    static __device__ inline float of(float a, float b)
    {
        return fmaxf(a, b); /* not NaN if one is a number */
    }
};

/* Over the four threads of a row. */
template <class F> static __device__ inline float row_fold(float x)
{
    x = F::of(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return F::of(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* A thread's part of 16 M rows: sums of weighted values, and for each of its rows, which are 8
 * apart, the base and the sum of weights. */
template <int D, int M> struct partial {
    float out[M][D / 8][4], base[2 * M], sum[2 * M];
};

/* Adds a tile of keys from k0 on. WHOLE: every query sees all of it. `unbounded`: v holds inf or
 * NaN, which count only where they are seen. */
template <class T, int D, int COLS, int M, bool PLAIN, bool WHOLE>
static __device__ inline void add_keys(partial<D, M> &to, const msi_attention_args &a,
                                       const dropper &drop, const head &w, float scale, T *q,
                                       int row, T *k, T *v, int64_t t, int64_t k0, bool unbounded)
{
    const int column = threadIdx.x % 4 * 2;
    float s[M][COLS / 8][4] = {{{0}}};

    scores<T, D, COLS, M>(s, q, row, k);
    MS_UNROLL
    for (int r = 0; r < 2 * M; r++) {
        const int seen = WHOLE ? COLS : reach<COLS>(a, t + 8 * r, k0) - column;
        const float old = to.base[r];
        float most = PLAIN ? lowest<float>() : old;

        MS_UNROLL
        for (int i = 0; i < COLS / 4; i++) {
            const int c = i / 2 * 8 + i % 2;
            float *x = &s[r / 2][i / 2][r % 2 * 2 + i % 2];

            if (!WHOLE && c >= seen) {
                *x = -(float)INFINITY;
            } else if (!PLAIN) {
                *x = score(a, w, t + 8 * r, k0 + column + c, *x);
            }
            most = fmaxf(most, *x);
        }
        most = row_fold<larger>(most);
        to.base[r] = PLAIN ? fmaxf(old, most * scale) : most;
        const float shrink = power<PLAIN>(old, 1, to.base[r]);

        to.sum[r] *= shrink;
        MS_UNROLL
        for (int i = 0; i < COLS / 4; i++) {
            float *x = &s[r / 2][i / 2][r % 2 * 2 + i % 2];
            const bool hides = !WHOLE && *x == -(float)INFINITY;

            *x = hides ? hidden<float>() : power<PLAIN>(*x, scale, to.base[r]);
            to.sum[r] += *x;
            if (!PLAIN && *x != 0) {
                *x *= kept<float>(a, drop, w, t + 8 * r, k0 + column + i / 2 * 8 + i % 2);
            }
        }
        MS_UNROLL
        for (int j = 0; j < D / 8; j++) {
            to.out[r / 2][j][r % 2 * 2] *= shrink;
            to.out[r / 2][j][r % 2 * 2 + 1] *= shrink;
        }
    }
    combine<T, D, COLS, M>(to.out, s, v, !WHOLE && unbounded);
}

template <class T, int D, int COLS, int M, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, 2)
    forward(const msi_attention_args a, const dropper drop, int64_t tiles, bool aligned)
{
    enum { ROWS = 16 * M * WARPS };
    T *q = MS_SHARED(T), *stages = q + ROWS * D;
    const head w = head_of(a, blockIdx.x / tiles);
    /* blocks with the most keys first */
    const int64_t q0 = (tiles - 1 - blockIdx.x % tiles) * ROWS;
    const int64_t end = a.causal && q0 + ROWS < a.kv_len ? q0 + ROWS : a.kv_len;
    const int depth = (int)a.head_dim, lane = threadIdx.x % 32, row = threadIdx.x / 32 * (16 * M);
    const int64_t t = q0 + row + lane / 4; /* and each 8th after it */
    const float scale = (float)a.scale * LOG2_E;
    pair<T> keys = pair_of<T, D>(a.k, a.k_stride, a.v, a.v_stride, w.b, w.kv, 0, a.kv_len);
    int stage = 0;
    partial<D, M> mine = {{{{0}}}, {0}, {0}};

    MS_UNROLL
    for (int r = 0; r < 2 * M; r++) {
        mine.base[r] = lowest<float>();
    }
    load<T, D, ROWS>(q, part_of<T, D>(at<const T>(a.q, a.q_stride, w.b, w.h, q0), a.q_stride[2]),
                     a.q_stride[2], a.q_len - q0, depth, aligned);
    load_next<T, D, COLS>(stages, &keys, depth, aligned);
    for (int64_t k0 = 0; k0 < end; k0 += COLS, stage ^= 1) {
        T *k = stages + stage * (2 * COLS * D), *v = k + COLS * D;
        const bool inside = PLAIN && k0 + COLS <= a.kv_len;

        copies_wait();
        __syncthreads();
        if (k0 + COLS < end) {
            load_next<T, D, COLS>(stages + (stage ^ 1) * (2 * COLS * D), &keys, depth, aligned);
        }
        const bool odd =
            !(inside && (!a.causal || k0 + COLS - 1 <= q0)) && unbounded<T, D>(v, COLS);

        if (inside && (!a.causal || k0 - q0 <= row - COLS + 1)) {
            add_keys<T, D, COLS, M, PLAIN, PLAIN>(mine, a, drop, w, scale, q, row, k, v, t, k0,
                                                  false);
        } else if (!a.causal || k0 - q0 < row + 16 * M) { /* else no row of the warp sees a key */
            add_keys<T, D, COLS, M, PLAIN, false>(mine, a, drop, w, scale, q, row, k, v, t, k0,
                                                  odd);
        }
    }
    MS_UNROLL
    for (int r = 0; r < 2 * M; r++) {
        const float sum = row_fold<fold_sum>(mine.sum[r]);

        mine.sum[r] = sum == 0 ? 0 : 1 / sum; /* no keys, or all of them masked: zeros */
        if (lane % 4 == 0 && t + 8 * r < a.q_len) {
            const int64_t i = (w.b * a.heads + w.h) * a.q_len + t + 8 * r;

            ((float *)a.max)[i] = PLAIN ? mine.base[r] * LN_2 : mine.base[r];
            ((float *)a.rsum)[i] = mine.sum[r];
        }
    }
    MS_UNROLL
    for (int m = 0; m < M; m++) {
        write<T, D>(at<T>(a.out, a.o_stride, w.b, w.h, 0), a.o_stride[2], t + 16 * m, a.q_len,
                    depth, mine.out[m], mine.sum[2 * m], mine.sum[2 * m + 1], aligned);
    }
}

/* -- gradient ---------------------------------------------------------------------------------- */

/* What a query's scores need: p is power(score, base) rsum, in PLAIN kernels without the factor;
 * delta is the product of its out and dout. */
struct query {
    float base, rsum, delta;
};

template <bool PLAIN>
static __device__ inline query query_of(const msi_attention_args &a, const head &w, int64_t t)
{
    const int64_t i = (w.b * a.heads + w.h) * a.q_len + t;

    if (t >= a.q_len) {
        return query{PLAIN ? (float)INFINITY : 0, 0, 0};
    }
    const float max = ((const float *)a.max)[i], rsum = ((const float *)a.rsum)[i];
    const float base = !PLAIN ? max : rsum == 0 ? (float)INFINITY : max * LOG2_E - log2f(rsum);

    return query{base, rsum, ((const float *)a.work)[i]};
}

/* Of a tile of queries; columns 2 n and 2 n + 1 are loaded at once. */
template <int COLS> struct statistics {
    struct alignas(8) two {
        float of[2];
    } base[COLS / 2], delta[COLS / 2], rsum[COLS / 2];
};

template <bool PLAIN, int COLS>
static __device__ inline void put(statistics<COLS> *to, int i, const query &of)
{
    to->base[i / 2].of[i % 2] = of.base;
    to->delta[i / 2].of[i % 2] = of.delta;
    if (!PLAIN) {
        to->rsum[i / 2].of[i % 2] = of.rsum;
    }
}

/* s becomes p as dropout leaves it, dp becomes ds without the scale. WHOLE: t sees key. */
template <bool PLAIN, bool WHOLE>
static __device__ inline void score_grad(const msi_attention_args &a, const dropper &drop,
                                         const head &w, float scale, const query &of, int64_t t,
                                         int64_t key, bool seen, float *s, float *dp)
{
    if (WHOLE) {
        *s = power<PLAIN>(*s, scale, of.base);
        *dp = *s * (*dp - of.delta);
        return;
    }
    const float x = !seen ? -(float)INFINITY : PLAIN ? *s : score(a, w, t, key, *s);
    const float p = x == -(float)INFINITY ? hidden<float>()
                                          : power<PLAIN>(x, scale, of.base) * (PLAIN ? 1 : of.rsum);
    const float keep = PLAIN || !seen ? 1 : kept<float>(a, drop, w, t, key);

    *s = p * keep;
    *dp = times(p, (keep != 0 ? *dp * keep : 0) - of.delta);
}

/* Adds a tile of keys from k0 on to dq of 16 M rows, as add_keys() does to the result. */
template <class T, int D, int COLS, int M, bool PLAIN, bool WHOLE>
static __device__ inline void add_keys_grad(float dq[M][D / 8][4], const msi_attention_args &a,
                                            const dropper &drop, const head &w, float scale,
                                            const query of[2 * M], T *q, T *dout, int row, T *k,
                                            T *v, int64_t t, int64_t k0, bool unbounded)
{
    const int column = threadIdx.x % 4 * 2;
    float s[M][COLS / 8][4] = {{{0}}}, ds[M][COLS / 8][4] = {{{0}}};

    scores<T, D, COLS, M>(s, q, row, k);
    scores<T, D, COLS, M>(ds, dout, row, v);
    MS_UNROLL
    for (int r = 0; r < 2 * M; r++) {
        const int seen = WHOLE ? COLS : reach<COLS>(a, t + 8 * r, k0) - column;

        MS_UNROLL
        for (int i = 0; i < COLS / 4; i++) {
            const int c = i / 2 * 8 + i % 2, e = r % 2 * 2 + i % 2;

            score_grad<PLAIN, WHOLE>(a, drop, w, scale, of[r], t + 8 * r, k0 + column + c, c < seen,
                                     &s[r / 2][i / 2][e], &ds[r / 2][i / 2][e]);
        }
    }
    combine<T, D, COLS, M>(dq, ds, k, !WHOLE && unbounded);
}

template <class T, int D, int COLS, int M, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, 2)
    backward_queries(const msi_attention_args a, const dropper drop, int64_t tiles, bool aligned)
{
    enum { ROWS = 16 * M * WARPS };
    T *q = MS_SHARED(T), *dout = q + ROWS * D, *stages = dout + ROWS * D;
    const head w = head_of(a, blockIdx.x / tiles);
    const int64_t q0 = (tiles - 1 - blockIdx.x % tiles) * ROWS;
    const int64_t end = a.causal && q0 + ROWS < a.kv_len ? q0 + ROWS : a.kv_len;
    const int depth = (int)a.head_dim, lane = threadIdx.x % 32, row = threadIdx.x / 32 * (16 * M);
    const int64_t first = q0 + row, t = first + lane / 4;
    const float scale = (float)a.scale * LOG2_E;
    query of[2 * M];
    pair<T> keys = pair_of<T, D>(a.k, a.k_stride, a.v, a.v_stride, w.b, w.kv, 0, a.kv_len);
    int stage = 0;
    float dq[M][D / 8][4] = {{{0}}};

    pair<T> rows = pair_of<T, D>(a.q, a.q_stride, a.dout, a.do_stride, w.b, w.h, q0, a.q_len);

    MS_UNROLL
    for (int r = 0; r < 2 * M; r++) {
        of[r] = query_of<PLAIN>(a, w, t + 8 * r);
    }
    load_next<T, D, ROWS>(q, &rows, depth, aligned);
    load_next<T, D, COLS>(stages, &keys, depth, aligned);
    for (int64_t k0 = 0; k0 < end; k0 += COLS, stage ^= 1) {
        T *k = stages + stage * (2 * COLS * D), *v = k + COLS * D;
        const bool inside = PLAIN && k0 + COLS <= a.kv_len;

        copies_wait();
        __syncthreads();
        if (k0 + COLS < end) {
            load_next<T, D, COLS>(stages + (stage ^ 1) * (2 * COLS * D), &keys, depth, aligned);
        }
        const bool odd =
            !(inside && (!a.causal || k0 + COLS - 1 <= q0)) && unbounded<T, D>(k, COLS);

        if (inside && (!a.causal || k0 + COLS - 1 <= first)) {
            add_keys_grad<T, D, COLS, M, PLAIN, PLAIN>(dq, a, drop, w, scale, of, q, dout, row, k,
                                                       v, t, k0, false);
        } else if (!a.causal || k0 < first + 16 * M) {
            add_keys_grad<T, D, COLS, M, PLAIN, false>(dq, a, drop, w, scale, of, q, dout, row, k,
                                                       v, t, k0, odd);
        }
    }
    MS_UNROLL
    for (int m = 0; m < M; m++) {
        write<T, D>(at<T>(a.dq, a.dq_stride, w.b, w.h, 0), a.dq_stride[2], t + 16 * m, a.q_len,
                    depth, dq[m], (float)a.scale, (float)a.scale, aligned);
    }
}

/* Adds a tile of queries from q0 on to dk and dv of 16 M rows of keys. */
template <class T, int D, int COLS, int M, bool PLAIN, bool WHOLE>
static __device__ inline void
add_queries_grad(float dk[M][D / 8][4], float dv[M][D / 8][4], const msi_attention_args &a,
                 const dropper &drop, const head &w, float scale, const statistics<COLS> *queries,
                 T *k, T *v, int row, T *q, T *dout, int64_t key, int64_t q0, bool unbounded)
{
    const int column = threadIdx.x % 4 * 2;
    float p[M][COLS / 8][4] = {{{0}}}, ds[M][COLS / 8][4] = {{{0}}};
    columns seen[2 * M];

    MS_UNROLL
    for (int r = 0; r < 2 * M; r++) {
        seen[r] = seeing<COLS>(a, key + 8 * r, q0);
    }
    scores<T, D, COLS, M>(p, k, row, q);
    scores<T, D, COLS, M>(ds, v, row, dout);
    MS_UNROLL
    for (int j = 0; j < COLS / 8; j++) {
        const typename statistics<COLS>::two base = queries->base[4 * j + column / 2],
                                             delta = queries->delta[4 * j + column / 2],
                                             rsum = queries->rsum[4 * j + column / 2];

        MS_UNROLL
        for (int i = 0; i < 4 * M; i++) {
            const int r = i / 2, e = i % 4, c = 8 * j + column + e % 2;
            const query of = {base.of[e % 2], rsum.of[e % 2], delta.of[e % 2]};

            score_grad<PLAIN, WHOLE>(a, drop, w, scale, of, q0 + c, key + 8 * r,
                                     c >= seen[r].first && c < seen[r].end, &p[i / 4][j][e],
                                     &ds[i / 4][j][e]);
        }
    }
    combine<T, D, COLS, M>(dv, p, dout, !WHOLE && unbounded);
    combine<T, D, COLS, M>(dk, ds, q, !WHOLE && unbounded);
}

template <class T, int D, int COLS, int M, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, 2)
    backward_keys(const msi_attention_args a, const dropper drop, int64_t tiles, bool aligned)
{
    enum { ROWS = 16 * M * WARPS };
    T *k = MS_SHARED(T), *v = k + ROWS * D, *stages = v + ROWS * D;
    statistics<COLS> *queries = (statistics<COLS> *)(stages + 4 * COLS * D);
    const int64_t b = blockIdx.x / tiles / a.kv_heads, kv = blockIdx.x / tiles % a.kv_heads;
    const int64_t k0 = blockIdx.x % tiles * ROWS, first = a.causal ? k0 / COLS * COLS : 0;
    const int64_t shared = a.heads / a.kv_heads;
    const int depth = (int)a.head_dim, lane = threadIdx.x % 32, row = threadIdx.x / 32 * (16 * M);
    const int64_t first_key = k0 + row, key = first_key + lane / 4;
    const float scale = (float)a.scale * LOG2_E;
    float dk[M][D / 8][4] = {{{0}}}, dv[M][D / 8][4] = {{{0}}};
    head w = {b, kv * shared, kv}, after = w;
    pair<T> rows = pair_of<T, D>(a.k, a.k_stride, a.v, a.v_stride, b, kv, k0, a.kv_len);
    pair<T> next = pair_of<T, D>(a.q, a.q_stride, a.dout, a.do_stride, b, w.h, first, a.q_len);
    int64_t q0 = first;
    int stage = 0;

    load_next<T, D, ROWS>(k, &rows, depth, aligned);
    if (first < a.q_len) {
        if (threadIdx.x < COLS) {
            put<PLAIN>(queries, (int)threadIdx.x, query_of<PLAIN>(a, w, first + threadIdx.x));
        }
        load_next<T, D, COLS>(stages, &next, depth, aligned);
    }
    for (; first < a.q_len && w.h < (kv + 1) * shared; stage ^= 1) {
        T *q = stages + stage * (2 * COLS * D), *dout = q + COLS * D;
        const bool inside = PLAIN && q0 + COLS <= a.q_len && k0 + ROWS <= a.kv_len;
        query ahead = {0, 0, 0};

        copies_wait();
        __syncthreads();
        if (next.rows <= 0) { /* the next head */
            after.h++;
            next = pair_of<T, D>(a.q, a.q_stride, a.dout, a.do_stride, b, after.h, first, a.q_len);
        }
        if (after.h < (kv + 1) * shared) {
            if (threadIdx.x < COLS) {
                ahead = query_of<PLAIN>(a, after, a.q_len - next.rows + threadIdx.x);
            }
            load_next<T, D, COLS>(stages + (stage ^ 1) * (2 * COLS * D), &next, depth, aligned);
        }
        const bool odd = !(inside && (!a.causal || k0 + ROWS - 1 <= q0)) &&
                         (unbounded<T, D>(dout, COLS) | unbounded<T, D>(q, COLS));

        if (inside && (!a.causal || first_key + 16 * M - 1 <= q0)) {
            add_queries_grad<T, D, COLS, M, PLAIN, PLAIN>(
                dk, dv, a, drop, w, scale, queries + stage, k, v, row, q, dout, key, q0, false);
        } else if (!a.causal || q0 + COLS > first_key) {
            add_queries_grad<T, D, COLS, M, PLAIN, false>(
                dk, dv, a, drop, w, scale, queries + stage, k, v, row, q, dout, key, q0, odd);
        }
        if (threadIdx.x < COLS) {
            put<PLAIN>(queries + (stage ^ 1), (int)threadIdx.x, ahead);
        }
        q0 += COLS;
        if (q0 >= a.q_len) {
            q0 = first;
            w.h++;
        }
    }
    MS_UNROLL
    for (int m = 0; m < M; m++) {
        write<T, D>(at<T>(a.dk, a.dk_stride, b, kv, 0), a.dk_stride[2], key + 16 * m, a.kv_len,
                    depth, dk[m], (float)a.scale, (float)a.scale, aligned);
        write<T, D>(at<T>(a.dv, a.dv_stride, b, kv, 0), a.dv_stride[2], key + 16 * m, a.kv_len,
                    depth, dv[m], 1, 1, aligned);
    }
}

/* -- launching --------------------------------------------------------------------------------- */

/* Rows of the operand start at multiples of 16 bytes. */
static bool rows_at_16(const void *x, const int64_t stride[3])
{
    return ((uintptr_t)x | (uintptr_t)((stride[0] | stride[1] | stride[2]) * 2)) % 16 == 0;
}

template <class T, int D, bool PLAIN>
static cudaError_t attend(cudaStream_t stream, const msi_attention_args *a)
{
    enum { COLS = 64, M = D == 64 && PLAIN ? 2 : 1, ROWS = 16 * M * WARPS };
    const int64_t tiles = (a->q_len + ROWS - 1) / ROWS;
    const bool aligned = a->head_dim % 8 == 0 && rows_at_16(a->q, a->q_stride) &&
                         rows_at_16(a->k, a->k_stride) && rows_at_16(a->v, a->v_stride) &&
                         rows_at_16(a->out, a->o_stride);

    return ms_launch(forward<T, D, COLS, M, PLAIN>, (unsigned)(a->batch * a->heads * tiles),
                     THREADS, (ROWS + 4 * COLS) * D * sizeof(T), stream, *a, dropper_of(a), tiles,
                     aligned);
}

template <class T, int D, bool PLAIN>
static cudaError_t attend_grad(cudaStream_t stream, const msi_attention_args *a)
{
    /* more would spill registers */
    enum { COLS = 32, M = D == 64 && PLAIN ? 2 : 1, ROWS = 16 * M * WARPS };
    enum {
        QUERIES = (D == 128 && !PLAIN) || (D == 64 && PLAIN) ? 16 : 32,
        KEYS_M = D == 64 && PLAIN ? 2 : 1,
        KEYS = 16 * KEYS_M * WARPS
    };
    const int64_t query_tiles = (a->q_len + ROWS - 1) / ROWS;
    const int64_t key_tiles = (a->kv_len + KEYS - 1) / KEYS;
    const size_t shared = (2 * ROWS + 4 * COLS) * D * sizeof(T);
    const size_t keys_shared =
        (2 * KEYS + 4 * QUERIES) * D * sizeof(T) + 2 * sizeof(statistics<QUERIES>);
    const bool aligned = a->head_dim % 8 == 0 && rows_at_16(a->q, a->q_stride) &&
                         rows_at_16(a->k, a->k_stride) && rows_at_16(a->v, a->v_stride) &&
                         rows_at_16(a->dout, a->do_stride) && rows_at_16(a->dq, a->dq_stride) &&
                         rows_at_16(a->dk, a->dk_stride) && rows_at_16(a->dv, a->dv_stride);
    const cudaError_t e = ms_launch(backward_queries<T, D, COLS, M, PLAIN>,
                                    (unsigned)(a->batch * a->heads * query_tiles), THREADS, shared,
                                    stream, *a, dropper_of(a), query_tiles, aligned);

    return e != cudaSuccess ? e
                            : ms_launch(backward_keys<T, D, QUERIES, KEYS_M, PLAIN>,
                                        (unsigned)(a->batch * a->kv_heads * key_tiles), THREADS,
                                        keys_shared, stream, *a, dropper_of(a), key_tiles, aligned);
}

/* With a scale above 0 the largest product has the largest score. */
static bool plain(const msi_attention_args *a)
{
    const float scale = (float)a->scale * LOG2_E;

    return a->mask == NULL && a->dropout_p == 0 && scale > 0 && scale <= FLT_MAX;
}

#define CHOOSE(op, T)                                                                              \
    (plain(a) ? (a->head_dim <= 64 ? op<T, 64, true>(stream, a) : op<T, 128, true>(stream, a))     \
              : (a->head_dim <= 64 ? op<T, 64, false>(stream, a) : op<T, 128, false>(stream, a)))

extern "C" cudaError_t msi_cuda_attention_mma(cudaStream_t stream, int32_t dtype,
                                              const msi_attention_args *a)
{
    return dtype == MS_DTYPE_BF16 ? CHOOSE(attend, bf16) : CHOOSE(attend, f16);
}

extern "C" cudaError_t msi_cuda_attention_mma_grad(cudaStream_t stream, int32_t dtype,
                                                   const msi_attention_args *a)
{
    return dtype == MS_DTYPE_BF16 ? CHOOSE(attend_grad, bf16) : CHOOSE(attend_grad, f16);
}
