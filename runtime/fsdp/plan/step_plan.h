/* What is known of a training step before any allocation: see ms_fsdp_plan. */
#ifndef MSI_FSDP_STEP_PLAN_H
#define MSI_FSDP_STEP_PLAN_H

#include "moonshard/fsdp.h"
#include "slots_plan.h"

typedef struct msi_step {
    int32_t rank, world, hosts;
    int32_t n_ring; /* parameter slots that units use in turn, at most */
    msi_slots_layout layout;
    bool wide;             /* gradient slots hold inner nodes */
    int64_t micro_batches; /* backwards; the last one reduces */
} msi_step;

/* Check groups described by a host: MS_VALUE_ERROR, MS_TYPE_ERROR for impossible units. */
ms_status msi_plan_check(const msi_group_facts *groups, int32_t n);
/* All but `same_numerics`. */
ms_status msi_plan_step(const msi_group_facts *groups, int32_t n, const msi_step *step,
                        ms_fsdp_plan *plan);
/* Ranks among which the parameters of a tree are divided. */
int32_t msi_plan_shards(const msi_group_facts *groups, int32_t n, int32_t world);
/* Gathers of a group's parameters per step: one per forward, and one per backward if they were
 * released between. */
int64_t msi_plan_gathers(const msi_group_facts *group, int64_t micro_batches);

#endif
