/* Rotary positions. */
#include "lanes.h"
#include "loop.h"
#include "table.h"

#define BODY "rotary_body.h"
#include "each_register.h"
