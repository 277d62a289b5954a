/* Sum of powers (in f64) or largest magnitude for each block of elements. Norms are combined from
 * these, so they do not depend on the sharding. NaN propagates, except with order 0. */
#include "lanes.h"
#include "norm_fold.h"
#include "table.h"

/* 32 running sums in registers. */
enum { SUM_PARTS = 2 * LANES * 8 / LANES_REGISTER };

/* a^order, a >= 0. Small integer orders use multiplications, which have the same bits on every
 * machine. */
static double norm_power(double a, double order)
{
    if (order == 0) {
        return a != 0;
    }
    if (order > 64 || order != floor(order)) {
        return pow(a, order);
    }
    double product = a;

    for (int64_t i = 1; i < (int64_t)order; i++) {
        product *= a;
    }
    return product;
}

#define BODY "norm_body.h"
#include "each_register.h"

void MSI_NAME(norm_fold_f64)(const void *args)
{
    const msi_norm_fold_args *a = args;
    const double total = msi_norm_fold(0, a->blocks, a->n, a->order);

    *a->norm = msi_norm_finish(total, a->order);
    *a->coefficient = msi_clip_coefficient(a->max_norm, *a->norm);
}
