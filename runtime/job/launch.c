/* Starting ranks as child processes, by fork or by fork and exec.
 *
 * Control block and sockets are made first and inherited. A rank dies with its reaper (reaper.c),
 * which dies with its launcher. It has its own cores, and only rank 0 reads stdin. */
#include "launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* -- checks before a fork ---------------------------------------------------------------------- */

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

/* A joined thread remains in /proc for a moment. */
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

/* How this process became a rank, and what to do. */
static const char *const joined_by[] = {
    [MSI_LAUNCHER_NONE] = ", made so by a collective, dist.split(), FSDP(), "
                          "a checkpoint or a fake group before",
    [MSI_LAUNCHER_FORK] = "",
    [MSI_LAUNCHER_RUN] =
        ", started by moonshard run; run a script that starts its own with plain luajit",
    [MSI_LAUNCHER_THREAD] = "",
    [MSI_LAUNCHER_ELSEWHERE] = ", started by another launcher",
};

/* Ranks die with the thread that started them, and signals would reach other threads. */
static ms_status check_can_start(const msi_dist *d)
{
    if (d->launch != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "cannot start ranks: %d are running already",
                       (int)d->launch->n);
    }
    if (msi_dist_closed().world > 0) {
        return MS_FAIL(MS_RUNTIME_ERROR, "cannot start ranks: this process was rank %d of %d",
                       (int)msi_dist_closed().rank, (int)msi_dist_closed().world);
    }
    if (d->job != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "cannot start ranks: this process is rank %d of %d already%s", (int)d->rank,
                       (int)d->job->world, joined_by[d->launcher]);
    }
    int32_t threads = count_threads();

    if (threads > 1) {
        return MS_FAIL(MS_RUNTIME_ERROR, "cannot start ranks: %d threads are running, expected one",
                       (int)threads);
    }
    return MS_OK;
}

static ms_status check_can_fork(const msi_dist *d)
{
    const ms_context *ctx = msi_context_peek();

    MS_TRY(check_can_start(d));
    if (ctx != NULL && ctx->device != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "cannot fork ranks: this process has opened its device, "
                                         "which each rank needs for itself (start the ranks before "
                                         "making tensors)");
    }
    return MS_OK;
}

/* -- the launch -------------------------------------------------------------------------------- */

/* A closed one would be reused by the next open(), and receive output. */
static void open_standard_streams(void)
{
    int fd;

    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) {
        close(fd);
    }
}

/* Meet the other hosts' launchers. */
static ms_status meet(ms_launch *launch, const ms_hosts *hosts)
{
    launch->listeners = malloc(sizeof(*launch->listeners) * (size_t)launch->n);
    if (launch->listeners == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to start %d ranks", (int)launch->n);
    }
    for (int32_t i = 0; i < launch->n; i++) {
        launch->listeners[i] = -1;
    }
    return msi_agent_meet(&launch->agent, launch->job, hosts, launch->listeners);
}

static void close_listeners(ms_launch *launch)
{
    for (int32_t i = 0; launch->listeners != NULL && i < launch->n; i++) {
        if (launch->listeners[i] >= 0) {
            close(launch->listeners[i]);
        }
    }
    free(launch->listeners);
    launch->listeners = NULL;
}

/* Of a child that becomes a rank; -1: none. */
static int32_t take_listener(ms_launch *launch, int32_t child)
{
    const int32_t fd = launch->listeners != NULL ? launch->listeners[child] : -1;

    if (fd >= 0) {
        launch->listeners[child] = -1;
    }
    return fd;
}

static ms_status check_hosts(const ms_hosts *h)
{
    if (h->n_hosts < 2 || h->n_hosts > MS_MAX_RANKS || h->host < 0 || h->host >= h->n_hosts) {
        return MS_FAIL(MS_VALUE_ERROR, "host %d of %d, expected 0 to %d of 2 to %d", (int)h->host,
                       (int)h->n_hosts, (int)h->n_hosts - 1, MS_MAX_RANKS);
    }
    return h->secret != NULL && h->secret[0] != '\0'
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "a job on several hosts has no secret, expected a text "
                                         "that is equal on all hosts");
}

static ms_status launch_new(ms_launch **out, msi_dist *d, const msi_job_guest *guest, int32_t n,
                            const ms_hosts *hosts)
{
    const msi_job_size size =
        hosts != NULL ? (msi_job_size){hosts->n_hosts, hosts->host, n} : msi_one_host(n);

    ms_launch *launch =
        calloc(1, sizeof(*launch) + sizeof(launch->child[0]) * (size_t)(n > 0 ? n : 0));

    *out = NULL;
    if (launch == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to start %d ranks", (int)n);
    }
    open_standard_streams();
    ms_status status = msi_job_new(&launch->job, guest, size, false);

    if (status != MS_OK) {
        free(launch);
        return status;
    }
    launch->owner = d;
    launch->n = n;
    launch->first = launch->job->block->first;
    launch->host = getpid();
    launch->line = -1;
    status = hosts != NULL ? meet(launch, hosts) : MS_OK;
    status = status == MS_OK ? msi_launch_block_signals(launch) : status;
    if (status != MS_OK) {
        close_listeners(launch);
        msi_agent_free(launch->agent);
        msi_job_free(launch->job);
        free(launch);
        return status;
    }
    launch->magic = MSI_MAGIC_LAUNCH;
    *out = launch;
    return MS_OK;
}

