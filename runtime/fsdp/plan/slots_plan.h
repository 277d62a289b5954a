/* Where slots lie: pure arithmetic, no memory of its own but for a moment, no ranks. */
#ifndef MSI_FSDP_SLOTS_PLAN_H
#define MSI_FSDP_SLOTS_PLAN_H

#include "group_facts.h"

enum {
    MSI_PAGE = 4096,
    MSI_SLOT_WORDS = 128, /* bytes of one rank's words about one slot */
    MSI_GRADIENT_RING = 2 /* slots of gradients that units take in turn */
};

/* Where full parameters are gathered. Gradients lie apart, a part for each rank, in both. */
typedef enum msi_slots_layout {
    MSI_SLOTS_AUTO,   /* one of the others, by where the ranks' devices have their memory */
    MSI_SLOTS_SHARED, /* in one place that all ranks see: each casts its extents into it */
    MSI_SLOTS_PULL /* in every rank's own memory: each casts its extents into its stage, a part of
                      the slot, and copies the others' from theirs */
} msi_slots_layout;

/* One unit's share in the slots of one kind. */
typedef struct msi_slot_wish {
    int64_t nbytes;     /* of one part; 0: no slot */
    int64_t own_bytes;  /* of what this rank keeps for itself of a slot */
    int64_t word_bytes; /* of one rank's words and flags */
    bool keeps;         /* holds one for long: it must not take the ring's */
    bool owns;          /* has a home slot ... */
    int64_t at_words;   /* ... whose words are here ... */
    int64_t offset;     /* ... and its parts here */
} msi_slot_wish;

/* The words of all slots, then the ring's slots and home slots, as if they lay together. */
typedef struct msi_slots_plan {
    msi_slots_layout layout; /* of parameters; 0 of gradients */
    int32_t n_ring, n_homes;
    int32_t world, n_parts; /* parts of a slot: one that all ranks share, or one for each */
    int64_t word_bytes;     /* of one rank's words and flags about a ring slot */
    int64_t ring_bytes;     /* of a part of a ring slot, whole pages */
    int64_t own_bytes;      /* of what this rank keeps for itself of a ring slot, whole pages */
    int64_t offset;         /* of the ring's first slot */
    int64_t nbytes;         /* of all that; 0: nobody needs any */
    int64_t own_nbytes;     /* of what this rank keeps for itself of all slots */
} msi_slots_plan;

/* Homes for those that keep theirs and those with more than twice the median of the rest; for the
 * others at most `n_ring` slots of the largest. `wishes` (n). */
ms_status msi_plan_param_slots(const msi_group_facts *groups, int32_t n, int32_t n_ring,
                               int32_t world, msi_slots_layout layout, msi_slot_wish *wishes,
                               msi_slots_plan *plan);
/* `wide`: they hold inner nodes of the tree over micro-batches, too. */
ms_status msi_plan_gradient_slots(const msi_group_facts *groups, int32_t n, bool wide,
                                  int32_t world, msi_slot_wish *wishes, msi_slots_plan *plan);
/* The same slots with one rank's words and one part, to which `wishes` (n) are moved. */
msi_slots_plan msi_slots_plan_of_one(const msi_slots_plan *plan, msi_slot_wish *wishes, int32_t n);
/* Bytes of one more slot of the ring with its words; its parts begin at `*offset`. */
int64_t msi_slots_plan_one(const msi_slots_plan *plan, int64_t *offset);

#endif
