/* Memory that ranks of several hosts share: each host has a copy, and what a rank writes is sent to
 * the others.
 *
 * Every word has one writer, and a reader relies on data only after it has seen a word that was
 * stored later. So a copy is right if the writes of a rank arrive in the order in which it made
 * them: all that a rank puts for one target goes over one connection. On each host one rank is the
 * target, and a thread of it stores what arrives.
 *
 * With an engine (engine.h) the bytes of large data go another way, and the order is the same:
 * [Note: payloads].
 *
 * Puts are sent by push(). Words are copied. Data stays where it is until it was sent, so it may
 * change only after peers have reacted to a later word. Functions are for the rank's own thread. */
#ifndef MSI_NET_MIRROR_H
#define MSI_NET_MIRROR_H

#include "engine.h"
#include "socket.h"

typedef struct msi_mirror msi_mirror;

typedef enum msi_mirror_kind {
    MSI_MIRROR_DATA,   /* in any order */
    MSI_MIRROR_WORDS,  /* whole words of 8 bytes, one after another, each at once */
    MSI_MIRROR_RECORD, /* the same, but the first word is cleared before the others, and stored
                          last: [Note: torn reads] */
} msi_mirror_kind;

enum { MSI_MIRROR_WORDS_MOST = 32768 }; /* bytes of one put of words */

typedef struct msi_mirror_setup {
    int32_t rank, world;
    const msi_address *addresses; /* (world) of the ranks' listeners, `address_step` bytes apart */
    int64_t address_step;
    int32_t listener; /* of this rank; taken over */
    uint64_t layout;
    msi_secret secret;
    void *base; /* of the memory with number 0 */
    int64_t nbytes;
    /* Counters of this rank's puts of words, and of the puts of others that are stored. */
    _Atomic uint64_t *sent, *stored;
    const msi_engine_ops *engine; /* which carries large data; NULL: TCP carries all */
    void (*wake)(void *user);     /* words have arrived; called by the thread */
    /* This rank cannot send to `rank`, or cannot receive from it. */
    void (*failed)(void *user, int32_t rank, const char *why);
    /* `rank` will never receive again, or it does not matter. */
    bool (*is_gone)(void *user, int32_t rank);
    void *user;
} msi_mirror_setup;

/* Start the thread. */
ms_status msi_mirror_new(msi_mirror **out, const msi_mirror_setup *setup);
/* Memory with a number that is equal on all hosts. Nobody sends to it before all have added it. */
ms_status msi_mirror_add(msi_mirror *m, uint64_t id, void *base, int64_t nbytes);
/* Waits until what was put from it is sent. What arrives later is dropped. */
void msi_mirror_remove(msi_mirror *m, uint64_t id);
/* Bytes of an added region for the same place on `target`'s host. */
void msi_mirror_put(msi_mirror *m, int32_t target, msi_mirror_kind kind, const void *at,
                    int64_t nbytes);
/* The same, with the bytes at `from`, which may be anywhere. */
void msi_mirror_put_from(msi_mirror *m, int32_t target, msi_mirror_kind kind, const void *at,
                         const void *from, int64_t nbytes);
void msi_mirror_push(msi_mirror *m, int32_t target);
/* Wait until all that was put has been stored. */
void msi_mirror_flush(msi_mirror *m);
/* What carries large data: "tcp", or the engine's kind. */
const char *msi_mirror_engine(const msi_mirror *m);
/* In a process that this rank forked: it sends and receives nothing. */
void msi_mirror_forked(msi_mirror *m);
void msi_mirror_free(msi_mirror *m);

#endif
