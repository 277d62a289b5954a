/* Memory that all ranks of a group map: a memfd, its pages reserved before anybody touches them.
 *
 * The group's first rank makes it and sends the descriptor to the others' mailboxes. Two rounds of
 * agreement (made, mapped) make every rank fail when one cannot. Ranks as threads share the first
 * rank's maps; under ThreadSanitizer there is one map only, so that it sees who touches what. */
#include "control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* Maps of one segment, which ranks as threads share. The last owner unmaps; the job frees this
 * struct, and the maps of a segment whose making failed half-way. */
typedef struct msi_shared_map {
    _Atomic int32_t owners;
    int32_t fd;
    char *rw, *ro;
    int64_t nbytes;
    struct msi_shared_map *next;
} msi_shared_map;

typedef struct letter {
    uint64_t nonce, seq;
} letter;

/* An empty segment still has addresses. */
static size_t map_bytes(int64_t nbytes)
{
    return (size_t)(nbytes > 0 ? nbytes : 1);
}

static void unmap(char *rw, char *ro, int64_t nbytes)
{
    if (ro != NULL && ro != rw) {
        munmap(ro, map_bytes(nbytes));
    }
    if (rw != NULL) {
        munmap(rw, map_bytes(nbytes));
    }
}

/* -- one rank ---------------------------------------------------------------------------------- */

