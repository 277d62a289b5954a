/* The kernels of this build, named: kernels/cpu is compiled once per instruction set, with
 * MSI_ISA 2, 3 or 4, and every external name ends in it.
 *
 * A kernel file defines `void MSI_NAME(<op>_<dtype>)(const void *args)` and is entered in the list
 * below, one line per op; table.c makes declarations and the table from it. */
#ifndef MSI_TABLE_H
#define MSI_TABLE_H

#include "backend.h"
#include "moonshard/tensor.h"

#define MSI_NAME_3(name, isa) msi_cpu_##name##_v##isa
#define MSI_NAME_2(name, isa) MSI_NAME_3(name, isa)
#define MSI_NAME(name) MSI_NAME_2(name, MSI_ISA)

/* The dtypes a kernel has. */
#define MSI_WIDE(X, op) X(op, f32, F32) X(op, f64, F64)
#define MSI_FLOATS(X, op) MSI_WIDE(X, op) X(op, bf16, BF16) X(op, f16, F16)
#define MSI_NUMBERS(X, op) MSI_FLOATS(X, op) X(op, i64, I64) X(op, i32, I32)
#define MSI_ALL(X, op) MSI_NUMBERS(X, op) X(op, u8, U8) X(op, bool, BOOL)
#define MSI_F64(X, op) X(op, f64, F64)
#define MSI_BOOL(X, op) X(op, bool, BOOL)

#define MSI_CPU_UNARY(X, f, gradient, saved) MSI_FLOATS(X, f)
#define MSI_CPU_UNARY_NUMBERS(X, f, gradient, saved) MSI_NUMBERS(X, f)
#define MSI_CPU_UNARY_GRADIENT(X, f, gradient, saved) MSI_FLOATS(X, gradient)

#define MSI_CPU_KERNELS(X)                                                                         \
    MSI_ALL(X, copy)                                                                               \
    MSI_ALL(X, fill)                                                                               \
    MSI_NUMBERS(X, add)                                                                            \
    MSI_NUMBERS(X, sub)                                                                            \
    MSI_NUMBERS(X, mul)                                                                            \
    MSI_NUMBERS(X, maximum)                                                                        \
    MSI_NUMBERS(X, minimum)                                                                        \
    MSI_NUMBERS(X, clamp)                                                                          \
    MSI_FLOATS(X, div)                                                                             \
    MSI_NUMBERS(X, affine)                                                                         \
    MSI_FLOATS(X, scale)                                                                           \
    MSI_FLOATS(X, reciprocal)                                                                      \
    MSI_FLOATS(X, pow)                                                                             \
    MSI_UNARY_BY_OTHERS(MSI_CPU_UNARY, X)                                                          \
    MSI_UNARY_OF_FLOATS(MSI_CPU_UNARY, X)                                                          \
    MSI_UNARY_OF_NUMBERS(MSI_CPU_UNARY_NUMBERS, X)                                                 \
    MSI_UNARY_BY_ITSELF(MSI_CPU_UNARY_GRADIENT, X)                                                 \
    MSI_FLOATS(X, gelu)                                                                            \
    MSI_FLOATS(X, gelu_tanh)                                                                       \
    MSI_FLOATS(X, softplus)                                                                        \
    MSI_FLOATS(X, maximum_grad)                                                                    \
    MSI_FLOATS(X, minimum_grad)                                                                    \
    MSI_FLOATS(X, clamp_grad)                                                                      \
    MSI_FLOATS(X, mul_neg)                                                                         \
    MSI_FLOATS(X, div_neg)                                                                         \
    MSI_FLOATS(X, gelu_grad)                                                                       \
    MSI_FLOATS(X, gelu_tanh_grad)                                                                  \
    MSI_FLOATS(X, softplus_grad)                                                                   \
    MSI_WIDE(X, mse)                                                                               \
    MSI_FLOATS(X, mse_grad)                                                                        \
    MSI_FLOATS(X, pow_grad)                                                                        \
    MSI_BOOL(X, eq)                                                                                \
    MSI_BOOL(X, ne)                                                                                \
    MSI_BOOL(X, lt)                                                                                \
    MSI_BOOL(X, le)                                                                                \
    MSI_BOOL(X, is_inf)                                                                            \
    MSI_BOOL(X, is_finite)                                                                         \
    MSI_BOOL(X, close)                                                                             \
    MSI_ALL(X, where)                                                                              \
    MSI_ALL(X, sum)                                                                                \
    MSI_FLOATS(X, layer_norm)                                                                      \
    MSI_FLOATS(X, layer_norm_grad)                                                                 \
    MSI_FLOATS(X, log_softmax)                                                                     \
    MSI_FLOATS(X, log_softmax_grad)                                                                \
    MSI_FLOATS(X, softmax)                                                                         \
    MSI_FLOATS(X, softmax_grad)                                                                    \
    MSI_FLOATS(X, cross_entropy)                                                                   \
    MSI_FLOATS(X, cross_entropy_grad)                                                              \
    MSI_FLOATS(X, embedding)                                                                       \
    MSI_FLOATS(X, embedding_grad)                                                                  \
    MSI_FLOATS(X, attention)                                                                       \
    MSI_FLOATS(X, attention_grad)                                                                  \
    MSI_FLOATS(X, dropout)                                                                         \
    MSI_FLOATS(X, init)                                                                            \
    MSI_FLOATS(X, sgd)                                                                             \
    MSI_FLOATS(X, adam)                                                                            \
    MSI_FLOATS(X, norm)                                                                            \
    MSI_F64(X, norm_fold)                                                                          \
    MSI_NUMBERS(X, tree)                                                                           \
    MSI_FLOATS(X, gemm)

#endif
