/* Scaled dot-product attention and its gradient, in tiles: the (T, S) scores never exist. A block
 * has 16 rows with 16 threads each. The gradient has one kernel over queries for dq and one over
 * keys for dk and dv, so that every sum belongs to one block and has a fixed order. Scratch: one
 * number a query, the product of out and dout. Narrow dtypes have tensor cores: attention_mma.cu.
 */
#include "attention.h"

extern "C" int32_t msi_cuda_shared;

enum { ROWS = 16, LANES = 16, COLS = 32, THREADS = ROWS * LANES };

/* `n` rows of operand x from row `first` on into shared memory, zeros behind row `end`. */
template <class T, class R>
static __device__ inline void load(R *to, const T *x, int64_t step, int64_t first, int64_t end,
                                   int n, int64_t depth)
{
    for (int64_t e = threadIdx.x; e < n * depth; e += THREADS) {
        const int64_t row = e / depth, d = e % depth;

        to[row * (depth + 1) + d] = first + row < end ? get(x[(first + row) * step + d]) : (R)0;
    }
}

template <class R> static __device__ inline R dot(const R *a, const R *b, int64_t depth)
{
    R sum = 0;

    for (int64_t d = 0; d < depth; d++) {
        sum += a[d] * b[d];
    }
    return sum;
}

/* Over the 16 threads of a row. */
template <class F, class R> static __device__ inline R row_fold(R x)
{
    for (unsigned by = LANES / 2; by > 0; by /= 2) {
        x = F::of(x, __shfl_xor_sync(0xffffffffu, x, by));
    }
    return x;
}

/* Keys that some of the queries [q0, q0 + ROWS) see. */
static __device__ inline int64_t end_of(const msi_attention_args &a, int64_t q0)
{
    return a.causal && q0 + ROWS < a.kv_len ? q0 + ROWS : a.kv_len;
}

/* out = out * scale + the weighted sum of COLS rows, which are `row` apart. */
template <class R>
static __device__ inline void add_rows(R *out, R scale, const R *weights, const R *rows,
                                       int64_t row, int lane, int64_t depth)
{
    for (int64_t d = lane; d < depth; d += LANES) {
        R y = out[d] * scale;

        for (int c = 0; c < COLS; c++) {
            y += times(weights[c], rows[c * row + d]);
        }
        out[d] = y;
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS, 1)
    forward(const msi_attention_args a, const dropper drop, int64_t tiles)
{
    typedef REAL(T) R;
    const int64_t depth = a.head_dim, row = depth + 1;
    R *q = MS_SHARED(R), *acc = q + ROWS * row, *kv = acc + ROWS * row, *p = kv + COLS * row;
    const head w = head_of(a, blockIdx.x / tiles);
    const int64_t q0 = blockIdx.x % tiles * ROWS, end = end_of(a, q0);
    const int r = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int64_t t = q0 + r;
    R m = lowest<R>(), l = 0;

    load(q, at<const T>(a.q, a.q_stride, w.b, w.h, 0), a.q_stride[2], q0, a.q_len, ROWS, depth);
    for (int64_t d = lane; d < depth; d += LANES) {
        acc[r * row + d] = 0;
    }
    for (int64_t k0 = 0; k0 < end; k0 += COLS) {
        R x[2], most = m, sum = 0;

        __syncthreads();
        load(kv, at<const T>(a.k, a.k_stride, w.b, w.kv, 0), a.k_stride[2], k0, a.kv_len, COLS,
             depth);
        __syncthreads();
        for (int u = 0; u < 2; u++) {
            const int c = lane + u * LANES;

            x[u] = sees(a, t, k0 + c)
                       ? score(a, w, t, k0 + c, dot(q + r * row, kv + c * row, depth))
                       : -(R)INFINITY;
            most = x[u] > most ? x[u] : most;
        }
        most = row_fold<fold_max>(most);
        for (int u = 0; u < 2; u++) {
            const int c = lane + u * LANES;
            const R e = sees(a, t, k0 + c) ? exp_of(x[u] - most) : (R)0;

            sum += e;
            p[r * COLS + c] = x[u] == -(R)INFINITY ? hidden<R>()
                              : e != 0             ? e * kept<R>(a, drop, w, t, k0 + c)
                                                   : e;
        }
        const R shrink = exp_of(m - most);

        l = l * shrink + row_fold<fold_sum>(sum);
        m = most;
        __syncthreads();
        load(kv, at<const T>(a.v, a.v_stride, w.b, w.kv, 0), a.v_stride[2], k0, a.kv_len, COLS,
             depth);
        __syncthreads();
        add_rows(acc + r * row, shrink, p + r * COLS, kv, row, lane, depth);
    }
    if (t >= a.q_len) {
        return;
    }
    const R rsum = l == 0 ? (R)0 : 1 / l; /* no keys, or all of them masked: zeros */
    T *out = at<T>(a.out, a.o_stride, w.b, w.h, t);

    for (int64_t d = lane; d < depth; d += LANES) {
        out[d] = element<T>::put(acc[r * row + d] * rsum);
    }
    if (lane == 0) {
        const int64_t i = (w.b * a.heads + w.h) * a.q_len + t;

        ((R *)a.max)[i] = m;
        ((R *)a.rsum)[i] = rsum;
    }
}

/* -- gradient ---------------------------------------------------------------------------------- */

/* delta = sum over D of out dout; a warp a query. */
template <class T> static __global__ void products(const msi_attention_args a, int64_t n)
{
    typedef REAL(T) R;

    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        const head w = head_of(a, i / a.q_len);
        const T *o = at<const T>(a.o, a.o_stride, w.b, w.h, i % a.q_len);
        const T *dout = at<const T>(a.dout, a.do_stride, w.b, w.h, i % a.q_len);
        R sum = 0;

        for (int64_t d = threadIdx.x; d < a.head_dim; d += blockDim.x) {
            sum += get(o[d]) * get(dout[d]);
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            ((R *)a.work)[i] = sum;
        }
    }
}

