/* Includes BODY once for f32, bf16, f16 and f64. Inside a body:
 *
 *   T, REAL            what memory holds, what is computed in (bf16, f16: float)
 *   DTYPE, REAL_DTYPE  their MS_DTYPE_*; NARROW is defined where they differ
 *   V                  16 lanes of REAL
 *   NAME, LOCAL(x)     the dtype's name, x_<dtype>; OF_REAL(x) for the compute type's
 *   LOAD, STORE (_N)   16 (the first n) lanes from and to T; LOAD_REAL, STORE_REAL: REAL
 *   LOCAL(get)(p)      one T as REAL
 *   SPLAT, SELECT, BEFORE (<), EXP, VMAX, HSUM, HMAX of lanes; EXP1, LOG1, SQRT1 of one
 *   LOCAL(at), LOCAL(put), LOCAL(keep)  rows with tails, below in each_float_rows.h */

#define EACH_CAT2(a, b) a##_##b
#define EACH_CAT(a, b) EACH_CAT2(a, b)
#define LOCAL(name) EACH_CAT(name, NAME)
#define OF_REAL(name) EACH_CAT(name, REAL_NAME)

#define NAME f32
#define T float
#define REAL float
#define REAL_NAME f32
#define DTYPE MS_DTYPE_F32
#define REAL_DTYPE MS_DTYPE_F32
#define V f32x16
#define LOAD(p) load_f32(p)
#define LOAD_N(p, n) load_n_f32(p, n)
#define STORE(p, v) store_f32(p, v)
#define STORE_N(p, v, n) store_n_f32(p, v, n)
#define LOAD_REAL(p) load_f32(p)
#define LOAD_REAL_N(p, n) load_n_f32(p, n)
#define STORE_REAL(p, v) store_f32(p, v)
#define STORE_REAL_N(p, v, n) store_n_f32(p, v, n)
#define SPLAT(x) splat_f32((float)(x))
#define SELECT(mask, yes, no) select_f32(mask, yes, no)
#define BEFORE(a, b) lt_f32(a, b)
#define EXP(v) exp_f32(v)
#define VMAX(a, b) max_f32(a, b)
#define HSUM(v) hsum_f32(v)
#define HMAX(v) hmax_f32(v)
#define EXP1(x) (exp_f32(SPLAT(x))[0])
#define LOG1(x) (log_f32(SPLAT(x))[0])
#define SQRT1(x) __builtin_sqrtf(x)
#include "each_float_rows.h"

#include BODY
#undef NAME
#undef T
#undef DTYPE
#undef LOAD
#undef LOAD_N
#undef STORE
#undef STORE_N

#define NAME bf16
#define T uint16_t
#define DTYPE MS_DTYPE_BF16
#define NARROW
#define LOAD(p) load_bf16(p)
#define LOAD_N(p, n) load_n_bf16(p, n)
#define STORE(p, v) store_bf16(p, v)
#define STORE_N(p, v, n) store_n_bf16(p, v, n)
#include "each_float_rows.h"

#include BODY
#undef NAME
#undef T
#undef DTYPE
#undef LOAD
#undef LOAD_N
#undef STORE
#undef STORE_N

#define NAME f16
#define T uint16_t
#define DTYPE MS_DTYPE_F16
#define LOAD(p) load_f16(p)
#define LOAD_N(p, n) load_n_f16(p, n)
#define STORE(p, v) store_f16(p, v)
#define STORE_N(p, v, n) store_n_f16(p, v, n)
#include "each_float_rows.h"

#include BODY
#undef NAME
#undef T
#undef REAL
#undef REAL_NAME
#undef DTYPE
#undef REAL_DTYPE
#undef NARROW
#undef V
#undef LOAD
#undef LOAD_N
#undef STORE
#undef STORE_N
#undef LOAD_REAL
#undef LOAD_REAL_N
#undef STORE_REAL
#undef STORE_REAL_N
#undef SPLAT
#undef SELECT
#undef BEFORE
#undef EXP
#undef VMAX
#undef HSUM
#undef HMAX
#undef EXP1
#undef LOG1
#undef SQRT1

#define NAME f64
#define T double
#define REAL double
#define REAL_NAME f64
#define DTYPE MS_DTYPE_F64
#define REAL_DTYPE MS_DTYPE_F64
#define V f64x16
#define LOAD(p) load_f64(p)
#define LOAD_N(p, n) load_n_f64(p, n)
#define STORE(p, v) store_f64(p, v)
#define STORE_N(p, v, n) store_n_f64(p, v, n)
#define LOAD_REAL(p) load_f64(p)
#define LOAD_REAL_N(p, n) load_n_f64(p, n)
#define STORE_REAL(p, v) store_f64(p, v)
#define STORE_REAL_N(p, v, n) store_n_f64(p, v, n)
#define SPLAT(x) splat_f64((double)(x))
#define SELECT(mask, yes, no) select_f64(mask, yes, no)
#define BEFORE(a, b) lt_f64(a, b)
#define EXP(v) exp_f64(v)
#define VMAX(a, b) max_f64(a, b)
#define HSUM(v) hsum_f64(v)
#define HMAX(v) hmax_f64(v)
#define EXP1(x) (exp_f64(SPLAT(x))[0])
#define LOG1(x) (log_f64(SPLAT(x))[0])
#define SQRT1(x) __builtin_sqrt(x)
#include "each_float_rows.h"

#include BODY
#undef NAME
#undef T
#undef REAL
#undef REAL_NAME
#undef DTYPE
#undef REAL_DTYPE
#undef V
#undef LOAD
#undef LOAD_N
#undef STORE
#undef STORE_N
#undef LOAD_REAL
#undef LOAD_REAL_N
#undef STORE_REAL
#undef STORE_REAL_N
#undef SPLAT
#undef EXP
#undef VMAX
#undef HSUM
#undef HMAX
#undef EXP1
#undef LOG1
#undef SQRT1
#undef BODY
