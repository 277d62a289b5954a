/* Full parameters: publish, unshard, reshard. The latter two are observable operators; publish is
 * not, as nothing can be read yet. */
#include "unshard.h"
#include "observed.h"

#include "moonshard/plan.h"

/* `full` now has the master's values. A backward over older ones must fail, whoever wrote the
 * master, even a script. (`outdated` is set by optimizers and loads only: it decides the order of
 * slots, so it must not depend on writes of one rank.) */
static void follow_version(ms_fsdp_unit *u)
{
    if (u->values.followed != u->master->version) {
        u->full->version++;
        u->values.followed = u->master->version;
    }
}

static ms_status cast_extent(const ms_fsdp_unit *u, const msi_extent *e, void *to, int64_t at)
{
    const int64_t size = ms_dtype_size(u->orig_dtype);
    msi_ew_args args = {.out = (char *)to + at * ms_dtype_size(u->full_dtype),
                        .in = {(const char *)u->master->data + e->in_shard * size},
                        .in_dtype = u->orig_dtype};

    args.loop.ndim = 1;
    args.loop.shape[0] = e->numel;
    args.loop.stride[0][0] = args.loop.stride[1][0] = 1;
    return e->numel > 0 ? msi_dispatch("unshard", MSI_K_copy, u->full_dtype, &args) : MS_OK;
}

static ms_status fill(void *unit, void *to, bool staged)
{
    ms_fsdp_unit *u = unit;

    for (int32_t i = 0; to != u->master->data && i < u->n_own; i++) {
        const msi_extent *e = &u->own[i];

        MS_TRY(cast_extent(u, e, to, staged ? e->in_shard : e->in_full));
    }
    return MS_OK;
}

/* Copy rank q's shard to its positions in the full parameters, or (`packs`) from them. */
static ms_status move_shard(ms_fsdp_unit *u, int32_t q, char *shard, char *full, int64_t size,
                            bool packs)
{
    int32_t n;

    MS_TRY(msi_layout_extents(u->layout, q, u->theirs, &n));
    for (int32_t i = 0; i < n; i++) {
        const msi_extent *e = &u->theirs[i];
        char *in_full = full + e->in_full * size, *in_shard = shard + e->in_shard * size;

        MS_TRY(msi_mem_copy(u->ctx, packs ? in_shard : in_full, packs ? in_full : in_shard,
                            e->numel * size));
    }
    return MS_OK;
}

static ms_status move_shards(ms_fsdp_unit *u, char *shards, char *full, int64_t size, bool packs)
{
    for (int32_t q = 0; q < u->shard_world; q++) {
        MS_TRY(move_shard(u, q, shards + q * u->shard_numel * size, full, size, packs));
    }
    return MS_OK;
}

ms_status msi_unit_scatter_shards(ms_fsdp_unit *u, const void *shards, void *full, int64_t size)
{
    return move_shards(u, (char *)shards, full, size, false);
}

ms_status msi_unit_pack_shards(ms_fsdp_unit *u, const void *full, void *shards, int64_t size)
{
    return move_shards(u, shards, (char *)full, size, true);
}

static ms_status pull(void *unit, int32_t q, const void *stage, void *full)
{
    ms_fsdp_unit *u = unit;

    return move_shard(u, q, (char *)stage, full, ms_dtype_size(u->full_dtype), false);
}

static void share(void *unit, const void *full)
{
    const ms_fsdp_unit *u = unit;
    const int64_t size = ms_dtype_size(u->full_dtype);

    for (int32_t i = 0; i < u->n_own; i++) {
        const msi_extent *e = &u->own[i];

        msi_comm_share(u->gather.pool->comm, (const char *)full + e->in_full * size,
                       e->numel * size);
    }
}

static int64_t version(const void *unit)
{
    return ((const ms_fsdp_unit *)unit)->master->version;
}

static const msi_gather_user gather_user = {fill, pull, share, msi_unit_changed, version};