/* ds of query t and key s, without the scale, from their products; *kept_p: p as dropout leaves it.
 */
template <class R>
static __device__ inline R score_grad(const msi_attention_args &a, const dropper &drop,
                                      const head &w, int64_t t, int64_t s, R qk, R dov, R *kept_p)
{
    const int64_t i = (w.b * a.heads + w.h) * a.q_len + t;

    const R x = sees(a, t, s) ? score(a, w, t, s, qk) : -(R)INFINITY;

    *kept_p = hidden<R>();
    if (x == -(R)INFINITY) {
        return hidden<R>();
    }
    const R p = exp_of(x - ((const R *)a.max)[i]) * ((const R *)a.rsum)[i];
    const R keep = kept<R>(a, drop, w, t, s);

    *kept_p = p * keep;
    return times(p, (keep != 0 ? dov * keep : (R)0) - ((const R *)a.work)[i]);
}

template <class T>
static __global__ void __launch_bounds__(THREADS, 1)
    backward_queries(const msi_attention_args a, const dropper drop, int64_t tiles)
{
    typedef REAL(T) R;
    const int64_t depth = a.head_dim, row = depth + 1;
    R *q = MS_SHARED(R), *dout = q + ROWS * row, *dq = dout + ROWS * row, *kv = dq + ROWS * row;
    R *ds = kv + COLS * row;
    const head w = head_of(a, blockIdx.x / tiles);
    const int64_t q0 = blockIdx.x % tiles * ROWS, end = end_of(a, q0);
    const int r = threadIdx.x / LANES, lane = threadIdx.x % LANES;

    load(q, at<const T>(a.q, a.q_stride, w.b, w.h, 0), a.q_stride[2], q0, a.q_len, ROWS, depth);
    load(dout, at<const T>(a.dout, a.do_stride, w.b, w.h, 0), a.do_stride[2], q0, a.q_len, ROWS,
         depth);
    for (int64_t d = lane; d < depth; d += LANES) {
        dq[r * row + d] = 0;
    }
    for (int64_t k0 = 0; k0 < end; k0 += COLS) {
        R dov[2], unused;

        __syncthreads();
        load(kv, at<const T>(a.v, a.v_stride, w.b, w.kv, 0), a.v_stride[2], k0, a.kv_len, COLS,
             depth);
        __syncthreads();
        for (int u = 0; u < 2; u++) {
            dov[u] = dot(dout + r * row, kv + (lane + u * LANES) * row, depth);
        }
        __syncthreads();
        load(kv, at<const T>(a.k, a.k_stride, w.b, w.kv, 0), a.k_stride[2], k0, a.kv_len, COLS,
             depth);
        __syncthreads();
        for (int u = 0; u < 2; u++) {
            const int c = lane + u * LANES;

            ds[r * COLS + c] = score_grad(a, drop, w, q0 + r, k0 + c,
                                          dot(q + r * row, kv + c * row, depth), dov[u], &unused);
        }
        __syncthreads();
        add_rows(dq + r * row, (R)1, ds + r * COLS, kv, row, lane, depth);
    }
    for (int64_t d = lane; q0 + r < a.q_len && d < depth; d += LANES) {
        at<T>(a.dq, a.dq_stride, w.b, w.h, q0 + r)[d] =
            element<T>::put(dq[r * row + d] * (R)a.scale);
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS, 1)
    backward_keys(const msi_attention_args a, const dropper drop, int64_t tiles)
{
    typedef REAL(T) R;
    const int64_t depth = a.head_dim, row = depth + 1, shared = a.heads / a.kv_heads;
    R *k = MS_SHARED(R), *v = k + ROWS * row, *dk = v + ROWS * row, *dv = dk + ROWS * row;
    R *q = dv + ROWS * row, *p = q + COLS * row, *ds = p + ROWS * COLS;
    const int64_t b = blockIdx.x / tiles / a.kv_heads, kv = blockIdx.x / tiles % a.kv_heads;
    const int64_t k0 = blockIdx.x % tiles * ROWS, first = a.causal ? k0 / COLS * COLS : 0;
    const int r = threadIdx.x / LANES, lane = threadIdx.x % LANES;

    load(k, at<const T>(a.k, a.k_stride, b, kv, 0), a.k_stride[2], k0, a.kv_len, ROWS, depth);
    load(v, at<const T>(a.v, a.v_stride, b, kv, 0), a.v_stride[2], k0, a.kv_len, ROWS, depth);
    for (int64_t d = lane; d < depth; d += LANES) {
        dk[r * row + d] = dv[r * row + d] = 0;
    }
    for (int64_t h = kv * shared; h < (kv + 1) * shared; h++) {
        const head w = {b, h, kv};
        const T *queries = at<const T>(a.q, a.q_stride, b, h, 0);
        const T *douts = at<const T>(a.dout, a.do_stride, b, h, 0);

        for (int64_t q0 = first; q0 < a.q_len; q0 += COLS) {
            R qk[2];

            __syncthreads();
            load(q, queries, a.q_stride[2], q0, a.q_len, COLS, depth);
            __syncthreads();
            for (int u = 0; u < 2; u++) {
                qk[u] = dot(q + (lane + u * LANES) * row, k + r * row, depth);
            }
            __syncthreads();
            load(q, douts, a.do_stride[2], q0, a.q_len, COLS, depth);
            __syncthreads();
            for (int u = 0; u < 2; u++) {
                const int c = lane + u * LANES;

                ds[r * COLS + c] =
                    score_grad(a, drop, w, q0 + c, k0 + r, qk[u],
                               dot(q + c * row, v + r * row, depth), &p[r * COLS + c]);
            }
            __syncthreads();
            add_rows(dv + r * row, (R)1, p + r * COLS, q, row, lane, depth);
            __syncthreads();
            load(q, queries, a.q_stride[2], q0, a.q_len, COLS, depth);
            __syncthreads();
            add_rows(dk + r * row, (R)1, ds + r * COLS, q, row, lane, depth);
        }
    }
    for (int64_t d = lane; k0 + r < a.kv_len && d < depth; d += LANES) {
        at<T>(a.dk, a.dk_stride, b, kv, k0 + r)[d] = element<T>::put(dk[r * row + d] * (R)a.scale);
        at<T>(a.dv, a.dv_stride, b, kv, k0 + r)[d] = element<T>::put(dv[r * row + d]);
    }
}

/* dmask = sum of p (dp - delta) over all scores that an element was added to; a thread an
 * element. */
template <class T>
static __global__ void backward_mask(const msi_attention_args a, const dropper drop)
{
    typedef REAL(T) R;
    const int64_t size[4] = {a.batch, a.heads, a.q_len, a.kv_len};

    MS_EACH(e, a.dmask_numel)
    {
        int64_t first[4], end[4], rest = e;
        R sum = 0;

        for (int d = 0; d < 4; d++) {
            const int64_t step = a.dmask_stride[d];

            first[d] = step != 0 ? rest / step : 0;
            end[d] = step != 0 ? first[d] + 1 : size[d];
            rest = step != 0 ? rest % step : rest;
        }
        for (int64_t b = first[0]; b < end[0]; b++) {
            for (int64_t h = first[1]; h < end[1]; h++) {
                const head w = {b, h, h / (a.heads / a.kv_heads)};

                for (int64_t t = first[2]; t < end[2]; t++) {
                    for (int64_t s = first[3]; s < end[3]; s++) {
                        const T *q = at<const T>(a.q, a.q_stride, b, h, t);
                        const T *k = at<const T>(a.k, a.k_stride, b, w.kv, s);
                        const T *v = at<const T>(a.v, a.v_stride, b, w.kv, s);
                        const T *dout = at<const T>(a.dout, a.do_stride, b, h, t);
                        R qk = 0, dov = 0, unused;

                        for (int64_t d = 0; d < a.head_dim; d++) {
                            qk += get(q[d]) * get(k[d]);
                            dov += get(dout[d]) * get(v[d]);
                        }
                        sum += score_grad(a, drop, w, t, s, qk, dov, &unused);
                    }
                }
            }
        }
        ((R *)a.dmask)[e] = sum;
    }
}

/* Bytes for `rows` rows of a head and `tiles` (ROWS, COLS) tiles. */
static size_t shared_bytes(const msi_attention_args *a, int64_t rows, int64_t tiles, size_t real)
{
    return (size_t)(rows * (a->head_dim + 1) + tiles * ROWS * COLS) * real;
}

/* What kernels read: without the host's pointers. */
static msi_attention_args without_host(const void *args)
{
    msi_attention_args a = *(const msi_attention_args *)args;

    a.ctx = NULL;
    a.status = NULL;
    a.op = NULL;
    return a;
}

template <class T> static cudaError_t attention(cudaStream_t stream, const void *args)
{
    const msi_attention_args device = without_host(args), *a = &device;
    const int64_t tiles = (a->q_len + ROWS - 1) / ROWS;
    const size_t shared = shared_bytes(a, 2 * ROWS + COLS, 1, sizeof(REAL(T)));

    if (sizeof(T) == 2 && a->head_dim <= MMA_DEPTH) {
        return msi_cuda_attention_mma(stream, dtype_of<T>::value, a);
    }
    return shared > (size_t)msi_cuda_shared
               ? cudaErrorNotSupported
               : ms_launch(forward<T>, (unsigned)(a->batch * a->heads * tiles), THREADS, shared,
                           stream, *a, dropper_of(a), tiles);
}

template <class T>
static cudaError_t queries_and_keys(cudaStream_t stream, const msi_attention_args *a)
{
    const int64_t query_tiles = (a->q_len + ROWS - 1) / ROWS;
    const int64_t key_tiles = (a->kv_len + ROWS - 1) / ROWS;
    const size_t real = sizeof(REAL(T)), shared = shared_bytes(a, 4 * ROWS + COLS, 2, real);

    if (sizeof(T) == 2 && a->head_dim <= MMA_DEPTH) {
        return msi_cuda_attention_mma_grad(stream, dtype_of<T>::value, a);
    }
    if (shared > (size_t)msi_cuda_shared) {
        return cudaErrorNotSupported;
    }
    const cudaError_t e = ms_launch(
        backward_queries<T>, (unsigned)(a->batch * a->heads * query_tiles), THREADS,
        shared_bytes(a, 3 * ROWS + COLS, 1, real), stream, *a, dropper_of(a), query_tiles);

    return e != cudaSuccess
               ? e
               : ms_launch(backward_keys<T>, (unsigned)(a->batch * a->kv_heads * key_tiles),
                           THREADS, shared, stream, *a, dropper_of(a), key_tiles);
}

template <class T> static cudaError_t attention_grad(cudaStream_t stream, const void *args)
{
    const msi_attention_args device = without_host(args), *a = &device;
    const int64_t n = a->batch * a->heads * a->q_len;
    cudaError_t e = ms_launch(products<T>, (unsigned)(n < 65536 ? n : 65536), 32, 0, stream, *a, n);

    e = e != cudaSuccess ? e : queries_and_keys<T>(stream, a);
    return e != cudaSuccess || a->dmask == NULL
               ? e
               : ms_launch(backward_mask<T>, ms_grid(a->dmask_numel), (unsigned)MS_THREADS, 0,
                           stream, *a, dropper_of(a));
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_FLOATS(ENTER, attention)
MS_FLOATS(ENTER, attention_grad)
