/* Ranks agree on the step after which they stop. */
#include "group.h"

ms_status ms_dist_catch_signals(void)
{
    MS_TRY(ms_dist_join());
    return msi_stop_catch(msi_dist_state());
}

ms_status ms_dist_stop_agreed(int32_t *signal)
{
    uint32_t all = 0;
    ms_comm *world;

    *signal = 0;
    MS_TRY(ms_comm_world(&world));
    msi_block *block = world->job->block;
    uint32_t seen[world->size], mine = msi_stop_caught() | atomic_load(&block->stop);

    atomic_fetch_add(&block->slot[world->rank].looks, 1);
    MS_TRY(msi_comm_gather_bytes(world, "stop_requested", &mine, sizeof(mine), seen));
    for (int32_t q = 0; q < world->size; q++) {
        all |= seen[q];
    }
    *signal = msi_stop_signal(all);
    if (all != 0) { /* so that the launcher knows the ranks' exit codes as asked for */
        atomic_fetch_or(&block->stop, all);
    }
    return MS_OK;
}
