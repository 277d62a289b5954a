/* What carries data between hosts beside the TCP connections of mirror.c: a plug-in over a network
 * library, libmoonshard_ucx.so for RDMA networks.
 *
 * A message has a tag, which sender and receiver number alike. A receive may be posted before or
 * after its message arrives. One thread at a time calls an engine. No call waits for peers, and
 * none detects that a peer has ended: launchers do (job/agent.h). */
#ifndef MSI_ENGINE_H
#define MSI_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MSI_ENGINE_VERSION = 1, /* of this file */
    MSI_ENGINE_ERROR = 160  /* bytes of an error text */
};

/* Called for each completed send or receive that it was passed to, by send(), receive() or
 * progress(). `error`: NULL, or why the transfer failed. It must not call the engine. */
typedef struct msi_engine_call {
    void (*done)(struct msi_engine_call *call, const char *error);
} msi_engine_call;

/* This rank's end. */
typedef struct msi_engine {
    void *state;
    int32_t fd;          /* readable when progress() is due */
    const void *address; /* for connect() on other hosts */
    uint32_t address_nbytes;
} msi_engine;

typedef struct msi_engine_ops {
    int32_t version;
    const char *kind; /* "ucx" */
    /* Both return false if they failed; `error` (MSI_ENGINE_ERROR bytes) is then the reason. */
    bool (*open)(msi_engine *out, char *error);
    /* Valid until close(). */
    bool (*connect)(void *state, void **peer, const void *address, char *error);
    /* `data` stays as it is until it was sent. */
    void (*send)(void *state, void *peer, uint64_t tag, const void *data, int64_t nbytes,
                 msi_engine_call *call);
    void (*receive)(void *state, uint64_t tag, void *data, int64_t nbytes, msi_engine_call *call);
    /* Continue transfers. True: nothing is due until `fd` is readable. */
    bool (*progress)(void *state);
    /* Incomplete transfers end without a call. */
    void (*close)(void *state);
} msi_engine_ops;

/* Exported by the plug-in. */
const msi_engine_ops *msi_engine_plugin(void);

#endif
