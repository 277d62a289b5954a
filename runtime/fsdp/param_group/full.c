/* Full parameters outside training: gather, load, hash. Uses private full-precision copies, no
 * slots. */
#include "unshard.h"

#include <string.h>

/* All-gather of bytes. From here on peers rely on it.
 * @param what  the script's call and the kind of object that `name` denotes */
static ms_status gather(ms_fsdp_unit *u, const char *what, const char *name, const void *in,
                        int64_t nbytes, void *out)
{
    msi_label label;

    msi_label_about(&label, what, name);
    return u->run == NULL /* before the root's first forward */
               ? msi_comm_gather_named(u->shards, &label, 0, in, nbytes, out)
               : msi_progress_gather(&u->run->progress, u->shards, &label, u->run->model, in,
                                     nbytes, out);
}

/* The same, for shards. */
static ms_status all_gather(ms_fsdp_unit *u, const char *what, const char *name, const void *in,
                            int64_t nbytes, void *out)
{
    msi_comm_count(u->shards, MSI_COLL_ALL_GATHER);
    return gather(u, what, name, in, nbytes, out);
}

static ms_status gather_in_rank_order(ms_fsdp_unit *u, const char *what, msi_storage *shard,
                                      msi_storage *shards)
{
    const msi_view own = msi_flat_view(u, shard, 0, u->shard_numel);
    const msi_view whole = msi_flat_view(u, shards, 0, msi_layout_gathered_numel(u->layout));
    msi_host_view from = {0}, to = {0};
    ms_status status;

    MS_TRY_GOTO(msi_host_view_begin(&from, &own, MSI_HOST_READS), done);
    MS_TRY_GOTO(msi_host_view_begin(&to, &whole, MSI_HOST_WRITES), done);
    status = all_gather(u, what, u->name, from.data, u->shard_numel * ms_dtype_size(u->orig_dtype),
                        to.data);
done:
    status = msi_host_view_end(&from, status);
    return msi_host_view_end(&to, status);
}

ms_status msi_unit_gather_shards(ms_fsdp_unit *u, const char *what, msi_storage *shard,
                                 msi_storage *full)
{
    const int64_t size = ms_dtype_size(u->orig_dtype);
    msi_storage *shards;

    if (msi_layout_in_rank_order(u->layout)) {
        return gather_in_rank_order(u, what, shard, full);
    }
    MS_TRY(msi_storage_new(&shards, u->ctx, msi_layout_gathered_numel(u->layout) * size,
                           MS_MEM_SCRATCH));
    ms_status status = gather_in_rank_order(u, what, shard, shards);

    if (status == MS_OK) { /* with zeros between parameters */
        status = msi_mem_set(u->ctx, full->data, 0, full->nbytes);
    }
    if (status == MS_OK) {
        status = msi_unit_scatter_shards(u, shards->data, full->data, size);
    }
    msi_storage_release(shards);
    return status;
}

ms_status msi_unit_gather_flat(ms_fsdp_unit *u, const char *what, msi_storage **out)
{
    const bool is_whole = !u->is_sharded || u->shard_world == 1;
    const int64_t nbytes = msi_unit_full_numel(u) * ms_dtype_size(u->orig_dtype);
    msi_storage *full;

    *out = NULL;
    MS_TRY(ms_fsdp_unit_materialize(u));
    MS_TRY(msi_storage_new(&full, u->ctx, nbytes, MS_MEM_PARAMETER));
    const ms_status status = is_whole ? msi_mem_copy(u->ctx, full->data, u->master->data, nbytes)
                                      : msi_unit_gather_shards(u, what, u->master, full);

    if (status != MS_OK) {
        msi_storage_release(full);
        return status;
    }
    *out = full;
    return MS_OK;
}

/* -- one parameter ----------------------------------------------------------------------------- */

static ms_status check_index(const ms_fsdp_unit *u, int32_t index)
{
    if (index < 0 || index >= u->n_params) {
        return MS_FAIL(MS_INDEX_ERROR, "unit '%s' has %d parameters, got index %d", u->name,
                       (int)u->n_params, (int)index);
    }
    return MS_OK;
}

/* Copy every rank's piece to its position; received in `most` elements each. */
static ms_status place_pieces(const ms_fsdp_unit *u, int32_t index, int64_t most,
                              const char *received, const ms_tensor *full)
{
    const int64_t size = ms_dtype_size(u->orig_dtype);
    ms_layout_piece piece;

    for (int32_t q = 0; q < u->shard_world; q++) {
        MS_TRY(ms_layout_piece_get(u->layout, q, index, &piece));
        if (piece.numel > 0) {
            MS_TRY(msi_mem_copy(u->ctx, (char *)full->v.storage->data + piece.start * size,
                                received + q * most * size, piece.numel * size));
        }
    }
    return MS_OK;
}

