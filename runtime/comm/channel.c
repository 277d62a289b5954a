/* Messages between two ranks of a group, beside its collectives: no part of the schedule.
 *
 * A message is a chain of chunks through a ring of buffers for each pair of members (msi_channel).
 * The first begins with what the sender sends, which the receiver compares with what it receives.
 * Messages of a pair move one after another. They move in calls of their own and whenever this rank
 * waits. */
#include "channel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the rank that runs on this thread. */
static _Thread_local ms_message *pending;

static msi_channel *channel_of(const ms_comm *c, int32_t from, int32_t to)
{
    return &c->channel[from * c->size + to];
}

enum { CHUNKS = 4 }; /* in a ring */

static int64_t chunk_bytes(const ms_comm *c)
{
    return MSI_CHANNEL / c->size / CHUNKS / 64 * 64;
}

/* The place of chunk `n` of a pair. */
static char *chunk_of(const ms_comm *c, int32_t from, int32_t to, uint64_t n)
{
    return c->channel_bytes + (int64_t)from * MSI_CHANNEL +
           (to * CHUNKS + (int64_t)(n % CHUNKS)) * chunk_bytes(c);
}

/* -- texts ------------------------------------------------------------------------------------- */

const char *msi_message_text(const msi_message_head *h, char *buffer, size_t nbytes)
{
    snprintf(buffer, nbytes, "%s %s, tag %d", ms_dtype_name(h->dtype),
             msi_shape_text(h->ndim, h->shape), (int)h->tag);
    return buffer;
}

/* -- moving ------------------------------------------------------------------------------------ */

/* Is there a chunk to read from member q? */
static bool has_chunk(const ms_comm *c, int32_t q)
{
    msi_channel *channel = channel_of(c, q, c->rank);

    return q != c->rank && atomic_load(&channel->sent) != atomic_load(&channel->taken);
}

static bool can_move(const ms_message *m)
{
    if (m->sends) {
        msi_channel *channel = channel_of(m->comm, m->comm->rank, m->peer);

        return atomic_load(&channel->sent) - atomic_load(&channel->taken) < CHUNKS;
    }
    for (int32_t q = 0; m->peer == MSI_ANY_RANK && q < m->comm->size; q++) {
        if (has_chunk(m->comm, q)) {
            return true;
        }
    }
    return m->peer != MSI_ANY_RANK && has_chunk(m->comm, m->peer);
}

/* An earlier message that uses the same buffer comes first. */
static bool comes_later(const ms_message *m)
{
    for (const ms_message *other = pending; other != m; other = other->next) {
        if (other->comm == m->comm && other->sends == m->sends &&
            (other->peer == m->peer || other->peer == MSI_ANY_RANK || m->peer == MSI_ANY_RANK)) {
            return true;
        }
    }
    return false;
}

/* Copy between the tensor and a chunk with room for `room` bytes. */
static void move_bytes(ms_message *m, char *chunk, int64_t room)
{
    const int64_t n = m->nbytes - m->at < room ? m->nbytes - m->at : room;
    char *data = (char *)m->host.data + m->at;

    if (n > 0) {
        memcpy(m->sends ? chunk : data, m->sends ? data : chunk, (size_t)n);
    }
    m->at += n;
    m->begun = true;
    m->done = m->at == m->nbytes;
}

static void send_chunk(ms_message *m)
{
    const ms_comm *c = m->comm;
    msi_channel *channel = channel_of(c, c->rank, m->peer);
    char *first = chunk_of(c, c->rank, m->peer, atomic_load(&channel->sent)), *chunk = first;
    int64_t room = chunk_bytes(c);

    if (!m->begun) {
        memcpy(chunk, &m->head, sizeof(m->head));
        chunk += sizeof(m->head);
        room -= (int64_t)sizeof(m->head);
    }
    move_bytes(m, chunk, room);
    msi_comm_put_to(c, m->peer, MSI_MIRROR_DATA, first, chunk_bytes(c));
    atomic_fetch_add(&channel->sent, 1);
    msi_comm_put_to(c, m->peer, MSI_MIRROR_WORDS, (const void *)&channel->sent, 8);
}

