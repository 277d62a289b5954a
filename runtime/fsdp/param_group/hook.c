/* Hooks of the program for gradients: see ms_fsdp_unit_set_hook(). */
#include "gradient.h"
#include "host.h"
#include "unshard.h"

static bool none_to_fill(void *progress)
{
    return msi_progress_first(progress, MSI_TASK_FILL) == NULL;
}

/* A hook may wait for peers without running tasks, for which these may wait. */
static ms_status finish_tasks(msi_progress *progress, const msi_slot_pool *gradients)
{
    const msi_task *task;

    while ((task = msi_progress_first(progress, MSI_TASK_FILL)) != NULL) {
        const msi_gather *g = (const msi_gather *)task;

        MS_TRY(msi_progress_wait(progress, g->pool->comm, g->seq, none_to_fill, progress));
    }
    return msi_reductions_finish(progress, gradients);
}

static ms_status new_gradient(const ms_fsdp_unit *u, int64_t numel, ms_tensor **out)
{
    return msi_tensor_make(out, u->ctx, u->sums.micro_dtype, 1, &numel, MS_MEM_GRADIENT);
}

static ms_status run_hook(ms_fsdp_unit *u, int32_t moment, ms_tensor *grad, ms_tensor *out)
{
    const msi_unit_hook *hook = &u->hooks[moment];
    const char aside = msi_host_begin(u->ctx);
    const ms_status status = hook->fn(hook->user, u->name, grad, out);

    return msi_host_end(u->ctx, aside, status,
                        moment == MS_HOOK_REDUCE ? "a communication hook" : "an all-reduce hook");
}

/* Let the hook reduce the whole gradient; `*reduced` is this rank's part of what it gives, of a
 * replica all. */
static ms_status reduce_whole(ms_fsdp_unit *u, ms_tensor *whole, ms_tensor **reduced)
{
    if (u->is_sharded) {
        MS_TRY(new_gradient(u, u->shard_numel, reduced));
    }
    const int64_t version = *reduced != NULL ? (*reduced)->v.storage->version : 0;

    MS_TRY(run_hook(u, MS_HOOK_REDUCE, whole, *reduced));
    if (*reduced == NULL) {
        *reduced = ms_tensor_retain(whole);
    } else if ((*reduced)->v.storage->version == version) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "unit '%s': the communication hook returned without writing 'out', this "
                       "rank's part of the gradient",
                       u->name);
    }
    return MS_OK;
}

/* Set `contributed` of the parameters that any rank's backwards reached, as the flags in a slot do
 * for a reduction. */
static ms_status gather_flags(ms_fsdp_unit *u)
{
    msi_mem_block *block;
    msi_label label;

    MS_TRY(msi_host_alloc(u->ctx, (int64_t)u->n_params * (u->world + 1), MS_MEM_SCRATCH, &block));
    bool *mine = block->data, *all = mine + u->n_params;

    for (int32_t i = 0; i < u->n_params; i++) {
        mine[i] = u->params[i].contributed || u->params[i].accumulated;
        u->params[i].contributed = u->params[i].accumulated = false;
    }
    msi_label_about(&label, "communication hook of unit", u->name);
    const ms_status status = msi_progress_gather(&u->run->progress, u->comm, &label, u->run->model,
                                                 mine, u->n_params, all);

    for (int32_t k = 0; status == MS_OK && k < u->n_params * u->world; k++) {
        u->params[k % u->n_params].contributed |= all[k];
    }
    msi_release(block);
    return status;
}

static ms_status take_piece(ms_fsdp_unit *u, int32_t index, const ms_tensor *reduced)
{
    msi_unit_param *p = &u->params[index];
    msi_view from = reduced->v, to;

    from.offset = u->is_sharded ? p->piece.offset_in_shard : p->offset;
    msi_unit_gradient_like(u, index, &to);
    from.ndim = to.ndim;
    msi_view_set_contiguous(&from, reduced->v.dtype, to.ndim, to.shape);
    if (p->tensor->grad != NULL) {
        return msi_copy(&p->tensor->grad->v, &from, true);
    }
    return msi_copy(&to, &from, false);
}

static ms_status take(ms_fsdp_unit *u, const ms_tensor *reduced)
{
    MS_TRY(msi_unit_gradient_make(u));
    for (int32_t i = 0; i < u->n_params; i++) {
        const msi_unit_param *p = &u->params[i];

        if (p->piece.numel > 0 && p->tensor->requires_grad && p->contributed) {
            MS_TRY(take_piece(u, i, reduced));
        }
    }
    msi_unit_gradient_show(u);
    return MS_OK;
}

/* The whole gradient, as the shards in a row. */
static ms_status fold_gradient(ms_fsdp_unit *u, ms_tensor **out)
{
    const int64_t size = ms_dtype_size(u->sums.micro_dtype);
    ms_tensor *whole, *shards;

    MS_TRY(new_gradient(u, msi_unit_full_numel(u), &whole));
    ms_status status = msi_accumulator_fold(&u->sums, whole->v.storage->data, u->sums.micro_dtype);

    *out = whole;
    if (status != MS_OK || msi_layout_in_rank_order(u->layout)) {
        return status;
    }
    *out = NULL;
    MS_TRY_GOTO(new_gradient(u, msi_layout_gathered_numel(u->layout), &shards), done);
    *out = shards;
    MS_TRY_GOTO(msi_mem_set(u->ctx, shards->v.storage->data, 0, shards->v.storage->nbytes), done);
    status = msi_unit_pack_shards(u, whole->v.storage->data, shards->v.storage->data, size);
done:
    ms_tensor_free(whole);
    return status;
}

static ms_status reduce_by_hook(ms_fsdp_unit *u, ms_tensor **reduced)
{
    ms_tensor *whole = NULL;
    ms_status status;

    MS_TRY_GOTO(fold_gradient(u, &whole), done);
    msi_reduction_set(&u->reduction, MSI_GRAD_NONE);
    MS_TRY_GOTO(gather_flags(u), done);
    status = reduce_whole(u, whole, reduced);
done:
    ms_tensor_free(whole);
    return status;
}

static ms_status reduce_by_runtime(ms_fsdp_unit *u, ms_tensor **reduced)
{
    MS_TRY(new_gradient(u, u->shard_numel, reduced));
    MS_TRY(msi_fill(&(*reduced)->v, -0.0)); /* x + -0 is x */
    return msi_gradient_reduce_apart(u, *reduced);
}

ms_status msi_unit_reduce_with_hooks(ms_fsdp_unit *u)
{
    ms_tensor *reduced = NULL;
    ms_status status;

    MS_TRY(finish_tasks(&u->run->progress, &u->run->gradients));
    if (u->hooks[MS_HOOK_REDUCE].fn != NULL) {
        MS_TRY_GOTO(reduce_by_hook(u, &reduced), done);
    } else {
        MS_TRY_GOTO(reduce_by_runtime(u, &reduced), done);
    }
    if (u->hooks[MS_HOOK_REDUCED].fn != NULL) {
        MS_TRY_GOTO(run_hook(u, MS_HOOK_REDUCED, reduced, NULL), done);
    }
    status = take(u, reduced);
done:
    ms_tensor_free(reduced);
    return status;
}

void msi_unit_hook_drop(msi_unit_hook *hook)
{
    if (hook->fn != NULL && hook->drop != NULL) {
        hook->drop(hook->user);
    }
    hook->fn = NULL;
}
