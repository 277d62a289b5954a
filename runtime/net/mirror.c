#include "mirror.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    HELLO_MAGIC = 0x6d736e31,  /* "msn1" */
    ENGINE_MAGIC = 0x6d736e65, /* "msne": data of ENGINE_LEAST bytes or more goes by the engine */
    ENGINE_LEAST = 8192,
    ENGINE_ADDRESS_MOST = 1 << 20,
    ROOM = 4 * MSI_MIRROR_WORDS_MOST,
    STRANGERS = 64,
    PIECES = 64,             /* in one system call */
    MOST_DATA = 1 << 30,     /* bytes of a frame */
    REPORT_NS = 1000000000,  /* from a failed transfer to its report */
    CONNECT_NS = 1000000000, /* limit of a connection, when its listener exists */
    KIND_FLUSH = 100,        /* no data: the receiver answers with one byte */
    KIND_ENGINE = 101        /* data whose bytes the engine carries */
};

/* Before the bytes of a put. */
typedef struct frame {
    uint64_t region;
    int64_t offset;
    uint32_t nbytes, kind;
} frame;

typedef struct region {
    uint64_t id;
    char *base;
    int64_t nbytes;
    int32_t receiving; /* payloads */
} region;

/* Bytes to send: in `bytes` of the outlet, or in the rank's memory. */
typedef struct piece {
    const char *data; /* NULL: the next ones of `bytes` */
    size_t nbytes;
} piece;

/* [Note: payloads] With an engine, the frame of large data is a head alone. Its bytes are the next
 * message of this connection's sender: tags count them. The receiver stops reading the connection
 * until the engine has stored them, so the order of a stream is that of one without an engine. The
 * receiver sends the engine's address over the connection before all answers.
 *
 * The thread alone calls the engine, with the lock of regions, so that none is unmapped during a
 * transfer. When the job has failed it calls it no more: memory may be freed that peers did not
 * read yet. */

enum { ENTRY_LISTENER, ENTRY_EVENT, ENTRY_OUTLET, ENTRY_INBOX, ENTRY_ENGINE };

/* What a descriptor of the thread is. */
typedef struct entry {
    int32_t kind, fd;
} entry;

/* To one target. */
typedef struct outlet {
    entry entry;
    int32_t rank;
    bool opened, waits; /* waits: until the socket takes more */
    bool used;          /* since the last flush */
    atomic_bool broken;
    pthread_mutex_t lock;
    char *bytes;
    size_t n_bytes, room, bytes_at;
    piece *pieces;
    size_t n_pieces, pieces_room, pieces_at;
    uint64_t asked, answered; /* flushes */
    /* The engine's. */
    void *peer; /* NULL: its address has not come */
    char *address;
    uint32_t address_nbytes;
    size_t address_have; /* with its length */
    piece *payloads;     /* to send */
    size_t n_payloads, payloads_room;
    uint64_t n_sent;
    atomic_int sending; /* payloads that were put and are not sent */
    msi_engine_call sent;
    struct msi_mirror *mirror;
} outlet;

/* From one rank. */
typedef struct inbox {
    entry entry;
    int32_t from; /* -1: its hello has not come */
    size_t have;
    int64_t data_left, data_at; /* of the frame of data that is arriving */
    uint64_t data_region;
    bool by_engine; /* it is a payload, and the connection is not watched */
    bool arrived;   /* since the engine's last turn */
    uint64_t n_received;
    char *dropped; /* memory for a payload without a place */
    msi_engine_call received;
    struct msi_mirror *mirror;
    struct inbox *next;
    char buffer[ROOM];
} inbox;

struct msi_mirror {
    msi_mirror_setup setup;
    pthread_t thread;
    int32_t epoll;
    entry listener, event;
    msi_engine engine;
    entry engine_entry;
    atomic_bool posted; /* outlets have payloads to send */
    bool engine_ended;
    const char *why; /* NULL, or why a transfer with `why_rank` failed; due for a report later */
    int32_t why_rank;
    int64_t why_due;
    atomic_bool stops;
    bool forked; /* this process is a copy of the rank's, without its thread and connections */
    pthread_mutex_t lock; /* of regions, while bytes are stored */
    region *regions;
    int32_t n_regions;
    inbox *inboxes;
    outlet outlets[]; /* (world) */
};

static bool has_engine(const msi_mirror *m)
{
    return m->setup.engine != NULL;
}

static bool has_failed(const msi_mirror *m)
{
    return m->setup.is_gone(m->setup.user, m->setup.rank);
}

/* -- regions ----------------------------------------------------------------------------------- */

