/* softmax over rows, its logarithm, and their gradients. */
#include "lanes.h"
#include "table.h"

#define BODY "softmax_body.h"
#include "each_register.h"
