/* Communicators of devices by NCCL: libmoonshard_nccl.so, opened when ranks on several cards use
 * it.
 *
 * They are non-blocking: no call waits for peers, and what is incomplete is polled by the runtime,
 * which notices ranks that have ended and aborts. */
#ifdef MS_CUDASIM
#include "ncclsim.h"
#else
#include <nccl.h>
#endif

#include "device_comm.h"
#include "moonshard/tensor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

__attribute__((visibility("default"))) const msi_device_comm_ops *msi_device_comm_plugin(void);

static ncclDataType_t type_of(int32_t dtype)
{
    static const ncclDataType_t types[MS_DTYPE_COUNT] = {
        [MS_DTYPE_F32] = ncclFloat32,   [MS_DTYPE_F64] = ncclFloat64, [MS_DTYPE_F16] = ncclFloat16,
        [MS_DTYPE_BF16] = ncclBfloat16, [MS_DTYPE_I64] = ncclInt64,   [MS_DTYPE_I32] = ncclInt32,
        [MS_DTYPE_U8] = ncclUint8,      [MS_DTYPE_BOOL] = ncclUint8};

    return types[dtype];
}

static int32_t outcome(ncclResult_t r)
{
    return r == ncclSuccess ? MSI_DEV_OK : r == ncclInProgress ? MSI_DEV_NOT_YET : MSI_DEV_FAILED;
}

static int32_t described(ncclResult_t r, ncclComm_t comm, char *error)
{
    const char *detail = ncclGetLastError(comm);

    if (outcome(r) == MSI_DEV_FAILED) {
        snprintf(error, MSI_DEVICE_ERROR, "%.60s%s%.180s", ncclGetErrorString(r),
                 detail != NULL && detail[0] != '\0' ? ": " : "", detail != NULL ? detail : "");
    }
    return outcome(r);
}

static int32_t make_id(void *id, char *error)
{
    ncclUniqueId made;
    const ncclResult_t r = ncclGetUniqueId(&made);

    _Static_assert(sizeof(made) == MSI_DEVICE_COMM_ID, "an id");
    memcpy(id, &made, sizeof(made));
    return described(r, NULL, error);
}

static int32_t open_comm(void **out, const void *id, int32_t rank, int32_t size, char *error)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    ncclUniqueId unique;

    config.blocking = 0;
    memcpy(&unique, id, sizeof(unique));
    const ncclResult_t r = ncclCommInitRankConfig(&comm, size, unique, rank, &config);
    const int32_t result = described(r, comm, error);

    if (result == MSI_DEV_FAILED && comm != NULL) {
        (void)ncclCommAbort(comm);
    }
    *out = comm;
    return result;
}

static int32_t state(void *comm, char *error)
{
    ncclResult_t last = ncclSuccess;
    const ncclResult_t r = ncclCommGetAsyncError(comm, &last);

    return described(r != ncclSuccess ? r : last, comm, error);
}

static int32_t all_gather(void *comm, void *stream, const void *in, void *out, int64_t n,
                          int32_t dtype, char *error)
{
    return described(ncclAllGather(in, out, (size_t)n, type_of(dtype), comm, stream), comm, error);
}

static int32_t reduce_scatter(void *comm, void *stream, const void *in, void *out, int64_t n,
                              int32_t dtype, char *error)
{
    return described(ncclReduceScatter(in, out, (size_t)n, type_of(dtype), ncclSum, comm, stream),
                     comm, error);
}

static int32_t broadcast(void *comm, void *stream, void *data, int64_t n, int32_t dtype,
                         int32_t root, char *error)
{
    return described(ncclBroadcast(data, data, (size_t)n, type_of(dtype), root, comm, stream), comm,
                     error);
}

static ncclResult_t enqueue_part(ncclComm_t comm, void *stream, const msi_device_part *p,
                                 ncclDataType_t type, int peer)
{
    ncclResult_t r = ncclSuccess;

    if (p->n_send > 0) {
        r = ncclSend(p->send, (size_t)p->n_send, type, peer, comm, stream);
    }
    if (p->n_recv > 0 && r == ncclSuccess) {
        r = ncclRecv(p->recv, (size_t)p->n_recv, type, peer, comm, stream);
    }
    return r;
}

