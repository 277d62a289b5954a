/* A rank of a job on several hosts: what it writes to shared memory is sent to the other hosts.
 * Launchers exchange the ranks' states and the job's failure (agent.c). */
#include "job.h"
#include "library.h"

#include <string.h>
#include <time.h>

/* Words have arrived: see [Note: wake-ups]. */
static void wake(void *user)
{
    const msi_job *job = user;

    for (int32_t r = 0; r < job->block->n_local; r++) {
        msi_job_rank *its = &job->block->rank[job->block->first + r];

        if (atomic_load(&its->waiting) != 0) {
            msi_wake(its);
        }
    }
}

static bool is_gone(void *user, int32_t rank)
{
    const msi_job *job = user;

    return atomic_load(&job->block->rank[rank].state) == MSI_RANK_DEAD ||
           atomic_load(&job->block->abort) != 0;
}

static void failed(void *user, int32_t rank, const char *why)
{
    msi_job *job = user;

    if (!is_gone(user, rank) && atomic_load(&job->block->rank[rank].state) != MSI_RANK_LEFT) {
        msi_job_abort(job, job->own, rank, MSI_CAUSE_DIED, MS_COMM_ERROR,
                      "rank %d cannot send to rank %d of host %d: %s", (int)job->own, (int)rank,
                      (int)msi_job_host_of(job, rank), why);
    }
}

ms_status msi_job_engine(ms_context *ctx, const msi_engine_ops **out)
{
    static const char *const choices[] = {"tcp", "ucx"};
    static const msi_library library = {.file = "libmoonshard_ucx.so",
                                        .symbol = "msi_engine_plugin",
                                        .what = "UCX for data between hosts (or unset MS_NET)",
                                        .nbytes = 1 << 20};
    const msi_engine_ops *(*plugin)(void);
    const char *why;
    void *symbol;

    *out = NULL;
    if (msi_switch_choice("MS_NET", choices, MSI_COUNT(choices), 0) == 0) {
        return MS_OK;
    }
    MS_TRY(msi_library_open(ctx, &library, &symbol, &why));
    if (symbol == NULL) {
        return MS_FAIL(MS_COMM_ERROR,
                       "MS_NET is 'ucx', which needs %s, built with libucx-dev, and libucx0: %s; "
                       "unset MS_NET to use TCP",
                       library.file, why);
    }
    memcpy(&plugin, &symbol, sizeof(plugin));
    *out = plugin();
    return (*out)->version == MSI_ENGINE_VERSION
               ? MS_OK
               : MS_FAIL(MS_COMM_ERROR, "%s has interface version %d, expected %d", library.file,
                         (int)(*out)->version, MSI_ENGINE_VERSION);
}

ms_status msi_job_mirror(msi_job *job, int32_t rank, int32_t listener)
{
    const msi_block *b = job->block;
    const msi_engine_ops *engine;

    MS_TRY(msi_job_engine(msi_context(), &engine));
    const msi_mirror_setup setup = {.rank = rank,
                                    .world = job->world,
                                    .addresses = &b->rank[0].address,
                                    .address_step = sizeof(b->rank[0]),
                                    .listener = listener,
                                    .layout = b->layout,
                                    .secret = b->secret,
                                    .base = job->block,
                                    .nbytes = b->nbytes,
                                    .sent = &job->block->rank[rank].sent,
                                    .stored = &job->block->rank[rank].stored,
                                    .engine = engine,
                                    .wake = wake,
                                    .failed = failed,
                                    .is_gone = is_gone,
                                    .user = job};

    job->own = rank;
    return msi_mirror_new(&job->mirror, &setup);
}

const char *msi_job_between_hosts(const msi_job *job)
{
    return job->mirror != NULL && strcmp(msi_mirror_engine(job->mirror), "ucx") == 0 ? "shm+ucx"
                                                                                     : "shm+tcp";
}

/* Ranks of other hosts that may still send, while the job has not failed. */
static bool is_awaited(const msi_job *job)
{
    bool any = false;

    for (int32_t r = 0; r < job->world; r++) {
        const int32_t state = atomic_load(&job->block->rank[r].state);

        any =
            any || (!msi_job_is_local(job, r) && state != MSI_RANK_LEFT && state != MSI_RANK_DEAD);
    }
    return any && atomic_load(&job->block->abort) == 0;
}

void msi_job_linger(msi_job *job, int32_t rank)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    msi_job_set_state(job, rank, MSI_RANK_LEFT);
    while (job->mirror != NULL && is_awaited(job)) {
        nanosleep(&moment, NULL);
    }
}

void msi_job_flush(const msi_job *job)
{
    if (job->mirror != NULL) {
        msi_mirror_flush(job->mirror);
    }
}
