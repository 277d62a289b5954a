/* The negated element of each row at its target, and the gradient. */
#include "fault.h"
#include "lanes.h"
#include "table.h"

#define BODY "nll_loss_body.h"
#include "each_register.h"
