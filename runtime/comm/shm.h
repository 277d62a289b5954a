/* The transport over shared memory from the inside. */
#ifndef MSI_SHM_H
#define MSI_SHM_H

#include "group.h"

/* -- staging.c: moving bytes in steps ---------------------------------------------------------- */
/* Where this rank puts its bytes (MSI_CHUNK at most) for the coming step. */
char *msi_stage_own(ms_comm *c);
/* Say that they are there, wait for everybody's. */
ms_status msi_stage_step(ms_comm *c, uint64_t seq);
/* Member q's bytes of the step just made; they stay until the step after the next begins. */
const char *msi_stage_of(ms_comm *c, int32_t q);
/* Under an already published `seq`: nbytes from every member to every member. */
ms_status msi_stage_exchange(ms_comm *c, uint64_t seq, const void *in, int64_t nbytes, void *out);

#endif
