/* Arguments of kernels: raw pointers, sizes, strides in elements. No device headers: kernels of
 * every device and the matrix plug-in include this file.
 *
 * A kernel never checks shapes or knows tensors, ranks or shards. None allocates or fails except
 * attention, whose tiles use msi_gemm(): it gets the context and a status pointer. Sizes may be 0.
 * `accumulate` adds to the destination instead of storing. Results depend only on the arguments'
 * values and sizes, not on alignment, and for own loops not on the instruction set (16 fixed lanes;
 * -ffp-contract=off); library products do depend on it. Narrow dtypes (bf16, f16) compute in f32
 * and round to nearest even once.
 *
 * "dtype" fields are MS_DTYPE_*. Kernels are looked up by (name, dtype); each struct states which
 * dtype that is. */
#ifndef MSI_KERNEL_ARGS_H
#define MSI_KERNEL_ARGS_H

#include "moonshard/base.h"

enum { MSI_LOOP_DIMS = 8 };

/** Invalid data found by a kernel: an index outside [0, end), or a failed product on a device. The
 * first one is kept until the host reports it after the kernels have run. */
typedef struct msi_fault {
    int64_t found;                   /**< 0: nothing */
    int64_t kernel;                  /**< MSI_K_* that found it; MSI_K_gemm: product failed */
    int64_t status;                  /**< its error */
    int64_t index, position, n, end; /**< indices[position] of n */
} msi_fault;

/** Nested loops with one stride per operand and dimension. ndim 0 means one element. */
typedef struct msi_loop {
    int32_t ndim;
    int64_t shape[MSI_LOOP_DIMS];
    int64_t stride[4][MSI_LOOP_DIMS]; /**< [0] destination, [1..] sources; 0 broadcasts */
} msi_loop;

/** Elementwise kernels: out = f(in[0], in[1], in[2]; scalar). Looked up by the dtype of `out`,
 * which inputs share. Exceptions:
 *
 * | copy, comparisons  | in_dtype                      |
 * | in[0] of where     | bool                          |
 * | in[2] of mse_grad  | f32 (f64 for f64)             |
 * | in[1] of scale     | f64                           |
 *
 * Neighbouring dimensions are merged where possible, so contiguous operands have ndim <= 1. */
typedef struct msi_ew_args {
    msi_loop loop;
    void *out;
    const void *in[3];
    int32_t in_dtype;
    bool accumulate;
    double scalar[2];
} msi_ew_args;

/** out[kept] = scale * sum over reduced of in. Looked up by the dtype of `in`. Each kept element
 * adds its reduced elements in a fixed order that depends on the loops' shapes only. */
typedef struct msi_sum_args {
    msi_loop kept;    /**< stride[0] of out, stride[1] of in */
    msi_loop reduced; /**< stride[1] of in */
    const void *in;
    void *out;
    int32_t out_dtype; /**< dtype of `in`; f32 if narrow; i64 for integers and bool */
    double scale;
    bool accumulate;
} msi_sum_args;

/** Reductions that are no sums: out[kept] = f(in over reduced). Looked up by the dtype of `in`. A
 * gradient writes `out` (kept, reduced) from `in`, `y` and `g` (kept), all of one dtype. */
typedef struct msi_reduction_args {
    msi_loop kept;    /**< stride[0] of out and index, [1] of in, [2] of y, [3] of g */
    msi_loop reduced; /**< stride[1] of in; gradient: [0] of out */
    const void *in;
    void *out;      /**< of the dtype of `in`; i64 for products of integers and bool */
    int64_t *index; /**< extreme: positions in loop order, from 1, instead of `out`; or NULL */
    bool largest;   /**< extreme: else the smallest */
    const void *y, *g;
    bool accumulate; /**< gradient */
} msi_reduction_args;

/** Row-wise layer norm of x (rows, cols), contiguous. Looked up by the dtype of x. mean and rstd
 * are f32 (f64 for f64), one per row; w and b may be NULL. */
typedef struct msi_layer_norm_args {
    int64_t rows, cols;
    const void *x, *w, *b;
    void *y, *mean, *rstd;
    double eps;
} msi_layer_norm_args;

