/* Collectives on views and on bytes: named, then moved in chunks through the staging area.
 *
 * Reductions run over ranks by the fixed tree of the `tree` kernel over equal values, so results
 * are equal bits everywhere. Small messages are reduced whole by every rank; of larger ones each
 * rank reduces a part and passes it round. */
#include "group.h"

#include "tensor.h"

#include <stdio.h>
#include <string.h>

enum { REDUCE_WHOLE_BYTES = 16 * 1024 };

/* Name the collective on a tensor to the others; `*seq` is what its waits refer to. */
static ms_status begin(ms_comm *c, uint32_t kind, const msi_view *v, int32_t root, uint64_t *seq)
{
    msi_fingerprint fp; /* as far as its shape goes: clearing all of it would take longer */

    fp.kind = kind;
    fp.dtype = v->dtype;
    fp.ndim = v->ndim;
    fp.count = msi_view_numel(v);
    fp.slot = -1;
    fp.root = root;
    fp.generation = 0;
    memcpy(fp.shape, v->shape, sizeof(*v->shape) * (size_t)v->ndim);
    MS_TRY(msi_comm_publish(c, &fp, seq));
    msi_comm_count(c, kind);
    return MS_OK;
}

/* -- reducing ---------------------------------------------------------------------------------- */

/* out[0, n) = reduction of every member's n elements: own ones at `own`, the others' `offset` bytes
 * into what they staged. */
static ms_status reduce_members(ms_comm *c, int32_t dtype, int32_t reduce, int64_t n,
                                const char *own, int64_t offset, char *out)
{
    msi_tree_source src[c->size];
    const msi_tree_args args = {.n = n,
                                .n_src = c->size,
                                .src = src,
                                .out = out,
                                .round_dtype = dtype,
                                .factor = reduce == MS_REDUCE_AVG ? 1.0 / c->size : 1.0,
                                .reduce = reduce == MS_REDUCE_AVG ? MS_REDUCE_SUM : reduce};

    for (int32_t q = 0; q < c->size; q++) {
        src[q] = (msi_tree_source){q == c->rank ? own : msi_stage_of(c, q) + offset, dtype};
    }
    MS_TRY(msi_dispatch("reduce", MSI_K_tree, dtype, &args));
    return msi_settle(msi_context()); /* peers write their bytes anew */
}

/* -- collectives ------------------------------------------------------------------------------- */

ms_status msi_comm_all_gather(ms_comm *c, const msi_view *out, const msi_view *in)
{
    void *from, *to;
    uint64_t seq;

    MS_TRY(msi_view_host(in, &from));
    MS_TRY(msi_view_host(out, &to));
    MS_TRY(begin(c, MSI_COLL_ALL_GATHER, in, 0, &seq));
    out->storage->version++;
    return msi_stage_exchange(c, seq, from, msi_view_numel(in) * ms_dtype_size(in->dtype), to);
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
    return msi_stage_exchange(c, seq, in, nbytes, out);
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
                                  int32_t reduce)
{
    const int32_t dtype = out->dtype;
    const int64_t n = msi_view_numel(out), size = ms_dtype_size(dtype);
    const int64_t part = MSI_CHUNK / c->size / 64 * 64; /* bytes for each member in a chunk */
    void *from, *to;
    uint64_t seq;

    MS_TRY(msi_view_host(in, &from));
    MS_TRY(msi_view_host(out, &to));
    MS_TRY(begin(c, MSI_COLL_REDUCE_SCATTER, out, reduce, &seq));
    out->storage->version++;
    for (int64_t at = 0; at == 0 || at < n; at += part / size) {
        int64_t count = n - at < part / size ? n - at : part / size;

        for (int32_t q = 0; q < c->size; q++) {
            if (q != c->rank) {
                memcpy(msi_stage_own(c) + q * part, (char *)from + (q * n + at) * size,
                       (size_t)(count * size));
            }
        }
        MS_TRY(msi_stage_step(c, seq));
        MS_TRY(reduce_members(c, dtype, reduce, count, (char *)from + (c->rank * n + at) * size,
                              c->rank * part, (char *)to + at * size));
    }
    return MS_OK;
}

