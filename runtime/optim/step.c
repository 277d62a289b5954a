/* One optimizer step: one fused kernel call per parameter, on its local elements; on a device one
 * for many.
 *
 * First allocates everything (state buffers, cast gradients), then updates, so running out of
 * memory changes no parameter. A device may still fail midway; such a step cannot be repeated. */
#include "op.h"
#include "optim.h"

#include <math.h>
#include <string.h>

/* What a step needs of one parameter; numel 0: nothing to write. */
typedef struct update {
    msi_view local;
    const ms_tensor *grad;
    int64_t numel;
    bool counts; /* as a step of this parameter */
} update;

/* Adam's bias corrections, usually equal to the previous parameter's. */
typedef struct corrections {
    int64_t step; /* 0: none yet */
    double beta1, beta2;
    double of_m, of_v;
} corrections;

/* A rank without elements of a sharded parameter has no gradient of it. If the whole has one, it
 * counts the step too, so that any rank can report the number. */
static bool counts_along(const ms_tensor *t, const msi_view *local)
{
    const msi_param *p = t->param;

    return p != NULL && p->ops != NULL && p->ops->has_gradient != NULL &&
           msi_view_numel(local) == 0 && p->ops->has_gradient(p->unit, p->unit_index);
}

static bool casts(const update *u)
{
    return u->grad->v.dtype != u->local.dtype || !msi_view_contiguous(&u->grad->v);
}

/* Find gradient, elements and state of parameter `p`. */
static ms_status prepare(ms_optim *optim, msi_optim_param *p, update *u)
{
    *u = (update){.grad = p->tensor->grad};
    MS_TRY(msi_param_check_master(p->tensor, "step"));
    MS_TRY(msi_optim_local(p->tensor, &u->local));
    MS_TRY(msi_param_check_gradient(p->tensor, "step"));
    if (msi_param_accumulates(p->tensor)) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "step: the gradient of %s was accumulated inside no_sync and is not reduced "
                       "yet; run the last backward outside no_sync, or with "
                       "set_requires_gradient_sync(true)",
                       msi_tensor_label(p->tensor));
    }
    int64_t numel = msi_view_numel(&u->local);
    void *data;

    u->counts = u->grad != NULL || counts_along(p->tensor, &u->local);
    if (u->grad == NULL) {
        return MS_OK;
    }
    if (msi_view_numel(&u->grad->v) != numel) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "step: the gradient of %s has %lld elements, expected the %lld this rank "
                       "holds",
                       msi_tensor_label(p->tensor), (long long)msi_view_numel(&u->grad->v),
                       (long long)numel);
    }
    if (numel == 0) {
        return MS_OK;
    }
    if (u->local.storage->readonly != NULL) {
        return msi_tensor_begin_write(p->tensor, "step"); /* fails with the reason */
    }
    MS_TRY(msi_view_data(&u->local, &data)); /* fails for host memory on a device */
    MS_TRY(msi_view_data(&u->grad->v, &data));
    u->numel = numel;
    for (int32_t s = 0; s < ms_optim_n_states(optim); s++) {
        if (msi_rule_uses_state(optim->rule, &optim->groups[p->group], s)) {
            MS_TRY(msi_optim_ensure_state(optim, p, s, &u->local));
        }
    }
    return MS_OK;
}

/* Gradient in the master's dtype: itself, or cast into `scratch`. */
static ms_status gradient_data(const update *u, msi_storage *scratch, const void **data)
{
    void *own;

    if (casts(u)) {
        msi_view cast = u->grad->v;

        cast.storage = scratch;
        cast.offset = 0;
        msi_view_set_contiguous(&cast, u->local.dtype, u->grad->v.ndim, u->grad->v.shape);
        MS_TRY(msi_copy(&cast, &u->grad->v, false));
        *data = scratch->data;
        return MS_OK;
    }
    MS_TRY(msi_view_data(&u->grad->v, &own));
    *data = own;
    return MS_OK;
}