static ncclResult_t enqueue_parts(ncclComm_t comm, void *stream, const msi_device_part *parts,
                                  ncclDataType_t type)
{
    int rank = 0, size = 0;
    bool any = false;
    ncclResult_t r = ncclCommUserRank(comm, &rank);

    r = r == ncclSuccess ? ncclCommCount(comm, &size) : r;
    for (int q = 0; q < size && r == ncclSuccess; q++) {
        if (q != rank) {
            any = any || parts[q].n_send > 0 || parts[q].n_recv > 0;
            r = enqueue_part(comm, stream, &parts[q], type, q);
        }
    }
    if (!any && r == ncclSuccess) { /* an empty message to itself: every rank's group has a call */
        r = ncclSend(parts[rank].send, 0, type, rank, comm, stream);
        r = r == ncclSuccess ? ncclRecv(parts[rank].recv, 0, type, rank, comm, stream) : r;
    }
    return r;
}

static int32_t exchange(void *comm, void *stream, const msi_device_part *parts, int32_t dtype,
                        char *error)
{
    ncclResult_t r = ncclGroupStart();

    if (r != ncclSuccess) {
        return described(r, comm, error);
    }
    r = enqueue_parts(comm, stream, parts, type_of(dtype));
    const ncclResult_t end = ncclGroupEnd();

    return described(r != ncclSuccess ? r : end, comm, error);
}

/* -- the end ----------------------------------------------------------------------------------- */

static void *abort_one(void *comm)
{
    (void)ncclCommAbort(comm);
    return NULL;
}

/* Before NCCL 2.22, which groups them: a thread each. */
static void abort_by_threads(const msi_device_comm *first)
{
    struct aborting {
        pthread_t thread;
        bool started;
    } * all;
    size_t n = 0, i = 0;

    for (const msi_device_comm *c = first; c != NULL; c = c->next) {
        n++;
    }
    all = calloc(n, sizeof(*all));
    for (const msi_device_comm *c = first; c != NULL; c = c->next, i++) {
        if (c->state != NULL && all != NULL) {
            all[i].started = pthread_create(&all[i].thread, NULL, abort_one, c->state) == 0;
        }
        if (c->state != NULL && (all == NULL || !all[i].started)) {
            (void)abort_one(c->state);
        }
    }
    for (i = 0; all != NULL && i < n; i++) {
        if (all[i].started) {
            (void)pthread_join(all[i].thread, NULL);
        }
    }
    free(all);
}

/* ncclCommAbort() synchronises the device: one after another they would wait for each other. */
static void abort_all(const msi_device_comm *first)
{
    int version = 0;

    if (ncclGetVersion(&version) != ncclSuccess || version < 22200 ||
        ncclGroupStart() != ncclSuccess) {
        abort_by_threads(first);
        return;
    }
    for (const msi_device_comm *c = first; c != NULL; c = c->next) {
        if (c->state != NULL) {
            (void)ncclCommAbort(c->state);
        }
    }
    (void)ncclGroupEnd();
}

static void close_comm(void *comm)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    char error[MSI_DEVICE_ERROR];
    int32_t now = outcome(ncclCommFinalize(comm));

    for (int32_t i = 0; i < 5000 && now == MSI_DEV_NOT_YET; i++) {
        nanosleep(&moment, NULL);
        now = state(comm, error);
    }
    (void)(now == MSI_DEV_OK ? ncclCommDestroy : ncclCommAbort)(comm);
}

static const msi_device_comm_ops nccl_ops = {.version = MSI_DEVICE_COMM_VERSION,
                                             .kind = "nccl",
                                             .id = make_id,
                                             .open = open_comm,
                                             .state = state,
                                             .all_gather = all_gather,
                                             .reduce_scatter = reduce_scatter,
                                             .broadcast = broadcast,
                                             .exchange = exchange,
                                             .abort = abort_all,
                                             .close = close_comm};

const msi_device_comm_ops *msi_device_comm_plugin(void)
{
    return &nccl_ops;
}
