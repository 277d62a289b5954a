/* A device: memory, streams, order.
 *
 * No kernel needs to have run when its call returns: work goes to a stream, a mark is a point in a
 * stream, after() orders streams, streams post and await words in host memory, and only the reader
 * of a value waits. A context has one device besides the CPU, whose streams are always empty. All
 * calls except open() and wait() return at once. give(), detach() and close() are called when no
 * enqueued work can use the memory; the runtime waits for that and watches its peers
 * (device_wait.c).
 *
 * copy() takes pointers to any memory. Unpinned host memory must not change until it has run.
 *
 * Calls from a running item into the runtime (memory, products of CPU kernels) are done at once,
 * and no other item runs before this one ends (done() and wait() return MSI_DEV_NOT_YET). */
#ifndef MSI_DEVICE_H
#define MSI_DEVICE_H

#include "backend.h"

#include <stdatomic.h>

enum { MSI_DEVICE_VERSION = 13 }; /* of this file, kernel_args.h, kernel names */

enum {
    MSI_STREAM_COMPUTE,
    MSI_STREAM_GATHER,
    MSI_STREAM_REDUCE,
    MSI_STREAM_OUT, /* OUT and IN: to the host and back, for CUDA offloading */
    MSI_STREAM_IN,
    MSI_STREAMS
};

enum {
    MSI_DEV_OK,
    MSI_DEV_NOT_YET,
    MSI_DEV_UNSUPPORTED,
    MSI_DEV_NO_MEMORY,
    MSI_DEV_FAILED,
    MSI_DEV_LOST /* it no longer responds: the process must end */
};

enum {
    MSI_PLACE_DEVICE, /* only enqueued work accesses it */
    MSI_PLACE_PINNED  /* host memory that kernels can access */
};

enum { MSI_BUS_TEXT = 32 };

/* A point in a stream: a plain value, never freed. ticket 0: passed. */
typedef struct msi_mark {
    int32_t stream;
    uint64_t ticket;
} msi_mark;

typedef struct msi_device_info {
    char name[64];
    int32_t index;
    int32_t capability;  /* 90: compute capability 9.0 */
    int64_t total, free; /* bytes */
    char uuid[16];       /* equal on ranks whose devices share one memory; zeros: the host's */
    int64_t chunk; /* least request to the system that is worth it; 0: any. Pinned: an eighth */
    bool spoils;   /* tests: fill free memory with NaN */
} msi_device_info;

typedef struct msi_device msi_device;

/* Calls from a device plug-in to the runtime. */
typedef struct msi_device_host {
    void *user;
    const char *(*kernel_name)(int32_t kernel);
    msi_kernel_fn (*kernel)(int32_t kernel, int32_t dtype); /* the CPU's, or NULL */
    /* Size of a copy of a kernel's arguments with their lists, and the copy. */
    int64_t (*args_bytes)(int32_t kernel, const void *args);
    void (*args_copy)(int32_t kernel, void *to, const void *args);
    /* The CPU's product. A failure is recorded (msi_device.fault), for the next wait, and its
     * result is NaN. */
    ms_status (*gemm)(void *user, const msi_gemm_args *args);
    const struct msi_device_ops *cpu; /* shared by devices with host memory */
} msi_device_host;

typedef bool (*msi_go_on)(void *user, bool run);

