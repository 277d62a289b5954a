/* Joining by a launcher's environment, or alone; and queries of the job. */
#include "elsewhere.h"
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* -- by the environment ------------------------------------------------------------------------ */

/* A launcher of ours started this process as a rank. */
static bool is_described(void)
{
    return getenv("MOONSHARD_RANK") != NULL;
}

/* A whole number in [least, most] from the environment, or -1 with the error set. */
static int32_t env_number(const char *name, int32_t least, int32_t most)
{
    const char *text = getenv(name);
    char *end = NULL;
    long value;

    if (text == NULL || text[0] == '\0') {
        msi_fail(MS_COMM_ERROR, "%s is not set, though this process was started as a rank", name);
        return -1;
    }
    errno = 0;
    value = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < least || value > most) {
        msi_fail(MS_COMM_ERROR, "%s is '%s', expected a whole number from %d to %d", name, text,
                 (int)least, (int)most);
        return -1;
    }
    return (int32_t)value;
}

/* "recv,send0,send1,...", of this host's ranks, written by become_program(). */
static ms_status open_sockets(msi_job *job, int32_t rank)
{
    const char *text = msi_switch_text("MOONSHARD_SOCKET_FDS", "");
    const int32_t first = job->block->first, n = job->block->n_local;

    for (int32_t i = -1; i < n; i++) {
        char *end = NULL;
        long fd = strtol(text, &end, 10);

        bool is_number = end > text && fd >= 0;

        if (!is_number || fcntl((int)fd, F_SETFD, FD_CLOEXEC) != 0) {
            return MS_FAIL(
                MS_COMM_ERROR, "MOONSHARD_SOCKET_FDS does not list the %d sockets of this job: %s",
                (int)n + 1, is_number ? strerrordesc_np(errno) : "expected a number each");
        }
        job->socket[i < 0 ? rank : first + i][i < 0 ? 0 : 1] = (int32_t)fd;
        text = *end == ',' ? end + 1 : end;
    }
    return MS_OK;
}

/* Keeps the launcher's descriptors open, as this process may join again. */
static void close_job(msi_job *job)
{
    for (int32_t r = 0; r < job->world; r++) {
        job->socket[r][0] = job->socket[r][1] = -1;
    }
    job->fd = -1;
    msi_job_free(job);
}

/* The job this process was started for, and its rank. */
static ms_status open_job(msi_job **out, const msi_job_guest *guest, int32_t *rank)
{
    int32_t world = env_number("MOONSHARD_WORLD_SIZE", 1, MS_MAX_RANKS);
    int32_t fd;

    *rank = world < 0 ? -1 : env_number("MOONSHARD_RANK", 0, world - 1);
    fd = *rank < 0 ? -1 : env_number("MOONSHARD_JOB_FD", 0, INT32_MAX - 1);
    if (fd < 0) {
        return MS_COMM_ERROR;
    }
    MS_TRY(msi_job_open(out, guest, fd));
    if ((*out)->world != world) {
        MS_FAIL(MS_COMM_ERROR, "MOONSHARD_WORLD_SIZE is %d, but the job has %d ranks", (int)world,
                (int)(*out)->world);
        close_job(*out);
        return MS_COMM_ERROR;
    }
    return MS_OK;
}

/* The memory that ranks of other hosts have copies of. */
static ms_status open_mirror(msi_job *job, int32_t rank)
{
    if (job->block->n_hosts == 1) {
        return MS_OK;
    }
    const int32_t listener = env_number("MOONSHARD_LISTENER_FD", 0, INT32_MAX - 1);

    return listener < 0 || fcntl(listener, F_SETFD, FD_CLOEXEC) != 0
               ? MS_COMM_ERROR
               : msi_job_mirror(job, rank, listener);
}

