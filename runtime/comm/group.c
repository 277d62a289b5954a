/* What a context knows of its job: joining, leaving, the groups world and self, failing together.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LEAST_STACK = 256 * 1024 }; /* twice what a first step was seen to need */

/* -- the room's state -------------------------------------------------------------------------- */

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

static void dist_close(void *state)
{
    msi_dist *d = state;

    if (d->launch != NULL) {
        msi_launch_kill(d->launch);
    }
    if (d->job != NULL && d->gone == 0) {
        ms_dist_leave();
    }
    comm_free(d->world);
    comm_free(d->self);
    if (d->owns_job) {
        msi_job_free(d->job);
    }
    free(d);
}

msi_dist *msi_dist_state(void)
{
    ms_context *ctx = msi_context();

    if (ctx == NULL) {
        return NULL;
    }
    if (ctx->room[MSI_ROOM_COMM] == NULL) {
        msi_dist *d = calloc(1, sizeof(*d));

        if (d == NULL) {
            msi_fail(MS_OUT_OF_MEMORY, "no memory for the state of ranks");
            return NULL;
        }
        d->ctx = ctx;
        ctx->room[MSI_ROOM_COMM] = d;
        ctx->close[MSI_ROOM_COMM] = dist_close;
    }
    return ctx->room[MSI_ROOM_COMM];
}

static msi_dist *dist_peek(void)
{
    ms_context *ctx = msi_context_peek();

    return ctx != NULL ? ctx->room[MSI_ROOM_COMM] : NULL;
}

/* -- groups ------------------------------------------------------------------------------------ */

void msi_comm_of_world(ms_comm *out, msi_job *job, int32_t rank)
{
    char *block = (char *)job->block;

    out->job = job;
    out->rank = rank;
    out->size = job->world;
    for (int32_t q = 0; q < out->size; q++) {
        out->slot[q] = q;
    }
    out->members = (msi_member *)(void *)(block + job->block->members_at);
    if (out->size > 1) {
        out->notes = (msi_note_record *)(void *)(block + job->block->notes_at);
    }
    out->staging = block + job->block->staging_at;
}

static ms_status make_world(msi_dist *d)
{
    ms_comm *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the group of all ranks");
    }
    c->ctx = d->ctx;
    msi_comm_of_world(c, d->job, d->rank);
    msi_live_add(&c->live, MSI_LIVE_COMM, c);
    d->world = c;
    return MS_OK;
}

static ms_status make_self(msi_dist *d)
{
    ms_comm *c = calloc(1, sizeof(*c));
    msi_member *member = aligned_alloc(64, sizeof(*member));

    if (c == NULL || member == NULL) {
        free(c);
        free(member);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for this rank's own group");
    }
    memset((void *)member, 0, sizeof(*member));
    c->ctx = d->ctx;
    c->job = d->job;
    c->size = 1;
    c->slot[0] = d->rank;
    c->is_self = true;
    c->gone = d->gone;
    c->members = member;
    msi_live_add(&c->live, MSI_LIVE_COMM, c);
    d->self = c;
    return MS_OK;
}

ms_status ms_comm_world(ms_comm **out)
{
    msi_dist *d = dist_peek();

    *out = NULL;
    if (d == NULL || d->job == NULL) {
        MS_TRY(ms_dist_join());
        d = msi_dist_state();
    }
    if (d->gone != 0) {
        return msi_gone_error(d->world);
    }
    *out = d->world;
    return MS_OK;
}

ms_status ms_comm_self(ms_comm **out)
{
    *out = NULL;
    MS_TRY(ms_dist_join());
    msi_dist *d = msi_dist_state();

    if (d->self == NULL) {
        MS_TRY(make_self(d));
    }
    *out = d->self;
    return MS_OK;
}

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

/* -- leaving without a word -------------------------------------------------------------------- */

static void be_gone(msi_dist *d, int32_t gone)
{
    d->gone = d->world->gone = gone;
    if (d->self != NULL) {
        d->self->gone = gone;
    }
}

ms_status msi_gone_error(const ms_comm *c)
{
    if (c->gone == MSI_GONE_FORKED) {
        return MS_FAIL(MS_COMM_ERROR,
                       "this process was forked by rank %d and is no rank itself: collectives are "
                       "its parent's",
                       (int)c->slot[c->rank]);
    }
    return MS_FAIL(MS_RUNTIME_ERROR, "this rank has left its job: no collective can follow");
}

