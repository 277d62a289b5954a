/* Attention of bf16 and f16 by cuDNN's fused engines: operation graphs that the library recognizes,
 * each planned once per shape. Engines whose sums do not repeat are not used. The rest, and what
 * the library refuses, is computed by own kernels (attention.cu), from the same statistics. */
#include "cuda_device.h"

#if defined(MS_CUDASIM) || __has_include(<cudnn.h>)
#include <cudnn.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS(X)                                                                                   \
    X(cudnnGetVersion)                                                                             \
    X(cudnnSetStream)                                                                              \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendExecute)

/* Attributes that the library needs up to 9.7; later headers deprecate their names. */
static const cudnnBackendAttributeName_t graph_handle = 800, plan_handle = 400;

enum {
    VERSION = 91000,        /* the least */
    WORK_BYTES = 256 << 20, /* of a slice that can be cut */
    MAX_DEPTH = 128,
    ALIGNMENT = 16,
    DESCRIPTORS = 128,
    OPERATIONS = 32,
    CONFIGS = 8
};

/* Tensors with memory; ids of others follow. The last three are numbers of the host. */
enum { Q, K, V, O, STATS, DO, DQ, DK, DV, SUM, SCALE, HIDDEN, ONE, TENSORS };

/* What a plan is made for. Compared by bytes: zeroed first. */
typedef struct shape {
    int64_t batch, heads, kv_heads, q_len, kv_len, depth;
    int64_t stride[DV + 1][3]; /* of Q to DV, without STATS */
    int32_t dtype;
    bool causal, gradient;
} shape;
_Static_assert(offsetof(shape, stride) == offsetof(msi_attention_args, q), "sizes are copied");

typedef struct plan plan;

struct cuda_attention {
    CALLS(CUDA_POINTER)
    cudnnHandle_t handle; /* of convolutions; NULL: not by cuDNN */
    plan *plans;
};

/* -- opening ----------------------------------------------------------------------------------- */

static bool find_calls(cuda_attention *c)
{
    char error[MSI_DEVICE_ERROR];
    void *library = cuda_open_library((const char *const[]){"libcudnn.so.9", NULL}, error);
    bool found = library != NULL;

#define FIND(name) found = found && CUDA_FIND(c, library, name, error);
    CALLS(FIND)
    return found;
}

/* NULL: no memory. */
static cuda_attention *opened(cuda_attention **attention, cuda_conv **conv)
{
    const char *enabled = getenv("MS_CUDNN_ATTENTION");
    cuda_attention *c = *attention;

    if (c == NULL && (c = *attention = calloc(1, sizeof(*c))) != NULL &&
        (enabled == NULL || strcmp(enabled, "0") != 0) && find_calls(c) &&
        c->cudnnGetVersion() >= VERSION) {
        c->handle = cuda_conv_handle(conv);
    }
    return c;
}

/* -- descriptors ------------------------------------------------------------------------------- */

typedef cudnnBackendDescriptor_t descriptor;

/* Owns the descriptors that were made with it. After a failure every call does nothing. */
typedef struct builder {
    const cuda_attention *c;
    cudnnDataType_t type; /* of operands */
    shape of;
    descriptor all[DESCRIPTORS], operations[OPERATIONS];
    int32_t n, n_operations;
    int64_t n_tensors;
    bool ok;
} builder;

/* Slices of the operands, by batch entry and key head, are computed one after another. */
struct plan {
    plan *next;
    shape of;
    builder slice;
    int64_t work_bytes; /* of the library, for a slice */
    descriptor engine;  /* an execution plan; NULL: refused */
};

/* NULL after a failure. */
static descriptor made(builder *b, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;

    b->ok = b->ok && b->n < DESCRIPTORS &&
            b->c->cudnnBackendCreateDescriptor(type, &d) == CUDNN_STATUS_SUCCESS;
    if (b->ok) {
        b->all[b->n++] = d;
    }
    return d;
}

static void set(builder *b, descriptor d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    b->ok =
        b->ok && b->c->cudnnBackendSetAttribute(d, name, type, n, values) == CUDNN_STATUS_SUCCESS;
}

static void set_descriptor(builder *b, descriptor d, cudnnBackendAttributeName_t name, descriptor x)
{
    set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
}