static region *region_by_id(msi_mirror *m, uint64_t id)
{
    for (int32_t i = 0; i < m->n_regions; i++) {
        if (m->regions[i].id == id) {
            return &m->regions[i];
        }
    }
    return NULL;
}

static const region *region_around(const msi_mirror *m, const char *at, int64_t nbytes)
{
    for (int32_t i = 0; i < m->n_regions; i++) {
        const region *r = &m->regions[i];

        if (at >= r->base && at + nbytes <= r->base + r->nbytes) {
            return r;
        }
    }
    return NULL;
}

ms_status msi_mirror_add(msi_mirror *m, uint64_t id, void *base, int64_t nbytes)
{
    pthread_mutex_lock(&m->lock);
    region *list = realloc(m->regions, sizeof(*list) * ((size_t)m->n_regions + 1));

    if (list != NULL) {
        m->regions = list;
        list[m->n_regions++] = (region){.id = id, .base = base, .nbytes = nbytes};
    }
    pthread_mutex_unlock(&m->lock);
    return list != NULL ? MS_OK : MS_FAIL(MS_OUT_OF_MEMORY, "no memory to share a segment");
}

/* False: a payload is arriving in it. */
static bool remove_idle(msi_mirror *m, region *r)
{
    pthread_mutex_lock(&m->lock);
    const bool idle = r->receiving == 0 || has_failed(m);

    if (idle) {
        m->n_regions--;
        *r = m->regions[m->n_regions];
    }
    pthread_mutex_unlock(&m->lock);
    return idle;
}

void msi_mirror_remove(msi_mirror *m, uint64_t id)
{
    const struct timespec moment = {.tv_nsec = 100000};
    region *r = region_by_id(m, id);

    if (r == NULL || m->forked) {
        return;
    }
    msi_mirror_flush(m);
    while (!remove_idle(m, r)) {
        nanosleep(&moment, NULL);
    }
}

/* -- sending ----------------------------------------------------------------------------------- */

static void wake_thread(const msi_mirror *m)
{
    const uint64_t one = 1;
    const ssize_t n = write(m->event.fd, &one, sizeof(one));

    (void)n; /* full: it is awake */
}

/* Of payload n from a rank. */
static uint64_t tag_of(int32_t from, uint64_t n)
{
    return (uint64_t)from << 40 | n;
}

/* Needs the outlet's lock. */
static void break_outlet(outlet *o)
{
    o->broken = true;
    o->n_pieces = o->pieces_at = 0;
    o->n_bytes = o->bytes_at = 0;
    o->sending -= (int)o->n_payloads;
    o->n_payloads = 0;
}

static void watch(const msi_mirror *m, entry *e, uint32_t events, int how)
{
    struct epoll_event event = {.events = events, .data.ptr = e};

    epoll_ctl(m->epoll, how, e->fd, &event);
}

/* Send pieces as far as the socket takes them. Needs the outlet's lock. */
static void send_pieces(const msi_mirror *m, outlet *o)
{
    while (o->pieces_at < o->n_pieces) {
        struct iovec parts[PIECES];
        size_t bytes_at = o->bytes_at;
        size_t n = 0;

        for (size_t i = o->pieces_at; i < o->n_pieces && n < PIECES; i++, n++) {
            const piece *p = &o->pieces[i];

            parts[n].iov_base =
                (void *)(uintptr_t)(p->data != NULL ? p->data : o->bytes + bytes_at);
            parts[n].iov_len = p->nbytes;
            bytes_at += p->data != NULL ? 0 : p->nbytes;
        }
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
        ssize_t sent = sendmsg(o->entry.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            if (errno != EAGAIN) {
                break_outlet(o);
            } else if (!o->waits) {
                o->waits = true;
                watch(m, &o->entry, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
            }
            return;
        }
        while (sent > 0) {
            piece *p = &o->pieces[o->pieces_at];
            const size_t k = (size_t)sent < p->nbytes ? (size_t)sent : p->nbytes;

            o->bytes_at += p->data == NULL ? k : 0;
            p->data = p->data != NULL ? p->data + k : NULL;
            p->nbytes -= k;
            sent -= (ssize_t)k;
            o->pieces_at += p->nbytes == 0;
        }
    }
    o->n_pieces = o->pieces_at = 0;
    o->n_bytes = o->bytes_at = 0;
    if (o->waits) {
        o->waits = false;
        watch(m, &o->entry, EPOLLIN, EPOLL_CTL_MOD);
    }
}

static const msi_address *address_of(const msi_mirror *m, int32_t rank)
{
    return (const void *)((const char *)m->setup.addresses + rank * m->setup.address_step);
}

static msi_hello hello_to(const msi_mirror *m, int32_t rank)
{
    return (msi_hello){.magic = has_engine(m) ? ENGINE_MAGIC : HELLO_MAGIC,
                       .layout = m->setup.layout,
                       .secret = m->setup.secret,
                       .from = m->setup.rank,
                       .to = rank};
}

static int introduce(const msi_mirror *m, outlet *o, int64_t deadline)
{
    const msi_hello hello = hello_to(m, o->rank);
    int error = msi_net_connect_once(&o->entry.fd, address_of(m, o->rank), deadline);

    if (error == 0 && (error = msi_net_send(o->entry.fd, &hello, sizeof(hello), deadline)) != 0) {
        close(o->entry.fd);
        o->entry.fd = -1;
    }
    return error;
}

/* A listener exists before its rank starts. It refuses when the rank has ended, which its launcher
 * is about to report with the cause. */
static int connect_outlet(const msi_mirror *m, outlet *o, int64_t deadline)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    int error;

    while ((error = introduce(m, o, deadline)) != 0 && msi_now_ns() < deadline &&
           (error == ECONNREFUSED || error == ECONNRESET || error == EPIPE) &&
           !m->setup.is_gone(m->setup.user, o->rank)) {
        nanosleep(&moment, NULL);
    }
    return error;
}

