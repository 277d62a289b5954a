/* Devices behind tables of function pointers: memory, kernels, matrix multiplication.
 *
 * Only the CPU is linked in; other devices are plug-ins. Kernels are looked up by (kernel, dtype)
 * in the device's table. A missing one is MS_NOT_IMPLEMENTED_ERROR with op, dtype and device; there
 * is no silent fallback. */
#ifndef MSI_BACKEND_H
#define MSI_BACKEND_H

#include "base.h"
#include "kernels.h"

#include <string.h>

typedef void (*msi_kernel_fn)(const void *args);

/** A device's kernels. NULL entries are missing. */
typedef struct msi_kernel_table {
    const char *device;               /**< "cpu" */
    const char *isa;                  /**< "x86-64-v4" */
    msi_kernel_fn fn[MSI_K_COUNT][8]; /* MS_DTYPE_COUNT, which kernels.c asserts */
} msi_kernel_table;

/** Name of a kernel, e.g. "gelu_tanh". */
const char *msi_kernel_name(int32_t kernel);
/** This machine's best table, or that of MS_CPU_ISA (v2, v3, v4). Never NULL. */
const msi_kernel_table *msi_kernels(void);
/** The table of one build, NULL if this machine cannot run it. @param isa  2, 3 or 4 */
const msi_kernel_table *msi_kernels_of(int32_t isa);
/** msi_dispatch()'s error if the kernel is missing. */
ms_status msi_check_kernel(const char *op, int32_t kernel, int32_t dtype);
/** The same of the CPU's kernels. */
ms_status msi_check_host_kernel(const char *op, int32_t kernel, int32_t dtype);
/** That error. */
ms_status msi_kernel_missing(const char *op, int32_t dtype, const char *device);
/** Size of a copy of a kernel's arguments with the lists they point to (a tree's sources), and that
 * copy, for devices that run it later. `to` is aligned for any type. */
int64_t msi_args_bytes(int32_t kernel, const void *args);
void msi_args_copy(int32_t kernel, void *to, const void *args);
enum {
    MSI_FIELD_MEMORY, /* of tensors, or scratch */
    MSI_FIELD_FAULT,
    MSI_FIELD_STATUS,
    MSI_FIELD_CONTEXT,
    MSI_FIELD_DRAW /* no pointer: seed, site, call and sample base of a random mask */
};

/** A pointer of a kernel's arguments. */
typedef struct msi_args_field {
    int16_t offset;
    int16_t kind; /* MSI_FIELD_* */
} msi_args_field;

/** The pointers of a kernel's arguments, `*n` of them, but for the caller's name and a tree's
 * sources. */
const msi_args_field *msi_args_fields(int32_t kernel, int32_t *n);
/** Run a kernel; the caller may reuse `args` and its list on return. `op` is the caller, for
 * errors. */
ms_status msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args);
enum { MSI_BATCH_ARGS = 512 }; /* bytes of a call's arguments, at most */

/** Calls of one kernel, for tensors of one dtype after another, which a device may run at once:
 * optimizers' updates, norm, scale of dense operands. */
typedef struct msi_batch {
    const char *op; /**< the caller, for errors */
    int32_t kernel, dtype, n;
    int64_t nbytes; /**< of a call's arguments, a multiple of 8 */
    _Alignas(16) unsigned char args[MSI_RUN_ALL * MSI_BATCH_ARGS];
} msi_batch;

/** Can this context's device run many calls at once? */
bool msi_batches(void);
void msi_batch_init(msi_batch *b, const char *op, int32_t kernel, int64_t nbytes);
/** Run a call with those added later, or at once if this context does not batch. */
ms_status msi_batch_add(msi_batch *b, int32_t dtype, const void *args);
/** Run what was added. */
ms_status msi_batch_run(msi_batch *b);
/** Run the CPU's kernel on host memory, on any device; finished on return. */
ms_status msi_dispatch_host(const char *op, int32_t kernel, int32_t dtype, const void *args);

