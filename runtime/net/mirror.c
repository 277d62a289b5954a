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
    HELLO_MAGIC = 0x6d736e31, /* "msn1" */
    ROOM = 4 * MSI_MIRROR_WORDS_MOST,
    STRANGERS = 64,
    PIECES = 64,             /* in one system call */
    MOST_DATA = 1 << 30,     /* bytes of a frame */
    CONNECT_NS = 1000000000, /* limit of a connection, when its listener exists */
    KIND_FLUSH = 100         /* no data: the receiver answers with one byte */
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
} region;

/* Bytes to send: in `bytes` of the outlet, or in the rank's memory. */
typedef struct piece {
    const char *data; /* NULL: the next ones of `bytes` */
    size_t nbytes;
} piece;

enum { ENTRY_LISTENER, ENTRY_EVENT, ENTRY_OUTLET, ENTRY_INBOX };

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
} outlet;

/* From one rank. */
typedef struct inbox {
    entry entry;
    int32_t from; /* -1: its hello has not come */
    size_t have;
    int64_t data_left, data_at; /* of the frame of data that is arriving */
    uint64_t data_region;
    struct inbox *next;
    char buffer[ROOM];
} inbox;

struct msi_mirror {
    msi_mirror_setup setup;
    pthread_t thread;
    int32_t epoll;
    entry listener, event;
    atomic_bool stops;
    bool forked; /* this process is a copy of the rank's, without its thread and connections */
    pthread_mutex_t lock; /* of regions, while bytes are stored */
    region *regions;
    int32_t n_regions;
    inbox *inboxes;
    outlet outlets[]; /* (world) */
};

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
        list[m->n_regions++] = (region){id, base, nbytes};
    }
    pthread_mutex_unlock(&m->lock);
    return list != NULL ? MS_OK : MS_FAIL(MS_OUT_OF_MEMORY, "no memory to share a segment");
}

void msi_mirror_remove(msi_mirror *m, uint64_t id)
{
    region *r = region_by_id(m, id);

    if (r == NULL || m->forked) {
        return;
    }
    msi_mirror_flush(m);
    pthread_mutex_lock(&m->lock);
    m->n_regions--;
    *r = m->regions[m->n_regions];
    pthread_mutex_unlock(&m->lock);
}

/* -- sending ----------------------------------------------------------------------------------- */

