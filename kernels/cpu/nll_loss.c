/* The element of each row that a target names, negated, and its gradient. */
#include "fault.h"
#include "lanes.h"
#include "table.h"

#define BODY "nll_loss_body.h"
#include "each_float.h"
