/* Collectives on views: published, then moved by the group's transport. */
#include "group.h"

#include "tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t bytes_of(const msi_view *v)
{
    return msi_view_numel(v) * ms_dtype_size(v->dtype);
}

/* The view's memory for `via`: by the host, or for work in order of stream COMPUTE. */
static ms_status view_begin(msi_host_view *h, const msi_transport *via, const msi_view *v,
                            int32_t use)
{
    h->copy = NULL;
    return via == &msi_transport_devices ? msi_view_data(v, &h->data)
                                         : msi_host_view_begin(h, v, use);
}

/* Publish a collective on a tensor; `*seq` is for its waits. */
static ms_status begin(ms_comm *c, const msi_transport *via, uint32_t kind, const msi_view *v,
                       int32_t root, uint64_t forward, uint64_t *seq)
{
    msi_fingerprint fp; /* not cleared beyond its shape, which would take longer */

    fp.kind = kind;
    fp.dtype = v->dtype;
    fp.ndim = v->ndim;
    fp.count = msi_view_numel(v);
    fp.slot = msi_slot_of(via);
    fp.root = root;
    fp.forward = forward;
    memcpy(fp.shape, v->shape, sizeof(*v->shape) * (size_t)v->ndim);
    MS_TRY(msi_comm_publish(c, &fp, seq));
    msi_comm_count(c, kind);
    msi_comm_plan(c, kind, bytes_of(v));
    return MS_OK;
}

/* -- collectives ------------------------------------------------------------------------------- */

ms_status msi_comm_all_gather(ms_comm *c, const msi_view *out, const msi_view *in, uint64_t forward)
{
    const int64_t nbytes = bytes_of(in);
    msi_host_view from = {0}, to = {0};
    const msi_transport *via;
    uint64_t seq;
    ms_status status;

    MS_TRY(msi_devices_route(c, in, nbytes, &via));
    MS_TRY_GOTO(view_begin(&from, via, in, MSI_HOST_READS), done);
    MS_TRY_GOTO(view_begin(&to, via, out, MSI_HOST_WRITES), done);
    MS_TRY_GOTO(begin(c, via, MSI_COLL_ALL_GATHER, in, 0, forward, &seq), done);
    out->storage->version++;
    status = via->all_gather(c, seq, from.data, nbytes, to.data);
done:
    status = msi_host_view_end(&from, status);
    return msi_host_view_end(&to, status);
}

ms_status msi_comm_reduce_scatter(ms_comm *c, const msi_view *out, const msi_view *in,
                                  int32_t reduce, uint64_t forward)
{
    const int64_t n = msi_view_numel(out);
    msi_host_view from = {0}, to = {0};
    const msi_transport *via;
    uint64_t seq;
    ms_status status;

    MS_TRY(msi_devices_route(c, out, bytes_of(out), &via));
    MS_TRY_GOTO(view_begin(&from, via, in, MSI_HOST_READS), done);
    MS_TRY_GOTO(view_begin(&to, via, out, MSI_HOST_WRITES), done);
    MS_TRY_GOTO(begin(c, via, MSI_COLL_REDUCE_SCATTER, out, reduce, forward, &seq), done);
    out->storage->version++;
    status = via->reduce_scatter(c, seq, out->dtype, reduce, n, from.data, to.data);
done:
    status = msi_host_view_end(&from, status);
    return msi_host_view_end(&to, status);
}

ms_status msi_comm_all_reduce(ms_comm *c, const msi_view *v, int32_t reduce, uint64_t forward)
{
    msi_host_view own;
    const msi_transport *via;
    uint64_t seq;
    ms_status status;

    MS_TRY(msi_devices_route(c, v, bytes_of(v), &via));
    MS_TRY(view_begin(&own, via, v, MSI_HOST_READS | MSI_HOST_WRITES));
    MS_TRY_GOTO(begin(c, via, MSI_COLL_ALL_REDUCE, v, reduce, forward, &seq), done);
    v->storage->version++;
    status = via->all_reduce(c, seq, v->dtype, reduce, msi_view_numel(v), own.data);
done:
    return msi_host_view_end(&own, status);
}

ms_status msi_comm_broadcast(ms_comm *c, const msi_view *v, int32_t root)
{
    msi_host_view own;
    const msi_transport *via;
    uint64_t seq;
    ms_status status;

    MS_TRY(msi_devices_route(c, v, bytes_of(v), &via));
    MS_TRY(view_begin(&own, via, v, MSI_HOST_READS | MSI_HOST_WRITES));
    MS_TRY_GOTO(begin(c, via, MSI_COLL_BROADCAST, v, msi_comm_rank_in_job(c, root), 0, &seq), done);
    v->storage->version++;
    status = via->broadcast(c, seq, root, own.data, bytes_of(v));
done:
    return msi_host_view_end(&own, status);
}

