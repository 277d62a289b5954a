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
};

#endif
