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

static ms_status launch_new(ms_launch **out, msi_dist *d, const msi_job_guest *guest, int32_t n)
{
    ms_launch *launch =
        calloc(1, sizeof(*launch) + sizeof(launch->child[0]) * (size_t)(n > 0 ? n : 0));

    *out = NULL;
    if (launch == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to start %d ranks", (int)n);
    }
    open_standard_streams();
    ms_status status = msi_job_new(&launch->job, guest, n, false);

    if (status != MS_OK) {
        free(launch);
        return status;
    }
    launch->owner = d;
    launch->n = n;
    launch->host = getpid();
    launch->line = -1;
    status = msi_launch_block_signals(launch);
    if (status != MS_OK) {
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

static ms_status become_rank(ms_launch *launch, int32_t rank)
{
    msi_dist *d = launch->owner;
    msi_job *job = launch->job;

    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* flush whole lines of ranks */
    msi_descriptors_keep(job, rank);
    launch_drop(launch);
    ms_status status = msi_dist_enter(d, job, rank, MSI_LAUNCHER_FORK, true);

    if (status != MS_OK) {
        msi_job_free(job);
    }
    return status;
}

ms_status msi_launch_fork(ms_launch **out, const msi_job_guest *guest, int32_t n, int32_t *rank)
{
    msi_dist *d = msi_dist_state();
    ms_launch *launch;

    *out = NULL;
    *rank = -1;
    if (d == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(check_can_fork(d));
    fflush(NULL); /* else children print it again */
    MS_TRY(launch_new(&launch, d, guest, n));
    ms_status status = msi_reaper_start(launch, rank);

    if (*rank >= 0) {
        return become_rank(launch, *rank);
    }
    if (status != MS_OK) {
        msi_launch_free(launch);
        return status;
    }
    supervised_by(d, launch);
    *out = launch;
    return MS_OK;
}

/* -- fork and exec ----------------------------------------------------------------------------- */

enum { NUMBERS = 3, VARIABLES, SOCKETS = NUMBERS, TEXT = 48, PER_SOCKET = 12 };

/* A rank's memory for exec, allocated before fork. */
typedef struct recipe {
    char **environment;
    /* Our variables, by rank: numbers, and the socket list. */
    char (*number)[NUMBERS][TEXT];
    char *sockets;
    size_t list_bytes; /* per list */
} recipe;

static const char *const variables[VARIABLES] = {"MOONSHARD_RANK", "MOONSHARD_WORLD_SIZE",
                                                 "MOONSHARD_JOB_FD", "MOONSHARD_SOCKET_FDS"};

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

static char *socket_list(const recipe *x, int32_t rank)
{
    return x->sockets + (size_t)rank * x->list_bytes;
}

static void describe_job(const recipe *x, const msi_job *job, int32_t rank)
{
    const int32_t number[NUMBERS] = {rank, job->world, job->fd};
    char *list = socket_list(x, rank);
    size_t at = (size_t)snprintf(list, x->list_bytes, "%s=%d", variables[SOCKETS],
                                 (int)job->socket[rank][0]);

    for (int32_t r = 0; r < job->world; r++) {
        at += (size_t)snprintf(list + at, x->list_bytes - at, ",%d", (int)job->socket[r][1]);
    }
    for (int32_t i = 0; i < NUMBERS; i++) {
        snprintf(x->number[rank][i], TEXT, "%s=%d", variables[i], (int)number[i]);
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

static ms_status recipe_new(recipe **out, const msi_job *job, const char *program)
{
    const size_t world = (size_t)job->world;
    recipe *x = calloc(1, sizeof(*x));
    int32_t n = 0, kept = VARIABLES; /* the first ones are the rank's */

    *out = NULL;
    while (environ[n] != NULL) {
        n++;
    }
    if (x != NULL) {
        x->environment = calloc((size_t)n + VARIABLES + 1, sizeof(*x->environment));
        x->number = calloc(world, sizeof(x->number[0]));
        x->list_bytes = TEXT + PER_SOCKET * (world + 1);
        x->sockets = calloc(world, x->list_bytes);
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
    for (int32_t r = 0; r < job->world; r++) {
        describe_job(x, job, r);
    }
    *out = x;
    return MS_OK;
}

static bool keep_open(int32_t fd)
{
    return fcntl(fd, F_SETFD, 0) == 0;
}

/* False: see errno. */
static bool hand_over(const ms_launch *launch, int32_t rank)
{
    const msi_job *job = launch->job;
    bool all = (launch->output == NULL || msi_output_enter(launch->output, rank)) &&
               keep_open(job->fd) && keep_open(job->socket[rank][0]);

    for (int32_t r = 0; r < job->world && all; r++) {
        all = keep_open(job->socket[r][1]);
    }
    return all;
}

static _Noreturn void become_program(const ms_launch *launch, recipe *x, int32_t rank,
                                     const char *const *argv)
{
    const msi_job *job = launch->job;

    for (int32_t i = 0; i < NUMBERS; i++) {
        x->environment[i] = x->number[rank][i];
    }
    x->environment[SOCKETS] = socket_list(x, rank);
    if (hand_over(launch, rank)) {
        /* execvpe() would give a file without a first line for an interpreter to the shell */
        char *const *words = (char *const *)(uintptr_t)argv;

        (strchr(argv[0], '/') != NULL ? execve : execvpe)(argv[0], words, x->environment);
    }
    atomic_store(&job->block->rank[rank].exec_error, errno); /* for the launcher's message */
    _exit(errno == ENOENT ? 127 : 126);
}

static ms_status start_programs(ms_launch *launch, const char *const *argv, bool prefix)
{
    recipe *x = NULL;
    int32_t rank;

    launch->program = strdup(argv[0]);
    if (launch->program == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to start %s", argv[0]);
    }
    MS_TRY(prefix ? msi_output_new(&launch->output, launch->n) : MS_OK);
    MS_TRY(recipe_new(&x, launch->job, argv[0]));
    ms_status status = msi_reaper_start(launch, &rank);

    if (rank >= 0) {
        become_program(launch, x, rank, argv);
    }
    recipe_free(x);
    if (launch->output != NULL) {
        msi_output_started(launch->output);
    }
    return status;
}

ms_status msi_launch_exec(ms_launch **out, const msi_job_guest *guest, int32_t n,
                          const char *const *argv, bool prefix)
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
    MS_TRY(check_can_start(d));
    fflush(NULL);
    MS_TRY(launch_new(&launch, d, guest, n));
    ms_status status = start_programs(launch, argv, prefix);

    if (status != MS_OK) {
        msi_launch_free(launch);
        return status;
    }
    supervised_by(d, launch);
    *out = launch;
    return MS_OK;
}
