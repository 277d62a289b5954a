/* Giving file descriptors to the other ranks of a host that a launcher started as strangers to each
 * other: by an abstract socket of local rank 0. Both sides require the peer to be the same user. */
#include "job.h"
#include "rendezvous_meet.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* PER_MESSAGE: of descriptors, below the kernel's limit SCM_MAX_FD (253). */
enum { PER_MESSAGE = 128, PENDING = 64 };

#define AGAIN_NS 5000000
#define ASK_NS ((int64_t)2000000000) /* between connecting and asking */

/* A rank's request, and the head of each message with descriptors. */
typedef struct request {
    uint64_t nonce;
    int32_t local_rank, n;
} request;

static socklen_t name_socket(struct sockaddr_un *at, const msi_rendezvous *r, const msi_place *p)
{
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    /* an abstract name: after a zero byte, without one at the end */
    const int n =
        snprintf(at->sun_path + 1, sizeof(at->sun_path) - 1, "moonshard-%d-%016llx-%016llx-%d",
                 (int)getuid(), (unsigned long long)ms_hash_bytes(p->run, (int64_t)strlen(p->run)),
                 (unsigned long long)r->nonce, (int)p->host);

    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static bool is_same_user(int32_t fd)
{
    struct ucred peer;
    socklen_t n = sizeof(peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 && peer.uid == getuid();
}

static void close_all(int32_t *fds, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        close(fds[i]);
        fds[i] = -1;
    }
}

/* -- messages ---------------------------------------------------------------------------------- */

typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(PER_MESSAGE * sizeof(int32_t))];
} control;

/* Returns errno. */
static int send_some(int32_t fd, request head, const int32_t *fds, int32_t n)
{
    struct iovec part = {.iov_base = &head, .iov_len = sizeof(head)};
    control c = {.bytes = {0}};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = c.bytes,
                             .msg_controllen = CMSG_SPACE((size_t)n * sizeof(fds[0]))};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN((size_t)n * sizeof(fds[0]));
    memcpy(CMSG_DATA(rights), fds, (size_t)n * sizeof(fds[0]));
    while (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* Receive exactly `n` descriptors in one message. Returns errno. */
static int receive_some(int32_t fd, const request *expected, int32_t *fds, int32_t n)
{
    request head = {0};
    struct iovec part = {.iov_base = &head, .iov_len = sizeof(head)};
    control c = {.bytes = {0}};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = c.bytes, .msg_controllen = sizeof(c)};
    const ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    int32_t number = 0;

    if (got <= 0) {
        return got == 0 ? ECONNRESET : errno;
    }
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); h != NULL; h = CMSG_NXTHDR(&message, h)) {
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && number == 0) {
            number = (int32_t)((h->cmsg_len - CMSG_LEN(0)) / sizeof(fds[0]));
            number = number > n ? n : number; /* more than n cannot come from this program */
            memcpy(fds, CMSG_DATA(h), (size_t)number * sizeof(fds[0]));
        }
    }
    const int error =
        (message.msg_flags & MSG_CTRUNC) != 0                                              ? EMFILE
        : number != n || got != sizeof(head) || memcmp(&head, expected, sizeof(head)) != 0 ? EPROTO
                                                                                           : 0;

    if (error != 0) {
        close_all(fds, number);
    }
    return error;
}

static int give(int32_t fd, const request *asked, const int32_t *fds, int32_t n)
{
    int error = 0;

    for (int32_t at = 0; at < n && error == 0; at += PER_MESSAGE) {
        error = send_some(fd, *asked, fds + at, n - at < PER_MESSAGE ? n - at : PER_MESSAGE);
    }
    return error;
}

/* -- local rank 0 ------------------------------------------------------------------------------ */

typedef struct giver {
    const msi_rendezvous *r;
    const msi_place *p;
    const int32_t *fds;
    int32_t n, listener;
    bool missing[MS_MAX_RANKS]; /* by local rank */
    int32_t n_missing, n_pending;
    struct {
        int32_t fd;
        int64_t since_ns;
    } pending[PENDING]; /* connected, not served */
} giver;

static void drop_pending(giver *g, int32_t i)
{
    close(g->pending[i].fd);
    g->pending[i] = g->pending[--g->n_pending];
}

