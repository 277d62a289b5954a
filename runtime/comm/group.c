/* Groups: the world, this rank alone, fake and split ones. */
#include "group.h"

#include <stdlib.h>
#include <string.h>

/* -- making groups ----------------------------------------------------------------------------- */

static void init(ms_comm *c, const msi_dist *d, int32_t n_members)
{
    static _Atomic uint64_t serials;

    c->magic = MSI_MAGIC_COMM;
    c->serial = ++serials;
    c->job = d->job;
    c->dist = d;
    c->n_members = n_members;
    c->checked = (uint64_t *)(void *)(c + 1);
    c->in_job = (int32_t *)(void *)(c->checked + n_members);
    c->targets = c->in_job + n_members;
    c->hosts = (msi_hosts){.n = 1, .per_host = n_members};
}

/* Bytes of a group, without what its members share. */
static size_t comm_bytes(int32_t n_members)
{
    return sizeof(ms_comm) + (sizeof(uint64_t) + 2 * sizeof(int32_t)) * (size_t)n_members;
}

/* An empty group with room for `n_members`. */
static ms_comm *comm_new(const msi_dist *d, int32_t n_members)
{
    ms_comm *c = calloc(1, comm_bytes(n_members));

    if (c != NULL) {
        init(c, d, n_members);
    }
    return c;
}

static ms_status make_world(ms_comm **out, const msi_dist *d)
{
    ms_comm *c = comm_new(d, d->job->world);

    if (c == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the group of all ranks");
    }
    msi_members_of_job(c, d->job, d->rank, c->in_job, c->checked);
    c->via = c->size > 1 ? &msi_transport_shm : &msi_transport_alone;
    msi_comm_find_hosts(c);
    *out = c;
    return MS_OK;
}

/* A group in which only this rank exists, in one allocation. */
static ms_status make_alone(ms_comm **out, const msi_dist *d, int32_t rank, int32_t size)
{
    const int64_t members = msi_round_up((int64_t)comm_bytes(1), 64);
    const size_t nbytes = (size_t)msi_round_up(members + msi_members_bytes(1), 64);
    ms_comm *c = aligned_alloc(64, nbytes);

    if (c == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for this rank's own group");
    }
    memset(c, 0, nbytes);
    init(c, d, 1);
    c->via = &msi_transport_alone;
    c->rank = rank;
    c->size = size;
    c->in_job[0] = d->rank;
    c->is_alone = true;
    msi_members_place(c, (char *)c + members);
    *out = c;
    return MS_OK;
}

/* This rank's groups and place in its job, joining if needed. */
static ms_status joined(msi_groups **g, const msi_dist **d)
{
    MS_TRY(ms_dist_join());
    *d = msi_dist_state();
    *g = msi_groups_state((*d)->ctx);
    return *g != NULL ? MS_OK : MS_OUT_OF_MEMORY;
}

ms_status ms_comm_world(ms_comm **out)
{
    const msi_dist *d;
    msi_groups *g;

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

ms_status ms_comm_self(ms_comm **out)
{
    const msi_dist *d;
    msi_groups *g;

    *out = NULL;
    MS_TRY(joined(&g, &d));
    if (g->self == NULL) {
        MS_TRY(make_alone(&g->self, d, 0, 1));
    }
    *out = g->self;
    return MS_OK;
}

/* Add it to the context's list. */
static void keep(msi_groups *g, ms_comm *c)
{
    c->next = g->others;
    g->others = c;
}

/* A fake group, whose member q is rank first + q step of a planned job. */
static ms_status make_fake(ms_comm **out, int32_t rank, int32_t size, int32_t first, int32_t step)
{
    const msi_dist *d;
    msi_groups *g;

    MS_TRY(joined(&g, &d));
    if (d->gone != MSI_GONE_NOT) {
        return msi_gone_error(d);
    }
    MS_TRY(make_alone(out, d, rank, size));
    (*out)->is_fake = true;
    (*out)->fake_first = first;
    (*out)->fake_step = step;
    keep(g, *out);
    return MS_OK;
}

ms_status ms_comm_fake(ms_comm **out, int32_t rank, int32_t world)
{
    *out = NULL;
    if (world < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "a fake group of %d ranks, expected at least 1", (int)world);
    }
    if (rank < 0 || rank >= world) {
        return MS_FAIL(MS_VALUE_ERROR, "rank %d of a fake group, expected 0 to %d", (int)rank,
                       (int)world - 1);
    }
    return make_fake(out, rank, world, 0, 1);
}

