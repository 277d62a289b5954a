/* Meeting at rank 0, which listens on exactly the master's address.
 *
 * A connection begins with a hello of fixed size. Until it is complete and has the run's secret,
 * the connection costs its own struct only, at most STRANGERS of them, each for HELLO_NS; rank 0
 * never waits for one of them alone. Rank 0 does this inside its own calls, without a thread. */
#include "job.h"
#include "rendezvous_meet.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROTOCOL = 1, STRANGERS = 64, TEXT = 512 };

#define MAGIC 0x6d736a6d65657431ULL    /* "msjmeet1" */
#define HELLO_NS ((int64_t)2000000000) /* of a stranger's hello */
#define REFUSE_NS ((int64_t)100000000) /* of sending a refusal: it fits a socket's buffer */
#define GRACE_NS ((int64_t)2000000000) /* rank 0's failure names the cause: others wait for it */

/* The first four have the same position in all versions. */
typedef struct hello {
    uint64_t magic;
    msi_secret secret;
    uint32_t protocol;
    int32_t rank, world;
    char version[28];
} hello;

enum { DATA, FAILURE };

typedef struct head {
    uint64_t magic;
    int32_t kind, nbytes;
    char key[MSI_RENDEZVOUS_KEY];
} head;

typedef struct message {
    head head;
    char data[MSI_RENDEZVOUS_BYTES];
} message;

typedef struct stranger {
    int32_t fd;
    int64_t since_ns;
    size_t got;
    hello hello;
    msi_address from;
} stranger;

typedef struct peer {
    int32_t fd; /* -1: has not come */
    msi_address from;
    size_t got;
    message in;
} peer;

typedef struct master {
    const msi_place *p;
    hello own;
    char at[MSI_ADDRESS_TEXT];
    int32_t fd; /* rank 0: listens; others: connected to rank 0 */
    bool exchanging;
    int32_t n_strangers;
    char refused[TEXT]; /* the newest refusal, which may explain a missing rank */
    stranger stranger[STRANGERS];
    peer *peer; /* (world) on rank 0, [0] unused */
} master;

static hello own_hello(const msi_place *p)
{
    hello h = {.magic = MAGIC,
               .secret = msi_secret_of(msi_switch_text("MOONSHARD_SECRET", p->run)),
               .protocol = PROTOCOL,
               .rank = p->rank,
               .world = p->world};

    snprintf(h.version, sizeof(h.version), "%s", ms_version());
    return h;
}

static int send_head(int32_t fd, int32_t kind, const char *key, size_t nbytes, int64_t deadline_ns)
{
    head h = {.magic = MAGIC, .kind = kind, .nbytes = (int32_t)nbytes};

    snprintf(h.key, sizeof(h.key), "%s", key);
    return msi_net_send(fd, &h, sizeof(h), deadline_ns);
}

static void send_failure(int32_t fd, const char *text)
{
    const int64_t deadline_ns = msi_now_ns() + REFUSE_NS;
    const size_t n = strnlen(text, TEXT - 1);

    if (send_head(fd, FAILURE, "", n, deadline_ns) == 0) {
        msi_net_send(fd, text, n, deadline_ns);
    }
}

/* -- rank 0 ------------------------------------------------------------------------------------ */

/* Give the current error to all ranks that have come. */
static ms_status fail_all(master *m)
{
    for (int32_t r = 1; r < m->p->world; r++) {
        if (m->peer[r].fd >= 0) {
            send_failure(m->peer[r].fd, ms_error_message());
        }
    }
    return MS_COMM_ERROR;
}

static void drop_stranger(master *m, int32_t i)
{
    close(m->stranger[i].fd);
    m->stranger[i] = m->stranger[--m->n_strangers];
}

static void refuse(master *m, int32_t i, const char *text)
{
    msi_log(1, "%s", text);
    snprintf(m->refused, sizeof(m->refused), "%s", text);
    send_failure(m->stranger[i].fd, text);
    drop_stranger(m, i);
}

