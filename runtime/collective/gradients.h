/* What the rows of collectives share: attributes of a recorded one, and collectives in backward. */
#ifndef MSI_GRADIENTS_H
#define MSI_GRADIENTS_H

#include "autograd.h"
#include "collective.h"

/* With the serial that identifies the group. `how`: reduction or root. */
msi_collective msi_collective_of(ms_comm *comm, int32_t how);
/* Run a collective on `x`. If it is recorded, its group is kept for backward while it is abandoned.
 */
ms_status msi_collective_run(const msi_op *op, const msi_collective *attrs, ms_tensor *x,
                             ms_tensor **out);
/* Run a collective of backward, observed as others, into `out`. `attrs` are those of `op`; the
 * group is filled in. MS_RUNTIME_ERROR if the group was freed since. */
ms_status msi_run_in_backward(msi_bwd *b, const msi_op *op, msi_collective *attrs,
                              const msi_view *in, const msi_view *out);

#endif