ms_status ms_comm_fake_world(int32_t rank, int32_t world)
{
    ms_comm *c;
    msi_groups *g;

    MS_TRY(ms_comm_fake(&c, rank, world));
    g = msi_groups_peek();
    if (g->world != NULL || c->dist->job->world > 1) {
        ms_comm_free(c);
        return MS_FAIL(MS_RUNTIME_ERROR, "this process has a group of all ranks already");
    }
    g->others = c->next; /* it is freed with the context, like every group of all ranks */
    c->next = NULL;
    g->world = c;
    return MS_OK;
}

/* -- splitting --------------------------------------------------------------------------------- */

/* A member's arguments to split. */
typedef struct wish {
    int32_t color, key;
    int32_t refused; /* it has no memory */
    int32_t rank;    /* in the parent */
} wish;

/* By color, key, rank in the parent. */
static int compare_wishes(const void *left, const void *right)
{
    const wish *a = left, *b = right;

    if (a->color != b->color) {
        return a->color < b->color ? -1 : 1;
    }
    if (a->key != b->key) {
        return a->key < b->key ? -1 : 1;
    }
    return a->rank - b->rank;
}

/* Index after the last with the color of wish `i`. */
static int32_t end_of(const wish *all, int32_t n, int32_t i)
{
    int32_t end = i + 1;

    while (end < n && all[end].color == all[i].color) {
        end++;
    }
    return end;
}

static int64_t place_bytes(int32_t size)
{
    return msi_round_up(msi_members_bytes(size), 4096);
}

/* Bytes of all groups. */
static int64_t total_bytes(const wish *all, int32_t n)
{
    int64_t nbytes = 0;

    for (int32_t i = 0, end; i < n; i = end) {
        end = end_of(all, n, i);
        nbytes += all[i].color < 0 ? 0 : place_bytes(end - i);
    }
    return nbytes;
}

/* The group of this rank's color. */
static void fill(ms_comm *c, const ms_comm *parent, const wish *all, int32_t n)
{
    int64_t at = 0;

    for (int32_t i = 0, end; i < n; i = end) {
        end = end_of(all, n, i);
        if (all[i].color < 0) {
            continue;
        }
        for (int32_t q = i; q < end; q++) {
            c->in_job[q - i] = parent->in_job[all[q].rank];
            if (all[q].rank == parent->rank) {
                c->rank = c->own = q - i;
                c->size = c->n_members = end - i;
            }
        }
        if (c->size > 0) {
            c->is_alone = c->size == 1;
            c->via = c->is_alone ? &msi_transport_alone : &msi_transport_shm;
            c->id = msi_mix64(msi_mix64(parent->id ^ parent->seq) ^ (uint64_t)i) | 1;
            msi_members_place(c, c->memory.rw + at);
            msi_comm_find_hosts(c);
            return;
        }
        at += place_bytes(end - i);
    }
}

/* Exchange all members' wishes, sorted. All fail if one has no memory. */
static ms_status exchange_wishes(ms_comm *parent, const wish *own, wish *all)
{
    MS_TRY(msi_comm_gather_bytes(parent, "split", own, sizeof(*own), all));
    for (int32_t q = 0; q < parent->size; q++) {
        if (all[q].refused) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "rank %d has no memory for a group",
                           (int)parent->in_job[q]);
        }
    }
    qsort(all, (size_t)parent->size, sizeof(*all), compare_wishes);
    return MS_OK;
}

ms_status ms_comm_split(ms_comm **out, ms_comm *parent, int32_t color, int32_t key)
{
    if (ms_comm_is_fake(parent)) {
        *out = NULL;
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "split: the colors of the other ranks of a fake group are not known; in a "
                       "plan use init_device_mesh or new_group, otherwise make the smaller group a "
                       "fake one, too");
    }
    wish all[parent->size];
    msi_segment memory = {.fd = -1};
    ms_comm *c = comm_new(parent->dist, parent->size);
    msi_groups *g = msi_groups_state(parent->dist->ctx);
    const wish own = {color, key, c == NULL || g == NULL, parent->rank};
    ms_status status;

    *out = NULL;
    MS_TRY_GOTO(exchange_wishes(parent, &own, all), failed);
    MS_TRY_GOTO(msi_segment_new(&memory, parent, total_bytes(all, parent->size)), failed);
    if (color < 0) {
        msi_segment_free(&memory);
        free(c);
        return MS_OK;
    }
    c->memory = memory;
    c->size = 0;
    fill(c, parent, all, parent->size);
    keep(g, c);
    *out = c;
    return MS_OK;
