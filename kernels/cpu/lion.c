/* Lion (arXiv:2302.06675), fused. */
#include "lanes.h"
#include "table.h"

#define BODY "lion_body.h"
#include "each_register.h"
