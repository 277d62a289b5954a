/* Includes BODY once for f32, bf16, f16 and f64. Inside a body:
 *
 *   T, REAL            type in memory, compute type (bf16, f16: float)
 *   DTYPE, REAL_DTYPE  their MS_DTYPE_*; NARROW is defined where they differ
 *   V                  16 lanes of REAL
 *   NAME, LOCAL(x)     the dtype's name, x_<dtype>; OF_REAL(x) for the compute type's
 *   LOAD, STORE (_N)   16 (the first n) lanes from and to T
 *   LOCAL(get)(p)      one T as REAL
 *   SPLAT, SELECT, BEFORE (<), HSUM of lanes; SQRT1 of one
 *   LOCAL(at), LOCAL(put), LOCAL(keep)  rows with tails, below in each_float_rows.h */

#define EACH_CAT2(a, b) a##_##b
#define EACH_CAT(a, b) EACH_CAT2(a, b)
#define LOCAL(name) EACH_CAT(name, NAME)
#define OF_REAL(name) EACH_CAT(name, REAL_NAME)

#define LOAD(p) LOCAL(load)(p)
#define LOAD_N(p, n) LOCAL(load_n)(p, n)
#define STORE(p, v) LOCAL(store)(p, v)
#define STORE_N(p, v, n) LOCAL(store_n)(p, v, n)
#define SPLAT(x) OF_REAL(splat)((REAL)(x))
#define SELECT(mask, yes, no) OF_REAL(select)(mask, yes, no)
#define BEFORE(a, b) OF_REAL(lt)(a, b)
#define HSUM(v) OF_REAL(hsum)(v)

#define REAL float
#define REAL_NAME f32
#define REAL_DTYPE MS_DTYPE_F32
#define V f32x16
#define SQRT1(x) __builtin_sqrtf(x)

#define NAME f32
#define T float
#define DTYPE MS_DTYPE_F32
#include "each_float_rows.h"

#include BODY
#undef NAME
#undef T
#undef DTYPE

#define NARROW
#define T uint16_t

#define NAME bf16
#define DTYPE MS_DTYPE_BF16
#include "each_float_rows.h"

#include BODY
#undef NAME
#undef DTYPE

#define NAME f16
#define DTYPE MS_DTYPE_F16
#include "each_float_rows.h"

#include BODY
#undef NAME
#undef T
#undef DTYPE
#undef NARROW
#undef REAL
#undef REAL_NAME
#undef REAL_DTYPE
#undef V
#undef SQRT1

#define REAL double
#define REAL_NAME f64
#define REAL_DTYPE MS_DTYPE_F64
#define V f64x16
#define SQRT1(x) __builtin_sqrt(x)

#define NAME f64
#define T double
#define DTYPE MS_DTYPE_F64
#include "each_float_rows.h"

#include BODY
#undef NAME
#undef T
#undef DTYPE
#undef REAL
#undef REAL_NAME
#undef REAL_DTYPE
#undef V
#undef SQRT1

#undef LOAD
#undef LOAD_N
#undef STORE
#undef STORE_N
#undef SPLAT
#undef SELECT
#undef BEFORE
#undef HSUM
#undef BODY
