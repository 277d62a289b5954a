/* Adagrad (Duchi et al., JMLR 12, 2011), fused: torch.optim.Adagrad's rule. */
#include "lanes.h"
#include "table.h"

#define BODY "adagrad_body.h"
#include "each_register.h"
