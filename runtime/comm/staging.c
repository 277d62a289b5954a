/* Moving bytes between ranks: every rank stages a chunk, all wait for all, all read.
 *
 * Each rank alternates two buffers. It may overwrite the buffer of step k in step k + 2: all have
 * arrived at k + 1, so all have finished reading step k. */
#include "shm.h"

#include <string.h>

static char *buffer_of(ms_comm *c, int32_t q, uint64_t step)
{
    return c->staging + ((int64_t)q * 2 + (int64_t)(step & 1)) * MSI_CHUNK;
}

char *msi_stage_own(ms_comm *c)
{
    return buffer_of(c, c->rank, c->step + 1);
}

const char *msi_stage_of(ms_comm *c, int32_t q)
{
    return buffer_of(c, q, c->step);
}

static bool all_arrived(void *user)
{
    const ms_comm *c = user;

    for (int32_t q = 0; q < c->size; q++) {
        if (atomic_load_explicit(&c->members[q].arrived, memory_order_acquire) < c->step) {
            return false;
        }
    }
    return true;
}

ms_status msi_stage_step(ms_comm *c, uint64_t seq, int64_t nbytes)
{
    msi_comm_put(c, MSI_MIRROR_DATA, msi_stage_own(c), nbytes);
    c->step++;
    atomic_store(&c->members[c->rank].arrived, c->step);
    msi_comm_put(c, MSI_MIRROR_WORDS, (const void *)&c->members[c->rank].arrived, 8);
    msi_comm_ring(c);
    return msi_comm_wait(c, seq, all_arrived, c);
}

ms_status msi_stage_barrier(ms_comm *c, uint64_t seq)
{
    return msi_stage_step(c, seq, 0);
}

ms_status msi_stage_exchange(ms_comm *c, uint64_t seq, const void *in, int64_t nbytes, void *out)
{
    const char *from = in;
    char *to = out;

    for (int64_t at = 0; at == 0 || at < nbytes; at += MSI_CHUNK) {
        size_t n = (size_t)(nbytes - at < MSI_CHUNK ? nbytes - at : MSI_CHUNK);

        memcpy(msi_stage_own(c), from + at, n);
        MS_TRY(msi_stage_step(c, seq, (int64_t)n));
        for (int32_t q = 0; q < c->size; q++) {
            char *place = to + q * nbytes + at;

            if (q != c->rank) {
                memcpy(place, msi_stage_of(c, q), n);
            } else if (place != from + at) {
                memcpy(place, from + at, n);
            }
        }
    }
    return MS_OK;
}
