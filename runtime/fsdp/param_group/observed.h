/* Units at the one observable point (op.h). */
#ifndef MSI_FSDP_OBSERVED_H
#define MSI_FSDP_OBSERVED_H

#include "unit.h"

/* Attributes of the units' operators. */
typedef struct msi_unit_attrs {
    ms_fsdp_unit *unit;
    bool whole; /* reduction: see msi_reduction_close() */
} msi_unit_attrs;
/* Make `observed`, if needed. `unshard`: the operator that gives shapes of a shard's results. */
ms_status msi_observed_params(ms_fsdp_unit *u, const msi_op *unshard);
void msi_observed_free(ms_fsdp_unit *u);
/* Run `reduce` on tensors: the gradient in the slot, and the result. */
ms_status msi_observed_reduce(ms_fsdp_unit *u, const msi_op *reduce, bool whole);

#endif
