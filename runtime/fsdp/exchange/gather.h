/* How a unit's full parameters are obtained: from all ranks' extents, in a shared slot or pulled
 * from their stages into private memory; by the devices' communicator; as the master itself; or as
 * a private copy of it in a lower precision. Chosen when the model is first used. */
#ifndef MSI_FSDP_GATHER_H
#define MSI_FSDP_GATHER_H

#include "progress.h"
#include "slot.h"

typedef struct msi_gather msi_gather;

typedef struct msi_gather_ops {
    /* True: gathered from peers through a slot, constant until end(). False: follows the master. */
    bool shares;
    /* True if begin() needs no allocation (for prefetch). */
    bool (*available)(const msi_gather *g);
    /* Commit the use; fill in own extents once they may be written. */
    ms_status (*begin)(msi_gather *g);
    /* Wait for the peers' extents. `stale`: the master was written since fill(); without peers it
     * is filled again. */
    ms_status (*ready)(msi_gather *g, bool stale, void **full);
    /* End of reading. Needs neither memory nor peers. */
    void (*end)(msi_gather *g);
} msi_gather_ops;

/* Calls to the unit. */
typedef struct msi_gather_user {
    /* Cast the master's extents: to their positions in the full parameters (which may be the master
     * itself), or if `staged` contiguously, as in the shard. */
    ms_status (*fill)(void *unit, void *to, bool staged);
    /* Copy rank q's extents from its stage to their positions. */
    ms_status (*pull)(void *unit, int32_t q, const void *stage, void *full);
    /* Share the extents that fill() wrote with other hosts. */
    void (*share)(void *unit, const void *full);
    /* It was filled and published. */
    void (*filled)(void *unit);
    /* Version of the master. */
    int64_t (*version)(const void *unit);
} msi_gather_user;

struct msi_gather {
    msi_task task; /* fills once the slot may be written */
    const msi_gather_ops *ops;
    ms_context *ctx;
    msi_progress *progress;
    msi_slot_pool *pool;
    const msi_gather_user *user;
    void *unit;
    msi_fingerprint fp; /* of every use, except slot and generation */
    msi_slot *home;     /* own slot, or NULL: use the ring */
    msi_slot *slot;     /* between begin and end */
    uint64_t seq;
    uint64_t schedule_hash; /* this rank's hash when the use was committed */
    bool joined;            /* stream COMPUTE waits for GATHER */
    /* After the writes of master version `written_version`. */
    msi_mark written;
    int64_t written_version;
    void *data;             /* the master, where it is read itself */
    msi_mem_block *block;   /* of the private copy; NULL: none yet */
    int64_t copied_version; /* of the master, in the private copy */
    int64_t nbytes;         /* of the full parameters */
    int64_t shard_numel;
    int64_t staged_at; /* nccl: bytes before the shards in a row, in the slot's private memory; 0:
                          they are the full parameters */
};

extern const msi_gather_ops msi_gather_shared, msi_gather_pull, msi_gather_nccl, msi_gather_alias,
    msi_gather_resident;

/* Free the private copy. */
void msi_gather_dispose(msi_gather *g);

#endif
