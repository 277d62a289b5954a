/* Pooling over windows of planes, and its gradient: a thread an output, or an element of dx, which
 * adds what its windows give in a fixed order. */
#include "cuda_kernel.h"

/* Input positions of window `o` along dimension d: begin, begin + dilation, ..., below end. */
struct pool_span {
    int64_t begin, end;
};

static __device__ inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* With padding, which averages may count; a window ends at the end of the padding. */
static __device__ inline pool_span padded_span(const msi_pool_args &a, int d, int64_t o)
{
    if (a.adaptive) {
        return {o * a.in[d] / a.out[d], ((o + 1) * a.in[d] + a.out[d] - 1) / a.out[d]};
    }
    const int64_t begin = o * a.stride[d] - a.pad[d];

    return {begin, least(begin + a.kernel[d], a.in[d] + a.pad[d])};
}

static __device__ inline pool_span span(const msi_pool_args &a, int d, int64_t o)
{
    const pool_span s = padded_span(a, d, o);

    return {s.begin < 0 ? 0 : s.begin, least(s.end, a.in[d])};
}

static __device__ inline double divisor(const msi_pool_args &a, const int64_t *o)
{
    double n = 1;

    for (int d = 0; d < 3 && a.divisor == 0; d++) {
        const pool_span s = a.count_pad ? padded_span(a, d, o[d]) : span(a, d, o[d]);

        n *= (double)(s.end - s.begin);
    }
    return a.divisor != 0 ? a.divisor : n;
}

static __host__ __device__ inline int64_t volume(const int64_t *size)
{
    return size[0] * size[1] * size[2];
}

/* The place of element e of a plane of that size. */
static __device__ inline void place(int64_t to[3], int64_t e, const int64_t *size)
{
    to[2] = e % size[2];
    to[1] = e / size[2] % size[1];
    to[0] = e / size[2] / size[1];
}

template <class T> static __global__ void max_pool(const msi_pool_args a, int64_t n)
{
    MS_EACH(e, n)
    {
        const T *x = (const T *)a.x + e / volume(a.out) * volume(a.in);
        int64_t o[3];
        int32_t tap = 0, taken = -1;
        REAL(T) most = -(REAL(T))INFINITY;

        place(o, e % volume(a.out), a.out);
        for (int64_t kd = 0; kd < a.kernel[0]; kd++) {
            for (int64_t kh = 0; kh < a.kernel[1]; kh++) {
                for (int64_t kw = 0; kw < a.kernel[2]; kw++, tap++) {
                    const int64_t z = o[0] * a.stride[0] - a.pad[0] + kd * a.dilation[0];
                    const int64_t v = o[1] * a.stride[1] - a.pad[1] + kh * a.dilation[1];
                    const int64_t w = o[2] * a.stride[2] - a.pad[2] + kw * a.dilation[2];

                    if (z >= 0 && z < a.in[0] && v >= 0 && v < a.in[1] && w >= 0 && w < a.in[2]) {
                        const REAL(T) value = get(x[(z * a.in[1] + v) * a.in[2] + w]);

                        if (taken < 0 || value > most || value != value) {
                            most = value;
                            taken = tap;
                        }
                    }
                }
            }
        }
        ((T *)a.y)[e] = element<T>::put(most);
        a.taps[e] = taken;
    }
}

/* The output along dimension d whose window has `tap` at input position i; -1: none. */
static __device__ inline int64_t output_at(const msi_pool_args &a, int d, int64_t i, int64_t tap)
{
    const int64_t at = i + a.pad[d] - tap * a.dilation[d];

    return at >= 0 && at % a.stride[d] == 0 && at / a.stride[d] < a.out[d] ? at / a.stride[d] : -1;
}

