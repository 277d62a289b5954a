/* Members on several hosts: each host has a copy of the group's memory, and a member on it that
 * receives what the members elsewhere write (mirror.h). */
#include "group.h"

static int32_t host_of(const ms_comm *c, int32_t q)
{
    return msi_job_host_of(c->job, c->in_job[q]);
}

/* Number of members before q on its host. */
static int32_t place_on_host(const ms_comm *c, int32_t q)
{
    int32_t n = 0;

    for (int32_t i = 0; i < q; i++) {
        n += host_of(c, i) == host_of(c, q);
    }
    return n;
}

/* Members on the host of member q. */
static int32_t members_beside(const ms_comm *c, int32_t q)
{
    int32_t n = 0;

    for (int32_t i = 0; i < c->size; i++) {
        n += host_of(c, i) == host_of(c, q);
    }
    return n;
}

/* The member beside q that has the same place as this one, for one connection per pair of ranks. */
static int32_t target_beside(const ms_comm *c, int32_t q)
{
    const int32_t place = place_on_host(c, c->rank) % members_beside(c, q);

    for (int32_t i = 0; i < c->size; i++) {
        if (host_of(c, i) == host_of(c, q) && place_on_host(c, i) == place) {
            return i;
        }
    }
    return q;
}

void msi_comm_find_hosts(ms_comm *c)
{
    bool even = true;

    c->hosts = (msi_hosts){.n = 0, .leader = -1};
    for (int32_t q = 0; q < c->size; q++) {
        const bool is_first = place_on_host(c, q) == 0,
                   is_here = host_of(c, q) == host_of(c, c->rank);

        if (is_first && is_here) {
            c->hosts.leader = q;
            c->hosts.own = c->hosts.n;
        }
        if (is_first) {
            c->targets[c->hosts.n++] = is_here ? -1 : c->in_job[target_beside(c, q)];
        }
        even = even && members_beside(c, q) == members_beside(c, 0) &&
               q / members_beside(c, 0) == c->hosts.n - 1;
    }
    c->hosts.per_host = even ? c->size / c->hosts.n : 0;
}

const msi_hosts *msi_comm_hosts(const ms_comm *c)
{
    return &c->hosts;
}

/* -- sending ----------------------------------------------------------------------------------- */

static bool can_send(const ms_comm *c)
{
    return c->hosts.n > 1 && c->dist->gone == MSI_GONE_NOT;
}

void msi_comm_put_all(const ms_comm *c, msi_mirror_kind kind, const void *at, int64_t nbytes)
{
    for (int32_t h = 0; h < c->hosts.n && can_send(c); h++) {
        if (c->targets[h] >= 0) {
            msi_mirror_put(c->job->mirror, c->targets[h], kind, at, nbytes);
        }
    }
}

static int32_t target_of(const ms_comm *c, int32_t q)
{
    int32_t h = 0;

    while (c->targets[h] < 0 || msi_job_host_of(c->job, c->targets[h]) != host_of(c, q)) {
        h++;
    }
    return c->targets[h];
}

void msi_comm_put_to(const ms_comm *c, int32_t q, msi_mirror_kind kind, const void *at,
                     int64_t nbytes)
{
    if (can_send(c) && !msi_job_is_local(c->job, c->in_job[q])) {
        msi_mirror_put(c->job->mirror, target_of(c, q), kind, at, nbytes);
    }
}

void msi_comm_push(const ms_comm *c)
{
    for (int32_t h = 0; h < c->hosts.n && can_send(c); h++) {
        if (c->targets[h] >= 0) {
            msi_mirror_push(c->job->mirror, c->targets[h]);
        }
    }
}

void msi_comm_share(ms_comm *c, const void *at, int64_t nbytes)
{
    msi_comm_put(c, MSI_MIRROR_DATA, at, nbytes);
}

void msi_comm_share_words(ms_comm *c, const void *at, int64_t nbytes)
{
    msi_comm_put(c, MSI_MIRROR_WORDS, at, nbytes);
}

void msi_comm_share_with(ms_comm *c, int32_t q, const void *at, const void *from, int64_t nbytes)
{
    if (can_send(c)) {
        msi_mirror_put_from(c->job->mirror, target_of(c, q), MSI_MIRROR_DATA, at, from, nbytes);
    }
}
