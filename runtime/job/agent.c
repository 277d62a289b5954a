#include "agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    AGENT_MAGIC = 0x6d736132, /* "msa2" */
    BEAT_MS = 100,
    WAVE_MS = 250,   /* a rank that sleeps checks twice in it */
    HELLO_MS = 5000, /* for a connection to introduce itself */
    WHY = 512,
    INBOX = 2 * MSI_TEXT
};

/* -- messages ---------------------------------------------------------------------------------- */

enum { SAY_BEAT, SAY_STATE, SAY_ABORT, SAY_END };

/* [Note: calm] Deadlock of a job on several hosts. Host 0 starts a wave with a number; each
 * launcher then reads its ranks, and answers with what it found. Ranks are calm if since the wave
 * before they are in the same sleeping waits, have checked twice, and their hosts have sent and
 * stored no words. If all are, and as many words were stored as sent, then none is on its way, and
 * no rank can store another: every check came after the last word. (Mattern, Algorithms for
 * distributed termination detection, 1987: two counts of all messages that agree.) */
typedef struct calm {
    int32_t wave;
    int32_t n_waiting;
    bool is_calm;
    uint64_t sent, stored; /* words, by the host's ranks since the start */
} calm;

/* Followed by `nbytes` of text; a beat by a `calm`. */
typedef struct saying {
    int32_t kind;
    int32_t host;   /* where it was first said */
    int32_t rank;   /* state: of this rank; abort: subject */
    int32_t value;  /* state; cause */
    int32_t status; /* abort: ms_status; state: its process; end: exit code of its ranks */
    int32_t nbytes;
} saying;

/* A connection to another launcher. */
typedef struct peer {
    int32_t fd, host; /* fd -1: closed */
    int64_t heard_at;
    calm calm; /* as it last answered */
    size_t have;
    char inbox[INBOX];
} peer;

/* Of the job; cause MSI_CAUSE_NONE: none. */
typedef struct failure {
    int32_t subject, cause;
    char text[MSI_TEXT];
} failure;

struct msi_agent {
    msi_job *job;
    int64_t limit_ns; /* MS_HOST_TIMEOUT */
    int64_t beat_at;
    int64_t wave_at; /* host 0: start of the wave */
    calm calm;       /* of this host at the last wave */
    msi_watch seen;  /* (n_local) its ranks then */
    bool aborted;    /* the failure is known to all */
    failure agreed;  /* as host 0 reported it, if it did */
    bool *ended;     /* (n_hosts) */
    int32_t *code;   /* (n_hosts) exit code of its ranks, once it has ended */
    int32_t *state;  /* (world) as last said or heard */
    int32_t n_peers;
    peer peers[]; /* host 0: (n_hosts - 1); others: host 0 */
};

static const char *host_text(const msi_agent *a, int32_t host, char *buffer, size_t nbytes)
{
    char address[MSI_ADDRESS_TEXT];
    const msi_block *b = a->job->block;

    msi_address_text(&b->rank[host * b->n_local].address, address, sizeof(address));
    address[strrchr(address, ':') != NULL ? strrchr(address, ':') - address : 0] = '\0';
    snprintf(buffer, nbytes, "host %d (%s, ranks %d to %d)", (int)host, address,
             (int)(host * b->n_local), (int)((host + 1) * b->n_local) - 1);
    return buffer;
}

/* It cannot be reached any more. */
static void lose(msi_agent *a, peer *p, const char *why)
{
    char host[128];

    close(p->fd);
    p->fd = -1;
    if (!a->ended[p->host]) {
        msi_job_abort(a->job, a->job->world, -1, MSI_CAUSE_DIED, MS_COMM_ERROR, "%s %s",
                      host_text(a, p->host, host, sizeof(host)), why);
    }
    a->ended[p->host] = true;
    for (int32_t i = 0; i < a->job->block->n_local; i++) {
        const int32_t r = p->host * a->job->block->n_local + i;
        const int32_t state = atomic_load(&a->job->block->rank[r].state);

        if (state != MSI_RANK_LEFT) {
            msi_job_set_state(a->job, r, MSI_RANK_DEAD);
        }
    }
}

