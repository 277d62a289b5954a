/* How a unit's gradients become one: every rank writes its own into its part of a slot, and when
 * all are there each adds its extents of all parts, in place. Replicas add a chunk each and then
 * copy the others'. */
#ifndef MSI_FSDP_REDUCTION_H
#define MSI_FSDP_REDUCTION_H

#include "extent.h"
#include "progress.h"
#include "slot.h"

enum {
    MSI_GRAD_NONE,    /* nothing */
    MSI_GRAD_WRITING, /* the running backward writes it */
    MSI_GRAD_READY,   /* complete in the slot; own extents not reduced yet */
    MSI_GRAD_REDUCED  /* of a replica: own chunk reduced; the others' not copied yet */
};

/* What it asks of the unit. */
typedef struct msi_reduction_user {
    /* Where the sum of own extents goes, and whether it adds to what is there. */
    ms_status (*prepare)(void *unit, void **out, bool *add);
    /* The sum is there; the slot still is. Needs no memory. */
    void (*arrived)(void *unit);
    /* It was given up. Needs no memory. */
    void (*dropped)(void *unit);
    /* The phase is another one. */
    void (*changed)(void *unit);
} msi_reduction_user;

typedef struct msi_reduction {
    msi_task task; /* until the sum is there */
    msi_progress *progress;
    msi_slot_pool *pool;
    const msi_reduction_user *user;
    void *unit;
    msi_fingerprint fp; /* what every use is named with, but for slot, generation and dtype */
    int32_t rank, world;
    bool replicated;       /* every rank gets all of it */
    int64_t total;         /* elements of one rank's whole gradient, without padding of the tail */
    const msi_extent *own; /* (n_own) this rank's extents */
    int32_t n_own;
    int32_t sum_dtype, round_dtype;

    msi_slot *home; /* own slot, or NULL: one of the ring */
    msi_slot *slot; /* from open() until the sum is there */
    uint64_t seq;
    int32_t phase; /* MSI_GRAD_* */
    int32_t dtype; /* of the finished gradient in the slot */
    double factor;
    msi_mark written; /* after what wrote this rank's gradient */
    msi_mark summed;  /* after what made the latest sum */
} msi_reduction;

/* Take a slot that every peer has read. */
ms_status msi_reduction_open(msi_reduction *r);
/* Rank's part of it, and which parameters that has contributed to. */
void *msi_reduction_part(const msi_reduction *r, int32_t rank);
bool *msi_reduction_flags(const msi_reduction *r, int32_t rank);
/* This rank's part is complete, in `dtype`: name it, and reduce when all are. The sum is multiplied
 * by `factor`. `whole`: all flags are set. */
ms_status msi_reduction_close(msi_reduction *r, int32_t dtype, double factor, bool whole);
/* Has any rank contributed to parameter `index`? */
bool msi_reduction_has(const msi_reduction *r, int32_t index);
/* Give up what is open or closed, and the slot. Needs neither memory nor peers. */
void msi_reduction_drop(msi_reduction *r);
/* Wait until what was closed is reduced. */
ms_status msi_reduction_wait(msi_reduction *r);
/* What computes from now on sees the latest sum. */
void msi_reduction_join(const msi_reduction *r);
/* Wait for all that was closed. */
ms_status msi_reductions_finish(msi_progress *progress, const msi_slot_pool *pool);

#endif
