/* Negative log-likelihood under softmax, fused: forward saves the logits and two numbers per row;
 * backward overwrites the logits with their gradient if it may. So a (tokens, vocabulary) matrix
 * exists once. */
#include "meta.h"
#include "operand.h"

enum { LOGITS, TARGETS };
enum { SAVED_LOGITS, SAVED_TARGETS, SAVED_STATS, SAVED_COUNT };

typedef struct loss_attrs {
    int64_t ignore_index;
    int32_t reduction;
} loss_attrs;

static ms_status cross_entropy_meta(const msi_meta *m)
{
    const msi_view *logits = m->in[LOGITS], *targets = m->in[TARGETS];
    const loss_attrs *attrs = m->attrs;
    msi_view rows = *logits;

    rows.ndim--;
    if (logits->ndim < 1 || !msi_view_same_shape(&rows, targets)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "cross_entropy: logits have shape %s and targets %s, expected (..., V) and "
                       "(...)",
                       msi_shape_text(logits->ndim, logits->shape),
                       msi_shape_text(targets->ndim, targets->shape));
    }
    if (targets->dtype != MS_DTYPE_I64) {
        return MS_FAIL(MS_TYPE_ERROR, "cross_entropy: targets are %s, expected i64",
                       ms_dtype_name(targets->dtype));
    }
    if (attrs->reduction != MS_REDUCTION_MEAN && attrs->reduction != MS_REDUCTION_SUM) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "cross_entropy: reduction is %d, expected %d (mean) or %d "
                       "(sum)",
                       (int)attrs->reduction, MS_REDUCTION_MEAN, MS_REDUCTION_SUM);
    }
    MS_TRY(msi_result(m->out, msi_stat_dtype(logits->dtype), 0, NULL));
    return msi_check_kernel("cross_entropy", MSI_K_cross_entropy, logits->dtype);
}

/* Per row, in a (2, rows): the largest logit, then the sum of exponentials relative to it. */
static void set_stats(msi_cross_entropy_args *args, const msi_view *stats)
{
    args->max = msi_view_ptr(stats);
    args->sum = (char *)args->max + args->rows * ms_dtype_size(stats->dtype);
}

/* Distance of the rows of logits without gaps or of linear_padded()'s; 0: others. */
static int64_t pitch_of(const msi_view *logits)
{
    const int64_t rows = msi_leading(logits, logits->ndim - 1);
    const int64_t shape[2] = {rows, logits->shape[logits->ndim - 1]};
    msi_view flat;

    if (msi_view_contiguous(logits) || rows <= 1) {
        return msi_view_contiguous(logits) ? shape[1] : 0;
    }
    return msi_gemm_fuses(logits->storage->ctx) && msi_view_reshape(logits, 2, shape, &flat) &&
                   flat.stride[1] == 1 && flat.stride[0] >= shape[1]
               ? flat.stride[0]
               : 0;
}

static ms_status read_logits(msi_view *out, ms_context *ctx, const msi_view *in, int64_t *pitch)
{
    *pitch = pitch_of(in);
    if (*pitch > in->shape[in->ndim - 1]) {
        *out = *in;
        msi_storage_retain(out->storage);
        return MS_OK;
    }
    *pitch = in->shape[in->ndim - 1];
    return msi_contiguous(out, ctx, in);
}