/* In a process that this thread has just forked: a copy of a rank would speak and store as that
 * rank. */
static void forked(void)
{
    msi_dist *d = dist_peek();

    if (d != NULL && d->job != NULL && d->job->world > 1 && d->gone == 0) {
        msi_job_make_private(d->job);
        be_gone(d, MSI_GONE_FORKED);
    }
}

static pthread_once_t forks_watched = PTHREAD_ONCE_INIT;

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forked);
}

/* -- joining and leaving ----------------------------------------------------------------------- */

/* A stack that is too small ends a rank by a signal in its first step: who set it is told before.
 */
static ms_status check_stack(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < LEAST_STACK) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "the stack of this process may have %lld bytes (ulimit -s), expected at "
                       "least %d",
                       (long long)limit.rlim_cur, LEAST_STACK);
    }
    return MS_OK;
}

ms_status msi_dist_enter(msi_dist *d, msi_job *job, int32_t rank, int32_t launcher, bool owns_job)
{
    msi_slot_rank *slot = &job->block->slot[rank];
    int32_t starting = MSI_RANK_STARTING;

    MS_TRY(check_stack());
    if (!atomic_compare_exchange_strong(&slot->state, &starting, MSI_RANK_ALIVE)) {
        return MS_FAIL(MS_COMM_ERROR, "rank %d has joined already (process %d)", (int)rank,
                       (int)atomic_load(&slot->pid));
    }
    atomic_store(&slot->pid, (int32_t)getpid());
    d->job = job;
    d->rank = rank;
    msi_context()->rank = rank;
    d->launcher = launcher;
    ms_status status = make_world(d);

    if (status != MS_OK) {
        d->job = NULL;
        d->launcher = MSI_LAUNCHER_NONE;
        atomic_store(&slot->state, MSI_RANK_STARTING); /* it may try again */
        return status;
    }
    d->owns_job = owns_job;
    pthread_once(&forks_watched, watch_forks);
    return MS_OK;
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

/* "recv,send0,send1,..." as msi_launch_exec() wrote it. */
static ms_status open_mail(msi_job *job, int32_t rank)
{
    const char *text = msi_switch_text("MOONSHARD_MAIL_FDS", "");

    for (int32_t i = -1; i < job->world; i++) {
        char *end = NULL;
        long fd = strtol(text, &end, 10);

        bool is_number = end > text && fd >= 0;

        if (!is_number || fcntl((int)fd, F_SETFD, FD_CLOEXEC) != 0) {
            return MS_FAIL(
                MS_COMM_ERROR, "MOONSHARD_MAIL_FDS does not list the %d mailboxes of this job: %s",
                (int)job->world + 1, is_number ? strerrordesc_np(errno) : "expected a number each");
        }
        job->mail[i < 0 ? rank : i][i < 0 ? 0 : 1] = (int32_t)fd;
        text = *end == ',' ? end + 1 : end;
    }
    return MS_OK;
}

/* What is of the launcher stays open: this process may open its job again. */
static void close_job(msi_job *job)
{
    for (int32_t r = 0; r < job->world; r++) {
        job->mail[r][0] = job->mail[r][1] = -1;
    }
    job->fd = -1;
    msi_job_free(job);
}

/* The job this process was started for, and which rank of it. */
static ms_status open_job(msi_job **out, int32_t *rank)
{
    int32_t world = env_number("MOONSHARD_WORLD_SIZE", 1, MSI_MAX_RANKS);
    int32_t fd;

    *rank = world < 0 ? -1 : env_number("MOONSHARD_RANK", 0, world - 1);
    fd = *rank < 0 ? -1 : env_number("MOONSHARD_JOB_FD", 0, INT32_MAX - 1);
    if (fd < 0) {
        return MS_COMM_ERROR;
    }
    MS_TRY(msi_job_open(out, fd));
    if ((*out)->world != world) {
        MS_FAIL(MS_COMM_ERROR, "MOONSHARD_WORLD_SIZE is %d, but the job has %d ranks", (int)world,
                (int)(*out)->world);
        close_job(*out);
        return MS_COMM_ERROR;
    }
    return MS_OK;
}

static ms_status join_by_environment(msi_dist *d)
{
    msi_job *job;
    int32_t rank;
    ms_status status = MS_OK;

    MS_TRY(open_job(&job, &rank));
    MS_TRY_GOTO(open_mail(job, rank), failed);
    MS_TRY_GOTO(msi_dist_enter(d, job, rank, MSI_LAUNCHER_RUN, true), failed);
    fcntl(job->fd, F_SETFD, FD_CLOEXEC);
    /* The ranks' children are no ranks. */
    unsetenv("MOONSHARD_RANK");
    unsetenv("MOONSHARD_JOB_FD");
    unsetenv("MOONSHARD_MAIL_FDS");
    unsetenv("MOONSHARD_WORLD_SIZE");
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* a pipe to the launcher: lines at once */
    return MS_OK;
failed:
    close_job(job);
    return status;
}

static const char NO_REASON[] = "no reason given";

/* From a rank that could not join. */
static bool abort_unjoined(ms_status kind, const char *reason)
{
    msi_job *job;
    int32_t rank;

    if (!ms_dist_launched() || open_job(&job, &rank) != MS_OK) {
        return false;
    }
    bool first = msi_job_abort(job, rank, rank, MSI_CAUSE_FAILED, msi_kind_of_host(kind),
                               "rank %d failed: %s", (int)rank, reason);

    close_job(job);
    return first;
}

static ms_status join_alone(msi_dist *d)
{
    msi_job *job;

    MS_TRY(msi_job_new(&job, 1, true)); /* one rank, this one: plain memory */
    ms_status status = msi_dist_enter(d, job, 0, MSI_LAUNCHER_NONE, true);

    if (status != MS_OK) {
        msi_job_free(job);
    }
    return status;
}

ms_status ms_dist_join(void)
{
    msi_dist *d = msi_dist_state();

    if (d == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    if (d->job != NULL) {
        return MS_OK;
    }
    return ms_dist_launched() ? join_by_environment(d) : join_alone(d);
}

bool ms_dist_launched(void)
{
    const msi_dist *d = dist_peek();

    return (d != NULL && d->job != NULL && d->launcher != MSI_LAUNCHER_NONE) ||
           getenv("MOONSHARD_RANK") != NULL;
}

static const char *const launchers[] = {
    [MSI_LAUNCHER_NONE] = "none",
    [MSI_LAUNCHER_FORK] = "fork",
    [MSI_LAUNCHER_RUN] = "run",
    [MSI_LAUNCHER_THREAD] = "thread",
};

void ms_dist_info_get(ms_dist_info *info)
{
    const msi_dist *d = dist_peek();
    bool joined = d != NULL && d->job != NULL;

    *info = (ms_dist_info){.world_size = 1,
                           .local_world_size = 1,
                           .cores = msi_cores_allowed(),
                           .initialized = joined && d->gone == 0,
                           .launcher = launchers[d != NULL ? d->launcher : MSI_LAUNCHER_NONE],
                           .transport = "self"};
    if (joined) {
        info->rank = info->local_rank = d->rank;
        info->world_size = info->local_world_size = d->job->world;
        info->transport = d->job->world > 1 ? "shm" : "self";
    }
}

void ms_dist_leave(void)
{
    msi_dist *d = dist_peek();

    if (d == NULL || d->job == NULL || d->gone != 0) {
        return;
    }
    be_gone(d, MSI_GONE_LEFT);
    msi_job_set_state(d->job, d->rank, MSI_RANK_LEFT);
}

bool ms_dist_abort(ms_status kind, const char *message)
{
    msi_dist *d = dist_peek();

    if (d == NULL || d->job == NULL) {
        return abort_unjoined(kind, message != NULL ? message : NO_REASON);
    }
    if (d->gone == MSI_GONE_FORKED) {
        return false;
    }
    int32_t owner = msi_failure_owner(d->world);
    char text[MSI_TEXT];

    if (owner != d->rank && msi_failure_read(d->world, owner, text, sizeof(text)) != 0 &&
        (message == NULL || strstr(message, text) == NULL)) {
        message = text; /* its own words, where others do not repeat them */
    }
    return msi_job_abort(d->job, d->rank, owner, MSI_CAUSE_FAILED, msi_kind_of_host(kind),
                         "rank %d failed: %s", (int)owner, message != NULL ? message : NO_REASON);
}

void ms_dist_exit(int32_t code)
{
    fflush(NULL);
    if (code == 0) { /* otherwise the launcher says what happened, with the code */
        ms_dist_leave();
    }
    _exit(code);
}
