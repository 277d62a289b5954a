/* Operation graphs of cuDNN, interpreted in double: intermediate results are rounded to their
 * dtype. Whether the library recognizes a graph is not checked. */
#include "cudnn.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

typedef cudnnBackendAttributeName_t attribute;

enum { TENSORS = 128 /* ids are below */ };

struct program;
struct descriptor {
    cudnnBackendDescriptorType_t kind;
    bool finalized;
    std::map<int, std::vector<char>> values;
    std::shared_ptr<program> runs; /* of graphs, configurations, engines and plans */

    bool has(int name) const
    {
        return values.count(name) != 0;
    }
    template <class T> T get(int name, size_t i = 0) const
    {
        T x;

        memcpy(&x, values.at(name).data() + i * sizeof(T), sizeof(T));
        return x;
    }
};

struct operand {
    int64_t id, alignment, size[4], stride[4];
    cudnnDataType_t type;
    bool is_virtual, by_value;

    int64_t offset(const int64_t at[4]) const
    {
        return at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2] + at[3] * stride[3];
    }
    int64_t count() const
    {
        return size[0] * size[1] * size[2] * size[3];
    }
};

struct operation {
    cudnnBackendDescriptorType_t kind;
    int mode;
    int64_t axis;
    std::vector<operand> in;
    operand out;
};

struct program {
    std::vector<operation> operations;
    int64_t work_bytes;
    bool refused, repeats;
};

/* -- what descriptors need --------------------------------------------------------------------- */

static const std::map<int, std::vector<int>> &required()
{
    static const std::map<int, std::vector<int>> of = {
        {CUDNN_BACKEND_TENSOR_DESCRIPTOR,
         {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES,
          CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT}},
        {CUDNN_BACKEND_MATMUL_DESCRIPTOR, {CUDNN_ATTR_MATMUL_COMP_TYPE}},
        {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
         {CUDNN_ATTR_POINTWISE_MODE, CUDNN_ATTR_POINTWISE_MATH_PREC}},
        {CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
         {CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_ATTR_REDUCTION_COMP_TYPE}},
        {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
          CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_ATTR_OPERATION_MATMUL_CDESC}},
        {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
          CUDNN_ATTR_OPERATION_POINTWISE_YDESC}},
        {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
          CUDNN_ATTR_OPERATION_REDUCTION_YDESC}},
        {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_ATTR_OPERATION_RESHAPE_YDESC}},
        {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
         {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_OPS}},
        {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
         {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINEHEUR_MODE}},
        {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
         {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG}},
        {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
         {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
          CUDNN_ATTR_VARIANT_PACK_WORKSPACE}}};

    return of;
}

static size_t size_of(cudnnBackendAttributeType_t type)
{
    return type == CUDNN_TYPE_BOOLEAN ? 1
           : type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR ||
                   type == CUDNN_TYPE_BACKEND_DESCRIPTOR
               ? 8
               : 4;
}

/* -- graphs ------------------------------------------------------------------------------------ */

