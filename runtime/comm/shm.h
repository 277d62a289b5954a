/* Private part of the shared memory transport. */
#ifndef MSI_SHM_H
#define MSI_SHM_H

#include "group.h"

/* -- staging.c: moving bytes in steps ---------------------------------------------------------- */
/* This rank's buffer (MSI_CHUNK bytes) for the next step. */
char *msi_stage_own(ms_comm *c);
/* Publish `nbytes` of it, wait for all members. */
ms_status msi_stage_step(ms_comm *c, uint64_t seq, int64_t nbytes);
/* Without data. */
ms_status msi_stage_barrier(ms_comm *c, uint64_t seq);
/* Member q's bytes of the last step; valid until the step after the next begins. */
const char *msi_stage_of(ms_comm *c, int32_t q);
/* For a published `seq`: nbytes from every member to every member. */
ms_status msi_stage_exchange(ms_comm *c, uint64_t seq, const void *in, int64_t nbytes, void *out);

#endif
