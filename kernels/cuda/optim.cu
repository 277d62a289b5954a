/* Optimizer steps; the formulas are those of kernels/cpu/<name>_body.h. One launch updates many
 * parameters: blocks take chunks of them in turn. */
#include "cuda_kernel.h"

enum { CHUNK = 4096, STATES = 3 };

/* A rule has its settings in the compute type, `state()`, the buffers of a parameter or NULL, and
 * `step()`, which changes its states and gives the new element. */

/* The gradient, negated to maximize, with the decay that is added to it. Without decay p is not
 * read, since infinity times 0 is NaN. */
template <class R> static __device__ inline R gradient(R g, R p, bool maximize, double decay)
{
    g = maximize ? -g : g;
    return decay != 0 ? g + p * (R)decay : g;
}

template <class R> struct adam_rule {
    typedef msi_adam_args args;
    R keep, divisor, rate, beta1, beta2, fresh1, fresh2, eps, decay;
    bool maximize, has_v, has_most;

    __device__ adam_rule(const args &a)
        : keep((R)(a.decoupled ? 1 - a.lr * a.weight_decay : 1)), divisor((R)sqrt(a.correction2)),
          rate((R)(a.lr / a.correction1)), beta1((R)a.beta1), beta2((R)a.beta2),
          fresh1((R)(1 - a.beta1)), fresh2((R)(1 - a.beta2)), eps((R)a.eps),
          decay((R)(a.decoupled ? 0 : a.weight_decay)), maximize(a.maximize), has_v(a.v != NULL),
          has_most(a.most != NULL)
    {
    }
    static __device__ void *state(const args &a, int k)
    {
        return k == 0 ? a.m : k == 1 ? a.v : a.most;
    }
    __device__ R step(R x, R g, R s[STATES]) const
    {
        g = gradient(g, x, maximize, (double)decay);
        s[0] = s[0] * beta1 + g * fresh1;
        if (!has_v) {
            const R decayed = s[2] * beta2, least = (g < 0 ? -g : g) + eps;

            s[2] = decayed > least ? decayed : least;
            return x * keep - s[0] / s[2] * rate;
        }
        s[1] = s[1] * beta2 + g * fresh2 * g;
        s[2] = has_most && s[2] > s[1] ? s[2] : s[1];
        return x * keep - s[0] / (root_of(s[2]) / divisor + eps) * rate;
    }
};

template <class R> struct sgd_rule {
    typedef msi_sgd_args args;
    const args &a;

    __device__ sgd_rule(const args &of) : a(of)
    {
    }
    static __device__ void *state(const args &a, int k)
    {
        return k == 0 ? a.buf : NULL;
    }
    __device__ R step(R x, R g, R s[STATES]) const
    {
        R d = gradient(g, x, a.maximize, a.weight_decay);

        if (a.buf != NULL) {
            s[0] = a.first_step ? d : s[0] * (R)a.momentum + d * (R)(1 - a.dampening);
            d = a.nesterov ? d + s[0] * (R)a.momentum : s[0];
        }
        return x - d * (R)a.lr;
    }
};

template <class R> struct lion_rule {
    typedef msi_lion_args args;
    const args &a;

    __device__ lion_rule(const args &of) : a(of)
    {
    }
    static __device__ void *state(const args &a, int k)
    {
        return k == 0 ? a.m : NULL;
    }
    __device__ R step(R x, R g, R s[STATES]) const
    {
        g = a.maximize ? -g : g;
        const R mixed = s[0] * (R)a.beta1 + g * (R)(1 - a.beta1);
        const R move = mixed > 0 ? (R)1 : mixed < 0 ? (R)-1 : mixed; /* NaN stays */

        s[0] = s[0] * (R)a.beta2 + g * (R)(1 - a.beta2);
        return x * (R)(1 - a.lr * a.weight_decay) - move * (R)a.lr;
    }
};

template <class R> struct rmsprop_rule {
    typedef msi_rmsprop_args args;
    const args &a;

    __device__ rmsprop_rule(const args &of) : a(of)
    {
    }
    static __device__ void *state(const args &a, int k)
    {
        return k == 0 ? a.v : k == 1 ? a.mean : a.buf;
    }
    __device__ R step(R x, R g, R s[STATES]) const
    {
        const R fresh = (R)(1 - a.alpha);

        g = gradient(g, x, a.maximize, a.weight_decay);
        s[0] = s[0] * (R)a.alpha + g * fresh * g;
        R square = s[0];

        if (a.mean != NULL) {
            s[1] += (g - s[1]) * fresh;
            square = s[0] - s[1] * s[1];
        }
        R move = g / (root_of(square) + (R)a.eps);

        if (a.buf != NULL) {
            s[2] = s[2] * (R)a.momentum + move;
            move = s[2];
        }
        return x - move * (R)a.lr;
    }
};