ms_status msi_comm_reduce(ms_comm *c, const msi_view *v, int32_t root, int32_t reduce,
                          uint64_t forward)
{
    const int32_t how = msi_reduce_root(msi_comm_rank_in_job(c, root), reduce);
    msi_host_view own;
    const msi_transport *via;
    uint64_t seq;
    ms_status status;

    MS_TRY(msi_devices_route(c, v, bytes_of(v), &via));
    MS_TRY(view_begin(&own, via, v, MSI_HOST_READS | MSI_HOST_WRITES));
    MS_TRY_GOTO(begin(c, via, MSI_COLL_REDUCE, v, how, forward, &seq), done);
    v->storage->version += c->rank == root;
    status = via->reduce(c, seq, root, v->dtype, reduce, msi_view_numel(v), own.data);
done:
    return msi_host_view_end(&own, status);
}

void msi_exchange_own(const msi_exchange *e, int32_t rank, int32_t q)
{
    const int64_t from = msi_exchange_sends(e, rank, rank), to = msi_exchange_receives(e, rank, q);
    const char *in = e->in;
    char *out = e->out;

    for (int32_t i = 0; i < rank; i++) {
        in += msi_exchange_sends(e, rank, i);
    }
    for (int32_t i = 0; i < q; i++) {
        out += msi_exchange_receives(e, rank, i);
    }
    if (from > 0 && to > 0) {
        memcpy(out, in, (size_t)(from < to ? from : to));
    }
}

/* Publish the exchange, with v's shape, and run it. `out` is `in` where nothing is received. */
static ms_status exchange(ms_comm *c, const msi_view *v, const msi_view *out, const msi_view *in,
                          msi_exchange *e, uint64_t forward)
{
    msi_host_view from = {0}, to = {0};
    const msi_transport *via;
    uint64_t seq;
    ms_status status;

    MS_TRY(msi_devices_route(c, v, e->each, &via));
    MS_TRY_GOTO(view_begin(&from, via, in, MSI_HOST_READS), done);
    if (out != in) {
        MS_TRY_GOTO(view_begin(&to, via, out, MSI_HOST_WRITES), done);
        out->storage->version++;
    }
    e->in = from.data;
    e->out = to.data;
    MS_TRY_GOTO(begin(c, via, e->kind, v, e->root < 0 ? 0 : msi_comm_rank_in_job(c, e->root),
                      forward, &seq),
                done);
    status = via->exchange(c, seq, e);
done:
    status = msi_host_view_end(&from, status);
    return msi_host_view_end(&to, status);
}

ms_status msi_comm_scatter(ms_comm *c, const msi_view *out, const msi_view *in, int32_t root,
                           uint64_t forward)
{
    const int64_t nbytes = bytes_of(out);
    msi_exchange e = {.kind = MSI_COLL_SCATTER, .root = root, .each = nbytes, .most = nbytes};

    return exchange(c, out, out, in, &e, forward);
}

ms_status msi_comm_gather(ms_comm *c, const msi_view *out, const msi_view *in, int32_t root,
                          uint64_t forward)
{
    const int64_t nbytes = bytes_of(in);
    msi_exchange e = {.kind = MSI_COLL_GATHER, .root = root, .each = nbytes, .most = nbytes};

    return exchange(c, in, out, in, &e, forward);
}

/* -- all_to_all -------------------------------------------------------------------------------- */

/* Compare what each member sends with what the other expects: `all` (size, 2, size) has the rows
 * that members send and expect. Sets the most. */
static ms_status check_rows(const ms_comm *c, const int64_t *all, int64_t *most)
{
    const int64_t w = c->size;

    *most = 0;
    for (int32_t p = 0; p < c->size; p++) {
        for (int32_t q = 0; q < c->size; q++) {
            const int64_t sent = all[p * 2 * w + q], expected = all[(q * 2 + 1) * w + p];

            if (sent != expected) {
                return MS_FAIL(MS_COMM_ERROR,
                               "all_to_all: rank %d sends %lld rows to rank %d, which expects %lld",
                               (int)msi_comm_rank_in_job(c, p), (long long)sent,
                               (int)msi_comm_rank_in_job(c, q), (long long)expected);
            }
            *most = sent > *most ? sent : *most;
        }
    }
    return MS_OK;
}

