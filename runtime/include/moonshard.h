/* moonshard: sharded training without Python. The umbrella: version, then one header per room.
 *
 * Handles must be live and of the right kind, and pointers not NULL unless marked MS_NULLABLE; a
 * debug build checks most handles. A function that fails leaves `*out` NULL or as it was. */
#ifndef MOONSHARD_H
#define MOONSHARD_H

enum { MS_VERSION_MAJOR = 0, MS_VERSION_MINOR = 1, MS_VERSION_PATCH = 0 };

#include "moonshard/autograd.h"
#include "moonshard/base.h"
#include "moonshard/checkpoint.h"
#include "moonshard/comm.h"
#include "moonshard/data.h"
#include "moonshard/fsdp.h"
#include "moonshard/job.h"
#include "moonshard/layout.h"
#include "moonshard/ops.h"
#include "moonshard/optim.h"
#include "moonshard/plan.h"
#include "moonshard/program.h"
#include "moonshard/tensor.h"
#include "moonshard/tokenizer.h"

#endif
