/* The groups of a context, and leaving them. */
#include "group.h"

#include "backend.h"

#include <stdlib.h>

/* -- leaving ----------------------------------------------------------------------------------- */

static bool all_have_left(const ms_comm *c)
{
    for (int32_t q = 0; q < c->n_members; q++) {
        if (atomic_load(&c->members[q].left) == 0) {
            return false;
        }
    }
    return true;
}

/* The launcher compares the world when all have left. For other groups, whose memory it does not
 * see, the last member compares. */
static void leave(ms_comm *c, uint64_t how)
{
    if (c->dist->gone != MSI_GONE_NOT || atomic_exchange(&c->members[c->own].left, how) != 0) {
        return;
    }
    if (c->hosts.n > 1) { /* stored there before this one looks: the later of two sees both */
        msi_comm_put(c, MSI_MIRROR_WORDS, (const void *)&c->members[c->own].left, 8);
        msi_job_flush(c->job);
    }
    if (!msi_comm_broken(c) && all_have_left(c)) {
        msi_members_left_alike(c);
    }
    msi_comm_ring(c);
}

void msi_groups_leave(void)
{
    if (msi_groups_peek() != NULL) { /* finish promised work before leaving */
        msi_drain(msi_context_peek());
    }
    msi_groups_end();
}

void msi_groups_end(void)
{
    const msi_groups *g = msi_groups_peek();

    for (ms_comm *c = g != NULL ? g->others : NULL; c != NULL; c = c->next) {
        leave(c, MSI_MEMBER_LEFT_JOB);
    }
}

/* -- state in the context ---------------------------------------------------------------------- */

void msi_comm_discard(ms_comm *c)
{
    msi_messages_drop(c);
    leave(c, MSI_MEMBER_FREED);
    msi_devices_leave(c);
    msi_segment_free(&c->memory);
    free(c);
}

static void groups_close(void *state)
{
    msi_groups *g = state;

    msi_messages_drop(NULL);
    msi_groups_leave();
    while (g->others != NULL) {
        ms_comm *c = g->others;

        g->others = c->next;
        msi_comm_discard(c);
    }
    if (g->world != NULL) {
        msi_devices_leave(g->world);
    }
    free(g->world);
    free(g->self);
    free(g);
}

msi_groups *msi_groups_state(ms_context *ctx)
{
    if (ctx->room[MSI_ROOM_COMM] == NULL) {
        msi_groups *g = calloc(1, sizeof(*g));

        if (g == NULL) {
            msi_fail(MS_OUT_OF_MEMORY, "no memory for the groups of this rank");
            return NULL;
        }
        ctx->room[MSI_ROOM_COMM] = g;
        ctx->close[MSI_ROOM_COMM] = groups_close;
    }
    return ctx->room[MSI_ROOM_COMM];
}

msi_groups *msi_groups_peek(void)
{
    const ms_context *ctx = msi_context_peek();

    return ctx != NULL ? ctx->room[MSI_ROOM_COMM] : NULL;
}
