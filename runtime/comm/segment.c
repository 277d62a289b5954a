/* Segments: memory that all members of a group map. */
#include "group.h"

#include <unistd.h>

ms_status msi_segment_new(msi_segment *out, ms_comm *comm, int64_t nbytes)
{
    const msi_fingerprint fp = {
        .kind = MSI_COLL_SEGMENT, .dtype = MS_DTYPE_NONE, .ndim = -1, .count = nbytes, .slot = -1};
    msi_segment s = {.fd = -1, .nbytes = nbytes, .comm = comm};
    uint64_t seq;

    *out = (msi_segment){.fd = -1};
    if (nbytes < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "size of a segment is %lld, expected 0 or more",
                       (long long)nbytes);
    }
    MS_TRY(msi_comm_publish(comm, &fp, &seq));
    ms_status status = comm->via->map(&s, seq);

    if (status != MS_OK) {
        msi_segment_free(&s);
        return status;
    }
    *out = s;
    return MS_OK;
}

void msi_segment_free(msi_segment *s)
{
    if (s->shared != NULL) {
        msi_maps_drop(s->shared);
    } else {
        msi_unmap(s->rw, s->ro, s->nbytes);
    }
    if (s->fd >= 0) {
        close(s->fd);
    }
    *s = (msi_segment){.fd = -1};
}
