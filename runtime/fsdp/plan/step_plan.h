/* All that is known of a step of training before there is any memory: see ms_fsdp_plan. */
#ifndef MSI_FSDP_STEP_PLAN_H
#define MSI_FSDP_STEP_PLAN_H

#include "moonshard/fsdp.h"
#include "slots_plan.h"

typedef struct msi_step {
    int32_t rank, world;
    int32_t n_ring; /* slots of parameters that units take in turn, at most */
    msi_slots_layout layout;
    bool wide;             /* gradient slots hold inner nodes already */
    int64_t micro_batches; /* backwards, of which the last reduces */
} msi_step;

/* Of groups that a host describes itself: MS_VALUE_ERROR, MS_TYPE_ERROR name what no unit can be.
 */
ms_status msi_plan_check(const msi_group_facts *groups, int32_t n);
/* But `same_numerics`, which takes asking. */
ms_status msi_plan_step(const msi_group_facts *groups, int32_t n, const msi_step *step,
                        ms_fsdp_plan *plan);
/* How often a group's parameters are gathered in a step: for each forward, and again for its
 * backward where they were given back between. */
int64_t msi_plan_gathers(const msi_group_facts *group, int64_t micro_batches);

#endif
