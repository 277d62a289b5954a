/* Dropout with counter-based random numbers: an element's fate depends on seed, site, call, global
 * sample and its index in the sample, never on how samples are dealt to ranks or batches.
 *
 * The key is philox_key(seed, site, call). */
#include "lanes.h"
#include "philox.h"
#include "table.h"

#define BODY "dropout_body.h"
#include "each_register.h"
