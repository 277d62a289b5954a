/* The CUDA device: memory, streams, marks, words. libmoonshard_cuda.so, opened for MS_DEVICE=cuda.
 *
 * A mark is an event in its stream and a number that counts the stream's marks; events are reused
 * in order when they have passed. Errors of CUDA are sticky: after one that is not about arguments
 * or memory the device is lost. */
#include "cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    RECENT = 16, /* kernels that an error lists */
    CHUNK_BYTES = 32 << 20
};

typedef struct stream {
    cudaStream_t handle;
    /* Event of ticket n: events[n % capacity], for passed < n <= marked. */
    cudaEvent_t *events;
    uint64_t capacity, passed, marked;
    bool dirty; /* work was enqueued behind the last mark */
} stream;

/* An await that may not have ended. */
typedef struct waiting {
    _Atomic uint64_t *word;
    uint64_t value;
    msi_mark mark;
} waiting;

/* Host memory that is registered with the device. */
typedef struct pinned {
    char *host, *device;
    int64_t nbytes;
} pinned;

typedef struct cuda_device {
    msi_device base;
    msi_device_host host;
    int index;
    struct cudaDeviceProp properties;
    char library[128];
    cuda_matmul *matmul;
    cuda_cudnn *cudnn;   /* opened on demand */
    cuda_timing *timing; /* MS_CUDA_TIME=1, else NULL */
    cuda_timed timed;    /* the last call of launch() */
    stream streams[MSI_STREAMS];
    waiting *waiting;
    int32_t n_waiting, waiting_room;
    pinned *pinned;
    int32_t n_pinned;
    int32_t recent[RECENT];
    uint64_t n_run;
    bool lost;
    bool synchronous; /* MS_CUDA_SYNC=1: wait after each launch, so that its error names it */
    bool maps_memory; /* device memory is memory.c's, else cudaMalloc's */
    CUresult (*write_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
    CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
} cuda_device;

static cuda_device *of(msi_device *d)
{
    return (cuda_device *)d;
}

/* The calling thread's device. */
static void bind(const cuda_device *d)
{
    static _Thread_local int bound = -1;

    if (bound != d->index) {
        (void)cudaSetDevice(d->index);
        bound = d->index;
    }
}

/* -- errors ------------------------------------------------------------------------------------ */

/* CUDA's text, and the last kernels. */
static void describe(cuda_device *d, cudaError_t e)
{
    char *text = d->base.text;
    const size_t room = sizeof(d->base.text);
    int n = snprintf(text, room, "%s: %s", cudaGetErrorName(e), cudaGetErrorString(e));

    for (uint64_t k = d->n_run > RECENT ? d->n_run - RECENT : 0; k < d->n_run; k++) {
        if (n > 0 && (size_t)n < room) {
            n += snprintf(text + n, room - (size_t)n, "%s%s",
                          k + RECENT == d->n_run || k == 0 ? "; last kernels: " : ", ",
                          d->host.kernel_name(d->recent[k % RECENT]));
        }
    }
}

static int32_t outcome(cuda_device *d, cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return d->lost ? MSI_DEV_LOST : MSI_DEV_OK;
    case cudaErrorNotReady:
        return MSI_DEV_NOT_YET;
    case cudaErrorNotSupported:
        return MSI_DEV_UNSUPPORTED;
    case cudaErrorMemoryAllocation:
        (void)cudaGetLastError(); /* it is not sticky */
        return MSI_DEV_NO_MEMORY;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
        describe(d, e);
        (void)cudaGetLastError();
        return MSI_DEV_FAILED;
    default:
        if (!d->lost) {
            describe(d, e);
        }
        d->lost = true;
        return MSI_DEV_LOST;
    }
}

