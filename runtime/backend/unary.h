/* Elementwise functions of one tensor, a row each. Their kernels (backend.h, kernels/cpu/table.h)
 * and operators (autograd/ops/unary.c) are made from these rows.
 *
 *   M(A, function, gradient, saved)  the gradient of `function` is the kernel `gradient` of the
 *                                    incoming one and of what is saved: X, the operand, or Y
 *
 * A is handed on to M. */
#ifndef MSI_UNARY_H
#define MSI_UNARY_H

/* Gradients that are the kernels of other operators. */
#define MSI_UNARY_BY_OTHERS(M, A)                                                                  \
    M(A, exp, mul, Y) /* g y */                                                                    \
    M(A, log, div, X) /* g / x */

/* Gradients with kernels of their own. */
#define MSI_UNARY_BY_ITSELF(M, A)                                                                  \
    M(A, sqrt, sqrt_grad, Y) /* g / (2 y) */                                                       \
    M(A, tanh, tanh_grad, Y) /* g (1 - y^2) */                                                     \
    M(A, relu, relu_grad, Y) /* 0 where y <= 0, else g */                                          \
    M(A, erf, erf_grad, X)   /* 2 / sqrt(pi) g exp(-x^2) */

#define MSI_UNARY(M, A) MSI_UNARY_BY_OTHERS(M, A) MSI_UNARY_BY_ITSELF(M, A)

#endif
