/* The rendezvous of ranks that another launcher started: common to all ways of meeting. */
#include "rendezvous.h"

#include "job.h"
#include "rendezvous_meet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const msi_meeting *const meetings[] = {
    [MSI_MEET_MASTER] = &msi_meet_master,
    [MSI_MEET_STORE] = &msi_meet_store,
    [MSI_MEET_PMIX] = &msi_meet_pmix,
};

/* -- exchanges --------------------------------------------------------------------------------- */

ms_status msi_rendezvous_exchange(msi_rendezvous *r, const char *key, const void *in,
                                  int64_t nbytes, void *all)
{
    if (nbytes < 0 || nbytes > MSI_RENDEZVOUS_BYTES || strlen(key) >= MSI_RENDEZVOUS_KEY) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "cannot exchange %lld bytes as '%s', expected at most %d bytes and %d of "
                       "the key",
                       (long long)nbytes, msi_foreign_name(key), MSI_RENDEZVOUS_BYTES,
                       MSI_RENDEZVOUS_KEY - 1);
    }
    if (r->meeting == NULL) {
        memcpy(all, in, (size_t)nbytes);
        return MS_OK;
    }
    return r->meeting->exchange(r->state, key, in, nbytes, all, r->timeout_ns);
}

ms_status msi_rendezvous_same(msi_rendezvous *r, const char *what, const char *text)
{
    enum { BYTES = 128 };
    char own[BYTES], all[MS_MAX_RANKS][BYTES], key[MSI_RENDEZVOUS_KEY];
    char *theirs;

    memset(own, 0, sizeof(own));
    snprintf(own, sizeof(own), "%s", text);
    snprintf(key, sizeof(key), "same %s", what);
    MS_TRY(msi_rendezvous_exchange(r, key, own, BYTES, all));
    for (int32_t q = 1; q < r->place.world; q++) {
        if (memcmp(all[0], all[q], BYTES) != 0) {
            theirs = all[q];
            theirs[BYTES - 1] = all[0][BYTES - 1] = '\0';
            return MS_FAIL(MS_COMM_ERROR,
                           "%s of rank 0 is %s, but that of rank %d is %s: all ranks need the same",
                           what, msi_foreign_name(all[0]), (int)q, msi_foreign_name(theirs));
        }
    }
    return MS_OK;
}

/* -- opening ----------------------------------------------------------------------------------- */

/* The first exchange has the same size in all versions. */
static ms_status agree(msi_rendezvous *r)
{
    uint64_t own = 0, all[MS_MAX_RANKS];

    MS_TRY(msi_rendezvous_same(r, "version of moonshard", ms_version()));
    if (getrandom(&own, sizeof(own), 0) != sizeof(own)) {
        own = (uint64_t)msi_now_ns() ^ (uint64_t)getpid();
    }
    MS_TRY(msi_rendezvous_exchange(r, "nonce", &own, sizeof(own), all));
    r->nonce = all[0];
    return MS_OK;
}

ms_status msi_rendezvous_open(msi_rendezvous **out, const msi_place *place, int64_t timeout_ns)
{
    msi_rendezvous *r = calloc(1, sizeof(*r));
    ms_status status;

    *out = NULL;
    if (r == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a rendezvous");
    }
    r->place = *place;
    r->timeout_ns = timeout_ns;
    if (place->world > 1) {
        const msi_meeting *meeting = meetings[place->meet];

        MS_TRY_GOTO(meeting->open(&r->state, &r->place, timeout_ns), failed);
        r->meeting = meeting;
    }
    MS_TRY_GOTO(agree(r), failed);
    *out = r;
    return MS_OK;
failed:
    msi_rendezvous_close(r);
    return status;
}

void msi_rendezvous_close(msi_rendezvous *r)
{
    if (r != NULL && r->meeting != NULL) {
        r->meeting->close(r->state);
    }
    free(r);
}

/* -- hosts ------------------------------------------------------------------------------------- */

