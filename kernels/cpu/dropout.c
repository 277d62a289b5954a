/* Dropout with counter-based random numbers. Whether an element is dropped depends only on seed,
 * stream, call, global sample and its index in the sample, not on how samples are sharded over
 * ranks and batches.
 *
 * The key is philox_key(seed, site, call). */
#include "lanes.h"
#include "philox.h"
#include "table.h"

#define BODY "dropout_body.h"
#include "each_register.h"
