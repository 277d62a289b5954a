/* The master shard: initial values, and access from outside. */
#include "unshard.h"

#include <string.h>

/* The rule of initial values, and the range of elements. */
static msi_init_args rule_of(const ms_fsdp_unit *u, const msi_unit_param *p)
{
    const msi_param *param = p->tensor->param;

    return (msi_init_args){.first = p->piece.start,
                           .n = p->piece.numel,
                           .kind = param->init,
                           .a = param->a,
                           .b = param->b,
                           .seed = param->seed,
                           .key = msi_param_key(param, p->name)};
}

/* Hash of the source of a parameter's initial values: its values, or the rule. */
static ms_status origin_of(const msi_param *param, const msi_init_args *rule, uint64_t *origin)
{
    const double numbers[] = {rule->kind, rule->a, rule->b, (double)param->zero_first,
                              (double)param->zero_n};
    const bool random = rule->kind != MS_INIT_CONSTANT;

    *origin = 0;
    if (param->materialized) {
        return msi_view_hash(&param->master, origin);
    }
    if (rule->kind != MS_INIT_NONE) {
        *origin = msi_mix64(ms_hash_bytes(numbers, sizeof(numbers)) ^
                            (random ? msi_mix64(rule->seed ^ msi_mix64(rule->key)) : 0));
    }
    return MS_OK;
}

/* Fill this rank's elements of one parameter into the shard. */
static ms_status fill_piece(const ms_fsdp_unit *u, msi_unit_param *p, msi_storage *master)
{
    msi_param *param = p->tensor->param;
    msi_view shard = msi_piece_view(u, p, master);
    msi_init_args rule = rule_of(u, p);

    if (u->world > 1) {
        MS_TRY(origin_of(param, &rule, &p->origin));
    }
    p->given = param->materialized && param->master.storage->version != param->drawn;
    if (p->piece.numel == 0) {
        return MS_OK;
    }
    if (param->materialized) {
        msi_view src = param->master;

        src.offset += p->piece.start - param->start;
        src.shape[0] = p->piece.numel;
        return msi_copy(&shard, &src, false);
    }
    if (rule.kind == MS_INIT_NONE) {
        return MS_OK; /* already zeros */
    }
    rule.out = msi_view_ptr(&shard);
    return msi_param_draw(param, &rule, u->orig_dtype);
}

ms_status ms_fsdp_unit_materialize(ms_fsdp_unit *u)
{
    int64_t nbytes = u->shard_numel * ms_dtype_size(u->orig_dtype);
    msi_storage *master;

    if (u->master != NULL) {
        return MS_OK;
    }
    MS_TRY(msi_unit_storage(u, &master, nbytes, MS_MEM_PARAMETER));
    ms_status status = msi_mem_set(u->ctx, master->data, 0, nbytes); /* padding stays zero */
    for (int32_t i = 0; i < u->n_params && status == MS_OK; i++) {
        status = fill_piece(u, &u->params[i], master);
    }
    if (status != MS_OK) {
        msi_storage_release(master);
        return status;
    }
    u->master = master;
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];
        msi_param *param = p->tensor->param;
        msi_storage *old = param->master.storage;

        param->master = msi_piece_view(u, p, master);
        msi_storage_retain(master);
        param->start = p->piece.start;
        param->materialized = true;
        msi_storage_release(old);
    }
    msi_unit_show(u);
    return MS_OK;
}

/* -- from outside ------------------------------------------------------------------------------ */

ms_status ms_param_local(ms_tensor **out, ms_tensor *t, ms_param_extent *extent)
{
    msi_param *p = t->param;

    *out = NULL;
    if (p == NULL) {
        return MS_FAIL(MS_TYPE_ERROR, "a tensor of shape %s is no parameter",
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    MS_TRY(msi_param_check_master(t, "use of the shards"));
    MS_TRY(ms_tensor_materialize(t));
    memset(extent, 0, sizeof(*extent));
    extent->start = p->start;
    extent->numel = p->master.shape[0];
    extent->ndim = p->ndim;
    memcpy(extent->shape, p->shape, sizeof(extent->shape));
    extent->dtype = p->dtype;
    return extent->numel > 0 ? msi_tensor_new(out, t->ctx, &p->master) : MS_OK;
}

ms_status ms_param_touch(ms_tensor *t)
{
    if (t->param == NULL) {
        return MS_FAIL(MS_TYPE_ERROR, "a tensor of shape %s is no parameter",
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    if (t->param->master.storage != NULL) {
        t->param->master.storage->version++;
    }
    msi_param_touched(t);
    return MS_OK;
}
