/* Elementwise arithmetic of two or three operands, and its gradients. */
#include "element.h"
#include "ew.h"

#define BODY "arithmetic_body.h"
#include "each_register.h"

/* Integers wrap in two's complement. The lanes are unsigned, because signed overflow is undefined.
 */
#undef EW_SCALAR
#define EW_SCALAR(x) ((REAL)whole_f64(x))
#define INTEGER

#define NAME i64
#define T int64_t
#define REAL uint64_t
#define V u64_part
#define SIGNED i64_part
#define SPLAT(x) ((uint64_t)(x) + (u64_part){0})
#define LOAD(p) load_u64w(p)
#define LOAD_N(p, n) load_n_u64w(p, n)
#define STORE(p, v) store_u64w(p, v)
#define STORE_N(p, v, n) store_n_u64w(p, v, n)
#include "arithmetic_body.h"
#undef NAME
#undef T
#undef REAL
#undef V
#undef SIGNED
#undef SPLAT
#undef LOAD
#undef LOAD_N
#undef STORE
#undef STORE_N

#define NAME i32
#define T int32_t
#define REAL uint32_t
#define V u32_part
#define SIGNED i32_part
#define SPLAT(x) ((uint32_t)(x) + (u32_part){0})
#define LOAD(p) load_u32w(p)
#define LOAD_N(p, n) load_n_u32w(p, n)
#define STORE(p, v) store_u32w(p, v)
#define STORE_N(p, v, n) store_n_u32w(p, v, n)
#include "arithmetic_body.h"
