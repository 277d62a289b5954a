/* Adam (arXiv:1412.6980) and AdamW (arXiv:1711.05101), fused: torch.optim's rules. */
#include "lanes.h"
#include "table.h"

#define BODY "adam_body.h"
#include "each_register.h"
