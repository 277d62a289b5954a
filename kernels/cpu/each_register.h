/* Includes BODY once for f32, bf16, f16 and f64, with one register at a time for a vector: for
 * kernels whose lanes never meet, so that their number cannot change a bit. Inside a body:
 *
 *   T, REAL            what memory holds, what is computed in (bf16, f16: float)
 *   DTYPE, REAL_DTYPE  their MS_DTYPE_*; NARROW is defined where they differ, IS_F64 is 0 or 1
 *   NAME, LOCAL(x)     the dtype's name, x_<dtype>
 *   V, WIDTH           a register of REAL, its lanes
 *   LOAD, STORE (_N)   WIDTH (the first n) lanes from and to T
 *   OF(x), SPLAT       a function of lanes.h for V; a scalar in every lane
 *
 * (each_float.h does the same with 16 lanes, for sums whose order counts.) */

#ifndef LOCAL
#define EACH_CAT2(a, b) a##_##b
#define EACH_CAT(a, b) EACH_CAT2(a, b)
#define LOCAL(name) EACH_CAT(name, NAME)
#endif

#define WIDTH ((int64_t)(sizeof(V) / sizeof(REAL)))
#define SPLAT(x) OF(splat)((REAL)(x))

#define NAME f32
#define T float
#define REAL float
#define DTYPE MS_DTYPE_F32
#define REAL_DTYPE MS_DTYPE_F32
#define IS_F64 0
#define V f32_part
#define OF(name) name##_f32w
#define LOAD(p) load_f32w(p)
#define LOAD_N(p, n) load_n_f32w(p, n)
#define STORE(p, v) store_f32w(p, v)
#define STORE_N(p, v, n) store_n_f32w(p, v, n)
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
#define LOAD(p) load_bf16w(p)
#define LOAD_N(p, n) load_n_bf16w(p, n)
#define STORE(p, v) store_bf16w(p, v)
#define STORE_N(p, v, n) store_n_bf16w(p, v, n)
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
#define LOAD(p) load_f16w(p)
#define LOAD_N(p, n) load_n_f16w(p, n)
#define STORE(p, v) store_f16w(p, v)
#define STORE_N(p, v, n) store_n_f16w(p, v, n)
#include BODY
#undef NAME
#undef T
#undef REAL
#undef DTYPE
#undef REAL_DTYPE
#undef IS_F64
#undef NARROW
#undef V
#undef OF
#undef LOAD
#undef LOAD_N
#undef STORE
#undef STORE_N

#define NAME f64
#define T double
#define REAL double
#define DTYPE MS_DTYPE_F64
#define REAL_DTYPE MS_DTYPE_F64
#define IS_F64 1
#define V f64_part
#define OF(name) name##_f64w
#define LOAD(p) load_f64w(p)
#define LOAD_N(p, n) load_n_f64w(p, n)
#define STORE(p, v) store_f64w(p, v)
#define STORE_N(p, v, n) store_n_f64w(p, v, n)
#include BODY
#undef BODY
#undef NAME
#undef T
#undef REAL
#undef DTYPE
#undef REAL_DTYPE
#undef IS_F64
#undef V
#undef OF
#undef LOAD
#undef LOAD_N
#undef STORE
#undef STORE_N
#undef SPLAT
