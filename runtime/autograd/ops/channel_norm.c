/* Batch and group normalisation of x (N, C, ...): y = (x - mean) / sqrt(variance + eps) w + bias
 * with statistics (2, sets), which channel_stats computes. Saves x, w and the statistics. */
#include "meta.h"
#include "operand.h"

#include <math.h>

enum { X, STATS, W, BIAS };

typedef struct norm_attrs {
    int64_t groups; /* 0: a set is a channel of the batch */
    double eps;
    bool of_input;
} norm_attrs;

static ms_status check_groups(const char *op, const msi_view *x, int64_t groups)
{
    if (x->ndim < 2 || groups < 0 || (groups > 0 && x->shape[1] % groups != 0)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "%s: x has shape %s, expected (N, C, ...) with C a multiple of groups = "
                       "%lld",
                       op, msi_shape_text(x->ndim, x->shape), (long long)groups);
    }
    return msi_check_kernel(op, MSI_K_channel_norm, x->dtype);
}

static int64_t sets_of(const msi_view *x, int64_t groups)
{
    return groups == 0 ? x->shape[1] : x->shape[0] * groups;
}

static void set_sizes(msi_channel_norm_args *args, const msi_view *x, const norm_attrs *attrs)
{
    args->batch = x->shape[0];
    args->channels = x->shape[1];
    args->plane = 1;
    for (int32_t d = 2; d < x->ndim; d++) {
        args->plane *= x->shape[d];
    }
    args->groups = attrs->groups;
    args->eps = attrs->eps;
    args->of_input = attrs->of_input;
}

/* -- channel_stats ----------------------------------------------------------------------------- */

static ms_status stats_meta(const msi_meta *m)
{
    const msi_view *x = m->in[X];
    const norm_attrs *attrs = m->attrs;

    MS_TRY(check_groups(m->op->name, x, attrs->groups));
    return msi_result(m->out, msi_stat_dtype(x->dtype), 2,
                      (const int64_t[]){2, sets_of(x, attrs->groups)});
}

static ms_status stats_forward(msi_op_call *c)
{
    msi_channel_norm_args args = {.y = msi_view_ptr(&c->out[0]->v)};
    msi_view x;
    void *data;

    MS_TRY(msi_contiguous(&x, c->ctx, &c->in[X]->v));
    ms_status status = msi_view_data(&x, &data);

    if (status == MS_OK) {
        args.x = data;
        set_sizes(&args, &x, c->attrs);
        status = msi_dispatch(c->op->name, MSI_K_channel_stats, x.dtype, &args);
    }
    msi_storage_release(x.storage);
    return status;
}

const msi_op msi_op_channel_stats = {.name = "channel_stats",
                                     .meta = stats_meta,
                                     .forward = stats_forward,
                                     .attrs_size = sizeof(norm_attrs)};

ms_status ms_op_channel_stats(ms_tensor **out, ms_tensor *x, int64_t groups)
{
    const norm_attrs attrs = {.groups = groups};

    *out = NULL;
    return msi_op_run(&msi_op_channel_stats, &attrs, &x, 1, out, 1);
}

/* -- channel_norm ------------------------------------------------------------------------------ */

static ms_status check_affine(const msi_view *x, const msi_view *p, const char *name)
{
    if (p == NULL) {
        return MS_OK;
    }
    if (p->ndim != 1 || p->shape[0] != x->shape[1]) {
        return MS_FAIL(MS_VALUE_ERROR, "channel_norm: %s has shape %s, expected (%lld) for x %s",
                       name, msi_shape_text(p->ndim, p->shape), (long long)x->shape[1],
                       msi_shape_text(x->ndim, x->shape));
    }
    return msi_same_dtype("channel_norm", "x", x, name, p);
}

static ms_status norm_meta(const msi_meta *m)
{
    const msi_view *x = m->in[X], *stats = m->in[STATS];
    const norm_attrs *attrs = m->attrs;

    MS_TRY(check_groups(m->op->name, x, attrs->groups));
    if (stats->ndim != 2 || stats->shape[0] != 2 || stats->shape[1] != sets_of(x, attrs->groups) ||
        stats->dtype != msi_stat_dtype(x->dtype)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "channel_norm: statistics are %s %s, expected %s (2, %lld) for x %s",
                       ms_dtype_name(stats->dtype), msi_shape_text(stats->ndim, stats->shape),
                       ms_dtype_name(msi_stat_dtype(x->dtype)),
                       (long long)sets_of(x, attrs->groups), msi_shape_text(x->ndim, x->shape));
    }
    MS_TRY(check_affine(x, m->in[W], "w"));
    MS_TRY(check_affine(x, m->in[BIAS], "bias"));
    return msi_meta_like(m);
}

