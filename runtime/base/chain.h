/* What a context keeps in one of its rooms to be found when it is closed. Takes no memory. */
#ifndef MSI_CHAIN_H
#define MSI_CHAIN_H

#include "base.h"

/* A member of what is kept, zeroed. */
typedef struct msi_chained {
    struct msi_chained *next;
    void *owner;
} msi_chained;

/* The room's state is its chain: nothing else is kept there. `close` gets its first. */
void msi_chain_add(ms_context *ctx, int32_t room, msi_chained *link, void *owner,
                   void (*close)(void *first));
/* If it is there. */
void msi_chain_remove(ms_context *ctx, int32_t room, msi_chained *link);

#endif
