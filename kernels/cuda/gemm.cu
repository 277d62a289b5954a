/* Own matrix product, for what the library refuses: a block computes 64 x 64 elements, a thread
 * 4 x 4 of them. */
#include "cuda_kernel.h"

enum { TILE = 64, DEPTH = 16, EACH = 4, SIDE = TILE / EACH };

template <class T, class C>
static __global__ void gemm_kernel(const msi_gemm_args g, unsigned columns)
{
    typedef REAL(T) R;
    __shared__ R a_tile[DEPTH][TILE + 1], b_tile[DEPTH][TILE + 1];
    const int64_t i0 = (int64_t)(blockIdx.x / columns) * TILE;
    const int64_t j0 = (int64_t)(blockIdx.x % columns) * TILE;
    const unsigned ti = threadIdx.x / SIDE, tj = threadIdx.x % SIDE;

    for (int64_t p = blockIdx.y; p < g.batch; p += gridDim.y) {
        const T *a = (const T *)g.a + p * g.a_batch, *b = (const T *)g.b + p * g.b_batch;
        C *c = (C *)g.c + p * g.c_batch;
        R sum[EACH][EACH] = {{0}};

        for (int64_t k0 = 0; k0 < g.k; k0 += DEPTH) {
            __syncthreads();
            for (unsigned e = threadIdx.x; e < DEPTH * TILE; e += blockDim.x) {
                const int64_t k = k0 + e / TILE, i = i0 + e % TILE, j = j0 + e % TILE;

                a_tile[e / TILE][e % TILE] =
                    k < g.k && i < g.m ? get(a[i * g.a_row + k * g.a_col]) : (R)0;
                b_tile[e / TILE][e % TILE] =
                    k < g.k && j < g.n ? get(b[k * g.b_row + j * g.b_col]) : (R)0;
            }
            __syncthreads();
            for (int k = 0; k < DEPTH; k++) {
                for (int u = 0; u < EACH; u++) {
                    for (int v = 0; v < EACH; v++) {
                        sum[u][v] += a_tile[k][ti + SIDE * u] * b_tile[k][tj + SIDE * v];
                    }
                }
            }
        }
        for (int u = 0; u < EACH; u++) {
            for (int v = 0; v < EACH; v++) {
                const int64_t i = i0 + ti + SIDE * u, j = j0 + tj + SIDE * v;

                if (i < g.m && j < g.n) {
                    store(c + i * g.c_row + j,
                          g.bias != NULL ? sum[u][v] + get(((const T *)g.bias)[j]) : sum[u][v],
                          g.accumulate);
                }
            }
        }
    }
}

/* What kernels read: without the host's pointer. */
static msi_gemm_args without_host(const void *args)
{
    msi_gemm_args g = *(const msi_gemm_args *)args;

    g.op = NULL;
    return g;
}

template <class T> static cudaError_t gemm(cudaStream_t stream, const void *args)
{
    const msi_gemm_args g = without_host(args);
    const unsigned columns = (unsigned)((g.n + TILE - 1) / TILE);
    const dim3 grid((unsigned)((g.m + TILE - 1) / TILE) * columns,
                    (unsigned)(g.batch < 65535 ? g.batch : 65535));

    return ms_launch(g.c_dtype == dtype_of<T>::value ? gemm_kernel<T, T> : gemm_kernel<T, REAL(T)>,
                     grid, SIDE * SIDE, 0, stream, g, columns);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_FLOATS(ENTER, gemm)

/* c += bias, for products whose library call cannot add it. */
template <class T, class C> static __global__ void bias_kernel(const msi_gemm_args g)
{
    MS_EACH(e, g.batch * g.m * g.n)
    {
        const int64_t j = e % g.n, i = e / g.n % g.m, p = e / g.n / g.m;

        store((C *)g.c + p * g.c_batch + i * g.c_row + j, get(((const T *)g.bias)[j]), true);
    }
}

extern "C" cudaError_t msi_cuda_add_bias(cudaStream_t stream, const msi_gemm_args *args)
{
    const msi_gemm_args g = without_host(args);
    const unsigned grid = ms_grid(g.batch * g.m * g.n);

    switch (g.dtype) {
    case MS_DTYPE_F64:
        return ms_launch(bias_kernel<double, double>, grid, (unsigned)MS_THREADS, 0, stream, g);
    case MS_DTYPE_BF16:
        return ms_launch(bias_kernel<bf16, float>, grid, (unsigned)MS_THREADS, 0, stream, g);
    case MS_DTYPE_F16:
        return ms_launch(bias_kernel<f16, float>, grid, (unsigned)MS_THREADS, 0, stream, g);
    default:
        return cudaErrorNotSupported;
    }
}
