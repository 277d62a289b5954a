/* Cross-entropy over rows of logits: one pass over memory for the loss, another for the gradient,
 * which may be written in place. */
#include "fault.h"
#include "lanes.h"
#include "table.h"

static bool row_counts(const msi_cross_entropy_args *a, int64_t i)
{
    return a->targets[i] != a->ignore_index && index_is_inside(a->targets[i], a->cols);
}

#define BODY "cross_entropy_body.h"
#include "each_register.h"