/* All-gather of the pieces, each padded to the largest. */
static ms_status gather_pieces(ms_fsdp_unit *u, int32_t index, const ms_tensor *full)
{
    const ms_layout_piece *own = &u->params[index].piece;
    int64_t size = ms_dtype_size(u->orig_dtype), most = 0;
    msi_mem_block *send = NULL, *received = NULL;
    ms_layout_piece piece;
    ms_status status;

    for (int32_t q = 0; q < u->shard_world; q++) {
        MS_TRY(ms_layout_piece_get(u->layout, q, index, &piece));
        most = piece.numel > most ? piece.numel : most;
    }
    MS_TRY_GOTO(msi_host_alloc(u->ctx, most * size, MS_MEM_SCRATCH, &send), done);
    MS_TRY_GOTO(msi_host_alloc(u->ctx, most * u->shard_world * size, MS_MEM_SCRATCH, &received),
                done);
    memset(send->data, 0, (size_t)(most * size));
    MS_TRY_GOTO(msi_mem_copy(u->ctx, send->data,
                             (char *)u->master->data + own->offset_in_shard * size,
                             own->numel * size),
                done);
    MS_TRY_GOTO(msi_settle(u->ctx), done);
    MS_TRY_GOTO(all_gather(u, "gather of parameter", u->params[index].name, send->data, most * size,
                           received->data),
                done);
    status = place_pieces(u, index, most, received->data, full);
done:
    msi_drain(u->ctx); /* no copy uses them now */
    msi_release(send);
    msi_release(received);
    return status;
}

ms_status ms_fsdp_unit_gather(ms_tensor **out, ms_fsdp_unit *u, int32_t index)
{
    const msi_param *param;
    ms_status status;

    *out = NULL;
    MS_TRY(check_index(u, index));
    MS_TRY(msi_masters_check(u->run, "gather"));
    MS_TRY(ms_fsdp_unit_materialize(u));
    param = u->params[index].tensor->param;
    MS_TRY(
        msi_tensor_make(out, u->ctx, u->orig_dtype, param->ndim, param->shape, MS_MEM_ACTIVATION));
    if (u->is_sharded && u->shard_world > 1) {
        status = gather_pieces(u, index, *out);
    } else {
        const int64_t size = ms_dtype_size(u->orig_dtype);

        status = msi_mem_copy(u->ctx, (*out)->v.storage->data,
                              (char *)u->master->data + u->params[index].offset * size,
                              u->params[index].numel * size);
    }
    if (status != MS_OK) {
        ms_tensor_free(*out);
        *out = NULL;
    }
    return status;
}

ms_status ms_fsdp_unit_gather_all(ms_tensor **out, ms_fsdp_unit *u, int64_t *offsets)
{
    msi_storage *full;
    msi_view v = {0};
    int64_t numel;

    if (out == NULL || u == NULL || offsets == NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "gather_all: out, unit or offsets is NULL");
    }
    *out = NULL;
    MS_TRY(msi_masters_check(u->run, "state_dict"));
    MS_TRY(msi_unit_gather_flat(u, "state_dict of unit", &full));
    msi_mem_set_kind(full->block, MS_MEM_ACTIVATION); /* a copy, like one's */
    full->mem_kind = MS_MEM_ACTIVATION;
    numel = msi_unit_full_numel(u);
    v.storage = full;
    msi_view_set_contiguous(&v, u->orig_dtype, 1, &numel);
    ms_status status = msi_tensor_new(out, u->ctx, &v);

    msi_storage_release(full);
    for (int32_t i = 0; status == MS_OK && i < u->n_params; i++) {
        offsets[i] = u->params[i].offset;
    }
    return status;
}

ms_status ms_fsdp_unit_load(ms_fsdp_unit *u, int32_t index, const ms_tensor *full)
{
    msi_unit_param *p;
    msi_view src, shard;
    uint64_t loaded = 0;

    MS_TRY(check_index(u, index));
    MS_TRY(msi_masters_check(u->run, "load"));
    MS_TRY(ms_fsdp_unit_materialize(u));
    p = &u->params[index];
    const msi_param *param = p->tensor->param;

    if (full->v.ndim != param->ndim ||
        memcmp(full->v.shape, param->shape, sizeof(int64_t) * (size_t)param->ndim) != 0) {
        return MS_FAIL(MS_VALUE_ERROR, "parameter '%s' has shape %s, got %s", p->name,
                       msi_shape_text(param->ndim, param->shape),
                       msi_shape_text(full->v.ndim, full->v.shape));
    }
    if (msi_view_contiguous(&full->v)) {
        src = full->v;
        msi_storage_retain(src.storage);
    } else {
        MS_TRY(msi_view_like(&src, u->ctx, &full->v, full->v.dtype, MS_MEM_SCRATCH, true));
    }
    ms_status status = u->world > 1 ? msi_view_hash(&src, &loaded) : MS_OK;

    if (status == MS_OK && p->piece.numel > 0) {
        src.offset += p->piece.start;
        msi_view_set_contiguous(&src, full->v.dtype, 1, &p->piece.numel);
        shard = msi_piece_view(u, p, u->master);
        status = msi_copy(&shard, &src, false);
    }
    msi_storage_release(src.storage);
    MS_TRY(status);
    p->origin = loaded; /* before the first use: the initial value */
    p->given = true;
    return ms_param_touch(p->tensor);
}
