/* How a unit's gradients are summed: every rank writes its own into its part of a slot; then each
 * rank adds its extents of all parts, in place. Replicas add one chunk each, then copy the other
 * chunks.
 *
 * On several hosts, ranks of equal place on their hosts work together: each sums its host's parts
 * of what the others own, and sends them these roots, unrounded; the owner continues the tree over
 * roots. With 2^k ranks a host the sum has the bits of one host.
 *
 * In layout nccl the devices' communicator moves gradients when they are closed, in program order:
 * each rank gets the pieces of its shard or chunk of all gradients, and sums them by the same tree;
 * replicas then gather the sums. MS_NCCL_DETERMINISTIC=0: the communicator sums the pieces. */
#ifndef MSI_FSDP_REDUCTION_H
#define MSI_FSDP_REDUCTION_H

#include "extent.h"
#include "progress.h"
#include "slot.h"

enum {
    MSI_GRAD_NONE,    /* nothing */
    MSI_GRAD_WRITING, /* the running backward writes it */
    MSI_GRAD_READY,   /* complete in the slot; own extents unreduced */
    MSI_GRAD_ROOTED,  /* several hosts: this host's roots are sent, the others' have not all come */
    MSI_GRAD_REDUCED  /* replicas: own chunk reduced, the others' not copied */
};

/* Calls to the unit. */
typedef struct msi_reduction_user {
    /* Destination of the sum of own extents; `*add`: accumulate into it. */
    ms_status (*prepare)(void *unit, void **out, bool *add);
    /* Copy each shard's elements of a whole gradient to its position in a row of shards. */
    ms_status (*pack)(void *unit, const void *whole, void *shards);
    /* Extents of shard `shard`, until the next call. */
    ms_status (*extents)(void *unit, int32_t shard, const msi_extent **extents, int32_t *n);
    /* The sum is complete, the slot valid. Needs no memory. */
    void (*arrived)(void *unit);
    /* It was dropped. Needs no memory. */
    void (*dropped)(void *unit);
    /* The phase has changed. */
    void (*changed)(void *unit);
} msi_reduction_user;

typedef struct msi_reduction_ops msi_reduction_ops;

typedef struct msi_reduction {
    msi_task task; /* until the sum is complete */
    const msi_reduction_ops *ops;
    msi_progress *progress;
    msi_slot_pool *pool;
    const msi_reduction_user *user;
    void *unit;
    msi_fingerprint fp; /* of every use, except slot, generation and dtype */
    int32_t rank, world;
    const msi_hosts *hosts;
    bool replicated;       /* every rank gets the whole sum */
    int64_t total;         /* elements of one rank's whole gradient, without tail padding */
    int64_t full, shard;   /* with it, and of a shard */
    int32_t n_shards;      /* ranks among which the sum is divided; of a replica all */
    int64_t root_at;       /* several hosts: bytes of a part's gradient, before roots */
    bool packs;            /* the whole gradient is not the shards in a row */
    const msi_extent *own; /* (n_own) what this rank gets of the sum; set when it is closed */
    int32_t n_own;
    int32_t sum_dtype, round_dtype;
    int32_t node_dtype; /* of inner nodes: f32 or f64 */

    msi_slot *home; /* own slot, or NULL: use the ring */
    msi_slot *slot; /* from open() until the sum is complete */
    uint64_t seq;
    int32_t phase; /* MSI_GRAD_* */
    int32_t dtype; /* of the gradient in the slot */
    double factor;
    msi_mark written; /* after the writes of this rank's gradient */
    msi_mark summed;  /* after the latest sum */
} msi_reduction;

/* Use the slots of a pool; ranks and `replicated` are set. */
void msi_reduction_connect(msi_reduction *r, msi_slot_pool *pool);
/* Enter a phase, and report it to the unit. */
void msi_reduction_set(msi_reduction *r, int32_t phase);
/* Take a slot that every peer has released. */
ms_status msi_reduction_open(msi_reduction *r);
/* Rank's part, and flags of the parameters it contributed to. */
void *msi_reduction_part(const msi_reduction *r, int32_t rank);
bool *msi_reduction_flags(const msi_reduction *r, int32_t rank);
/* This rank's part is complete, in `dtype`: commit it; reduce when all are. The sum is multiplied
 * by `factor`. `whole`: all flags are set. */
ms_status msi_reduction_close(msi_reduction *r, int32_t dtype, double factor, bool whole);
/* True if any rank contributed to parameter `index`. */
bool msi_reduction_has(const msi_reduction *r, int32_t index);
/* Drop an open or closed gradient and its slot. Needs neither memory nor peers. */
void msi_reduction_drop(msi_reduction *r);
/* Wait until the closed gradient is reduced. */
ms_status msi_reduction_wait(msi_reduction *r);
/* Stream COMPUTE waits for the latest sum. */
void msi_reduction_join(const msi_reduction *r);
/* Wait for all closed gradients. */
ms_status msi_reductions_finish(msi_progress *progress, const msi_slot_pool *pool);

#endif