/** Any of dx, dw, db may be NULL. Rows add to dw and db in ascending order (in fixed blocks). */
typedef struct msi_layer_norm_grad_args {
    int64_t rows, cols;
    const void *dy, *x, *w, *mean, *rstd;
    void *dx, *dw, *db;
    int32_t dw_dtype; /**< of dw and db: dtype of x, or f32 if narrow */
    bool dx_accumulate, dw_accumulate, db_accumulate;
    void *work; /**< msi_work_bytes() of scratch; the CPU's kernel needs none */
} msi_layer_norm_grad_args;

/** Normalisation of x (batch, channels, plane). A set of planes has one mean and variance: with
 * groups = 0 a channel of all samples, else a group of a sample's channels. Looked up by the dtype
 * of x, w, b, y, dy and dx; the rest is f32 (f64 for f64). w and b may be NULL. */
typedef struct msi_channel_norm_args {
    int64_t batch, channels, plane, groups;
    const void *x, *w, *b, *stats; /**< stats (2, sets): means, then biased variances */
    void *y;                       /**< of channel_stats: stats */
    double eps;
    const void *dy;
    void *dx, *dw, *db; /**< may be NULL */
    bool of_input;      /**< the gradient goes through the statistics, which are those of x */
    bool dx_accumulate, dw_accumulate, db_accumulate;
    double *work; /**< of the gradient: 2 numbers per plane */
} msi_channel_norm_args;

/** y = log_softmax(x), or softmax(x), over cols. Looked up by the dtype of x. */
typedef struct msi_softmax_args {
    int64_t rows, cols;
    const void *x, *y, *dy; /**< forward reads x; the gradient reads y and dy */
    void *out;              /**< forward: y; gradient: dx */
    bool accumulate;
} msi_softmax_args;

/** Cross-entropy over logits (rows, cols). Looked up by the dtype of the logits. */
typedef struct msi_cross_entropy_args {
    int64_t rows, cols;
    int64_t pitch; /**< elements from a row of logits and dlogits to the next, at least cols */
    const void *logits;
    const int64_t *targets;
    int64_t ignore_index;
    bool mean;
    void *loss; /**< forward writes one f32 (f64 for f64): the f64 sum over counted rows in row
                   order, for a mean divided by their number; rounded once. `max`, `sum` and
                   `logits` suffice to compute it afterwards. */
    int64_t *n_counted; /**< forward writes; gradient reads it for a mean */
    void *max, *sum;    /**< f32 (f64 for f64) per row: the largest logit m and the sum of
                           exp(logit - m); forward writes, gradient reads */
    const void *dloss;  /**< one f32 (f64 for f64): gradient of the loss */
    void *dlogits;      /**< gradient writes; may be `logits` itself */
    bool accumulate;
    msi_fault *fault; /**< forward records targets out of range; their rows do not count, the loss
                         is NaN */
} msi_cross_entropy_args;

/** -x[i, targets[i]] of x (rows, cols). Looked up by the dtype of x. */
typedef struct msi_nll_args {
    int64_t rows, cols;
    const void *x, *dy; /**< forward reads x; the gradient dy (rows) */
    const int64_t *targets;
    int64_t ignore_index; /**< its rows are 0 and have no gradient */
    void *out;            /**< forward: (rows); gradient: dx */
    bool accumulate;
    msi_fault *fault; /**< forward records targets out of range; their rows are NaN and have no
                         gradient */
} msi_nll_args;

/** Rows of a table. Looked up by the dtype of the table (forward) or of dy (gradient). */
typedef struct msi_embedding_args {
    int64_t n, width, vocab;
    const int64_t *ids;
    const void *table;
    void *out; /**< (n, width) */
    const void *dy;
    void *dtable; /**< (vocab, width): rows add in an order that the ids determine, on the CPU
                     in ascending token order */
    int32_t dtable_dtype; /**< dtype of dy, or f32 if narrow */
    int64_t *work;   /**< scratch of the gradient: msi_work_bytes(), or on the CPU, only if dtable
                        is narrow, (vocab + n): a row is summed in f32 and rounded once */
    bool accumulate; /**< false: dtable is zeroed first */
    msi_fault
        *fault; /**< forward records ids out of range; their rows are NaN and have no gradient */
} msi_embedding_args;

/** gather: out = in at positions along one dimension; scatter: out at positions = in, or += in.
 * Positions count from 1. Looked up by the dtype of `in`. */
