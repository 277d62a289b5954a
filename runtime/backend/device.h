/* A device: memory, streams, order.
 *
 * Nothing assumes that a kernel has run when its call returns: work goes to a stream, a mark is a
 * point in a stream, after() orders streams, words in host memory are posted and awaited by
 * streams, and only the reader of a value waits. One device per context beside the CPU, which is
 * one whose streams are always empty. Everything but open() and wait() returns at once: what gives
 * memory back, or closes, is called when nothing that was enqueued can use it any more, and waiting
 * for that is the runtime's, which looks whether peers are still there (device_wait.c).
 *
 * copy() takes pointers of any place. Host memory that is not pinned must stay as it is until the
 * copy has run.
 *
 * What a device asks of the runtime while it runs an item, memory and products on the CPU's
 * kernels, is for that item: it is done at once, and no other item is done before it has ended
 * (done() and wait() answer MSI_DEV_NOT_YET). */
#ifndef MSI_DEVICE_H
#define MSI_DEVICE_H

#include "backend.h"

#include <stdatomic.h>

enum { MSI_DEVICE_VERSION = 5 }; /* of this file, kernel_args.h and the kernels' names */

enum {
    MSI_STREAM_COMPUTE,
    MSI_STREAM_GATHER,
    MSI_STREAM_REDUCE,
    MSI_STREAM_OUT, /* OUT and IN: to the host and back, for offloading, which comes with CUDA */
    MSI_STREAM_IN,
    MSI_STREAMS
};

enum {
    MSI_DEV_OK,
    MSI_DEV_NOT_YET,
    MSI_DEV_UNSUPPORTED,
    MSI_DEV_NO_MEMORY,
    MSI_DEV_FAILED,
    MSI_DEV_LOST /* it will not answer any more: the process must end */
};

enum {
    MSI_PLACE_DEVICE, /* touched by what is enqueued alone: the host does not reach it */
    MSI_PLACE_PINNED  /* the host's, which kernels reach, too */
};

/* A point in a stream: a plain value, never freed. ticket 0: long past. */
typedef struct msi_mark {
    int32_t stream;
    uint64_t ticket;
} msi_mark;

typedef struct msi_device_info {
    char name[64];
    int32_t index;
    int64_t total, free; /* bytes */
    char uuid[16];       /* equal on ranks whose devices share one memory */
    bool spoils;         /* for tests: memory that is free is to hold NaN */
} msi_device_info;

typedef struct msi_device msi_device;

/* What the runtime offers a device's plug-in. */
typedef struct msi_device_host {
    void *user;
    msi_kernel_fn (*kernel)(int32_t kernel, int32_t dtype); /* the CPU's, or NULL */
    /* A kernel's arguments are copied with what they list: bytes of the copy, and the copy. */
    int64_t (*args_bytes)(int32_t kernel, const void *args);
    void (*args_copy)(int32_t kernel, void *to, const void *args);
    /* The CPU's product. One that fails is the device's fault (msi_device.fault), which whoever
     * waits is told, and what it would have written is NaN. */
    ms_status (*gemm)(void *user, const msi_gemm_args *args);
    const struct msi_device_ops *cpu; /* what a device of host memory has in common with it */
} msi_device_host;

typedef bool (*msi_go_on)(void *user, bool run);