/**
 * Matrix multiplication, on one thread: own kernel for f64 and tiny shapes (m n k <= 4,096), else
 * the library plug-in (oneDNN), else the own kernel. The choice depends on shape and dtype only. A
 * narrow dtype without hardware support is computed in f32.
 */
ms_status msi_gemm(ms_context *ctx, const msi_gemm_args *args);
/** True if products of this context's device compute gelu, before and a_sum of msi_gemm_args. */
bool msi_gemm_fuses(const ms_context *ctx);
/** Implementation of large products of this dtype, e.g. "brg:avx512_core_bf16". */
const char *msi_gemm_name(ms_context *ctx, int32_t dtype);
/** Operand dtype of large products of this dtype: f32 for a narrow one without products in the
 * library (then widen operands once, not in every product). */
ms_status msi_gemm_operands(ms_context *ctx, int32_t dtype, int32_t *operands);
/** Maximum work space of a large product of this dtype, in bytes. */
int64_t msi_gemm_scratch(ms_context *ctx, int32_t dtype, int64_t m, int64_t n, int64_t k);
/** Free work space kept for the next product. */
void msi_gemm_trim(ms_context *ctx);
/** The matrix library, e.g. "oneDNN 2.6.3", or "none". */
const char *msi_gemm_library(ms_context *ctx);
/** Matrix primitives created in this context; constant after the second step. */
int64_t msi_gemm_created(ms_context *ctx);
/** Cached ones, at most 256, evicted least recently used first. */
int64_t msi_gemm_kept(ms_context *ctx);

/** Scratch bytes of a kernel with `work` on this context's device; -1: as much as the CPU's kernel.
 * `ctx` may be NULL. */
int64_t msi_work_bytes(const ms_context *ctx, int32_t kernel, int32_t dtype, const void *args);
/** Scratch bytes of the attention kernels for these arguments. */
int64_t msi_attention_work_bytes(const msi_attention_args *args, int32_t dtype, bool gradient);

/** Choose the boxes of a convolution from its sizes and tile_dtype. @return bytes of scratch */
int64_t msi_conv_plan(msi_conv_args *args, int32_t dtype, bool gradient);

/* -- in order of stream COMPUTE ---------------------------------------------------------------- */

ms_status msi_device_wait(struct msi_device *d);
bool msi_device_drain(struct msi_device *d);
ms_status msi_device_settle(struct msi_device *d);
ms_status msi_device_settle_stream(struct msi_device *d);
ms_status msi_mem_copy_on(struct msi_device *d, void *to, const void *from, int64_t nbytes);
ms_status msi_mem_set_on(struct msi_device *d, void *to, int32_t byte, int64_t nbytes);

/** Wait for all enqueued work. Call it before host access to pinned memory which that work uses.
 * (For tensors use a host view, tensor.h.) Returns the error of that work. */
static inline ms_status msi_settle(const ms_context *ctx)
{
    return MSI_LIKELY(ctx->device == NULL) ? MS_OK : msi_device_settle(ctx->device);
}

/** The same for work of the current stream only, after which the host may read what it copied. */
static inline ms_status msi_settle_stream(const ms_context *ctx)
{
    return MSI_LIKELY(ctx->device == NULL) ? MS_OK : msi_device_settle_stream(ctx->device);
}

/** "cuda:0", in msi_part_text(); "cpu" without a device. */
const char *msi_device_label(const ms_context *ctx);

/** msi_settle() without a result; keeps the current error message. The next msi_settle() returns
 * the error. */
static inline void msi_drain(const ms_context *ctx)
{
    if (MSI_UNLIKELY(ctx->device != NULL)) {
        (void)msi_device_drain(ctx->device);
    }
}

/** Where a kernel that runs later stores the status of its products, for msi_settle(). On the CPU
 * `now`. */
ms_status *msi_device_status(const ms_context *ctx, ms_status *now);

/** Where kernels record invalid data, for msi_settle(). On the CPU `now`, for msi_fault_report().
 */