static const msi_gather_ops *gather_ops(const ms_fsdp_unit *u)
{
    static const msi_gather_ops *const by_layout[] = {[MSI_SLOTS_SHARED] = &msi_gather_shared,
                                                      [MSI_SLOTS_PULL] = &msi_gather_pull,
                                                      [MSI_SLOTS_NCCL] = &msi_gather_nccl};

    if (msi_unit_shares(u)) {
        return by_layout[u->run->params.plan.layout];
    }
    return u->full_dtype == u->orig_dtype && !u->offloads ? &msi_gather_alias
                                                          : &msi_gather_resident;
}

/* What depends on the dtype of `full`. */
static void set_gather_dtype(ms_fsdp_unit *u)
{
    msi_gather *g = &u->gather;

    g->ops = gather_ops(u);
    g->nbytes = msi_unit_full_numel(u) * ms_dtype_size(u->full_dtype);
    g->staged_at = msi_layout_in_rank_order(u->layout) ? 0 : msi_round_up(g->nbytes, 256);
    g->data = g->ops == &msi_gather_alias ? u->master->data : NULL;
    g->fp.dtype = (int16_t)u->full_dtype;
}

void msi_unit_connect_params(ms_fsdp_unit *u, msi_slot *home)
{
    msi_gather *g = &u->gather;

    g->ctx = u->ctx;
    g->progress = &u->run->progress;
    g->pool = &u->run->params;
    g->home = home;
    g->fp = (msi_fingerprint){.kind = MSI_COLL_UNSHARD,
                              .ndim = -1,
                              .count = msi_unit_full_numel(u),
                              .model = u->run->model,
                              .name = u->label};
    g->shard_numel = u->shard_numel;
    g->unit = u;
    g->user = &gather_user;
    g->written_version = -1;
    u->full_dtype = u->param_dtype;
    set_gather_dtype(u);
}

ms_status msi_unit_gather_in(ms_fsdp_unit *u, int32_t dtype, int32_t forwards)
{
    if (dtype == u->full_dtype) {
        return MS_OK;
    }
    if (u->use.running > forwards || msi_unit_is_differentiated(u)) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                       "unit '%s' is used in %s inside a use in %s, which is not supported",
                       u->name, ms_dtype_name(dtype), ms_dtype_name(u->full_dtype));
    }
    msi_unit_reshard(u);
    u->full_dtype = dtype;
    set_gather_dtype(u);
    return MS_OK;
}

void msi_unit_set(ms_fsdp_unit *u, int32_t state)
{
    static const char *const events[] = {[MS_UNIT_SHARDED] = "reshard",
                                         [MS_UNIT_PUBLISHED] = "gather",
                                         [MS_UNIT_UNSHARDED] = "unshard"};
    static const int32_t planned[] = {[MS_UNIT_SHARDED] = MS_PLAN_RESHARD,
                                      [MS_UNIT_PUBLISHED] = MS_PLAN_GATHER,
                                      [MS_UNIT_UNSHARDED] = MS_PLAN_UNSHARD};

    u->state = state;
    msi_unit_trace(u, events[state], u->gather.seq);
    msi_unit_plan(u, planned[state]);
    if (state == MS_UNIT_SHARDED) {
        msi_unit_show(u);
    } else {
        msi_unit_show_use(u);
    }
    msi_unit_changed(u);
}

ms_status msi_unit_publish(ms_fsdp_unit *u)
{
    MS_ASSERT(u->state == MS_UNIT_SHARDED && u->run != NULL);
    MS_TRY(u->gather.ops->begin(&u->gather));
    if (u->gather.ops->shares) {
        follow_version(u);
    }
    u->values.outdated = false;
    msi_unit_set(u, MS_UNIT_PUBLISHED);
    return u->gather.ops->shares ? msi_progress_run(&u->run->progress) : MS_OK;
}

bool msi_unit_differs(const ms_fsdp_unit *u)
{
    return u->state != MS_UNIT_SHARDED && u->gather.ops->shares &&
           u->values.followed != u->master->version;
}

static void reshard_stale(ms_fsdp_unit *u)
{
    const bool differs = msi_unit_differs(u);

    if (differs && !u->values.outdated) {
        msi_note note = {.n_numbers = 0};

        msi_label_about(&note.label, "values written to unit", u->name);
        msi_unit_note(u, &note);
    }
    if (differs || u->values.outdated) {
        msi_unit_reshard(u);
    }
}