static void correct(corrections *c, const ms_optim_options *o, int64_t step)
{
    if (c->step != step || c->beta1 != o->beta1 || c->beta2 != o->beta2) {
        *c = (corrections){.step = step,
                           .beta1 = o->beta1,
                           .beta2 = o->beta2,
                           .of_m = 1 - pow(o->beta1, (double)step),
                           .of_v = 1 - pow(o->beta2, (double)step)};
    }
}

_Static_assert(sizeof(msi_update_args) <= MSI_BATCH_ARGS, "a batch has room for them");

static ms_status apply(ms_optim *optim, msi_batch *b, msi_optim_param *p, const update *u,
                       corrections *c, msi_storage *scratch)
{
    const ms_optim_options *o = &optim->groups[p->group];
    msi_update args = {.options = o, .n = u->numel, .step = p->steps + 1, .fresh = p->primed == 0};

    MS_TRY(msi_view_data(&u->local, &args.values));
    MS_TRY(gradient_data(u, scratch, &args.gradient));
    for (int32_t s = 0; s < ms_optim_n_states(optim); s++) {
        if (msi_rule_uses_state(optim->rule, o, s)) {
            args.state[s] = msi_view_ptr(&p->state[s]);
        }
    }
    correct(c, o, args.step);
    args.correction1 = c->of_m;
    args.correction2 = c->of_v;
    msi_update_args call;

    optim->rule->arguments(&call, &args);
    return msi_batch_add(b, u->local.dtype, &call);
}

static ms_status check_whole(const ms_optim *optim)
{
    return optim->n_taken == 0
               ? MS_OK
               : MS_FAIL(
                     MS_RUNTIME_ERROR,
                     "step: one failed when %d of %d parameters had taken it; load a checkpoint "
                     "of model and optimizer",
                     (int)optim->n_taken, (int)optim->n_params);
}

ms_status ms_optim_step(ms_optim *optim)
{
    MSI_HANDLE(optim, MSI_MAGIC_OPTIM);
    int64_t scratch_bytes = 0;
    msi_storage *scratch = NULL;
    ms_status status = MS_OK;
    corrections c = {.step = 0};
    msi_batch b;
    update u;

    msi_batch_init(&b, optim->rule->op, optim->rule->kernel, sizeof(msi_update_args));
    MS_TRY(msi_optim_alive(optim));
    msi_op_host(optim->ctx, "an optimizer updates parameters");
    MS_TRY(check_whole(optim));
    for (int32_t i = 0; i < optim->n_params; i++) {
        MS_TRY(prepare(optim, &optim->params[i], &u));
        if (u.numel > 0 && casts(&u)) {
            int64_t nbytes = u.numel * ms_dtype_size(u.local.dtype);

            scratch_bytes = nbytes > scratch_bytes ? nbytes : scratch_bytes;
        }
    }
    if (scratch_bytes > 0) {
        MS_TRY(msi_storage_new(&scratch, optim->ctx, scratch_bytes, MS_MEM_SCRATCH));
    }
    for (int32_t i = 0; i < optim->n_params && status == MS_OK; i++) {
        msi_optim_param *p = &optim->params[i];

        status = prepare(optim, p, &u);
        if (status == MS_OK && u.numel > 0) {
            status = apply(optim, &b, p, &u, &c, scratch);
            if (status == MS_OK && casts(&u)) {
                status = msi_batch_run(&b); /* before the next gradient is cast into `scratch` */
            }
            optim->n_taken += status == MS_OK;
        }
        if (status == MS_OK && u.counts) {
            p->steps++;
            p->primed += p->primed > 0 || optim->groups[p->group].momentum != 0;
            if (u.local.storage != NULL) {
                u.local.storage->version++; /* also where peers own the elements */
            }
        }
        /* for all parameters: ranks own different elements and gradients, but managers must
         * conclude the same */
        msi_param_touched(p->tensor);
    }
    if (status == MS_OK) {
        status = msi_batch_run(&b);
    }
    msi_storage_release(scratch);
    MS_TRY(status);
    optim->n_taken = 0;
    msi_optim_note_first_step(optim);
    return MS_OK;
}
