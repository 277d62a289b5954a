/* Calls that send and receive messages (channel.c). */
#include "channel.h"
#include "op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "recv(f32 (2), tag 0) from rank 1" */
static const char *message_text(const ms_message *m, char *buffer, size_t nbytes)
{
    char data[MSI_MESSAGE_TEXT], who[32] = "any rank";

    if (m->peer != MSI_ANY_RANK) {
        snprintf(who, sizeof(who), "rank %d", (int)msi_comm_rank_in_job(m->comm, m->peer));
    }
    snprintf(buffer, nbytes, "%s(%s) %s %s", m->sends ? "send" : "recv",
             msi_message_text(&m->head, data, sizeof(data)), m->sends ? "to" : "from", who);
    return buffer;
}

/* -- calls ------------------------------------------------------------------------------------- */

static ms_status check(const ms_comm *c, const char *what, const ms_tensor *t, int32_t peer)
{
    if (peer == c->rank || peer < MSI_ANY_RANK || peer >= c->size) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: rank is %d, expected another one of 0 to %d than %d",
                       what, (int)peer, (int)c->size - 1, (int)c->rank);
    }
    if (!msi_view_contiguous(&t->v)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: 't' has shape %s with gaps, expected contiguous", what,
                       msi_shape_text(t->v.ndim, t->v.shape));
    }
    return c->dist->gone == MSI_GONE_NOT ? MS_OK : msi_gone_error(c->dist);
}

static ms_status begin(ms_message **out, ms_comm *c, ms_tensor *t, int32_t peer, int32_t tag,
                       bool sends)
{
    ms_message *m = calloc(1, sizeof(*m));

    msi_op_host(t->ctx, sends ? "a message is sent" : "a message is received");
    if (m == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a message");
    }
    *m = (ms_message){.comm = c, .peer = peer, .sends = sends};
    m->head = (msi_message_head){
        .numel = msi_view_numel(&t->v), .dtype = t->v.dtype, .ndim = t->v.ndim, .tag = tag};
    memcpy(m->head.shape, t->v.shape, sizeof(*t->v.shape) * (size_t)t->v.ndim);
    m->nbytes = m->head.numel * ms_dtype_size(t->v.dtype);
    if (c->channel == NULL) { /* a fake group: nobody sends or receives */
        m->done = true;
        *out = m;
        return MS_OK;
    }
    ms_status status =
        msi_host_view_begin(&m->host, &t->v, sends ? MSI_HOST_READS : MSI_HOST_WRITES);

    if (status != MS_OK) {
        free(m);
        return status;
    }
    m->t = ms_tensor_retain(t);
    t->v.storage->version += !sends;
    msi_message_append(m);
    *out = m;
    msi_messages_progress();
    return MS_OK;
}

ms_status ms_comm_send(ms_message **out, ms_comm *c, ms_tensor *t, int32_t to, int32_t tag)
{
    *out = NULL;
    MS_TRY(check(c, "send", t, to == MSI_ANY_RANK ? c->size : to));
    return begin(out, c, t, to, tag, true);
}

ms_status ms_comm_recv(ms_message **out, ms_comm *c, ms_tensor *t, int32_t from, int32_t tag)
{
    *out = NULL;
    MS_TRY(check(c, "recv", t, from));
    MS_TRY(msi_tensor_check_write(t, "recv"));
    return begin(out, c, t, from, tag, false);
}

/* Everyone it may come from, or go to, has left. */
static bool is_alone(const ms_message *m)
{
    for (int32_t q = 0; q < m->comm->size; q++) {
        if (q != m->comm->rank && (m->peer == q || m->peer == MSI_ANY_RANK) &&
            !msi_member_left(m->comm, q)) {
            return false;
        }
    }
    return true;
}

static bool may_go_on(void *user)
{
    const ms_message *m = user;

    return m->done || is_alone(m) || msi_message_may_move(m);
}

static ms_status outcome(const ms_message *m)
{
    return m->status == MS_OK ? MS_OK : MS_FAIL(m->status, "%s", m->error);
}

ms_status ms_message_wait(ms_message *m)
{
    char text[MSI_OPERATION_TEXT + MSI_MESSAGE_TEXT];

    while (!m->done) {
        const bool alone = is_alone(m); /* before the last look: see [Note: status first] */
        ms_comm *c = m->comm;

        msi_messages_progress();
        if (m->done) {
            break;
        }
        message_text(m, text, sizeof(text));
        if (alone) {
            return msi_member_left_error(
                c, m->peer != MSI_ANY_RANK ? m->peer : (c->rank + 1) % c->size, text);
        }
        MS_TRY(msi_comm_wait_in(c, c->seq, text, may_go_on, m));
    }
    return outcome(m);
}

ms_status ms_message_test(ms_message *m, bool *done)
{
    msi_messages_progress();
    *done = m->done;
    return m->done ? outcome(m) : MS_OK;
}

int32_t ms_message_peer(const ms_message *m)
{
    return m->peer;
}

void ms_message_free(ms_message *m)
{
    if (m == NULL) {
        return;
    }
    if (m->done) {
        free(m);
    } else {
        m->freed = true;
    }
}
