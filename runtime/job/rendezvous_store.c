/* Meeting through the TCPStore of torchrun's agent, which holds the master's port.
 *
 * The protocol is that of PyTorch 2.1 and later (torch/csrc/distributed/c10d/TCPStoreBackend.hpp):
 * a query is one byte, then keys and values, each with a length of 8 bytes in host order. */
#include "job.h"
#include "rendezvous_meet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VALIDATE = 0, SET = 1, GET = 3, ADD = 4, CHECK = 5, WAIT = 6 };
enum { READY = 0, STOP_WAITING = 0 };
enum { VALIDATION_MAGIC = 0x3C85F7CE };
/* A key: prefix, run, key and rank. A query: the keys of all ranks, or one value. */
enum { KEY_BYTES = 160, QUERY_BYTES = 16 + MS_MAX_RANKS * (8 + KEY_BYTES) };

typedef struct store {
    const msi_place *p;
    int32_t fd;
    char at[MSI_ADDRESS_TEXT];
} store;

/* -- queries ----------------------------------------------------------------------------------- */

typedef struct query {
    size_t n;
    char data[QUERY_BYTES];
} query;

static void put(query *q, const void *data, size_t nbytes)
{
    if (q->n + nbytes <= sizeof(q->data)) { /* sized for all queries */
        memcpy(q->data + q->n, data, nbytes);
        q->n += nbytes;
    }
}

static void put_kind(query *q, int32_t kind)
{
    const uint8_t byte = (uint8_t)kind;

    q->n = 0;
    put(q, &byte, 1);
}

static void put_value(query *q, const void *data, size_t nbytes)
{
    const uint64_t length = nbytes;

    put(q, &length, sizeof(length));
    put(q, data, nbytes);
}

static void put_key(query *q, const store *s, const char *key, int32_t rank)
{
    char text[KEY_BYTES];

    snprintf(text, sizeof(text), "moonshard/%s/%s/%d", s->p->run, key, (int)rank);
    put_value(q, text, strlen(text));
}

/* CHECK or WAIT for the keys of `n` ranks. */
static void put_keys(query *q, int32_t kind, const store *s, const char *key, int32_t first,
                     int64_t n)
{
    put_kind(q, kind);
    put(q, &n, sizeof(n));
    for (int32_t r = first; r < first + n; r++) {
        put_key(q, s, key, r);
    }
}

/* Send, and receive an answer of `nbytes`. Returns errno. */
static int ask(const store *s, const query *q, void *answer, size_t nbytes, int64_t deadline_ns)
{
    const int error = msi_net_send(s->fd, q->data, q->n, deadline_ns);

    return error == 0 ? msi_net_receive(s->fd, answer, nbytes, deadline_ns) : error;
}

static ms_status fail_store(const store *s, const char *what, int error)
{
    return MS_FAIL(MS_COMM_ERROR,
                   "rank %d of %d cannot %s the TCPStore at %s: %s; expected the store of a "
                   "torchrun of PyTorch 2.1 or later at %s",
                   (int)s->p->rank, (int)s->p->world, what, s->at,
                   error == 0 ? "unexpected answer" : strerrordesc_np(error), s->p->master_from);
}

/* -- opening ----------------------------------------------------------------------------------- */

static ms_status connect_store(store *s, int64_t timeout_ns)
{
    const uint32_t magic = VALIDATION_MAGIC;
    query q;

    MS_TRY(msi_reach_master(&s->fd, s->p, timeout_ns));
    put_kind(&q, VALIDATE);
    put(&q, &magic, sizeof(magic));
    const int error = msi_net_send(s->fd, q.data, q.n, msi_now_ns() + timeout_ns);

    return error == 0 ? MS_OK : fail_store(s, "use", error);
}

static void close_store(void *state)
{
    store *s = state;

    if (s->fd >= 0) {
        close(s->fd);
    }
    free(s);
}

