/* Ranks agree on the step after which they stop. */
#include "group.h"

ms_status ms_dist_catch_signals(void)
{
    MS_TRY(ms_dist_join());
    return msi_stop_catch(msi_dist_state());
}

/* Signals of any member or the launcher; in a fake group of this rank only. */
static ms_status seen_by_any(uint32_t *all, ms_comm *comm)
{
    const uint32_t mine = msi_stop_look(comm->dist);

    *all = mine;
    if (comm->n_members == 1) {
        return MS_OK;
    }
    uint32_t seen[comm->size];

    MS_TRY(msi_comm_gather_bytes(comm, "stop_requested", &mine, sizeof(mine), seen));
    for (int32_t q = 0; q < comm->size; q++) {
        *all |= seen[q];
    }
    return MS_OK;
}

ms_status ms_comm_stop_agreed(ms_comm *comm, int32_t *signal)
{
    uint32_t all;

    *signal = 0;
    if (comm->dist->gone != MSI_GONE_NOT) {
        return msi_gone_error(comm->dist);
    }
    MS_TRY(seen_by_any(&all, comm));
    *signal = msi_stop_agreed(comm->dist, all);
    return MS_OK;
}

ms_status ms_dist_stop_agreed(int32_t *signal)
{
    ms_comm *world;

    *signal = 0;
    MS_TRY(ms_comm_world(&world));
    return ms_comm_stop_agreed(world, signal);
}
