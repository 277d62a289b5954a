/* Collectives on views and bytes: published, then moved by the group's transport. */
#include "group.h"

#include "tensor.h"

#include <stdio.h>
#include <string.h>

/* Publish a collective on a tensor; `*seq` is for its waits. */
static ms_status begin(ms_comm *c, uint32_t kind, const msi_view *v, int32_t root, uint64_t forward,
                       uint64_t *seq)
{
    msi_fingerprint fp; /* not cleared beyond its shape, which would take longer */

    fp.kind = kind;
    fp.dtype = v->dtype;
    fp.ndim = v->ndim;
    fp.count = msi_view_numel(v);
    fp.slot = -1;
    fp.root = root;
    fp.forward = forward;
    memcpy(fp.shape, v->shape, sizeof(*v->shape) * (size_t)v->ndim);
    MS_TRY(msi_comm_publish(c, &fp, seq));
    msi_comm_count(c, kind);
    return MS_OK;
}

/* -- collectives ------------------------------------------------------------------------------- */

ms_status msi_comm_all_gather(ms_comm *c, const msi_view *out, const msi_view *in, uint64_t forward)
{
    const int64_t nbytes = msi_view_numel(in) * ms_dtype_size(in->dtype);
    msi_host_view from = {0}, to = {0};
    uint64_t seq;
    ms_status status;

    MS_TRY_GOTO(msi_host_view_begin(&from, in, MSI_HOST_READS), done);
    MS_TRY_GOTO(msi_host_view_begin(&to, out, MSI_HOST_WRITES), done);
    MS_TRY_GOTO(begin(c, MSI_COLL_ALL_GATHER, in, 0, forward, &seq), done);
    out->storage->version++;
    status = c->via->all_gather(c, seq, from.data, nbytes, to.data);
done:
    status = msi_host_view_end(&from, status);
    return msi_host_view_end(&to, status);
}

ms_status msi_comm_gather_named(ms_comm *c, const msi_label *what, int32_t model, const void *in,
                                int64_t nbytes, void *out)
{
    const msi_fingerprint fp = {.kind = MSI_COLL_ALL_GATHER,
                                .dtype = MS_DTYPE_NONE,
                                .ndim = -1,
                                .count = nbytes,
                                .slot = -1,
                                .model = model,
                                .name = *what};
    uint64_t seq;

    MS_TRY(msi_comm_publish(c, &fp, &seq));
    return c->via->all_gather(c, seq, in, nbytes, out);
}

ms_status msi_comm_gather_bytes(ms_comm *c, const char *what, const void *in, int64_t nbytes,
                                void *out)
{
    msi_label name;

    msi_label_set(&name, what);
    return msi_comm_gather_named(c, &name, 0, in, nbytes, out);
}

ms_status ms_comm_exchange(ms_comm *c, const char *what, const double *numbers, int32_t n_numbers,
                           double *all)
{
    return msi_comm_gather_bytes(c, what, numbers, (int64_t)sizeof(*numbers) * n_numbers, all);
}

ms_status msi_comm_reduce_scatter(ms_comm *c, const msi_view *out, const msi_view *in,
                                  int32_t reduce, uint64_t forward)
{
    const int64_t n = msi_view_numel(out);
    msi_host_view from = {0}, to = {0};
    uint64_t seq;
    ms_status status;

    MS_TRY_GOTO(msi_host_view_begin(&from, in, MSI_HOST_READS), done);
    MS_TRY_GOTO(msi_host_view_begin(&to, out, MSI_HOST_WRITES), done);
    MS_TRY_GOTO(begin(c, MSI_COLL_REDUCE_SCATTER, out, reduce, forward, &seq), done);
    out->storage->version++;
    status = c->via->reduce_scatter(c, seq, out->dtype, reduce, n, from.data, to.data);
done:
    status = msi_host_view_end(&from, status);
    return msi_host_view_end(&to, status);
}

ms_status msi_comm_all_reduce(ms_comm *c, const msi_view *v, int32_t reduce, uint64_t forward)
{
    msi_host_view own;
    uint64_t seq;
    ms_status status;

    MS_TRY(msi_host_view_begin(&own, v, MSI_HOST_READS | MSI_HOST_WRITES));
    MS_TRY_GOTO(begin(c, MSI_COLL_ALL_REDUCE, v, reduce, forward, &seq), done);
    v->storage->version++;
    status = c->via->all_reduce(c, seq, v->dtype, reduce, msi_view_numel(v), own.data);
done:
    return msi_host_view_end(&own, status);
}

ms_status msi_comm_broadcast(ms_comm *c, const msi_view *v, int32_t root)
{
    const int64_t nbytes = msi_view_numel(v) * ms_dtype_size(v->dtype);
    msi_host_view own;
    uint64_t seq;
    ms_status status;

    MS_TRY(msi_host_view_begin(&own, v, MSI_HOST_READS | MSI_HOST_WRITES));
    MS_TRY_GOTO(begin(c, MSI_COLL_BROADCAST, v, msi_comm_rank_in_job(c, root), 0, &seq), done);
    v->storage->version++;
    status = c->via->broadcast(c, seq, root, own.data, nbytes);
done:
    return msi_host_view_end(&own, status);
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
