/* Starting ranks as child processes, by fork or by fork and exec.
 *
 * Control block and mailboxes are made first and inherited, so nobody has to find anybody. A rank
 * dies with its launcher (PDEATHSIG), owns its part of the cores, and only rank 0 reads stdin. */
#include "launch.h"

#include "tensor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* -- may this process be copied? --------------------------------------------------------------- */

static int32_t count_tasks(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int32_t n = 0;

    if (tasks == NULL) {
        return 1;
    }
    for (const struct dirent *e = readdir(tasks); e != NULL; e = readdir(tasks)) {
        n += e->d_name[0] != '.';
    }
    closedir(tasks);
    return n;
}

/* A thread that has been joined stands in /proc a moment longer. */
static int32_t count_threads(void)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    int32_t n = count_tasks();

    for (int32_t i = 0; n > 1 && i < 20; i++) {
        nanosleep(&moment, NULL);
        n = count_tasks();
    }
    return n;
}

static ms_status check_no_ranks(const msi_dist *d)
{
    if (d->launch != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "cannot start ranks: %d are running already",
                       (int)d->launch->n);
    }
    if (d->job != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "cannot start ranks: this process is rank %d of %d already", (int)d->rank,
                       (int)d->job->world);
    }
    return MS_OK;
}

static ms_status check_forkable(const msi_dist *d)
{
    ms_memory_stats stats;

    MS_TRY(check_no_ranks(d));
    ms_memory_stats_get(&stats);
    if (stats.live_handles > 0) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "cannot fork ranks: %lld tensors are live, expected none (start the ranks "
                       "before making tensors)",
                       (long long)stats.live_handles);
    }
    int32_t threads = count_threads();

    if (threads > 1) {
        return MS_FAIL(MS_RUNTIME_ERROR, "cannot fork ranks: %d threads are running, expected one",
                       (int)threads);
    }
    return MS_OK;
}

/* -- the launch -------------------------------------------------------------------------------- */

static ms_status launch_new(ms_launch **out, msi_dist *d, int32_t n)
{
    ms_launch *launch = calloc(1, sizeof(*launch));

    *out = NULL;
    if (launch == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to start %d ranks", (int)n);
    }
    for (int32_t r = 0; r < MSI_MAX_RANKS; r++) {
        launch->child[r].pidfd = -1;
    }
    ms_status status = msi_job_new(&launch->job, n, false);

    if (status != MS_OK) {
        free(launch);
        return status;
    }
    launch->owner = d;
    launch->n = n;
    msi_launch_hold_signals(launch);
    *out = launch;
    return MS_OK;
}

static void close_outlets(msi_child *child)
{
    for (int32_t i = 0; child->outlet != NULL && i < 2; i++) {
        if (child->outlet[i].from >= 0) {
            close(child->outlet[i].from);
        }
    }
    free(child->outlet);
    child->outlet = NULL;
}

/* Everything of the launch but the job. */
static void launch_drop(ms_launch *launch)
{
    for (int32_t r = 0; r < launch->n; r++) {
        if (launch->child[r].pidfd >= 0) {
            close(launch->child[r].pidfd);
        }
        close_outlets(&launch->child[r]);
    }
    free(launch);
}

void msi_launch_free(ms_launch *launch)
{
    if (launch->owner->launch == launch) {
        launch->owner->launch = NULL;
    }
    sigprocmask(SIG_SETMASK, &launch->before, NULL);
    msi_job_free(launch->job);
    launch_drop(launch);
}

void msi_launch_kill(ms_launch *launch)
{
    for (int32_t r = 0; r < launch->n; r++) {
        if (launch->child[r].pid > 0) {
            kill(launch->child[r].pid, SIGKILL);
            waitpid(launch->child[r].pid, NULL, 0);
        }
    }
    msi_launch_free(launch);
}

/* First steps of every child: hear signals, die with the parent, own cores, leave stdin to rank 0.
 */
static void settle(const ms_launch *launch, pid_t parent, int32_t rank)
{
    sigprocmask(SIG_SETMASK, &launch->before, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(128 + SIGKILL); /* it died before that took effect */
    }
    msi_cores_pin(rank, launch->n);
    if (rank > 0) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

        if (null >= 0) {
            dup2(null, STDIN_FILENO);
            close(null);
        }
    }
}

/* In the parent, after a fork: keep hold of the child. */
static ms_status adopt(ms_launch *launch, int32_t rank, pid_t pid)
{
    if (pid < 0) {
        return MS_FAIL(MS_RUNTIME_ERROR, "cannot start rank %d: %s", (int)rank, strerror(errno));
    }
    launch->child[rank].pid = pid;
    launch->child[rank].pidfd = (int32_t)syscall(SYS_pidfd_open, pid, 0);
    if (launch->child[rank].pidfd < 0) {
        return MS_FAIL(MS_RUNTIME_ERROR, "cannot watch rank %d: %s", (int)rank, strerror(errno));
    }
    atomic_store(&launch->job->block->slot[rank].pid, (int32_t)pid);
    return MS_OK;
}

/* -- fork -------------------------------------------------------------------------------------- */

