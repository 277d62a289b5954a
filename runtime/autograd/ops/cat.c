/* Concatenation. Each operand's gradient is a part of the result's. */
#include "array.h"
#include "meta.h"
#include "operand.h"

#include <stdlib.h>

typedef struct cat_attrs {
    int32_t dim, n;
} cat_attrs;

/* The `length` entries of `v` from `start` along `dim`. */
static msi_view part_of(const msi_view *v, int32_t dim, int64_t start, int64_t length)
{
    msi_view part = *v;

    part.offset += start * v->stride[dim];
    part.shape[dim] = length;
    return part;
}

static ms_status check_operand(const msi_view *first, const msi_view *v, int32_t dim)
{
    bool fits = v->ndim == first->ndim;

    for (int32_t d = 0; fits && d < v->ndim; d++) {
        fits = d == dim || v->shape[d] == first->shape[d];
    }
    if (!fits) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "cat: a tensor has shape %s, expected that of the first, %s, except along "
                       "the dimension they join",
                       msi_shape_text(v->ndim, v->shape),
                       msi_shape_text(first->ndim, first->shape));
    }
    if (v->dtype != first->dtype) {
        return MS_FAIL(MS_TYPE_ERROR, "cat: a tensor is %s and the first is %s, expected one dtype",
                       ms_dtype_name(v->dtype), ms_dtype_name(first->dtype));
    }
    return MS_OK;
}

static ms_status cat_meta(const msi_meta *m)
{
    const int32_t dim = ((const cat_attrs *)m->attrs)->dim;
    const msi_view *first = m->in[0];
    int64_t shape[MS_MAX_DIMS];

    if (dim < 0 || dim >= first->ndim) {
        return MS_FAIL(MS_INDEX_ERROR, "cat: dimension %d is outside of shape %s", (int)dim,
                       msi_shape_text(first->ndim, first->shape));
    }
    for (int32_t d = 0; d < first->ndim; d++) {
        shape[d] = first->shape[d];
    }
    shape[dim] = 0;
    for (int32_t i = 0; i < m->n_in; i++) {
        MS_TRY(check_operand(first, m->in[i], dim));
        shape[dim] += m->in[i]->shape[dim];
        MS_TRY(msi_check_sizes(1, &shape[dim]));
    }
    return msi_result(m->out, first->dtype, first->ndim, shape);
}

static ms_status cat_forward(msi_op_call *c)
{
    const int32_t dim = ((const cat_attrs *)c->attrs)->dim;
    int64_t start = 0;

    for (int32_t i = 0; i < c->n_in; i++) {
        const msi_view *v = &c->in[i]->v;
        const msi_view part = part_of(&c->out[0]->v, dim, start, v->shape[dim]);

        MS_TRY(msi_copy(&part, v, false));
        start += v->shape[dim];
    }
    return MS_OK;
}

static ms_status cat_backward(msi_bwd *b)
{
    const cat_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *g = msi_bwd_grad(b, 0);
    int64_t start = 0;

    for (int32_t i = 0; i < attrs->n; i++) {
        const int64_t length = msi_bwd_operand(b, i)->shape[attrs->dim];
        const msi_view part = part_of(g, attrs->dim, start, length);

        MS_TRY(msi_bwd_pass(b, i, &part));
        start += length;
    }
    return MS_OK;
}

const msi_op msi_op_cat = {.name = "cat",
                           .meta = cat_meta,
                           .forward = cat_forward,
                           .backward = cat_backward,
                           .attrs_size = sizeof(cat_attrs)};

/* More tensors than an operator takes: join groups of neighbours, then those. */
static ms_status cat_groups(ms_tensor **out, ms_tensor *const *tensors, int32_t n_tensors,
                            int32_t dim)
{
    const int32_t n_groups = (n_tensors - 1) / MSI_OP_MAX_IN + 1;
    ms_tensor **groups;
    ms_status status = MS_OK;

    MS_TRY(msi_new_array(&groups, n_groups, "groups of tensors of cat"));
    for (int32_t i = 0; i < n_groups && status == MS_OK; i++) {
        const int32_t first = i * MSI_OP_MAX_IN, left = n_tensors - first;

        status = ms_op_cat(&groups[i], tensors + first, left < MSI_OP_MAX_IN ? left : MSI_OP_MAX_IN,
                           dim);
    }
    if (status == MS_OK) {
        status = ms_op_cat(out, groups, n_groups, dim);
    }
    for (int32_t i = 0; i < n_groups; i++) {
        ms_tensor_free(groups[i]);
    }
    free(groups);
    return status;
}

ms_status ms_op_cat(ms_tensor **out, ms_tensor *const *tensors, int32_t n_tensors, int32_t dim)
{
    const cat_attrs attrs = {dim, n_tensors};

    *out = NULL;
    if (n_tensors < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "cat: got %d tensors, expected at least 1", (int)n_tensors);
    }
    if (n_tensors > MSI_OP_MAX_IN) {
        return cat_groups(out, tensors, n_tensors, dim);
    }
    return msi_op_run(&msi_op_cat, &attrs, tensors, n_tensors, out, 1);
}