/* Connect at the first put. */
static bool open_outlet(msi_mirror *m, outlet *o)
{
    const int64_t deadline = msi_now_ns() + CONNECT_NS;
    char text[MSI_ADDRESS_TEXT], why[MSI_ADDRESS_TEXT + 128];

    if (o->opened || m->forked) {
        return o->opened && !o->broken && !m->forked;
    }
    o->opened = true;
    int error = connect_outlet(m, o, deadline);

    if (error != 0) {
        o->broken = true;
        snprintf(why, sizeof(why), "%s: %s",
                 msi_address_text(address_of(m, o->rank), text, sizeof(text)),
                 strerrordesc_np(error));
        m->setup.failed(m->setup.user, o->rank, why);
        return false;
    }
    o->entry.kind = ENTRY_OUTLET;
    watch(m, &o->entry, EPOLLIN, EPOLL_CTL_ADD);
    return true;
}

/* `list` with room for `n` elements, or NULL: no memory, and it is unchanged. */
static void *reserve(void *list, size_t *room, size_t n, size_t element)
{
    if (n <= *room) {
        return list;
    }
    void *p = realloc(list, 2 * n * element);

    *room = p != NULL ? 2 * n : *room;
    return p;
}

/* Append to the outlet's pieces. Needs the lock. */
static bool append(outlet *o, const frame *head, const void *data)
{
    const bool by_engine = head->kind == KIND_ENGINE;
    const bool copies = head->kind != MSI_MIRROR_DATA && !by_engine;
    const size_t small = sizeof(*head) + (copies ? head->nbytes : 0);
    char *bytes = reserve(o->bytes, &o->room, o->n_bytes + small, 1);
    piece *pieces = reserve(o->pieces, &o->pieces_room, o->n_pieces + 2, sizeof(*pieces));
    piece *payloads =
        reserve(o->payloads, &o->payloads_room, o->n_payloads + by_engine, sizeof(*payloads));

    o->bytes = bytes != NULL ? bytes : o->bytes;
    o->pieces = pieces != NULL ? pieces : o->pieces;
    o->payloads = payloads != NULL ? payloads : o->payloads;
    if (bytes == NULL || pieces == NULL || (by_engine && payloads == NULL)) {
        return false;
    }
    memcpy(o->bytes + o->n_bytes, head, sizeof(*head));
    if (copies && head->nbytes > 0) {
        memcpy(o->bytes + o->n_bytes + sizeof(*head), data, head->nbytes);
    }
    o->n_bytes += small;
    if (o->n_pieces > o->pieces_at && o->pieces[o->n_pieces - 1].data == NULL) {
        o->pieces[o->n_pieces - 1].nbytes += small;
    } else {
        o->pieces[o->n_pieces++] = (piece){NULL, small};
    }
    if (by_engine) {
        o->payloads[o->n_payloads++] = (piece){data, head->nbytes};
        o->sending++;
    } else if (!copies && head->nbytes > 0) {
        o->pieces[o->n_pieces++] = (piece){data, head->nbytes};
    }
    return true;
}

static void put(msi_mirror *m, int32_t target, const frame *head, const void *data)
{
    outlet *o = &m->outlets[target];

    if (!open_outlet(m, o)) {
        return;
    }
    pthread_mutex_lock(&o->lock);
    if (!o->broken && !append(o, head, data)) {
        break_outlet(o);
        m->setup.failed(m->setup.user, target, "no memory for what is to be sent");
    }
    o->used = true;
    pthread_mutex_unlock(&o->lock);
}