/* A counter of each rank's processes shows a second one; it also shows that this is a TCPStore. */
static ms_status enter(store *s, int64_t timeout_ns)
{
    const int64_t one = 1;
    int64_t count = 0;
    query q;

    put_kind(&q, ADD);
    put_key(&q, s, "processes", s->p->rank);
    put(&q, &one, sizeof(one));
    const int error = ask(s, &q, &count, sizeof(count), msi_now_ns() + timeout_ns);

    if (error != 0 || count < 1 || count > INT32_MAX) {
        return fail_store(s, "use", error);
    }
    return count == 1 ? MS_OK
                      : MS_FAIL(MS_COMM_ERROR,
                                "rank %d of %d has come %lld times to %s in run %s: start one "
                                "process of each rank (%s)",
                                (int)s->p->rank, (int)s->p->world, (long long)count, s->at,
                                msi_foreign_name(s->p->run), s->p->source);
}

static ms_status open_store(void **state, const msi_place *p, int64_t timeout_ns)
{
    store *s = calloc(1, sizeof(*s));
    ms_status status;

    if (s == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a rendezvous");
    }
    s->p = p;
    s->fd = -1;
    snprintf(s->at, sizeof(s->at), "%.48s:%d", p->master, (int)p->port);
    MS_TRY_GOTO(connect_store(s, timeout_ns), failed);
    MS_TRY_GOTO(enter(s, timeout_ns), failed);
    *state = s;
    return MS_OK;
failed:
    close_store(s);
    return status;
}

/* -- exchange ---------------------------------------------------------------------------------- */

/* The wait's connection cannot take another query: use a new one. */
static ms_status fail_missing(const store *s, const char *key, int64_t timeout_ns)
{
    const int64_t moment_ns = 1000000000;
    store again = {.p = s->p, .fd = -1};
    bool missing[MS_MAX_RANKS] = {false};
    uint8_t answer = READY;
    query q;

    snprintf(again.at, sizeof(again.at), "%s", s->at);
    ms_status status = connect_store(&again, moment_ns);

    for (int32_t r = 0; status == MS_OK && r < s->p->world; r++) {
        put_keys(&q, CHECK, s, key, r, 1);
        const int error = ask(&again, &q, &answer, 1, msi_now_ns() + moment_ns);

        status = error == 0 ? MS_OK : fail_store(&again, "use", error);
        missing[r] = answer != READY;
    }
    if (again.fd >= 0) {
        close(again.fd);
    }
    MS_TRY(status);
    return msi_fail_missing(s->p, missing, s->at, timeout_ns);
}

static ms_status wait_all(const store *s, const char *key, int64_t timeout_ns)
{
    uint8_t answer = STOP_WAITING;
    query q;

    put_keys(&q, WAIT, s, key, 0, s->p->world);
    const int error = ask(s, &q, &answer, 1, msi_now_ns() + timeout_ns);

    if (error == ETIMEDOUT) {
        return fail_missing(s, key, timeout_ns);
    }
    return error == 0 && answer == STOP_WAITING ? MS_OK : fail_store(s, "wait at", error);
}

static ms_status exchange_store(void *state, const char *key, const void *in, int64_t nbytes,
                                void *all, int64_t timeout_ns)
{
    const store *s = state;
    const int64_t deadline_ns = msi_now_ns() + timeout_ns;
    uint64_t length;
    query q;

    put_kind(&q, SET);
    put_key(&q, s, key, s->p->rank);
    put_value(&q, in, (size_t)nbytes);
    int error = msi_net_send(s->fd, q.data, q.n, deadline_ns);

    if (error != 0) {
        return fail_store(s, "write to", error);
    }
    MS_TRY(wait_all(s, key, timeout_ns));
    for (int32_t r = 0; r < s->p->world; r++) {
        put_kind(&q, GET);
        put_key(&q, s, key, r);
        error = ask(s, &q, &length, sizeof(length), msi_now_ns() + timeout_ns);
        if (error == 0 && length != (uint64_t)nbytes) {
            return MS_FAIL(MS_COMM_ERROR,
                           "rank %d exchanges '%s' of %llu bytes, but rank %d of %lld bytes: all "
                           "ranks need the same program and version",
                           (int)r, key, (unsigned long long)length, (int)s->p->rank,
                           (long long)nbytes);
        }
        if (error == 0) {
            error = msi_net_receive(s->fd, (char *)all + r * nbytes, (size_t)nbytes,
                                    msi_now_ns() + timeout_ns);
        }
        if (error != 0) {
            return fail_store(s, "read from", error);
        }
    }
    return MS_OK;
}

const msi_meeting msi_meet_store = {open_store, exchange_store, close_store};
