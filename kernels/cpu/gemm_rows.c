/* Products of few rows: see runtime/backend/gemm_rows.h. Every element is a sum in 64 lanes, so it
 * depends on its row of A and its column of B only. */
#include "gemm_rows.h"
#include "lanes.h"
#include "table.h"

#define BODY "gemm_rows_body.h"
#include "each_register.h"