typedef struct msi_device_ops {
    int32_t version;  /* MSI_DEVICE_VERSION */
    const char *kind; /* "cpu", "fake", "cuda" */

    /* Number of devices; 0, with the reason, if none is usable. NULL: any number. */
    int32_t (*count)(char *error);
    /* PCI address of device `index`, counted as in open(): MSI_BUS_TEXT bytes. NULL: none. */
    bool (*bus)(int32_t index, char *text);
    /* `error` has room for MSI_DEVICE_ERROR bytes, here and below */
    int32_t (*open)(msi_device **out, const msi_device_host *host, int32_t index, char *error);
    void (*close)(msi_device *d); /* all work has run; so for give(), detach() */
    /* The process ends without close(), and all work has run: print what was measured. NULL:
     * nothing to do. */
    void (*finish)(msi_device *d);
    void (*info)(msi_device *d, msi_device_info *out);
    /* What besides the kernels decides the bits of results: device and libraries. NULL: products
     * and scratch are the CPU's. */
    const char *(*library)(msi_device *d);

    /* system memory, 64-byte aligned, for the context's heap */
    int32_t (*take)(msi_device *d, int64_t nbytes, int32_t place, void **out);
    void (*give)(msi_device *d, void *p, int64_t nbytes, int32_t place);
    /* A block of its memory was allocated, or released. NULL: not observed. With it no address is
     * used again. */
    void (*block)(msi_device *d, void *p, int64_t nbytes, bool released);
    /* Uninitialised memory that others can map by `*fd`, which the caller closes. It exists until
     * all maps, also of others, are detached. */
    int32_t (*share)(msi_device *d, int64_t nbytes, void **out, int32_t *fd);
    int32_t (*attach)(msi_device *d, int32_t fd, int64_t nbytes, bool readonly, void **out);
    void (*detach)(msi_device *d, void *p, int64_t nbytes);
    /* Host memory, whole pages, whose words post() and await() will use. NULL: any will do. */
    int32_t (*pin)(msi_device *d, void *p, int64_t nbytes);
    void (*unpin)(msi_device *d, void *p);

    /* True if there is such a kernel. NULL: those of the CPU. */
    bool (*has)(msi_device *d, int32_t kernel, int32_t dtype);
    /* Bytes of scratch of a kernel with `work`. -1, or a NULL function: as much as the CPU's
     * kernel, whose products need none. */
    int64_t (*work_bytes)(msi_device *d, int32_t kernel, int32_t dtype, const void *args);

    /* enqueue in stream order; arguments are copied */
    int32_t (*run)(msi_device *d, int32_t stream, int32_t kernel, int32_t dtype, const void *args);
    /* A kernel of msi_batch for n <= MSI_RUN_ALL tensors, arguments `stride` bytes apart. NULL:
     * one run() each. */
    int32_t (*run_all)(msi_device *d, int32_t stream, int32_t kernel, int32_t dtype,
                       const void *args, int64_t stride, int32_t n);
    int32_t (*gemm)(msi_device *d, int32_t stream, const msi_gemm_args *args);
    bool fuses; /* gemm() computes gelu, before and a_sum of its arguments */
    int32_t (*copy)(msi_device *d, int32_t stream, void *to, const void *from, int64_t nbytes);
    int32_t (*set)(msi_device *d, int32_t stream, void *to, int32_t byte, int64_t nbytes);

    /* order */
    msi_mark (*mark)(msi_device *d, int32_t stream); /* after all work enqueued so far */
    int32_t (*after)(msi_device *d, int32_t stream, msi_mark m);
    int32_t (*done)(msi_device *d, msi_mark m);
    /* Until it is done, or `go_on` (NULL: always) returns false: MSI_DEV_NOT_YET. `go_on` is called
     * from time to time while nothing can run; `run`: something ran since its last call. */
    int32_t (*wait)(msi_device *d, msi_mark m, msi_go_on go_on, void *user);
    /* For a thread that waits for other ranks: run what can run, if no other thread does. NOT_YET
     * if work is left that needs another call. */
    int32_t (*poll)(msi_device *d);

    /* words in host memory shared by the host's ranks, compared as signed numbers. `words` is
     * copied. On the CPU they must already be stored, else MSI_DEV_FAILED. */
    int32_t (*post)(msi_device *d, int32_t stream, _Atomic uint64_t *word, uint64_t value);
    int32_t (*await)(msi_device *d, int32_t stream, _Atomic uint64_t *const *words, int32_t n,
                     uint64_t at_least);
    /* The awaited words will not come: continue without them. */
    void (*abandon)(msi_device *d);
    /* The library's own stream, for a call that enqueues an item to it. NULL: has none. */
    void *(*handle)(msi_device *d, int32_t stream);
} msi_device_ops;

