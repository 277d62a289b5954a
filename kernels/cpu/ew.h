/* Elementwise kernels. An op supplies the loop over one row, whose operands are dense or repeat one
 * element; ew.c iterates over dimensions and strides. */
#ifndef MSI_EW_H
#define MSI_EW_H

#include "lanes.h"
#include "table.h"

/* One row. Element i of source k is in[k][i * step[k]] with step 0 or 1. If the step is 0, in[k]
 * has 16 copies of the element, so that lanes can be loaded at any multiple of 16 times the step.
 */
typedef struct ew_row {
    int64_t n;
    void *out;
    const void *in[3];
    int64_t step[3];
    const msi_ew_args *args;
    bool streams; /* the destination exceeds the caches: a copy may bypass them */
} ew_row;

typedef void (*ew_row_fn)(const ew_row *row);

/* Run `row` over all of `args`, which has n_in sources of in_bytes[k] per element. */
#define ew_run_mixed MSI_NAME(ew_run_mixed)
void ew_run_mixed(const msi_ew_args *args, ew_row_fn row, int32_t n_in, int64_t out_bytes,
                  const int64_t *in_bytes);

/* The same for sources of one size. */
static inline void ew_run(const msi_ew_args *args, ew_row_fn row, int32_t n_in, int64_t out_bytes,
                          int64_t in_bytes)
{
    const int64_t each[3] = {in_bytes, in_bytes, in_bytes};

    ew_run_mixed(args, row, n_in, out_bytes, each);
}

/* For bodies of each_register.h: defines a kernel that stores (or adds) EXPR of the lanes a, b, c
 * of its n_in sources and the scalars s0, s1. */
#define EW(op, n_in, EXPR) EW_SCALED(op, n_in, EXPR, r->args->scalar[0])

/* The same with s0 computed from the row `r`. */
#define EW_SCALED(op, n_in, EXPR, S0)                                                              \
    LANES_INLINE V LOCAL(op##_of)(V a, V b, V c, REAL s0, REAL s1)                                 \
    {                                                                                              \
        return (EXPR);                                                                             \
    }                                                                                              \
    static void LOCAL(op##_row)(const ew_row *r)                                                   \
    {                                                                                              \
        const REAL s0 = EW_SCALAR(S0), s1 = EW_SCALAR(r->args->scalar[1]);                         \
        const int64_t n = r->n, step_a = r->step[0], step_b = r->step[1], step_c = r->step[2];     \
        const T *a = r->in[0], *b = r->in[1], *c = r->in[2];                                       \
        T *out = r->out;                                                                           \
        const bool accumulate = r->args->accumulate;                                               \
        int64_t i = 0;                                                                             \
        for (; i + WIDTH <= n; i += WIDTH) {                                                       \
            V y = LOCAL(op##_of)((n_in) > 0 ? LOAD(a + i * step_a) : SPLAT(0),                     \
                                 (n_in) > 1 ? LOAD(b + i * step_b) : SPLAT(0),                     \
                                 (n_in) > 2 ? LOAD(c + i * step_c) : SPLAT(0), s0, s1);            \
            STORE(out + i, accumulate ? y + LOAD(out + i) : y);                                    \
        }                                                                                          \
        if (i < n) {                                                                               \
            const int64_t m = n - i;                                                               \
            V y = LOCAL(op##_of)((n_in) > 0 ? LOAD_N(a + i * step_a, m) : SPLAT(0),                \
                                 (n_in) > 1 ? LOAD_N(b + i * step_b, m) : SPLAT(0),                \
                                 (n_in) > 2 ? LOAD_N(c + i * step_c, m) : SPLAT(0), s0, s1);       \
            STORE_N(out + i, accumulate ? y + LOAD_N(out + i, m) : y, m);                          \
        }                                                                                          \
    }                                                                                              \
    void MSI_NAME(LOCAL(op))(const void *args)                                                     \
    {                                                                                              \
        ew_run(args, LOCAL(op##_row), n_in, sizeof(T), sizeof(T));                                 \
    }

/* Converts scalars for the lanes (i64 is handled separately). */
#define EW_SCALAR(x) ((REAL)(x))

#endif
