/* Attention of bf16 and f16 by cuDNN's fused engines: operation graphs that the library recognizes,
 * each planned once per shape. Engines whose sums do not repeat are not used. The rest, and what
 * the library refuses, is computed by own kernels (attention.cu), from the same statistics. */
#include "cudnn_graph.h"

#ifdef CUDA_HAS_CUDNN
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORK_BYTES = 256 << 20, /* of a slice that can be cut */
    MAX_DEPTH = 128,
    /* Of queries and keys. Generation has a shape for each token, and each shape costs a plan. */
    LENGTHS = 64,
    ALIGNMENT = 16
};

/* Tensors of the graphs: shape, type, strides (those of an operand; 0: row-major), whether the last
 * two dimensions are exchanged. V is so in the gradient. */
#define TENSORS(X)                                                                                 \
    X(Q, QUERIES, NARROW, Q, false) /* operands */                                                 \
    X(K, KEYS, NARROW, K, true)                                                                    \
    X(V, KEYS, NARROW, V, false)                                                                   \
    X(O, QUERIES, NARROW, O, false)                                                                \
    X(STATS, COLUMN, FLOAT, 0, false)                                                              \
    X(DO, QUERIES, NARROW, DO, false)                                                              \
    X(DQ, QUERIES, NARROW, DQ, false)                                                              \
    X(DK, KEYS, NARROW, DK, false)                                                                 \
    X(DV, KEYS, NARROW, DV, false)                                                                 \
    X(SUM, COLUMN, FLOAT, 0, false)   /* in work space */                                          \
    X(SCALE, SINGLE, FLOAT, 0, false) /* numbers of the host */                                    \
    X(HIDDEN, SINGLE, FLOAT, 0, false)                                                             \
    X(ONE, SINGLE, FLOAT, 0, false)                                                                \
    X(ROW, SCORES, INT32, 0, false) /* intermediate results */                                     \
    X(COL, SCORES, INT32, 0, false)                                                                \
    X(SEEN, SCORES, BOOLEAN, 0, false)                                                             \
    X(MOST, COLUMN, FLOAT, 0, false)                                                               \
    X(TOTAL, COLUMN, FLOAT, 0, false)                                                              \
    X(LOG, COLUMN, FLOAT, 0, false)                                                                \
    X(P, SCORES, NARROW, 0, false)                                                                 \
    X(O_DO, QUERIES, FLOAT, DO, false)                                                             \
    X(O_DO_SUM, COLUMN, FLOAT, 0, false)                                                           \
    X(P_T, SCORES, NARROW, 0, true)                                                                \
    X(DV_EACH, KEYS_EACH, NARROW, 0, false)                                                        \
    X(DS_T, SCORES, NARROW, 0, true)                                                               \
    X(DK_EACH, KEYS_EACH, NARROW, 0, false)                                                        \
    X(K_BACK, KEYS, NARROW, K, false)

/* Intermediate results: scores in f32. */
#define PLAIN(X) X(S) X(SCALED) X(Z) X(MASKED) X(BELOW) X(E) X(DP) X(DP_SUM) X(DP_P) X(DS)

#define ID(id, ...) id,
enum { NO_TENSOR, TENSORS(ID) PLAIN(ID) N_TENSORS, WITH_DATA = ONE + 1 /* the first ones */ };

/* What a plan is made for. Compared by bytes: zeroed first. */
typedef struct shape {
    int64_t batch, heads, kv_heads, q_len, kv_len, depth;
    int64_t stride[DV + 1][3]; /* of operands without STATS */
    int32_t dtype;
    bool causal, gradient;
} shape;
_Static_assert(offsetof(shape, stride) == offsetof(msi_attention_args, q), "sizes are copied");

typedef struct attention_plan plan;

/* Slices of the operands, by batch entry and key head, are computed one after another. */
struct attention_plan {
    plan *next;
    shape of, slice;
    dnn_graph graph; /* of a slice */
};

void cuda_attention_close(cuda_cudnn *c)
{
    for (plan *p = c->attentions, *next; p != NULL; p = next) {
        next = p->next;
        dnn_destroy(&p->graph);
        free(p);
    }
}

/* -- graphs ------------------------------------------------------------------------------------ */

typedef enum form { SCORES, QUERIES, KEYS, KEYS_EACH, COLUMN, SINGLE } form;

enum { CUDNN_DATA_NARROW = 255 /* of the operands */ };

#define ROW_OF(id, form, type, strides, swapped) [id] = {form, CUDNN_DATA_##type, strides, swapped},
static const struct {
    form form;
    int32_t type, strides;
    bool swapped;
} tensors[N_TENSORS] = {TENSORS(ROW_OF)};