typedef struct msi_device_ops {
    int32_t version;  /* MSI_DEVICE_VERSION */
    const char *kind; /* "cpu", "fake" */

    /* life. `error` has room for MSI_DEVICE_ERROR bytes, here and below. */
    int32_t (*open)(msi_device **out, const msi_device_host *host, int32_t index, char *error);
    void (*close)(msi_device *d); /* all that was enqueued has run; so with give() and detach() */
    void (*info)(msi_device *d, msi_device_info *out);

    /* memory from the system, 64-byte aligned; the context's heap stands above it */
    int32_t (*take)(msi_device *d, int64_t nbytes, int32_t place, void **out);
    void (*give)(msi_device *d, void *p, int64_t nbytes, int32_t place);
    /* Memory of any content that others may map by `*fd`, which is the caller's to close. It is
     * there until all that was mapped of it has been detached, here and by others. */
    int32_t (*share)(msi_device *d, int64_t nbytes, void **out, int32_t *fd);
    int32_t (*attach)(msi_device *d, int32_t fd, int64_t nbytes, bool readonly, void **out);
    void (*detach)(msi_device *d, void *p, int64_t nbytes);

    /* work, in stream order; arguments are copied before it returns */
    int32_t (*run)(msi_device *d, int32_t stream, int32_t kernel, int32_t dtype, const void *args);
    int32_t (*gemm)(msi_device *d, int32_t stream, const msi_gemm_args *args);
    int32_t (*copy)(msi_device *d, int32_t stream, void *to, const void *from, int64_t nbytes);
    int32_t (*set)(msi_device *d, int32_t stream, void *to, int32_t byte, int64_t nbytes);

    /* order */
    msi_mark (*mark)(msi_device *d, int32_t stream); /* after all enqueued so far */
    int32_t (*after)(msi_device *d, int32_t stream, msi_mark m);
    int32_t (*done)(msi_device *d, msi_mark m);
    /* Until it is done, or `go_on` (NULL: always), asked now and then while nothing can run, says
     * no: MSI_DEV_NOT_YET then. It is told whether anything has `run` since it was asked. */
    int32_t (*wait)(msi_device *d, msi_mark m, msi_go_on go_on, void *user);
    /* A thread waits for what other ranks do: run what may run, where nobody else does. NOT_YET
     * while something is left that would not run without another call. */
    int32_t (*poll)(msi_device *d);

    /* words in host memory that all ranks of the host see. `words` is copied. On the CPU they
     * are there, as who awaits them was told: MSI_DEV_FAILED where they are not. */
    int32_t (*post)(msi_device *d, int32_t stream, _Atomic uint64_t *word, uint64_t value);
    int32_t (*await)(msi_device *d, int32_t stream, _Atomic uint64_t *const *words, int32_t n,
                     uint64_t at_least);
    /* The words that are awaited will not come: go on as if they had. */
    void (*abandon)(msi_device *d);
} msi_device_ops;

enum { MSI_DEVICE_ERROR = 256 };

/* Devices begin with this. */
struct msi_device {
    const msi_device_ops *ops;
    ms_status failed; /* what a product inside a kernel came to, for that kernel */
    ms_status lost;   /* a wait for peers that are gone was given up: all who settle are told */
    char why_lost[MSI_MESSAGE_BYTES];
    int32_t stream; /* on which what is dispatched now goes: MSI_STREAM_COMPUTE but for a moment */
    ms_context *ctx;
    msi_fault *fault; /* what kernels found wrong: the next who waits is told. Pinned memory */
    char why_failed[MSI_MESSAGE_BYTES]; /* where the fault is a product's */
};

extern const msi_device_ops msi_cpu_device_ops;

/* Open the device that MS_DEVICE names as the context's, of this host's that with this index:
 * `device` stays NULL while it is the CPU ("cpu", or nothing). MS_DEVICE_ERROR, MS_OUT_OF_MEMORY
 * when it does not open. */
ms_status msi_device_open(ms_context *ctx, int32_t index);
/* From now on a process that is forked has no device: neither runs nor waits, and says so. */
void msi_device_watch_forks(void);
/* This process ends, and what is enqueued is of no use: if anything has not run, nothing runs or
 * waits from now on, and who asks is told so. */
void msi_device_quit(msi_device *d);

/* Has any context of this process one? (Who knows no context asks for it only then: that costs as
 * much as a small kernel.) */
extern _Atomic int32_t msi_n_devices;
static inline bool msi_any_device(void)
{
    return atomic_load_explicit(&msi_n_devices, memory_order_relaxed) != 0;
}
/* Run one, on the current stream. `op` names the caller in errors. */
ms_status msi_device_run(msi_device *d, const char *op, int32_t kernel, int32_t dtype,
                         const void *args);
/* `after` and `await` of the table. */
ms_status msi_device_after(msi_device *d, int32_t stream, msi_mark mark);
ms_status msi_device_await(msi_device *d, int32_t stream, _Atomic uint64_t *const *words, int32_t n,
                           uint64_t at_least);
/* Wait for a mark: MS_COMM_ERROR when peers are gone that it depends on, and it is reached all the
 * same; what it says then is no result, as msi_settle() says from there on. */
ms_status msi_device_wait_for(msi_device *d, msi_mark mark);
/* The same where no error can be told, and the message of another may be set, which stays. False:
 * it is not reached, as an item asks, which runs. */
bool msi_device_drain_to(msi_device *d, msi_mark mark);
/* Let it run what may run now; is something left that would not run without another call? */
bool msi_device_polls(msi_device *d);
/* A product on the CPU, now. */
ms_status msi_gemm_now(ms_context *ctx, const msi_gemm_args *args);
/* What the host of a device's product calls: that, and what fails is the device's fault. */
ms_status msi_device_gemm(void *ctx, const msi_gemm_args *args);
/* The error of what was found, if anything was; once. */
ms_status msi_device_fault_report(msi_device *d);

#endif