typedef struct msi_gather_args {
    msi_loop loop; /**< over the positions: stride[0] of out, [1] of index, [2] of in; 0 along the
                      dimension for the operand that is indexed */
    int64_t size, step; /**< of that dimension: size and stride of that operand */
    const int64_t *index;
    const void *in;
    void *out;        /**< of the dtype of `in`; f32 if narrow elements are added */
    bool add;         /**< scatter: += */
    msi_fault *fault; /**< records positions out of range: gather gives NaN for them, scatter writes
                         nothing. NULL: known to be in range */
} msi_gather_args;

/** Positions, from 1, of the first `take` elements in sorted order, for each line. Looked up by the
 * dtype of `in`. */
typedef struct msi_argsort_args {
    msi_loop lines;                     /**< stride[0] of out, [1] of in */
    int64_t n, take, in_step, out_step; /**< along a line */
    const void *in;
    int64_t *out;
    void *work; /**< 32 n bytes */
    bool descending;
} msi_argsort_args;

/** Scaled dot-product attention, element (b, h, t, d) at b*stride[0] + h*stride[1] + t*stride[2] +
 * d. Looked up by the dtype of q. max and rsum (B, H, T) are f32 (f64 for f64): a query's largest
 * scaled score m, and 1 / sum of exp(score - m), or another pair of which exp(score - max) rsum is
 * the same probability. Causal: query t sees keys s <= t. Tiles use
 * msi_gemm(); `work` has msi_attention_work_bytes().
 * Query head h reads key head h / (heads / kv_heads). A mask broadcasts to (B, H, T, S): its
 * strides are 0 where it repeats, 0 or 1 in S. Dropout zeroes probabilities like msi_dropout_args,
 * element (h T + t) S + s of sample b. */
typedef struct msi_attention_args {
    int64_t batch, heads, kv_heads, q_len, kv_len, head_dim;
    const void *q, *k, *v;
    int64_t q_stride[3], k_stride[3], v_stride[3], o_stride[3];
    double scale;
    bool causal;
    int32_t tile_dtype; /**< of tile products: msi_gemm_operands() of q's dtype */
    const void *mask; /**< NULL; bool, true: attend; or in the dtype of max, added to the scores */
    int64_t mask_stride[4];
    bool mask_is_bool;
    double dropout_p; /**< 0: no dropout, and the next four are not read */
    uint64_t seed, site;
    int64_t call, sample_base;
    void *out;
    void *max, *rsum; /**< forward writes, gradient reads */
    /* gradient; dq, dk, dv have their own strides */
    const void *o, *dout;
    int64_t do_stride[3], dq_stride[3], dk_stride[3], dv_stride[3];
    void *dq, *dk, *dv;
    void *dmask; /**< NULL, or of dmask_numel elements in the dtype of max */
    int64_t dmask_stride[4], dmask_numel;
    void *work;
    struct ms_context *ctx; /**< for msi_gemm() */
    ms_status *status;      /**< first failure of a product (results are invalid); not NULL */
    const char *op;         /**< as in msi_gemm_args */
} msi_attention_args;

/** Queries and keys per tile. Fixed, so results depend on the shape only. */
enum { MSI_ATTENTION_ROWS = 64, MSI_ATTENTION_COLS = 256 };

/** Rotary positions: elements j and j + half of each row are turned by an angle, whose cosine and
 * sine are element j of rows of their own. Elements of a row are dense. Looked up by the dtype of
 * x.
 */
typedef struct msi_rotary_args {
    msi_loop rows; /**< stride[0] of out, [1] of x, [2] of cos, [3] of sin */
    int64_t half;
    const void *x, *cos, *sin;
    void *out;
    bool inverse; /**< turn by the opposite angle */
    bool accumulate;
} msi_rotary_args;

/** Parts of the convolution kernels' scratch. */
enum {
    MSI_CONV_SLAB,
    MSI_CONV_COLS,
    MSI_CONV_BLOCK,
    MSI_CONV_DCOLS,
    MSI_CONV_FILTER,
    MSI_CONV_PARTS
};

/** Convolution (cross-correlation) of x (batch, groups, in_channels, in) with w (groups,
 * out_channels, in_channels, kernel), all contiguous; y and dy are (batch, groups, out_channels,
 * out). Fewer than three spatial dimensions are led by sizes of 1. Looked up by the dtype of x.
 * The gradient adds to dw in order of the boxes. A value of x or w that is not finite may make the
 * gradients of its neighbours NaN. */