/* The outcome of what was enqueued in a stream after launch(). */
static int32_t enqueued(cuda_device *d, cudaStream_t s, cudaError_t e)
{
    const struct timespec moment = {.tv_nsec = 20000};

    if (d->timing != NULL) {
        cuda_timing_end(d->timing, s, &d->timed);
    }
    if (e != cudaSuccess || !d->synchronous) {
        return outcome(d, e);
    }
    while ((e = cudaStreamQuery(s)) == cudaErrorNotReady) {
        nanosleep(&moment, NULL);
    }
    return outcome(d, e);
}

/* -- marks ------------------------------------------------------------------------------------- */

static cudaEvent_t *event_of(const stream *s, uint64_t ticket)
{
    return &s->events[ticket % s->capacity];
}

static bool has_passed(cuda_device *d, stream *s)
{
    const cudaError_t e = cudaEventQuery(*event_of(s, s->passed + 1));

    return e != cudaErrorNotReady && outcome(d, e) != MSI_DEV_NOT_YET;
}

/* Room for one more event. */
static cudaError_t make_room(cuda_device *d, stream *s)
{
    while (s->marked > s->passed && has_passed(d, s)) {
        s->passed++;
    }
    if (s->marked - s->passed < s->capacity) {
        return cudaSuccess;
    }
    const uint64_t capacity = s->capacity > 0 ? 2 * s->capacity : 16;
    cudaEvent_t *events = malloc((size_t)capacity * sizeof(*events));

    if (events == NULL) {
        return cudaErrorMemoryAllocation;
    }
    for (uint64_t k = 0; k < capacity; k++) {
        const uint64_t ticket = s->passed + 1 + k;
        cudaError_t e = cudaSuccess;

        if (k < s->capacity) {
            events[ticket % capacity] = *event_of(s, ticket);
        } else {
            e = cudaEventCreateWithFlags(&events[ticket % capacity], cudaEventDisableTiming);
        }
        if (e != cudaSuccess) {
            for (uint64_t made = s->capacity; made < k; made++) {
                (void)cudaEventDestroy(events[(s->passed + 1 + made) % capacity]);
            }
            free(events);
            return e;
        }
    }
    free(s->events);
    s->events = events;
    s->capacity = capacity;
    return cudaSuccess;
}

static msi_mark cuda_mark(msi_device *base, int32_t which)
{
    cuda_device *d = of(base);
    stream *s = &d->streams[which];

    bind(d);
    if (s->dirty && !d->lost) {
        cudaError_t e = make_room(d, s);

        if (e == cudaSuccess) {
            s->marked++;
            s->dirty = false;
            e = cudaEventRecord(*event_of(s, s->marked), s->handle);
        }
        if (e != cudaSuccess) { /* without a mark nothing can be ordered */
            describe(d, e);
            d->lost = true;
        }
    }
    return (msi_mark){which, s->marked};
}

static int32_t cuda_done(msi_device *base, msi_mark m)
{
    cuda_device *d = of(base);
    stream *s = &d->streams[m.stream];

    bind(d);
    while (!d->lost && s->passed < m.ticket && has_passed(d, s)) {
        s->passed++;
    }
    return d->lost ? MSI_DEV_LOST : s->passed >= m.ticket ? MSI_DEV_OK : MSI_DEV_NOT_YET;
}

/* True if a stream may be waiting for other ranks. */
static bool awaits(cuda_device *d)
{
    int32_t n = 0;

    for (int32_t i = 0; i < d->n_waiting; i++) {
        if (cuda_done(&d->base, d->waiting[i].mark) == MSI_DEV_NOT_YET) {
            d->waiting[n++] = d->waiting[i];
        }
    }
    d->n_waiting = n;
    return n > 0;
}

static int32_t cuda_wait(msi_device *base, msi_mark m, msi_go_on go_on, void *user)
{
    const struct timespec moment = {.tv_nsec = 20000};
    cuda_device *d = of(base);

    for (int32_t n = 0;; n++) {
        const int32_t now = cuda_done(base, m);

        if (now != MSI_DEV_NOT_YET) {
            return now;
        }
        if (n < 1000) { /* about a millisecond */
            continue;
        }
        if (go_on != NULL && !go_on(user, !awaits(d))) {
            return MSI_DEV_NOT_YET;
        }
        nanosleep(&moment, NULL);
    }
}