failed:
    free(c);
    return status;
}

static ms_status fake_subgroup(ms_comm **out, const ms_comm *parent, const int32_t *ranks,
                               int32_t n, int32_t place)
{
    const int32_t step = n > 1 ? ranks[1] - ranks[0] : 1;

    for (int32_t q = 1; q < n; q++) {
        if (step < 1 || ranks[q] - ranks[q - 1] != step) {
            return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                           "a part of a fake group has equally spaced ranks in ascending order, "
                           "but %d follows %d",
                           (int)ranks[q], (int)ranks[q - 1]);
        }
    }
    return make_fake(out, place, n, msi_comm_rank_in_job(parent, ranks[0]),
                     step * parent->fake_step);
}

ms_status ms_comm_subgroup(ms_comm **out, ms_comm *parent, const int32_t *ranks, int32_t n)
{
    int32_t place = -1, least = -1;

    *out = NULL;
    for (int32_t q = 0; q < n; q++) {
        place = ranks[q] == parent->rank ? q : place;
        least = q == 0 || ranks[q] < least ? ranks[q] : least;
    }
    if (n > 0 && place < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "rank %d is not in the list of its group's ranks",
                       (int)parent->rank);
    }
    if (!ms_comm_is_fake(parent)) {
        return ms_comm_split(out, parent, least, place);
    }
    return n > 0 ? fake_subgroup(out, parent, ranks, n, place) : MS_OK;
}

/* Its link in the list of owned groups; NULL: none. */
static ms_comm **place_of(const ms_comm *c)
{
    msi_groups *g = msi_groups_peek();
    ms_comm **at = g != NULL ? &g->others : NULL;

    while (at != NULL && *at != c) {
        at = *at != NULL ? &(*at)->next : NULL;
    }
    return at;
}

double ms_comm_serial(const ms_comm *c)
{
    const msi_groups *g = msi_groups_peek();
    const bool is_there =
        g != NULL && c != NULL && (c == g->world || c == g->self || place_of(c) != NULL);

    return is_there ? (double)c->serial : 0; /* read only now, as `c` may be freed */
}

static void discard_unheld(ms_comm *c)
{
    ms_comm **at = c->freed_by_caller && c->n_holders == 0 ? place_of(c) : NULL;

    if (at != NULL) {
        *at = c->next;
        msi_comm_discard(c);
    }
}

void ms_comm_free(ms_comm *c)
{
    if (c != NULL && place_of(c) != NULL) { /* else borrowed, or closed with its context */
        c->freed_by_caller = true;
        discard_unheld(c);
    }
}

void ms_comm_retain(ms_comm *c)
{
    c->n_holders++;
}

void ms_comm_release(ms_comm *c)
{
    if (c->n_holders > 0) {
        c->n_holders--;
        discard_unheld(c);
    }
}

void ms_comm_abandon(ms_comm *c)
{
    if (c != NULL && place_of(c) != NULL) {
        c->abandoned = true;
    }
}

void ms_comm_reap(void)
{
    msi_groups *g = msi_groups_peek();

    for (ms_comm **at = g != NULL ? &g->others : NULL; at != NULL && *at != NULL;) {
        ms_comm *c = *at;

        if (c->abandoned && c->n_holders == 0 && c->n_graphs == 0 && !msi_messages_pending(c)) {
            *at = c->next;
            msi_comm_discard(c);
        } else {
            at = &c->next;
        }
    }
}

/* A recorded collective. */
typedef struct graph_use {
    ms_comm *comm;
    double serial;
} graph_use;

void *msi_comm_use_in_graph(ms_comm *c)
{
    graph_use *use = malloc(sizeof(*use));

    if (use != NULL) {
        *use = (graph_use){c, ms_comm_serial(c)};
        c->n_graphs++;
    }
    return use;
}

void msi_comm_end_use(void *user)
{
    graph_use *use = user;

    if (ms_comm_serial(use->comm) == use->serial) { /* else freed by the caller */
        use->comm->n_graphs--;
    }
    free(use);
}
