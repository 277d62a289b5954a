/* Gradients of one rank: written in place, passed on when complete.
 *
 * A micro gradient is the gradient of one backward on one rank. The first
 * contribution to a parameter stores, later ones add, in program order. Then: [Note: gradient tree]
 * in accumulate.h. */
#include "gradient.h"

#include "moonshard/plan.h"

/* -- its memory -------------------------------------------------------------------------------- */

/* It is written into the slot if peers read it, or the sum it merges into in place. */
static ms_status begin_micro(ms_fsdp_unit *u)
{
    const int32_t dtype = u->full_use ? u->orig_dtype : u->reduce_dtype;
    const int64_t nbytes = msi_unit_full_numel(u) * ms_dtype_size(dtype);

    u->sums.micro_dtype = dtype;
    const bool in_slot =
        u->settings.sync && u->hooks[MS_HOOK_REDUCE].fn == NULL && dtype == msi_unit_slot_dtype(u);

    if (u->micro_view == NULL) {
        MS_TRY(msi_storage_wrap(&u->micro_view, u->ctx, MS_STORAGE_BORROWED, NULL, nbytes));
        u->micro_view->absent = "the unit's gradient was handed on";
    }
    if (in_slot) {
        MS_TRY(msi_reduction_open(&u->reduction));
        msi_micro_in_slot(&u->sums, msi_reduction_part(&u->reduction, u->rank));
    } else {
        MS_TRY(msi_micro_new(&u->sums));
    }
    msi_storage_bind(u->micro_view, NULL, u->sums.micro, nbytes);
    msi_reduction_set(&u->reduction, MSI_GRAD_WRITING);
    return MS_OK;
}

/* -- calls from autograd ----------------------------------------------------------------------- */

static ms_status sink_expect(void *user, int32_t index)
{
    ms_fsdp_unit *u = user;

    if (u->run == NULL || u->run->phase == MSI_UNUSED) {
        return MS_FAIL(
            MS_RUNTIME_ERROR,
            "parameter '%s' of unit '%s' is differentiated outside its FSDP root's forward",
            u->params[index].name, u->name);
    }
    MS_TRY(msi_masters_check(u->run, "backward"));
    if (!u->has_slot) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "parameter '%s' of unit '%s', frozen so far, became trainable during a "
                       "forward; call requires_grad_() before the forward of the FSDP root",
                       u->params[index].name, u->name);
    }
    if (!u->use.expects_grad) {
        MS_TRY(u->run->may_begin_backward(u->run->owner));
    }
    u->use.expects_grad = true;
    u->use.pending++;
    return MS_OK;
}

ms_status msi_unit_check_kept(const ms_fsdp_unit *u)
{
    return u->run->phase == MSI_GIVEN_UP && u->use.expects_grad
               ? MS_FAIL(MS_RUNTIME_ERROR, "%s", u->absent)
               : MS_OK;
}

static ms_status check_expected(const ms_fsdp_unit *u)
{
    if (!u->use.expects_grad) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "unit '%s' was made while a backward ran that reaches its parameters; wrap "
                       "them before, or when it has ended",
                       u->name);
    }
    return msi_unit_check_kept(u);
}

static ms_status sink_dest(void *user, int32_t index, msi_view *dst, bool *add)
{
    ms_fsdp_unit *u = user;
    msi_unit_param *p = &u->params[index];
    const msi_param *param = p->tensor->param;

    MS_TRY(check_expected(u));
    if (u->reduction.phase != MSI_GRAD_WRITING) {
        if (u->reduction.phase != MSI_GRAD_NONE) { /* an earlier backward's is unreduced */
            MS_TRY(msi_reductions_finish(&u->run->progress, &u->run->gradients));
        }
        MS_TRY(begin_micro(u));
    }
    *dst = (msi_view){.storage = u->micro_view, .offset = p->offset};
    msi_view_set_contiguous(dst, u->sums.micro_dtype, param->ndim, param->shape);
    *add = p->contributed;
    p->contributed = true;
    return MS_OK;
}

/* -- complete, or dropped ---------------------------------------------------------------------- */

/* Fill parameters without contribution with -0 (x + -0 is x, but -0 + 0 is 0) and padding with
 * zeros. */
static ms_status fill_gaps(ms_fsdp_unit *u)
{
    const int64_t size = ms_dtype_size(u->sums.micro_dtype);
    char *micro = u->sums.micro;

    for (int32_t i = 0; i < ms_layout_n_entries(u->layout); i++) {
        ms_layout_entry e;

        MS_TRY(ms_layout_entry_get(u->layout, i, &e));
        if (e.param >= 0 && !u->params[e.param].contributed) {
            msi_view v = {.storage = u->micro_view, .offset = e.offset};

            msi_view_set_contiguous(&v, u->sums.micro_dtype, 1, &e.numel);
            MS_TRY(msi_fill(&v, -0.0));
        } else if (e.param < 0) {
            MS_TRY(msi_mem_set(u->ctx, micro + e.offset * size, 0, e.numel * size));
        }
    }
    return msi_mem_set(u->ctx, micro + u->total * size, 0,
                       (msi_unit_full_numel(u) - u->total) * size);
}

ms_status msi_unit_accumulate(ms_fsdp_unit *u)
{
    MS_TRY(msi_accumulator_keep(&u->sums, u->n_kept));
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].accumulated |= u->params[i].contributed;
        u->params[i].contributed = false;
    }
    return MS_OK;
}

ms_status msi_unit_reduce(ms_fsdp_unit *u)
{
    msi_unit_plan(u, MS_PLAN_REDUCE);
    if (msi_unit_has_hook(u)) {
        MS_TRY(msi_unit_reduce_with_hooks(u));
    } else {
        MS_TRY(msi_gradient_announce(u));
    }
    msi_unit_trace(u, "reduce", u->reduction.seq);
    return MS_OK;
}

/* All gradients of this backward are complete: pass them on. */
static ms_status complete(ms_fsdp_unit *u)
{
    if (u->reduction.phase != MSI_GRAD_WRITING) { /* all contributions were undefined */
        MS_TRY(begin_micro(u));
    }
    MS_TRY(fill_gaps(u));
    msi_storage_unbind(u->micro_view);
    MS_TRY(u->run->gradient_complete(u));
    if (!u->settings.sync) {
        msi_reduction_set(&u->reduction, MSI_GRAD_NONE);
        return msi_unit_accumulate(u);
    }
    return msi_unit_reduce(u);
}

static ms_status sink_done(void *user, int32_t index)
{
    ms_fsdp_unit *u = user;

    (void)index;
    MS_TRY(check_expected(u));
    return --u->use.pending == 0 ? complete(u) : MS_OK;
}

void msi_unit_sinks_install(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].sink = (msi_grad_sink){sink_expect, sink_dest, sink_done, u, i};
        u->params[i].tensor->sink = &u->params[i].sink;
    }
}

void msi_unit_gradient_drop(ms_fsdp_unit *u, bool all)
{
    msi_reduction_drop(&u->reduction);
    msi_micro_drop(&u->sums);
    if (u->micro_view != NULL) {
        msi_storage_unbind(u->micro_view);
    }
    u->use.pending = 0;
    if (all) { /* units may be at different micro-batches: drop all levels */
        msi_unit_levels_free(u);
    }
    for (int32_t i = 0; i < u->n_params; i++) {
        u->params[i].contributed = u->params[i].arrived = false;
        if (all) {
            ms_tensor_free(u->params[i].tensor->grad);
            u->params[i].tensor->grad = NULL;
            u->params[i].reduced = false;
        }
    }
    msi_unit_gradient_trim(u);
}
