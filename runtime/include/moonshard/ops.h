/* Differentiable operators. All return new tensors: "the caller owns `*out`" holds throughout
 * (inside a scope the scope does). Shapes broadcast as in NumPy where two operands meet
 * elementwise; both must have one dtype (MS_TYPE_ERROR names both otherwise). A number takes the
 * tensor's dtype: beside integers it must be a whole one they hold (MS_TYPE_ERROR for a fraction,
 * MS_VALUE_ERROR beyond their range); the results of integers wrap. Unsupported dtypes are
 * MS_NOT_IMPLEMENTED_ERROR naming op, dtype and device. */
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
/** The larger (smaller) of two elements, NaN where one is; of integers, too. Equal ones share the
 * gradient. */
MS_API ms_status ms_op_maximum(ms_tensor **out, ms_tensor *a, ms_tensor *b);
MS_API ms_status ms_op_minimum(ms_tensor **out, ms_tensor *a, ms_tensor *b);
/**
 * x, but at least `low` and at most `high` (that where low > high): -inf and inf are no bounds, and
 * NaN as a bound makes everything NaN. Of integers, too, with bounds that they hold. The gradient
 * goes to what lies between the bounds or on them.
 */
MS_API ms_status ms_op_clamp(ms_tensor **out, ms_tensor *x, double low, double high);
/** scale * x + shift. A shift of -0 is none: scale * x keeps the sign of zeros (x + 0 does not). */
MS_API ms_status ms_op_affine(ms_tensor **out, ms_tensor *x, double scale, double shift);

enum { MS_NUMBER_ADD = 0, MS_NUMBER_SUB = 1, MS_NUMBER_SUB_FROM = 2, MS_NUMBER_MUL = 3 };

/** x + number, x - number, number - x, x * number.
 * @param operation  MS_NUMBER_*; MS_VALUE_ERROR for another number */
