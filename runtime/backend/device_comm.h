/* Communicators: data between the devices of a group's ranks, in the order of their streams. From a
 * plug-in, libmoonshard_nccl.so, for devices that have no memory in common.
 *
 * All members make the same calls on a communicator in the same order: calls belong to the program
 * order, never to tasks whose order depends on timing. No call waits for peers: a call that answers
 * MSI_DEV_NOT_YET is complete once state() is OK, and the next call waits for that. */
#ifndef MSI_DEVICE_COMM_H
#define MSI_DEVICE_COMM_H

#include "device.h"

enum {
    MSI_DEVICE_COMM_VERSION = 2, /* of this file */
    MSI_DEVICE_COMM_ID = 128
};

/* What a rank sends to one member and receives from it. Elements: 0: nothing. */
typedef struct msi_device_part {
    const void *send;
    void *recv;
    int64_t n_send, n_recv;
} msi_device_part;

typedef struct msi_device_comm_ops {
    int32_t version;
    const char *kind; /* "nccl" */
    /* A new communicator's id, made by one member. `error`: MSI_DEVICE_ERROR bytes, as below. */
    int32_t (*id)(void *id, char *error);
    /* Begin to join it with the thread's current device. */
    int32_t (*open)(void **comm, const void *id, int32_t rank, int32_t size, char *error);
    /* MSI_DEV_NOT_YET while a call is incomplete; MSI_DEV_FAILED. */
    int32_t (*state)(void *comm, char *error);
    /* `in` (n) of all -> `out` (size, n), whose part `in` may be. */
    int32_t (*all_gather)(void *comm, void *stream, const void *in, void *out, int64_t n,
                          int32_t dtype, char *error);
    /* The sum of `in` (size, n) in an order of the library's -> `out` (n). */
    int32_t (*reduce_scatter)(void *comm, void *stream, const void *in, void *out, int64_t n,
                              int32_t dtype, char *error);
    int32_t (*broadcast)(void *comm, void *stream, void *data, int64_t n, int32_t dtype,
                         int32_t root, char *error);
    /* parts[q] for every member q except this rank, as one group. */
    int32_t (*exchange)(void *comm, void *stream, const msi_device_part *parts, int32_t dtype,
                        char *error);
    /* End enqueued and incomplete calls, whose results are lost, of a list's communicators (`next`;
     * those with a `state`), and free them. All at once, since ending one waits for its device,
     * where another may be stuck. Never waits for peers. */
    void (*abort)(const struct msi_device_comm *first);
    /* All calls have completed: free it. Waits for peers for a few seconds at most. */
    void (*close)(void *comm);
} msi_device_comm_ops;

/* This rank's end of one. */
typedef struct msi_device_comm {
    const msi_device_comm_ops *ops;
    msi_device *device;
    void *state; /* NULL: aborted */
    int32_t rank, size;
    bool incomplete; /* as of the last poll */
    bool failed;
    int32_t stream; /* of the last call */
    uint32_t used;  /* bits of streams whose calls may wait for peers */
    uint32_t marked;
    msi_mark mark[MSI_STREAMS];   /* after those of marked streams */
    char text[MSI_DEVICE_ERROR];  /* why */
    struct msi_device_comm *next; /* of its device */
} msi_device_comm;

/* True if ranks on such devices can communicate. */
bool msi_device_communicates(const msi_device *d);
/* The context's plug-in. MS_DEVICE_ERROR. */
ms_status msi_device_comm_load(ms_context *ctx, const msi_device_comm_ops **out);
/* Begin to join communicator `id`. */
ms_status msi_device_comm_new(msi_device_comm **out, msi_device *d, const msi_device_comm_ops *ops,
                              const void *id, int32_t rank, int32_t size);
/* True unless its last call is incomplete. */
bool msi_device_comm_is_complete(msi_device_comm *c);
/* MS_DEVICE_ERROR if a call failed. */
ms_status msi_device_comm_check(const msi_device_comm *c);
/* Free it after its work has run. NULL is accepted. */
void msi_device_comm_free(msi_device_comm *c);

/* The calls of the table, to stream `stream` of its device. The last call is complete. */
ms_status msi_device_comm_all_gather(msi_device_comm *c, int32_t stream, const void *in, void *out,
                                     int64_t n, int32_t dtype);
ms_status msi_device_comm_reduce_scatter(msi_device_comm *c, int32_t stream, const void *in,
                                         void *out, int64_t n, int32_t dtype);
ms_status msi_device_comm_broadcast(msi_device_comm *c, int32_t stream, void *data, int64_t n,
                                    int32_t dtype, int32_t root);
ms_status msi_device_comm_exchange(msi_device_comm *c, int32_t stream, const msi_device_part *parts,
                                   int32_t dtype);

/* -- for waits of the device ------------------------------------------------------------------- */

/* True if a call of one of its communicators is incomplete. */
bool msi_device_comms_incomplete(const msi_device *d);
/* True if calls in its streams may wait for peers. */
bool msi_device_comms_await(msi_device *d);
/* MS_DEVICE_ERROR if one has failed. */
ms_status msi_device_comms_check(const msi_device *d);
/* Peers have left: abort all. */
void msi_device_comms_abort(const msi_device *d);

#endif