static dnn_tensor described(const shape *s, int32_t id)
{
    const int64_t sizes[][4] = {[QUERIES] = {s->batch, s->heads, s->q_len, s->depth},
                                [KEYS] = {s->batch, s->kv_heads, s->kv_len, s->depth},
                                [KEYS_EACH] = {s->batch, s->heads, s->kv_len, s->depth},
                                [SCORES] = {s->batch, s->heads, s->q_len, s->kv_len},
                                [COLUMN] = {s->batch, s->heads, s->q_len, 1},
                                [SINGLE] = {1, 1, 1, 1}};
    const int64_t *size = sizes[tensors[id].form], *given = s->stride[tensors[id].strides];
    const int64_t row_major[] = {size[1] * size[2] * size[3], size[2] * size[3], size[3]};
    const int64_t *stride = tensors[id].strides != 0 ? given : row_major;
    const bool swap = tensors[id].swapped || (id == V && s->gradient);

    return (dnn_tensor){
        .kind = id < SCALE       ? DNN_MEMORY
                : id < WITH_DATA ? DNN_NUMBER
                                 : DNN_VIRTUAL,
        .type = tensors[id].type != CUDNN_DATA_NARROW ? (cudnnDataType_t)tensors[id].type
                : s->dtype == MS_DTYPE_BF16           ? CUDNN_DATA_BFLOAT16
                                                      : CUDNN_DATA_HALF,
        .alignment = id == STATS ? 4 : ALIGNMENT, /* slices of STATS are not aligned */
        .size = {size[0], size[1], size[swap ? 3 : 2], size[swap ? 2 : 3]},
        .stride = {stride[0], stride[1], swap ? 1 : stride[2], swap ? stride[2] : 1}};
}

/* Scores of keys behind the query become -inf. Returns MASKED, or Z without a mask. */
static int32_t mask(dnn_graph *g, const shape *s)
{
    if (!s->causal) {
        return Z;
    }
    dnn_add(g, DNN_ROW, ROW, Z, 0, 0);
    dnn_add(g, DNN_COL, COL, Z, 0, 0);
    dnn_add(g, DNN_GE, SEEN, ROW, COL, 0);
    dnn_add(g, DNN_SELECT, MASKED, Z, HIDDEN, SEEN);
    return MASKED;
}

/* s = scale q k^T; p = softmax(s); o = p v. STATS: log of the sum of exp(s). */
static void describe_forward(dnn_graph *g, const shape *s)
{
    dnn_add(g, DNN_MATMUL, S, Q, K, 0);
    dnn_add(g, DNN_MUL, Z, S, SCALE, 0);
    const int32_t masked = mask(g, s);

    dnn_add(g, DNN_MAX, MOST, masked, 0, 0);
    dnn_add(g, DNN_SUB, BELOW, masked, MOST, 0);
    dnn_add(g, DNN_EXP, E, BELOW, 0, 0);
    dnn_add(g, DNN_SUM, TOTAL, E, 0, 0);
    dnn_add(g, DNN_LOG, LOG, TOTAL, 0, 0);
    dnn_add(g, DNN_ADD, STATS, MOST, LOG, 0);
    dnn_add(g, DNN_DIV, P, E, TOTAL, 0);
    dnn_add(g, DNN_MATMUL, O, P, V, 0);
}

/* `to` = x y, summed over the query heads of each key head. */
static void matmul_of_keys(dnn_graph *g, const shape *s, int32_t to, int32_t each, int32_t x,
                           int32_t y)
{
    const bool grouped = s->heads > s->kv_heads;

    dnn_add(g, DNN_MATMUL, grouped ? each : to, x, y, 0);
    if (grouped) {
        dnn_add(g, DNN_SUM, to, each, 0, 0);
    }
}

/* p = exp(s - STATS); dv = p^T do; ds = scale p (do v^T - sum of o do); dk = ds^T q; dq = ds k.
 * The product writes dq itself. If an f32 tensor accumulated dq, sums would differ from run to run;
 * the library does not mark engines for that as nondeterministic. */
static void describe_gradient(dnn_graph *g, const shape *s)
{
    dnn_add(g, DNN_MUL, O_DO, DO, O, 0);
    dnn_add(g, DNN_SUM, O_DO_SUM, O_DO, 0, 0);
    dnn_add(g, DNN_MUL, SUM, O_DO_SUM, ONE, 0);
    dnn_add(g, DNN_MATMUL, S, Q, K, 0);
    dnn_add(g, DNN_MUL, SCALED, S, SCALE, 0);
    dnn_add(g, DNN_SUB, Z, SCALED, STATS, 0);
    dnn_add(g, DNN_EXP, E, mask(g, s), 0, 0);
    dnn_add(g, DNN_TRANSPOSE, P_T, E, 0, 0);
    matmul_of_keys(g, s, DV, DV_EACH, P_T, DO);
    dnn_add(g, DNN_MATMUL, DP, DO, V, 0);
    dnn_add(g, DNN_SUB, DP_SUM, DP, SUM, 0);
    dnn_add(g, DNN_MUL, DP_P, DP_SUM, E, 0);
    dnn_add(g, DNN_MUL, DS, DP_P, SCALE, 0);
    dnn_add(g, DNN_TRANSPOSE, DS_T, DS, 0, 0);
    matmul_of_keys(g, s, DK, DK_EACH, DS_T, Q);
    dnn_add(g, DNN_TRANSPOSE, K_BACK, K, 0, 0);
    dnn_add(g, DNN_MATMUL, DQ, DS, K_BACK, 0);
}

