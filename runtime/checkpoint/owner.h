/* Which group of a job saves what under a root: of two that save one checkpoint, or steps under one
 * root, the model of one would be gone. */
#ifndef MSI_OWNER_H
#define MSI_OWNER_H

#include "comm.h"

/* Bytes of a mark: 12 of a nonce's 16 digits, and zero; and of the members in words. */
enum { MSI_OWNER_ROOM = 13, MSI_OWNER_RANKS = 48 };

typedef struct msi_owner {
    char mark[MSI_OWNER_ROOM];   /* what the nonces of a group's writers begin with: digits of its
                                    job, then of its members */
    char ranks[MSI_OWNER_RANKS]; /* "2, 0"; of many, the first and the last */
} msi_owner;

msi_owner msi_owner_of(const ms_comm *comm);
/* Does another group of the job write, or has it saved, checkpoint `name` under `root`? Where that
 * is a step's name, or NULL, any of a step counts: those under one root are one group's. Of two
 * writers that ask, each holding its own folder, one at least is told. Reads the head of every
 * manifest that counts, or that of the last step alone where it is the group's; what cannot be read
 * is nobody's.
 * @return MS_VALUE_ERROR: another does */
ms_status msi_owner_check(const char *root, const char *name, const msi_owner *asks);

#endif
