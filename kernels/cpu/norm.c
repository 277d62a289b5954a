/* Sum of squares (in f64) or largest magnitude per block of elements: what norms that do not
 * depend on the sharding are folded from. NaN propagates in both. */
#include "lanes.h"
#include "norm_fold.h"
#include "table.h"

/* 32 running sums, as registers. */
enum { SUM_PARTS = 2 * LANES * 8 / LANES_REGISTER };

#define BODY "norm_body.h"
#include "each_register.h"

void MSI_NAME(norm_fold_f64)(const void *args)
{
    const msi_norm_fold_args *a = args;
    const double total = msi_norm_fold(0, a->blocks, a->n, a->largest);

    *a->norm = msi_norm_finish(total, a->largest);
    *a->coefficient = msi_clip_coefficient(a->max_norm, *a->norm);
}
