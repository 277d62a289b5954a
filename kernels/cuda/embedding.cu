/* Rows of a table, and their gradient. Tokens are sorted by id, equal ids in ascending order; a
 * block adds the gradients of PIECE sorted tokens, run by run. Runs within a piece go to their row,
 * parts of longer ones to `work`, where a block a run adds them in order. */
#include "rows.h"

extern "C" cudaError_t msi_cuda_argsort_i64(cudaStream_t stream, const void *args);

template <class T> static __global__ void forward(const msi_embedding_args a)
{
    MS_EACH(i, a.n * a.width)
    {
        const int64_t id = a.ids[i / a.width];

        ((T *)a.out)[i] = is_inside(id, a.vocab) ? ((const T *)a.table)[id * a.width + i % a.width]
                                                 : element<T>::put((REAL(T))NAN);
    }
}

/* One block: report the first id out of range. */
static __global__ void check(const msi_embedding_args a)
{
    int64_t bad = a.n;

    for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        bad = !is_inside(a.ids[i], a.vocab) && i < bad ? i : bad;
    }
    bad = block_fold<fold_min>(bad, a.n);
    if (threadIdx.x == 0 && bad < a.n) {
        fault_found(a.fault, MSI_K_embedding, a.ids[bad], bad, a.n, a.vocab);
    }
}

enum { THREADS = 128 };
static const int64_t PIECE = 32; /* tokens */

/* Positions of the sorted tokens, counted from 1, then what argsort needs or the parts of runs: two
 * rows a piece, of the run that began before it and of the one that goes on behind it. */
static __host__ __device__ inline int64_t pieces_of(int64_t n)
{
    return (n + PIECE - 1) / PIECE;
}

static __device__ inline int64_t sorted_id(const msi_embedding_args &a, int64_t p)
{
    return a.ids[a.work[p] - 1];
}

template <class R>
static __device__ inline R *part_of(const msi_embedding_args &a, int64_t piece, int side)
{
    return (R *)(a.work + a.n) + (piece * 2 + side) * a.width;
}

template <class T, class Out>
static __device__ inline void add_to_row(const msi_embedding_args &a, int64_t id, int64_t j,
                                         const REAL(T) (&sum)[EACH(T)])
{
    Out *to = (Out *)a.dtable + id * a.width;

    EACH_ELEMENT(T, e, j, a.width)
    {
        store(to + j + e, sum[e], true);
    }
}

template <class T, class Out>
static __global__ void add_pieces(const msi_embedding_args a, bool whole)
{
    typedef REAL(T) R;
    __shared__ int64_t ids[PIECE], tokens[PIECE];
    const int64_t first = (int64_t)blockIdx.x * PIECE;
    const int n = (int)(a.n - first < PIECE ? a.n - first : PIECE);

    if ((int)threadIdx.x < n) {
        tokens[threadIdx.x] = a.work[first + threadIdx.x] - 1;
        ids[threadIdx.x] = a.ids[tokens[threadIdx.x]];
    }
    __syncthreads();
    const bool begun = first > 0 && sorted_id(a, first - 1) == ids[0];
    const bool goes_on = first + n < a.n && sorted_id(a, first + n) == ids[n - 1];

    EACH_GROUP(T, j, a.width)
    {
        for (int p = 0, end; p < n; p = end) {
            const bool from_before = p == 0 && begun;
            R sum[EACH(T)] = {0};

            for (end = p; end < n && ids[end] == ids[p]; end++) {
                const group<T> g =
                    load_group((const T *)a.dy + tokens[end] * a.width, j, a.width, whole);

                MS_UNROLL
                for (int e = 0; e < EACH(T); e++) {
                    sum[e] += get(g.at[e]);
                }
            }
            if (!is_inside(ids[p], a.vocab)) {
                continue;
            }
            if (from_before || (end == n && goes_on)) {
                EACH_ELEMENT(T, e, j, a.width)
                {
                    part_of<R>(a, blockIdx.x, !from_before)[j + e] = sum[e];
                }
            } else {
                add_to_row<T, Out>(a, ids[p], j, sum);
            }
        }
    }
}