static operand operand_of(const descriptor &d)
{
    operand t = {};

    t.id = d.get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    t.alignment = d.get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    t.type = d.get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
    t.is_virtual = d.has(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    t.by_value = d.has(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    for (size_t i = 0; i < 4; i++) {
        t.size[i] = d.get<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, i);
        t.stride[i] = d.get<int64_t>(CUDNN_ATTR_TENSOR_STRIDES, i);
    }
    return t;
}

static operation operation_of(const descriptor &d)
{
    const bool is_matmul = d.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
    const bool is_pointwise = d.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
    const bool is_reduction = d.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR;
    const std::vector<int> in =
        is_matmul
            ? std::vector<int>{CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC}
        : is_pointwise ? std::vector<int>{CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                          CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                          CUDNN_ATTR_OPERATION_POINTWISE_TDESC}
        : is_reduction ? std::vector<int>{CUDNN_ATTR_OPERATION_REDUCTION_XDESC}
                       : std::vector<int>{CUDNN_ATTR_OPERATION_RESHAPE_XDESC};
    const int out = is_matmul      ? CUDNN_ATTR_OPERATION_MATMUL_CDESC
                    : is_pointwise ? CUDNN_ATTR_OPERATION_POINTWISE_YDESC
                    : is_reduction ? CUDNN_ATTR_OPERATION_REDUCTION_YDESC
                                   : CUDNN_ATTR_OPERATION_RESHAPE_YDESC;
    operation o = {d.kind, 0, 0, {}, operand_of(*d.get<descriptor *>(out))};

    for (int name : in) {
        if (d.has(name)) {
            o.in.push_back(operand_of(*d.get<descriptor *>(name)));
        }
    }
    if (is_pointwise) {
        const descriptor &how = *d.get<descriptor *>(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);

        o.mode = how.get<int>(CUDNN_ATTR_POINTWISE_MODE);
        o.axis =
            how.has(CUDNN_ATTR_POINTWISE_AXIS) ? how.get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS) : 0;
    } else if (is_reduction) {
        o.mode = d.get<descriptor *>(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                     ->get<int>(CUDNN_ATTR_REDUCTION_OPERATOR);
    }
    return o;
}

/* Whether every size of `x` is that of `y`, or one of it, or of a group of heads. */
static bool fits(const operand &x, const operand &y)
{
    for (int d = 0; d < 4; d++) {
        if (x.size[d] == 0 || y.size[d] % x.size[d] != 0) {
            return false;
        }
    }
    return true;
}

static bool sizes_fit(const operation &o)
{
    const operand &x = o.in[0], &y = o.out;

    switch ((int)o.kind) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return x.size[3] == o.in[1].size[2] && y.size[2] == x.size[2] &&
               y.size[3] == o.in[1].size[3] && y.size[1] == x.size[1] &&
               x.size[1] % o.in[1].size[1] == 0;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return fits(y, x);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return x.count() == y.count();
    default:
        return std::all_of(o.in.begin(), o.in.end(),
                           [&](const operand &in) { return fits(in, y); });
    }
}

/* NULL: an operand is not computed before, an id is used twice, or sizes do not match. */
static std::shared_ptr<program> program_of(const descriptor &graph)
{
    const char *refuse = getenv("MS_CUDASIM_REFUSE"), *work = getenv("MS_CUDASIM_WORK");
    auto p = std::make_shared<program>();
    std::map<int64_t, operand> known;
    uint64_t hash = 14695981039346656037u;
    int64_t rows = 0;
    const size_t n = graph.values.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).size() / sizeof(void *);

    for (size_t i = 0; i < n; i++) {
        const operation o =
            operation_of(*graph.get<descriptor *>(CUDNN_ATTR_OPERATIONGRAPH_OPS, i));

        for (const operand &in : o.in) {
            const bool seen = known.count(in.id) != 0;

            if ((in.is_virtual && !seen) ||
                (seen && memcmp(known[in.id].size, in.size, 2 * sizeof(in.size)) != 0)) {
                return nullptr;
            }
            known[in.id] = in;
            for (int64_t x : in.size) {
                hash = (hash ^ (uint64_t)x) * 1099511628211u;
            }
        }
        if (o.in.empty() || known.count(o.out.id) != 0 || o.out.id >= TENSORS || !sizes_fit(o)) {
            return nullptr;
        }
        known[o.out.id] = o.out;
        rows = o.out.size[0] * o.out.size[1];
        p->operations.push_back(o);
    }
    p->work_bytes = work != NULL ? atoll(work) * rows << 20 : 300;
    p->refused = refuse != NULL && hash % strtoull(refuse, NULL, 0) == 0;
    return p;
}

/* -- interpreter ------------------------------------------------------------------------------- */

static cudaDataType data_type(cudnnDataType_t type)
{
    return type == CUDNN_DATA_HALF       ? CUDA_R_16F
           : type == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF
                                         : CUDA_R_32F;
}

/* Tensors by id: memory of the device, or numbers at the offsets of its elements. */
struct memory {
    std::vector<void *> device = std::vector<void *>(TENSORS);
    std::vector<std::vector<double>> between = std::vector<std::vector<double>>(TENSORS);

