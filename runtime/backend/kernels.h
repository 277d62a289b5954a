/* The list of kernels, for the runtime and for kernels of every device (C and C++). */
#ifndef MSI_KERNELS_H
#define MSI_KERNELS_H

#include "kernel_args.h"
#include "unary.h"

#define MSI_KERNELS_UNARY(X, f, gradient, saved) X(f, msi_ew_args)
#define MSI_KERNELS_UNARY_GRADIENT(X, f, gradient, saved) X(gradient, msi_ew_args)

/* Every kernel: name, argument struct. A table has it for the dtypes it defines. */
#define MSI_KERNELS(X)                                                                             \
    X(copy, msi_ew_args)    /* out = in[0], casting from in_dtype */                               \
    X(fill, msi_ew_args)    /* out = scalar[0] */                                                  \
    X(add, msi_ew_args)     /* in[0] + in[1] */                                                    \
    X(sub, msi_ew_args)     /* in[0] - in[1] */                                                    \
    X(mul, msi_ew_args)     /* in[0] * in[1] */                                                    \
    X(maximum, msi_ew_args) /* the larger of in[0] and in[1]; NaN if either is */                  \
    X(minimum, msi_ew_args)                                                                        \
    X(clamp, msi_ew_args)     /* in[0], at least scalar[0], then at most scalar[1] */              \
    X(div, msi_ew_args)       /* in[0] / in[1] */                                                  \
    X(remainder, msi_ew_args) /* in[0] - in[1] floor(in[0] / in[1]); integers: 0 where in[1] is */ \
    X(power, msi_ew_args)     /* in[0]^in[1] */                                                    \
    X(affine, msi_ew_args)    /* scalar[0] * in[0] + scalar[1] */                                  \
    X(scale, msi_ew_args)     /* in[0] * in[1], in[1] one number */                                \
    X(reciprocal, msi_ew_args) /* scalar[0] / in[0] */                                             \
    X(pow, msi_ew_args)        /* in[0]^scalar[0] */                                               \
    MSI_UNARY(MSI_KERNELS_UNARY, X)                                                                \
    MSI_UNARY_BY_ITSELF(MSI_KERNELS_UNARY_GRADIENT, X)                                             \
    X(gelu, msi_ew_args)                                                                           \
    X(gelu_tanh, msi_ew_args)                                                                      \
    X(leaky_relu, msi_ew_args)     /* in[0] where it is above 0, else scalar[0] in[0] */           \
    X(softplus, msi_ew_args)       /* with b = scalar[0]: log(1 + exp(b x)) / b, x where b x >     \
                                      scalar[1] */                                                 \
    X(maximum_grad, msi_ew_args)   /* in[0] where in[1] > in[2], half of it where they are equal,  \
                                      0 where in[1] < in[2] */                                     \
    X(minimum_grad, msi_ew_args)   /* likewise, < and > exchanged */                               \
    X(clamp_grad, msi_ew_args)     /* in[0] where scalar[0] < in[1] < scalar[1], else 0 */         \
    X(mul_neg, msi_ew_args)        /* -(in[0] * in[1] * in[2]): for the gradient of 1/x */         \
    X(div_neg, msi_ew_args)        /* -(in[0] * in[1] / in[2]): for the gradient of x/y */         \
    X(remainder_grad, msi_ew_args) /* -in[0] floor(in[1] / in[2]) */                               \
    X(power_grad, msi_ew_args)     /* in[0] in[2] in[1]^(in[2] - 1), 0 where in[2] is 0 */         \
    X(power_grad_exponent, msi_ew_args) /* in[0] in[1] log(in[2]), in[1] = y; 0 where in[2] is 0   \
                                           and y finite */                                         \
    X(gelu_grad, msi_ew_args)           /* in[0] gelu'(in[1]), in[1] = x */                        \
    X(gelu_tanh_grad, msi_ew_args)      /* likewise, tanh form */                                  \
    X(leaky_relu_grad, msi_ew_args)     /* in[0] where in[1] > 0, else scalar[0] in[0] */          \
    X(softplus_grad, msi_ew_args)       /* in[0] softplus'(in[1]), in[1] = x, scalars as there */  \
    X(mse, msi_ew_args)                 /* (in[0] - in[1])^2 */                                    \
    X(mse_grad, msi_ew_args)            /* scalar[0] in[2] (in[0] - in[1]), in[2] one number */    \
    X(pow_grad, msi_ew_args)            /* in[0] scalar[0] in[1]^(scalar[0] - 1), in[1] = x */     \
    X(eq, msi_ew_args)                  /* bool of in[0] == in[1], of in_dtype; also: */           \
    X(ne, msi_ew_args)                                                                             \
    X(lt, msi_ew_args)                                                                             \
    X(le, msi_ew_args)                                                                             \
    X(is_inf, msi_ew_args)    /* bool, of in[0] = in[1] */                                         \
    X(is_finite, msi_ew_args) /* likewise */                                                       \
    X(close, msi_ew_args)     /* |in[0] - in[1]| <= scalar[1] + scalar[0] |in[1]|, or equal */     \
    X(where, msi_ew_args)     /* in[1] where in[0] (bool) is true, else in[2] */                   \
    X(sum, msi_sum_args)                                                                           \
    X(cumsum, msi_sum_args)        /* along reduced, whose stride[0] is of out; any strides */     \
    X(extreme, msi_reduction_args) /* the largest or smallest of reduced; NaN is both */           \
    X(extreme_grad, msi_reduction_args) /* g / n for the n elements equal to y, else 0 */          \
    X(prod, msi_reduction_args)                                                                    \
    X(prod_grad, msi_reduction_args) /* g times the product of the other elements */               \
    X(layer_norm, msi_layer_norm_args)                                                             \
    X(layer_norm_grad, msi_layer_norm_grad_args)                                                   \
    X(channel_stats, msi_channel_norm_args)                                                        \
    X(channel_norm, msi_channel_norm_args)                                                         \
    X(channel_norm_grad, msi_channel_norm_args)                                                    \
    X(log_softmax, msi_softmax_args)                                                               \
    X(log_softmax_grad, msi_softmax_args)                                                          \
    X(softmax, msi_softmax_args)                                                                   \
    X(softmax_grad, msi_softmax_args)                                                              \
    X(cross_entropy, msi_cross_entropy_args)                                                       \
    X(cross_entropy_grad, msi_cross_entropy_args)                                                  \
    X(nll_loss, msi_nll_args)                                                                      \
    X(nll_loss_grad, msi_nll_args)                                                                 \
    X(embedding, msi_embedding_args)                                                               \
    X(embedding_grad, msi_embedding_args)                                                          \
    X(gather, msi_gather_args)                                                                     \
    X(scatter, msi_gather_args)                                                                    \
    X(argsort, msi_argsort_args)                                                                   \
    X(attention, msi_attention_args)                                                               \
    X(attention_grad, msi_attention_args)                                                          \
    X(rotary, msi_rotary_args)                                                                     \
    X(conv, msi_conv_args)                                                                         \
    X(conv_grad, msi_conv_args)                                                                    \
    X(max_pool, msi_pool_args)                                                                     \
    X(max_pool_grad, msi_pool_args)                                                                \
    X(avg_pool, msi_pool_args)                                                                     \
    X(avg_pool_grad, msi_pool_args)                                                                \
    X(dropout, msi_dropout_args)                                                                   \
    X(init, msi_init_args)                                                                         \
    X(sgd, msi_sgd_args)                                                                           \
    X(adam, msi_adam_args)                                                                         \
    X(rmsprop, msi_rmsprop_args)                                                                   \
    X(adagrad, msi_adagrad_args)                                                                   \
    X(lion, msi_lion_args)                                                                         \
    X(norm, msi_norm_args)                                                                         \
    X(norm_cut, msi_norm_cut_args)                                                                 \
    X(norm_fold, msi_norm_fold_args)                                                               \
    X(tree, msi_tree_args)                                                                         \
    X(gemm, msi_gemm_args) /* own: for f64, tiny shapes, or without a library */

enum {
#define MSI_KERNEL_ENUM(name, args) MSI_K_##name,
    MSI_KERNELS(MSI_KERNEL_ENUM)
#undef MSI_KERNEL_ENUM
        MSI_K_COUNT
};

#endif