static void accept_some(giver *g)
{
    int32_t fd;

    while (g->n_pending < PENDING &&
           (fd = accept4(g->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        if (!is_same_user(fd)) {
            close(fd);
            continue;
        }
        g->pending[g->n_pending].fd = fd;
        g->pending[g->n_pending++].since_ns = msi_now_ns();
    }
}

static ms_status serve_pending(giver *g, int32_t i)
{
    request asked;
    const ssize_t got = recv(g->pending[i].fd, &asked, sizeof(asked), MSG_DONTWAIT);

    if (got < 0 && (errno == EAGAIN || errno == EINTR) &&
        msi_now_ns() - g->pending[i].since_ns < ASK_NS) {
        return MS_OK;
    }
    if (got == sizeof(asked) && asked.nonce == g->r->nonce && asked.n == g->n &&
        asked.local_rank > 0 && asked.local_rank < g->p->local_world &&
        g->missing[asked.local_rank]) {
        const int error = give(g->pending[i].fd, &asked, g->fds, g->n);

        if (error != 0) {
            return MS_FAIL(
                MS_COMM_ERROR, "cannot give %d file descriptors to local rank %d of host %d: %s",
                (int)g->n, (int)asked.local_rank, (int)g->p->host, strerrordesc_np(error));
        }
        g->missing[asked.local_rank] = false;
        g->n_missing--;
    }
    drop_pending(g, i);
    return MS_OK;
}

static ms_status fail_missing(const giver *g)
{
    char list[160];
    int32_t local[MS_MAX_RANKS], n = 0;

    for (int32_t l = 1; l < g->p->local_world; l++) {
        if (g->missing[l]) {
            local[n++] = l;
        }
    }
    return MS_FAIL(MS_COMM_ERROR,
                   "local %s of host %d did not take the job's memory from rank %d within %s s; "
                   "check that the processes of a host run as one user in one network namespace",
                   msi_ranks_list(local, n, list, sizeof(list)), (int)g->p->host, (int)g->p->rank,
                   msi_seconds_text(g->r->timeout_ns));
}

static ms_status serve(giver *g)
{
    const int64_t deadline_ns = msi_now_ns() + g->r->timeout_ns;
    struct pollfd fds[1 + PENDING];

    while (g->n_missing > 0) {
        const int64_t left_ms = (deadline_ns - msi_now_ns()) / 1000000;

        if (left_ms < 0) {
            return fail_missing(g);
        }
        fds[0] = (struct pollfd){.fd = g->n_pending < PENDING ? g->listener : -1, .events = POLLIN};
        for (int32_t i = 0; i < g->n_pending; i++) {
            fds[1 + i] = (struct pollfd){.fd = g->pending[i].fd, .events = POLLIN};
        }
        poll(fds, (nfds_t)(1 + g->n_pending), left_ms > 100 ? 100 : (int)left_ms + 1);
        accept_some(g);
        for (int32_t i = g->n_pending - 1; i >= 0; i--) {
            MS_TRY(serve_pending(g, i));
        }
    }
    return MS_OK;
}

static ms_status give_to_all(const msi_rendezvous *r, const msi_place *p, const int32_t *fds,
                             int32_t n)
{
    giver g = {.r = r, .p = p, .fds = fds, .n = n, .n_missing = p->local_world - 1};
    struct sockaddr_un at;
    const socklen_t nbytes = name_socket(&at, r, p);
    ms_status status = MS_OK;

    for (int32_t l = 1; l < p->local_world; l++) {
        g.missing[l] = true;
    }
    g.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (g.listener < 0 || bind(g.listener, (const struct sockaddr *)&at, nbytes) != 0 ||
        listen(g.listener, MS_MAX_RANKS) != 0) {
        status = MS_FAIL(MS_COMM_ERROR, "rank %d cannot make the socket @%s of its host: %s",
                         (int)p->rank, at.sun_path + 1, strerrordesc_np(errno));
    } else {
        status = serve(&g);
    }
    while (g.n_pending > 0) {
        drop_pending(&g, g.n_pending - 1);
    }
    if (g.listener >= 0) {
        close(g.listener);
    }
    return status;
}

/* -- other local ranks ------------------------------------------------------------------------- */

/* Connect when local rank 0 listens. Returns errno. */
static int connect_local(int32_t fd, const struct sockaddr_un *at, socklen_t nbytes,
                         int64_t deadline_ns)
{
    const struct timespec moment = {.tv_nsec = AGAIN_NS};

    while (connect(fd, (const struct sockaddr *)at, nbytes) != 0) {
        if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
            return errno;
        }
        if (msi_now_ns() > deadline_ns) {
            return ETIMEDOUT;
        }
        nanosleep(&moment, NULL);
    }
    return is_same_user(fd) ? 0 : EPERM;
}

/* Returns errno. */
static int take(int32_t fd, const request *asked, int32_t *fds, int64_t deadline_ns)
{
    const int32_t n = asked->n;
    int error = send(fd, asked, sizeof(*asked), MSG_NOSIGNAL) == sizeof(*asked) ? 0 : errno;

    for (int32_t at = 0; at < n && error == 0;) {
        const int32_t some = n - at < PER_MESSAGE ? n - at : PER_MESSAGE;
        struct pollfd p = {.fd = fd, .events = POLLIN};

        poll(&p, 1, 100);
        error = receive_some(fd, asked, fds + at, some);
        if (error == 0) {
            at += some;
        } else if (error == EAGAIN || error == EINTR) {
            error = msi_now_ns() > deadline_ns ? ETIMEDOUT : 0;
        }
        if (error != 0) {
            close_all(fds, at);
        }
    }
    return error;
}

static ms_status take_from_first(const msi_rendezvous *r, const msi_place *p, int32_t *fds,
                                 int32_t n)
{
    const int64_t deadline_ns = msi_now_ns() + r->timeout_ns;
    const request asked = {.nonce = r->nonce, .local_rank = p->local_rank, .n = n};
    struct sockaddr_un at;
    const socklen_t nbytes = name_socket(&at, r, p);
    const int32_t fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int error = fd < 0 ? errno : connect_local(fd, &at, nbytes, deadline_ns);

    error = error == 0 ? take(fd, &asked, fds, deadline_ns) : error;
    if (fd >= 0) {
        close(fd);
    }
    return error == 0
               ? MS_OK
               : MS_FAIL(MS_COMM_ERROR,
                         "rank %d (local rank %d of host %d) has not got %d file "
                         "descriptors from local rank 0 at socket @%s within %s s: %s",
                         (int)p->rank, (int)p->local_rank, (int)p->host, (int)n, at.sun_path + 1,
                         msi_seconds_text(r->timeout_ns), strerrordesc_np(error));
}

ms_status msi_rendezvous_share(msi_rendezvous *r, const msi_place *p, int32_t *fds, int32_t n)
{
    if (p->local_world == 1 || n == 0) {
        return MS_OK;
    }
    return p->local_rank == 0 ? give_to_all(r, p, fds, n) : take_from_first(r, p, fds, n);
}
