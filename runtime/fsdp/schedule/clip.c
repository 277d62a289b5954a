/* Clipping by the total gradient norm, with the same bits for every strategy, policy and world
 * size.
 *
 * If ranks exchange messages (norm_parts.h), the host waits once, to read its own. Otherwise
 * kernels compute norm and factor, and nothing waits. */
#include "norm_parts.h"

/* Maximum message size of any rank, and size of this rank's kept blocks, in bytes. */
static ms_status measure_all(const ms_fsdp_tree *tree, const msi_param_list *o, int64_t *room,
                             int64_t *kept)
{
    int64_t blocks, fragments;

    *room = *kept = 0;
    for (int32_t q = 0; q < tree->world; q++) {
        MS_TRY(msi_norm_measure(tree, o, q, &blocks, &fragments));
        *room = blocks + fragments > *room ? blocks + fragments : *room;
    }
    for (int32_t i = 0; i < o->n; i++) {
        *kept += msi_norm_kept_blocks(tree, &o->places[i]) * (int64_t)sizeof(double);
    }
    return MS_OK;
}

/* Gather every rank's message, `room` bytes each, into `all`. */
static ms_status exchange(ms_fsdp_tree *tree, const msi_param_list *o, const char *mine,
                          int64_t room, char *all, msi_norm_message *messages)
{
    int64_t blocks, fragments;

    MS_TRY(msi_tree_gather(tree, "clip_grad_norm_", mine, room, all));
    msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE); /* equivalent collective */
    for (int32_t q = 0; q < tree->world; q++) {
        MS_TRY(msi_norm_measure(tree, o, q, &blocks, &fragments));
        messages[q] =
            (msi_norm_message){(double *)(void *)(all + q * room), all + q * room + blocks};
    }
    return MS_OK;
}

/* From all ranks' messages. */
static ms_status norm_of_all(ms_fsdp_tree *tree, const msi_param_list *o, bool largest,
                             double *total)
{
    int64_t room, kept;
    msi_mem_block *mine = NULL, *all = NULL, *of_ranks = NULL;
    ms_status status;

    MS_TRY(measure_all(tree, o, &room, &kept));
    MS_TRY(msi_host_alloc(tree->ctx, room * tree->world, MS_MEM_SCRATCH, &all));
    MS_TRY_GOTO(msi_host_alloc(tree->ctx, room + kept, MS_MEM_SCRATCH, &mine), done);
    MS_TRY_GOTO(msi_host_alloc(tree->ctx, (int64_t)sizeof(msi_norm_message) * tree->world,
                               MS_MEM_SCRATCH, &of_ranks),
                done);
    msi_norm_message *messages = of_ranks->data;
    char *own = mine->data;

    MS_TRY_GOTO(msi_norm_know(tree, o, largest, room, kept, own), done);
    MS_TRY_GOTO(exchange(tree, o, own, room, all->data, messages), done);
    status =
        msi_norm_fold_all(tree, o, largest, messages, (const double *)(void *)(own + room), total);
    *total = msi_plain_nan(msi_norm_finish(*total, largest));
done:
    msi_release(of_ranks);
    msi_release(mine);
    msi_release(all);
    return status;
}

/* From this rank's gradients. */
static ms_status norm_of_own(const msi_param_list *o, double max_norm, msi_norm *norm)
{
    for (int32_t i = 0; i < o->n; i++) {
        const ms_tensor *grad = o->places[i].tensor->grad;

        if (grad != NULL) {
            MS_TRY(msi_norm_add(norm, &grad->v));
        }
    }
    return msi_norm_fold_blocks(norm, max_norm);
}

static bool any_is_sent(const ms_fsdp_tree *tree, const msi_param_list *o)
{
    bool any = false;

    for (int32_t i = 0; i < o->n; i++) {
        any |= msi_norm_is_sent(tree, &o->places[i]);
    }
    return any;
}

/* The caller releases `norm`, in any case. */
static ms_status total_norm(ms_fsdp_tree *tree, const msi_param_list *o, double max_norm,
                            bool largest, msi_norm *norm)
{
    const bool sent = any_is_sent(tree, o);
    int64_t n_blocks = 0;
    double value;

    for (int32_t i = 0; i < o->n && !sent; i++) {
        n_blocks += msi_norm_kept_blocks(tree, &o->places[i]);
    }
    MS_TRY(msi_norm_open(norm, tree->ctx, n_blocks, largest));
    if (!sent) {
        return norm_of_own(o, max_norm, norm);
    }
    MS_TRY(norm_of_all(tree, o, largest, &value));
    return msi_norm_set(norm, max_norm, value);
}

static ms_status check_reduced(const ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        const ms_fsdp_unit *u = tree->units[i];

        if (msi_accumulator_holds(&u->sums)) {
            return MS_FAIL(MS_RUNTIME_ERROR,
                           "clip_grad_norm: gradients of unit '%s' were accumulated inside no_sync "
                           "and are not reduced yet; run the last backward outside no_sync",
                           u->name);
        }
    }
    return MS_OK;
}

static ms_status clip_by(const msi_norm *norm, const msi_param_list *o)
{
    for (int32_t i = 0; i < o->n; i++) {
        ms_tensor *grad = o->places[i].tensor->grad;

        if (grad != NULL) {
            MS_TRY(msi_tensor_begin_write(grad, "clip_grad_norm"));
            MS_TRY(msi_norm_clip(norm, &grad->v));
        }
    }
    return MS_OK;
}

static ms_status clip(ms_tensor **total, ms_fsdp_tree *tree, const msi_param_list *o,
                      double max_norm, double norm_type, bool largest)
{
    msi_norm norm = {0};
    ms_status status = total_norm(tree, o, max_norm, largest, &norm);

    if (status == MS_OK) {
        status = clip_by(&norm, o);
    }
    *total = status == MS_OK ? msi_norm_take(&norm) : NULL;
    msi_norm_release(&norm);
    return status;
}

ms_status ms_fsdp_tree_clip_grad_norm(ms_tensor **total, ms_fsdp_tree *tree,
                                      ms_tensor *const *params, int32_t n_params, double max_norm,
                                      double norm_type)
{
    bool largest;
    msi_param_list o;

    MS_TRY(msi_clip_check(max_norm, norm_type, &largest));
    MS_TRY(ms_fsdp_tree_init(tree));
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(msi_unit_check_gradient(tree->units[i], "clip_grad_norm_"));
    }
    MS_TRY(check_reduced(tree));
    MS_TRY(msi_param_list_new(tree, params, n_params, &o));
    ms_status status = clip(total, tree, &o, max_norm, norm_type, largest);

    msi_release(o.block);
    return status;
}
