/* Work of kernels. */
#include "plan_work.h"

#include "dtype.h"

/* -- floating-point operations ----------------------------------------------------------------- */

/* Pairs of a query and a key that it sees. */
static double attention_pairs(const msi_attention_args *a)
{
    const double q = (double)a->q_len, kv = (double)a->kv_len;

    if (!a->causal) {
        return q * kv;
    }
    const double rows = q < kv ? q : kv; /* query i sees kv - q + i + 1 keys, if that is positive */

    return rows * (kv - rows) + rows * (rows + 1) / 2;
}

/* Two products in the forward, five in the gradient. */
static double attention_flops(const msi_attention_args *a, bool gradient)
{
    return (gradient ? 10.0 : 4.0) * (double)(a->batch * a->heads * a->head_dim) *
           attention_pairs(a);
}

/* One product in the forward, one for each gradient. */
static double conv_flops(const msi_conv_args *a, bool gradient)
{
    const int64_t *out = a->out, *kernel = a->kernel;
    const int32_t products = gradient ? (a->dx != NULL) + (a->dw != NULL) : 1;

    return 2.0 * products * (double)(a->batch * a->groups * a->out_channels * a->in_channels) *
           (double)(out[0] * out[1] * out[2]) * (double)(kernel[0] * kernel[1] * kernel[2]);
}

static double gemm_flops(const msi_gemm_args *a)
{
    return 2.0 * (double)(a->batch * a->m * a->n) * (double)a->k;
}

static double flops_of(int32_t kernel, const void *args)
{
    switch (kernel) {
    case MSI_K_attention:
    case MSI_K_attention_grad:
        return attention_flops(args, kernel == MSI_K_attention_grad);
    case MSI_K_conv:
    case MSI_K_conv_grad:
        return conv_flops(args, kernel == MSI_K_conv_grad);
    case MSI_K_gemm:
        return gemm_flops(args);
    default:
        return 0;
    }
}

static double targets_of(int32_t kernel, const void *args)
{
    return kernel == MSI_K_cross_entropy_grad ? (double)((const msi_cross_entropy_args *)args)->rows
           : kernel == MSI_K_nll_loss_grad    ? (double)((const msi_nll_args *)args)->rows
                                              : 0;
}

/* -- bytes ------------------------------------------------------------------------------------- */

static double loop_numel(const msi_loop *loop)
{
    double n = 1;

    for (int32_t d = 0; d < loop->ndim; d++) {
        n *= (double)loop->shape[d];
    }
    return n;
}

/* Elements that operand `i` has in a loop: repeated ones count once. */
static double operand_numel(const msi_loop *loop, int32_t i)
{
    double n = 1;

    for (int32_t d = 0; d < loop->ndim; d++) {
        n *= loop->stride[i][d] != 0 ? (double)loop->shape[d] : 1;
    }
    return n;
}

static double elementwise_bytes(const msi_ew_args *a, double size)
{
    double nbytes = loop_numel(&a->loop) * size * (a->accumulate ? 2 : 1);

    for (int32_t i = 0; i < 3; i++) {
        const double its = i == 0 ? (double)ms_dtype_size(a->in_dtype) : size;

        nbytes += a->in[i] != NULL ? operand_numel(&a->loop, i + 1) * its : 0;
    }
    return nbytes;
}

static double tree_bytes(const msi_tree_args *a, double size)
{
    double per_element = size;

    for (int32_t i = 0; i < a->n_src; i++) {
        per_element += (double)ms_dtype_size(a->src[i].dtype);
    }
    return (double)a->n * per_element;
}

/* Numbers per element that an optimizer reads and writes. */
static double adam_values(const msi_adam_args *a)
{
    return a->most != NULL ? 9 : 7;
}

static double rmsprop_values(const msi_rmsprop_args *a)
{
    return 5.0 + (a->mean != NULL ? 2 : 0) + (a->buf != NULL ? 2 : 0);
}

/* Rows that are read or written once each, `values` of them. */
static double rows_bytes(int64_t rows, int64_t cols, double values, double size)
{
    return (double)rows * (double)cols * values * size;
}

static double embedding_bytes(const msi_embedding_args *a, double size, bool gradient)
{
    const double rows = rows_bytes(a->n, a->width, gradient ? 3 : 2, size);

    return gradient && !a->accumulate
               ? rows + rows_bytes(a->vocab, a->width, 1, (double)ms_dtype_size(a->dtable_dtype))
               : rows;
}

#define AS(type) ((const type *)args)

static double bytes_of(int32_t kernel, double size, const void *args)
{
    switch (kernel) {
    case MSI_K_sum:
    case MSI_K_cumsum:
        return loop_numel(&AS(msi_sum_args)->kept) * loop_numel(&AS(msi_sum_args)->reduced) * size;
    case MSI_K_layer_norm:
        return rows_bytes(AS(msi_layer_norm_args)->rows, AS(msi_layer_norm_args)->cols, 2, size);
    case MSI_K_layer_norm_grad:
        return rows_bytes(AS(msi_layer_norm_grad_args)->rows, AS(msi_layer_norm_grad_args)->cols, 3,
                          size);
    case MSI_K_log_softmax:
    case MSI_K_softmax:
        return rows_bytes(AS(msi_softmax_args)->rows, AS(msi_softmax_args)->cols, 2, size);
    case MSI_K_log_softmax_grad:
    case MSI_K_softmax_grad:
        return rows_bytes(AS(msi_softmax_args)->rows, AS(msi_softmax_args)->cols, 3, size);
    case MSI_K_cross_entropy:
    case MSI_K_cross_entropy_grad:
        return rows_bytes(AS(msi_cross_entropy_args)->rows, AS(msi_cross_entropy_args)->cols,
                          kernel == MSI_K_cross_entropy ? 1 : 2, size);
    case MSI_K_embedding:
    case MSI_K_embedding_grad:
        return embedding_bytes(args, size, kernel == MSI_K_embedding_grad);
    case MSI_K_rotary:
        return loop_numel(&AS(msi_rotary_args)->rows) * (double)AS(msi_rotary_args)->half * 4 *
               size;
    case MSI_K_dropout:
        return rows_bytes(AS(msi_dropout_args)->samples, AS(msi_dropout_args)->per_sample, 2, size);
    case MSI_K_sgd:
        return (double)AS(msi_sgd_args)->n * (AS(msi_sgd_args)->buf != NULL ? 5 : 3) * size;
    case MSI_K_adam:
        return (double)AS(msi_adam_args)->n * adam_values(args) * size;
    case MSI_K_rmsprop:
        return (double)AS(msi_rmsprop_args)->n * rmsprop_values(args) * size;
    case MSI_K_adagrad:
        return (double)AS(msi_adagrad_args)->n * 5 * size;
    case MSI_K_lion:
        return (double)AS(msi_lion_args)->n * 5 * size;
    case MSI_K_norm:
        return (double)AS(msi_norm_args)->n * size;
    case MSI_K_tree:
        return tree_bytes(args, size);
    default:
        return kernel <= MSI_K_where ? elementwise_bytes(args, size) : 0;
    }
}

msi_work msi_work_of(int32_t kernel, int32_t dtype, const void *args)
{
    return (msi_work){.flops = flops_of(kernel, args),
                      .targets = targets_of(kernel, args),
                      .nbytes = bytes_of(kernel, (double)ms_dtype_size(dtype), args)};
}
