/* Differentiable operators. Each returns a new tensor, which the caller owns (inside a scope, the
 * scope). Elementwise operands broadcast as in NumPy and must have one dtype (MS_TYPE_ERROR). A
 * number takes the tensor's dtype: for integers it must be whole (MS_TYPE_ERROR) and in range
 * (MS_VALUE_ERROR). Integer results wrap. An unsupported dtype is MS_NOT_IMPLEMENTED_ERROR, with
 * op, dtype and device. */
#ifndef MOONSHARD_OPS_H
#define MOONSHARD_OPS_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

MS_API ms_status ms_op_add(ms_tensor **out, ms_tensor *a, ms_tensor *b);
MS_API ms_status ms_op_sub(ms_tensor **out, ms_tensor *a, ms_tensor *b);
MS_API ms_status ms_op_mul(ms_tensor **out, ms_tensor *a, ms_tensor *b);
MS_API ms_status ms_op_div(ms_tensor **out, ms_tensor *a, ms_tensor *b);
/** a - b floor(a / b), which has the sign of b. Integers too, 0 where b is 0. The gradient of b is
 * -floor(a / b). */
MS_API ms_status ms_op_remainder(ms_tensor **out, ms_tensor *a, ms_tensor *b);
/** The larger (smaller) element; NaN if either is NaN. Integers too. Equal elements share the
 * gradient. */
MS_API ms_status ms_op_maximum(ms_tensor **out, ms_tensor *a, ms_tensor *b);
MS_API ms_status ms_op_minimum(ms_tensor **out, ms_tensor *a, ms_tensor *b);
/** min(max(x, low), high). An infinite bound has no effect; a NaN bound makes every result NaN.
 * Integers too, if they can hold the bounds. The gradient is passed where low < x < high. */
MS_API ms_status ms_op_clamp(ms_tensor **out, ms_tensor *x, double low, double high);
/** scale * x + shift. A shift of -0 adds nothing: zeros keep their sign (x + 0 does not). */
MS_API ms_status ms_op_affine(ms_tensor **out, ms_tensor *x, double scale, double shift);

enum { MS_NUMBER_ADD = 0, MS_NUMBER_SUB = 1, MS_NUMBER_SUB_FROM = 2, MS_NUMBER_MUL = 3 };

/** x + number, x - number, number - x, x * number.
 * @param operation  MS_NUMBER_*, else MS_VALUE_ERROR */
MS_API ms_status ms_op_with_number(ms_tensor **out, ms_tensor *x, double number, int32_t operation);
/** -x. Integers too. */
MS_API ms_status ms_op_neg(ms_tensor **out, ms_tensor *x);
/** Whole numbers: at most x, at least x, x without its fraction, the nearest to x (of two the even
 * one). Integers are their own. The gradient is 0. */
