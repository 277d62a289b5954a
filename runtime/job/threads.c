/* Ranks as threads of one process: the same control block in plain memory, one context per thread.
 * So ThreadSanitizer checks the protocol of processes. */
#include "job.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct seat {
    msi_job *job;
    int32_t rank;
    ms_status (*fn)(void *user, int32_t rank);
    void *user;
    pthread_t thread;
} seat;

/* A rank's returned error is the job's failure. */
static void fail_with(seat *s, ms_status status)
{
    const ms_status kind = msi_status_of_host(status, "its function");

    msi_job_abort(s->job, s->rank, s->rank, MSI_CAUSE_FAILED, kind, "rank %d failed: %s",
                  (int)s->rank, ms_error_message());
}

static void *run_rank(void *argument)
{
    seat *s = argument;
    msi_dist *d = msi_dist_state();
    ms_status status = d != NULL ? msi_dist_enter(d, s->job, s->rank, MSI_LAUNCHER_THREAD, false)
                                 : MS_OUT_OF_MEMORY;

    if (status == MS_OK) {
        msi_cores_pin(s->rank, s->job->world);
        status = s->fn(s->user, s->rank);
    }
    if (status != MS_OK) {
        fail_with(s, status);
    }
    ms_close(); /* leaves */
    msi_job_set_state(s->job, s->rank, MSI_RANK_LEFT);
    return NULL;
}

ms_status msi_dist_threads(const msi_job_guest *guest, int32_t n,
                           ms_status (*fn)(void *user, int32_t rank), void *user)
{
    int32_t started = 0, subject, cause;
    ms_status kind;
    const char *text;
    msi_job *job;

    if (fn == NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "ms_dist_threads: 'fn' is NULL, expected a function");
    }
    MS_TRY(msi_job_new(&job, guest, msi_one_host(n), true));
    seat *seats = calloc((size_t)n, sizeof(*seats));

    if (seats == NULL) {
        msi_job_free(job);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to start %d ranks", (int)n);
    }
    for (; started < n; started++) {
        seat *s = &seats[started];

        *s = (seat){.job = job, .rank = started, .fn = fn, .user = user};
        int error = pthread_create(&s->thread, NULL, run_rank, s);

        if (error != 0) {
            msi_job_abort(job, n, started, MSI_CAUSE_FAILED, MS_RUNTIME_ERROR,
                          "rank %d cannot start: %s", (int)started, strerrordesc_np(error));
            break;
        }
    }
    for (int32_t r = 0; r < started; r++) {
        pthread_join(seats[r].thread, NULL);
    }
    free(seats);
    ms_status status = MS_OK;

    guest->compare_left(job);
    if (msi_job_aborted(job, &subject, &cause, &kind, &text)) {
        status = MS_FAIL(kind, "%s", text);
    }
    msi_job_free(job);
    return status;
}
