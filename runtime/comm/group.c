/* Groups: that of all ranks, that of one. */
#include "group.h"

#include <stdlib.h>
#include <string.h>

/* -- the room's state -------------------------------------------------------------------------- */

typedef struct groups {
    ms_comm *world, *self;
} groups;

static void comm_free(ms_comm *c)
{
    if (c == NULL) {
        return;
    }
    msi_live_remove(&c->live);
    if (c->is_self) {
        free(c->members);
    }
    free(c);
}

static void groups_close(void *state)
{
    groups *g = state;

    comm_free(g->world);
    comm_free(g->self);
    free(g);
}

static groups *groups_state(ms_context *ctx)
{
    if (ctx->room[MSI_ROOM_COMM] == NULL) {
        groups *g = calloc(1, sizeof(*g));

        if (g == NULL) {
            msi_fail(MS_OUT_OF_MEMORY, "no memory for the groups of this rank");
            return NULL;
        }
        ctx->room[MSI_ROOM_COMM] = g;
        ctx->close[MSI_ROOM_COMM] = groups_close;
    }
    return ctx->room[MSI_ROOM_COMM];
}

/* -- making groups ----------------------------------------------------------------------------- */

/* A group of that size with nothing in it. */
static ms_comm *comm_new(const msi_dist *d, int32_t size)
{
    const size_t each = sizeof(uint64_t) + sizeof(int32_t);
    ms_comm *c = calloc(1, sizeof(*c) + each * (size_t)size);

    if (c != NULL) {
        c->job = d->job;
        c->dist = d;
        c->size = size;
        c->checked = (uint64_t *)(void *)(c + 1);
        c->slot = (int32_t *)(void *)(c->checked + size);
    }
    return c;
}

static ms_status make_world(ms_comm **out, const msi_dist *d)
{
    ms_comm *c = comm_new(d, d->job->world);

    if (c == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the group of all ranks");
    }
    msi_members_of_job(c, d->job, d->rank, c->slot, c->checked);
    msi_live_add(&c->live, MSI_LIVE_COMM, c);
    *out = c;
    return MS_OK;
}

static ms_status make_self(ms_comm **out, const msi_dist *d)
{
    ms_comm *c = comm_new(d, 1);
    const size_t nbytes = (size_t)msi_round_up(msi_members_bytes(1), 64);
    void *memory = aligned_alloc(64, nbytes);

    if (c == NULL || memory == NULL) {
        free(c);
        free(memory);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for this rank's own group");
    }
    memset(memory, 0, nbytes);
    c->slot[0] = d->rank;
    c->is_self = true;
    msi_members_place(c, memory);
    msi_live_add(&c->live, MSI_LIVE_COMM, c);
    *out = c;
    return MS_OK;
}

/* The groups of a context that has joined; NULL: the error says why. */
static ms_status joined(groups **g, const msi_dist **d)
{
    MS_TRY(ms_dist_join());
    *d = msi_dist_state();
    *g = groups_state((*d)->ctx);
    return *g != NULL ? MS_OK : MS_OUT_OF_MEMORY;
}

ms_status ms_comm_world(ms_comm **out)
{
    const msi_dist *d;
    groups *g;

    *out = NULL;
    MS_TRY(joined(&g, &d));
    if (d->gone != MSI_GONE_NOT) {
        return msi_gone_error(d);
    }
    if (g->world == NULL) {
        MS_TRY(make_world(&g->world, d));
    }
    *out = g->world;
    return MS_OK;
}

ms_comm *msi_comm_world_peek(void)
{
    const ms_context *ctx = msi_context_peek();
    const groups *g = ctx != NULL ? ctx->room[MSI_ROOM_COMM] : NULL;

    return g != NULL ? g->world : NULL;
}

ms_status ms_comm_self(ms_comm **out)
{
    const msi_dist *d;
    groups *g;

    *out = NULL;
    MS_TRY(joined(&g, &d));
    if (g->self == NULL) {
        MS_TRY(make_self(&g->self, d));
    }
    *out = g->self;
    return MS_OK;
}

/* -- what they are ----------------------------------------------------------------------------- */

int32_t ms_comm_rank(const ms_comm *comm)
{
    return comm->rank;
}

int32_t ms_comm_size(const ms_comm *comm)
{
    return comm->size;
}

int32_t msi_comm_count_model(ms_comm *comm)
{
    return ++comm->n_models;
}

void msi_comm_count(ms_comm *comm, uint32_t kind)
{
    if (kind < MSI_COLL_KINDS) {
        comm->counts[kind]++;
    }
}

void ms_comm_counts(const ms_comm *comm, int64_t *counts5)
{
    const int64_t *n = comm->counts;

    counts5[0] = n[MSI_COLL_ALL_GATHER] + n[MSI_COLL_UNSHARD];
    counts5[1] = n[MSI_COLL_REDUCE_SCATTER] + n[MSI_COLL_REDUCE_UNIT];
    counts5[2] = n[MSI_COLL_ALL_REDUCE] + n[MSI_COLL_REDUCE_FULL];
    counts5[3] = n[MSI_COLL_BROADCAST];
    counts5[4] = n[MSI_COLL_BARRIER];
}

double ms_comm_wait_seconds(const ms_comm *comm)
{
    return (double)comm->wait_ns * 1e-9;
}