    double get(const operand &t, int64_t offset)
    {
        return t.is_virtual || t.by_value
                   ? between[(size_t)t.id][(size_t)offset]
                   : cudasim::number(device[(size_t)t.id], data_type(t.type), offset);
    }
    void put(const operand &t, int64_t offset, double x)
    {
        uint64_t room;

        if (!t.is_virtual) {
            cudasim::set_number(device[(size_t)t.id], data_type(t.type), offset, x);
            return;
        }
        if (t.type != CUDNN_DATA_INT32 && t.type != CUDNN_DATA_BOOLEAN) {
            cudasim::set_number(&room, data_type(t.type), 0, x);
            x = cudasim::number(&room, data_type(t.type), 0);
        }
        between[(size_t)t.id][(size_t)offset] = x;
    }
    /* The element of `t` that position `at` of `whole` reads. */
    double read(const operand &t, const int64_t at[4], const operand &whole)
    {
        int64_t mine[4];

        for (int d = 0; d < 4; d++) {
            mine[d] = at[d] / (whole.size[d] / t.size[d]);
        }
        return get(t, t.offset(mine));
    }
};

template <class F> static void each(const operand &t, F f)
{
    for (int64_t i = 0; i < t.count(); i++) {
        const int64_t at[4] = {i / t.size[3] / t.size[2] / t.size[1],
                               i / t.size[3] / t.size[2] % t.size[1], i / t.size[3] % t.size[2],
                               i % t.size[3]};

        f(at);
    }
}

static double combined(const operation &o, const double x[3], const int64_t at[4])
{
    switch (o.mode) {
    case CUDNN_POINTWISE_ADD:
        return x[0] + x[1];
    case CUDNN_POINTWISE_SUB:
        return x[0] - x[1];
    case CUDNN_POINTWISE_MUL:
        return x[0] * x[1];
    case CUDNN_POINTWISE_DIV:
        return x[0] / x[1];
    case CUDNN_POINTWISE_EXP:
        return exp(x[0]);
    case CUDNN_POINTWISE_LOG:
        return log(x[0]);
    case CUDNN_POINTWISE_CMP_GE:
        return x[0] >= x[1];
    case CUDNN_POINTWISE_BINARY_SELECT:
        return x[2] != 0 ? x[0] : x[1];
    default: /* CUDNN_POINTWISE_GEN_INDEX */
        return (double)at[o.axis];
    }
}

static void compute(const operation &o, memory *m)
{
    const operand &x = o.in[0], &y = o.out;
    const double none = o.mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;

    if (y.is_virtual) {
        const int64_t last[4] = {y.size[0] - 1, y.size[1] - 1, y.size[2] - 1, y.size[3] - 1};

        m->between[(size_t)y.id].assign((size_t)y.offset(last) + 1, NAN);
    }
    if (o.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
        std::map<int64_t, double> sum; /* by offset */

        each(x, [&](const int64_t at[4]) {
            int64_t to[4];

            for (int d = 0; d < 4; d++) {
                to[d] = at[d] / (x.size[d] / y.size[d]);
            }
            double &s = sum.insert({y.offset(to), none}).first->second;
            const double v = m->get(x, x.offset(at));

            s = o.mode == CUDNN_REDUCE_TENSOR_ADD ? s + v : s < v || std::isnan(v) ? v : s;
        });
        for (const auto &s : sum) {
            m->put(y, s.first, s.second);
        }
        return;
    }
    each(y, [&](const int64_t at[4]) {
        double v[3] = {0};

        if (o.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
            for (int64_t k = 0; k < x.size[3]; k++) {
                const operand &w = o.in[1];
                const int64_t left[4] = {at[0], at[1], at[2], k};
                const int64_t right[4] = {at[0], at[1] / (y.size[1] / w.size[1]), k, at[3]};

                v[0] += m->get(x, x.offset(left)) * m->get(w, w.offset(right));
            }
        } else if (o.kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) {
            v[0] = m->get(x, y.offset(at)); /* the same memory, described anew */
        } else {
            for (size_t i = 0; i < o.in.size(); i++) {
                v[i] = m->read(o.in[i], at, y);
            }
            v[0] = combined(o, v, at);
        }
        m->put(y, y.offset(at), v[0]);
    });
}

/* -- calls ------------------------------------------------------------------------------------- */

