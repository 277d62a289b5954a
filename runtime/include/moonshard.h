/* moonshard: sharded training without Python. The umbrella: version, then one header per room.
 *
 * What no caller may pass is an error, never a crash: NULL where nothing says it is allowed, a
 * handle that was freed, a count below 0. Functions without a status give "", 0, NULL or false
 * then, and ms_error_message() says why. */
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
#include "moonshard/tensor.h"

#endif