static bool same_secret(const msi_secret *a, const msi_secret *b)
{
    uint64_t differs = 0;

    for (int32_t i = 0; i < MSI_SECRET_WORDS; i++) {
        differs |= a->word[i] ^ b->word[i];
    }
    return differs == 0;
}

/* A rank of this run that cannot take part ends the rendezvous for all. */
static ms_status check_rank(master *m, const stranger *s, const char *from)
{
    hello h = s->hello;

    h.version[sizeof(h.version) - 1] = '\0';
    if (h.protocol != PROTOCOL) {
        return MS_FAIL(MS_COMM_ERROR,
                       "rank %d at %s has moonshard %s (rendezvous protocol %u), rank 0 has %s "
                       "(protocol %u): install the same version on every host",
                       (int)h.rank, from, msi_foreign_name(h.version), (unsigned)h.protocol,
                       ms_version(), (unsigned)PROTOCOL);
    }
    if (h.world != m->p->world || h.rank < 0 || h.rank >= h.world) {
        return MS_FAIL(MS_COMM_ERROR,
                       "the process at %s is rank %d of %d, but rank 0 expects %d ranks (%s)", from,
                       (int)h.rank, (int)h.world, (int)m->p->world, m->p->source);
    }
    return MS_OK;
}

/* The hello of stranger `i` is complete. */
static ms_status admit(master *m, int32_t i)
{
    stranger *s = &m->stranger[i];
    const int32_t rank = s->hello.rank;
    char from[MSI_ADDRESS_TEXT], other[MSI_ADDRESS_TEXT], text[TEXT];

    msi_address_text(&s->from, from, sizeof(from));
    if (s->hello.magic != MAGIC) {
        snprintf(m->refused, sizeof(m->refused), "%s is not a rank of moonshard", from);
        drop_stranger(m, i);
        return MS_OK;
    }
    if (!same_secret(&s->hello.secret, &m->own.secret)) {
        snprintf(text, sizeof(text),
                 "the process at %s has another secret than rank 0 at %s: set the same "
                 "MOONSHARD_SECRET on all ranks; without it, the id of the run must be equal",
                 from, m->at);
        refuse(m, i, text);
        return MS_OK;
    }
    if (check_rank(m, s, from) != MS_OK) {
        send_failure(s->fd, ms_error_message());
        drop_stranger(m, i);
        return fail_all(m);
    }
    if (rank == 0 || m->peer[rank].fd >= 0) {
        snprintf(text, sizeof(text),
                 "rank %d of %d has come twice: from %s and from %s; start one process of each "
                 "rank (%s)",
                 (int)rank, (int)m->p->world,
                 rank == 0 ? m->at : msi_address_text(&m->peer[rank].from, other, sizeof(other)),
                 from, m->p->source);
        refuse(m, i, text);
        return MS_OK;
    }
    m->peer[rank].fd = s->fd;
    m->peer[rank].from = s->from;
    m->stranger[i] = m->stranger[--m->n_strangers];
    return MS_OK;
}