static int32_t cuda_poll(msi_device *base)
{
    cuda_device *d = of(base);
    int32_t result = MSI_DEV_OK;

    bind(d);
    for (int32_t i = 0; i < MSI_STREAMS && !d->lost; i++) {
        const int32_t now = outcome(d, cudaStreamQuery(d->streams[i].handle));

        result = now == MSI_DEV_NOT_YET ? now : result;
    }
    return result;
}

static int32_t cuda_after(msi_device *base, int32_t to, msi_mark m)
{
    cuda_device *d = of(base);
    const stream *s = &d->streams[m.stream];

    bind(d);
    if (m.ticket <= s->passed || m.stream == to) {
        return outcome(d, cudaSuccess);
    }
    d->streams[to].dirty = true;
    return outcome(d, cudaStreamWaitEvent(d->streams[to].handle, *event_of(s, m.ticket), 0));
}

/* -- work -------------------------------------------------------------------------------------- */

/* The stream, for an item. */
static cudaStream_t enter(cuda_device *d, int32_t which)
{
    bind(d);
    d->streams[which].dirty = true;
    return d->streams[which].handle;
}

/* The same, for a call that is timed; enqueued() ends it. */
static cudaStream_t launch(cuda_device *d, int32_t which, cuda_timed what)
{
    const cudaStream_t s = enter(d, which);

    if (what.kernel < MSI_K_COUNT) {
        d->recent[d->n_run++ % RECENT] = what.kernel;
    }
    if (d->timing != NULL) {
        cuda_timing_begin(d->timing, s);
    }
    d->timed = what;
    return s;
}

static void *cuda_handle(msi_device *base, int32_t which)
{
    return enter(of(base), which);
}

static bool cuda_has(msi_device *base, int32_t kernel, int32_t dtype)
{
    (void)base;
    return cuda_kernels[kernel][dtype] != NULL;
}

static int32_t cuda_run(msi_device *base, int32_t to, int32_t kernel, int32_t dtype,
                        const void *args)
{
    cuda_device *d = of(base);

    if (cuda_kernels[kernel][dtype] == NULL) {
        return MSI_DEV_UNSUPPORTED;
    }
    const cudaStream_t s = launch(d, to, (cuda_timed){.kernel = kernel, .dtype = dtype});
    const cudaError_t e = cuda_cudnn_run(&d->cudnn, s, kernel, dtype, args);

    d->timed.library = e != cudaErrorNotSupported;
    return enqueued(d, s, e == cudaErrorNotSupported ? cuda_kernels[kernel][dtype](s, args) : e);
}

static int32_t cuda_run_all(msi_device *base, int32_t to, int32_t kernel, int32_t dtype,
                            const void *args, int64_t stride, int32_t n)
{
    cuda_device *d = of(base);
    const cudaStream_t s =
        launch(d, to, (cuda_timed){.kernel = kernel, .dtype = dtype, .many = true});

    return enqueued(d, s,
                    kernel == MSI_K_norm ? msi_cuda_norm_all(s, dtype, args, stride, n)
                    : kernel == MSI_K_scale
                        ? msi_cuda_scale_all(s, dtype, args, stride, n)
                        : msi_cuda_update_all(s, kernel, dtype, args, stride, n));
}

static int32_t cuda_gemm(msi_device *base, int32_t to, const msi_gemm_args *g)
{
    cuda_device *d = of(base);

    if (g->m == 0 || g->n == 0 || g->batch == 0) {
        return MSI_DEV_OK;
    }
    const cudaStream_t s = launch(d, to,
                                  (cuda_timed){.kernel = MSI_K_gemm,
                                               .dtype = g->dtype,
                                               .c_dtype = g->c_dtype,
                                               .m = g->m,
                                               .n = g->n,
                                               .k = g->k,
                                               .batch = g->batch});

    return enqueued(d, s, cuda_matmul_run(d->matmul, s, g));
}

