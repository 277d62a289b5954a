/* How a unit's full parameters come about: from all ranks' extents, in a slot that all share or
 * pulled from their stages into memory of this rank's own; as the master itself; or as a private
 * copy of it in a lower precision. Chosen once, when a model is first used. */
#ifndef MSI_FSDP_GATHER_H
#define MSI_FSDP_GATHER_H

#include "progress.h"
#include "slot.h"

typedef struct msi_gather msi_gather;

typedef struct msi_gather_ops {
    /* From the peers, by a slot? What it gives stays as it is until end(); the others follow the
     * master. */
    bool shares;
    /* Could it begin without more memory? (prefetch asks) */
    bool (*available)(const msi_gather *g);
    /* Name the use; give own extents as soon as they may be written. */
    ms_status (*begin)(msi_gather *g);
    /* Wait for what the peers give. `stale`: the master was written since fill(); where nobody
     * shares it is filled in anew. */
    ms_status (*ready)(msi_gather *g, bool stale, void **full);
    /* Done reading. Needs neither memory nor peers. */
    void (*end)(msi_gather *g);
} msi_gather_ops;

/* What it asks of the unit. */
typedef struct msi_gather_user {
    /* Cast the master's extents: to their places in the full parameters, which may be the master
     * itself, or, `staged`, one behind the other as they lie in the shard. */
    ms_status (*fill)(void *unit, void *to, bool staged);
    /* Copy rank q's extents from its stage to their places. */
    ms_status (*pull)(void *unit, int32_t q, const void *stage, void *full);
    /* The peers know of the filling. */
    void (*filled)(void *unit);
    /* Of the master's values. */
    int64_t (*version)(const void *unit);
} msi_gather_user;

struct msi_gather {
    msi_task task; /* filling, until the slot may be written */
    const msi_gather_ops *ops;
    ms_context *ctx;
    msi_progress *progress;
    msi_slot_pool *pool;
    const msi_gather_user *user;
    void *unit;
    msi_fingerprint fp; /* what every use is named with, but for slot and generation */
    msi_slot *home;     /* own slot, or NULL: one of the ring */
    msi_slot *slot;     /* between begin and end */
    uint64_t seq;
    uint64_t schedule_hash; /* all that this rank had said when it named the use */
    bool joined;            /* what computes goes on after what gathers */
    /* After what wrote the master's values of version `written_version`. */
    msi_mark written;
    int64_t written_version;
    void *data;           /* the master's or the private copy's, NULL: not made yet */
    msi_mem_block *block; /* the private copy */
    int64_t nbytes;       /* of the full parameters */
};

extern const msi_gather_ops msi_gather_shared, msi_gather_pull, msi_gather_alias,
    msi_gather_resident;

/* Give back what the private copy takes. */
void msi_gather_dispose(msi_gather *g);
/* Named, and not filled: depends on how far peers are, so nothing may be decided by it. */
static inline bool msi_gather_is_queued(const msi_gather *g)
{
    return g->task.listed;
}

#endif
