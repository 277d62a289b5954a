/* Starting the ranks of a job: of one host; as one of several hosts; or, for tests, several hosts
 * that are all this machine. */
#include "launch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The launcher of another host: ends with its ranks. Returns in ranks only. */
static ms_status launch_beside(msi_dist *d, const msi_start *s, const ms_hosts *hosts,
                               int32_t *rank)
{
    ms_launch *launch = NULL;
    const char *cause;
    int32_t code = 1;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const ms_status status = msi_launch_start(&launch, d, s, hosts, rank);

    if (*rank >= 0) {
        return status;
    }
    if (status != MS_OK || ms_launch_wait(launch, &code, &cause) != MS_OK) {
        fprintf(stderr, "moonshard: host %d: %s\n", (int)hosts->host, ms_error_message());
    }
    _exit(code);
}

/* MS_TEST_HOSTS=2: the ranks of a job are on two hosts, which are both this one. */
static ms_status start_hosts(ms_launch **out, msi_dist *d, const msi_start *all, int32_t *rank)
{
    const int32_t n_hosts = (int32_t)msi_switch_within("MS_TEST_HOSTS", 1, 1, MSI_TEST_HOSTS);
    ms_hosts hosts = {
        .n_hosts = n_hosts, .address = "127.0.0.1", .secret = "test", .timeout_s = 30};
    pid_t beside[MSI_TEST_HOSTS] = {0};
    msi_start here = *all;

    if (n_hosts == 1 || all->n % n_hosts != 0) {
        return msi_launch_start(out, d, all, NULL, rank);
    }
    here.n = all->n / n_hosts;
    MS_TRY(msi_net_listen_anywhere(&hosts.listener, hosts.address, &hosts.port));
    for (int32_t h = 1; h < n_hosts; h++) {
        const pid_t pid = fork();

        if (pid == 0) {
            close(hosts.listener);
            hosts.listener = 0;
            hosts.host = h;
            return launch_beside(d, &here, &hosts, rank);
        }
        if (pid < 0) {
            return msi_fail_call("fork", errno, "cannot start host %d", (int)h);
        }
        beside[h] = pid;
    }
    MS_TRY(msi_launch_start(out, d, &here, &hosts, rank));
    if (*out != NULL) {
        memcpy((*out)->beside, beside, sizeof(beside));
    }
    return MS_OK;
}

/* -- for the guest ----------------------------------------------------------------------------- */

ms_status msi_launch_fork(ms_launch **out, const msi_job_guest *guest, int32_t n, int32_t *rank)
{
    const msi_start s = {.guest = guest, .n = n};
    msi_dist *d = msi_dist_state();

    *out = NULL;
    *rank = -1;
    if (d == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(msi_launch_check(d, &s));
    fflush(NULL); /* else children print it again */
    return start_hosts(out, d, &s, rank);
}

ms_status msi_launch_exec(ms_launch **out, const msi_job_guest *guest, int32_t n,
                          const ms_hosts *hosts, const char *const *argv, bool prefix)
{
    static const char *const none[] = {NULL};
    const msi_start s = {
        .guest = guest, .n = n, .argv = argv != NULL ? argv : none, .prefix = prefix};
    msi_dist *d = msi_dist_state();
    int32_t rank;

    *out = NULL;
    if (d == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(msi_launch_check(d, &s));
    fflush(NULL);
    return hosts != NULL ? msi_launch_start(out, d, &s, hosts, &rank)
                         : start_hosts(out, d, &s, &rank);
}
