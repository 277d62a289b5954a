/* A matrix product with its operands, and plain loops to check it. */
#ifndef PRODUCT_H
#define PRODUCT_H

#include "kernel_args.h"
#include "ms_test.h"
#include "typed.h"

/* One product with its operands; strides as in test shapes below. */
typedef struct product {
    msi_gemm_args args;
    typed a, b, c, before, bias;
} product;

static inline product make(int32_t dtype, int32_t c_dtype, int64_t m, int64_t n, int64_t k,
                           int64_t batch, bool a_t, bool b_t, int64_t pad)
{
    int64_t a_ld = (a_t ? m : k) + pad, b_ld = (b_t ? k : n) + pad, c_ld = n + pad;
    product p = {0};

    p.args = (msi_gemm_args){.m = m,
                             .n = n,
                             .k = k,
                             .a_row = a_t ? 1 : a_ld,
                             .a_col = a_t ? a_ld : 1,
                             .b_row = b_t ? 1 : b_ld,
                             .b_col = b_t ? b_ld : 1,
                             .c_row = c_ld,
                             .batch = batch,
                             .a_batch = a_ld * (a_t ? k : m),
                             .b_batch = b_ld * (b_t ? n : k),
                             .c_batch = c_ld * m,
                             .dtype = dtype,
                             .c_dtype = c_dtype};
    p.a = typed_filled(dtype, p.args.a_batch * batch, 1);
    p.b = typed_filled(dtype, p.args.b_batch * batch, 2);
    p.c = typed_filled(c_dtype, p.args.c_batch * batch, 3);
    p.before = typed_copy(&p.c);
    p.bias = typed_filled(dtype, n, 4);
    p.args.a = p.a.data;
    p.args.b = p.b.data;
    p.args.c = p.c.data;
    return p;
}

static inline void free_product(product *p)
{
    typed_free(&p->a);
    typed_free(&p->b);
    typed_free(&p->c);
    typed_free(&p->before);
    typed_free(&p->bias);
}

/* Number of elements that differ from plain loops in f64 by more than the dtype allows; the first
 * one is printed. `inner` is the precision products are added in. */
static inline int64_t count_wrong(const product *p, double inner)
{
    const msi_gemm_args *g = &p->args;
    double out_eps = typed_epsilon(g->c_dtype);
    int64_t wrong = 0;

    for (int64_t at = 0; at < p->c.n; at++) {
        int64_t q = at / g->c_batch, i = at % g->c_batch / g->c_row, j = at % g->c_row;
        double sum = 0, size = 0, got = typed_get(&p->c, at), old = typed_get(&p->before, at);

        if (j >= g->n) { /* between rows: untouched */
            wrong += got != old;
            continue;
        }
        for (int64_t k = 0; k < g->k; k++) {
            double x = typed_get(&p->a, q * g->a_batch + i * g->a_row + k * g->a_col);
            double y = typed_get(&p->b, q * g->b_batch + k * g->b_row + j * g->b_col);

            sum += x * y;
            size += fabs(x * y);
        }
        sum += (g->bias != NULL ? typed_get(&p->bias, j) : 0) + (g->accumulate ? old : 0);
        size += 2;
        if (!(fabs(got - sum) <= (double)(g->k + 3) * inner * size + 1.01 * out_eps * fabs(sum))) {
            if (wrong++ == 0) {
                print_message("batch %lld row %lld column %lld: %.9g, expected %.9g\n",
                              (long long)q, (long long)i, (long long)j, got, sum);
            }
        }
    }
    return wrong;
}

static inline double inner_epsilon(int32_t dtype)
{
    return typed_epsilon(dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32);
}

#endif
