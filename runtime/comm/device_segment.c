/* Segments in device memory.
 *
 * One member's device allocates it and exports a descriptor. The others receive a copy, by message
 * or, as threads, in their hand-off word, and map it through their device. As for host memory, two
 * rounds of agreement make every rank fail if one cannot. Descriptors are then closed; the memory
 * exists while anyone maps it.
 *
 * The job keeps no list of them. A forked process has no device to reach them
 * (backend/device_lost.c), and their owners close before the context's device, so none are left at
 * the end. */
#include "segment.h"

#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int64_t bytes_of(const msi_segment *s)
{
    return (int64_t)msi_map_bytes(s->nbytes);
}

static bool is_owner(const msi_segment *s)
{
    return s->comm->rank == (s->owner == MSI_OWNER_ALL ? 0 : s->owner);
}

static msi_refusal refusal(const msi_segment *s, int32_t outcome)
{
    const char *kind = s->device->ops->kind;
    msi_refusal r = {.status = MS_OK};

    if (outcome == MSI_DEV_NO_MEMORY) {
        r.status = MS_OUT_OF_MEMORY;
        snprintf(r.why, sizeof(r.why), "device '%s' has no memory left", kind);
    } else if (outcome != MSI_DEV_OK) {
        r.status = MS_DEVICE_ERROR;
        snprintf(r.why, sizeof(r.why), "device '%s' refuses it (%d)", kind, (int)outcome);
    }
    return r;
}

/* -- its memory -------------------------------------------------------------------------------- */

static int32_t share(msi_segment *s)
{
    void *memory;
    const int32_t outcome = s->device->ops->share(s->device, bytes_of(s), &memory, &s->fd);

    if (outcome == MSI_DEV_OK) {
        s->rw = memory;
    } else {
        s->fd = -1;
    }
    return outcome;
}

static int32_t take(msi_segment *s)
{
    void *memory;
    const int32_t outcome = s->device->ops->take(s->device, bytes_of(s), MSI_PLACE_DEVICE, &memory);

    if (outcome == MSI_DEV_OK) {
        s->rw = s->ro = memory;
        s->unshared = true;
    }
    return outcome;
}

/* If memory is short, trim the context's heap and retry. */
static int32_t get(msi_segment *s, int32_t (*how)(msi_segment *s))
{
    const int32_t outcome = how(s);

    if (outcome != MSI_DEV_NO_MEMORY) {
        return outcome;
    }
    msi_alloc_trim(s->device->ctx);
    return how(s);
}

static int32_t attach(const msi_segment *s, bool readonly, char **out)
{
    void *memory;
    const int32_t outcome =
        s->device->ops->attach(s->device, s->fd, bytes_of(s), readonly, &memory);

    *out = outcome == MSI_DEV_OK ? memory : NULL;
    return outcome;
}

/* Map what this rank needs and has not mapped. */
static int32_t attach_all(msi_segment *s)
{
    if (s->owner != MSI_OWNER_ALL && is_owner(s)) {
        s->ro = s->rw;
        return MSI_DEV_OK;
    }
    int32_t outcome = attach(s, true, &s->ro);

    if (outcome == MSI_DEV_OK && s->owner == MSI_OWNER_ALL && s->rw == NULL) {
        outcome = attach(s, false, &s->rw);
    }
    return outcome;
}

void msi_device_segment_free(const msi_segment *s)
{
    const msi_device_ops *ops = s->device->ops;

    if (s->unshared) {
        ops->give(s->device, s->rw, bytes_of(s), MSI_PLACE_DEVICE);
        return;
    }
    if (s->ro != NULL && s->ro != s->rw) {
        ops->detach(s->device, s->ro, bytes_of(s));
    }
    if (s->rw != NULL) {
        ops->detach(s->device, s->rw, bytes_of(s));
    }
}

/* -- its descriptor ---------------------------------------------------------------------------- */

/* Ranks as threads: take the descriptor from member q's hand-off word (by q, or back by the owner);
 * -1: none. */
static int32_t take_handoff(ms_comm *c, int32_t q)
{
    return (int32_t)(intptr_t)atomic_exchange(&c->members[q].handoff, NULL) - 1;
}

/* Returns errno. */
static int put_handoff(ms_comm *c, int32_t q, int32_t fd)
{
    const int its = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (its < 0) {
        return errno;
    }
    atomic_store(&c->members[q].handoff, (void *)((intptr_t)its + 1));
    return 0;
}

/* A process discards a descriptor left in its socket. */
static void take_back(ms_comm *c)
{
    for (int32_t q = 0; c->job->threads && q < c->size; q++) {
        const int32_t fd = q != c->rank ? take_handoff(c, q) : -1;

        if (fd >= 0) {
            close(fd);
        }
    }
}

/* To all other members or none. Returns errno. */
static int hand_over(ms_comm *c, msi_purpose message, int32_t fd)
{
    int error = 0;

    for (int32_t q = 0; q < c->size; q++) { /* of an earlier segment */
        atomic_store(&c->members[q].handoff, NULL);
    }
    for (int32_t q = 0; q < c->size && error == 0; q++) {
        if (q != c->rank) {
            error = c->job->threads ? put_handoff(c, q, fd)
                                    : msi_descriptors_send(c->job, c->in_job[q], message, fd);
        }
    }
    if (error != 0) {
        take_back(c);
    }
    return error;
}

/* Returns errno. */
static int receive(ms_comm *c, msi_purpose message, int32_t *fd)
{
    if (!c->job->threads) {
        return msi_descriptors_receive(c->job, c->in_job[c->rank], message, fd);
    }
    *fd = take_handoff(c, c->rank);
    return *fd >= 0 ? 0 : ECANCELED; /* its owner dropped it */
}

/* -- making it --------------------------------------------------------------------------------- */

static msi_refusal offer(msi_segment *s, msi_purpose message)
{
    const msi_refusal shared = refusal(s, get(s, share));

    return shared.status != MS_OK
               ? shared
               : msi_refusal_of(msi_bound_of(hand_over(s->comm, message, s->fd)));
}

static msi_refusal accept_offer(msi_segment *s, msi_purpose message)
{
    const int error = is_owner(s) ? 0 : receive(s->comm, message, &s->fd);

    return error != 0 ? msi_refusal_of(msi_bound_of(error)) : refusal(s, attach_all(s));
}

static ms_status agree_on(msi_segment *s, uint64_t seq)
{
    const msi_purpose message = {.group = s->comm->id, .seq = seq};
    msi_refusal mine = is_owner(s) ? offer(s, message) : (msi_refusal){.status = MS_OK};

    MS_TRY(msi_segment_agree(s, seq, &mine, "reserve"));
    mine = accept_offer(s, message);
    return msi_segment_agree(s, seq, &mine, "map");
}

ms_status msi_device_segment_map(msi_segment *s, uint64_t seq)
{
    const ms_status status = agree_on(s, seq);

    if (status == MS_COMM_ERROR && is_owner(s)) { /* else all have theirs */
        take_back(s->comm);
    }
    if (s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
    return status;
}

ms_status msi_device_segment_take(msi_segment *s, uint64_t seq)
{
    const msi_refusal r = refusal(s, get(s, take));

    (void)seq;
    if (r.status != MS_OK) {
        return MS_FAIL(r.status, "no memory for a segment of %lld bytes: %s", (long long)s->nbytes,
                       r.why);
    }
    if (!ms_comm_is_fake(s->comm)) {
        return MS_OK;
    }
    MS_TRY(msi_mem_set(s->device->ctx, s->rw, 0, bytes_of(s))); /* others' parts stay unfilled */
    return msi_settle(s->device->ctx);
}
