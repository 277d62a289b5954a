/* Transports: how data moves between members. A group's transport is chosen when it is made.
 * Records, notes and waiting are independent of it: msi_comm_wait() polls words. */
#ifndef MSI_TRANSPORT_H
#define MSI_TRANSPORT_H

#include "comm.h"

/* Parts that go from each member to each, one after another by member in `in` and `out`, which do
 * not overlap. */
typedef struct msi_exchange {
    uint32_t
        kind; /* MSI_COLL_SCATTER: root alone sends; _GATHER: root alone receives; _ALL_TO_ALL */
    int32_t root;
    const char *in;
    char *out;
    int64_t each; /* bytes of a part, unless lists give those of an all-to-all */
    const int64_t *in_bytes, *out_bytes;
    int64_t most; /* bytes of the largest part of any member */
} msi_exchange;

/* Bytes from member `rank` to q, and to it from q. */
static inline int64_t msi_exchange_sends(const msi_exchange *e, int32_t rank, int32_t q)
{
    return e->in_bytes != NULL                              ? e->in_bytes[q]
           : e->kind == MSI_COLL_SCATTER && rank != e->root ? 0
           : e->kind == MSI_COLL_GATHER && q != e->root     ? 0
                                                            : e->each;
}
static inline int64_t msi_exchange_receives(const msi_exchange *e, int32_t rank, int32_t q)
{
    return e->out_bytes != NULL ? e->out_bytes[q] : msi_exchange_sends(e, q, rank);
}

/* Copy what `rank` sends to itself to what it receives from q: itself, or in a fake group a member
 * that has its data. */
void msi_exchange_own(const msi_exchange *e, int32_t rank, int32_t q);

enum {
    MSI_PART_ALIGN = 64,          /* elements */
    MSI_DEVICES_BYTES = 64 * 1024 /* smallest part that the devices' communicator moves */
};

/* Elements of n that member q of `size` reduces; starts are cache aligned. */
typedef struct msi_part {
    int64_t first, n;
} msi_part;

static inline msi_part msi_part_of(int32_t q, int32_t size, int64_t n)
{
    const int64_t lines = (n + MSI_PART_ALIGN - 1) / MSI_PART_ALIGN;
    const int64_t first = lines * q / size * MSI_PART_ALIGN;
    const int64_t last = lines * (q + 1) / size * MSI_PART_ALIGN;
    const int64_t from = first < n ? first : n, to = last < n ? last : n;

    return (msi_part){from, to - from};
}

/* Operations. Each moves what all members have just published under `seq`, with equal arguments.
 * Memory is contiguous; the host's, except for msi_transport_devices. MS_COMM_ERROR if a peer
 * fails; part of the data may have moved. */
typedef struct msi_transport {
    /* Return when every member has called. */
    ms_status (*barrier)(ms_comm *c, uint64_t seq);
    /* `nbytes` of every member to `out` (size, nbytes); `in` may be this rank's part of it. */
    ms_status (*all_gather)(ms_comm *c, uint64_t seq, const void *in, int64_t nbytes, void *out);
    /* `in` (size, n) of every member to `out` (n): this rank's part of the reduction (MS_REDUCE_*)
     * by the fixed tree over members. `out` may be this rank's part of `in`. */
    ms_status (*reduce_scatter)(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce, int64_t n,
                                char *in, char *out);
    /* `data` (n) in place, with equal bits on every member. */
    ms_status (*all_reduce)(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce, int64_t n,
                            char *data);
    /* The same for member `root` alone; elsewhere `data` is unchanged. */
    ms_status (*reduce)(ms_comm *c, uint64_t seq, int32_t root, int32_t dtype, int32_t reduce,
                        int64_t n, char *data);
    /* `data` of member `root` to all. */
    ms_status (*broadcast)(ms_comm *c, uint64_t seq, int32_t root, char *data, int64_t nbytes);
    ms_status (*exchange)(ms_comm *c, uint64_t seq, const msi_exchange *e);
    /* Map `s->nbytes` for all members, zeroed, pages reserved. msi_segment_free() releases `s`,
     * even after an error or without the group. */
    ms_status (*map)(msi_segment *s, uint64_t seq);
    /* The same in memory of `s->device`, for `s->owner`, uninitialised. */
    ms_status (*map_on_device)(msi_segment *s, uint64_t seq);
} msi_transport;

extern const msi_transport msi_transport_shm;   /* shm.c: mapped host memory */
extern const msi_transport msi_transport_alone; /* alone.c: this rank only, or fake members */
/* device_transport.c: between GPUs; only collectives on tensors, and on their device memory. */
extern const msi_transport msi_transport_devices;

/* The slot in a fingerprint, so that members that choose different transports differ. */
static inline int32_t msi_slot_of(const msi_transport *via)
{
    return via == &msi_transport_devices ? MSI_SLOT_DEVICES : -1;
}

#endif