msi_fault *msi_device_fault(const ms_context *ctx, msi_fault *now);
/** The recorded error, once. */
ms_status msi_fault_report(msi_fault *fault);

/** In stream order, like kernels; host memory must not change before it has run. */
static inline ms_status msi_mem_copy(const ms_context *ctx, void *to, const void *from,
                                     int64_t nbytes)
{
    if (MSI_UNLIKELY(ctx->device != NULL)) {
        return msi_mem_copy_on(ctx->device, to, from, nbytes);
    }
    memcpy(to, from, (size_t)nbytes);
    return MS_OK;
}

static inline ms_status msi_mem_set(const ms_context *ctx, void *to, int32_t byte, int64_t nbytes)
{
    if (MSI_UNLIKELY(ctx->device != NULL)) {
        return msi_mem_set_on(ctx->device, to, byte, nbytes);
    }
    memset(to, byte, (size_t)nbytes);
    return MS_OK;
}

/* -- memory ------------------------------------------------------------------------------------ */

/** `bytes` for the runtime's records, 64-byte aligned, with pages populated by one system call.
 * Free with free(). NULL if memory is out. */
void *msi_take_touched(int64_t bytes);

/** `bytes` for the caching heap, a multiple of 64, 64-byte aligned; NULL if memory is out. */
void *msi_system_take(int64_t bytes);
/** Free memory of msi_system_take(), with its size. */
void msi_system_give(void *p, int64_t bytes);
/** True if the process can map so many more bytes. */
bool msi_system_has(int64_t bytes);

/** A block of the context's heap. The record is separate from the memory. */
typedef struct msi_mem_block {
    void *data;     /**< 64-byte aligned */
    int64_t nbytes; /**< requested */
    /* Private to the heap (heap.h). */
    struct msi_heap *heap;
    struct msi_class *list;      /* of its size */
    struct msi_mem_block *next;  /* free or waiting list */
    struct msi_mem_block *first; /* of its piece: itself if alone */
    union {
        int64_t released; /* stats.n_allocs when released */
        uint64_t ticket;  /* while it waits: of the mark */
    };
    int16_t kind;
    int16_t n_blocks; /* the first's: of the piece */
    int16_t n_free;   /* in the first: temporary, or once the heap is closed */
} msi_mem_block;

/** Make the heap and open the device, without allocating. */
ms_status msi_memory_open(ms_context *ctx);
/** New block, used in order of stream COMPUTE; the caller releases it. `kind` is MS_MEM_*. nbytes 0
 * gives a unique valid pointer. MS_OUT_OF_MEMORY with bytes, kind and live bytes. */
ms_status msi_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, msi_mem_block **out);
/** The same in memory that the host can access on any device, for the runtime's records and for
 * transfers. */
ms_status msi_host_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, msi_mem_block **out);
/** Release a block, even after its context closed; NULL is allowed. Work enqueued on COMPUTE may
 * still use it; for host memory nothing may. Other streams: msi_release_after(). */
void msi_release(msi_mem_block *block);
/** Return free memory to the system. */
void msi_alloc_trim(ms_context *ctx);
/**
 * Check for `nbytes` more address space, before library calls that do not check their allocations.
 * Allocates nothing.
 * @param what  what the library will make, for MS_OUT_OF_MEMORY
 */
ms_status msi_alloc_probe(ms_context *ctx, int64_t nbytes, const char *what);
/** Count a live block's bytes as another kind. */
void msi_mem_set_kind(msi_mem_block *block, int32_t kind);
/** Count bytes allocated elsewhere (the arena). May be negative. */
void msi_count_external(ms_context *ctx, int64_t nbytes, int32_t kind);
/** Test hook: the k-th allocation from now fails (0: the next), also of host memory; -1: none.
 * MS_FAIL_ALLOC sets it. */
void msi_alloc_fail_at(ms_context *ctx, int64_t k);
void msi_memory_stats(ms_context *ctx, ms_memory_stats *stats);

#endif