/* Free all but the job. */
static void launch_drop(ms_launch *launch)
{
    msi_output_free(launch->output);
    close_listeners(launch);
    msi_agent_free(launch->agent);
    close(launch->signal_fd);
    MSI_HANDLE(launch, MSI_MAGIC_LAUNCH);
    free(launch->program);
    free(launch);
}

void msi_launch_free(ms_launch *launch)
{
    if (launch->owner->launch == launch) {
        launch->owner->launch = NULL;
    }
    msi_launch_catch_signals(launch);
    msi_job_free(launch->job);
    for (int32_t i = 0; i < MSI_TEST_HOSTS; i++) {
        while (launch->beside[i] > 0 && waitpid(launch->beside[i], NULL, 0) < 0 && errno == EINTR) {
        }
    }
    launch_drop(launch);
}

/* End running ranks, then free. */
static void launch_kill(ms_launch *launch)
{
    if (getpid() == launch->host) {
        msi_reaper_end(launch);
    }
    msi_launch_free(launch);
}

static void supervised_by(msi_dist *d, ms_launch *launch)
{
    d->launch = launch;
    d->end_launch = launch_kill;
}

/* -- fork -------------------------------------------------------------------------------------- */

static ms_status become_rank(ms_launch *launch, int32_t child)
{
    const int32_t rank = launch->first + child;
    const int32_t listener = take_listener(launch, child);
    msi_dist *d = launch->owner;
    msi_job *job = launch->job;

    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* flush whole lines of ranks */
    msi_descriptors_keep(job, rank);
    launch_drop(launch);
    ms_status status = listener >= 0 ? msi_job_mirror(job, rank, listener) : MS_OK;

    status = status == MS_OK ? msi_dist_enter(d, job, rank, MSI_LAUNCHER_FORK, true) : status;

    if (status != MS_OK) {
        msi_job_free(job);
    }
    return status;
}

static ms_status fork_here(ms_launch **out, msi_dist *d, const msi_start *s, const ms_hosts *hosts,
                           int32_t *rank)
{
    ms_launch *launch;
    int32_t child;

    MS_TRY(launch_new(&launch, d, s->guest, s->n, hosts));
    ms_status status = msi_reaper_start(launch, &child);

    if (child >= 0) {
        *rank = launch->first + child;
        return become_rank(launch, child);
    }
    close_listeners(launch);
    if (status != MS_OK) {
        msi_launch_free(launch);
        return status;
    }
    supervised_by(d, launch);
    *out = launch;
    return MS_OK;
}

/* -- fork and exec ----------------------------------------------------------------------------- */

enum { NUMBERS = 5, VARIABLES, SOCKETS = NUMBERS, TEXT = 48, PER_SOCKET = 12 };

/* A rank's memory for exec, allocated before fork. */
typedef struct recipe {
    char **environment;
    /* Our variables, by rank: numbers, and the socket list. */
    char (*number)[NUMBERS][TEXT];
    char *sockets;
    size_t list_bytes; /* per list */
} recipe;

static const char *const variables[VARIABLES] = {"MOONSHARD_RANK",        "MOONSHARD_WORLD_SIZE",
                                                 "MOONSHARD_JOB_FD",      "MOONSHARD_LOCAL_RANK",
                                                 "MOONSHARD_LISTENER_FD", "MOONSHARD_SOCKET_FDS"};

static bool is_ours(const char *variable)
{
    for (int32_t i = 0; i < MSI_COUNT(variables); i++) {
        size_t n = strlen(variables[i]);

        if (strncmp(variable, variables[i], n) == 0 && variable[n] == '=') {
            return true;
        }
    }
    return false;
}

static char *socket_list(const recipe *x, int32_t child)
{
    return x->sockets + (size_t)child * x->list_bytes;
}

static void describe_job(const recipe *x, const ms_launch *launch, int32_t child)
{
    const msi_job *job = launch->job;
    const int32_t rank = launch->first + child;
    const int32_t number[NUMBERS] = {rank, job->world, job->fd, child,
                                     launch->listeners != NULL ? launch->listeners[child] : -1};
    char *list = socket_list(x, child);
    size_t at = (size_t)snprintf(list, x->list_bytes, "%s=%d", variables[SOCKETS],
                                 (int)job->socket[rank][0]);

    for (int32_t i = 0; i < launch->n; i++) {
        at += (size_t)snprintf(list + at, x->list_bytes - at, ",%d",
                               (int)job->socket[launch->first + i][1]);
    }
    for (int32_t i = 0; i < NUMBERS; i++) {
        snprintf(x->number[child][i], TEXT, "%s=%d", variables[i], (int)number[i]);
    }
}