void msi_mirror_put_from(msi_mirror *m, int32_t target, msi_mirror_kind kind, const void *at,
                         const void *from, int64_t nbytes)
{
    const region *r = region_around(m, at, nbytes);
    const char *data = from;
    frame head;

    if (r == NULL) {
        m->setup.failed(m->setup.user, target, "its bytes are in no shared segment");
        return;
    }
    head.region = r->id;
    head.offset = (const char *)at - r->base;
    while (nbytes > 0) {
        head.nbytes = (uint32_t)(nbytes < MOST_DATA ? nbytes : MOST_DATA);
        atomic_fetch_add(m->setup.sent, kind != MSI_MIRROR_DATA);
        head.kind = kind == MSI_MIRROR_DATA && has_engine(m) && head.nbytes >= ENGINE_LEAST
                        ? KIND_ENGINE
                        : (uint32_t)kind;
        put(m, target, &head, data);
        head.offset += head.nbytes;
        data += head.nbytes;
        nbytes -= head.nbytes;
    }
}

void msi_mirror_put(msi_mirror *m, int32_t target, msi_mirror_kind kind, const void *at,
                    int64_t nbytes)
{
    msi_mirror_put_from(m, target, kind, at, at, nbytes);
}

void msi_mirror_push(msi_mirror *m, int32_t target)
{
    outlet *o = &m->outlets[target];

    if (!o->opened || o->broken || m->forked) {
        return;
    }
    pthread_mutex_lock(&o->lock);
    if (!o->waits && !o->broken) {
        send_pieces(m, o);
    }
    const bool posts = o->n_payloads > 0;

    pthread_mutex_unlock(&o->lock);
    if (posts) {
        atomic_store(&m->posted, true);
        wake_thread(m);
    }
}

/* True: all that was asked is answered, or never will be. */
static bool is_flushed(const msi_mirror *m, outlet *o)
{
    pthread_mutex_lock(&o->lock);
    const bool done = o->broken || (o->answered >= o->asked && o->sending == 0);

    pthread_mutex_unlock(&o->lock);
    return done || m->setup.is_gone(m->setup.user, o->rank);
}

void msi_mirror_flush(msi_mirror *m)
{
    const struct timespec moment = {.tv_nsec = 100000};
    const frame head = {.kind = KIND_FLUSH};

    if (m->forked) {
        return;
    }
    for (int32_t q = 0; q < m->setup.world; q++) {
        outlet *o = &m->outlets[q];

        if (o->used && !o->broken) {
            o->asked++;
            put(m, q, &head, NULL);
            msi_mirror_push(m, q);
            o->used = false;
        }
    }
    for (int32_t q = 0; q < m->setup.world; q++) {
        while (!is_flushed(m, &m->outlets[q])) {
            nanosleep(&moment, NULL);
        }
    }
}

/* -- receiving (the thread) -------------------------------------------------------------------- */

static void drop_inbox(msi_mirror *m, inbox *in)
{
    inbox **at = &m->inboxes;

    while (*at != in) {
        at = &(*at)->next;
    }
    *at = in->next;
    close(in->entry.fd);
    free(in);
}

/* Place of bytes of a region; NULL: it was removed, or they are out of range. Needs the lock. */
static char *place_of(msi_mirror *m, uint64_t id, int64_t offset, int64_t nbytes)
{
    const region *r = region_by_id(m, id);

    return r != NULL && offset >= 0 && nbytes <= r->nbytes && offset <= r->nbytes - nbytes
               ? r->base + offset
               : NULL;
}

/* Transfers also fail when the rank has ended, which its launcher is about to report. */
static void transfer_failed(msi_mirror *m, int32_t rank, const char *why)
{
    if (m->why == NULL) {
        m->why = why;
        m->why_rank = rank;
        m->why_due = msi_now_ns() + REPORT_NS;
    }
}

static void payload_sent(msi_engine_call *call, const char *error)
{
    outlet *o = (void *)((char *)call - offsetof(outlet, sent));

    if (error != NULL) {
        transfer_failed(o->mirror, o->rank, error);
    }
    o->sending--;
}

/* Send the outlet's payloads when its peer is connected. */
static void send_payloads(msi_mirror *m, outlet *o)
{
    pthread_mutex_lock(&o->lock);
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < o->n_payloads && o->peer != NULL && !m->engine_ended; i++) {
        m->setup.engine->send(m->engine.state, o->peer, tag_of(m->setup.rank, o->n_sent++),
                              o->payloads[i].data, (int64_t)o->payloads[i].nbytes, &o->sent);
    }
    pthread_mutex_unlock(&m->lock);
    o->n_payloads = o->peer != NULL ? 0 : o->n_payloads;
    pthread_mutex_unlock(&o->lock);
}

