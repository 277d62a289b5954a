/* The transport without peers: for a group of this rank, and for fake groups, where every member
 * has this rank's data. */
#include "segment.h"

#include <string.h>
#include <sys/mman.h>

static ms_status barrier(ms_comm *c, uint64_t seq)
{
    (void)c;
    (void)seq;
    return MS_OK;
}

static ms_status all_gather(ms_comm *c, uint64_t seq, const void *in, int64_t nbytes, void *out)
{
    char *own = (char *)out + c->rank * nbytes;

    (void)seq;
    memmove(own, in, (size_t)nbytes);
    for (int32_t q = 0; nbytes > 0 && q < c->size; q++) {
        if (q != c->rank) {
            memcpy((char *)out + q * nbytes, own, (size_t)nbytes);
        }
    }
    return MS_OK;
}

/* Reduction of `in` once per member, rounded once. */
static ms_status reduce_equals(const ms_comm *c, int32_t dtype, int32_t reduce, int64_t n,
                               const char *in, char *out)
{
    const int32_t times = reduce == MS_REDUCE_SUM ? c->size : 1;
    const msi_tree_source src = {in, dtype};
    const msi_tree_args args = {
        .n = n, .n_src = 1, .src = &src, .out = out, .round_dtype = dtype, .factor = times};

    return msi_dispatch_host("reduce", MSI_K_tree, dtype, &args);
}

static ms_status reduce_scatter(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce, int64_t n,
                                char *in, char *out)
{
    (void)seq;
    return reduce_equals(c, dtype, reduce, n, in + c->rank * n * ms_dtype_size(dtype), out);
}

static ms_status all_reduce(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce, int64_t n,
                            char *data)
{
    (void)seq;
    return reduce_equals(c, dtype, reduce, n, data, data);
}

static ms_status broadcast(ms_comm *c, uint64_t seq, int32_t root, char *data, int64_t nbytes)
{
    (void)c;
    (void)seq;
    (void)root;
    (void)data;
    (void)nbytes;
    return MS_OK;
}

static ms_status reduce(ms_comm *c, uint64_t seq, int32_t root, int32_t dtype, int32_t how,
                        int64_t n, char *data)
{
    return c->rank == root ? all_reduce(c, seq, dtype, how, n, data) : MS_OK;
}

static ms_status exchange(ms_comm *c, uint64_t seq, const msi_exchange *e)
{
    (void)seq;
    for (int32_t q = 0; q < c->size; q++) {
        msi_exchange_own(e, c->rank, q);
    }
    return MS_OK;
}

static ms_status map(msi_segment *s, uint64_t seq)
{
    msi_bound why = msi_memory_left("");
    char there[MSI_BOUND_TEXT];

    (void)seq;
    if (s->nbytes <= why.left) {
        s->rw = mmap(NULL, msi_map_bytes(s->nbytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (s->rw == MAP_FAILED) {
            s->rw = NULL;
            why = msi_address_space_left();
        }
    }
    if (s->rw == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a segment of %lld bytes%s",
                       (long long)s->nbytes, msi_bound_text(why, there, sizeof(there)));
    }
    s->ro = s->rw;
    return MS_OK;
}

const msi_transport msi_transport_alone = {.barrier = barrier,
                                           .all_gather = all_gather,
                                           .reduce_scatter = reduce_scatter,
                                           .all_reduce = all_reduce,
                                           .reduce = reduce,
                                           .broadcast = broadcast,
                                           .exchange = exchange,
                                           .map = map,
                                           .map_on_device = msi_device_segment_take};