/* Elements [first, last) of a chunk of n that member q reduces; starts stay on cache lines. */
static void part_of(int32_t q, int32_t size, int64_t n, int64_t *first, int64_t *last)
{
    int64_t lines = (n + 63) / 64;

    *first = lines * q / size * 64;
    *last = lines * (q + 1) / size * 64;
    *first = *first < n ? *first : n;
    *last = *last < n ? *last : n;
}

/* Reduce one chunk at `data` in place: every member a part, then the parts go round. */
static ms_status all_reduce_parts(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce,
                                  int64_t n, char *data)
{
    int64_t size = ms_dtype_size(dtype), first, last;

    part_of(c->rank, c->size, n, &first, &last);
    memcpy(msi_stage_own(c), data, (size_t)(first * size)); /* all but the own part */
    memcpy(msi_stage_own(c) + last * size, data + last * size, (size_t)((n - last) * size));
    MS_TRY(msi_stage_step(c, seq));
    char *mine = msi_stage_own(c) + first * size;

    MS_TRY(reduce_members(c, dtype, reduce, last - first, data + first * size, first * size, mine));
    memcpy(data + first * size, mine, (size_t)((last - first) * size));
    MS_TRY(msi_stage_step(c, seq));
    for (int32_t q = 0; q < c->size; q++) {
        part_of(q, c->size, n, &first, &last);
        if (q != c->rank) {
            memcpy(data + first * size, msi_stage_of(c, q) + first * size,
                   (size_t)((last - first) * size));
        }
    }
    return MS_OK;
}

ms_status msi_comm_all_reduce(ms_comm *c, const msi_view *v, int32_t reduce)
{
    const int32_t dtype = v->dtype;
    const int64_t n = msi_view_numel(v), size = ms_dtype_size(dtype), step = MSI_CHUNK / size;
    void *data;
    uint64_t seq;

    MS_TRY(msi_view_host(v, &data));
    MS_TRY(begin(c, MSI_COLL_ALL_REDUCE, v, reduce, &seq));
    v->storage->version++;
    for (int64_t at = 0; at == 0 || at < n; at += step) {
        int64_t count = n - at < step ? n - at : step;
        char *chunk = (char *)data + at * size;

        if (c->size > 1 && count * size > REDUCE_WHOLE_BYTES) {
            MS_TRY(all_reduce_parts(c, seq, dtype, reduce, count, chunk));
            continue;
        }
        if (c->size > 1) {
            memcpy(msi_stage_own(c), chunk, (size_t)(count * size));
        }
        MS_TRY(msi_stage_step(c, seq));
        MS_TRY(reduce_members(c, dtype, reduce, count, chunk, 0, chunk));
    }
    return MS_OK;
}

ms_status msi_comm_broadcast(ms_comm *c, const msi_view *v, int32_t root)
{
    const int64_t nbytes = msi_view_numel(v) * ms_dtype_size(v->dtype);
    void *data;
    uint64_t seq;

    MS_TRY(msi_view_host(v, &data));
    MS_TRY(begin(c, MSI_COLL_BROADCAST, v, c->slot[root], &seq));
    v->storage->version++;
    for (int64_t at = 0; at == 0 || at < nbytes; at += MSI_CHUNK) {
        size_t count = (size_t)(nbytes - at < MSI_CHUNK ? nbytes - at : MSI_CHUNK);

        if (c->rank == root && c->size > 1) {
            memcpy(msi_stage_own(c), (char *)data + at, count);
        }
        MS_TRY(msi_stage_step(c, seq));
        if (c->rank != root) {
            memcpy((char *)data + at, msi_stage_of(c, root), count);
        }
    }
    return MS_OK;
}

ms_status ms_comm_barrier(ms_comm *c)
{
    const msi_fingerprint fp = {
        .kind = MSI_COLL_BARRIER, .dtype = MS_DTYPE_NONE, .ndim = -1, .slot = -1};
    uint64_t seq;

    MS_TRY(msi_comm_publish(c, &fp, &seq));
    msi_comm_count(c, MSI_COLL_BARRIER);
    return msi_stage_step(c, seq);
}
