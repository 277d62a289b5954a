/* The operators of runtime/collective, for its tests: each as a function of one operand and one
 * number. */
#ifndef MSI_TEST_COLLECTIVES_H
#define MSI_TEST_COLLECTIVES_H

#include "rank_test.h"

#include "collective.h"

typedef struct collective {
    const char *text;
    ms_status (*run)(ms_tensor **out, ms_comm *c, ms_tensor *x, int32_t a);
    int32_t a; /* reduction or root */
    bool differentiable;
} collective;

static ms_status gather(ms_tensor **out, ms_comm *c, ms_tensor *x, int32_t a)
{
    (void)a;
    return ms_op_all_gather(out, c, x);
}

static ms_status broadcast(ms_tensor **out, ms_comm *c, ms_tensor *x, int32_t a)
{
    return ms_op_broadcast(out, c, x, a < ms_comm_size(c) ? a : ms_comm_size(c) - 1);
}

static int32_t last_or(ms_comm *c, int32_t a)
{
    return a < ms_comm_size(c) ? a : ms_comm_size(c) - 1;
}

static ms_status scatter(ms_tensor **out, ms_comm *c, ms_tensor *x, int32_t a)
{
    return ms_op_dist_scatter(out, c, x, last_or(c, a));
}

static ms_status gather_to(ms_tensor **out, ms_comm *c, ms_tensor *x, int32_t a)
{
    return ms_op_dist_gather(out, c, x, last_or(c, a));
}

static ms_status reduce_to_1(ms_tensor **out, ms_comm *c, ms_tensor *x, int32_t a)
{
    return ms_op_dist_reduce(out, c, x, last_or(c, 1), a);
}

/* Rows of x from each rank, and to each: one more to the next and one less to the one after it. */
static inline void rows_of(const ms_comm *c, const ms_tensor *x, int64_t *from, int64_t *to)
{
    const int32_t w = ms_comm_size(c), r = ms_comm_rank(c);
    const int64_t each = x->v.shape[0] / w, more = each > 0;

    for (int32_t q = 0; q < w; q++) {
        to[q] = each + (q == (r + 1) % w ? more : 0) - (q == (r + 2) % w ? more : 0);
        from[q] = each + (r == (q + 1) % w ? more : 0) - (r == (q + 2) % w ? more : 0);
    }
}

static ms_status all_to_all(ms_tensor **out, ms_comm *c, ms_tensor *x, int32_t unequal)
{
    int64_t from[MS_MAX_RANKS], to[MS_MAX_RANKS];

    if (!unequal) {
        return ms_op_all_to_all(out, c, x, NULL, NULL);
    }
    rows_of(c, x, from, to);
    return ms_op_all_to_all(out, c, x, from, to);
}

/* To the rank after the next. */
static ms_status permute(ms_tensor **out, ms_comm *c, ms_tensor *x, int32_t a)
{
    int64_t to[MS_MAX_RANKS];

    for (int32_t q = 0; q < ms_comm_size(c); q++) {
        to[q] = (q + a) % ms_comm_size(c);
    }
    return ms_op_dist_permute(out, c, x, to);
}

static const collective collectives[] = {
    {"sum", ms_op_all_reduce, MS_REDUCE_SUM, true},
    {"average", ms_op_all_reduce, MS_REDUCE_AVG, true},
    {"maximum", ms_op_all_reduce, MS_REDUCE_MAX, false},
    {"minimum", ms_op_all_reduce, MS_REDUCE_MIN, false},
    {"gather", gather, 0, true},
    {"parts of the sum", ms_op_reduce_scatter, MS_REDUCE_SUM, true},
    {"parts of the average", ms_op_reduce_scatter, MS_REDUCE_AVG, true},
    {"parts of the maximum", ms_op_reduce_scatter, MS_REDUCE_MAX, false},
    {"parts of the minimum", ms_op_reduce_scatter, MS_REDUCE_MIN, false},
    {"broadcast of rank 0", broadcast, 0, true},
    {"broadcast of rank 1", broadcast, 1, true},
    {"scatter from rank 0", scatter, 0, true},
    {"scatter from rank 1", scatter, 1, true},
    {"gather to rank 0", gather_to, 0, true},
    {"gather to rank 1", gather_to, 1, true},
    {"sum to rank 1", reduce_to_1, MS_REDUCE_SUM, true},
    {"average to rank 1", reduce_to_1, MS_REDUCE_AVG, true},
    {"maximum to rank 1", reduce_to_1, MS_REDUCE_MAX, false},
    {"equal parts to all", all_to_all, 0, true},
    {"unequal parts to all", all_to_all, 1, true},
    {"to the rank after the next", permute, 2, true},
};

#endif
