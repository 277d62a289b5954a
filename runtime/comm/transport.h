/* Transports: how data moves between members. A group's transport is chosen when it is made.
 * Records, notes and waiting are independent of it: msi_comm_wait() polls words. */
#ifndef MSI_TRANSPORT_H
#define MSI_TRANSPORT_H

#include "comm.h"

/* Operations. Each moves what all members have just published under `seq`, with equal arguments.
 * Memory is contiguous host memory; reductions use CPU kernels. MS_COMM_ERROR if a peer fails; part
 * of the data may have moved. */
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
    /* `data` of member `root` to all. */
    ms_status (*broadcast)(ms_comm *c, uint64_t seq, int32_t root, char *data, int64_t nbytes);
    /* Map `s->nbytes` for all members, zeroed, pages reserved. msi_segment_free() releases `s`,
     * even after an error or without the group. */
    ms_status (*map)(msi_segment *s, uint64_t seq);
    /* The same in memory of `s->device`, for `s->owner`, uninitialised. */
    ms_status (*map_on_device)(msi_segment *s, uint64_t seq);
} msi_transport;

extern const msi_transport msi_transport_shm;   /* shm.c: mapped host memory */
extern const msi_transport msi_transport_alone; /* alone.c: this rank only, or fake members */

#endif