typedef struct msi_conv_args {
    int64_t batch, groups, in_channels, out_channels; /**< channels of one group */
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3];
    int64_t pad[3]; /**< in front; behind it follows from `out` */
    const void *x, *w, *bias, *dy;
    void *y;
    void *dx, *dw; /**< f32 (f64 for f64); may be NULL */
    bool dx_accumulate, dw_accumulate;
    int32_t tile_dtype; /**< of operands of products: msi_gemm_operands() of x's dtype */
    /* set by msi_conv_plan() */
    int64_t images, box[3]; /**< positions that are computed together */
    bool wide;              /**< a row of a box has the input's row behind it */
    bool in_place;          /**< x is what a position reads: filters of one tap */
    int64_t work_at[MSI_CONV_PARTS];
    void *work;
    struct ms_context *ctx; /**< for msi_gemm() */
    ms_status *status;      /**< first failure of a product (results are invalid); not NULL */
    const char *op;         /**< as in msi_gemm_args */
} msi_conv_args;

/** Pooling of `planes` planes; fewer than three dimensions are led by sizes of 1. Looked up by the
 * dtype of x (forward) or of dy. */
typedef struct msi_pool_args {
    int64_t planes;
    int64_t in[3], out[3], kernel[3], stride[3], pad[3], dilation[3];
    bool adaptive;  /**< window o of n spans [floor(o in / n), ceil((o + 1) in / n)) */
    bool count_pad; /**< an average counts the zeros of the padding */
    double divisor; /**< of averages; 0: the number of elements */
    const void *x, *dy;
    void *y;
    int32_t *taps; /**< of a maximum: the tap of its window it came from, the first of equals, or -1
                      (-inf) if all are in the padding; NaN is larger than all numbers. Forward
                      writes, gradient reads */
    void *dx;      /**< f32 (f64 for f64) */
    bool accumulate;
} msi_pool_args;

/** Dropout of x, contiguous, `samples` rows of `per_sample` elements. Looked up by the dtype of x.
 * Element e of sample b uses word e % 4 of Philox4x32-10 with counter {e / 4 (64 bit), sample
 * base + b (64 bit)} and key derived from (seed, site, call); it is zeroed when word < p * 2^32.
 * The gradient is the same kernel on dy. */
typedef struct msi_dropout_args {
    int64_t samples, per_sample;
    const void *x;
    void *out;
    double p;
    uint64_t seed, site;
    int64_t call, sample_base;
    bool accumulate;
} msi_dropout_args;

/** Elements [first, first + n) of a parameter's initial values. Looked up by the dtype of `out`.
 * Normal values are Box-Muller pairs from the Philox words of the element, computed in f64. */
typedef struct msi_init_args {
    int64_t first, n;
    void *out;
    int32_t kind; /**< MS_INIT_* */
    double a, b;
    uint64_t seed, key;
} msi_init_args;

/** The most parameters that a device's optimizer kernel updates at a time. */
enum { MSI_RUN_ALL = 24 };

/** SGD over n elements. Looked up by the dtype of p (floating); all buffers have it. */
typedef struct msi_sgd_args {
    int64_t n;
    void *p;
    const void *g;
    void *buf; /**< momentum buffer or NULL */
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize, first_step;
} msi_sgd_args;

/** Adam and variants, by the rules of kernels/cpu/adam_body.h. Looked up by the dtype of p. */
typedef struct msi_adam_args {
    int64_t n;
    void *p;
    const void *g;
    void *m, *v;
    double lr, beta1, beta2, eps, weight_decay;
    double correction1, correction2; /**< 1 - beta^step */
    bool decoupled, maximize;
    void *most; /**< NULL: of a variant without it */
} msi_adam_args;

/** RMSprop over n elements. Looked up by the dtype of p. */
typedef struct msi_rmsprop_args {
    int64_t n;
    void *p;
    const void *g;
    void *v;          /**< average of squares */
    void *mean, *buf; /**< centered: average of gradients, or NULL; momentum buffer, or NULL */
    double lr, alpha, eps, weight_decay, momentum;
    bool maximize;
} msi_rmsprop_args;