static ms_status make_private(msi_segment *s)
{
    msi_bound why = msi_memory_left("");
    char there[MSI_BOUND_TEXT];

    if (s->nbytes <= why.left) {
        s->rw = mmap(NULL, map_bytes(s->nbytes), PROT_READ | PROT_WRITE,
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

/* -- mapping: what failed, or error = 0 -------------------------------------------------------- */

static msi_bound map_fd(msi_segment *s, bool one_map)
{
    void *rw = mmap(NULL, map_bytes(s->nbytes), PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    void *ro = one_map ? rw : mmap(NULL, map_bytes(s->nbytes), PROT_READ, MAP_SHARED, s->fd, 0);
    int error = errno;

    s->rw = rw == MAP_FAILED ? NULL : rw;
    s->ro = ro == MAP_FAILED ? NULL : ro;
    if (s->rw != NULL && s->ro != NULL) {
        return (msi_bound){.error = 0};
    }
    return msi_bound_of(error);
}

/* Put what is mapped into the job's list. */
static msi_bound enlist(msi_segment *s, int32_t owners)
{
    msi_job *job = s->comm->job;
    msi_shared_map *map = calloc(1, sizeof(*map));

    if (map == NULL) {
        return (msi_bound){.error = ENOMEM};
    }
    map->fd = s->fd;
    map->rw = s->rw;
    map->ro = s->ro;
    map->nbytes = s->nbytes;
    atomic_store(&map->owners, owners);
    map->next = atomic_load(&job->maps);
    while (!atomic_compare_exchange_weak(&job->maps, &map->next, map)) {
    }
    s->shared = map;
    return (msi_bound){.error = 0};
}

/* -- handing over ------------------------------------------------------------------------------ */

static int send_fd(const ms_comm *c, int32_t q, uint64_t seq, int32_t fd)
{
    letter body = {.nonce = c->job->block->nonce, .seq = seq};
    struct iovec part = {.iov_base = &body, .iov_len = sizeof(body)};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    while (sendmsg(c->job->mail[c->slot[q]][1], &message, MSG_NOSIGNAL) < 0) {
        if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* The sender has arrived already, so the letter is there; older ones belong to failed attempts. */
static int receive_fd(const ms_comm *c, uint64_t seq, int32_t *fd)
{
    for (;;) {
        letter body = {0};
        struct iovec part = {.iov_base = &body, .iov_len = sizeof(body)};
        _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof(control)};
        ssize_t n =
            recvmsg(c->job->mail[c->slot[c->rank]][0], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        struct cmsghdr *rights = n >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
        int got;

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return errno;
        }
        if ((message.msg_flags & MSG_CTRUNC) != 0) { /* no room for one more descriptor */
            return EMFILE;
        }
        if (rights == NULL || rights->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        memcpy(&got, CMSG_DATA(rights), sizeof(got));
        if (n == sizeof(body) && body.nonce == c->job->block->nonce && body.seq == seq) {
            *fd = got;
            return 0;
        }
        close(got);
    }
}

static msi_bound offer(msi_segment *s, ms_comm *c, uint64_t seq)
{
    msi_bound made = msi_memfd_new(&s->fd, "moonshard-segment", (int64_t)map_bytes(s->nbytes));

    if (made.error != 0) {
        return made;
    }
    if (!c->job->threads) {
        for (int32_t q = 1; q < c->size && made.error == 0; q++) {
            made = (msi_bound){.error = send_fd(c, q, seq, s->fd)};
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

static msi_bound accept_offer(msi_segment *s, ms_comm *c, uint64_t seq)
{
    if (!c->job->threads) {
        int error = c->rank == 0 ? 0 : receive_fd(c, seq, &s->fd);
        msi_bound mapped = error != 0 ? msi_bound_of(error) : map_fd(s, false);

        return mapped.error == 0 ? enlist(s, 1) : mapped;
    }
    if (c->rank != 0) {
        s->shared = atomic_load(&c->members[0].handoff);
        s->rw = s->shared->rw;
        s->ro = s->shared->ro;
    }
    return (msi_bound){.error = 0};
}

/* Every member learns the first error of any. */
static ms_status agree(ms_comm *c, uint64_t seq, msi_bound mine, const char *what, int64_t nbytes)
{
    msi_bound all[MSI_MAX_RANKS];
    char there[MSI_BOUND_TEXT];

    MS_TRY(msi_stage_exchange(c, seq, &mine, sizeof(mine), all));
    for (int32_t q = 0; q < c->size; q++) {
        if (all[q].error != 0) {
            return MS_FAIL(msi_error_kind(all[q].error),
                           "rank %d cannot %s a shared segment of %lld bytes: %s%s",
                           (int)c->slot[q], what, (long long)nbytes, strerrordesc_np(all[q].error),
                           msi_bound_text(all[q], there, sizeof(there)));
        }
    }
    return MS_OK;
}

ms_status msi_segment_new(msi_segment *out, ms_comm *comm, int64_t nbytes)
{
    msi_fingerprint fp = {
        .kind = MSI_COLL_SEGMENT, .dtype = MS_DTYPE_NONE, .ndim = -1, .count = nbytes, .slot = -1};
    ms_status status;
    uint64_t seq;

    *out = (msi_segment){.fd = -1};
    if (nbytes < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "size of a segment is %lld, expected 0 or more",
                       (long long)nbytes);
    }
    MS_TRY(msi_comm_publish(comm, &fp, &seq));
    msi_segment s = {.fd = -1, .nbytes = nbytes, .comm = comm};

    if (comm->size == 1) {
        MS_TRY_GOTO(make_private(&s), failed);
    } else {
        msi_bound made = comm->rank == 0 ? offer(&s, comm, seq) : (msi_bound){.error = 0};

        MS_TRY_GOTO(agree(comm, seq, made, "reserve", nbytes), failed);
        made = accept_offer(&s, comm, seq);
        MS_TRY_GOTO(agree(comm, seq, made, "map", nbytes), failed);
    }
    *out = s;
    return MS_OK;
failed:
    msi_segment_free(&s);
    return status;
}

void msi_segment_free(msi_segment *s)
{
    if (s->shared != NULL) {
        if (atomic_fetch_sub(&s->shared->owners, 1) == 1) {
            unmap(s->shared->rw, s->shared->ro, s->shared->nbytes);
        }
    } else {
        unmap(s->rw, s->ro, s->nbytes);
    }
    if (s->fd >= 0) {
        close(s->fd);
    }
    *s = (msi_segment){.fd = -1};
}

void msi_segments_make_private(const msi_job *job)
{
    for (msi_shared_map *map = atomic_load(&job->maps); map != NULL; map = map->next) {
        if (atomic_load(&map->owners) > 0) {
            msi_make_private(map->rw, map_bytes(map->nbytes), PROT_READ | PROT_WRITE, map->fd);
            msi_make_private(map->ro, map_bytes(map->nbytes), PROT_READ, map->fd);
        }
    }
}

void msi_segment_sweep(msi_job *job)
{
    msi_shared_map *map = atomic_load(&job->maps);

    while (map != NULL) {
        msi_shared_map *next = map->next;

        if (atomic_load(&map->owners) > 0) {
            unmap(map->rw, map->ro, map->nbytes);
        }
        free(map);
        map = next;
    }
    atomic_store(&job->maps, NULL);
}