static int32_t cuda_copy(msi_device *base, int32_t to_stream, void *to, const void *from,
                         int64_t nbytes)
{
    cuda_device *d = of(base);

    if (nbytes == 0) { /* `to` may be one past the end of a block */
        return MSI_DEV_OK;
    }
    const cudaStream_t s = launch(d, to_stream, (cuda_timed){.kernel = CUDA_TIMED_COPY});

    return enqueued(d, s, cudaMemcpyAsync(to, from, (size_t)nbytes, cudaMemcpyDefault, s));
}

static int32_t cuda_set(msi_device *base, int32_t to_stream, void *to, int32_t byte, int64_t nbytes)
{
    cuda_device *d = of(base);

    if (nbytes == 0) {
        return MSI_DEV_OK;
    }
    const cudaStream_t s = launch(d, to_stream, (cuda_timed){.kernel = CUDA_TIMED_SET});

    return enqueued(d, s, cudaMemsetAsync(to, byte, (size_t)nbytes, s));
}

/* Scratch of a kernel; -1: what the CPU's needs. */
static int64_t cuda_work_bytes(msi_device *base, int32_t kernel, int32_t dtype, const void *args)
{
    const msi_attention_args *a = args;
    cuda_device *d = of(base);
    int64_t own, by_library;

    switch (kernel) {
    case MSI_K_gemm:
        return cuda_matmul_work_bytes(of(base)->matmul, args);
    case MSI_K_layer_norm_grad:
        return msi_cuda_layer_norm_grad_work(dtype, args);
    case MSI_K_embedding_grad:
        return msi_cuda_embedding_grad_work(dtype, args);
    case MSI_K_conv:
    case MSI_K_conv_grad:
    case MSI_K_attention:
    case MSI_K_attention_grad:
        bind(d);
        by_library = cuda_cudnn_bytes(&d->cudnn, kernel, dtype, args);
        own = kernel == MSI_K_attention_grad
                  ? a->batch * a->heads * a->q_len * (dtype == MS_DTYPE_F64 ? 8 : 4)
                  : 0;
        return by_library > own ? by_library : own;
    default:
        return -1;
    }
}

static const char *cuda_library(msi_device *base)
{
    return of(base)->library;
}

/* -- words ------------------------------------------------------------------------------------- */

static int32_t cuda_pin(msi_device *base, void *p, int64_t nbytes)
{
    cuda_device *d = of(base);
    pinned *grown = realloc(d->pinned, (size_t)(d->n_pinned + 1) * sizeof(*grown));
    void *device = NULL;

    if (grown == NULL) {
        return MSI_DEV_NO_MEMORY;
    }
    bind(d);
    d->pinned = grown;
    cudaError_t e =
        cudaHostRegister(p, (size_t)nbytes, cudaHostRegisterPortable | cudaHostRegisterMapped);

    if (e != cudaSuccess) {
        return outcome(d, e);
    }
    e = cudaHostGetDevicePointer(&device, p, 0);
    if (e != cudaSuccess) {
        (void)cudaHostUnregister(p);
        return outcome(d, e);
    }
    d->pinned[d->n_pinned++] = (pinned){.host = p, .device = device, .nbytes = nbytes};
    return MSI_DEV_OK;
}

static void cuda_unpin(msi_device *base, void *p)
{
    cuda_device *d = of(base);

    bind(d);
    (void)awaits(d); /* none of its words is left */
    for (int32_t i = 0; i < d->n_pinned; i++) {
        if (d->pinned[i].host == p) {
            (void)cudaHostUnregister(p);
            d->pinned[i] = d->pinned[--d->n_pinned];
            return;
        }
    }
}

