/* What handles of a unit's parameters show, and the error of handles without memory. */
#include "unshard.h"

#include <stdio.h>
#include <string.h>

/* Let the flat parameter show the first `numel` elements of `storage`, if both exist. */
static void show_flat(ms_fsdp_unit *u, msi_storage *storage, int32_t dtype, int64_t numel)
{
    msi_view v = {.storage = storage};

    if (u->flat != NULL && storage != NULL) {
        msi_view_set_contiguous(&v, dtype, 1, &numel);
        msi_tensor_rebind(u->flat, &v);
    }
}

void msi_unit_shape_shard(const ms_fsdp_unit *u, const msi_unit_param *p, int32_t dtype,
                          msi_view *v)
{
    const msi_param *param = p->tensor->param;
    int64_t shape[MS_MAX_DIMS];

    if (u->options.layout != MS_FSDP_ROWS) {
        msi_view_set_contiguous(v, dtype, 1, &p->piece.numel);
        return;
    }
    memcpy(shape, param->shape, sizeof(*shape) * (size_t)param->ndim);
    shape[0] = p->row_numel > 0 ? p->piece.numel / p->row_numel : 0;
    msi_view_set_contiguous(v, dtype, param->ndim, shape);
}

static void show_shards(ms_fsdp_unit *u)
{
    const bool hides = u->is_sharded && u->run != NULL && u->run->hides_shards;

    show_flat(u, hides ? u->hidden : u->master, u->orig_dtype, u->shard_numel);
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];
        const msi_param *param = p->tensor->param;
        msi_view v = {.storage = hides ? u->hidden : u->master, .offset = p->piece.offset_in_shard};

        if (u->is_sharded) {
            msi_unit_shape_shard(u, p, u->orig_dtype, &v);
        } else { /* NO_SHARD keeps the original shapes */
            msi_view_set_contiguous(&v, u->orig_dtype, param->ndim, param->shape);
        }
        p->tensor->param->shows_shard = u->is_sharded;
        msi_tensor_rebind(p->tensor, &v);
    }
}

static void show_full(ms_fsdp_unit *u, msi_storage *full, int32_t dtype)
{
    show_flat(u, full, dtype, u->total);
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];
        msi_view v = {.storage = full, .offset = p->offset};

        msi_view_set_contiguous(&v, dtype, p->tensor->param->ndim, p->tensor->param->shape);
        p->tensor->param->shows_shard = false;
        msi_tensor_rebind(p->tensor, &v);
    }
}

/* [Note: what handles show] In this order:
 *
 * | handles show        | if                                                               |
 * | the summoned copy   | summoned                                                         |
 * | full parameters     | unsharded, and a forward runs or a backward reads it; or, unless |
 * |                     | written since, a root forward runs, the script holds it, or a    |
 * |                     | graph waits for its backward and no evaluation came since        |
 * | shards              | otherwise, whatever memory is kept                               |
 *
 * A freed graph no longer waits, unless a garbage collector freed it: its timing differs between
 * ranks, which must show the same. */
static bool shows_full(const ms_fsdp_unit *u)
{
    const msi_use *use = &u->use;

    return u->state == MS_UNIT_UNSHARDED &&
           (use->running > 0 || msi_unit_is_differentiated(u) ||
            (!u->values.outdated && (u->run->hides_shards || use->held || use->n_waiting > 0)));
}

void msi_unit_show(ms_fsdp_unit *u)
{
    if (u->summoned != NULL) {
        show_full(u, u->summoned, u->orig_dtype);
    } else if (shows_full(u)) {
        show_full(u, u->full, u->full_dtype);
    } else {
        show_shards(u);
    }
}

void msi_unit_show_use(ms_fsdp_unit *u)
{
    if (u->state == MS_UNIT_UNSHARDED && u->summoned == NULL &&
        shows_full(u) != (u->params[0].tensor->v.storage == u->full)) {
        msi_unit_show(u);
    }
}

void msi_unit_hide_shards(ms_fsdp_unit *u)
{
    msi_unit_show_use(u);
    if (u->params[0].tensor->param->shows_shard) {
        show_flat(u, u->run->hides_shards ? u->hidden : u->master, u->orig_dtype, u->shard_numel);
    }
    for (int32_t k = 0; k < u->n_params; k++) {
        ms_tensor *t = u->params[k].tensor;

        if (t->param->shows_shard) { /* keeps the view, as this runs in every step */
            msi_storage *shown = t->v.storage;

            t->v.storage = msi_storage_retain(u->run->hides_shards ? u->hidden : u->master);
            msi_storage_release(shown);
        }
    }
}

void msi_unit_explain(ms_fsdp_unit *u, const char *cause)
{
    if (cause == NULL) {
        snprintf(u->absent, sizeof(u->absent),
                 u->is_sharded ? "unit '%s' is sharded"
                               : "unit '%s' shows what a forward read until its backward alone",
                 u->name);
        return;
    }
    snprintf(u->absent, sizeof(u->absent),
             "the gradients of unit '%s' were given up when a forward inside this backward failed: "
             "%.*s",
             u->name, (int)strcspn(cause, "\n"), cause); /* first line; a stack may follow */
}