MS_API ms_status ms_op_with_number(ms_tensor **out, ms_tensor *x, double number, int32_t operation);
/** -x; of integers, too. */
MS_API ms_status ms_op_neg(ms_tensor **out, ms_tensor *x);
/** |x|, x / |x| (0 of 0 and of NaN) and x^2; of integers, too. The gradient of |x| is 0 at 0. */
MS_API ms_status ms_op_abs(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_sign(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_square(ms_tensor **out, ms_tensor *x);
/** 1 / x. */
MS_API ms_status ms_op_reciprocal(ms_tensor **out, ms_tensor *x);
/**
 * x^p for a number p, in f32 and f64 (narrow dtypes compute in f32).
 * Integers p of at most 32 in magnitude are products in a fixed order, at most 2 |p| roundings away
 * from the truth; p = 1/2 and -1/2 take a square root; any other p is 2^(p log2 |x|), in f32 within
 * 1.01 2^-24 relative, one rounding. A negative x has a power when p is an integer, else NaN. The
 * gradient is p x^(p - 1), and 0 for p = 0.
 * @param p  finite (MS_VALUE_ERROR otherwise)
 */
MS_API ms_status ms_op_pow(ms_tensor **out, ms_tensor *x, double p);
MS_API ms_status ms_op_exp(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_log(ms_tensor **out, ms_tensor *x);
/** exp(x) - 1 and log(1 + x), of small x, too. */
MS_API ms_status ms_op_expm1(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_log1p(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_sqrt(ms_tensor **out, ms_tensor *x);
/** 1 / sqrt(x). */
MS_API ms_status ms_op_rsqrt(ms_tensor **out, ms_tensor *x);
/** Of angles in radians. */
MS_API ms_status ms_op_sin(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_cos(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_tanh(ms_tensor **out, ms_tensor *x);
/** 1 / (1 + exp(-x)). */
MS_API ms_status ms_op_sigmoid(ms_tensor **out, ms_tensor *x);
/** x sigmoid(x) (arXiv:1702.03118); of -inf NaN. */
MS_API ms_status ms_op_silu(ms_tensor **out, ms_tensor *x);
/** log(1 + exp(beta x)) / beta, and x itself where beta x > threshold. */
MS_API ms_status ms_op_softplus(ms_tensor **out, ms_tensor *x, double beta, double threshold);
MS_API ms_status ms_op_relu(ms_tensor **out, ms_tensor *x);
/** The error function: 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x. */
MS_API ms_status ms_op_erf(ms_tensor **out, ms_tensor *x);
/** Gaussian error linear unit (arXiv:1606.08415); `approximate` takes the tanh form. */
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
 * @param relation  MS_COMPARE_*; MS_VALUE_ERROR for another number */
MS_API ms_status ms_op_compare(ms_tensor **out, ms_tensor *a, ms_tensor *b, int32_t relation);
/** The same with a number: rounded to x's dtype when that is floating, compared as it is with
 * integers (2 < 2.5 holds, and 300 exceeds every u8). */
MS_API ms_status ms_op_compare_number(ms_tensor **out, ms_tensor *x, double value,
                                      int32_t relation);
/** bool of what an element is, not differentiable: integers are finite. */
MS_API ms_status ms_op_isnan(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_isinf(ms_tensor **out, ms_tensor *x);
MS_API ms_status ms_op_isfinite(ms_tensor **out, ms_tensor *x);
/** a where cond (bool; MS_TYPE_ERROR otherwise) is true, else b; the three broadcast. The gradient
 * goes to what was chosen. */
MS_API ms_status ms_op_where(ms_tensor **out, ms_tensor *cond, ms_tensor *a, ms_tensor *b);

/** (..., M, K) x (..., K, N) -> (..., M, N). Leading dimensions broadcast. A vector (K) is a row on
 * the left, a column on the right, and the result has no M, or N, then. */
MS_API ms_status ms_op_matmul(ms_tensor **out, ms_tensor *a, ms_tensor *b);
/** x (..., in), w (out, in), bias (out) or NULL -> (..., out). */
MS_API ms_status ms_op_linear(ms_tensor **out, ms_tensor *x, ms_tensor *w,
                              MS_NULLABLE ms_tensor *bias);
/** gelu(linear(x, w, bias)) in one pass over the pre-activation; the same values as the pair. */
MS_API ms_status ms_op_linear_gelu(ms_tensor **out, ms_tensor *x, ms_tensor *w,
                                   MS_NULLABLE ms_tensor *bias, bool approximate);
/** table (V, C), ids i64 (...) -> (..., C). MS_INDEX_ERROR names the first id outside [0, V); on a
 * device that is the error of the next call that waits for what was computed. */
MS_API ms_status ms_op_embedding(ms_tensor **out, ms_tensor *table, ms_tensor *ids);
/** Over the last dimension C; w (C) and bias (C) may be NULL (arXiv:1607.06450). Narrow dtypes
 * compute in f32, where the variance of elements about 1e19 apart is inf: they are normalized to 0
 * (PyTorch's to 0, and to NaN from 1e20 on).
 * @param eps  finite, 0 or more (MS_VALUE_ERROR) */
MS_API ms_status ms_op_layer_norm(ms_tensor **out, ms_tensor *x, MS_NULLABLE ms_tensor *w,
                                  MS_NULLABLE ms_tensor *bias, double eps);
/** Over the last dimension; MS_VALUE_ERROR where there is none. */
MS_API ms_status ms_op_log_softmax(ms_tensor **out, ms_tensor *x);
/** exp(x) / sum(exp(x)) over the last dimension, as above; a row of -inf alone is NaN. */
MS_API ms_status ms_op_softmax(ms_tensor **out, ms_tensor *x);

enum { MS_REDUCTION_MEAN = 0, MS_REDUCTION_SUM = 1 };

/**
 * Negative log-likelihood of `targets` under softmax(logits), fused; the gradient takes the
 * logits' own memory when nothing else holds it.
 * @param logits   (..., V)
 * @param targets  i64 (...), entries equal to `ignore_index` do not count
 * @param reduction  mean over the counted entries (NaN when there are none), or sum
 * The loss is f32 for narrow logits (its own rounding would be coarser than its progress), else of
 * the logits' dtype. MS_INDEX_ERROR names the first target outside [0, V), as with embedding.
 */
MS_API ms_status ms_op_cross_entropy(ms_tensor **out, ms_tensor *logits, ms_tensor *targets,
                                     int64_t ignore_index, int32_t reduction);
/** Mean (or sum) of (x - y)^2 over all elements of two tensors of one shape. f32 for narrow dtypes,
 * as above. */
MS_API ms_status ms_op_mse_loss(ms_tensor **out, ms_tensor *x, ms_tensor *y, int32_t reduction);
/**
 * softmax(q k^T * scale + mask) v without ever holding the scores (arXiv:2205.14135).
 * @param q  (B, H, T, D), k and v (B, H, S, D); any strides
 * A row of scores that are all -inf is 0 (PyTorch's is NaN).
 * @param scale   finite, in f32 but for f64 (MS_VALUE_ERROR); 0 means 1/sqrt(D)
 * @param causal  position t sees s <= t, whatever S is (as PyTorch's is_causal). What it does not
 *   see may be inf or NaN, in the gradient too; what it sees then may differ in the last place from
 *   the result beside finite ones
 */
MS_API ms_status ms_op_attention(ms_tensor **out, ms_tensor *q, ms_tensor *k, ms_tensor *v,
                                 bool causal, double scale);
/** The same on a packed projection: qkv (B, T, 3 C) holding q, k, v one after another, each split
 * into `heads`; gives (B, T, C). No copies on the way in or out. */
MS_API ms_status ms_op_attention_packed(ms_tensor **out, ms_tensor *qkv, int32_t heads, bool causal,
                                        double scale);
/**
 * Zero elements with probability p, divide the rest by 1 - p.
 * The mask is Philox4x32-10(seed; site, call, sample, element): x is (samples, ...), sample b of it
 * is the context's sample base + b, so the mask does not depend on how samples are dealt to ranks.
 * @param site  key of the place in the model (ms_name_key of its path)
 * @param call  how many times this site ran before in this micro-batch; 0 or more (MS_VALUE_ERROR)
 */
MS_API ms_status ms_op_dropout(ms_tensor **out, ms_tensor *x, double p, uint64_t site,
                               int64_t call);
/** Sum over the dimensions whose bit is set in `dims` (bit d for dimension d; 0: all). Of integers
 * and bool, which counts what is true, in i64, wrapping. */
MS_API ms_status ms_op_sum(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim);
/** MS_TYPE_ERROR for integers. */
MS_API ms_status ms_op_mean(ms_tensor **out, ms_tensor *x, uint32_t dims, bool keepdim);
/** Running sums along dimension `dim`: element j is x[0] + ... + x[j]. Sums of integers and bool
 * are i64, wrapping. MS_INDEX_ERROR when x has no such dimension. */
MS_API ms_status ms_op_cumsum(ms_tensor **out, ms_tensor *x, int32_t dim);
/** View when the strides allow, copy otherwise. One size may be -1. */
MS_API ms_status ms_op_reshape(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *shape);
/** View with sizes of 1 repeated, and with new dimensions before the first; -1 keeps a size.
 * MS_VALUE_ERROR for another size of what is not 1. */
MS_API ms_status ms_op_expand(ms_tensor **out, ms_tensor *x, int32_t ndim, const int64_t *shape);
/** View with dimension i taken from perm[i]. */
MS_API ms_status ms_op_permute(ms_tensor **out, ms_tensor *x, int32_t ndim, const int32_t *perm);
/** View of `length` entries from `start` along `dim`. */
MS_API ms_status ms_op_narrow(ms_tensor **out, ms_tensor *x, int32_t dim, int64_t start,
                              int64_t length);
/** View of entry `index` along `dim`, without that dimension. MS_INDEX_ERROR when there is none. */
MS_API ms_status ms_op_select(ms_tensor **out, ms_tensor *x, int32_t dim, int64_t index);
/** A copy with the entries in reverse order along the dimensions whose bit is set in `dims`. */
MS_API ms_status ms_op_flip(ms_tensor **out, ms_tensor *x, uint32_t dims);
/** Concatenate along `dim`. */
MS_API ms_status ms_op_cat(ms_tensor **out, ms_tensor *const *tensors, int32_t n_tensors,
                           int32_t dim);
/** To another dtype (the same handle's values; always a copy unless the dtype is equal).
 * To a floating dtype numbers round to nearest even, to bf16 and f16 through f32; what is too large
 * becomes infinite. A floating number becomes an i64 by truncation, NaN becomes 0, and what lies
 * beyond (infinities too) the nearest i64. i32 and u8 take the low 32 and 8 bits of the i64. bool
 * is "not 0", NaN is true. The same everywhere: in copies, fills, and where numbers meet integer
 * tensors. */
MS_API ms_status ms_op_cast(ms_tensor **out, ms_tensor *x, int32_t dtype);
/** A C-contiguous copy (always a copy). */
MS_API ms_status ms_op_clone(ms_tensor **out, ms_tensor *x);

#ifdef __cplusplus
}
#endif

#endif