/* A word's address on the device; NULL: it is not pinned. */
static uint64_t *on_device(const cuda_device *d, const void *word)
{
    for (int32_t i = 0; i < d->n_pinned; i++) {
        const pinned *r = &d->pinned[i];
        const int64_t offset = (int64_t)((uintptr_t)word - (uintptr_t)r->host);

        if (offset >= 0 && offset < r->nbytes) {
            return (uint64_t *)(void *)(r->device + offset);
        }
    }
    return NULL;
}

/* The runtime has the driver's numbers and texts of errors. */
static int32_t driver_outcome(cuda_device *d, CUresult e)
{
    return outcome(d, (cudaError_t)e);
}

static int32_t cuda_post(msi_device *base, int32_t to, _Atomic uint64_t *word, uint64_t value)
{
    cuda_device *d = of(base);
    uint64_t *at = on_device(d, (const void *)word);
    cudaStream_t s = enter(d, to);

    if (at == NULL) {
        return MSI_DEV_FAILED;
    }
    return d->write_value != NULL
               ? driver_outcome(d, d->write_value(s, (CUdeviceptr)(uintptr_t)at, value,
                                                  CU_STREAM_WRITE_VALUE_DEFAULT))
               : outcome(d, msi_cuda_post_word(s, at, value));
}

static int32_t await_word(cuda_device *d, cudaStream_t s, const void *word, uint64_t value)
{
    uint64_t *at = on_device(d, word);

    if (at == NULL) {
        return MSI_DEV_FAILED;
    }
    return d->wait_value != NULL ? driver_outcome(d, d->wait_value(s, (CUdeviceptr)(uintptr_t)at,
                                                                   value, CU_STREAM_WAIT_VALUE_GEQ))
                                 : outcome(d, msi_cuda_await_word(s, at, value));
}

static int32_t cuda_await(msi_device *base, int32_t to, _Atomic uint64_t *const *words, int32_t n,
                          uint64_t at_least)
{
    cuda_device *d = of(base);
    cudaStream_t s = enter(d, to);
    int32_t result = MSI_DEV_OK;

    (void)awaits(d); /* drops what has ended */
    if (d->n_waiting + n > d->waiting_room) {
        const int32_t room = 2 * (d->n_waiting + n);
        waiting *grown = realloc(d->waiting, (size_t)room * sizeof(*grown));

        if (grown == NULL) {
            return MSI_DEV_NO_MEMORY;
        }
        d->waiting = grown;
        d->waiting_room = room;
    }
    for (int32_t i = 0; i < n && result == MSI_DEV_OK; i++) {
        result = await_word(d, s, (const void *)words[i], at_least);
    }
    const msi_mark mark = cuda_mark(base, to);

    for (int32_t i = 0; i < n; i++) {
        d->waiting[d->n_waiting++] = (waiting){words[i], at_least, mark};
    }
    return result;
}

/* Raise the awaited words to their values: results are lost in any case. */
static void cuda_abandon(msi_device *base)
{
    cuda_device *d = of(base);

    (void)awaits(d); /* words of those that have ended may be gone */
    for (int32_t i = 0; i < d->n_waiting; i++) {
        uint64_t now = atomic_load(d->waiting[i].word);

        while ((int64_t)(now - d->waiting[i].value) < 0 &&
               !atomic_compare_exchange_weak(d->waiting[i].word, &now, d->waiting[i].value)) {
        }
    }
}

/* -- memory, life ------------------------------------------------------------------------------ */

static int32_t cuda_take(msi_device *base, int64_t nbytes, int32_t place, void **out)
{
    cuda_device *d = of(base);

    bind(d);
    if (place == MSI_PLACE_PINNED) {
        return outcome(
            d, cudaHostAlloc(out, (size_t)nbytes, cudaHostAllocPortable | cudaHostAllocMapped));
    }
    return d->maps_memory ? cuda_memory_new(d->index, nbytes, out, NULL, d->base.text)
                          : outcome(d, cudaMalloc(out, (size_t)nbytes));
}

