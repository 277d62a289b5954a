/* Layer norm over rows and its gradient (arXiv:1607.06450). The gradient walks blocks of rows that
 * stay in the cache: first their part of dw and db column by column, then dx row by row. */
#include "lanes.h"
#include "table.h"

#include <float.h>
#include <math.h>

#define BODY "layer_norm_body.h"
#include "each_float.h"