enum { MSI_DEVICE_ERROR = 256 };

/* First member of every device. */
struct msi_device {
    const msi_device_ops *ops;
    ms_status failed; /* outcome of a product in the running kernel */
    ms_status lost;   /* a wait for peers was abandoned: every settle fails */
    char why_lost[MSI_MESSAGE_BYTES];
    int32_t stream; /* target of dispatch: COMPUTE unless changed temporarily */
    ms_context *ctx;
    msi_fault *fault; /* pinned; invalid data found by kernels, for the next wait */
    char why_failed[MSI_MESSAGE_BYTES]; /* if the fault is a product's */
    int64_t n_waits;                    /* of the host for marks */
    struct msi_device_comm *comms;      /* open communicators: device_comm.h */
    char text[512]; /* the device's own error, with MSI_DEV_FAILED and MSI_DEV_LOST; or empty */
};

extern const msi_device_ops msi_cpu_device_ops;

/* Open the context's device: the chosen one, or MS_DEVICE's; `index` is the default of its number.
 * `device` stays NULL for the CPU ("cpu", or unset). MS_DEVICE_ERROR, MS_OUT_OF_MEMORY. */
ms_status msi_device_open(ms_context *ctx, int32_t index);
/* The kind and number to open; NULL for the CPU. `*index` is kept if none was chosen. */
ms_status msi_device_choice(const ms_context *ctx, const char **kind, int32_t *index);
/* MS_VALUE_ERROR if there is no device of this number. */
ms_status msi_device_check_index(const msi_device_ops *ops, int32_t index);
/* The function table of a kind, from its plug-in. */
ms_status msi_device_load(ms_context *ctx, const char *kind, const msi_device_ops **ops);
/* From now on forked processes have no device: every use is an error. */
void msi_device_watch_forks(void);
/* The process ends and pending work is useless: if any is left, nothing runs or waits from now on,
 * and every use is an error. */
void msi_device_quit(msi_device *d);

/* True if any context of the process has one. (Checked first, since finding the context costs as
 * much as a small kernel.) */
extern _Atomic int32_t msi_n_devices;
static inline bool msi_any_device(void)
{
    return atomic_load_explicit(&msi_n_devices, memory_order_relaxed) != 0;
}
/* Run one on the current stream. `op` is the caller, for errors. */
ms_status msi_device_run(msi_device *d, const char *op, int32_t kernel, int32_t dtype,
                         const void *args);
/* True if it has a memory of its own, beside the host's. */
bool msi_device_has_memory(const msi_device_info *info);
/* `after` and `await` of the table. */
ms_status msi_device_after(msi_device *d, int32_t stream, msi_mark mark);
ms_status msi_device_await(msi_device *d, int32_t stream, _Atomic uint64_t *const *words, int32_t n,
                           uint64_t at_least);
/* `pin` of the table, which has one. */
ms_status msi_device_pin(msi_device *d, void *p, int64_t nbytes);
/* End all waits of its streams: all later results are invalid, and settling returns `status` with
 * the current message. */
void msi_device_lose(msi_device *d, ms_status status);
/* Wait for a mark. MS_COMM_ERROR if it depends on peers that left; it is reached anyway, but with
 * invalid results, as later msi_settle() calls report. */
ms_status msi_device_wait_for(msi_device *d, msi_mark mark);
/* The same without a result; keeps the error message. False: not reached, as the caller is a
 * running item. */
bool msi_device_drain_to(msi_device *d, msi_mark mark);
/* Run what can run; true if work is left that needs another call. */
bool msi_device_polls(msi_device *d);
/* A product on the CPU, now. */
ms_status msi_gemm_now(ms_context *ctx, const msi_gemm_args *args);
/* The `gemm` of msi_device_host: the same; a failure becomes the device's fault. */
ms_status msi_device_gemm(void *ctx, const msi_gemm_args *args);
/* The recorded error, once. */
ms_status msi_device_fault_report(msi_device *d);

#endif
