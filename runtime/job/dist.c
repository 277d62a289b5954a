/* A context's place in its job: being a rank, and leaving. */
#include "job.h"

#include "backend.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LEAST_STACK = 256 * 1024 }; /* twice the observed need of a first step */

/* -- state in the context ---------------------------------------------------------------------- */

static _Thread_local msi_closed_rank closed_rank;

msi_closed_rank msi_dist_closed(void)
{
    return closed_rank;
}

static void dist_close(void *state)
{
    msi_dist *d = state;

    if (d->launcher != MSI_LAUNCHER_NONE && d->gone != MSI_GONE_FORKED) {
        closed_rank = (msi_closed_rank){.rank = d->rank, .world = d->job->world};
    }

    if (d->launch != NULL) {
        d->end_launch(d->launch);
    }
    if (d->job != NULL && d->gone == MSI_GONE_NOT) {
        (void)ms_dist_leave();
    }
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
    if (ctx->room[MSI_ROOM_JOB] == NULL) {
        msi_dist *d = calloc(1, sizeof(*d));

        if (d == NULL) {
            msi_fail(MS_OUT_OF_MEMORY, "no memory for the state of ranks");
            return NULL;
        }
        d->ctx = ctx;
        ctx->room[MSI_ROOM_JOB] = d;
        ctx->close[MSI_ROOM_JOB] = dist_close;
    }
    return ctx->room[MSI_ROOM_JOB];
}

msi_dist *msi_dist_peek(void)
{
    ms_context *ctx = msi_context_peek();

    return ctx != NULL ? ctx->room[MSI_ROOM_JOB] : NULL;
}

/* -- leaving at process end -------------------------------------------------------------------- */

ms_status msi_gone_error(const msi_dist *d)
{
    if (d->gone == MSI_GONE_FORKED) {
        return MS_FAIL(MS_COMM_ERROR,
                       "this process was forked by rank %d and is no rank itself: collectives are "
                       "its parent's",
                       (int)d->rank);
    }
    return MS_FAIL(MS_RUNTIME_ERROR, "this rank has left its job: no collective can follow");
}

/* In a process this thread just forked: the copy must not act as the rank. */
static void forked(void)
{
    msi_dist *d = msi_dist_peek();

    if (d != NULL && d->job != NULL && d->job->world > 1 && d->gone == MSI_GONE_NOT) {
        msi_job_make_private(d->job);
        if (d->job->mirror != NULL) {
            msi_mirror_forked(d->job->mirror);
        }
        d->gone = MSI_GONE_FORKED;
    }
}

/* A rank's process exits with 0 without leaving: end the guest's part. The launcher handles the
 * rest. */
static void ended(int code, void *unused)
{
    msi_dist *d = msi_dist_peek();

    (void)unused;
    if (code == 0 && d != NULL && d->job != NULL && !d->job->threads && d->gone == MSI_GONE_NOT) {
        d->job->guest->end();
        msi_job_flush(d->job);
        msi_job_linger(d->job, d->rank);
        d->gone = MSI_GONE_LEFT;
    }
}

static pthread_once_t process_watched = PTHREAD_ONCE_INIT;

static void watch_process(void)
{
    pthread_atfork(NULL, NULL, forked);
    on_exit(ended, NULL);
}

/* -- joining and leaving ----------------------------------------------------------------------- */

/* A stack that is too small would end a rank by a signal in its first step: an error now. */
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
    msi_job_rank *mine = &job->block->rank[rank];
    int32_t starting = MSI_RANK_STARTING;

    MS_TRY(check_stack());
    if (!atomic_compare_exchange_strong(&mine->state, &starting, MSI_RANK_ALIVE)) {
        return MS_FAIL(MS_COMM_ERROR, "rank %d has joined already (process %d)", (int)rank,
                       (int)atomic_load(&mine->pid));
    }
    atomic_store(&mine->pid, (int32_t)getpid());
    d->job = job;
    d->rank = rank;
    d->ctx->rank = d->ctx->sample_rank = rank;
    d->launcher = launcher;
    d->owns_job = owns_job;
    pthread_once(&process_watched, watch_process);
    if (d->ctx->joined != NULL) {
        d->ctx->joined(d->ctx);
    }
    return MS_OK;
}

ms_status ms_dist_leave(void)
{
    msi_dist *d = msi_dist_peek();

    if (d == NULL || d->job == NULL || d->gone != MSI_GONE_NOT) {
        return MS_OK;
    }
    const ms_status status = msi_settle(d->ctx); /* while it can still report to peers */

    d->job->guest->leave();
    msi_job_flush(d->job); /* before others learn that it has left: [Note: status first] */
    d->gone = MSI_GONE_LEFT;
    msi_job_linger(d->job, d->rank);
    return status;
}
