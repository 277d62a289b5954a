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
    uint32_t seen[world->size], mine = msi_stop_look(world->dist);

    MS_TRY(msi_comm_gather_bytes(world, "stop_requested", &mine, sizeof(mine), seen));
    for (int32_t q = 0; q < world->size; q++) {
        all |= seen[q];
    }
    *signal = msi_stop_agreed(world->dist, all);
    return MS_OK;
}
