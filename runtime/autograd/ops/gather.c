/* Elements at positions along one dimension. The gradient adds in the order of the positions. */
#include "meta.h"
#include "operand.h"

enum { X, INDEX, SRC };
enum { SAVED_INDEX };

typedef struct gather_attrs {
    int32_t dim;
    bool add;
} gather_attrs;

/* -- checks ------------------------------------------------------------------------------------ */

static ms_status check_sizes(const msi_meta *m, const char *name, const msi_view *v, int32_t except)
{
    const msi_view *index = m->in[INDEX];
    bool fits = v->ndim == index->ndim;

    for (int32_t d = 0; fits && d < v->ndim; d++) {
        fits = d == except || index->shape[d] <= v->shape[d];
    }
    return fits ? MS_OK
                : MS_FAIL(MS_VALUE_ERROR,
                          "%s: index has shape %s, %s has %s, expected sizes of at "
                          "most these",
                          m->op->name, msi_shape_text(index->ndim, index->shape), name,
                          msi_shape_text(v->ndim, v->shape));
}

static ms_status check_index(const msi_meta *m)
{
    const int32_t dim = ((const gather_attrs *)m->attrs)->dim;
    const msi_view *x = m->in[X], *index = m->in[INDEX];

    if (dim < 0 || dim >= x->ndim) {
        return MS_FAIL(MS_INDEX_ERROR, "%s: dimension %d is outside of shape %s", m->op->name,
                       (int)dim, msi_shape_text(x->ndim, x->shape));
    }
    if (index->dtype != MS_DTYPE_I64) {
        return MS_FAIL(MS_TYPE_ERROR, "%s: index is %s, expected i64", m->op->name,
                       ms_dtype_name(index->dtype));
    }
    return check_sizes(m, "x", x, dim);
}

/* -- kernels ----------------------------------------------------------------------------------- */

/* `indexed` is out of scatter, or the source of gather. All have the index's number of dimensions;
 * the loop runs over the index's shape. */
static ms_status run(const char *op, int32_t kernel, int32_t dim, const msi_view *indexed,
                     const msi_view *index, const msi_view *other, bool add, msi_fault *fault)
{
    msi_view along = *indexed;
    void *indexed_data, *other_data, *positions;
    const bool gathers = kernel == MSI_K_gather;
    const msi_view *views[3] = {gathers ? other : &along, index, gathers ? &along : other};

    MS_TRY(msi_view_data(indexed, &indexed_data)); /* error if absent */
    MS_TRY(msi_view_data(other, &other_data));
    MS_TRY(msi_view_data(index, &positions));
    if (msi_view_numel(index) == 0) {
        return MS_OK;
    }
    along.stride[dim] = 0;
    msi_gather_args args = {.size = indexed->shape[dim],
                            .step = indexed->stride[dim],
                            .index = positions,
                            .in = gathers ? indexed_data : other_data,
                            .out = gathers ? other_data : indexed_data,
                            .add = add,
                            .fault = fault};

    msi_loop_make(&args.loop, index->ndim, index->shape, views, 3);
    return msi_dispatch(op, kernel, gathers ? indexed->dtype : other->dtype, &args);
}

/* Add `src` at the positions to `t`, a target that was opened for src's dtype. Narrow elements are
 * added in f32. */
static ms_status add_at(msi_target *t, msi_bwd *b, int32_t dim, const msi_view *index,
                        const msi_view *src)
{
    if (ms_dtype_is_narrow(t->view.dtype)) {
        MS_TRY(msi_target_stage(t, b, MS_DTYPE_F32));
    }
    if (!t->add) {
        MS_TRY(msi_fill(&t->view, 0));
    }
    MS_TRY(run(msi_bwd_name(b), MSI_K_scatter, dim, &t->view, index, src, true, NULL));
    return msi_target_close(t);
}

/* -- gather ------------------------------------------------------------------------------------ */

static ms_status gather_meta(const msi_meta *m)
{
    MS_TRY(check_index(m));
    return msi_result(m->out, m->in[X]->dtype, m->in[INDEX]->ndim, m->in[INDEX]->shape);
}

static ms_status gather_forward(msi_op_call *c)
{
    const gather_attrs *attrs = c->attrs;
    const msi_view *index = &c->in[INDEX]->v;
    msi_fault fault = {0};

    MS_TRY(run("gather", MSI_K_gather, attrs->dim, &c->in[X]->v, index, &c->out[0]->v, false,
               msi_device_fault(c->ctx, &fault)));
    msi_save(c, SAVED_INDEX, index);
    return msi_fault_report(&fault);
}

static ms_status gather_backward(msi_bwd *b)
{
    const gather_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *g = msi_bwd_grad(b, 0), *index;
    msi_target t;

    MS_TRY(msi_bwd_saved(b, SAVED_INDEX, &index));
    MS_TRY(msi_target_open(&t, b, X, g->dtype, MSI_CAN_ADD | MSI_CAN_WIDEN));
    return add_at(&t, b, attrs->dim, index, g);
}

const msi_op msi_op_gather = {.name = "gather",
                              .meta = gather_meta,
                              .forward = gather_forward,
                              .backward = gather_backward,
                              .attrs_size = sizeof(gather_attrs),
                              .n_saved = 1};

