/* log softmax over rows, and its gradient. */
#include "lanes.h"
#include "table.h"

#define BODY "softmax_body.h"
#include "each_float.h"
