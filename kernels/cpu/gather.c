/* Gather and scatter along one dimension. Both process indices in row-major order, so equal indices
 * are stored, or added, in ascending order. */
#include "element.h"
#include "fault.h"
#include "loop.h"
#include "table.h"

/* A row of the innermost dimension. `position` counts indices, for errors. */
typedef struct gather_row {
    int64_t n, position;
    int64_t out, index, in; /* offsets */
    int64_t out_step, index_step, in_step;
} gather_row;

static gather_row gather_row_of(const msi_gather_args *a, int64_t row)
{
    const msi_loop *loop = &a->loop;
    const int32_t outer = loop->ndim > 0 ? loop->ndim - 1 : 0;

    return (gather_row){.n = loop_width(loop),
                        .position = row * loop_width(loop),
                        .out = loop_offset(loop, 0, outer, row),
                        .index = loop_offset(loop, 1, outer, row),
                        .in = loop_offset(loop, 2, outer, row),
                        .out_step = loop_step(loop, 0),
                        .index_step = loop_step(loop, 1),
                        .in_step = loop_step(loop, 2)};
}

static int64_t gather_rows(const msi_gather_args *a)
{
    return loop_count(&a->loop, a->loop.ndim > 0 ? a->loop.ndim - 1 : 0);
}

/* True for a valid index; an invalid one is recorded. */
static inline bool gather_is_inside(const msi_gather_args *a, int64_t index, int64_t position,
                                    int32_t kernel)
{
    if (index_is_inside(index - 1, a->size)) {
        return true;
    }
    if (a->fault != NULL && a->fault->found == 0) {
        *a->fault = (msi_fault){.found = 1,
                                .kernel = kernel,
                                .index = index,
                                .position = position,
                                .n = loop_count(&a->loop, a->loop.ndim),
                                .end = a->size};
    }
    return false;
}

/* -- gather ------------------------------------------------------------------------------------ */

/* An element, or a row for each index, is copied as bytes. */
#define GATHER(dtype, name)                                                                        \
    static void gather_row_##name(const msi_gather_args *a, const gather_row *r)                   \
    {                                                                                              \
        const c_##dtype *in = (const c_##dtype *)a->in + r->in;                                    \
        const int64_t *index = a->index + r->index;                                                \
        c_##dtype *out = (c_##dtype *)a->out + r->out;                                             \
                                                                                                   \
        if (r->index_step == 0 && r->out_step == 1 && r->in_step == 1 && r->n > 0 &&               \
            index_is_inside(*index - 1, a->size)) {                                                \
            memcpy(out, in + (*index - 1) * a->step, (size_t)r->n * sizeof(*out));                 \
            return;                                                                                \
        }                                                                                          \
        for (int64_t j = 0; j < r->n; j++) {                                                       \
            const int64_t at = index[j * r->index_step];                                           \
                                                                                                   \
            if (gather_is_inside(a, at, r->position + j, MSI_K_gather)) {                          \
                out[j * r->out_step] = in[j * r->in_step + (at - 1) * a->step];                    \
            } else {                                                                               \
                memset(out + j * r->out_step, 0xff, sizeof(*out)); /* NaN */                       \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    void MSI_NAME(gather_##name)(const void *args)                                                 \
    {                                                                                              \
        const msi_gather_args *a = args;                                                           \
                                                                                                   \
        for (int64_t row = 0; row < gather_rows(a); row++) {                                       \
            const gather_row r = gather_row_of(a, row);                                            \
                                                                                                   \
            gather_row_##name(a, &r);                                                              \
        }                                                                                          \
    }
typedef c_bool c_truth; /* `bool` is a macro */

GATHER(f32, f32)
GATHER(f64, f64)
GATHER(bf16, bf16)
GATHER(f16, f16)
GATHER(i64, i64)
GATHER(i32, i32)
GATHER(u8, u8)
GATHER(truth, bool)

/* -- scatter ----------------------------------------------------------------------------------- */

/* An index out of range writes nothing. */
#define SCATTER_ROW(dtype, out_dtype, suffix, EXPR)                                                \
    static void scatter_##suffix##_##dtype(const msi_gather_args *a, const gather_row *r)          \
    {                                                                                              \
        const c_##dtype *in = (const c_##dtype *)a->in + r->in;                                    \
        const int64_t *index = a->index + r->index;                                                \
        c_##out_dtype *out = (c_##out_dtype *)a->out + r->out;                                     \
                                                                                                   \
        if (r->index_step == 0 && r->n > 0 && index_is_inside(*index - 1, a->size)) {              \
            out += (*index - 1) * a->step;                                                         \
            for (int64_t j = 0; j < r->n; j++) {                                                   \
                c_##out_dtype *to = out + j * r->out_step;                                         \
                const c_##dtype x = in[j * r->in_step];                                            \
                *to = (EXPR);                                                                      \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t j = 0; j < r->n; j++) {                                                       \
            const int64_t at = index[j * r->index_step];                                           \
                                                                                                   \
            if (gather_is_inside(a, at, r->position + j, MSI_K_scatter)) {                         \
                c_##out_dtype *to = out + j * r->out_step + (at - 1) * a->step;                    \
                const c_##dtype x = in[j * r->in_step];                                            \
                *to = (EXPR);                                                                      \
            }                                                                                      \
        }                                                                                          \
    }
#define SCATTER(dtype, out_dtype, name)                                                            \
    SCATTER_ROW(dtype, dtype, store, x)                                                            \
    SCATTER_ROW(dtype, out_dtype, add, ADD_##out_dtype(*to, GET_##dtype(x)))                       \
                                                                                                   \
    void MSI_NAME(scatter_##name)(const void *args)                                                \
    {                                                                                              \
        const msi_gather_args *a = args;                                                           \
                                                                                                   \
        for (int64_t row = 0; row < gather_rows(a); row++) {                                       \
            const gather_row r = gather_row_of(a, row);                                            \
                                                                                                   \
            a->add ? scatter_add_##dtype(a, &r) : scatter_store_##dtype(a, &r);                    \
        }                                                                                          \
    }
#define GET_truth(x) GET_bool(x)
#define ADD_truth(old, x) ADD_bool(old, x)

SCATTER(f32, f32, f32)
SCATTER(f64, f64, f64)
SCATTER(bf16, f32, bf16)
SCATTER(f16, f32, f16)
SCATTER(i64, i64, i64)
SCATTER(i32, i32, i32)
SCATTER(u8, u8, u8)
SCATTER(truth, truth, bool)