static void set_type(builder *b, descriptor d, cudnnBackendAttributeName_t name,
                     cudnnDataType_t type)
{
    set(b, d, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static void finalize(builder *b, descriptor d)
{
    b->ok = b->ok && b->c->cudnnBackendFinalize(d) == CUDNN_STATUS_SUCCESS;
}

static void destroy_all(builder *b)
{
    while (b->n > 0) {
        (void)b->c->cudnnBackendDestroyDescriptor(b->all[--b->n]);
    }
}

void cuda_attention_close(cuda_attention *c)
{
    for (plan *p = c != NULL ? c->plans : NULL, *next; p != NULL; p = next) {
        next = p->next;
        destroy_all(&p->slice);
        free(p);
    }
    free(c);
}

/* -- tensors ----------------------------------------------------------------------------------- */

typedef struct tensor {
    descriptor desc;
    int64_t size[4], stride[4];
} tensor;

typedef enum memory { MEMORY, VIRTUAL, NUMBER } memory;

static tensor described(builder *b, int64_t id, memory where, cudnnDataType_t type, tensor t)
{
    const int64_t alignment = id == STATS ? 4 : ALIGNMENT; /* slices of STATS are not aligned */
    const bool yes = true;

    t.desc = made(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_type(b, t.desc, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set(b, t.desc, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t.size);
    set(b, t.desc, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t.stride);
    set(b, t.desc, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(b, t.desc, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (where != MEMORY) {
        set(b, t.desc,
            where == VIRTUAL ? CUDNN_ATTR_TENSOR_IS_VIRTUAL : CUDNN_ATTR_TENSOR_IS_BY_VALUE,
            CUDNN_TYPE_BOOLEAN, 1, &yes);
    }
    finalize(b, t.desc);
    return t;
}

static tensor transposed(tensor t)
{
    return (tensor){.size = {t.size[0], t.size[1], t.size[3], t.size[2]},
                    .stride = {t.stride[0], t.stride[1], t.stride[3], t.stride[2]}};
}

static tensor packed(int64_t batch, int64_t heads, int64_t rows, int64_t cols)
{
    return (tensor){.size = {batch, heads, rows, cols},
                    .stride = {heads * rows * cols, rows * cols, cols, 1}};
}

/* (B, H, rows, D) with the caller's strides. */
static tensor strided(const builder *b, int32_t id)
{
    const shape *s = &b->of;
    const bool of_keys = id == K || id == V || id == DK || id == DV;
    const int64_t *stride = s->stride[id];

    return (tensor){.size = {s->batch, of_keys ? s->kv_heads : s->heads,
                             of_keys ? s->kv_len : s->q_len, s->depth},
                    .stride = {stride[0], stride[1], stride[2], 1}};
}

static tensor operand(builder *b, int32_t id)
{
    return described(b, id, MEMORY, b->type, strided(b, id));
}

static tensor operand_transposed(builder *b, int32_t id)
{
    return described(b, id, MEMORY, b->type, transposed(strided(b, id)));
}

/* f32, one number a query. */
static tensor statistic(builder *b, int32_t id)
{
    return described(b, id, MEMORY, CUDNN_DATA_FLOAT,
                     packed(b->of.batch, b->of.heads, b->of.q_len, 1));
}

static tensor number(builder *b, int32_t id)
{
    return described(b, id, NUMBER, CUDNN_DATA_FLOAT, packed(1, 1, 1, 1));
}

/* An intermediate result of the shape of `like`. */
static tensor between(builder *b, cudnnDataType_t type, tensor like)
{
    return described(b, b->n_tensors++, VIRTUAL, type, like);
}

static tensor scores(builder *b, cudnnDataType_t type)
{
    const shape *s = &b->of;

    return between(b, type, packed(s->batch, s->heads, s->q_len, s->kv_len));
}

static tensor column(builder *b)
{
    return between(b, CUDNN_DATA_FLOAT, packed(b->of.batch, b->of.heads, b->of.q_len, 1));
}

/* -- operations -------------------------------------------------------------------------------- */

static void add_operation(builder *b, descriptor d)
{
    finalize(b, d);
    b->ok = b->ok && b->n_operations < OPERATIONS;
    if (b->ok) {
        b->operations[b->n_operations++] = d;
    }
}

/* to = x y. */
static void matmul(builder *b, tensor x, tensor y, tensor to)
{
    const descriptor how = made(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    const descriptor d = made(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);

    set_type(b, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(b, how);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x.desc);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y.desc);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to.desc);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    add_operation(b, d);
}

/* to = mode(x, y, t), of which `y` and `t` may be NULL; `axis`: of CUDNN_POINTWISE_GEN_INDEX. */
static tensor pointwise(builder *b, cudnnPointwiseMode_t mode, int64_t axis, tensor x,
                        const tensor *y, const tensor *t, tensor to)
{
    const descriptor how = made(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    const descriptor d = made(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);

    set(b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
        set(b, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    }
    finalize(b, how);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.desc);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to.desc);
    if (y != NULL) {
        set_descriptor(b, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, y->desc);
    }
    if (t != NULL) {
        set_descriptor(b, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t->desc);
    }
    add_operation(b, d);
    return to;
}

static tensor unary(builder *b, cudnnPointwiseMode_t mode, tensor x)
{
    return pointwise(b, mode, 0, x, NULL, NULL, between(b, CUDNN_DATA_FLOAT, x));
}

static tensor binary(builder *b, cudnnPointwiseMode_t mode, tensor x, tensor y)
{
    return pointwise(b, mode, 0, x, &y, NULL, between(b, CUDNN_DATA_FLOAT, x));
}

static tensor reduce(builder *b, cudnnReduceTensorOp_t op, tensor x, tensor to)
{
    const descriptor how = made(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    const descriptor d = made(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);

    set(b, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set_type(b, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(b, how);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.desc);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to.desc);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    add_operation(b, d);
    return to;
}

/* x^T of the operands' dtype. */
static tensor transpose(builder *b, tensor x)
{
    const tensor to = between(b, b->type, transposed(x));
    const descriptor d = made(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    set_descriptor(b, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.desc);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to.desc);
    add_operation(b, d);
    return to;
}

/* Scores of keys behind the query become -inf. */
static tensor masked(builder *b, tensor s)
{
    tensor hidden, row, col, seen;

    if (!b->of.causal) {
        return s;
    }
    hidden = number(b, HIDDEN);
    row = pointwise(b, CUDNN_POINTWISE_GEN_INDEX, 2, s, NULL, NULL, scores(b, CUDNN_DATA_INT32));
    col = pointwise(b, CUDNN_POINTWISE_GEN_INDEX, 3, s, NULL, NULL, scores(b, CUDNN_DATA_INT32));
    seen = pointwise(b, CUDNN_POINTWISE_CMP_GE, 0, row, &col, NULL, scores(b, CUDNN_DATA_BOOLEAN));
    return pointwise(b, CUDNN_POINTWISE_BINARY_SELECT, 0, s, &hidden, &seen,
                     scores(b, CUDNN_DATA_FLOAT));
}

/* s = scale q k^T; p = softmax(s); o = p v. STATS: log of the sum of exp(s). */
static void describe_forward(builder *b)
{
    const tensor q = operand(b, Q), k_t = operand_transposed(b, K), v = operand(b, V);
    tensor s = scores(b, CUDNN_DATA_FLOAT), most, e, sum, p;

    matmul(b, q, k_t, s);
    s = masked(b, binary(b, CUDNN_POINTWISE_MUL, s, number(b, SCALE)));
    most = reduce(b, CUDNN_REDUCE_TENSOR_MAX, s, column(b));
    e = unary(b, CUDNN_POINTWISE_EXP, binary(b, CUDNN_POINTWISE_SUB, s, most));
    sum = reduce(b, CUDNN_REDUCE_TENSOR_ADD, e, column(b));
    const tensor log = unary(b, CUDNN_POINTWISE_LOG, sum);

    (void)pointwise(b, CUDNN_POINTWISE_ADD, 0, most, &log, NULL, statistic(b, STATS));
    p = pointwise(b, CUDNN_POINTWISE_DIV, 0, e, &sum, NULL, scores(b, b->type));
    matmul(b, p, v, operand(b, O));
}

/* `to` = x y, summed over the query heads of each key head. */
static void matmul_of_keys(builder *b, tensor x, tensor y, int32_t to)
{
    const shape *s = &b->of;

    if (s->heads == s->kv_heads) {
        matmul(b, x, y, operand(b, to));
        return;
    }
    const tensor each = between(b, b->type, packed(s->batch, s->heads, s->kv_len, s->depth));

    matmul(b, x, y, each);
    (void)reduce(b, CUDNN_REDUCE_TENSOR_ADD, each, operand(b, to));
}

/* p = exp(s - STATS); dv = p^T do; ds = scale p (do v^T - sum of o do); dk = ds^T q; dq = ds k.
 * dq is written by its product. Of a graph that accumulates dq in an f32 tensor of its own, the
 * library's sums do not repeat, and its engines have no note that says so. */
static void describe_gradient(builder *b)
{
    const tensor q = operand(b, Q), k_t = operand_transposed(b, K), v_t = operand_transposed(b, V);
    const tensor o = operand(b, O), dout = operand(b, DO), scale = number(b, SCALE);
    const tensor one = number(b, ONE), stats = statistic(b, STATS);
    tensor s, p, ds, sum;

    sum = reduce(b, CUDNN_REDUCE_TENSOR_ADD, binary(b, CUDNN_POINTWISE_MUL, dout, o), column(b));
    sum = pointwise(b, CUDNN_POINTWISE_MUL, 0, sum, &one, NULL, statistic(b, SUM));
    s = scores(b, CUDNN_DATA_FLOAT);
    matmul(b, q, k_t, s);
    s = binary(b, CUDNN_POINTWISE_SUB, binary(b, CUDNN_POINTWISE_MUL, s, scale), stats);
    p = unary(b, CUDNN_POINTWISE_EXP, masked(b, s));
    matmul_of_keys(b, transpose(b, p), dout, DV);
    ds = scores(b, CUDNN_DATA_FLOAT);
    matmul(b, dout, v_t, ds);
    ds = binary(b, CUDNN_POINTWISE_MUL, binary(b, CUDNN_POINTWISE_SUB, ds, sum), p);
    ds = binary(b, CUDNN_POINTWISE_MUL, ds, scale);
    matmul_of_keys(b, transpose(b, ds), q, DK);
    matmul(b, ds, transpose(b, k_t), operand(b, DQ));
}

/* -- planning ---------------------------------------------------------------------------------- */

static bool repeats(const builder *b, descriptor config, descriptor engine)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;

    if (b->c->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                       &engine) != CUDNN_STATUS_SUCCESS ||
        b->c->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                       CUDNN_TYPE_NUMERICAL_NOTE, MSI_COUNT(notes), &n,
                                       notes) != CUDNN_STATUS_SUCCESS) {
        return false;
    }
    for (int64_t i = 0; i < n; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) {
            return false;
        }
    }
    return true;
}

/* The library's first choice whose sums repeat. */
static void choose(builder *b, plan *p)
{
    const cuda_attention *c = b->c;
    const descriptor graph = made(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    const descriptor heuristic = made(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    const descriptor engine = made(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor configs[CONFIGS];
    int64_t n = 0, one;

    set(b, graph, graph_handle, CUDNN_TYPE_HANDLE, 1, &c->handle);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->n_operations,
        b->operations);
    finalize(b, graph);
    set_descriptor(b, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(b, heuristic);
    for (int32_t i = 0; i < CONFIGS; i++) {
        configs[i] = made(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    if (!b->ok || c->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                              CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n,
                                              configs) != CUDNN_STATUS_SUCCESS) {
        return;
    }
    for (int64_t i = 0; i < n && i < CONFIGS && p->engine == NULL; i++) {
        if (repeats(b, configs[i], engine)) {
            const descriptor d = made(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);

            set(b, d, plan_handle, CUDNN_TYPE_HANDLE, 1, &c->handle);
            set_descriptor(b, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[i]);
            finalize(b, d);
            p->engine = b->ok && c->cudnnBackendGetAttribute(
                                     d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                     1, &one, &p->work_bytes) == CUDNN_STATUS_SUCCESS
                            ? d
                            : NULL;
            b->ok = true;
        }
    }
}

/* Plan slices of shape `s`. */
static void make_plan(const cuda_attention *c, plan *p, const shape *s)
{
    builder *b = &p->slice;

    destroy_all(b);
    *b = (builder){.c = c,
                   .type = s->dtype == MS_DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
                   .of = *s,
                   .n_tensors = TENSORS,
                   .ok = true};
    p->engine = NULL;
    if (s->gradient) {
        describe_gradient(b);
    } else {
        describe_forward(b);
    }
    choose(b, p);
}

static int64_t largest_divisor(int64_t n, int64_t most)
{
    while (n % most != 0) {
        most--;
    }
    return most;
}

/* Plan slices of at most WORK_BYTES, which grow with batch and heads. */
static void cut(const cuda_attention *c, plan *p)
{
    const int64_t heads = p->of.kv_heads;
    const int64_t part = p->of.batch * heads * WORK_BYTES / p->work_bytes; /* key heads */
    shape s = p->of;

    s.batch = largest_divisor(s.batch, part > heads ? part / heads : 1);
    s.kv_heads = largest_divisor(heads, part >= heads ? heads : part > 0 ? part : 1);
    s.heads = s.heads / heads * s.kv_heads;
    make_plan(c, p, &s);
}

/* Tensors of `a` from Q to DV; NULL: not of this direction. */
typedef struct operands {
    const void *data[DV + 1];
    const int64_t *stride[DV + 1];
} operands;

static operands operands_of(const msi_attention_args *a, bool gradient)
{
    operands x = {{a->q, a->k, a->v, a->out, a->max},
                  {a->q_stride, a->k_stride, a->v_stride, a->o_stride}};

    if (gradient) {
        x = (operands){{a->q, a->k, a->v, a->o, a->max, a->dout, a->dq, a->dk, a->dv},
                       {a->q_stride, a->k_stride, a->v_stride, a->o_stride, NULL, a->do_stride,
                        a->dq_stride, a->dk_stride, a->dv_stride}};
    }
    return x;
}

static bool takes(const msi_attention_args *a, int32_t dtype, const operands *x)
{
    bool aligned = true;

    for (int32_t i = 0; i <= DV; i++) {
        aligned = aligned && (uintptr_t)x->data[i] % ALIGNMENT == 0;
        for (int32_t d = 0; d < 3 && x->stride[i] != NULL; d++) {
            aligned = aligned && x->stride[i][d] % 8 == 0;
        }
    }
    return aligned && (dtype == MS_DTYPE_BF16 || dtype == MS_DTYPE_F16) && a->mask == NULL &&
           !(a->dropout_p > 0) && a->head_dim % 8 == 0 && a->head_dim <= MAX_DEPTH &&
           a->batch * a->heads * a->q_len * a->kv_len * a->head_dim > 0;
}

/* On stderr, once a shape: the own kernel is slower. */
static void report_refusal(const shape *s)
{
    fprintf(stderr,
            "moonshard: cuDNN refuses %s%sattention of %s: batch %lld, heads %lld of %lld keys, "
            "%lld queries, %lld keys, head dimensions %lld: computed by the own kernel\n",
            s->gradient ? "the gradient of " : "", s->causal ? "causal " : "",
            cuda_dtype_names[s->dtype], (long long)s->batch, (long long)s->heads,
            (long long)s->kv_heads, (long long)s->q_len, (long long)s->kv_len, (long long)s->depth);
}

/* NULL: not by cuDNN. */
static plan *plan_of(cuda_attention *c, const msi_attention_args *a, int32_t dtype, bool gradient)
{
    const operands x = operands_of(a, gradient);
    shape s;
    plan *p;

    if (c == NULL || c->handle == NULL || !takes(a, dtype, &x)) {
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
    for (p = c->plans; p != NULL && memcmp(&p->of, &s, sizeof(s)) != 0; p = p->next) {
    }
    if (p == NULL && (p = calloc(1, sizeof(*p))) != NULL) {
        memcpy(&p->of, &s, sizeof(s));
        make_plan(c, p, &s);
        if (p->engine != NULL && p->work_bytes > WORK_BYTES) {
            cut(c, p);
        }
        if (p->engine == NULL) {
            report_refusal(&s);
        }
        p->next = c->plans;
        c->plans = p;
    }
    return p != NULL && p->engine != NULL ? p : NULL;
}

/* The gradient reads the forward's statistics as the library writes them. */
static plan *usable_plan(cuda_attention *c, const msi_attention_args *a, int32_t dtype,
                         bool gradient)
{
    msi_attention_args forward = *a;

    if (gradient) {
        forward.out = (void *)a->o;
        if (plan_of(c, &forward, dtype, false) == NULL) {
            return NULL;
        }
    }
    return plan_of(c, a, dtype, gradient);
}

/* -- running ----------------------------------------------------------------------------------- */

static int64_t rounded_up(int64_t n)
{
    return (n + 255) / 256 * 256;
}

/* Of SUM, in front of the library's work space. */
static int64_t sum_bytes(const plan *p)
{
    const shape *s = &p->slice.of;

    return s->gradient ? rounded_up(s->batch * s->heads * s->q_len * 4) : 0;
}

int64_t cuda_attention_bytes(cuda_attention **attention, cuda_conv **conv,
                             const msi_attention_args *a, int32_t dtype, bool gradient)
{
    const plan *p = usable_plan(opened(attention, conv), a, dtype, gradient);

    return p != NULL ? 256 + sum_bytes(p) + p->work_bytes : 0;
}

/* Enqueue the slice that begins at batch entry `entry` and key head `head`. */
static bool run_slice(const cuda_attention *c, const plan *p, const msi_attention_args *a,
                      int64_t entry, int64_t head)
{
    const shape *s = &p->of;
    const operands x = operands_of(a, s->gradient);
    const int64_t first = head * (s->heads / s->kv_heads); /* query head */
    const float scale = (float)a->scale, hidden = -INFINITY, one = 1;
    char *work = (char *)rounded_up((int64_t)a->work);
    const void *library = work + sum_bytes(p), *data[TENSORS];
    int64_t ids[TENSORS];
    int32_t n = 0;
    builder b = {.c = c, .ok = true};
    const descriptor pack = made(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);

    for (int32_t i = 0; i <= DV; i++) {
        const bool of_keys = i == K || i == V || i == DK || i == DV;

        if (x.data[i] != NULL) {
            ids[n] = i;
            data[n++] =
                i == STATS
                    ? (const char *)x.data[i] + 4 * (entry * s->heads + first) * s->q_len
                    : (const char *)x.data[i] +
                          2 * (entry * x.stride[i][0] + (of_keys ? head : first) * x.stride[i][1]);
        }
    }
    const void *others[] = {work, &scale, &hidden, &one};

    for (int32_t i = SUM; i < TENSORS; i++) {
        if (i == HIDDEN ? s->causal : i == SCALE || s->gradient) {
            ids[n] = i;
            data[n++] = others[i - SUM];
        }
    }
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &library);
    finalize(&b, pack);
    b.ok = b.ok && c->cudnnBackendExecute(c->handle, p->engine, pack) == CUDNN_STATUS_SUCCESS;
    destroy_all(&b);
    return b.ok;
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

cudaError_t cuda_attention_run(cuda_attention **attention, cuda_conv **conv, cudaStream_t stream,
                               const msi_attention_args *a, int32_t dtype, bool gradient)
{
    const cuda_attention *c = opened(attention, conv);
    plan *p = usable_plan(*attention, a, dtype, gradient);

    if (p == NULL || c->cudnnSetStream(c->handle, stream) != CUDNN_STATUS_SUCCESS) {
        return cudaErrorNotSupported;
    }
    for (int64_t entry = 0; entry < a->batch; entry += p->slice.of.batch) {
        for (int64_t head = 0; head < a->kv_heads; head += p->slice.of.kv_heads) {
            if (!run_slice(c, p, a, entry, head)) {
                p->engine = NULL;
                report_refusal(&p->of);
                return cudaErrorNotSupported;
            }
        }
    }
    return gradient ? cudaSuccess : fill_ones(stream, a);
}

#else /* no headers of cuDNN: own kernels */

void cuda_attention_close(cuda_attention *c)
{
    (void)c;
}

int64_t cuda_attention_bytes(cuda_attention **attention, cuda_conv **conv,
                             const msi_attention_args *a, int32_t dtype, bool gradient)
{
    (void)attention, (void)conv, (void)a, (void)dtype, (void)gradient;
    return 0;
}

cudaError_t cuda_attention_run(cuda_attention **attention, cuda_conv **conv, cudaStream_t stream,
                               const msi_attention_args *a, int32_t dtype, bool gradient)
{
    (void)attention, (void)conv, (void)stream, (void)a, (void)dtype, (void)gradient;
    return cudaErrorNotSupported;
}

#endif
