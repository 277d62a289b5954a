/* Counts operators. Exported, but not in a public header: declared by specs only
 * (spec/support/op_counts.lua). */
#ifndef MSI_OP_COUNT_H
#define MSI_OP_COUNT_H

#include "moonshard/base.h"

typedef struct ms_op_counter ms_op_counter;

/* Count successful operators of this thread from now on. MS_RUNTIME_ERROR if the context has an
 * observer. */
MS_API ms_status ms_op_counter_new(ms_op_counter **out);
/* Stop counting. Call in the same thread; NULL is allowed. */
MS_API void ms_op_counter_free(ms_op_counter *c);
/* Number of different operators. MS_OUT_OF_MEMORY if one could not be counted. */
MS_API ms_status ms_op_counter_n(const ms_op_counter *c, int32_t *n);
/* Name of the i-th operator by first run, its number of runs, and of recorded runs. */
MS_API const char *ms_op_counter_get(const ms_op_counter *c, int32_t i, int64_t *n_ran,
                                     int64_t *n_recorded);

#endif