static ms_status join_by_environment(msi_dist *d, const msi_job_guest *guest)
{
    msi_job *job;
    int32_t rank;
    ms_status status = MS_OK;

    MS_TRY(open_job(&job, guest, &rank));
    MS_TRY_GOTO(open_sockets(job, rank), failed);
    MS_TRY_GOTO(open_mirror(job, rank), failed);
    MS_TRY_GOTO(msi_dist_enter(d, job, rank, MSI_LAUNCHER_RUN, true), failed);
    fcntl(job->fd, F_SETFD, FD_CLOEXEC);
    /* Children of a rank are not ranks. */
    unsetenv("MOONSHARD_RANK");
    unsetenv("MOONSHARD_JOB_FD");
    unsetenv("MOONSHARD_SOCKET_FDS");
    unsetenv("MOONSHARD_WORLD_SIZE");
    unsetenv("MOONSHARD_LOCAL_RANK");
    unsetenv("MOONSHARD_LISTENER_FD");
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* a pipe to the launcher: flush lines */
    return MS_OK;
failed:
    close_job(job);
    return status;
}

/* -- either way -------------------------------------------------------------------------------- */

static ms_status join_alone(msi_dist *d, const msi_job_guest *guest)
{
    msi_job *job;

    MS_TRY(msi_job_new(&job, guest, msi_one_host(1), true)); /* one rank: plain memory */
    ms_status status = msi_dist_enter(d, job, 0, MSI_LAUNCHER_NONE, true);

    if (status != MS_OK) {
        msi_job_free(job);
    }
    return status;
}

ms_status msi_dist_join(const msi_job_guest *guest)
{
    msi_dist *d = msi_dist_state();

    if (d == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    if (d->job != NULL) {
        return MS_OK;
    }
    if (is_described()) {
        return join_by_environment(d, guest);
    }
    bool joined;

    MS_TRY(msi_join_elsewhere(d, guest, &joined));
    if (joined) {
        return MS_OK;
    }
    MS_TRY(join_alone(d, guest));
    if (msi_dist_closed().world > 0) {
        d->gone = MSI_GONE_LEFT;
        d->ctx->rank = msi_dist_closed().rank;
    }
    return MS_OK;
}

bool msi_dist_abort_unjoined(const msi_job_guest *guest, ms_status kind, const char *message)
{
    msi_job *job;
    int32_t rank;

    if (!is_described() || open_job(&job, guest, &rank) != MS_OK) {
        return false;
    }
    bool first = msi_job_abort(job, rank, rank, MSI_CAUSE_FAILED, kind, "rank %d failed: %s",
                               (int)rank, message);

    close_job(job);
    return first;
}

bool ms_dist_launched(void)
{
    const msi_dist *d = msi_dist_peek();

    return (d != NULL && d->job != NULL && d->launcher != MSI_LAUNCHER_NONE) || is_described() ||
           msi_is_started_elsewhere();
}

int32_t msi_dist_local_rank(void)
{
    const msi_dist *d = msi_dist_peek();

    return d != NULL && d->job != NULL ? d->rank - d->job->block->first
                                       : (int32_t)msi_switch_int("MOONSHARD_LOCAL_RANK", 0);
}

static const char *const launchers[] = {
    [MSI_LAUNCHER_NONE] = "none",
    [MSI_LAUNCHER_FORK] = "fork",
    [MSI_LAUNCHER_RUN] = "run",
    [MSI_LAUNCHER_THREAD] = "thread",
    [MSI_LAUNCHER_ELSEWHERE] = "elsewhere",
};

void ms_dist_info_get(ms_dist_info *info)
{
    const msi_dist *d = msi_dist_peek();
    bool joined = d != NULL && d->job != NULL;

    *info = (ms_dist_info){.world_size = 1,
                           .local_world_size = 1,
                           .n_hosts = 1,
                           .cores = msi_cores_allowed(),
                           .initialized = joined && d->gone == 0,
                           .launcher = launchers[d != NULL ? d->launcher : MSI_LAUNCHER_NONE],
                           .transport = "self"};
    if (joined) {
        info->rank = d->rank;
        info->local_rank = msi_dist_local_rank();
        info->world_size = d->job->world;
        info->local_world_size = d->job->block->n_local;
        info->host = d->job->block->host;
        info->n_hosts = d->job->block->n_hosts;
        info->transport = info->n_hosts > 1   ? msi_job_between_hosts(d->job)
                          : d->job->world > 1 ? "shm"
                                              : "self";
    }
    const msi_closed_rank closed = msi_dist_closed();

    if (closed.world > 0) {
        info->rank = info->local_rank = closed.rank;
        info->world_size = info->local_world_size = closed.world;
    }
}