static void payload_received(msi_engine_call *call, const char *error)
{
    inbox *in = (void *)((char *)call - offsetof(inbox, received));
    region *r = region_by_id(in->mirror, in->data_region);

    if (in->dropped == NULL && r != NULL) {
        r->receiving--;
    }
    free(in->dropped);
    in->dropped = NULL;
    if (error != NULL) { /* the stream ends here */
        transfer_failed(in->mirror, in->from, error);
        return;
    }
    in->by_engine = false;
    in->arrived = true;
    in->data_left = 0;
}

/* The frame whose head was taken. False: no memory. */
static bool receive_payload(msi_mirror *m, inbox *in)
{
    pthread_mutex_lock(&m->lock);
    char *to = place_of(m, in->data_region, in->data_at, in->data_left);

    if (to != NULL) {
        region_by_id(m, in->data_region)->receiving++;
    } else {
        to = in->dropped = malloc((size_t)in->data_left);
    }
    in->by_engine = true;
    if (to != NULL && !m->engine_ended) {
        m->setup.engine->receive(m->engine.state, tag_of(in->from, in->n_received++), to,
                                 in->data_left, &in->received);
        in->arrived = false; /* if it is complete, the caller continues */
    }
    pthread_mutex_unlock(&m->lock);
    return to != NULL;
}

static void store_word(char *to, const char *from)
{
    uint64_t word;

    memcpy(&word, from, sizeof(word));
    atomic_store((_Atomic uint64_t *)(void *)to, word);
}

static void store_words(char *to, const char *from, uint32_t nbytes, bool record)
{
    const uint64_t none = 0;

    if (record) {
        store_word(to, (const char *)&none);
    }
    for (uint32_t i = record ? 8 : 0; i < nbytes; i += 8) {
        store_word(to + i, from + i);
    }
    if (record) {
        store_word(to, from);
    }
}