static ms_status become_rank(ms_launch *launch, pid_t parent, int32_t rank)
{
    msi_dist *d = launch->owner;
    msi_job *job = launch->job;

    settle(launch, parent, rank);
    msi_job_keep_mail(job, rank);
    launch_drop(launch);
    ms_status status = msi_dist_enter(d, job, rank, "fork", true);

    if (status != MS_OK) {
        msi_job_free(job);
    }
    return status;
}

ms_status ms_launch_fork(ms_launch **out, int32_t n, int32_t *rank)
{
    msi_dist *d = msi_dist_state();
    pid_t parent = getpid();
    ms_launch *launch;

    *out = NULL;
    *rank = -1;
    if (d == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(check_forkable(d));
    fflush(NULL); /* or every child would print it again */
    MS_TRY(launch_new(&launch, d, n));
    for (int32_t r = 0; r < n; r++) {
        pid_t pid = fork();

        if (pid == 0) {
            *rank = r;
            return become_rank(launch, parent, r);
        }
        ms_status status = adopt(launch, r, pid);

        if (status != MS_OK) {
            msi_launch_kill(launch);
            return status;
        }
    }
    d->launch = launch;
    *out = launch;
    return MS_OK;
}

/* -- fork and exec ----------------------------------------------------------------------------- */

static void keep_open(int32_t fd)
{
    fcntl(fd, F_SETFD, 0);
}

/* In the child: what the new program finds in its environment. */
static void describe_job(const msi_job *job, int32_t rank)
{
    char text[16 * (MSI_MAX_RANKS + 1)];
    int at = snprintf(text, sizeof(text), "%d", (int)job->mail[rank][0]);

    keep_open(job->fd);
    keep_open(job->mail[rank][0]);
    for (int32_t r = 0; r < job->world; r++) {
        keep_open(job->mail[r][1]);
        at += snprintf(text + at, sizeof(text) - (size_t)at, ",%d", (int)job->mail[r][1]);
    }
    setenv("MOONSHARD_MAIL_FDS", text, 1);
    snprintf(text, sizeof(text), "%d", (int)rank);
    setenv("MOONSHARD_RANK", text, 1);
    snprintf(text, sizeof(text), "%d", (int)job->world);
    setenv("MOONSHARD_WORLD_SIZE", text, 1);
    snprintf(text, sizeof(text), "%d", (int)job->fd);
    setenv("MOONSHARD_JOB_FD", text, 1);
}

static _Noreturn void become_program(ms_launch *launch, pid_t parent, int32_t rank,
                                     const char *const *argv, const int32_t *ends)
{
    settle(launch, parent, rank);
    if (ends != NULL) {
        dup2(ends[0], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
    }
    describe_job(launch->job, rank);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    int error = errno;

    msi_job_abort(launch->job, rank, rank, MSI_CAUSE_FAILED, MS_RUNTIME_ERROR,
                  "rank %d failed: cannot run %s: %s", (int)rank, argv[0], strerror(error));
    _exit(error == ENOENT ? 127 : 126);
}

/* Pipes for what a rank prints; `ends` gets the child's ends. */
static ms_status make_outlets(msi_child *child, int32_t *ends)
{
    child->outlet = calloc(2, sizeof(*child->outlet));
    if (child->outlet == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the output of a rank");
    }
    child->outlet[0].from = child->outlet[1].from = -1;
    for (int32_t i = 0; i < 2; i++) {
        int fds[2];

        if (pipe2(fds, O_CLOEXEC) != 0) {
            return MS_FAIL(MS_RUNTIME_ERROR, "cannot make a pipe for a rank: %s", strerror(errno));
        }
        fcntl(fds[0], F_SETFL, O_NONBLOCK);
        child->outlet[i].from = fds[0];
        child->outlet[i].to = STDOUT_FILENO + i;
        ends[i] = fds[1];
    }
    return MS_OK;
}

static ms_status start_program(ms_launch *launch, int32_t rank, const char *const *argv,
                               bool prefix)
{
    int32_t ends[2] = {-1, -1};
    pid_t parent = getpid();
    ms_status status = prefix ? make_outlets(&launch->child[rank], ends) : MS_OK;

    if (status == MS_OK) {
        pid_t pid = fork();

        if (pid == 0) {
            become_program(launch, parent, rank, argv, prefix ? ends : NULL);
        }
        status = adopt(launch, rank, pid);
    }
    for (int32_t i = 0; i < 2; i++) {
        if (ends[i] >= 0) {
            close(ends[i]);
        }
    }
    return status;
}

ms_status ms_launch_exec(ms_launch **out, int32_t n, const char *const *argv, bool prefix)
{
    msi_dist *d = msi_dist_state();
    ms_launch *launch;

    *out = NULL;
    if (d == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    if (argv == NULL || argv[0] == NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "no program to run, expected at least one argument");
    }
    MS_TRY(check_no_ranks(d));
    fflush(NULL);
    MS_TRY(launch_new(&launch, d, n));
    for (int32_t r = 0; r < n; r++) {
        ms_status status = start_program(launch, r, argv, prefix);

        if (status != MS_OK) {
            msi_launch_kill(launch);
            return status;
        }
    }
    d->launch = launch;
    *out = launch;
    return MS_OK;
}
