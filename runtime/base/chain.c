#include "chain.h"

void msi_chain_add(ms_context *ctx, int32_t room, msi_chained *link, void *owner,
                   void (*close)(void *first))
{
    link->owner = owner;
    link->next = ctx->room[room];
    ctx->room[room] = link;
    ctx->close[room] = close;
}

void msi_chain_remove(ms_context *ctx, int32_t room, msi_chained *link)
{
    msi_chained *before = NULL, *at = ctx->room[room];

    while (at != NULL && at != link) {
        before = at;
        at = at->next;
    }
    if (at == NULL) {
        return;
    }
    if (before == NULL) {
        ctx->room[room] = link->next;
    } else {
        before->next = link->next;
    }
}