template <class T> static __global__ void max_pool_grad(const msi_pool_args a, int64_t n)
{
    MS_EACH(e, n)
    {
        const int64_t first = e / volume(a.in) * volume(a.out);
        int64_t i[3];
        int32_t tap = 0;
        REAL(T) sum = 0;

        place(i, e % volume(a.in), a.in);
        for (int64_t kd = 0; kd < a.kernel[0]; kd++) {
            for (int64_t kh = 0; kh < a.kernel[1]; kh++) {
                for (int64_t kw = 0; kw < a.kernel[2]; kw++, tap++) {
                    const int64_t d = output_at(a, 0, i[0], kd), h = output_at(a, 1, i[1], kh);
                    const int64_t w = output_at(a, 2, i[2], kw);
                    const int64_t o = first + (d * a.out[1] + h) * a.out[2] + w;

                    if (d >= 0 && h >= 0 && w >= 0 && a.taps[o] == tap) {
                        sum += get(((const T *)a.dy)[o]);
                    }
                }
            }
        }
        store((REAL(T) *)a.dx + e, sum, a.accumulate);
    }
}

template <class T> static __global__ void avg_pool(const msi_pool_args a, int64_t n)
{
    MS_EACH(e, n)
    {
        const T *x = (const T *)a.x + e / volume(a.out) * volume(a.in);
        int64_t o[3];
        REAL(T) sum = 0;

        place(o, e % volume(a.out), a.out);
        const pool_span d = span(a, 0, o[0]), h = span(a, 1, o[1]), w = span(a, 2, o[2]);

        for (int64_t z = d.begin; z < d.end; z++) {
            for (int64_t v = h.begin; v < h.end; v++) {
                for (int64_t u = w.begin; u < w.end; u++) {
                    sum += get(x[(z * a.in[1] + v) * a.in[2] + u]);
                }
            }
        }
        ((T *)a.y)[e] = element<T>::put((double)sum / divisor(a, o));
    }
}

/* Outputs along dimension d whose windows may have input position i. */
static __device__ inline pool_span windows(const msi_pool_args &a, int d, int64_t i)
{
    if (a.adaptive) {
        const int64_t first = i * a.out[d] / a.in[d];

        return {first > 0 ? first - 1 : 0, least((i + 1) * a.out[d] / a.in[d] + 1, a.out[d])};
    }
    const int64_t before = i + a.pad[d] - a.kernel[d];

    return {before < 0 ? 0 : before / a.stride[d] + 1,
            least((i + a.pad[d]) / a.stride[d] + 1, a.out[d])};
}

static __device__ inline bool contains(const msi_pool_args &a, int d, int64_t o, int64_t i)
{
    const pool_span s = span(a, d, o);

    return i >= s.begin && i < s.end;
}

template <class T> static __global__ void avg_pool_grad(const msi_pool_args a, int64_t n)
{
    typedef REAL(T) R;

    MS_EACH(e, n)
    {
        const T *dy = (const T *)a.dy + e / volume(a.in) * volume(a.out);
        int64_t i[3], o[3];
        R sum = 0;

        place(i, e % volume(a.in), a.in);
        const pool_span d = windows(a, 0, i[0]), h = windows(a, 1, i[1]), w = windows(a, 2, i[2]);

        for (o[0] = d.begin; o[0] < d.end; o[0]++) {
            for (o[1] = h.begin; o[1] < h.end; o[1]++) {
                for (o[2] = w.begin; o[2] < w.end; o[2]++) {
                    if (contains(a, 0, o[0], i[0]) && contains(a, 1, o[1], i[1]) &&
                        contains(a, 2, o[2], i[2])) {
                        const T g = dy[(o[0] * a.out[1] + o[1]) * a.out[2] + o[2]];

                        sum += (R)((double)get(g) / divisor(a, o));
                    }
                }
            }
        }
        store((R *)a.dx + e, sum, a.accumulate);
    }
}

#define ENTER_ONE(op, size, dtype, type)                                                           \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        const msi_pool_args *a = (const msi_pool_args *)args;                                      \
        const int64_t n = a->planes * volume(a->size);                                             \
        return ms_launch(op<type>, ms_grid(n), (unsigned)MS_THREADS, 0, stream, *a, n);            \
    }
#define ENTER(op, dtype, type)                                                                     \
    ENTER_ONE(max_pool, out, dtype, type)                                                          \
    ENTER_ONE(max_pool_grad, in, dtype, type)                                                      \
    ENTER_ONE(avg_pool, out, dtype, type)                                                          \
    ENTER_ONE(avg_pool_grad, in, dtype, type)
MS_FLOATS(ENTER, pool)