template <class R> struct adagrad_rule {
    typedef msi_adagrad_args args;
    const args &a;

    __device__ adagrad_rule(const args &of) : a(of)
    {
    }
    static __device__ void *state(const args &a, int k)
    {
        return k == 0 ? a.sum : NULL;
    }
    __device__ R step(R x, R g, R s[STATES]) const
    {
        g = gradient(g, x, a.maximize, a.weight_decay);
        s[0] += g * g;
        return x - g / (root_of(s[0]) + (R)a.eps) * (R)a.lr;
    }
};

/* Updates of `n` parameters; `end`: chunks up to the end of each. */
template <class A> struct updates {
    A of[MSI_RUN_ALL];
    int64_t end[MSI_RUN_ALL];
    int32_t n;
};

template <class Rule, class T>
static __device__ inline void update_chunk(const typename Rule::args &a, int64_t first)
{
    typedef REAL(T) R;
    const Rule rule(a);
    T *const p = (T *)a.p, *s[STATES];
    uintptr_t all = (uintptr_t)a.p | (uintptr_t)a.g;
    const int64_t end = first + CHUNK < a.n ? first + CHUNK : a.n;

    MS_UNROLL
    for (int k = 0; k < STATES; k++) {
        s[k] = (T *)Rule::state(a, k);
        all |= (uintptr_t)s[k];
    }
    for (int64_t j = first + threadIdx.x * EACH(T); j < end; j += blockDim.x * EACH(T)) {
        const bool whole = all % 16 == 0 && j + EACH(T) <= end;
        const group<T> g = load_group((const T *)a.g, j, end, whole);
        group<T> x = load_group(p, j, end, whole), old[STATES];

        MS_UNROLL
        for (int k = 0; k < STATES; k++) {
            old[k] = s[k] != NULL ? load_group(s[k], j, end, whole) : g;
        }
        MS_UNROLL
        for (int e = 0; e < EACH(T); e++) {
            R now[STATES] = {get(old[0].at[e]), get(old[1].at[e]), get(old[2].at[e])};

            x.at[e] = element<T>::put(rule.step(get(x.at[e]), get(g.at[e]), now));
            MS_UNROLL
            for (int k = 0; k < STATES; k++) {
                old[k].at[e] = element<T>::put(now[k]);
            }
        }
        store_group(p, j, end, whole, x);
        MS_UNROLL
        for (int k = 0; k < STATES; k++) {
            if (s[k] != NULL) {
                store_group(s[k], j, end, whole, old[k]);
            }
        }
    }
}

template <class Rule, class T>
static __global__ void update_kernel(const __grid_constant__ updates<typename Rule::args> u)
{
    for (int64_t c = blockIdx.x; c < u.end[u.n - 1]; c += gridDim.x) {
        int32_t k = 0;

        while (c >= u.end[k]) {
            k++;
        }
        update_chunk<Rule, T>(u.of[k], (k > 0 ? c - u.end[k - 1] : c) * CHUNK);
    }
}

/* Arguments `stride` bytes apart. */
template <class Rule, class T>
static cudaError_t update(cudaStream_t stream, const void *args, int64_t stride, int32_t n)
{
    updates<typename Rule::args> u = {};
    int64_t chunks = 0;

    for (u.n = 0; u.n < n; u.n++) {
        u.of[u.n] = *(const typename Rule::args *)((const char *)args + u.n * stride);
        chunks += (u.of[u.n].n + CHUNK - 1) / CHUNK;
        u.end[u.n] = chunks;
    }
    return ms_launch(update_kernel<Rule, T>, ms_grid(chunks * MS_THREADS), (unsigned)MS_THREADS, 0,
                     stream, u);
}

#define ENTER(op, dtype, type)                                                                     \
    MS_ENTRY(op, dtype)                                                                            \
    {                                                                                              \
        return update<op##_rule<REAL(type)>, type>(stream, args, 0, 1);                            \
    }
MS_FLOATS(ENTER, adam)
MS_FLOATS(ENTER, sgd)
MS_FLOATS(ENTER, lion)
MS_FLOATS(ENTER, rmsprop)
MS_FLOATS(ENTER, adagrad)

#define CASE(op, dtype, T)                                                                         \
    case MS_DTYPE_##dtype:                                                                         \
        return update<op##_rule<REAL(T)>, T>(stream, args, stride, n);
#define CASES(op)                                                                                  \
    case MSI_K_##op:                                                                               \
        switch (dtype) {                                                                           \
            CASE(op, F32, float)                                                                   \
            CASE(op, F64, double)                                                                  \
            CASE(op, BF16, bf16)                                                                   \
            CASE(op, F16, f16)                                                                     \
        default:                                                                                   \
            return cudaErrorNotSupported;                                                          \
        }

extern "C" cudaError_t msi_cuda_update_all(cudaStream_t stream, int32_t kernel, int32_t dtype,
                                           const void *args, int64_t stride, int32_t n)
{
    switch (kernel) {
        CASES(adam)
        CASES(sgd)
        CASES(lion)
        CASES(rmsprop)
        CASES(adagrad)
    default:
        return cudaErrorNotSupported;
    }
}