/* -- planning ---------------------------------------------------------------------------------- */

/* Plan slices of shape `s`. */
static void make_plan(const cuda_cudnn *c, plan *p, const shape *s)
{
    dnn_tensor all[N_TENSORS];

    for (int32_t id = 0; id < N_TENSORS; id++) {
        all[id] = described(s, id);
    }
    dnn_destroy(&p->graph);
    p->graph = (dnn_graph){.c = c, .described = all};
    p->slice = *s;
    (s->gradient ? describe_gradient : describe_forward)(&p->graph, s);
    dnn_plan(&p->graph);
}

static int64_t largest_divisor(int64_t n, int64_t most)
{
    while (n % most != 0) {
        most--;
    }
    return most;
}

/* Plan slices of at most WORK_BYTES, which grow with batch and heads. */
static void cut(const cuda_cudnn *c, plan *p)
{
    const int64_t heads = p->of.kv_heads;
    const int64_t part = p->of.batch * heads * WORK_BYTES / p->graph.work_bytes; /* key heads */
    shape s = p->of;

    s.batch = largest_divisor(s.batch, part > heads ? part / heads : 1);
    s.kv_heads = largest_divisor(heads, part >= heads ? heads : part > 0 ? part : 1);
    s.heads = s.heads / heads * s.kv_heads;
    make_plan(c, p, &s);
}

/* By tensor; NULL: not of this direction. */
typedef struct operands {
    const void *data[DV + 1];
    const int64_t *stride[DV + 1];
} operands;

static operands operands_of(const msi_attention_args *a, bool gradient)
{
    return gradient
               ? (operands){{NULL, a->q, a->k, a->v, a->o, a->max, a->dout, a->dq, a->dk, a->dv},
                            {NULL, a->q_stride, a->k_stride, a->v_stride, a->o_stride, NULL,
                             a->do_stride, a->dq_stride, a->dk_stride, a->dv_stride}}
               : (operands){{NULL, a->q, a->k, a->v, a->out, a->max},
                            {NULL, a->q_stride, a->k_stride, a->v_stride, a->o_stride}};
}

/* A compiled program keeps the work space that it was recorded with, so plans do not depend on
 * addresses. */
static bool are_aligned(const operands *x)
{
    bool aligned = true;

    for (int32_t i = 0; i <= DV; i++) {
        aligned = aligned && (i == STATS || (uintptr_t)x->data[i] % ALIGNMENT == 0);
    }
    return aligned;
}

static bool takes(const msi_attention_args *a, int32_t dtype, const operands *x)
{
    bool fits = true;

    for (int32_t i = 0; i <= DV; i++) {
        for (int32_t d = 0; d < 3 && x->stride[i] != NULL; d++) {
            fits = fits && x->stride[i][d] > 0 && x->stride[i][d] % 8 == 0;
        }
    }
    return fits && (dtype == MS_DTYPE_BF16 || dtype == MS_DTYPE_F16) && a->mask == NULL &&
           !(a->dropout_p > 0) && a->head_dim % 8 == 0 && a->head_dim <= MAX_DEPTH &&
           a->q_len % LENGTHS == 0 && a->kv_len % LENGTHS == 0 &&
           a->batch * a->heads * a->q_len * a->kv_len * a->head_dim > 0;
}

/* On stderr, once a shape: the own kernel is slower. */
static void report_refusal(const shape *s)
{
    fprintf(stderr,
            "moonshard: cuDNN refuses %s%sattention of %s (batch %lld, %lld heads, %lld key heads, "
            "%lld queries, %lld keys, head dimension %lld); the plug-in's own kernel computes it\n",
            s->gradient ? "the gradient of " : "", s->causal ? "causal " : "",
            cuda_dtype_names[s->dtype], (long long)s->batch, (long long)s->heads,
            (long long)s->kv_heads, (long long)s->q_len, (long long)s->kv_len, (long long)s->depth);
}