static ms_status norm_forward(msi_op_call *c)
{
    msi_channel_norm_args args = {.y = msi_view_ptr(&c->out[0]->v)};
    const void **const to[4] = {&args.x, &args.stats, &args.w, &args.b};
    msi_view v[4] = {{0}};
    ms_status status = MS_OK;

    for (int32_t i = X; i <= BIAS; i++) {
        void *data;

        if (c->in[i] != NULL) {
            MS_TRY_GOTO(msi_contiguous(&v[i], c->ctx, &c->in[i]->v), out);
            MS_TRY_GOTO(msi_view_data(&v[i], &data), out);
            *to[i] = data;
        }
    }
    set_sizes(&args, &v[X], c->attrs);
    MS_TRY_GOTO(msi_dispatch(c->op->name, MSI_K_channel_norm, v[X].dtype, &args), out);
    for (int32_t i = X; i <= W; i++) {
        if (v[i].storage != NULL) {
            msi_save(c, i, &v[i]);
        }
    }
out:
    for (int32_t i = X; i <= BIAS; i++) {
        msi_storage_release(v[i].storage);
    }
    return status;
}

static ms_status norm_backward(msi_bwd *b)
{
    const msi_view *x, *stats, *w;
    msi_channel_norm_args args = {0};
    msi_target dx, dw, db;
    msi_view dy, work;

    MS_TRY(msi_bwd_saved(b, X, &x));
    MS_TRY(msi_bwd_saved(b, STATS, &stats));
    if (msi_bwd_operand(b, W) != NULL) {
        MS_TRY(msi_bwd_saved(b, W, &w));
        args.w = msi_view_ptr(w);
    }
    MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dy));
    set_sizes(&args, x, msi_bwd_attrs(b));
    const int64_t n_work = 2 * args.batch * args.channels;
    const int32_t sums = msi_stat_dtype(x->dtype);

    MS_TRY(msi_bwd_temp(b, MS_DTYPE_F64, 1, &n_work, &work));
    MS_TRY(msi_target_open(&dx, b, X, x->dtype, MSI_CAN_ADD));
    MS_TRY(msi_target_open(&dw, b, W, sums, MSI_CAN_ADD));
    MS_TRY(msi_target_open(&db, b, BIAS, sums, MSI_CAN_ADD));
    if (msi_target_shares(&dw, &db)) {
        MS_TRY(msi_target_stage(&db, b, sums));
    }
    args.x = msi_view_ptr(x);
    args.stats = msi_view_ptr(stats);
    args.dy = msi_view_ptr(&dy);
    args.work = msi_view_ptr(&work);
    args.dx = dx.data;
    args.dw = dw.data;
    args.db = db.data;
    args.dx_accumulate = dx.add;
    args.dw_accumulate = dw.add;
    args.db_accumulate = db.add;
    MS_TRY(msi_dispatch("channel_norm", MSI_K_channel_norm_grad, x->dtype, &args));
    MS_TRY(msi_target_close(&dx));
    MS_TRY(msi_target_close(&dw));
    return msi_target_close(&db);
}

const msi_op msi_op_channel_norm = {.name = "channel_norm",
                                    .meta = norm_meta,
                                    .forward = norm_forward,
                                    .backward = norm_backward,
                                    .attrs_size = sizeof(norm_attrs),
                                    .n_saved = 3};

ms_status ms_op_channel_norm(ms_tensor **out, ms_tensor *x, ms_tensor *stats, ms_tensor *w,
                             ms_tensor *bias, int64_t groups, double eps, bool of_input)
{
    ms_tensor *const in[4] = {x, stats, w, bias};
    const norm_attrs attrs = {.groups = groups, .eps = eps, .of_input = of_input};

    *out = NULL;
    if (!(eps >= 0) || isinf(eps)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "channel_norm: eps is %g, expected a finite number of 0 or more", eps);
    }
    return msi_op_run(&msi_op_channel_norm, &attrs, in, 4, out, 1);
}
