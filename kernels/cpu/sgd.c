/* Stochastic gradient descent with momentum, fused: torch.optim.SGD's rule. */
#include "lanes.h"
#include "table.h"

#define BODY "sgd_body.h"
#include "each_register.h"
