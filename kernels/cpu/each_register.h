/* Includes BODY once for f32, bf16, f16 and f64, with vectors of one register: for kernels
 * whose lanes are independent, so that their number does not change bits, and with row_lanes.h for
 * sums in a fixed number of lanes. Inside a body:
 *
 *   T, REAL            type in memory, compute type (bf16, f16: float)
 *   DTYPE, REAL_DTYPE  their MS_DTYPE_*; NARROW is defined where they differ, IS_F64 is 0 or 1
 *   NAME, LOCAL(x)     the dtype's name, x_<dtype>
 *   V, WIDTH           a register of REAL, its lanes
 *   LOAD, STORE (_N)   WIDTH (the first n) lanes from and to T
 *   OF(x), SPLAT       a function of lanes.h for V; a scalar in every lane
 *   SQRT1              of one REAL
 *
 * (Vectors wider than a register are kept in memory by the compiler.) */

#ifndef LOCAL
#define EACH_CAT2(a, b) a##_##b
#define EACH_CAT(a, b) EACH_CAT2(a, b)
#define LOCAL(name) EACH_CAT(name, NAME)
#endif

#define EACH_REGISTER2(a, b) a##_##b##w
#define EACH_REGISTER(a, b) EACH_REGISTER2(a, b)
#define OF(name) EACH_REGISTER(name, REAL_NAME)

#define WIDTH ((int64_t)(sizeof(V) / sizeof(REAL)))
#define SPLAT(x) OF(splat)((REAL)(x))
#define LOAD(p) EACH_REGISTER(load, NAME)(p)
#define LOAD_N(p, n) EACH_REGISTER(load_n, NAME)(p, n)
#define STORE(p, v) EACH_REGISTER(store, NAME)(p, v)
#define STORE_N(p, v, n) EACH_REGISTER(store_n, NAME)(p, v, n)

#define REAL float
#define REAL_NAME f32
#define REAL_DTYPE MS_DTYPE_F32
#define IS_F64 0
#define V f32_part
#define SQRT1(x) __builtin_sqrtf(x)

#define NAME f32
#define T float
#define DTYPE MS_DTYPE_F32
#include BODY
#undef NAME
#undef T
#undef DTYPE

#define NARROW
#define T uint16_t

#define NAME bf16
#define DTYPE MS_DTYPE_BF16
#include BODY
#undef NAME
#undef DTYPE

#define NAME f16
#define DTYPE MS_DTYPE_F16
#include BODY
#undef NAME
#undef T
#undef DTYPE
#undef NARROW
#undef REAL
#undef REAL_NAME
#undef REAL_DTYPE
#undef IS_F64
#undef V
#undef SQRT1

#define REAL double
#define REAL_NAME f64
#define REAL_DTYPE MS_DTYPE_F64
#define IS_F64 1
#define V f64_part
#define SQRT1(x) __builtin_sqrt(x)

#define NAME f64
#define T double
#define DTYPE MS_DTYPE_F64
#include BODY
#undef NAME
#undef T
#undef DTYPE
#undef REAL
#undef REAL_NAME
#undef REAL_DTYPE
#undef IS_F64
#undef V
#undef SQRT1

#undef EACH_REGISTER2
#undef EACH_REGISTER
#undef OF
#undef SPLAT
#undef LOAD
#undef LOAD_N
#undef STORE
#undef STORE_N
#undef BODY
