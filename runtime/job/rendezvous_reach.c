/* Connecting to the master, and failures that all ways of meeting share. */
#include "job.h"
#include "rendezvous_meet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *msi_seconds_text(int64_t ns)
{
    char *text = msi_part_text();

    snprintf(text, MSI_PART_TEXT, "%.3g", (double)ns / 1e9);
    return text;
}

/* A port of the range for outgoing connections can be connected to itself while nobody listens. */
static bool is_own_end(int32_t fd)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t n = sizeof(own), m = sizeof(peer);

    return getsockname(fd, (struct sockaddr *)&own, &n) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer, &m) == 0 && n == m &&
           memcmp(&own, &peer, n) == 0;
}

ms_status msi_reach_master(int32_t *fd, const msi_place *p, int64_t timeout_ns)
{
    const int64_t deadline_ns = msi_now_ns() + timeout_ns;
    const struct timespec moment = {.tv_nsec = 10000000};
    msi_address at;
    char text[MSI_ADDRESS_TEXT];
    int error;

    *fd = -1;
    if (msi_address_find(&at, p->master, p->port) != MS_OK) {
        return msi_fail_prefix(MS_COMM_ERROR, "%s: ", p->master_from);
    }
    while ((error = msi_net_connect(fd, &at, deadline_ns)) == 0 && is_own_end(*fd)) {
        close(*fd);
        *fd = -1;
        nanosleep(&moment, NULL);
    }
    if (error != 0) {
        return MS_FAIL(MS_COMM_ERROR,
                       "rank %d of %d cannot connect to %s within %s s: %s; check that rank 0 "
                       "runs on the host given by %s, and that no firewall blocks the port",
                       (int)p->rank, (int)p->world, msi_address_text(&at, text, sizeof(text)),
                       msi_seconds_text(timeout_ns), strerrordesc_np(error), p->master_from);
    }
    return MS_OK;
}

ms_status msi_fail_missing(const msi_place *p, const bool *missing, const char *at,
                           int64_t timeout_ns)
{
    int32_t rank[MS_MAX_RANKS], n = 0;
    char list[160];

    for (int32_t r = 0; r < p->world; r++) {
        if (missing[r]) {
            rank[n++] = r;
        }
    }
    return MS_FAIL(MS_COMM_ERROR,
                   "%s of %d %s not come to %s within %s s; check that every rank was started, is "
                   "still running, and can reach this address",
                   msi_ranks_list(rank, n, list, sizeof(list)), (int)p->world,
                   n == 1 ? "has" : "have", at, msi_seconds_text(timeout_ns));
}
