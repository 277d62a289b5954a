/* Operation graphs of cuDNN by its C interface. The C++ frontend costs a minute of compilation. */
#include "cudnn_graph.h"

#ifdef CUDA_HAS_CUDNN

/* The last two are attributes that the library needs up to 9.7; later headers deprecate them. */
enum { CONFIGS = 8, NO_PART = -1, PLAN_HANDLE = 400, GRAPH_HANDLE = 800 };

typedef cudnnBackendDescriptor_t descriptor;

typedef struct attribute {
    int32_t name; /* cudnnBackendAttributeName_t */
    cudnnBackendAttributeType_t type;
    int64_t n; /* 0: is not set */
    const void *values;
} attribute;

#define PART(name, d)                                                                              \
    {                                                                                              \
        (name), CUDNN_TYPE_BACKEND_DESCRIPTOR, (d) != NULL, &(d)                                   \
    }

/* A descriptor, finalized with attributes up to one without values; NULL: none, not finalized. The
 * result is NULL after a failure. */
static descriptor made(dnn_graph *g, int32_t type, const attribute *a)
{
    const cuda_cudnn *c = g->c;
    descriptor d = NULL;

    g->failed = g->failed || g->n == MSI_COUNT(g->all) ||
                c->cudnnBackendCreateDescriptor((cudnnBackendDescriptorType_t)type, &d) !=
                    CUDNN_STATUS_SUCCESS;
    if (g->failed) {
        return NULL;
    }
    g->all[g->n++] = d;
    if (a == NULL) {
        return d;
    }
    for (; a->values != NULL; a++) {
        g->failed = g->failed || (a->n > 0 && c->cudnnBackendSetAttribute(
                                                  d, (cudnnBackendAttributeName_t)a->name, a->type,
                                                  a->n, a->values) != CUDNN_STATUS_SUCCESS);
    }
    g->failed = g->failed || c->cudnnBackendFinalize(d) != CUDNN_STATUS_SUCCESS;
    return g->failed ? NULL : d;
}

void dnn_destroy(dnn_graph *g)
{
    while (g->n > 0) {
        (void)g->c->cudnnBackendDestroyDescriptor(g->all[--g->n]);
    }
    g->plan = NULL;
}

/* -- building ---------------------------------------------------------------------------------- */

/* The library's names for the parts of an operation, and of the description that it refers to. */
typedef struct kind {
    int32_t how, mode, math;
    cudnnBackendAttributeType_t mode_type;
    int32_t operation, its_how, x, y, z, to;
} kind;

static const kind matmul = {.how = CUDNN_BACKEND_MATMUL_DESCRIPTOR,
                            .mode = NO_PART,
                            .math = CUDNN_ATTR_MATMUL_COMP_TYPE,
                            .operation = CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                            .its_how = CUDNN_ATTR_OPERATION_MATMUL_DESC,
                            .x = CUDNN_ATTR_OPERATION_MATMUL_ADESC,
                            .y = CUDNN_ATTR_OPERATION_MATMUL_BDESC,
                            .to = CUDNN_ATTR_OPERATION_MATMUL_CDESC};
static const kind pointwise = {.how = CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                               .mode = CUDNN_ATTR_POINTWISE_MODE,
                               .math = CUDNN_ATTR_POINTWISE_MATH_PREC,
                               .mode_type = CUDNN_TYPE_POINTWISE_MODE,
                               .operation = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                               .its_how = CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                               .x = CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                               .y = CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                               .z = CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
                               .to = CUDNN_ATTR_OPERATION_POINTWISE_YDESC};
static const kind reduction = {.how = CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                               .mode = CUDNN_ATTR_REDUCTION_OPERATOR,
                               .math = CUDNN_ATTR_REDUCTION_COMP_TYPE,
                               .mode_type = CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
                               .operation = CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                               .its_how = CUDNN_ATTR_OPERATION_REDUCTION_DESC,
                               .x = CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
                               .to = CUDNN_ATTR_OPERATION_REDUCTION_YDESC};
static const kind reshape = {.how = NO_PART,
                             .operation = CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                             .x = CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
                             .to = CUDNN_ATTR_OPERATION_RESHAPE_YDESC};

static const struct {
    const kind *kind;
    int32_t mode;
    int64_t axis; /* 0: has none */
} ops[] = {[DNN_MATMUL] = {&matmul, 0, 0},
           [DNN_TRANSPOSE] = {&reshape, 0, 0},
           [DNN_SUM] = {&reduction, CUDNN_REDUCE_TENSOR_ADD, 0},
           [DNN_MAX] = {&reduction, CUDNN_REDUCE_TENSOR_MAX, 0},
           [DNN_ADD] = {&pointwise, CUDNN_POINTWISE_ADD, 0},
           [DNN_SUB] = {&pointwise, CUDNN_POINTWISE_SUB, 0},
           [DNN_MUL] = {&pointwise, CUDNN_POINTWISE_MUL, 0},
           [DNN_DIV] = {&pointwise, CUDNN_POINTWISE_DIV, 0},
           [DNN_EXP] = {&pointwise, CUDNN_POINTWISE_EXP, 0},
           [DNN_LOG] = {&pointwise, CUDNN_POINTWISE_LOG, 0},
           [DNN_ROW] = {&pointwise, CUDNN_POINTWISE_GEN_INDEX, 2},
           [DNN_COL] = {&pointwise, CUDNN_POINTWISE_GEN_INDEX, 3},
           [DNN_GE] = {&pointwise, CUDNN_POINTWISE_CMP_GE, 0},
           [DNN_SELECT] = {&pointwise, CUDNN_POINTWISE_BINARY_SELECT, 0}};

