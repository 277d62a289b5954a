/* Elementwise functions of one tensor, one row each. Kernel names (kernels.h) and operators
 * (autograd/ops/unary.c) are generated from the rows.
 *
 *   M(A, function, gradient, saved)  the gradient of `function` is the kernel `gradient` of the
 *                                    incoming one and the saved tensor: X, the operand, or Y
 *
 * A is passed to M. */
#ifndef MSI_UNARY_H
#define MSI_UNARY_H

/* Gradients that are other operators' kernels. */
#define MSI_UNARY_BY_OTHERS(M, A)                                                                  \
    M(A, exp, mul, Y) /* g y */                                                                    \
    M(A, log, div, X) /* g / x */                                                                  \
    M(A, floor, sign_grad, X)                                                                      \
    M(A, ceil, sign_grad, X)                                                                       \
    M(A, trunc, sign_grad, X)                                                                      \
    M(A, round, sign_grad, X)

/* Gradients with their own kernels: floating dtypes only, */
#define MSI_UNARY_OF_FLOATS(M, A)                                                                  \
    M(A, sqrt, sqrt_grad, Y)             /* g / (2 y) */                                           \
    M(A, rsqrt, rsqrt_grad, Y)           /* -g y^3 / 2 */                                          \
    M(A, expm1, expm1_grad, Y)           /* g (y + 1) */                                           \
    M(A, log1p, log1p_grad, X)           /* g / (x + 1) */                                         \
    M(A, sin, sin_grad, X)               /* g cos(x) */                                            \
    M(A, cos, cos_grad, X)               /* -g sin(x) */                                           \
    M(A, tanh, tanh_grad, Y)             /* g (1 - y^2) */                                         \
    M(A, sigmoid, sigmoid_grad, Y)       /* g y (1 - y) */                                         \
    M(A, silu, silu_grad, X)             /* g s (1 + x (1 - s)), s = sigmoid(x) */                 \
    M(A, logsigmoid, logsigmoid_grad, X) /* g sigmoid(-x) */                                       \
    M(A, relu, relu_grad, Y)             /* 0 where y <= 0, else g */                              \
    M(A, erf, erf_grad, X)               /* 2 / sqrt(pi) g exp(-x^2) */

/* and integers too. */
#define MSI_UNARY_OF_NUMBERS(M, A)                                                                 \
    M(A, abs, abs_grad, X)       /* g sign(x) */                                                   \
    M(A, sign, sign_grad, X)     /* 0 */                                                           \
    M(A, square, square_grad, X) /* 2 g x */

#define MSI_UNARY_BY_ITSELF(M, A) MSI_UNARY_OF_FLOATS(M, A) MSI_UNARY_OF_NUMBERS(M, A)

#define MSI_UNARY(M, A) MSI_UNARY_BY_OTHERS(M, A) MSI_UNARY_BY_ITSELF(M, A)

#endif
