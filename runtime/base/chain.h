/* List of a layer's objects in a context, to close them. Allocates nothing. */
#ifndef MSI_CHAIN_H
#define MSI_CHAIN_H

#include "base.h"

/* A list link, zeroed. */
typedef struct msi_chained {
    struct msi_chained *next;
    void *owner;
} msi_chained;

/* The list is the layer's only state in the context. `close` gets its first link. */
void msi_chain_add(ms_context *ctx, int32_t room, msi_chained *link, void *owner,
                   void (*close)(void *first));
/* Remove, if present. */
void msi_chain_remove(ms_context *ctx, int32_t room, msi_chained *link);

#endif
