/* Segments: memory that all members of a group map. */
#include "segment.h"

#include <unistd.h>

static ms_status make(msi_segment *out, msi_segment s,
                      ms_status (*map)(msi_segment *s, uint64_t seq))
{
    const msi_fingerprint fp = {.kind = MSI_COLL_SEGMENT,
                                .dtype = MS_DTYPE_NONE,
                                .ndim = -1,
                                .count = s.nbytes,
                                .slot = -1};
    uint64_t seq;

    *out = (msi_segment){.fd = -1};
    if (s.nbytes < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "size of a segment is %lld, expected 0 or more",
                       (long long)s.nbytes);
    }
    MS_TRY(msi_comm_publish(s.comm, &fp, &seq));
    ms_status status = map(&s, seq);

    if (status != MS_OK) {
        msi_segment_free(&s);
        return status;
    }
    *out = s;
    return MS_OK;
}

ms_status msi_segment_new(msi_segment *out, ms_comm *comm, int64_t nbytes)
{
    const msi_segment s = {.fd = -1, .nbytes = nbytes, .comm = comm};

    return make(out, s, comm->via->map);
}

ms_status msi_segment_new_on(msi_segment *out, ms_comm *comm, struct msi_device *device,
                             int32_t owner, int64_t nbytes)
{
    const msi_segment s = {
        .fd = -1, .nbytes = nbytes, .comm = comm, .device = device, .owner = owner};

    MS_ASSERT(owner == MSI_OWNER_ALL || (owner >= 0 && owner < comm->size));
    return make(out, s, comm->via->map_on_device);
}

void msi_segment_free(msi_segment *s)
{
    if (s->comm == NULL) { /* never made, or freed: fd is not valid */
        return;
    }
    if (s->mirror != NULL) {
        msi_mirror_remove(s->mirror, s->region);
    }
    if (s->device != NULL) {
        msi_device_segment_free(s);
    } else if (s->shared != NULL) {
        msi_maps_drop(s->shared);
    } else {
        msi_unmap(s->rw, s->ro, s->nbytes);
    }
    if (s->fd >= 0) {
        close(s->fd);
    }
    *s = (msi_segment){.fd = -1};
}