ms_status ms_op_gather(ms_tensor **out, ms_tensor *x, int32_t dim, ms_tensor *index)
{
    const gather_attrs attrs = {dim, false};
    ms_tensor *const in[2] = {x, index};

    *out = NULL;
    return msi_op_run(&msi_op_gather, &attrs, in, 2, out, 1);
}

/* -- scatter, scatter_add ---------------------------------------------------------------------- */

static ms_status scatter_meta(const msi_meta *m)
{
    MS_TRY(check_index(m));
    MS_TRY(msi_same_dtype(m->op->name, "x", m->in[X], "src", m->in[SRC]));
    MS_TRY(check_sizes(m, "src", m->in[SRC], -1));
    return msi_meta_like(m);
}

/* x, then `src` at the positions, in `work`. */
static ms_status scatter_into(const msi_op_call *c, const msi_view *work)
{
    const gather_attrs *attrs = c->attrs;
    msi_fault fault = {0};

    MS_TRY(msi_copy(work, &c->in[X]->v, false));
    MS_TRY(run(c->op->name, MSI_K_scatter, attrs->dim, work, &c->in[INDEX]->v, &c->in[SRC]->v,
               attrs->add, msi_device_fault(c->ctx, &fault)));
    return msi_fault_report(&fault);
}

static ms_status scatter_forward(msi_op_call *c)
{
    const gather_attrs *attrs = c->attrs;
    const msi_view *out = &c->out[0]->v;
    msi_view work = *out;
    ms_status status;

    if (attrs->add && ms_dtype_is_narrow(out->dtype)) {
        MS_TRY(msi_internal(&work, c->ctx, MS_DTYPE_F32, out->ndim, out->shape));
        MS_TRY_GOTO(scatter_into(c, &work), done);
        MS_TRY_GOTO(msi_copy(out, &work, false), done);
    } else {
        MS_TRY(scatter_into(c, out));
    }
    msi_save(c, SAVED_INDEX, &c->in[INDEX]->v);
    status = MS_OK;
done:
    if (work.storage != out->storage) {
        msi_storage_release(work.storage);
    }
    return status;
}

/* src's gradient: that of the result at its positions, 0 beyond the index's shape. */
static ms_status src_backward(msi_bwd *b, int32_t dim, const msi_view *index)
{
    const msi_view *g = msi_bwd_grad(b, 0);
    msi_target t;

    MS_TRY(msi_target_open(&t, b, SRC, g->dtype, 0));
    if (t.data == NULL) {
        return MS_OK;
    }
    if (!msi_view_same_shape(&t.view, index)) {
        MS_TRY(msi_fill(&t.view, 0));
    }
    MS_TRY(run(msi_bwd_name(b), MSI_K_gather, dim, g, index, &t.view, false, NULL));
    return msi_target_close(&t);
}

/* x's gradient: that of the result, 0 where `src` was stored. */
static ms_status x_backward(msi_bwd *b, const gather_attrs *attrs, const msi_view *index)
{
    const msi_view *g = msi_bwd_grad(b, 0);
    msi_view kept, zero, zeros;

    if (attrs->add || !msi_bwd_needs(b, X)) {
        return msi_bwd_pass(b, X, g);
    }
    MS_TRY(msi_bwd_temp(b, g->dtype, g->ndim, g->shape, &kept));
    MS_TRY(msi_copy(&kept, g, false));
    MS_TRY(msi_bwd_temp(b, g->dtype, 0, NULL, &zero));
    MS_TRY(msi_fill(&zero, 0));
    msi_view_expand(&zero, index->ndim, index->shape, &zeros);
    MS_TRY(run(msi_bwd_name(b), MSI_K_scatter, attrs->dim, &kept, index, &zeros, false, NULL));
    return msi_bwd_pass(b, X, &kept);
}

static ms_status scatter_backward(msi_bwd *b)
{
    const gather_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *index;

    MS_TRY(msi_bwd_saved(b, SAVED_INDEX, &index));
    MS_TRY(x_backward(b, attrs, index));
    return src_backward(b, attrs->dim, index);
}

#define SCATTER(name_, add_)                                                                       \
    const msi_op msi_op_##name_ = {.name = #name_,                                                 \
                                   .meta = scatter_meta,                                           \
                                   .forward = scatter_forward,                                     \
                                   .backward = scatter_backward,                                   \
                                   .attrs_size = sizeof(gather_attrs),                             \
                                   .n_saved = 1};                                                  \
                                                                                                   \
    ms_status ms_op_##name_(ms_tensor **out, ms_tensor *x, int32_t dim, ms_tensor *index,          \
                            ms_tensor *src)                                                        \
    {                                                                                              \
        const gather_attrs attrs = {dim, add_};                                                    \
        ms_tensor *const in[3] = {x, index, src};                                                  \
                                                                                                   \
        *out = NULL;                                                                               \
        return msi_op_run(&msi_op_##name_, &attrs, in, 3, out, 1);                                 \
    }
SCATTER(scatter, false)
SCATTER(scatter_add, true)