/* A block a piece: the run that goes on behind it and has begun in it. */
template <class T, class Out> static __global__ void add_parts(const msi_embedding_args a)
{
    typedef REAL(T) R;
    const int64_t piece = blockIdx.x, end = (piece + 1) * PIECE, id = sorted_id(a, end - 1);
    const bool begun =
        piece > 0 && sorted_id(a, piece * PIECE) == id && sorted_id(a, piece * PIECE - 1) == id;

    if (begun || sorted_id(a, end) != id || !is_inside(id, a.vocab)) {
        return;
    }
    int64_t last = end, beyond = a.n; /* of the run; behind it */

    while (beyond - last > 1) {
        const int64_t middle = last + (beyond - last) / 2;

        if (sorted_id(a, middle) == id) {
            last = middle;
        } else {
            beyond = middle;
        }
    }
    EACH_GROUP(T, j, a.width)
    {
        R sum[EACH(T)] = {0};

        EACH_ELEMENT(T, e, j, a.width)
        {
            sum[e] = part_of<R>(a, piece, 1)[j + e];
            for (int64_t k = piece + 1; k <= last / PIECE; k++) {
                sum[e] += part_of<R>(a, k, 0)[j + e];
            }
        }
        add_to_row<T, Out>(a, id, j, sum);
    }
}

/* Bytes of `work`. */
extern "C" int64_t msi_cuda_embedding_grad_work(int32_t dtype, const msi_embedding_args *a)
{
    const int64_t parts = pieces_of(a->n) * 2 * a->width * (dtype == MS_DTYPE_F64 ? 8 : 4);
    const int64_t sort = 32 * a->n;

    return 8 * a->n + (parts > sort ? parts : sort);
}

static cudaError_t sort_tokens(cudaStream_t stream, const msi_embedding_args *a)
{
    msi_argsort_args sort = {};

    sort.n = sort.take = a->n;
    sort.in_step = sort.out_step = 1;
    sort.in = a->ids;
    sort.out = a->work;
    sort.work = a->work + a->n;
    return msi_cuda_argsort_i64(stream, &sort);
}

template <class T> static cudaError_t embedding(cudaStream_t stream, const void *args)
{
    const msi_embedding_args *a = (const msi_embedding_args *)args;
    const cudaError_t e =
        ms_launch(forward<T>, ms_grid(a->n * a->width), (unsigned)MS_THREADS, 0, stream, *a);

    return e != cudaSuccess ? e : ms_launch(check, 1, 256, 0, stream, *a);
}

template <class T> static cudaError_t embedding_grad(cudaStream_t stream, const void *args)
{
    const msi_embedding_args *a = (const msi_embedding_args *)args;
    const bool narrow = a->dtable_dtype == dtype_of<T>::value;

    if (!a->accumulate) {
        const cudaError_t e = cudaMemsetAsync(
            a->dtable, 0, (size_t)(a->vocab * a->width) * (narrow ? sizeof(T) : sizeof(REAL(T))),
            stream);

        if (e != cudaSuccess) {
            return e;
        }
    }
    cudaError_t e = a->n > 0 ? sort_tokens(stream, a) : cudaSuccess;

    if (e == cudaSuccess) {
        e = ms_launch(narrow ? add_pieces<T, T> : add_pieces<T, REAL(T)>, (unsigned)pieces_of(a->n),
                      THREADS, 0, stream, *a, whole_rows<T>(a->width, a->dy));
    }
    return e != cudaSuccess || a->n <= PIECE
               ? e
               : ms_launch(narrow ? add_parts<T, T> : add_parts<T, REAL(T)>,
                           (unsigned)(pieces_of(a->n) - 1), THREADS, 0, stream, *a);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return op<type>(stream, args);                                                             \
    }
MS_FLOATS(ENTER, embedding)
MS_FLOATS(ENTER, embedding_grad)
