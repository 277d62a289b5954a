/* Transports: how what the members of a group hold gets to the others. A group has one from the
 * time it is made. What members say (records, notes), and how they wait for words, is the same
 * above all of them: msi_comm_wait() polls words, and asks no transport. */
#ifndef MSI_TRANSPORT_H
#define MSI_TRANSPORT_H

#include "comm.h"

/* The verbs. Each moves what all members have just named under `seq` in equal terms; memory is the
 * host's, whatever the device, without gaps, and reductions run the CPU's kernels. MS_COMM_ERROR
 * when a peer fails meanwhile; a part may have moved then. */
typedef struct msi_transport {
    /* Return when every member has called. */
    ms_status (*barrier)(ms_comm *c, uint64_t seq);
    /* `nbytes` of every member to `out` (size, nbytes); `in` may be this rank's place there. */
    ms_status (*all_gather)(ms_comm *c, uint64_t seq, const void *in, int64_t nbytes, void *out);
    /* `in` (size, n) of every member to `out` (n): this rank's part of the reduction (MS_REDUCE_*)
     * by the fixed tree over members. `out` may be this rank's place in `in`. */
    ms_status (*reduce_scatter)(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce, int64_t n,
                                char *in, char *out);
    /* `data` (n) becomes that reduction, in equal bits on every member. */
    ms_status (*all_reduce)(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce, int64_t n,
                            char *data);
    /* `data` becomes member `root`'s. */
    ms_status (*broadcast)(ms_comm *c, uint64_t seq, int32_t root, char *data, int64_t nbytes);
    /* Map memory of `s->nbytes` for all members, zeroed, its pages reserved. msi_segment_free()
     * releases what stands in `s` then, after an error too, without the group: that may be gone. */
    ms_status (*map)(msi_segment *s, uint64_t seq);
    /* The same of `s->device`'s memory, which `s->owner` says whose it is: of any content. */
    ms_status (*map_on_device)(msi_segment *s, uint64_t seq);
} msi_transport;

extern const msi_transport msi_transport_shm;   /* shm.c: memory of the host, which all map */
extern const msi_transport msi_transport_alone; /* alone.c: of this rank, or as if all were it */

#endif