typedef struct card {
    int32_t local_rank, local_world;
    int32_t group; /* the launcher's number of the host, or -1 */
    int32_t unused;
    uint64_t host; /* hash of the kernel's boot and the network namespace */
    char name[64];
} card;

static uint64_t host_id(void)
{
    char text[256] = {0};
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t n = 0;

    if (boot != NULL) {
        n = fread(text, 1, 64, boot);
        fclose(boot);
    }
    const ssize_t link = readlink("/proc/self/ns/net", text + n, sizeof(text) - n);

    n += link > 0 ? (size_t)link : 0;
    return ms_hash_bytes(text, (int64_t)n);
}

static card own_card(const msi_place *p)
{
    card c = {.local_rank = p->local_rank,
              .local_world = p->local_world,
              .group = p->host,
              .host = host_id()};

    if (gethostname(c.name, sizeof(c.name) - 1) != 0) {
        snprintf(c.name, sizeof(c.name), "unknown");
    }
    return c;
}

/* Ranks of one host name the same number of ranks, and each local rank once. */
static ms_status check_hosts(const msi_place *all, const card *cards, int32_t n_hosts)
{
    const int32_t world = all[0].world;

    for (int32_t h = 0; h < n_hosts; h++) {
        int32_t holder[MS_MAX_RANKS], n = 0, first = -1;

        memset(holder, -1, sizeof(holder));
        for (int32_t r = 0; r < world; r++) {
            const int32_t l = all[r].local_rank;

            if (all[r].host != h) {
                continue;
            }
            first = first < 0 ? r : first;
            n++;
            if (l >= 0 && l < MS_MAX_RANKS && holder[l] >= 0) {
                return MS_FAIL(MS_COMM_ERROR,
                               "ranks %d and %d are both local rank %d of host %s, expected each "
                               "local rank once (%s)",
                               (int)holder[l], (int)r, (int)l, msi_foreign_name(cards[r].name),
                               all[0].source);
            }
            if (l >= 0 && l < MS_MAX_RANKS) {
                holder[l] = r;
            }
        }
        for (int32_t r = first; r < world; r++) {
            if (all[r].host == h && all[r].local_world != n) {
                return MS_FAIL(MS_COMM_ERROR,
                               "host %s has %d ranks, but rank %d was started as one of %d ranks "
                               "of its host",
                               msi_foreign_name(cards[r].name), (int)n, (int)r,
                               (int)all[r].local_world);
            }
        }
        if (n != all[0].local_world) {
            return MS_FAIL(MS_COMM_ERROR,
                           "host %s has %d ranks, host %s has %d: start the same number of ranks "
                           "on every host",
                           msi_foreign_name(cards[0].name), (int)all[0].local_world,
                           msi_foreign_name(cards[first].name), (int)n);
        }
    }
    return MS_OK;
}

ms_status msi_rendezvous_places(msi_rendezvous *r, msi_place *own, msi_place *all)
{
    const card mine = own_card(&r->place);
    card cards[MS_MAX_RANKS];
    int32_t n_hosts = 0;

    MS_TRY(msi_rendezvous_exchange(r, "places", &mine, sizeof(mine), cards));
    for (int32_t q = 0; q < r->place.world; q++) {
        int32_t before = 0;

        while (before < q &&
               (cards[before].host != cards[q].host || cards[before].group != cards[q].group)) {
            before++;
        }
        cards[q].name[sizeof(cards[q].name) - 1] = '\0';
        all[q] = r->place;
        all[q].rank = q;
        all[q].local_rank = cards[q].local_rank;
        all[q].local_world = cards[q].local_world;
        all[q].host = before < q ? all[before].host : n_hosts++;
    }
    for (int32_t q = 0; q < r->place.world; q++) {
        all[q].n_hosts = n_hosts;
    }
    MS_TRY(check_hosts(all, cards, n_hosts));
    own->host = all[r->place.rank].host;
    own->n_hosts = n_hosts;
    return MS_OK;
}