size_t cudnnGetVersion(void)
{
    return 91900;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out)
{
    *out = new descriptor{type, false, {}, nullptr};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    delete (descriptor *)d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t to, attribute name,
                                       cudnnBackendAttributeType_t type, int64_t n,
                                       const void *values)
{
    descriptor *d = (descriptor *)to;
    const char *bytes = (const char *)values;

    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < n; i++) {
        const descriptor *x = ((descriptor *const *)values)[i];

        if (!x->finalized && x->kind != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
            return CUDNN_STATUS_BAD_PARAM;
        }
    }
    if (d->finalized) {
        return CUDNN_STATUS_BAD_PARAM;
    }
    d->values[name].assign(bytes, bytes + (size_t)n * size_of(type));
    return CUDNN_STATUS_SUCCESS;
}

/* Two configurations: the first one's sums do not repeat. */
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t from, attribute name,
                                       cudnnBackendAttributeType_t, int64_t room, int64_t *n,
                                       void *values)
{
    const descriptor *d = (const descriptor *)from;
    descriptor **to = (descriptor **)values;

    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *n = 2;
        for (int64_t i = 0; i < *n && i < room; i++) {
            to[i]->runs = std::make_shared<program>(*d->runs);
            to[i]->runs->repeats = i == 1;
        }
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        to[0]->runs = d->runs;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *n = 2;
        ((int *)values)[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        ((int *)values)[1] = d->runs->repeats ? CUDNN_NUMERICAL_NOTE_TENSOR_CORE
                                              : CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)values = d->runs->work_bytes;
        return CUDNN_STATUS_SUCCESS;
    default:
        return CUDNN_STATUS_BAD_PARAM;
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t what)
{
    descriptor *d = (descriptor *)what;
    const auto needs = required().find(d->kind);

    if (d->finalized || needs == required().end()) {
        return CUDNN_STATUS_BAD_PARAM;
    }
    for (int name : needs->second) {
        if (!d->has(name)) {
            return CUDNN_STATUS_BAD_PARAM;
        }
    }
    d->finalized = true;
    if (d->kind == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
        d->runs = program_of(*d);
        return d->runs != nullptr ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
    }
    if (d->kind == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
        d->runs = d->get<descriptor *>(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->runs;
    } else if (d->kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        d->runs = d->get<descriptor *>(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->runs;
        return d->runs->refused ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
    }
    return CUDNN_STATUS_SUCCESS;
}

[[noreturn]] static void misused(const char *how)
{
    fprintf(stderr, "cudasim: cudnnBackendExecute(): %s\n", how);
    abort();
}

/* Numbers of the host are read now. */
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t with)
{
    const std::shared_ptr<program> p = ((descriptor *)plan)->runs;
    const descriptor &pack = *(descriptor *)with;
    const size_t n = pack.values.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() / 8;
    void *work = pack.get<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    std::vector<void *> used = {work};
    memory m;

    if (!p->repeats || !pack.finalized) {
        misused(pack.finalized ? "sums do not repeat" : "the variant pack is not finalized");
    }
    for (size_t i = 0; i < n; i++) {
        m.device[pack.get<size_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i)] =
            pack.get<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
    }
    for (const operation &o : p->operations) {
        std::vector<operand> all = o.in;

        all.push_back(o.out);
        for (const operand &t : all) {
            const uintptr_t at = t.is_virtual ? 0 : (uintptr_t)m.device[(size_t)t.id];

            if (!t.is_virtual && (at == 0 || (!t.by_value && at % (uintptr_t)t.alignment != 0))) {
                misused("a tensor is missing or not aligned");
            }
            if (t.by_value) {
                m.between[(size_t)t.id] = {*(const float *)at};
            } else if (!t.is_virtual) {
                used.push_back((void *)at);
            }
        }
    }
    cudasim::check_arguments(used.data(), used.size() * sizeof(used[0]));
    (void)cudaMemsetAsync(work, 0xff, (size_t)p->work_bytes, cudasim_stream_of(h));
    cudasim::later(cudasim_stream_of(h), [p, m, work]() mutable {
        for (const operation &o : p->operations) { /* work space changes all the time */
            memset(work, 0xff, (size_t)std::min<int64_t>(p->work_bytes, 4096));
            compute(o, &m);
        }
    });
    return CUDNN_STATUS_SUCCESS;
}
