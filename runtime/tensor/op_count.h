/* Counting the operators that run. Exported, and in no public header: what specs alone load
 * declares it (spec/support/op_counts.lua). */
#ifndef MSI_OP_COUNT_H
#define MSI_OP_COUNT_H

#include "moonshard/base.h"

typedef struct ms_op_counter ms_op_counter;

/* Count what succeeds in this thread from now on. MS_RUNTIME_ERROR when somebody watches its
 * operators already. */
MS_API ms_status ms_op_counter_new(ms_op_counter **out);
/* Count no more. By the thread that began; NULL does nothing. */
MS_API void ms_op_counter_free(ms_op_counter *c);
/* How many different operators ran. MS_OUT_OF_MEMORY when there was none to count them in. */
MS_API ms_status ms_op_counter_n(const ms_op_counter *c, int32_t *n);
/* Name of the i-th that ran for the first time, how often it ran, and how often a backward could
 * reach it. */
MS_API const char *ms_op_counter_get(const ms_op_counter *c, int32_t i, int64_t *n_ran,
                                     int64_t *n_recorded);

#endif
