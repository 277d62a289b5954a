/* Assigning cores to ranks. Ranks that share a core slow each other down, so each gets its own. */
#include "job.h"

#include <sched.h>

int32_t msi_cores_allowed(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

void msi_cores_pin(int32_t rank, int32_t world)
{
    cpu_set_t allowed, mine;
    int32_t n, seen = 0;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return;
    }
    n = CPU_COUNT(&allowed);
    if (world > n) {
        return; /* leave sharing to the scheduler */
    }
    int32_t first = rank * n / world, last = (rank + 1) * n / world;

    CPU_ZERO(&mine);
    for (int32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed)) {
            continue;
        }
        if (seen >= first && seen < last) {
            CPU_SET(cpu, &mine);
        }
        seen++;
    }
    sched_setaffinity(0, sizeof(mine), &mine); /* optional: only affects speed */
}