/* Without peers, `full` is the master or is updated from it at each use. */
static ms_status bind(ms_fsdp_unit *u)
{
    msi_storage *base = u->gather.ops == &msi_gather_alias ? u->master : NULL;
    void *full;

    MS_TRY(u->gather.ops->ready(&u->gather, u->values.followed != u->master->version, &full));
    if (!u->gather.ops->shares) {
        follow_version(u);
    }
    msi_storage_bind(u->full, base, full, u->gather.nbytes);
    return MS_OK;
}

static ms_status unshard(ms_fsdp_unit *u)
{
    if (u->state == MS_UNIT_SHARDED) {
        MS_TRY(msi_unit_publish(u));
    }
    MS_TRY(bind(u));
    msi_unit_set(u, MS_UNIT_UNSHARDED);
    return MS_OK;
}

static void reshard(ms_fsdp_unit *u)
{
    msi_storage_unbind(u->full);
    u->gather.ops->end(&u->gather);
    u->use.held = false;
    msi_unit_set(u, MS_UNIT_SHARDED);
}

/* -- as operators ------------------------------------------------------------------------------ */

static ms_fsdp_unit *unit_of(const void *attrs)
{
    return ((const msi_unit_attrs *)attrs)->unit;
}

static ms_status unshard_meta(const msi_meta *m)
{
    const ms_fsdp_unit *u = unit_of(m->attrs);

    for (int32_t i = 0; i < u->n_params; i++) {
        const msi_param *param = u->params[i].tensor->param;

        MS_TRY(msi_result(&m->out[i], u->full_dtype, param->ndim, param->shape));
    }
    return MS_OK;
}

static ms_status unshard_forward(msi_op_call *c)
{
    return unshard(unit_of(c->attrs));
}

static ms_status reshard_meta(const msi_meta *m)
{
    (void)m; /* no result */
    return MS_OK;
}

static ms_status reshard_forward(msi_op_call *c)
{
    reshard(unit_of(c->attrs));
    return MS_OK;
}

/* shard (n) -> the unit's parameters; those -> nothing. */
static const msi_op unshard_op = {
    .name = "fsdp.unshard", .meta = unshard_meta, .forward = unshard_forward};
static const msi_op reshard_op = {
    .name = "fsdp.reshard", .meta = reshard_meta, .forward = reshard_forward};

static ms_status observed_unshard(ms_fsdp_unit *u)
{
    const msi_unit_attrs attrs = {.unit = u};

    MS_TRY(msi_observed_params(u, &unshard_op));
    return msi_op_run_into(u->ctx, &unshard_op, &attrs, u->observed, 1, u->observed + 1,
                           u->n_params);
}

/* Without operands if it was unsharded before there was an observer, and memory is out. */
static void observed_reshard(ms_fsdp_unit *u)
{
    const msi_unit_attrs attrs = {.unit = u};
    const bool made = msi_observed_params(u, &unshard_op) == MS_OK;

    msi_op_run_into(u->ctx, &reshard_op, &attrs, made ? u->observed + 1 : NULL,
                    made ? u->n_params : 0, NULL, 0);
}

ms_status msi_unit_unshard(ms_fsdp_unit *u)
{
    reshard_stale(u);
    if (u->state == MS_UNIT_UNSHARDED) {
        MS_TRY(u->gather.ops->shares ? MS_OK : bind(u));
        msi_unit_show_use(u);
        return MS_OK;
    }
    return MSI_UNLIKELY(msi_op_is_observed(u->ctx)) ? observed_unshard(u) : unshard(u);
}

void msi_unit_reshard(ms_fsdp_unit *u)
{
    if (u->state == MS_UNIT_UNSHARDED && MSI_UNLIKELY(msi_op_is_observed(u->ctx))) {
        observed_reshard(u);
    } else if (u->state != MS_UNIT_SHARDED) {
        reshard(u);
    }
}

void msi_unit_written(ms_fsdp_unit *u)
{
    u->values.outdated = true;
    if (u->master != NULL && u->master->version != u->values.followed) {
        u->full->version++; /* now, as a kept unit may be read without another use */
    }
    if (u->state == MS_UNIT_PUBLISHED) {
        msi_unit_reshard(u);
    }
    msi_unit_show_use(u);
}
