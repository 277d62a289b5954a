/* Sums over dimensions.
 *
 * The reduced elements of one kept element, in loop order, are cut into chunks of 512. Within a
 * chunk, element k is added to lane k % 16; the lanes are added in the order of hsum; chunks are
 * added in f64. So the rounding error stays below about 40 half-units of the sum of magnitudes,
 * however long the sum, and the order does not depend on memory layout. There are two loops:
 *
 *   rows     a kept element at a time; strided elements are gathered first
 *   columns  if neighbouring kept elements are adjacent in memory: a tile of columns at a time,
 *            with 16 running sums per column */
#include "element.h"
#include "lanes.h"
#include "table.h"

enum { SUM_CHUNK = 512, SUM_TILE = 256 };

/* The element offset of operand 1 at the current flattened index. */
typedef struct position {
    const msi_loop *loop;
    int64_t index[MSI_LOOP_DIMS];
    int64_t offset[2]; /* of operands 0 and 1 */
} position;

static void advance(position *p)
{
    for (int32_t d = p->loop->ndim - 1; d >= 0; d--) {
        p->offset[0] += p->loop->stride[0][d];
        p->offset[1] += p->loop->stride[1][d];
        if (++p->index[d] < p->loop->shape[d]) {
            return;
        }
        p->offset[0] -= p->loop->stride[0][d] * p->index[d];
        p->offset[1] -= p->loop->stride[1][d] * p->index[d];
        p->index[d] = 0;
    }
}

static int64_t count(const msi_loop *loop)
{
    int64_t n = 1;

    for (int32_t d = 0; d < loop->ndim; d++) {
        n *= loop->shape[d];
    }
    return n;
}

/* Are neighbouring kept elements adjacent in memory, and neighbouring reduced ones not? */
static bool by_columns(const msi_sum_args *a)
{
    const msi_loop *kept = &a->kept, *reduced = &a->reduced;
    const int32_t k = kept->ndim - 1, r = reduced->ndim - 1;

    return k >= 0 && kept->shape[k] > 1 && kept->stride[1][k] == 1 &&
           (r < 0 || reduced->stride[1][r] != 1);
}

#define HSUM(lane) LANES_CAT(hsum_of, REAL_NAME)(lane)
#define LOAD_LANES(p) OF(load)(p)
#define STORE_LANES(p, v) OF(store)(p, v)
#define BODY "sum_body.h"
#include "each_register.h"

/* Sums of integers and bool are i64 and wrap in two's complement. The lanes are unsigned, because
 * signed overflow is undefined. */
static inline uint64_t hsum_of_u64(const uint64_t *lane)
{
    uint64_t sum = 0;

    for (int i = 0; i < LANES; i++) {
        sum += lane[i];
    }
    return sum;
}

#undef HSUM
#define HSUM(lane) hsum_of_u64(lane)
#undef LOAD_LANES
#define LOAD_LANES(p) load_u64w(p)
#undef STORE_LANES
#define STORE_LANES(p, v) store_u64w(p, v)
#define INTEGER
#define REAL uint64_t
#define V u64_part
#define LOAD_N(p, n) LOCAL(load_n)(p, n)

#define NAME i64
#define T int64_t
#define LOAD(p) load_u64w(p)
#include "sum_body.h"
#undef NAME
#undef T
#undef LOAD

#define NAME i32
#define T int32_t
#define LOAD(p) widen_i32_u64w(p)
#include "sum_body.h"
#undef NAME
#undef T
#undef LOAD

#define NAME u8
#define T uint8_t
#define LOAD(p) widen_u8_u64w(p)
#include "sum_body.h"
#undef NAME
#undef T
#undef LOAD

#define NAME truth /* `bool` is a macro */
#define T uint8_t
#define LOAD(p) widen_bool_u64w(p)
#include "sum_body.h"

void MSI_NAME(sum_bool)(const void *args)
{
    MSI_NAME(sum_truth)(args);
}