/* Needs the outlet's lock. */
static void break_outlet(outlet *o)
{
    o->broken = true;
    o->n_pieces = o->pieces_at = 0;
    o->n_bytes = o->bytes_at = 0;
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
    return (msi_hello){.magic = HELLO_MAGIC,
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
static bool append(outlet *o, const frame *head, const void *data, bool copies)
{
    const size_t small = sizeof(*head) + (copies ? head->nbytes : 0);
    char *bytes = reserve(o->bytes, &o->room, o->n_bytes + small, 1);
    piece *pieces = reserve(o->pieces, &o->pieces_room, o->n_pieces + 2, sizeof(*pieces));

    o->bytes = bytes != NULL ? bytes : o->bytes;
    o->pieces = pieces != NULL ? pieces : o->pieces;
    if (bytes == NULL || pieces == NULL) {
        return false;
    }
    memcpy(o->bytes + o->n_bytes, head, sizeof(*head));
    if (copies) {
        memcpy(o->bytes + o->n_bytes + sizeof(*head), data, head->nbytes);
    }
    o->n_bytes += small;
    if (o->n_pieces > o->pieces_at && o->pieces[o->n_pieces - 1].data == NULL) {
        o->pieces[o->n_pieces - 1].nbytes += small;
    } else {
        o->pieces[o->n_pieces++] = (piece){NULL, small};
    }
    if (!copies && head->nbytes > 0) {
        o->pieces[o->n_pieces++] = (piece){data, head->nbytes};
    }
    return true;
}

static void put(msi_mirror *m, int32_t target, const frame *head, const void *data, bool copies)
{
    outlet *o = &m->outlets[target];

    if (!open_outlet(m, o)) {
        return;
    }
    pthread_mutex_lock(&o->lock);
    if (!o->broken && !append(o, head, data, copies)) {
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
    frame head = {.kind = kind};

    if (r == NULL) {
        m->setup.failed(m->setup.user, target, "its bytes are in no shared segment");
        return;
    }
    head.region = r->id;
    head.offset = (const char *)at - r->base;
    while (nbytes > 0) {
        head.nbytes = (uint32_t)(nbytes < MOST_DATA ? nbytes : MOST_DATA);
        atomic_fetch_add(m->setup.sent, kind != MSI_MIRROR_DATA);
        put(m, target, &head, data, kind != MSI_MIRROR_DATA);
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
    pthread_mutex_unlock(&o->lock);
}

/* True: all that was asked is answered, or never will be. */
static bool is_flushed(const msi_mirror *m, outlet *o)
{
    pthread_mutex_lock(&o->lock);
    const bool done = o->broken || o->answered >= o->asked;

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
            put(m, q, &head, NULL, true);
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
    return memcmp(&theirs, &expected, sizeof(theirs)) == 0 && theirs.to == m->setup.rank &&
           theirs.from >= 0 && theirs.from < m->setup.world;
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
    if (head.kind == MSI_MIRROR_DATA) {
        in->data_left = head.nbytes;
        in->data_at = head.offset;
        in->data_region = head.region;
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
    if (in->data_left > 0) {
        return (int64_t)take_data(m, in, data, left);
    }
    if (in->from >= 0) {
        return take_frame(m, in, data, left);
    }
    if (left < sizeof(msi_hello)) {
        return TAKE_MORE;
    }
    return is_welcome(m, in, data) ? (int64_t)sizeof(msi_hello) : TAKE_NEVER;
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
    ssize_t n;

    do {
        n = receive(m, in);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) || !take(m, in)) {
            drop_inbox(m, in);
            return;
        }
        m->setup.wake(m->setup.user); /* the stream may never pause */
    } while (n > 0);
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
    in->next = m->inboxes;
    m->inboxes = in;
    watch(m, &in->entry, EPOLLIN, EPOLL_CTL_ADD);
}

static void on_outlet(const msi_mirror *m, outlet *o, uint32_t events)
{
    char answers[64]; /* a byte for each flush */
    ssize_t n = 0;

    pthread_mutex_lock(&o->lock);
    while (!o->broken && (n = recv(o->entry.fd, answers, sizeof(answers), MSG_DONTWAIT)) > 0) {
        o->answered += (uint64_t)n;
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

static void *receive_all(void *user)
{
    msi_mirror *m = user;
    struct epoll_event events[16];

    while (!atomic_load(&m->stops)) {
        const int n = epoll_wait(m->epoll, events, MSI_COUNT(events), -1);

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
            default:
                break;
            }
        }
    }
    return NULL;
}

/* -- life -------------------------------------------------------------------------------------- */

/* The rank's signals are for its own thread. */
static int start_thread(msi_mirror *m)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&m->thread, NULL, receive_all, m);

    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
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
        pthread_mutex_init(&m->outlets[q].lock, NULL);
    }
    m->listener = (entry){ENTRY_LISTENER, setup->listener};
    m->event = (entry){ENTRY_EVENT, eventfd(0, EFD_CLOEXEC)};
    m->epoll = epoll_create1(EPOLL_CLOEXEC);
    int error = m->epoll < 0 || m->event.fd < 0 ? errno : 0;

    if (error == 0 && msi_mirror_add(m, 0, setup->base, setup->nbytes) != MS_OK) {
        error = ENOMEM;
    }
    if (error == 0) { /* bytes may have arrived already */
        watch(m, &m->listener, EPOLLIN, EPOLL_CTL_ADD);
        watch(m, &m->event, EPOLLIN, EPOLL_CTL_ADD);
        error = start_thread(m);
    }
    if (error != 0) {
        free(m);
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "cannot start the thread that receives from other hosts: "
                       "%s",
                       strerrordesc_np(error));
    }
    *out = m;
    return MS_OK;
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
    const uint64_t one = 1;

    if (m == NULL) {
        return;
    }
    if (!m->forked) {
        atomic_store(&m->stops, true);
        if (write(m->event.fd, &one, sizeof(one)) == sizeof(one)) {
            pthread_join(m->thread, NULL);
        }
        close_all(m);
    }
    while (m->inboxes != NULL) {
        inbox *first = m->inboxes;

        m->inboxes = first->next;
        free(first);
    }
    for (int32_t q = 0; q < m->setup.world; q++) {
        free(m->outlets[q].bytes);
        free(m->outlets[q].pieces);
        pthread_mutex_destroy(&m->outlets[q].lock);
    }
    pthread_mutex_destroy(&m->lock);
    free(m->regions);
    free(m);
}