/* NULL: not by cuDNN. */
static plan *plan_of(cuda_cudnn *c, const msi_attention_args *a, int32_t dtype, bool gradient)
{
    const operands x = operands_of(a, gradient);
    shape s;
    plan *p;

    if (!takes(a, dtype, &x)) {
        return NULL;
    }
    memset(&s, 0, sizeof(s));
    memcpy(&s, a, offsetof(shape, stride));
    for (int32_t i = 0; i <= DV; i++) {
        if (x.stride[i] != NULL) {
            memcpy(s.stride[i], x.stride[i], sizeof(s.stride[i]));
        }
    }
    s.dtype = dtype;
    s.causal = a->causal;
    s.gradient = gradient;
    for (p = c->attentions; p != NULL && memcmp(&p->of, &s, sizeof(s)) != 0; p = p->next) {
    }
    if (p == NULL && (p = calloc(1, sizeof(*p))) != NULL) {
        memcpy(&p->of, &s, sizeof(s));
        make_plan(c, p, &s);
        if (p->graph.plan != NULL && p->graph.work_bytes > WORK_BYTES) {
            cut(c, p);
        }
        if (p->graph.plan == NULL) {
            report_refusal(&s);
        }
        p->next = c->attentions;
        c->attentions = p;
    }
    return p != NULL && p->graph.plan != NULL ? p : NULL;
}

/* The gradient reads the forward's statistics as the library writes them. */
static plan *usable_plan(cuda_cudnn *c, const msi_attention_args *a, int32_t dtype, bool gradient)
{
    msi_attention_args forward = *a;

    forward.out = (void *)a->o;
    return gradient && plan_of(c, &forward, dtype, false) == NULL ? NULL
                                                                  : plan_of(c, a, dtype, gradient);
}

/* -- running ----------------------------------------------------------------------------------- */

static int64_t rounded_up(int64_t n)
{
    return (n + 255) / 256 * 256;
}

/* Of SUM, in front of the library's work space. */
static int64_t sum_bytes(const plan *p)
{
    const shape *s = &p->slice;

    return s->gradient ? rounded_up(s->batch * s->heads * s->q_len * 4) : 0;
}

int64_t cuda_attention_bytes(cuda_cudnn *c, const msi_attention_args *a, int32_t dtype,
                             bool gradient)
{
    const plan *p = usable_plan(c, a, dtype, gradient);

    return p != NULL ? 256 + sum_bytes(p) + p->graph.work_bytes : 0;
}

/* Enqueue the slice that begins at batch entry `entry` and key head `head`. */
static bool run_slice(const plan *p, const msi_attention_args *a, int64_t entry, int64_t head)
{
    const shape *s = &p->of;
    const operands x = operands_of(a, s->gradient);
    const int64_t first = head * (s->heads / s->kv_heads); /* query head */
    const float scale = (float)a->scale, hidden = -INFINITY, one = 1;
    const char *work = (const char *)rounded_up((int64_t)a->work);
    const void *data[WITH_DATA] = {[SCALE] = &scale};

    data[SUM] = s->gradient ? work : NULL;
    data[ONE] = s->gradient ? &one : NULL;
    data[HIDDEN] = s->causal ? &hidden : NULL;
    for (int32_t i = Q; i <= DV; i++) {
        const int64_t head_of = tensors[i].form == KEYS ? head : first, *stride = x.stride[i];

        if (x.data[i] != NULL) {
            data[i] = (const char *)x.data[i] +
                      (i == STATS ? 4 * (entry * s->heads + first) * s->q_len
                                  : 2 * (entry * stride[0] + head_of * stride[1]));
        }
    }
    return dnn_run(&p->graph, WITH_DATA, data, work + sum_bytes(p));
}

/* Own kernels multiply by 1 / sum: the library's statistic includes it. */
static cudaError_t fill_ones(cudaStream_t stream, const msi_attention_args *a)
{
    const msi_ew_args args = {
        .loop = {.ndim = 1, .shape = {a->batch * a->heads * a->q_len}, .stride = {{1}}},
        .out = a->rsum,
        .scalar = {1}};

    return cuda_kernels[MSI_K_fill][MS_DTYPE_F32](stream, &args);
}

cudaError_t cuda_attention_run(cuda_cudnn *c, cudaStream_t stream, const msi_attention_args *a,
                               int32_t dtype, bool gradient)
{
    const operands x = operands_of(a, gradient);
    plan *p = are_aligned(&x) ? usable_plan(c, a, dtype, gradient) : NULL;

    if (p == NULL) {
        return cudaErrorNotSupported;
    }
    for (int64_t entry = 0; entry < a->batch; entry += p->slice.batch) {
        for (int64_t head = 0; head < a->kv_heads; head += p->slice.kv_heads) {
            if (!run_slice(p, a, entry, head)) {
                p->graph.plan = NULL;
                report_refusal(&p->of);
                return cudaErrorNotSupported;
            }
        }
    }
    return gradient ? cudaSuccess : fill_ones(stream, a);
}

#endif
