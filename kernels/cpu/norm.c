/* Sum of squares (in f64) or largest magnitude per block of elements: what norms that do not
 * depend on the sharding are folded from. NaN propagates in both. */
#include "lanes.h"
#include "table.h"

/* 32 running sums, as registers. */
enum { SUM_PARTS = 2 * LANES * 8 / LANES_REGISTER };

#define BODY "norm_body.h"
#include "each_register.h"
