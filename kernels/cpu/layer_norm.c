/* Layer norm over rows and its gradient (arXiv:1607.06450). The gradient processes blocks of rows
 * that fit the cache: first dw and db column by column, then dx row by row. */
#include "lanes.h"
#include "table.h"

#include <float.h>
#include <math.h>

#define BODY "layer_norm_body.h"
#include "each_register.h"