/* Made at its first use. */
static descriptor tensor(dnn_graph *g, int64_t id)
{
    static const int32_t flags[] = {[DNN_VIRTUAL] = CUDNN_ATTR_TENSOR_IS_VIRTUAL,
                                    [DNN_MEMORY] = 0,
                                    [DNN_NUMBER] = CUDNN_ATTR_TENSOR_IS_BY_VALUE};
    const dnn_tensor *t = &g->described[id];
    const bool yes = true;

    if (id > 0 && g->tensors[id] == NULL) {
        g->tensors[id] =
            made(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR,
                 (const attribute[]){
                     {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t->type},
                     {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t->size},
                     {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t->stride},
                     {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id},
                     {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &t->alignment},
                     {flags[t->kind], CUDNN_TYPE_BOOLEAN, t->kind != DNN_MEMORY, &yes},
                     {0}});
    }
    return g->tensors[id];
}

void dnn_add(dnn_graph *g, dnn_op op, int32_t to, int32_t x, int32_t y, int32_t z)
{
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    const kind *k = ops[op].kind;
    const descriptor of_x = tensor(g, x), of_y = tensor(g, y), of_z = tensor(g, z),
                     of_to = tensor(g, to);
    const descriptor how =
        k->how == NO_PART
            ? NULL
            : made(g, k->how,
                   (const attribute[]){{k->mode, k->mode_type, k->mode != NO_PART, &ops[op].mode},
                                       {k->math, CUDNN_TYPE_DATA_TYPE, 1, &math},
                                       {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64,
                                        ops[op].axis > 0, &ops[op].axis},
                                       {0}});
    const descriptor d = made(g, k->operation,
                              (const attribute[]){PART(k->its_how, how),
                                                  PART(k->x, of_x),
                                                  PART(k->y, of_y),
                                                  PART(k->z, of_z),
                                                  PART(k->to, of_to),
                                                  {0}});

    g->failed = g->failed || g->n_steps == DNN_STEPS;
    if (!g->failed) {
        g->steps[g->n_steps++] = d;
    }
}

/* -- planning and running ---------------------------------------------------------------------- */

static bool get(const dnn_graph *g, descriptor d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t room, int64_t *n, void *values)
{
    return g->c->cudnnBackendGetAttribute(d, name, type, room, n, values) == CUDNN_STATUS_SUCCESS;
}

static bool repeats(const dnn_graph *g, descriptor config, descriptor engine)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;

    if (!get(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
             &engine) ||
        !get(g, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
             MSI_COUNT(notes), &n, notes)) {
        return false;
    }
    for (int64_t i = 0; i < n; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) {
            return false;
        }
    }
    return true;
}

void dnn_plan(dnn_graph *g)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor configs[CONFIGS];
    int64_t n = 0, one;

    const descriptor graph =
        made(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
             (const attribute[]){{GRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->c->handle},
                                 {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                  g->n_steps, g->steps},
                                 {0}});
    const descriptor heuristic =
        made(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
             (const attribute[]){PART(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph),
                                 {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode},
                                 {0}});
    const descriptor engine = made(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, NULL);

    for (int32_t i = 0; i < CONFIGS; i++) {
        configs[i] = made(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, NULL);
    }
    if (g->failed || !get(g, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                          CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n, configs)) {
        return;
    }
    for (int64_t i = 0; i < n && i < CONFIGS && g->plan == NULL; i++) {
        if (repeats(g, configs[i], engine)) {
            const descriptor plan =
                made(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                     (const attribute[]){{PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->c->handle},
                                         PART(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[i]),
                                         {0}});

            if (!g->failed && get(g, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                  CUDNN_TYPE_INT64, 1, &one, &g->work_bytes)) {
                g->plan = plan;
            }
            g->failed = false; /* the next engine */
        }
    }
}

bool dnn_run(const dnn_graph *of, int64_t n, const void *const *data, const void *work)
{
    int64_t ids[DNN_TENSORS], n_used = 0;
    const void *used[DNN_TENSORS];
    dnn_graph g = {.c = of->c};

    for (int64_t i = 0; i < n; i++) {
        if (data[i] != NULL) {
            ids[n_used] = i;
            used[n_used++] = data[i];
        }
    }
    const descriptor pack =
        made(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
             (const attribute[]){
                 {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n_used, ids},
                 {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n_used, used},
                 {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work},
                 {0}});
    const bool runs = !g.failed && of->c->cudnnBackendExecute(of->c->handle, of->plan, pack) ==
                                       CUDNN_STATUS_SUCCESS;

    dnn_destroy(&g);
    return runs;
}

#endif