static void cuda_give(msi_device *base, void *p, int64_t nbytes, int32_t place)
{
    cuda_device *d = of(base);

    bind(d);
    if (place == MSI_PLACE_PINNED) {
        (void)outcome(d, cudaFreeHost(p));
    } else if (d->maps_memory) {
        cuda_memory_free(d->index, p, nbytes);
    } else {
        (void)outcome(d, cudaFree(p));
    }
}

static int32_t cuda_share(msi_device *base, int64_t nbytes, void **out, int32_t *fd)
{
    bind(of(base));
    return cuda_memory_new(of(base)->index, nbytes, out, fd, base->text);
}

static int32_t cuda_attach(msi_device *base, int32_t fd, int64_t nbytes, bool readonly, void **out)
{
    bind(of(base));
    return cuda_memory_attach(of(base)->index, fd, nbytes, readonly, out, base->text);
}

static void cuda_detach(msi_device *base, void *p, int64_t nbytes)
{
    bind(of(base));
    cuda_memory_free(of(base)->index, p, nbytes);
}

static void cuda_info(msi_device *base, msi_device_info *out)
{
    cuda_device *d = of(base);
    size_t free_bytes = 0, total = 0;

    bind(d);
    (void)cudaMemGetInfo(&free_bytes, &total);
    *out = (msi_device_info){.index = d->index,
                             .capability = d->properties.major * 10 + d->properties.minor,
                             .chunk = CHUNK_BYTES,
                             .total = (int64_t)total,
                             .free = (int64_t)free_bytes};
    snprintf(out->name, sizeof(out->name), "%.60s", d->properties.name);
    memcpy(out->uuid, d->properties.uuid.bytes, sizeof(out->uuid));
}

static void cuda_finish(msi_device *base)
{
    cuda_device *d = of(base);

    bind(d);
    cuda_timing_close(d->timing, d->index, d->host.kernel_name);
    d->timing = NULL;
}

static void cuda_close(msi_device *base)
{
    cuda_device *d = of(base);

    cuda_finish(base);
    cuda_matmul_close(d->matmul);
    cuda_cudnn_close(d->cudnn);
    for (int32_t i = 0; i < MSI_STREAMS; i++) {
        stream *s = &d->streams[i];

        for (uint64_t k = 0; k < s->capacity; k++) {
            (void)cudaEventDestroy(s->events[k]);
        }
        if (s->handle != NULL) {
            (void)cudaStreamDestroy(s->handle);
        }
        free(s->events);
    }
    free(d->waiting);
    free(d->pinned);
    free(d);
}

/* What the driver can do on this card. */
static void find_driver_calls(cuda_device *d)
{
    CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
    void *get = cuda_driver_call("cuDeviceGetAttribute"),
         *write = cuda_driver_call("cuStreamWriteValue64");
    void *wait = cuda_driver_call("cuStreamWaitValue64");
    int can = 0;

    if (get == NULL || write == NULL || wait == NULL) {
        return;
    }
    memcpy(&attribute, &get, sizeof(attribute));
    if (attribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, d->index) ==
            CUDA_SUCCESS &&
        can != 0) {
        memcpy(&d->write_value, &write, sizeof(d->write_value));
        memcpy(&d->wait_value, &wait, sizeof(d->wait_value));
    }
    d->maps_memory = attribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                               d->index) == CUDA_SUCCESS &&
                     can != 0 && cuda_driver_call("cuMemCreate") != NULL;
}

/* Other ranks wait for what runs in GATHER and REDUCE: its blocks start before those of kernels of
 * COMPUTE that wait for processors. */
static cudaError_t open_streams(cuda_device *d)
{
    int lowest = 0, highest = 0;
    cudaError_t e = cudaSetDevice(d->index);

    if (e == cudaSuccess) {
        e = cudaGetDeviceProperties(&d->properties, d->index);
    }
    if (e == cudaSuccess) {
        e = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    }
    for (int32_t i = 0; i < MSI_STREAMS && e == cudaSuccess; i++) {
        const bool urgent = i == MSI_STREAM_GATHER || i == MSI_STREAM_REDUCE;

        e = cudaStreamCreateWithPriority(&d->streams[i].handle, cudaStreamNonBlocking,
                                         urgent ? highest : lowest);
    }
    return e;
}