/* A whole frame of words. False: the sender is broken. */
static bool take_words(msi_mirror *m, inbox *in, const frame *head, const char *data)
{
    if (head->kind == KIND_FLUSH) {
        return send(in->entry.fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
    }
    pthread_mutex_lock(&m->lock);
    char *to = place_of(m, head->region, head->offset, head->nbytes);

    if (to != NULL && ((uintptr_t)to | head->nbytes) % 8 == 0) {
        store_words(to, data, head->nbytes, head->kind == MSI_MIRROR_RECORD);
    }
    pthread_mutex_unlock(&m->lock);
    atomic_fetch_add(m->setup.stored, 1);
    return true;
}

/* Data of the running frame that is in the buffer. Returns the bytes taken. */
static size_t take_data(msi_mirror *m, inbox *in, const char *data, size_t have)
{
    const size_t n = (int64_t)have < in->data_left ? have : (size_t)in->data_left;

    pthread_mutex_lock(&m->lock);
    char *to = place_of(m, in->data_region, in->data_at, (int64_t)n);

    if (to != NULL) {
        memcpy(to, data, n);
    }
    pthread_mutex_unlock(&m->lock);
    in->data_at += (int64_t)n;
    in->data_left -= (int64_t)n;
    return n;
}

static bool is_welcome(const msi_mirror *m, inbox *in, const char *data)
{
    msi_hello theirs, expected;

    memcpy(&theirs, data, sizeof(theirs));
    expected = hello_to(m, theirs.to);
    expected.from = theirs.from;
    in->from = theirs.from;
    const bool other = theirs.magic == (has_engine(m) ? HELLO_MAGIC : ENGINE_MAGIC);

    expected.magic = other ? theirs.magic : expected.magic;
    if (memcmp(&theirs, &expected, sizeof(theirs)) != 0 || theirs.to != m->setup.rank ||
        theirs.from < 0 || theirs.from >= m->setup.world) {
        return false;
    }
    if (other) {
        m->setup.failed(m->setup.user, in->from, "MS_NET differs between these ranks");
    }
    return !other;
}

/* [Note: payloads] */
static bool send_address(const msi_mirror *m, const inbox *in)
{
    const int64_t deadline = msi_now_ns() + CONNECT_NS;
    const msi_engine *e = &m->engine;

    return !has_engine(m) ||
           (msi_net_send(in->entry.fd, &e->address_nbytes, sizeof(e->address_nbytes), deadline) ==
                0 &&
            msi_net_send(in->entry.fd, e->address, e->address_nbytes, deadline) == 0);
}

enum { TAKE_MORE = 0, TAKE_NEVER = -1 };

/* A frame at `data`, of which the buffer has `left` bytes. Returns the bytes taken; of data only
 * its head. */
static int64_t take_frame(msi_mirror *m, inbox *in, const char *data, size_t left)
{
    frame head;

    if (left < sizeof(head)) {
        return TAKE_MORE;
    }
    memcpy(&head, data, sizeof(head));
    if (head.kind == MSI_MIRROR_DATA || head.kind == KIND_ENGINE) {
        in->data_left = head.nbytes;
        in->data_at = head.offset;
        in->data_region = head.region;
        if (head.kind == KIND_ENGINE && (!has_engine(m) || !receive_payload(m, in))) {
            return TAKE_NEVER;
        }
        return sizeof(head);
    }
    const size_t nbytes = sizeof(head) + head.nbytes;

    if (head.nbytes > MSI_MIRROR_WORDS_MOST) {
        return TAKE_NEVER;
    }
    if (left < nbytes) {
        return TAKE_MORE;
    }
    return take_words(m, in, &head, data + sizeof(head)) ? (int64_t)nbytes : TAKE_NEVER;
}

/* The next piece of the buffer. */
static int64_t take_piece(msi_mirror *m, inbox *in, const char *data, size_t left)
{
    if (in->by_engine) {
        return TAKE_MORE;
    }
    if (in->data_left > 0) {
        return (int64_t)take_data(m, in, data, left);
    }
    if (in->from >= 0) {
        return take_frame(m, in, data, left);
    }
    if (left < sizeof(msi_hello)) {
        return TAKE_MORE;
    }
    return is_welcome(m, in, data) && send_address(m, in) ? (int64_t)sizeof(msi_hello) : TAKE_NEVER;
}

/* What the buffer has. False: close the connection. */
static bool take(msi_mirror *m, inbox *in)
{
    size_t at = 0;
    int64_t n = 1;

    while (at < in->have && n > 0) {
        n = take_piece(m, in, in->buffer + at, in->have - at);
        at += n > 0 ? (size_t)n : 0;
    }
    in->have -= at;
    memmove(in->buffer, in->buffer + at, in->have);
    return n != TAKE_NEVER;
}

/* Data goes straight to its place when the buffer is empty. */
static ssize_t receive(msi_mirror *m, inbox *in)
{
    ssize_t n;

    if (in->data_left > 0 && in->have == 0) {
        pthread_mutex_lock(&m->lock);
        char *to = place_of(m, in->data_region, in->data_at, in->data_left);

        n = to != NULL ? recv(in->entry.fd, to, (size_t)in->data_left, MSG_DONTWAIT) : 0;
        pthread_mutex_unlock(&m->lock);
        if (to != NULL) {
            in->data_at += n > 0 ? n : 0;
            in->data_left -= n > 0 ? n : 0;
            return n;
        }
    }
    n = recv(in->entry.fd, in->buffer + in->have, ROOM - in->have, MSG_DONTWAIT);
    in->have += n > 0 ? (size_t)n : 0;
    return n;
}

static void on_inbox(msi_mirror *m, inbox *in)
{
    ssize_t n = 1;
    bool open = take(m, in); /* what a payload held back */

    m->setup.wake(m->setup.user);
    while (open && n > 0 && !in->by_engine) {
        n = receive(m, in);
        open = (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) && take(m, in);
        m->setup.wake(m->setup.user); /* the stream may never pause */
    }
    if (!open) {
        drop_inbox(m, in);
    } else if (in->by_engine) {
        epoll_ctl(m->epoll, EPOLL_CTL_DEL, in->entry.fd, NULL);
    }
}

/* Connections that never introduce themselves take little memory: the oldest ones are ended. */
static void end_strangers(const msi_mirror *m)
{
    const inbox *oldest = NULL;
    int32_t n = 0;

    for (const inbox *in = m->inboxes; in != NULL; in = in->next) { /* the latest first */
        n += in->from < 0;
        oldest = in->from < 0 ? in : oldest;
    }
    if (n >= STRANGERS) {
        shutdown(oldest->entry.fd, SHUT_RDWR);
    }
}

static void on_listener(msi_mirror *m)
{
    const int32_t fd = accept4(m->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    inbox *in = fd >= 0 ? calloc(1, sizeof(*in)) : NULL;

    if (in == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    msi_net_tune(fd);
    end_strangers(m);
    in->entry = (entry){ENTRY_INBOX, fd};
    in->from = -1;
    in->mirror = m;
    in->received.done = payload_received;
    in->next = m->inboxes;
    m->inboxes = in;
    watch(m, &in->entry, EPOLLIN, EPOLL_CTL_ADD);
}

/* Connect to the peer whose address has come. False: errno. */
static bool connect_peer(msi_mirror *m, outlet *o)
{
    char why[MSI_ENGINE_ERROR];

    pthread_mutex_lock(&m->lock);
    const bool ok = m->setup.engine->connect(m->engine.state, &o->peer, o->address, why);

    pthread_mutex_unlock(&m->lock);
    if (!ok) {
        m->setup.failed(m->setup.user, o->rank, why);
    }
    errno = ok ? 0 : ENOTCONN;
    atomic_store(&m->posted, true);
    return ok;
}

/* Part of the peer's address in the engine. Returns recv()'s result. */
static ssize_t receive_address(msi_mirror *m, outlet *o)
{
    const size_t head = sizeof(o->address_nbytes), have = o->address_have;
    char *to = have < head ? (char *)&o->address_nbytes + have : o->address + (have - head);
    const size_t left = (have < head ? head : head + o->address_nbytes) - have;
    const ssize_t n = recv(o->entry.fd, to, left, MSG_DONTWAIT);

    o->address_have += n > 0 ? (size_t)n : 0;
    if (n != (ssize_t)left) {
        return n;
    }
    if (have >= head) {
        return connect_peer(m, o) ? n : -1;
    }
    o->address = o->address_nbytes <= ENGINE_ADDRESS_MOST ? calloc(1, o->address_nbytes + 1) : NULL;
    errno = o->address == NULL ? ENOMEM : 0;
    return o->address == NULL ? -1 : n;
}

/* What the peer sends: its address in the engine, then a byte for each flush. */
static ssize_t receive_answers(msi_mirror *m, outlet *o)
{
    char answers[64];

    if (has_engine(m) && o->peer == NULL) {
        return receive_address(m, o);
    }
    const ssize_t n = recv(o->entry.fd, answers, sizeof(answers), MSG_DONTWAIT);

    o->answered += n > 0 ? (uint64_t)n : 0;
    return n;
}

static void on_outlet(msi_mirror *m, outlet *o, uint32_t events)
{
    ssize_t n = 0;

    pthread_mutex_lock(&o->lock);
    while (!o->broken && (n = receive_answers(m, o)) > 0) {
    }
    if (!o->broken && (n == 0 || (errno != EAGAIN && errno != EINTR))) {
        break_outlet(o);
    }
    if (!o->broken && (events & EPOLLOUT) != 0) {
        send_pieces(m, o);
    }
    if (o->broken) {
        epoll_ctl(m->epoll, EPOLL_CTL_DEL, o->entry.fd, NULL);
    }
    pthread_mutex_unlock(&o->lock);
}

/* Continue the streams whose payloads have arrived. Returns their number. */
static int32_t resume_inboxes(msi_mirror *m)
{
    int32_t n = 0;

    for (inbox *in = m->inboxes, *next; in != NULL; in = next) {
        next = in->next;
        if (in->arrived) {
            in->arrived = false;
            n++;
            watch(m, &in->entry, EPOLLIN, EPOLL_CTL_ADD);
            on_inbox(m, in);
        }
    }
    return n;
}

static void report_transfer(msi_mirror *m)
{
    if (m->why != NULL && msi_now_ns() >= m->why_due) {
        m->setup.failed(m->setup.user, m->why_rank, m->why);
        m->why = NULL;
    }
}

/* The engine's turn. True: nothing is due until its descriptor is readable. */
static bool run_engine(msi_mirror *m)
{
    bool idle = true;

    if (!has_engine(m) || m->engine_ended) {
        return true;
    }
    if (atomic_exchange(&m->posted, false)) {
        for (int32_t q = 0; q < m->setup.world; q++) {
            send_payloads(m, &m->outlets[q]);
        }
    }
    pthread_mutex_lock(&m->lock);
    m->engine_ended = has_failed(m);
    if (!m->engine_ended) {
        idle = m->setup.engine->progress(m->engine.state);
    } else {
        epoll_ctl(m->epoll, EPOLL_CTL_DEL, m->engine.fd, NULL);
    }
    pthread_mutex_unlock(&m->lock);
    report_transfer(m);
    return resume_inboxes(m) == 0 && idle;
}

static void on_event(const msi_mirror *m)
{
    uint64_t times;
    const ssize_t n = read(m->event.fd, &times, sizeof(times));

    (void)n;
}

static void *receive_all(void *user)
{
    msi_mirror *m = user;
    struct epoll_event events[16];

    while (!atomic_load(&m->stops)) {
        const int timeout = !run_engine(m) ? 0 : m->why != NULL ? REPORT_NS / 1000000 : -1;
        const int n = epoll_wait(m->epoll, events, MSI_COUNT(events), timeout);

        for (int32_t i = 0; i < n; i++) {
            entry *e = events[i].data.ptr;

            switch (e->kind) {
            case ENTRY_LISTENER:
                on_listener(m);
                break;
            case ENTRY_OUTLET:
                on_outlet(m, (outlet *)(void *)e, events[i].events);
                break;
            case ENTRY_INBOX:
                on_inbox(m, (inbox *)(void *)e);
                break;
            case ENTRY_EVENT:
                on_event(m);
                break;
            default:
                break;
            }
        }
    }
    return NULL;
}

/* -- life -------------------------------------------------------------------------------------- */

static ms_status not_started(int error)
{
    return MS_FAIL(MS_RUNTIME_ERROR, "cannot start the thread that receives from other hosts: %s",
                   strerrordesc_np(error));
}

static ms_status open_engine(msi_mirror *m)
{
    char why[MSI_ENGINE_ERROR];

    if (!has_engine(m)) {
        return MS_OK;
    }
    if (!m->setup.engine->open(&m->engine, why)) {
        return MS_FAIL(MS_COMM_ERROR, "cannot send data to other hosts by %s: %s",
                       m->setup.engine->kind, why);
    }
    m->engine_entry = (entry){ENTRY_ENGINE, m->engine.fd};
    watch(m, &m->engine_entry, EPOLLIN, EPOLL_CTL_ADD);
    return MS_OK;
}

/* The rank's signals are for its own thread, not for this one and those of the engine. */
static ms_status start_thread(msi_mirror *m)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const ms_status status = open_engine(m);
    const int error = status == MS_OK ? pthread_create(&m->thread, NULL, receive_all, m) : 0;

    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? status : not_started(error);
}

ms_status msi_mirror_new(msi_mirror **out, const msi_mirror_setup *setup)
{
    msi_mirror *m = calloc(1, sizeof(*m) + sizeof(m->outlets[0]) * (size_t)setup->world);

    *out = NULL;
    if (m == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to send to other hosts");
    }
    m->setup = *setup;
    pthread_mutex_init(&m->lock, NULL);
    for (int32_t q = 0; q < setup->world; q++) {
        m->outlets[q].entry = (entry){ENTRY_OUTLET, -1};
        m->outlets[q].rank = q;
        m->outlets[q].mirror = m;
        m->outlets[q].sent.done = payload_sent;
        pthread_mutex_init(&m->outlets[q].lock, NULL);
    }
    m->listener = (entry){ENTRY_LISTENER, setup->listener};
    m->event = (entry){ENTRY_EVENT, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    m->epoll = epoll_create1(EPOLL_CLOEXEC);
    ms_status status = m->epoll < 0 || m->event.fd < 0
                           ? not_started(errno)
                           : msi_mirror_add(m, 0, setup->base, setup->nbytes);

    if (status == MS_OK) { /* bytes may have arrived already */
        watch(m, &m->listener, EPOLLIN, EPOLL_CTL_ADD);
        watch(m, &m->event, EPOLLIN, EPOLL_CTL_ADD);
        status = start_thread(m);
    }
    if (status != MS_OK) {
        free(m);
        return status;
    }
    *out = m;
    return MS_OK;
}

const char *msi_mirror_engine(const msi_mirror *m)
{
    return has_engine(m) ? m->setup.engine->kind : "tcp";
}

static void close_all(msi_mirror *m)
{
    for (int32_t q = 0; q < m->setup.world; q++) {
        if (m->outlets[q].entry.fd >= 0) {
            close(m->outlets[q].entry.fd);
        }
    }
    for (inbox *in = m->inboxes; in != NULL; in = in->next) {
        close(in->entry.fd);
    }
    close(m->listener.fd);
    close(m->event.fd);
    close(m->epoll);
}

void msi_mirror_forked(msi_mirror *m)
{
    close_all(m);
    m->forked = true;
}

void msi_mirror_free(msi_mirror *m)
{
    if (m == NULL) {
        return;
    }
    if (!m->forked) {
        atomic_store(&m->stops, true);
        wake_thread(m);
        pthread_join(m->thread, NULL);
        if (has_engine(m)) {
            m->setup.engine->close(m->engine.state);
        }
        close_all(m);
    }
    while (m->inboxes != NULL) {
        inbox *first = m->inboxes;

        m->inboxes = first->next;
        free(first->dropped);
        free(first);
    }
    for (int32_t q = 0; q < m->setup.world; q++) {
        free(m->outlets[q].bytes);
        free(m->outlets[q].pieces);
        free(m->outlets[q].payloads);
        free(m->outlets[q].address);
        pthread_mutex_destroy(&m->outlets[q].lock);
    }
    pthread_mutex_destroy(&m->lock);
    free(m->regions);
    free(m);
}
