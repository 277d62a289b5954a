/* Calls from job/ into groups, and the public functions that make a job. */
#include "group.h"

static void positions(msi_job *job, char *buffer, size_t nbytes)
{
    int32_t in_job[job->world];
    uint64_t checked[job->world];
    ms_comm all = {0};

    msi_members_of_job(&all, job, -1, in_job, checked);
    msi_positions_text(&all, buffer, nbytes);
}

static void compare_left(msi_job *job)
{
    int32_t in_job[job->world];
    uint64_t checked[job->world];
    ms_comm all = {0};

    if (job->world > 1 && atomic_load(&job->block->abort) == 0) {
        msi_members_of_job(&all, job, 0, in_job, checked);
        msi_members_left_alike(&all);
    }
}

const msi_job_guest msi_job_of_groups = {.layout = msi_members_layout,
                                         .nbytes = msi_members_bytes,
                                         .positions = positions,
                                         .leave = msi_groups_leave,
                                         .end = msi_groups_end,
                                         .compare_left = compare_left};

ms_status ms_launch_fork(ms_launch **out, int32_t n, int32_t *rank)
{
    return msi_launch_fork(out, &msi_job_of_groups, n, rank);
}

ms_status ms_launch_exec(ms_launch **out, int32_t n, const char *const *argv, bool prefix)
{
    return msi_launch_exec(out, &msi_job_of_groups, n, NULL, argv, prefix);
}

ms_status ms_launch_hosts(ms_launch **out, const ms_hosts *hosts, int32_t n,
                          const char *const *argv, bool prefix)
{
    return msi_launch_exec(out, &msi_job_of_groups, n, hosts, argv, prefix);
}

ms_status ms_dist_threads(int32_t n, ms_status (*fn)(void *user, int32_t rank), void *user)
{
    return msi_dist_threads(&msi_job_of_groups, n, fn, user);
}

ms_status ms_dist_join(void)
{
    return msi_dist_join(&msi_job_of_groups);
}
