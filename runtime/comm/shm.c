/* The transport over memory that all members map, in steps of one chunk per rank. Reductions run
 * the `tree` kernel over ranks, so all get equal bits. Small messages are reduced whole by every
 * rank; of larger ones each rank reduces a part, and the parts are exchanged. */
#include "shm.h"

#include "segment.h"

#include <string.h>

_Static_assert(MSI_TREE_SUM == (int)MS_REDUCE_SUM && MSI_TREE_MAX == (int)MS_REDUCE_MAX &&
                   MSI_TREE_MIN == (int)MS_REDUCE_MIN,
               "the tree's words are those of collectives");

enum { REDUCE_WHOLE_BYTES = 16 * 1024 };

/* out[0, n) = reduction of every member's n elements: `own`, and `offset` bytes into the others'
 * stages. */
static ms_status reduce_members(ms_comm *c, int32_t dtype, int32_t reduce, int64_t n,
                                const char *own, int64_t offset, char *out)
{
    msi_tree_source src[c->size];
    const msi_tree_args args = msi_reduce_args(c, dtype, reduce, n, src, out);

    for (int32_t q = 0; q < c->size; q++) {
        src[q] = (msi_tree_source){q == c->rank ? own : msi_stage_of(c, q) + offset, dtype};
    }
    return msi_dispatch_host("reduce", MSI_K_tree, dtype, &args);
}

static ms_status reduce_scatter(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce, int64_t n,
                                char *in, char *out)
{
    const int64_t size = ms_dtype_size(dtype);
    const int64_t part = MSI_CHUNK / c->size / 64 * 64; /* bytes for each member in a chunk */

    for (int64_t at = 0; at == 0 || at < n; at += part / size) {
        int64_t count = n - at < part / size ? n - at : part / size;

        for (int32_t q = 0; q < c->size; q++) {
            if (q != c->rank) {
                memcpy(msi_stage_own(c) + q * part, in + (q * n + at) * size,
                       (size_t)(count * size));
            }
        }
        MS_TRY(msi_stage_step(c, seq, part * c->size));
        MS_TRY(reduce_members(c, dtype, reduce, count, in + (c->rank * n + at) * size,
                              c->rank * part, out + at * size));
    }
    return MS_OK;
}

/* Reduce one chunk at `data` in place: every member a part, then exchange. */
static ms_status all_reduce_parts(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce,
                                  int64_t n, char *data)
{
    const int64_t size = ms_dtype_size(dtype);
    const msi_part own = msi_part_of(c->rank, c->size, n);
    const int64_t first = own.first, last = own.first + own.n;

    memcpy(msi_stage_own(c), data, (size_t)(first * size)); /* all but the own part */
    memcpy(msi_stage_own(c) + last * size, data + last * size, (size_t)((n - last) * size));
    MS_TRY(msi_stage_step(c, seq, n * size));
    char *mine = msi_stage_own(c) + first * size;

    MS_TRY(reduce_members(c, dtype, reduce, last - first, data + first * size, first * size, mine));
    memcpy(data + first * size, mine, (size_t)((last - first) * size));
    MS_TRY(msi_stage_step(c, seq, last * size));
    for (int32_t q = 0; q < c->size; q++) {
        const msi_part its = msi_part_of(q, c->size, n);

        if (q != c->rank) {
            memcpy(data + its.first * size, msi_stage_of(c, q) + its.first * size,
                   (size_t)(its.n * size));
        }
    }
    return MS_OK;
}

static ms_status all_reduce(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce, int64_t n,
                            char *data)
{
    const int64_t size = ms_dtype_size(dtype), most = MSI_CHUNK / size;

    for (int64_t at = 0; at == 0 || at < n; at += most) {
        int64_t count = n - at < most ? n - at : most;
        char *chunk = data + at * size;

        if (count * size > REDUCE_WHOLE_BYTES) {
            MS_TRY(all_reduce_parts(c, seq, dtype, reduce, count, chunk));
            continue;
        }
        memcpy(msi_stage_own(c), chunk, (size_t)(count * size));
        MS_TRY(msi_stage_step(c, seq, count * size));
        MS_TRY(reduce_members(c, dtype, reduce, count, chunk, 0, chunk));
    }
    return MS_OK;
}

static ms_status reduce(ms_comm *c, uint64_t seq, int32_t root, int32_t dtype, int32_t how,
                        int64_t n, char *data)
{
    const int64_t size = ms_dtype_size(dtype), most = MSI_CHUNK / size;

    for (int64_t at = 0; at == 0 || at < n; at += most) {
        int64_t count = n - at < most ? n - at : most;
        char *chunk = data + at * size;

        if (c->rank != root) {
            memcpy(msi_stage_own(c), chunk, (size_t)(count * size));
        }
        MS_TRY(msi_stage_step(c, seq, c->rank != root ? count * size : 0));
        if (c->rank == root) {
            MS_TRY(reduce_members(c, dtype, how, count, chunk, 0, chunk));
        }
    }
    return MS_OK;
}

/* Bytes [at, at + part) of each part. */
static void stage_parts(ms_comm *c, const msi_exchange *e, int64_t at, int64_t part)
{
    const char *in = e->in;

    for (int32_t q = 0; q < c->size; q++) {
        const int64_t n = msi_exchange_sends(e, c->rank, q);

        if (q != c->rank && n > at) {
            memcpy(msi_stage_own(c) + q * part, in + at, (size_t)(n - at < part ? n - at : part));
        }
        in += n;
    }
}

static void take_parts(ms_comm *c, const msi_exchange *e, int64_t at, int64_t part)
{
    char *out = e->out;

    for (int32_t q = 0; q < c->size; q++) {
        const int64_t n = msi_exchange_receives(e, c->rank, q);

        if (q != c->rank && n > at) {
            memcpy(out + at, msi_stage_of(c, q) + c->rank * part,
                   (size_t)(n - at < part ? n - at : part));
        }
        out += n;
    }
}

static ms_status exchange(ms_comm *c, uint64_t seq, const msi_exchange *e)
{
    const int64_t part = MSI_CHUNK / c->size / 64 * 64; /* bytes for each member in a chunk */

    msi_exchange_own(e, c->rank, c->rank);
    for (int64_t at = 0; at == 0 || at < e->most; at += part) {
        stage_parts(c, e, at, part);
        MS_TRY(msi_stage_step(c, seq, part * c->size));
        take_parts(c, e, at, part);
    }
    return MS_OK;
}

static ms_status broadcast(ms_comm *c, uint64_t seq, int32_t root, char *data, int64_t nbytes)
{
    for (int64_t at = 0; at == 0 || at < nbytes; at += MSI_CHUNK) {
        size_t n = (size_t)(nbytes - at < MSI_CHUNK ? nbytes - at : MSI_CHUNK);

        if (c->rank == root) {
            memcpy(msi_stage_own(c), data + at, n);
        }
        MS_TRY(msi_stage_step(c, seq, c->rank == root ? (int64_t)n : 0));
        if (c->rank != root) {
            memcpy(data + at, msi_stage_of(c, root), n);
        }
    }
    return MS_OK;
}

const msi_transport msi_transport_shm = {.barrier = msi_stage_barrier,
                                         .all_gather = msi_stage_exchange,
                                         .reduce_scatter = reduce_scatter,
                                         .all_reduce = all_reduce,
                                         .reduce = reduce,
                                         .broadcast = broadcast,
                                         .exchange = exchange,
                                         .map = msi_shm_map,
                                         .map_on_device = msi_device_segment_map};
