/* Rows of a table, and their gradient. Rows are added in ascending token order, so the result does
 * not depend on how tokens are batched. */
#include "fault.h"
#include "lanes.h"
#include "table.h"

#define BODY "embedding_body.h"
#include "each_register.h"