static void report_mismatch(const ms_message *m, const msi_message_head *sent)
{
    char theirs[MSI_MESSAGE_TEXT], ours[MSI_MESSAGE_TEXT];
    ms_comm *c = m->comm;

    msi_job_abort(c->job, c->in_job[c->own], c->in_job[m->peer], MSI_CAUSE_MISMATCH, MS_COMM_ERROR,
                  "message mismatch: rank %d sends %s to rank %d, which receives %s",
                  (int)c->in_job[m->peer], msi_message_text(sent, theirs, sizeof(theirs)),
                  (int)c->in_job[c->own], msi_message_text(&m->head, ours, sizeof(ours)));
}

static void take_chunk(ms_message *m)
{
    const ms_comm *c = m->comm;
    int64_t room = chunk_bytes(c);

    for (int32_t q = 0; m->peer == MSI_ANY_RANK; q++) {
        m->peer = has_chunk(c, q) ? q : MSI_ANY_RANK;
    }
    msi_channel *channel = channel_of(c, m->peer, c->rank);
    char *chunk = chunk_of(c, m->peer, c->rank, atomic_load(&channel->taken));

    if (!m->begun) {
        msi_message_head sent;

        memcpy(&sent, chunk, sizeof(sent));
        if (sent.dtype != m->head.dtype || sent.numel != m->head.numel || sent.tag != m->head.tag) {
            report_mismatch(m, &sent);
            return;
        }
        chunk += sizeof(sent);
        room -= (int64_t)sizeof(sent);
    }
    move_bytes(m, chunk, room);
    atomic_fetch_add(&channel->taken, 1);
    msi_comm_put_to(c, m->peer, MSI_MIRROR_WORDS, (const void *)&channel->taken, 8);
}

/* It is no longer pending. */
static void finish(ms_message *m, ms_status status)
{
    ms_message **at = &pending;

    while (*at != m) {
        at = &(*at)->next;
    }
    *at = m->next;
    m->done = true;
    m->status = msi_host_view_end(&m->host, status);
    if (m->status != MS_OK) {
        snprintf(m->error, sizeof(m->error), "%s", ms_error_message());
    }
    ms_tensor_free(m->t);
    m->t = NULL;
    if (m->freed) {
        free(m);
    }
}

/* Not in a process that the rank forked, nor after the job has failed. */
static bool is_usable(ms_comm *c)
{
    return c->dist->gone == MSI_GONE_NOT && !msi_comm_broken(c);
}

void msi_messages_progress(void)
{
    for (ms_message *m = pending, *next; MSI_UNLIKELY(m != NULL); m = next) {
        bool moved = false;

        next = m->next;
        while (!m->done && is_usable(m->comm) && !comes_later(m) && can_move(m)) {
            if (m->sends) {
                send_chunk(m);
            } else {
                take_chunk(m);
            }
            moved = true;
        }
        if (moved) {
            msi_comm_ring(m->comm);
        }
        if (m->done) {
            finish(m, MS_OK);
        }
    }
}

void msi_messages_drop(const ms_comm *c)
{
    for (ms_message *m = pending, *next; m != NULL; m = next) {
        next = m->next;
        if (c == NULL || m->comm == c) {
            finish(m,
                   MS_FAIL(MS_RUNTIME_ERROR, "a message: its group was freed before it arrived"));
        }
    }
}

bool msi_messages_pending(const ms_comm *c)
{
    const ms_message *m = pending;

    while (m != NULL && m->comm != c) {
        m = m->next;
    }
    return m != NULL;
}

/* In front of it are all earlier ones. */
void msi_message_append(ms_message *m)
{
    ms_message **at = &pending;

    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = m;
}

bool msi_message_may_move(const ms_message *m)
{
    return !comes_later(m) && can_move(m);
}