/** Adagrad over n elements. Looked up by the dtype of p. */
typedef struct msi_adagrad_args {
    int64_t n;
    void *p;
    const void *g;
    void *sum;
    double lr, eps, weight_decay; /**< lr after its decay */
    bool maximize;
} msi_adagrad_args;

/** Lion over n elements. Looked up by the dtype of p. */
typedef struct msi_lion_args {
    int64_t n;
    void *p;
    const void *g;
    void *m;
    double lr, beta1, beta2, weight_decay;
    bool maximize;
} msi_lion_args;

/** Elements of a block of a norm. */
enum { MSI_NORM_BLOCK = 4096 };

/** Per block of `block` elements (the last shorter): the sum in f64 of |x|^order (0: of elements
 * that are not 0), or for HUGE_VAL the largest magnitude. Looked up by the dtype of x. NaN
 * propagates, except with order 0. Sums add in the CPU kernel's order on every device. */
typedef struct msi_norm_args {
    int64_t n, block;
    const void *x;
    double *out;
    double order;
} msi_norm_args;

/** Elements in[from, from + n), a part of a block. */
typedef struct msi_norm_piece {
    int64_t from, n;
} msi_norm_piece;

/** out[k] = the same of `n` blocks of at most MSI_NORM_BLOCK elements that are in pieces, in order:
 * block k has pieces [first[k], first[k + 1]). Looked up by the dtype of `in`. */
typedef struct msi_norm_cut_args {
    int64_t n;
    const int64_t *first; /**< (n + 1) */
    const msi_norm_piece *pieces;
    const void *in;
    double *out;
    double order;
} msi_norm_cut_args;

/** The norm of block results, folded in order, and the factor that clips gradients to max_norm, by
 * norm_fold.h. Looked up as f64. */
typedef struct msi_norm_fold_args {
    int64_t n;
    const double *blocks;
    double order;
    double max_norm;
    double *norm, *coefficient;
} msi_norm_fold_args;

/** An operand of a tree. */
typedef struct msi_tree_source {
    const void *data;
    int32_t dtype;
} msi_tree_source;

/** MS_REDUCE_*, without the average. */
enum { MSI_TREE_SUM = 0, MSI_TREE_MAX = 2, MSI_TREE_MIN = 3 };

/** out[i] = round(factor * tree(src[0][i], src[1][i], ...)). The tree merges as a binary counter:
 * neighbours first, leftovers folded from the smallest. Nodes are f32 (f64 for f64), or with
 * `mixed` the other of the two. Rounds once, to `round_dtype`, then converts to the dtype of out.
 * Looked up by the dtype of `out` (floating; i64 and i32, which wrap and need a whole factor). Used
 * by collectives and gradient accumulation. */
typedef struct msi_tree_args {
    int64_t n;
    int32_t n_src;
    const msi_tree_source *src; /**< (n_src), copied for later runs */
    void *out;                  /**< may be one of the sources */
    int32_t round_dtype;
    double factor;
    int32_t reduce; /**< MSI_TREE_*: max and min ignore factor */
    bool accumulate;
    bool mixed; /**< sums alone: nodes are f32 for an f64 result, f64 for any other */
} msi_tree_args;

/** C (M, N) = A (M, K) B (K, N) [+ C] [+ bias], batched. A and B are row- or column-major: one of
 * their strides is 1 (both if a size is 1). C is row-major. */
typedef struct msi_gemm_args {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t a_row, a_col, b_row, b_col, c_row;
    int64_t batch;                     /**< 1 if not batched */
    int64_t a_batch, b_batch, c_batch; /**< strides between matrices */
    int32_t dtype;                     /**< of a and b: floating */
    int32_t c_dtype;                   /**< dtype, or f32 if that is narrow */
    const void *bias;                  /**< (N) of dtype `dtype`, or NULL */
    bool accumulate;
    bool gelu;    /**< C = gelu_tanh of that sum. This and the next two only if msi_gemm_fuses() and
                     for one matrix; gelu does not accumulate */
    void *before; /**< NULL; or with gelu (M, N) like C: the sum itself */
    void *a_sum;  /**< NULL; or (M) of dtype c_dtype: the sums of A's rows, stored */
    bool is_gradient; /**< a product of op's backward */
    const char *op;   /**< caller, for late errors; static, or NULL */
    void *work;       /**< on a device: work_bytes() of scratch, set by msi_gemm() */
} msi_gemm_args;

#endif
