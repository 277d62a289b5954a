/* Cross-entropy over rows of logits: the loss in one pass over memory, the gradient in another,
 * in place when asked. */
#include "lanes.h"
#include "table.h"

#define BODY "cross_entropy_body.h"
#include "each_float.h"