static int32_t cuda_count(char *error)
{
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);

    snprintf(error, MSI_DEVICE_ERROR, "no CUDA device: %s",
             e != cudaSuccess ? cudaGetErrorString(e) : "none is visible");
    return e == cudaSuccess ? n : 0;
}

static bool cuda_bus(int32_t index, char *text)
{
    int n = 0;

    return cudaGetDeviceCount(&n) == cudaSuccess && n > 0 &&
           cudaDeviceGetPCIBusId(text, MSI_BUS_TEXT, index % n) == cudaSuccess;
}

static bool switched_on(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && strcmp(value, "1") == 0;
}

static int32_t cuda_open(msi_device **out, const msi_device_host *host, int32_t index, char *error)
{
    const int32_t n = cuda_count(error);
    int version = 0;
    cuda_device *d;
    cudaError_t e;

    if (n == 0) {
        return MSI_DEV_FAILED;
    }
    d = calloc(1, sizeof(*d));
    if (d == NULL) {
        return MSI_DEV_NO_MEMORY;
    }
    d->host = *host;
    d->synchronous = switched_on("MS_CUDA_SYNC");
    d->index = index % n; /* ranks beyond the cards share them */
    e = open_streams(d);
    if (e != cudaSuccess) {
        snprintf(error, MSI_DEVICE_ERROR, "%s", cudaGetErrorString(e));
    } else {
        d->matmul = cuda_matmul_open(error);
    }
    if (d->matmul != NULL && switched_on("MS_CUDA_TIME")) {
        d->timing = cuda_timing_open();
    }
    if (d->matmul == NULL) {
        cuda_close(&d->base);
        return MSI_DEV_FAILED;
    }
    msi_cuda_processors = d->properties.multiProcessorCount;
    msi_cuda_shared = (int32_t)d->properties.sharedMemPerBlockOptin;
    find_driver_calls(d);
    (void)cudaRuntimeGetVersion(&version);
    snprintf(d->library, sizeof(d->library),
             "%.60s, compute capability %d.%d, CUDA %d, cuBLASLt %zu", d->properties.name,
             d->properties.major, d->properties.minor, version, cuda_matmul_version(d->matmul));
    *out = &d->base;
    d->base.ops = msi_device_plugin();
    return MSI_DEV_OK;
}

static const msi_device_ops cuda_ops = {.version = MSI_DEVICE_VERSION,
                                        .kind = "cuda",
                                        .count = cuda_count,
                                        .bus = cuda_bus,
                                        .open = cuda_open,
                                        .close = cuda_close,
                                        .finish = cuda_finish,
                                        .info = cuda_info,
                                        .library = cuda_library,
                                        .take = cuda_take,
                                        .give = cuda_give,
                                        .share = cuda_share,
                                        .attach = cuda_attach,
                                        .detach = cuda_detach,
                                        .pin = cuda_pin,
                                        .unpin = cuda_unpin,
                                        .has = cuda_has,
                                        .work_bytes = cuda_work_bytes,
                                        .run = cuda_run,
                                        .run_all = cuda_run_all,
                                        .gemm = cuda_gemm,
                                        .fuses = true,
                                        .copy = cuda_copy,
                                        .set = cuda_set,
                                        .mark = cuda_mark,
                                        .after = cuda_after,
                                        .done = cuda_done,
                                        .wait = cuda_wait,
                                        .poll = cuda_poll,
                                        .post = cuda_post,
                                        .await = cuda_await,
                                        .abandon = cuda_abandon,
                                        .handle = cuda_handle};

const msi_device_ops *msi_device_plugin(void)
{
    return &cuda_ops;
}