/* The same for this rank's rows, over all members. */
static ms_status agree_on_rows(ms_comm *c, uint64_t seq, const int64_t *out_rows,
                               const int64_t *in_rows, int64_t *most)
{
    const int64_t w = c->size, nbytes = 2 * w * (int64_t)sizeof(int64_t);
    int64_t *own = malloc((size_t)nbytes), *all = malloc((size_t)(nbytes * w));
    ms_status status = MS_OK;

    if (own == NULL || all == NULL) {
        status = MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the rows of %d ranks", (int)c->size);
    } else {
        memcpy(own, in_rows, (size_t)(nbytes / 2));
        memcpy(own + w, out_rows, (size_t)(nbytes / 2));
        status = c->via->all_gather(c, seq, own, nbytes, all);
    }
    if (status == MS_OK) {
        status = check_rows(c, all, most);
    }
    free(own);
    free(all);
    return status;
}

/* Rows that differ between ranks are no part of the fingerprint: they are compared here. */
static ms_status exchange_rows(ms_comm *c, const msi_transport *via, int32_t dtype, msi_exchange *e,
                               const int64_t *out_rows, const int64_t *in_rows, int64_t row,
                               uint64_t forward)
{
    const msi_fingerprint fp = {.kind = MSI_COLL_ALL_TO_ALL,
                                .dtype = (int16_t)dtype,
                                .ndim = -1,
                                .count = row,
                                .slot = msi_slot_of(via),
                                .forward = forward};
    const int64_t row_bytes = row * ms_dtype_size(dtype);
    int64_t in_bytes[MS_MAX_RANKS], out_bytes[MS_MAX_RANKS];
    int64_t sent = 0;
    uint64_t seq;

    for (int32_t q = 0; q < c->size; q++) {
        sent += in_rows[q] * row_bytes;
        in_bytes[q] = in_rows[q] * row_bytes;
        out_bytes[q] = out_rows[q] * row_bytes;
    }
    e->in_bytes = in_bytes;
    e->out_bytes = out_bytes;
    MS_TRY(msi_comm_publish(c, &fp, &seq));
    msi_comm_count(c, MSI_COLL_ALL_TO_ALL);
    msi_comm_plan(c, MSI_COLL_ALL_TO_ALL, sent);
    if (!c->is_fake) { /* its other members expect nothing */
        MS_TRY(agree_on_rows(c, seq, out_rows, in_rows, &e->most));
    }
    e->most *= row_bytes;
    return via->exchange(c, seq, e);
}

ms_status msi_comm_all_to_all(ms_comm *c, const msi_view *out, const msi_view *in,
                              const int64_t *out_rows, const int64_t *in_rows, int64_t row,
                              uint64_t forward)
{
    const int64_t each = msi_view_numel(in) / c->size * ms_dtype_size(in->dtype);
    msi_exchange e = {.kind = MSI_COLL_ALL_TO_ALL, .root = -1, .each = each, .most = each};
    msi_host_view from = {0}, to = {0};
    const msi_transport *via;
    ms_status status;

    if (in_rows == NULL) {
        return exchange(c, in, out, in, &e, forward);
    }
    if (c->size > MS_MAX_RANKS) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                       "all_to_all: unequal parts in a fake group of %d ranks, expected at most %d",
                       (int)c->size, MS_MAX_RANKS);
    }
    MS_TRY(msi_devices_route(c, in, MSI_DEVICES_BYTES, &via)); /* ranks do not know all sizes */
    MS_TRY_GOTO(view_begin(&from, via, in, MSI_HOST_READS), done);
    MS_TRY_GOTO(view_begin(&to, via, out, MSI_HOST_WRITES), done);
    e.in = from.data;
    e.out = to.data;
    out->storage->version++;
    status = exchange_rows(c, via, in->dtype, &e, out_rows, in_rows, row, forward);
done:
    status = msi_host_view_end(&from, status);
    return msi_host_view_end(&to, status);
}

ms_status ms_comm_barrier(ms_comm *c)
{
    MSI_HANDLE(c, MSI_MAGIC_COMM);
    const msi_fingerprint fp = {
        .kind = MSI_COLL_BARRIER, .dtype = MS_DTYPE_NONE, .ndim = -1, .slot = -1};
    uint64_t seq;

    MS_TRY(msi_comm_publish(c, &fp, &seq));
    msi_comm_count(c, MSI_COLL_BARRIER);
    return c->via->barrier(c, seq);
}