static void recipe_free(recipe *x)
{
    if (x != NULL) {
        free(x->environment);
        free(x->number);
        free(x->sockets);
    }
    free(x);
}

static ms_status recipe_new(recipe **out, const ms_launch *launch, const char *program)
{
    const size_t ranks = (size_t)launch->n;
    recipe *x = calloc(1, sizeof(*x));
    int32_t n = 0, kept = VARIABLES; /* the first ones are the rank's */

    *out = NULL;
    while (environ[n] != NULL) {
        n++;
    }
    if (x != NULL) {
        x->environment = calloc((size_t)n + VARIABLES + 1, sizeof(*x->environment));
        x->number = calloc(ranks, sizeof(x->number[0]));
        x->list_bytes = TEXT + PER_SOCKET * (ranks + 1);
        x->sockets = calloc(ranks, x->list_bytes);
    }
    if (x == NULL || x->environment == NULL || x->number == NULL || x->sockets == NULL) {
        recipe_free(x);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to start %s", program);
    }
    for (int32_t i = 0; i < n; i++) {
        if (!is_ours(environ[i])) {
            x->environment[kept++] = environ[i];
        }
    }
    for (int32_t i = 0; i < launch->n; i++) {
        describe_job(x, launch, i);
    }
    *out = x;
    return MS_OK;
}

static bool keep_open(int32_t fd)
{
    return fcntl(fd, F_SETFD, 0) == 0;
}

/* False: see errno. */
static bool hand_over(const ms_launch *launch, int32_t child)
{
    const msi_job *job = launch->job;
    bool all = (launch->output == NULL || msi_output_enter(launch->output, child)) &&
               (launch->listeners == NULL || keep_open(launch->listeners[child])) &&
               keep_open(job->fd) && keep_open(job->socket[launch->first + child][0]);

    for (int32_t i = 0; i < launch->n && all; i++) {
        all = keep_open(job->socket[launch->first + i][1]);
    }
    return all;
}

static _Noreturn void become_program(const ms_launch *launch, recipe *x, int32_t child,
                                     const char *const *argv)
{
    const msi_job *job = launch->job;

    for (int32_t i = 0; i < NUMBERS; i++) {
        x->environment[i] = x->number[child][i];
    }
    x->environment[SOCKETS] = socket_list(x, child);
    if (hand_over(launch, child)) {
        /* execvpe() would give a file without a first line for an interpreter to the shell */
        char *const *words = (char *const *)(uintptr_t)argv;

        (strchr(argv[0], '/') != NULL ? execve : execvpe)(argv[0], words, x->environment);
    }
    atomic_store(&job->block->rank[launch->first + child].exec_error,
                 errno); /* for the launcher's message */
    _exit(errno == ENOENT ? 127 : 126);
}

static ms_status start_programs(ms_launch *launch, const char *const *argv, bool prefix)
{
    recipe *x = NULL;
    int32_t child;

    launch->program = strdup(argv[0]);
    if (launch->program == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to start %s", argv[0]);
    }
    MS_TRY(prefix ? msi_output_new(&launch->output, launch->job->block) : MS_OK);
    MS_TRY(recipe_new(&x, launch, argv[0]));
    ms_status status = msi_reaper_start(launch, &child);

    if (child >= 0) {
        become_program(launch, x, child, argv);
    }
    recipe_free(x);
    close_listeners(launch);
    if (launch->output != NULL) {
        msi_output_started(launch->output);
    }
    return status;
}

static ms_status exec_here(ms_launch **out, msi_dist *d, const msi_start *s, const ms_hosts *hosts)
{
    ms_launch *launch;

    MS_TRY(launch_new(&launch, d, s->guest, s->n, hosts));
    ms_status status = start_programs(launch, s->argv, s->prefix);

    if (status != MS_OK) {
        msi_launch_free(launch);
        return status;
    }
    supervised_by(d, launch);
    *out = launch;
    return MS_OK;
}

ms_status msi_launch_check(const msi_dist *d, const msi_start *s)
{
    if (s->argv != NULL && s->argv[0] == NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "no program to run, expected at least one argument");
    }
    return s->argv != NULL ? check_can_start(d) : check_can_fork(d);
}

ms_status msi_launch_start(ms_launch **out, msi_dist *d, const msi_start *s, const ms_hosts *hosts,
                           int32_t *rank)
{
    *out = NULL;
    *rank = -1;
    MS_TRY(hosts != NULL ? check_hosts(hosts) : MS_OK);
    return s->argv != NULL ? exec_here(out, d, s, hosts) : fork_here(out, d, s, hosts, rank);
}
