/* Bytes that training allocates: see ms_fsdp_plan. */
#ifndef MSI_FSDP_MEMORY_PLAN_H
#define MSI_FSDP_MEMORY_PLAN_H

#include "group_facts.h"

/* Masters, and private copies of replicas in a lower precision. */
int64_t msi_plan_masters(const msi_group_facts *groups, int32_t n);
/* One optimizer state, without padding and frozen elements. */
int64_t msi_plan_state(const msi_group_facts *groups, int32_t n);
/* Maximum of the gradients in a step of `m` backwards. */
int64_t msi_plan_gradients(const msi_group_facts *groups, int32_t n, int64_t m);

#endif
