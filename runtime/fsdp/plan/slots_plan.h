/* Offsets of slots: arithmetic only, without ranks or lasting memory. */
#ifndef MSI_FSDP_SLOTS_PLAN_H
#define MSI_FSDP_SLOTS_PLAN_H

#include "group_facts.h"

enum {
    MSI_PAGE = 4096,
    MSI_SLOT_WORDS = 128, /* bytes of one rank's words of a slot */
    MSI_GRADIENT_RING = 2 /* gradient slots that units use in turn */
};

/* Where full parameters are gathered. Gradients have one part per rank, except in layout nccl. */
typedef enum msi_slots_layout {
    MSI_SLOTS_AUTO,   /* chosen by where the ranks' devices have their memory */
    MSI_SLOTS_SHARED, /* in one shared part: each rank casts its extents into it */
    MSI_SLOTS_PULL, /* in private memory: each rank casts its extents into its stage, a part of the
                       slot, and copies the others' from theirs */
    MSI_SLOTS_NCCL  /* in private memory, by the devices' communicator; so are gradients: slots have
                       words only */
} msi_slots_layout;

/* One unit's needs of slots of one kind. */
typedef struct msi_slot_wish {
    int64_t nbytes;     /* of one part; 0: no slot */
    int64_t own_bytes;  /* private memory per slot */
    int64_t word_bytes; /* of one rank's words and flags */
    bool keeps;         /* keeps its slot long: must not take one of the ring */
    bool owns;          /* has a home slot */
    int64_t at_words;   /* offset of its words */
    int64_t offset;     /* offset of its parts */
} msi_slot_wish;

/* Words of all slots, then ring slots and home slots, at consecutive offsets. */
typedef struct msi_slots_plan {
    msi_slots_layout layout; /* of gradients shared or nccl */
    int32_t n_ring, n_homes;
    int32_t world, n_parts; /* parts of a slot: one, one per rank of a host, or none (nccl) */
    int64_t word_bytes;     /* of one rank's words and flags of a ring slot */
    int64_t ring_bytes;     /* of a part of a ring slot, whole pages */
    int64_t own_bytes;      /* private memory per ring slot, whole pages */
    int64_t offset;         /* of the ring's first slot */
    int64_t nbytes;         /* total; 0: no slots */
    int64_t own_nbytes;     /* private memory of all slots */
} msi_slots_plan;

/* Home slots for units that keep theirs, and for large ones where that takes fewer bytes; for the
 * others at most `n_ring` slots of the largest size. `wishes` (n). */
ms_status msi_plan_param_slots(const msi_group_facts *groups, int32_t n, int32_t n_ring,
                               int32_t world, msi_slots_layout layout, msi_slot_wish *wishes,
                               msi_slots_plan *plan);
/* `wide`: large enough for inner nodes of the tree over micro-batches. On several `hosts` a part
 * has room for roots as well. */
ms_status msi_plan_gradient_slots(const msi_group_facts *groups, int32_t n, bool wide,
                                  int32_t world, int32_t hosts, msi_slots_layout layout,
                                  msi_slot_wish *wishes, msi_slots_plan *plan);
/* Of the gradient in a slot. */
int32_t msi_gradient_slot_dtype(const msi_group_facts *g, bool wide);
/* A part of gradients on several hosts: this rank's gradient; from `received` on the root of each
 * host's tree over the elements that this rank sums; from `sent` on this host's roots for the ranks
 * of equal place on each host. */
typedef struct msi_roots {
    int64_t each; /* bytes of one host's roots */
    int64_t received, sent, nbytes;
} msi_roots;
/* @param nbytes  of the gradient in the widest dtype
 * @param numel  that a rank sums, of node_dtype */
msi_roots msi_plan_roots(int64_t nbytes, int64_t numel, int32_t hosts, int32_t node_dtype);
/* Layout nccl: a private slot of gradients is this rank's gradient; from `packed` on a piece of it
 * for each rank or (shards) each shard, which is the gradient itself unless that is not the shards
 * in a row; and from `staging` on a piece from each rank. */
typedef struct msi_pieces {
    int64_t each;            /* elements of a piece */
    int64_t packed, staging; /* bytes before */
    int64_t nbytes;          /* in all */
} msi_pieces;
msi_pieces msi_plan_pieces(int64_t full_numel, int64_t shard_numel, int32_t n_shards, bool packs,
                           bool replicated, int32_t world, int32_t dtype);
/* The same slots with one rank's words and one part; moves `wishes` (n) to them. */
msi_slots_plan msi_slots_plan_of_one(const msi_slots_plan *plan, msi_slot_wish *wishes, int32_t n);
/* Bytes of one more slot of the ring with its words; its parts begin at `*offset`. */
int64_t msi_slots_plan_one(const msi_slots_plan *plan, int64_t *offset);

#endif