/* The kernel of an ended launcher closes its connection, or refuses what is sent to it. */
static void lose_by(msi_agent *a, peer *p, int error)
{
    lose(a, p,
         error == ECONNRESET || error == EPIPE || error == 0
             ? "is unreachable: its launcher has ended"
             : "is unreachable: its connection is broken");
}

/* Their bytes are few, and the other side never computes, so a full socket is a lost host. */
static void say_to(msi_agent *a, peer *p, const saying *s, const char *text)
{
    struct iovec parts[] = {{(void *)(uintptr_t)s, sizeof(*s)},
                            {(void *)(uintptr_t)text, (size_t)s->nbytes}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = s->nbytes > 0 ? 2 : 1};
    const ssize_t n = p->fd >= 0 ? sendmsg(p->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;

    if (p->fd >= 0 && n != (ssize_t)sizeof(*s) + s->nbytes) {
        lose_by(a, p, errno);
    }
}

/* To all but the one that said it. */
static void say(msi_agent *a, const peer *except, const saying *s, const char *text)
{
    for (int32_t i = 0; i < a->n_peers; i++) {
        if (&a->peers[i] != except) {
            say_to(a, &a->peers[i], s, text);
        }
    }
}

static void say_abort(msi_agent *a)
{
    int32_t subject, cause;
    ms_status kind;
    const char *text;

    if (!a->aborted && msi_job_aborted(a->job, &subject, &cause, &kind, &text)) {
        const saying s = {.kind = SAY_ABORT,
                          .host = a->job->block->host,
                          .rank = subject,
                          .value = cause,
                          .status = (int32_t)kind,
                          .nbytes = (int32_t)strlen(text)};

        a->aborted = true;
        say(a, NULL, &s, text);
    }
}

/* A rank reports its failure before it leaves, so the others must learn of it first. */
static void say_news(msi_agent *a)
{
    const msi_block *b = a->job->block;
    int32_t now[b->n_local];

    for (int32_t i = 0; i < b->n_local; i++) {
        now[i] = atomic_load(&b->rank[b->first + i].state);
    }
    say_abort(a);
    for (int32_t i = 0; i < b->n_local; i++) {
        const int32_t r = b->first + i;
        const saying s = {.kind = SAY_STATE,
                          .host = b->host,
                          .rank = r,
                          .value = now[i],
                          .status = atomic_load(&b->rank[r].pid)};

        if (now[i] != a->state[r]) {
            a->state[r] = now[i];
            say(a, NULL, &s, NULL);
        }
    }
}

/* -- deadlock ---------------------------------------------------------------------------------- */

static void read_calm(msi_agent *a, int32_t wave)
{
    const msi_block *b = a->job->block;
    calm now = {.wave = wave, .is_calm = true};

    for (int32_t i = 0; i < b->n_local; i++) {
        msi_job_rank *r = &a->job->block->rank[b->first + i];
        const uint64_t waits = atomic_load(&r->waits), checks = atomic_load(&r->checks);
        const int32_t state = atomic_load(&r->state);

        now.sent += atomic_load(&r->sent);
        now.stored += atomic_load(&r->stored);
        if (state != MSI_RANK_LEFT && state != MSI_RANK_DEAD) {
            now.n_waiting++;
            now.is_calm = now.is_calm && atomic_load(&r->waiting) != 0 &&
                          waits == a->seen.waits[i] && checks >= a->seen.checks[i] + 2;
        }
        a->seen.waits[i] = waits;
        a->seen.checks[i] = checks;
    }
    now.is_calm = now.is_calm && now.sent == a->calm.sent && now.stored == a->calm.stored;
    a->calm = now;
}

/* Host 0: if all have answered the wave, decide, and start the next. */
static void look_for_deadlock(msi_agent *a, int64_t now)
{
    calm all = a->calm;
    char positions[1024];

    if (a->aborted || now - a->wave_at < WAVE_MS * 1000000LL) {
        return;
    }
    for (int32_t i = 0; i < a->n_peers; i++) {
        const calm *its = &a->peers[i].calm;

        if (its->wave != a->calm.wave) {
            return;
        }
        all.is_calm = all.is_calm && its->is_calm;
        all.n_waiting += its->n_waiting;
        all.sent += its->sent;
        all.stored += its->stored;
    }
    if (all.is_calm && all.n_waiting > 0 && all.sent == all.stored) {
        a->job->guest->positions(a->job, positions, sizeof(positions));
        msi_job_abort(a->job, a->job->world, -1, MSI_CAUSE_STUCK, MS_COMM_ERROR,
                      "every rank waits for another; last calls: %s", positions);
    }
    a->wave_at = now;
    read_calm(a, a->calm.wave + 1);
}

/* -- hearing ----------------------------------------------------------------------------------- */

static void hear_beat(msi_agent *a, peer *p, const saying *s, const char *text)
{
    if (s->nbytes == sizeof(p->calm)) {
        memcpy(&p->calm, text, sizeof(p->calm));
        if (a->job->block->host != 0 && p->calm.wave != a->calm.wave) {
            read_calm(a, p->calm.wave);
        }
    }
}

/* Two hosts may fail at once: the failure that host 0 learns of first is the job's. */
static bool hear_abort(msi_agent *a, const saying *s, const char *text)
{
    char copy[MSI_TEXT];

    if (s->rank < -1 || s->rank >= a->job->world) {
        return false;
    }
    snprintf(copy, sizeof(copy), "%.*s", (int)s->nbytes, text);
    const bool is_first =
        msi_job_abort_text(a->job, a->job->world, s->rank, s->value, (ms_status)s->status, copy);

    if (a->job->block->host != 0) {
        a->agreed = (failure){.subject = s->rank, .cause = s->value};
        memcpy(a->agreed.text, copy, sizeof(copy));
    }
    a->aborted = a->aborted || is_first || a->job->block->host != 0;
    return is_first;
}

static void hear(msi_agent *a, peer *p, const saying *s, const char *text)
{
    const msi_block *b = a->job->block;

    switch (s->kind) {
    case SAY_STATE:
        if (s->rank >= 0 && s->rank < a->job->world && !msi_job_is_local(a->job, s->rank)) {
            a->state[s->rank] = s->value;
            atomic_store(&a->job->block->rank[s->rank].pid, s->status);
            msi_job_set_state(a->job, s->rank, s->value);
        }
        break;
    case SAY_ABORT:
        if (!hear_abort(a, s, text)) {
            return;
        }
        break;
    case SAY_END:
        if (s->host >= 0 && s->host < b->n_hosts) {
            a->ended[s->host] = true;
            a->code[s->host] = s->status;
        }
        break;
    default:
        hear_beat(a, p, s, text);
        break;
    }
    if (s->kind != SAY_BEAT) {
        say(a, p, s, text); /* only host 0 has others */
    }
}

static void read_peer(msi_agent *a, peer *p)
{
    ssize_t n;

    while (p->fd >= 0 &&
           (n = recv(p->fd, p->inbox + p->have, INBOX - p->have, MSG_DONTWAIT)) != -1) {
        size_t at = 0;
        saying s;

        if (n == 0) {
            lose_by(a, p, 0);
            return;
        }
        p->have += (size_t)n;
        p->heard_at = msi_now_ns();
        while (p->have - at >= sizeof(s)) {
            memcpy(&s, p->inbox + at, sizeof(s));
            if (s.nbytes < 0 || s.nbytes >= MSI_TEXT) {
                lose(a, p, "sends what no launcher sends");
                return;
            }
            if (p->have - at < sizeof(s) + (size_t)s.nbytes) {
                break;
            }
            hear(a, p, &s, p->inbox + at + sizeof(s));
            at += sizeof(s) + (size_t)s.nbytes;
        }
        p->have -= at;
        memmove(p->inbox, p->inbox + at, p->have);
    }
    if (p->fd >= 0 && errno != EAGAIN && errno != EINTR) {
        lose_by(a, p, errno);
    }
}

nfds_t msi_agent_poll(const msi_agent *a, struct pollfd *fds)
{
    for (int32_t i = 0; i < a->n_peers; i++) {
        fds[i] = (struct pollfd){.fd = a->peers[i].fd, .events = POLLIN};
    }
    return (nfds_t)a->n_peers;
}

void msi_agent_move(msi_agent *a)
{
    const saying beat = {.kind = SAY_BEAT, .host = a->job->block->host, .nbytes = sizeof(a->calm)};
    const int64_t now = msi_now_ns();
    const bool slept = now - a->beat_at > a->limit_ns / 2; /* this process did not run */

    for (int32_t i = 0; i < a->n_peers; i++) {
        peer *p = &a->peers[i];

        read_peer(a, p);
        p->heard_at = slept ? now : p->heard_at;
        if (p->fd >= 0 && !a->ended[p->host] && now - p->heard_at > a->limit_ns) {
            lose(a, p, "is unreachable: no sign of life for MS_HOST_TIMEOUT");
        }
    }
    say_news(a);
    if (now - a->beat_at >= BEAT_MS * 1000000LL) {
        a->beat_at = now;
        if (a->job->block->host == 0) {
            look_for_deadlock(a, now);
        }
        say(a, NULL, &beat, (const char *)&a->calm);
    }
}

bool msi_agent_failure(const msi_agent *a, const msi_job *job, int32_t *subject, int32_t *cause,
                       const char **text)
{
    ms_status kind;

    if (a == NULL || a->agreed.cause == MSI_CAUSE_NONE) {
        return msi_job_aborted(job, subject, cause, &kind, text);
    }
    *subject = a->agreed.subject;
    *cause = a->agreed.cause;
    *text = a->agreed.text;
    return true;
}

int32_t msi_agent_code(const msi_agent *a, int32_t host)
{
    return a->code[host];
}

void msi_agent_end(msi_agent *a, int32_t code)
{
    const saying s = {.kind = SAY_END, .host = a->job->block->host, .status = code};

    msi_agent_move(a); /* the last states first */
    a->ended[a->job->block->host] = true;
    say(a, NULL, &s, NULL);
}

bool msi_agent_has_ended(const msi_agent *a)
{
    bool all = true;

    for (int32_t h = 0; h < a->job->block->n_hosts; h++) {
        all = all && a->ended[h];
    }
    return all;
}

void msi_agent_free(msi_agent *a)
{
    if (a == NULL) {
        return;
    }
    for (int32_t i = 0; i < a->n_peers; i++) {
        if (a->peers[i].fd >= 0) {
            close(a->peers[i].fd);
        }
    }
    free(a->ended);
    free(a->code);
    free(a->state);
    free(a->seen.waits);
    free(a->seen.checks);
    free(a);
}

/* -- meeting ----------------------------------------------------------------------------------- */

/* A host's answer, followed by the addresses of its ranks. Host 0's: of all ranks. */
typedef struct table {
    int32_t n_hosts, n_local;
    char refused[WHY]; /* why host 0 refuses the other; "": it does not */
} table;

static ms_status agent_new(msi_agent **out, msi_job *job)
{
    const msi_block *b = job->block;
    const int32_t n = b->host == 0 ? b->n_hosts - 1 : 1;
    msi_agent *a = calloc(1, sizeof(*a) + sizeof(a->peers[0]) * (size_t)n);

    *out = a;
    if (a == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to meet %d hosts", (int)b->n_hosts);
    }
    a->job = job;
    a->limit_ns = msi_switch_within("MS_HOST_TIMEOUT", 1, 1, MSI_LONGEST_S) * 1000000000;
    a->ended = calloc((size_t)b->n_hosts, sizeof(*a->ended));
    a->code = calloc((size_t)b->n_hosts, sizeof(*a->code));
    a->state = calloc((size_t)job->world, sizeof(*a->state));
    a->seen.waits = calloc((size_t)b->n_local, sizeof(*a->seen.waits));
    a->seen.checks = calloc((size_t)b->n_local, sizeof(*a->seen.checks));
    a->n_peers = n;
    for (int32_t i = 0; i < n; i++) {
        a->peers[i].fd = -1;
        a->peers[i].host = b->host == 0 ? i + 1 : 0;
    }
    return a->ended != NULL && a->code != NULL && a->state != NULL && a->seen.waits != NULL &&
                   a->seen.checks != NULL
               ? MS_OK
               : MS_FAIL(MS_OUT_OF_MEMORY, "no memory to meet %d hosts", (int)b->n_hosts);
}

/* Listeners of this host's ranks, at the address `at` (any port). */
static ms_status listen_for_ranks(msi_job *job, msi_address at, int32_t *listeners)
{
    msi_block *b = job->block;

    for (int32_t i = 0; i < b->n_local; i++) {
        msi_address *its = &b->rank[b->first + i].address;

        *its = at;
        MS_TRY(msi_net_listen(&listeners[i], its));
    }
    return MS_OK;
}

static msi_hello hello_of(const msi_job *job, int32_t from, int32_t to)
{
    return (msi_hello){.magic = AGENT_MAGIC,
                       .layout = job->block->layout,
                       .secret = job->block->secret,
                       .from = from,
                       .to = to};
}

/* Send or receive the addresses of hosts [first, first + n). */
static int move_addresses(const msi_job *job, int32_t fd, int32_t first, int32_t n, bool sends,
                          int64_t deadline)
{
    int error = 0;

    for (int32_t r = first * job->block->n_local;
         r < (first + n) * job->block->n_local && error == 0; r++) {
        msi_address *a = &job->block->rank[r].address;

        error = sends ? msi_net_send(fd, a, sizeof(*a), deadline)
                      : msi_net_receive(fd, a, sizeof(*a), deadline);
    }
    return error;
}

/* Why a host that introduces itself is refused; "": it is not. */
static void check_guest(const msi_agent *a, const msi_hello *h, const table *t, char *why)
{
    const msi_block *b = a->job->block;

    why[0] = '\0';
    if (h->layout != b->layout) {
        snprintf(why, WHY, "host %d runs another build of the library", (int)h->from);
    } else if (h->from < 1 || h->from >= b->n_hosts || t->n_hosts != b->n_hosts) {
        snprintf(why, WHY, "host %d of %d, expected one of 1 to %d of %d", (int)h->from,
                 (int)t->n_hosts, (int)b->n_hosts - 1, (int)b->n_hosts);
    } else if (a->peers[h->from - 1].fd >= 0) {
        snprintf(why, WHY, "host %d has come already", (int)h->from);
    } else if (t->n_local != b->n_local) {
        snprintf(why, WHY, "host %d starts %d ranks and host 0 %d, expected equal numbers",
                 (int)h->from, (int)t->n_local, (int)b->n_local);
    }
}

/* One connection to host 0. A stranger is dropped; a host that differs is the job's error. */
static ms_status admit(msi_agent *a, int32_t fd)
{
    const int64_t deadline = msi_now_ns() + HELLO_MS * 1000000LL;
    msi_hello theirs, ours = hello_of(a->job, 0, 0);
    table t;

    if (msi_net_receive(fd, &theirs, sizeof(theirs), deadline) != 0 || theirs.magic != ours.magic ||
        memcmp(&theirs.secret, &ours.secret, sizeof(ours.secret)) != 0 ||
        msi_net_receive(fd, &t, sizeof(t), deadline) != 0) {
        close(fd);
        return MS_OK;
    }
    check_guest(a, &theirs, &t, t.refused);
    if (t.refused[0] != '\0') {
        (void)msi_net_send(fd, &t, sizeof(t), deadline);
        close(fd);
        return MS_FAIL(MS_COMM_ERROR, "%s", t.refused);
    }
    if (move_addresses(a->job, fd, theirs.from, 1, false, deadline) != 0) {
        close(fd);
        return MS_OK;
    }
    msi_net_tune(fd);
    a->peers[theirs.from - 1].fd = fd;
    return MS_OK;
}

static int32_t missing(const msi_agent *a)
{
    for (int32_t i = 0; i < a->n_peers; i++) {
        if (a->peers[i].fd < 0) {
            return a->peers[i].host;
        }
    }
    return -1;
}

static ms_status receive_hosts(msi_agent *a, int32_t listener, const ms_hosts *hosts,
                               int64_t deadline)
{
    struct pollfd fds = {.fd = listener, .events = POLLIN};
    table t = {.n_hosts = a->job->block->n_hosts, .n_local = a->job->block->n_local};

    while (missing(a) >= 0) {
        if (msi_now_ns() > deadline) {
            return MS_FAIL(MS_COMM_ERROR, "host %d of %d has not come to %s:%d within %d s",
                           (int)missing(a), (int)t.n_hosts, hosts->address, (int)hosts->port,
                           (int)hosts->timeout_s);
        }
        poll(&fds, 1, BEAT_MS);
        const int32_t fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        MS_TRY(fd >= 0 ? admit(a, fd) : MS_OK);
    }
    for (int32_t i = 0; i < a->n_peers; i++) {
        int error = msi_net_send(a->peers[i].fd, &t, sizeof(t), deadline);

        error = error == 0 ? move_addresses(a->job, a->peers[i].fd, 0, t.n_hosts, true, deadline)
                           : error;
        if (error != 0) {
            return MS_FAIL(MS_COMM_ERROR, "host %d left before the ranks started: %s",
                           (int)a->peers[i].host, strerrordesc_np(error));
        }
    }
    return MS_OK;
}

static ms_status host_others(msi_agent *a, msi_address at, const ms_hosts *hosts,
                             int32_t *listeners, int64_t deadline)
{
    msi_address ranks = at;
    int32_t listener = hosts->listener;

    msi_address_any_port(&ranks);
    ms_status status = listen_for_ranks(a->job, ranks, listeners);

    if (status == MS_OK && listener == 0) {
        status = msi_net_listen(&listener, &at);
    }
    if (status == MS_OK) {
        status = receive_hosts(a, listener, hosts, deadline);
    }
    if (listener > 0) {
        close(listener);
    }
    return status;
}

static ms_status cannot_join(const ms_hosts *hosts, int error)
{
    return MS_FAIL(MS_COMM_ERROR, "cannot join the job at %s:%d: %s%s", hosts->address,
                   (int)hosts->port, strerrordesc_np(error),
                   error == ECONNRESET || error == EPIPE
                       ? " (host 0 closed the connection: another secret?)"
                       : "");
}

static ms_status join_host_0(msi_agent *a, const msi_address *at, const ms_hosts *hosts,
                             int32_t *listeners, int64_t deadline)
{
    const msi_block *b = a->job->block;
    const msi_hello hello = hello_of(a->job, b->host, 0);
    peer *p = &a->peers[0];
    table t = {.n_hosts = b->n_hosts, .n_local = b->n_local};
    msi_address own = {.nbytes = sizeof(own.at)};
    int error = msi_net_connect(&p->fd, at, deadline);

    if (error != 0) {
        return cannot_join(hosts, error);
    }
    getsockname(p->fd, (struct sockaddr *)&own.at, &own.nbytes);
    msi_address_any_port(&own);
    MS_TRY(listen_for_ranks(a->job, own, listeners));
    error = msi_net_send(p->fd, &hello, sizeof(hello), deadline);
    error = error == 0 ? msi_net_send(p->fd, &t, sizeof(t), deadline) : error;
    error = error == 0 ? move_addresses(a->job, p->fd, b->host, 1, true, deadline) : error;
    error = error == 0 ? msi_net_receive(p->fd, &t, sizeof(t), deadline) : error;
    if (error == 0 && t.refused[0] != '\0') {
        t.refused[WHY - 1] = '\0';
        return MS_FAIL(MS_COMM_ERROR, "%s", t.refused);
    }
    error = error == 0 ? move_addresses(a->job, p->fd, 0, b->n_hosts, false, deadline) : error;
    return error == 0 ? MS_OK : cannot_join(hosts, error);
}

ms_status msi_agent_meet(msi_agent **out, msi_job *job, const ms_hosts *hosts, int32_t *listeners)
{
    const int64_t deadline = msi_now_ns() + (int64_t)(hosts->timeout_s * 1e9);
    msi_address at;

    *out = NULL;
    MS_TRY(msi_address_find(&at, hosts->address, hosts->port));
    MS_TRY(agent_new(out, job));
    job->block->secret = msi_secret_of(hosts->secret);
    ms_status status = job->block->host == 0 ? host_others(*out, at, hosts, listeners, deadline)
                                             : join_host_0(*out, &at, hosts, listeners, deadline);

    for (int32_t i = 0; i < (*out)->n_peers; i++) {
        (*out)->peers[i].heard_at = msi_now_ns();
    }
    (*out)->beat_at = msi_now_ns();
    if (status != MS_OK) {
        msi_agent_free(*out);
        *out = NULL;
    }
    return status;
}