MS_API ms_status ms_op_floor(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_ceil(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_trunc(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_round(ms_tensor **out, ms_tensor *x);
/** |x|, x / |x| (0 for 0 and NaN), x^2. Integers too. The gradient of |x| is 0 at 0. */
MS_API ms_status ms_op_abs(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_sign(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_square(ms_tensor **out, ms_tensor *x);
/** 1 / x. */
MS_API ms_status ms_op_reciprocal(ms_tensor **out, ms_tensor *x);
/**
 * x^p in f32 and f64 (narrow dtypes compute in f32).
 * Integer p with |p| <= 32: products in a fixed order, at most 2 |p| roundings. p = 1/2, -1/2: a
 * square root. Other p: 2^(p log2 |x|), relative error in f32 at most 1.01 2^-24. Negative x with a
 * fractional p is NaN. The gradient is p x^(p - 1), and 0 for p = 0.
 * @param p  finite (MS_VALUE_ERROR)
 */
MS_API ms_status ms_op_pow(ms_tensor **out, ms_tensor *x, double p);
/** a^b, rounded once in f32. Negative a with a fractional b is NaN. Gradients: b a^(b - 1), and 0
 * where b = 0; a^b log(a), and 0 where a = 0 and b >= 0. */
MS_API ms_status ms_op_power(ms_tensor **out, ms_tensor *a, ms_tensor *b);
MS_API ms_status ms_op_exp(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_log(ms_tensor **out, ms_tensor *x);
/** exp(x) - 1 and log(1 + x), accurate near 0. */
MS_API ms_status ms_op_expm1(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_log1p(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_sqrt(ms_tensor **out, ms_tensor *x);
/** 1 / sqrt(x). */
MS_API ms_status ms_op_rsqrt(ms_tensor **out, ms_tensor *x);
/** x in radians. */
MS_API ms_status ms_op_sin(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_cos(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_tanh(ms_tensor **out, ms_tensor *x);
/** 1 / (1 + exp(-x)). */
MS_API ms_status ms_op_sigmoid(ms_tensor **out, ms_tensor *x);
/** log(sigmoid(x)), accurate on both sides of 0. */
MS_API ms_status ms_op_logsigmoid(ms_tensor **out, ms_tensor *x);
/** x sigmoid(x) (arXiv:1702.03118); NaN for -inf. */
MS_API ms_status ms_op_silu(ms_tensor **out, ms_tensor *x);
/** log(1 + exp(beta x)) / beta; x where beta x > threshold. */
MS_API ms_status ms_op_softplus(ms_tensor **out, ms_tensor *x, double beta, double threshold);
/** x where x > 0, else negative_slope x. */
MS_API ms_status ms_op_leaky_relu(ms_tensor **out, ms_tensor *x, double negative_slope);
MS_API ms_status ms_op_relu(ms_tensor **out, ms_tensor *x);
/** The error function: 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x. */
MS_API ms_status ms_op_erf(ms_tensor **out, ms_tensor *x);
/** Gaussian error linear unit (arXiv:1606.08415); `approximate`: the tanh formula. */
MS_API ms_status ms_op_gelu(ms_tensor **out, ms_tensor *x, bool approximate);

enum {
    MS_COMPARE_EQ = 0,
    MS_COMPARE_NE = 1,
    MS_COMPARE_LT = 2,
    MS_COMPARE_LE = 3,
    MS_COMPARE_GT = 4,
    MS_COMPARE_GE = 5
};

/** bool of `a relation b`, elementwise; not differentiable. NaN is unequal to everything.
 * @param relation  MS_COMPARE_*, else MS_VALUE_ERROR */
MS_API ms_status ms_op_compare(ms_tensor **out, ms_tensor *a, ms_tensor *b, int32_t relation);
/** The same with a number, rounded to x's dtype if that is floating; exact with integers (2 < 2.5
 * is true, and 300 is above every u8). */
MS_API ms_status ms_op_compare_number(ms_tensor **out, ms_tensor *x, double value,
                                      int32_t relation);
/** Elementwise bool, not differentiable. Integers are finite. */
MS_API ms_status ms_op_isnan(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_isinf(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_isfinite(ms_tensor **out, ms_tensor *x);
/** a where cond (bool, else MS_TYPE_ERROR) is true, else b; all three broadcast. The gradient goes
 * to the chosen element. */
MS_API ms_status ms_op_where(ms_tensor **out, ms_tensor *cond, ms_tensor *a, ms_tensor *b);

/** (..., M, K) x (..., K, N) -> (..., M, N). Leading dimensions broadcast. A vector (K) is a row on
 * the left, a column on the right; the result then has no M, or no N. */
MS_API ms_status ms_op_matmul(ms_tensor **out, ms_tensor *a, ms_tensor *b);
/** x (..., in), w (out, in), bias (out) or NULL -> (..., out). */
MS_API ms_status ms_op_linear(ms_tensor **out, ms_tensor *x, ms_tensor *w,
                              MS_NULLABLE ms_tensor *bias);
/** linear() for logits: on a GPU, where `out` elements are no multiple of 16 bytes, rows of the
 * result are a multiple of 64 elements apart, so that products and cross_entropy() read them whole.
 */
MS_API ms_status ms_op_linear_padded(ms_tensor **out, ms_tensor *x, ms_tensor *w,
                                     MS_NULLABLE ms_tensor *bias);
/** gelu(linear(x, w, bias)) in one pass over the pre-activation, with equal values; on a GPU the
 * tanh formula of a narrow dtype is rounded once, not also before it. */
MS_API ms_status ms_op_linear_gelu(ms_tensor **out, ms_tensor *x, ms_tensor *w,
                                   MS_NULLABLE ms_tensor *bias, bool approximate);
/** table (V, C), ids i64 (...) -> (..., C). MS_INDEX_ERROR for the first id outside [0, V); on a
 * device the next call that waits returns it. */
MS_API ms_status ms_op_embedding(ms_tensor **out, ms_tensor *table, ms_tensor *ids);
/**
 * Cross-correlation of x (N, C, ...) with w (O, C / groups, ...), plus bias (O) or NULL, over 1 to
 * 3 spatial dimensions. Narrow dtypes are summed in f32.
 * @param ndim      spatial dimensions
 * @param stride    one of 1 or more per spatial dimension; dilation likewise
 * @param padding   zeros in front of and behind each spatial dimension: 2 ndim numbers
 */
MS_API ms_status ms_op_conv(ms_tensor **out, ms_tensor *x, ms_tensor *w,
                            MS_NULLABLE ms_tensor *bias, int32_t ndim, const int64_t *stride,
                            const int64_t *padding, const int64_t *dilation, int64_t groups);
/**
 * The transposed convolution: the gradient of a convolution with respect to its input. x (N, C,
 * ...) with w (C, O / groups, ...), plus bias (O) or NULL, gives sizes (in - 1) stride - 2 padding
 * + dilation (kernel - 1) + output_padding + 1.
 * @param stride   as above; so are dilation and groups
 * @param padding  of that convolution, on both sides of each spatial dimension: ndim numbers
 * @param output_padding  positions added behind each: less than its stride or its dilation
 */
MS_API ms_status ms_op_conv_transpose(ms_tensor **out, ms_tensor *x, ms_tensor *w,
                                      MS_NULLABLE ms_tensor *bias, int32_t ndim,
                                      const int64_t *stride, const int64_t *padding,
                                      const int64_t *output_padding, const int64_t *dilation,
                                      int64_t groups);
/**
 * The largest element, or the average, of each window of x (N, C, ...) over 1 to 3 spatial
 * dimensions. A maximum with NaN is NaN; equal elements: the first has the gradient.
 * @param kernel     sizes of the window, one per spatial dimension; so are stride, padding (at most
 *                   half of the window) and dilation
 * @param ceil_mode  a last window may extend beyond the padding
 * @param count_include_pad  the average counts zeros of the padding
 * @param divisor    of sums; 0: the number of elements counted
 */
MS_API ms_status ms_op_max_pool(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *kernel,
                                const int64_t *stride, const int64_t *padding,
                                const int64_t *dilation, bool ceil_mode);
MS_API ms_status ms_op_avg_pool(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *kernel,
                                const int64_t *stride, const int64_t *padding, bool ceil_mode,
                                bool count_include_pad, int64_t divisor);
/** Averages over windows that make the spatial dimensions `size`: window o of n spans elements
 * floor(o in / n) to ceil((o + 1) in / n). */
MS_API ms_status ms_op_adaptive_avg_pool(ms_tensor **out, ms_tensor *x, int32_t ndim,
                                         const int64_t *size);
/** Normalize over the last dimension C; w (C), bias (C) or NULL (arXiv:1607.06450). Narrow dtypes
 * compute in f32. There the variance overflows for elements about 1e19 apart: the result is 0 (in
 * PyTorch 0, and NaN from 1e20).
 * @param eps  finite, 0 or more (MS_VALUE_ERROR) */
MS_API ms_status ms_op_layer_norm(ms_tensor **out, ms_tensor *x, MS_NULLABLE ms_tensor *w,
                                  MS_NULLABLE ms_tensor *bias, double eps);
/** (2, sets): mean and biased variance of sets of planes of x (N, C, ...). groups = 0: a set is a
 * channel of all samples; else a sample's channels in so many groups. f32 for narrow dtypes. Not
 * differentiable. */
MS_API ms_status ms_op_channel_stats(ms_tensor **out, ms_tensor *x, int64_t groups);
/** Batch (groups = 0) and group normalisation: (x - mean) / sqrt(variance + eps) w + bias, with w
 * (C), bias (C) or NULL.
 * @param stats     as ms_op_channel_stats() computes them; no gradient
 * @param of_input  they are those of x, and x's gradient goes through them; else they are constant
 * @param eps       finite, 0 or more (MS_VALUE_ERROR) */
MS_API ms_status ms_op_channel_norm(ms_tensor **out, ms_tensor *x, ms_tensor *stats,
                                    MS_NULLABLE ms_tensor *w, MS_NULLABLE ms_tensor *bias,
                                    int64_t groups, double eps, bool of_input);
/** Over the last dimension; MS_VALUE_ERROR if x has none. */
MS_API ms_status ms_op_log_softmax(ms_tensor **out, ms_tensor *x);
/** exp(x) / sum(exp(x)) over the last dimension, as above; NaN for a row of -inf. */
MS_API ms_status ms_op_softmax(ms_tensor **out, ms_tensor *x);

enum { MS_REDUCTION_MEAN = 0, MS_REDUCTION_SUM = 1 };

/**
 * Negative log-likelihood of `targets` under softmax(logits), fused. The gradient reuses the memory
 * of the logits if they have no other owner.
 * @param logits     (..., V)
 * @param targets    i64 (...); entries equal to `ignore_index` do not count
 * @param reduction  mean over the counted entries (NaN if there are none), or sum
 * @return *out: f32 for narrow logits, else the dtype of the logits. MS_INDEX_ERROR for the first
 *         target outside [0, V), as for ms_op_embedding()
 */
MS_API ms_status ms_op_cross_entropy(ms_tensor **out, ms_tensor *logits, ms_tensor *targets,
                                     int64_t ignore_index, int32_t reduction);
/** -x[i, target of i] for each row of x (..., C), not reduced: targets i64 (...). 0 for
 * `ignore_index`. MS_INDEX_ERROR for another target outside [0, C), as for ms_op_embedding(). */
MS_API ms_status ms_op_nll_loss(ms_tensor **out, ms_tensor *x, ms_tensor *targets,
                                int64_t ignore_index);
/** Mean (or sum) of (x - y)^2 over all elements of two tensors of one shape. f32 for narrow dtypes.
 */
MS_API ms_status ms_op_mse_loss(ms_tensor **out, ms_tensor *x, ms_tensor *y, int32_t reduction);
/**
 * softmax(q k^T * scale + mask) v without storing the scores (arXiv:2205.14135). A row whose scores
 * are all -inf gives 0 (in PyTorch NaN). Where cuDNN computes (docs/gpu.md), that row is NaN.
 * @param q       (B, H, T, D), k and v (B, H, S, D); any strides. The result of a q that is a
 *                transposed (B, T, H, D) has that order in memory, too
 * @param scale   finite in f32 (f64 for f64), else MS_VALUE_ERROR; 0 means 1/sqrt(D)
 * @param causal  position t sees s <= t for every S (as PyTorch's is_causal). Masked values may be
 *                inf or NaN, also in the gradient; then results may differ in the last place. Where
 *                cuDNN computes, q, k and v must be finite: queries that do not see a value that is
 *                not may become NaN
 */
MS_API ms_status ms_op_attention(ms_tensor **out, ms_tensor *q, ms_tensor *k, ms_tensor *v,
                                 bool causal, double scale);
/**
 * The same with masks, dropout of the probabilities, and key heads that several query heads share.
 * A row without a key to attend to gives 0, and so does its gradient. What a mask hides must be
 * finite in k and v.
 * @param q          (B, H, T, D), k and v (B, G, S, D), H a multiple of G: head h reads h / (H / G)
 * @param mask       broadcasts to (B, H, T, S), else MS_VALUE_ERROR. bool: true where a query
 *                   attends to a key. f32 or q's dtype: added to the scaled scores; has a gradient
 * @param causal     as above; both hold if there is a mask
 * @param scale      finite as above, 0 too; NaN means 1/sqrt(D)
 * @param dropout_p  0 to 1. Element (h, t, s) of sample b of (B, H, T, S), as in ms_op_dropout()
 */
MS_API ms_status ms_op_scaled_dot_product_attention(ms_tensor **out, ms_tensor *q, ms_tensor *k,
                                                    ms_tensor *v, MS_NULLABLE ms_tensor *mask,
                                                    bool causal, double scale, double dropout_p,
                                                    uint64_t site, int64_t call);
/** The same as ms_op_attention() for a packed projection: qkv (B, T, 3 C) with q, k, v in a row,
 * each split into `heads`, -> (B, T, C). Copies neither operands nor result. */
MS_API ms_status ms_op_attention_packed(ms_tensor **out, ms_tensor *qkv, int32_t heads, bool causal,
                                        double scale);
/** Rotary positions (arXiv:2104.09864): turn the pair of elements i and i + D / 2 of each row of x
 * (..., D) by an angle. `cos` and `sin` of the angles broadcast to (..., D / 2), else
 * MS_VALUE_ERROR. Each element is rounded once. */
MS_API ms_status ms_op_rotary(ms_tensor **out, ms_tensor *x, ms_tensor *cos, ms_tensor *sin);
/**
 * Zero elements with probability p, divide the others by 1 - p.
 * The mask is Philox4x32-10(seed; site, call, sample, element). x is (samples, ...); row b is the
 * context's sample base + b, so the mask does not depend on which rank has a sample.
 * @param site  key of the place in the model (ms_name_key() of its path)
 * @param call  number of earlier calls of this site in the micro-batch, >= 0 (MS_VALUE_ERROR)
 */
MS_API ms_status ms_op_dropout(ms_tensor **out, ms_tensor *x, double p, uint64_t site,
                               int64_t call);
/** Sum over the dimensions whose bit is set in `dims` (bit d for dimension d; 0: all). Integers and
 * bool (true is 1) are summed in i64, wrapping. */
MS_API ms_status ms_op_sum(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim);
/** MS_TYPE_ERROR for integers. */
MS_API ms_status ms_op_mean(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim);
/** The largest (smallest) element over `dims` as above; NaN if there is one. MS_INDEX_ERROR if a
 * reduced size is 0. Equal elements share the gradient. */
MS_API ms_status ms_op_amax(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim);
MS_API ms_status ms_op_amin(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim);
/** i64: where the first of these elements is along one dimension, or in row-major order if `dims`
 * is 0. Index tensors hold positions from 1, here and in all functions below. */
MS_API ms_status ms_op_argmax(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim);
MS_API ms_status ms_op_argmin(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim);
/** Product over `dims`, in f64 and rounded once; of integers and bool in i64, wrapping. */
MS_API ms_status ms_op_prod(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim);
/** x at positions `index` (i64) along `dim`, in the shape of `index`: x[i, index[i, j]] for dim 1
 * of two. Other sizes of `index` are at most those of x. MS_INDEX_ERROR for the first position
 * outside [1, size], as for ms_op_embedding(). */
MS_API ms_status ms_op_gather(ms_tensor **out, ms_tensor *x, int32_t dim, ms_tensor *index);
/** A copy of x with `src` stored at these positions; sizes of `index` are at most those of `src`.
 * Of equal positions the last one counts; each gets the gradient. */
MS_API ms_status ms_op_scatter(ms_tensor **out, ms_tensor *x, int32_t dim, ms_tensor *index,
                               ms_tensor *src);
/** The same, added. Equal positions add in ascending order, narrow dtypes in f32. */
MS_API ms_status ms_op_scatter_add(ms_tensor **out, ms_tensor *x, int32_t dim, ms_tensor *index,
                                   ms_tensor *src);
/** i64: positions of x's elements along `dim` in ascending or descending order, the first `take`
 * (-1: all). Equal elements keep their order; NaN is the largest, 0 and -0 are equal. */
MS_API ms_status ms_op_argsort(ms_tensor **out, ms_tensor *x, int32_t dim, bool descending,
                               int64_t take);
/** Running sums along dimension `dim`: element j is x[0] + ... + x[j]. Integers and bool are summed
 * in i64, wrapping. MS_INDEX_ERROR if x has no dimension `dim`. */
MS_API ms_status ms_op_cumsum(ms_tensor **out, ms_tensor *x, int32_t dim);
/** A view if the strides allow it, else a copy. One size may be -1. */
MS_API ms_status ms_op_reshape(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *shape);
/** View with sizes of 1 repeated and new leading dimensions; -1 keeps a size. MS_VALUE_ERROR if a
 * size other than 1 would change. */
MS_API ms_status ms_op_expand(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *shape);
/** View with dimension i taken from perm[i]. */
MS_API ms_status ms_op_permute(ms_tensor **out, ms_tensor *x, int32_t ndim, const int32_t *perm);
/** View of `length` entries from `start` along `dim`. */
MS_API ms_status ms_op_narrow(ms_tensor **out, ms_tensor *x, int32_t dim, int64_t start,
                              int64_t length);
/** View of entry `index` along `dim`, without that dimension. MS_INDEX_ERROR if out of range. */
MS_API ms_status ms_op_select(ms_tensor **out, ms_tensor *x, int32_t dim, int64_t index);
/** A copy with the entries in reverse order along the dimensions whose bit is set in `dims`. */
MS_API ms_status ms_op_flip(ms_tensor **out, ms_tensor *x, uint32_t dims);
/** Concatenate along `dim`. */
MS_API ms_status ms_op_cat(ms_tensor **out, ms_tensor *const *tensors, int32_t n_tensors,
                           int32_t dim);
/** Cast to another dtype; always a copy unless the dtype is equal.
 *
 * | from       | to        | rule                                                               |
 * | any        | floating  | nearest, ties to even; bf16, f16 through f32; overflow is infinite |
 * | floating   | i64       | truncated; NaN is 0; out of range (also inf) the nearest i64       |
 * | any        | i32, u8   | the low 32, 8 bits of the i64                                      |
 * | any        | bool      | "not 0"; NaN is true                                               |
 *
 * Copies, fills, and numbers with integer tensors follow it too. */
MS_API ms_status ms_op_cast(ms_tensor **out, ms_tensor *x, int32_t dtype);
/** A C-contiguous copy. */
MS_API ms_status ms_op_clone(ms_tensor **out, ms_tensor *x);

#ifdef __cplusplus
}
#endif

#endif
