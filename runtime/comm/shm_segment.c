/* Host memory that all members of a group map: a memfd whose pages are reserved first.
 *
 * The group's first rank creates it and sends the descriptor to the others. Two rounds of agreement
 * (made, mapped) make every rank fail if one cannot. Ranks as threads share the first rank's maps.
 * Under ThreadSanitizer there is one map, so that it sees conflicting accesses. */
#include "segment.h"
#include "shm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* -- mapping: what failed, or error = 0 -------------------------------------------------------- */

static msi_bound map_fd(msi_segment *s, bool one_map)
{
    void *rw = mmap(NULL, msi_map_bytes(s->nbytes), PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    void *ro = one_map ? rw : mmap(NULL, msi_map_bytes(s->nbytes), PROT_READ, MAP_SHARED, s->fd, 0);
    int error = errno;

    s->rw = rw == MAP_FAILED ? NULL : rw;
    s->ro = ro == MAP_FAILED ? NULL : ro;
    if (s->rw != NULL && s->ro != NULL) {
        return (msi_bound){.error = 0};
    }
    return msi_bound_of(error);
}

/* Add the map to the job's list. */
static msi_bound enlist(msi_segment *s, int32_t owners)
{
    const msi_shared_map made = {.fd = s->fd, .rw = s->rw, .ro = s->ro, .nbytes = s->nbytes};

    s->shared = msi_maps_add(s->comm->job, &made, owners);
    return (msi_bound){.error = s->shared != NULL ? 0 : ENOMEM};
}

/* The first member of each host makes the host's memory. */
static bool leads(const ms_comm *c)
{
    return c->rank == c->hosts.leader;
}

/* -- descriptor transfer ----------------------------------------------------------------------- */

static msi_bound offer(msi_segment *s, ms_comm *c, uint64_t seq)
{
    msi_bound made = msi_memfd_new(&s->fd, "moonshard-segment", (int64_t)msi_map_bytes(s->nbytes));

    const msi_purpose message = {.group = c->id, .seq = seq};

    if (made.error != 0) {
        return made;
    }
    if (!c->job->threads) {
        for (int32_t q = c->hosts.leader + 1; q < c->size && made.error == 0; q++) {
            if (!msi_job_is_local(c->job, c->in_job[q])) {
                continue;
            }
            made = (msi_bound){.error = msi_descriptors_send(c->job, c->in_job[q], message, s->fd)};
        }
        return made;
    }
    bool one_map = false;

#ifdef __SANITIZE_THREAD__
    one_map = true;
#endif
    made = map_fd(s, one_map);
    if (made.error == 0) {
        made = enlist(s, c->size);
    }
    atomic_store(&c->members[0].handoff, s->shared);
    return made;
}

/* Other hosts may send to it once all have mapped it. */
static msi_bound mirror(msi_segment *s, const ms_comm *c, uint64_t seq)
{
    const uint64_t region = msi_mix64(c->id ^ msi_mix64(seq)) | 1;

    if (c->hosts.n == 1) {
        return (msi_bound){.error = 0};
    }
    if (msi_mirror_add(c->job->mirror, region, s->rw, (int64_t)msi_map_bytes(s->nbytes)) != MS_OK) {
        return (msi_bound){.error = ENOMEM};
    }
    s->region = region;
    s->mirror = c->job->mirror;
    return (msi_bound){.error = 0};
}

static msi_bound accept_offer(msi_segment *s, ms_comm *c, uint64_t seq)
{
    if (!c->job->threads) {
        const msi_purpose message = {.group = c->id, .seq = seq};
        int error =
            leads(c) ? 0 : msi_descriptors_receive(c->job, c->in_job[c->rank], message, &s->fd);
        msi_bound mapped = error != 0 ? msi_bound_of(error) : map_fd(s, false);

        mapped = mapped.error == 0 ? enlist(s, 1) : mapped;
        return mapped.error == 0 ? mirror(s, c, seq) : mapped;
    }
    if (c->rank != 0) {
        s->shared = atomic_load(&c->members[0].handoff);
        s->rw = s->shared->rw;
        s->ro = s->shared->ro;
    }
    return (msi_bound){.error = 0};
}

/* -- agreeing ---------------------------------------------------------------------------------- */

msi_refusal msi_refusal_of(msi_bound b)
{
    msi_refusal r = {.status = MS_OK};
    char there[MSI_BOUND_TEXT];

    if (b.error != 0) {
        r.status = msi_error_kind(b.error);
        snprintf(r.why, sizeof(r.why), "%s%s", strerrordesc_np(b.error),
                 msi_bound_text(b, there, sizeof(there)));
    }
    return r;
}

ms_status msi_segment_agree(const msi_segment *s, uint64_t seq, const msi_refusal *mine,
                            const char *verb)
{
    ms_comm *c = s->comm;
    msi_refusal all[c->size];

    MS_TRY(msi_stage_exchange(c, seq, mine, sizeof(*mine), all));
    for (int32_t q = 0; q < c->size; q++) {
        if (all[q].status != MS_OK) {
            return MS_FAIL(all[q].status, "rank %d cannot %s a shared segment of %lld bytes: %s",
                           (int)c->in_job[q], verb, (long long)s->nbytes, all[q].why);
        }
    }
    return MS_OK;
}

ms_status msi_shm_map(msi_segment *s, uint64_t seq)
{
    ms_comm *c = s->comm;
    msi_refusal mine = msi_refusal_of(leads(c) ? offer(s, c, seq) : (msi_bound){.error = 0});

    MS_TRY(msi_segment_agree(s, seq, &mine, "reserve"));
    mine = msi_refusal_of(accept_offer(s, c, seq));
    return msi_segment_agree(s, seq, &mine, "map");
}