static ms_status cross_entropy_forward(msi_op_call *c)
{
    const msi_view *in = &c->in[LOGITS]->v;
    const loss_attrs *attrs = c->attrs;
    msi_cross_entropy_args args = {.ignore_index = attrs->ignore_index,
                                   .mean = attrs->reduction == MS_REDUCTION_MEAN,
                                   .loss = msi_view_ptr(&c->out[0]->v)};
    msi_view logits = {0}, targets = {0}, stats = {0}, count = {0};
    void *logit_data, *target_data;
    msi_fault fault = {0};
    ms_status status;

    args.rows = msi_leading(in, in->ndim - 1);
    args.cols = in->shape[in->ndim - 1];
    const int32_t stat = c->out[0]->v.dtype;

    MS_TRY_GOTO(read_logits(&logits, c->ctx, in, &args.pitch), out);
    MS_TRY_GOTO(msi_contiguous(&targets, c->ctx, &c->in[TARGETS]->v), out);
    MS_TRY_GOTO(msi_view_data(&logits, &logit_data), out);
    MS_TRY_GOTO(msi_view_data(&targets, &target_data), out);
    MS_TRY_GOTO(msi_internal(&stats, c->ctx, stat, 2, (const int64_t[]){2, args.rows}), out);
    MS_TRY_GOTO(msi_internal(&count, c->ctx, MS_DTYPE_I64, 0, NULL), out);
    args.logits = logit_data;
    args.targets = target_data;
    args.n_counted = msi_view_ptr(&count);
    args.fault = msi_device_fault(c->ctx, &fault);
    set_stats(&args, &stats);
    MS_TRY_GOTO(msi_dispatch("cross_entropy", MSI_K_cross_entropy, in->dtype, &args), out);
    MS_TRY_GOTO(msi_fault_report(&fault), out);
    msi_save(c, SAVED_LOGITS, &logits);
    msi_save(c, SAVED_TARGETS, &targets);
    msi_save(c, SAVED_STATS, &stats);
    msi_save(c, SAVED_COUNT, &count);
out:
    msi_storage_release(count.storage);
    msi_storage_release(stats.storage);
    msi_storage_release(targets.storage);
    msi_storage_release(logits.storage);
    return status;
}

static ms_status cross_entropy_backward(msi_bwd *b)
{
    const loss_attrs *attrs = msi_bwd_attrs(b);
    const msi_view *logits, *targets, *stats, *count;
    msi_view dense;
    msi_cross_entropy_args args = {.ignore_index = attrs->ignore_index,
                                   .mean = attrs->reduction == MS_REDUCTION_MEAN};
    void *dloss;
    msi_target t;

    MS_TRY(msi_bwd_saved(b, SAVED_LOGITS, &logits));
    MS_TRY(msi_bwd_saved(b, SAVED_TARGETS, &targets));
    MS_TRY(msi_bwd_saved(b, SAVED_STATS, &stats));
    MS_TRY(msi_bwd_saved(b, SAVED_COUNT, &count));
    MS_TRY(msi_view_data(msi_bwd_grad(b, 0), &dloss));
    args.dloss = dloss;
    args.n_counted = msi_view_ptr(count);
    args.rows = stats->shape[1];
    args.cols = logits->shape[logits->ndim - 1];
    args.targets = msi_view_ptr(targets);
    set_stats(&args, stats);
    MS_TRY(msi_target_open_over(&t, b, LOGITS, SAVED_LOGITS));
    args.pitch = pitch_of(logits);
    if (t.passes == NULL && args.pitch > args.cols) { /* the gradient has no gaps */
        MS_TRY(msi_bwd_contiguous(b, logits, &dense));
        logits = &dense;
        args.pitch = args.cols;
    }
    args.logits = msi_view_ptr(logits);
    args.dlogits = t.data;
    args.accumulate = t.add;
    MS_TRY(msi_dispatch("cross_entropy", MSI_K_cross_entropy_grad, logits->dtype, &args));
    return msi_target_close(&t);
}

const msi_op msi_op_cross_entropy = {.name = "cross_entropy",
                                     .meta = cross_entropy_meta,
                                     .forward = cross_entropy_forward,
                                     .backward = cross_entropy_backward,
                                     .attrs_size = sizeof(loss_attrs),
                                     .n_saved = 4,
                                     .overwrites = true,
                                     .overwrites_rows = true};

ms_status ms_op_cross_entropy(ms_tensor **out, ms_tensor *logits, ms_tensor *targets,
                              int64_t ignore_index, int32_t reduction)
{
    ms_tensor *const in[2] = {logits, targets};
    const loss_attrs attrs = {.ignore_index = ignore_index, .reduction = reduction};

    *out = NULL;
    return msi_op_run(&msi_op_cross_entropy, &attrs, in, 2, out, 1);
}
