/* RMSprop (Hinton, Coursera lecture 6e), fused: torch.optim.RMSprop's rule. */
#include "lanes.h"
#include "table.h"

#define BODY "rmsprop_body.h"
#include "each_register.h"