/* Read some of `want` bytes. Returns errno; EAGAIN: incomplete. */
static int read_some(int32_t fd, void *to, size_t *got, size_t want)
{
    while (*got < want) {
        const ssize_t n = recv(fd, (char *)to + *got, want - *got, MSG_DONTWAIT);

        if (n <= 0 && !(n < 0 && errno == EINTR)) {
            return n == 0 ? ECONNRESET : errno;
        }
        *got += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static ms_status look_at_stranger(master *m, int32_t i)
{
    stranger *s = &m->stranger[i];
    const int error = read_some(s->fd, &s->hello, &s->got, sizeof(s->hello));

    if (error == 0) {
        return admit(m, i);
    }
    if (error != EAGAIN || msi_now_ns() - s->since_ns > HELLO_NS) {
        drop_stranger(m, i);
    }
    return MS_OK;
}

static void accept_some(master *m)
{
    for (int32_t n = 0; n < STRANGERS; n++) {
        stranger s = {.since_ns = msi_now_ns(), .from.nbytes = sizeof(s.from.at)};

        s.fd = accept4(m->fd, (struct sockaddr *)&s.from.at, &s.from.nbytes,
                       SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (s.fd < 0) {
            return;
        }
        msi_net_tune(s.fd);
        if (m->n_strangers == STRANGERS) { /* the oldest had the most time */
            int32_t oldest = 0;

            for (int32_t i = 1; i < STRANGERS; i++) {
                oldest = m->stranger[i].since_ns < m->stranger[oldest].since_ns ? i : oldest;
            }
            drop_stranger(m, oldest);
        }
        m->stranger[m->n_strangers++] = s;
    }
}

/* True if the peer's message is complete. */
static bool is_complete(const peer *q)
{
    return q->got >= sizeof(q->in.head) && q->got == sizeof(q->in.head) + (size_t)q->in.head.nbytes;
}

static bool is_needed(const master *m, int32_t rank)
{
    return m->exchanging ? !is_complete(&m->peer[rank]) : m->peer[rank].fd < 0;
}

static ms_status look_at_peer(master *m, int32_t rank)
{
    peer *q = &m->peer[rank];
    int error = read_some(q->fd, &q->in.head, &q->got, sizeof(q->in.head));

    if (error == 0 && (q->in.head.magic != MAGIC || q->in.head.nbytes < 0 ||
                       q->in.head.nbytes > MSI_RENDEZVOUS_BYTES)) {
        error = EPROTO;
    }
    if (error == 0) {
        error = read_some(q->fd, &q->in, &q->got, sizeof(q->in.head) + (size_t)q->in.head.nbytes);
    }
    if (error != 0 && error != EAGAIN) {
        char from[MSI_ADDRESS_TEXT];

        close(q->fd);
        q->fd = -1;
        MS_FAIL(MS_COMM_ERROR,
                "rank %d of %d at %s has left during the rendezvous: %s; its own output names the "
                "cause",
                (int)rank, (int)m->p->world, msi_address_text(&q->from, from, sizeof(from)),
                strerrordesc_np(error));
        return fail_all(m);
    }
    return MS_OK;
}

static ms_status fail_missing(master *m, int64_t timeout_ns)
{
    bool missing[MS_MAX_RANKS] = {false};

    for (int32_t r = 1; r < m->p->world; r++) {
        missing[r] = is_needed(m, r);
    }
    msi_fail_missing(m->p, missing, m->at, timeout_ns);
    if (m->refused[0] != '\0') {
        char text[MSI_MESSAGE_BYTES];

        snprintf(text, sizeof(text), "%s", ms_error_message());
        MS_FAIL(MS_COMM_ERROR, "%s (refused: %s)", text, m->refused);
    }
    return fail_all(m);
}

static bool is_anything_needed(const master *m)
{
    bool needed = false;

    for (int32_t r = 1; r < m->p->world; r++) {
        needed = needed || is_needed(m, r);
    }
    return needed;
}

/* Until every rank has come, or its message is complete. */
static ms_status serve(master *m, int64_t timeout_ns)
{
    const int64_t deadline_ns = msi_now_ns() + timeout_ns;
    struct pollfd fds[1 + STRANGERS + MS_MAX_RANKS];

    while (is_anything_needed(m)) {
        const int64_t left_ms = (deadline_ns - msi_now_ns()) / 1000000;
        nfds_t n = 0;

        if (left_ms < 0) {
            return fail_missing(m, timeout_ns);
        }
        fds[n++] = (struct pollfd){.fd = m->fd, .events = POLLIN};
        for (int32_t i = 0; i < m->n_strangers; i++) {
            fds[n++] = (struct pollfd){.fd = m->stranger[i].fd, .events = POLLIN};
        }
        for (int32_t r = 1; r < m->p->world; r++) {
            fds[n++] = (struct pollfd){.fd = is_complete(&m->peer[r]) ? -1 : m->peer[r].fd,
                                       .events = POLLIN};
        }
        poll(fds, n, left_ms > 100 ? 100 : (int)left_ms + 1); /* 100: strangers' time limit */
        accept_some(m);
        for (int32_t i = m->n_strangers - 1; i >= 0; i--) { /* dropping moves the last one */
            MS_TRY(look_at_stranger(m, i));
        }
        for (int32_t r = 1; r < m->p->world; r++) {
            if (m->peer[r].fd >= 0 && !is_complete(&m->peer[r])) {
                MS_TRY(look_at_peer(m, r));
            }
        }
    }
    return MS_OK;
}

static ms_status send_all(master *m, const char *key, const void *data, size_t nbytes,
                          int64_t timeout_ns)
{
    const int64_t deadline_ns = msi_now_ns() + timeout_ns;

    for (int32_t r = 1; r < m->p->world; r++) {
        int error = send_head(m->peer[r].fd, DATA, key, nbytes, deadline_ns);

        error = error == 0 ? msi_net_send(m->peer[r].fd, data, nbytes, deadline_ns) : error;
        if (error != 0) {
            MS_FAIL(MS_COMM_ERROR, "cannot send to rank %d of %d during the rendezvous: %s", (int)r,
                    (int)m->p->world, strerrordesc_np(error));
            return fail_all(m);
        }
    }
    return MS_OK;
}

static ms_status gather(master *m, const char *key, const void *in, int64_t nbytes, char *all,
                        int64_t timeout_ns)
{
    m->exchanging = true;
    MS_TRY(serve(m, timeout_ns));
    memcpy(all, in, (size_t)nbytes);
    for (int32_t r = 1; r < m->p->world; r++) {
        peer *q = &m->peer[r];

        q->in.head.key[sizeof(q->in.head.key) - 1] = '\0';
        if (strcmp(q->in.head.key, key) != 0 || q->in.head.nbytes != nbytes) {
            MS_FAIL(MS_COMM_ERROR,
                    "rank %d exchanges '%s' (%d bytes), but rank 0 '%s' (%d bytes): all ranks need "
                    "the same program and version",
                    (int)r, msi_foreign_name(q->in.head.key), (int)q->in.head.nbytes, key,
                    (int)nbytes);
            return fail_all(m);
        }
        memcpy(all + r * nbytes, q->in.data, (size_t)nbytes);
        q->got = 0;
    }
    return send_all(m, key, all, (size_t)(nbytes * m->p->world), timeout_ns);
}

static ms_status listen_at(master *m)
{
    msi_address at;

    m->peer = calloc((size_t)m->p->world, sizeof(*m->peer));
    if (m->peer == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a rendezvous of %d ranks",
                       (int)m->p->world);
    }
    for (int32_t r = 0; r < m->p->world; r++) {
        m->peer[r].fd = -1;
    }
    if (msi_address_find(&at, m->p->master, m->p->port) != MS_OK ||
        msi_net_listen(&m->fd, &at) != MS_OK) {
        return msi_fail_prefix(MS_COMM_ERROR, "rank 0, by %s: ", m->p->master_from);
    }
    msi_address_text(&at, m->at, sizeof(m->at));
    return MS_OK;
}

/* -- other ranks ------------------------------------------------------------------------------- */

static ms_status fail_answer(const master *m, int error, int64_t timeout_ns)
{
    if (error == ETIMEDOUT) {
        return MS_FAIL(MS_COMM_ERROR,
                       "rank %d of %d has reached %s, but had no answer within %s s; check that "
                       "every rank was started, and that rank 0 listens there",
                       (int)m->p->rank, (int)m->p->world, m->at, msi_seconds_text(timeout_ns));
    }
    if (error == EPROTO) {
        return MS_FAIL(MS_COMM_ERROR, "%s did not answer as rank 0 of moonshard does; check %s",
                       m->at, m->p->master_from);
    }
    return MS_FAIL(MS_COMM_ERROR,
                   "rank %d of %d has lost rank 0 at %s during the rendezvous: %s; the output of "
                   "rank 0 names the cause",
                   (int)m->p->rank, (int)m->p->world, m->at, strerrordesc_np(error));
}

/* Rank 0's message, of `nbytes`, or its failure. */
static ms_status take_answer(const master *m, void *data, int64_t nbytes, int64_t timeout_ns)
{
    const int64_t deadline_ns = msi_now_ns() + timeout_ns + GRACE_NS;
    char text[TEXT] = {0};
    head h;
    int error = msi_net_receive(m->fd, &h, sizeof(h), deadline_ns);

    if (error == 0 && (h.magic != MAGIC || (h.kind != DATA && h.kind != FAILURE) || h.nbytes < 0 ||
                       (h.kind == DATA ? h.nbytes != nbytes : h.nbytes >= TEXT))) {
        error = EPROTO;
    }
    if (error == 0) {
        error = msi_net_receive(m->fd, h.kind == DATA ? data : text, (size_t)h.nbytes, deadline_ns);
    }
    if (error != 0) {
        return fail_answer(m, error, timeout_ns);
    }
    return h.kind == DATA ? MS_OK : MS_FAIL(MS_COMM_ERROR, "%s", text);
}

static ms_status join(master *m, int64_t timeout_ns)
{
    const int64_t begun_ns = msi_now_ns();

    snprintf(m->at, sizeof(m->at), "%.48s:%d", m->p->master, (int)m->p->port);
    MS_TRY(msi_reach_master(&m->fd, m->p, timeout_ns));
    const int error = msi_net_send(m->fd, &m->own, sizeof(m->own), begun_ns + timeout_ns);

    return error == 0 ? take_answer(m, NULL, 0, timeout_ns) : fail_answer(m, error, timeout_ns);
}

static ms_status ask(const master *m, const char *key, const void *in, int64_t nbytes, void *all,
                     int64_t timeout_ns)
{
    const int64_t deadline_ns = msi_now_ns() + timeout_ns;
    int error = send_head(m->fd, DATA, key, (size_t)nbytes, deadline_ns);

    error = error == 0 ? msi_net_send(m->fd, in, (size_t)nbytes, deadline_ns) : error;
    if (error == EPIPE || error == ECONNRESET) { /* its failure may have arrived */
        error = 0;
    }
    return error == 0 ? take_answer(m, all, nbytes * m->p->world, timeout_ns)
                      : fail_answer(m, error, timeout_ns);
}

/* -- the way of meeting ------------------------------------------------------------------------ */

static void close_master(void *state)
{
    master *m = state;

    for (int32_t r = 1; m->peer != NULL && r < m->p->world; r++) {
        if (m->peer[r].fd >= 0) {
            close(m->peer[r].fd);
        }
    }
    while (m->n_strangers > 0) {
        drop_stranger(m, m->n_strangers - 1);
    }
    if (m->fd >= 0) {
        close(m->fd);
    }
    free(m->peer);
    free(m);
}

static ms_status open_master(void **state, const msi_place *p, int64_t timeout_ns)
{
    master *m = calloc(1, sizeof(*m));
    ms_status status = MS_OK;

    if (m == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a rendezvous");
    }
    m->p = p;
    m->own = own_hello(p);
    m->fd = -1;
    if (p->rank > 0) {
        MS_TRY_GOTO(join(m, timeout_ns), failed);
    } else {
        MS_TRY_GOTO(listen_at(m), failed);
        MS_TRY_GOTO(serve(m, timeout_ns), failed);
        MS_TRY_GOTO(send_all(m, "", NULL, 0, timeout_ns), failed);
    }
    *state = m;
    return MS_OK;
failed:
    close_master(m);
    return status;
}

static ms_status exchange_master(void *state, const char *key, const void *in, int64_t nbytes,
                                 void *all, int64_t timeout_ns)
{
    master *m = state;

    return m->p->rank == 0 ? gather(m, key, in, nbytes, all, timeout_ns)
                           : ask(m, key, in, nbytes, all, timeout_ns);
}

const msi_meeting msi_meet_master = {open_master, exchange_master, close_master};
