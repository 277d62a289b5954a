/* Devices behind tables of function pointers: memory, kernels, matrix multiplication.
 *
 * This runtime's CPU is the only device linked in; others are opened as plug-ins. Kernels are
 * looked up by (kernel, dtype) in the device's table; a missing one is MS_NOT_IMPLEMENTED_ERROR
 * that names op, dtype and device, never a silent fall back. */
#ifndef MSI_BACKEND_H
#define MSI_BACKEND_H

#include "base.h"
#include "kernel_args.h"
#include "unary.h"

#include <string.h>

#define MSI_KERNELS_UNARY(X, f, gradient, saved) X(f, msi_ew_args)
#define MSI_KERNELS_UNARY_GRADIENT(X, f, gradient, saved) X(gradient, msi_ew_args)

/* Every kernel: name, argument struct. A device's table has it in the dtypes that are defined. */
#define MSI_KERNELS(X)                                                                             \
    X(copy, msi_ew_args)    /* out = in[0], casting from in_dtype */                               \
    X(fill, msi_ew_args)    /* out = scalar[0] */                                                  \
    X(add, msi_ew_args)     /* in[0] + in[1] */                                                    \
    X(sub, msi_ew_args)     /* in[0] - in[1] */                                                    \
    X(mul, msi_ew_args)     /* in[0] * in[1] */                                                    \
    X(maximum, msi_ew_args) /* the larger of in[0] and in[1]; NaN where one is */                  \
    X(minimum, msi_ew_args)                                                                        \
    X(clamp, msi_ew_args)      /* in[0], at least scalar[0], then at most scalar[1] */             \
    X(div, msi_ew_args)        /* in[0] / in[1] */                                                 \
    X(affine, msi_ew_args)     /* scalar[0] * in[0] + scalar[1] */                                 \
    X(scale, msi_ew_args)      /* in[0] * in[1], in[1] one number */                               \
    X(reciprocal, msi_ew_args) /* scalar[0] / in[0] */                                             \
    X(pow, msi_ew_args)        /* in[0]^scalar[0] */                                               \
    MSI_UNARY(MSI_KERNELS_UNARY, X)                                                                \
    MSI_UNARY_BY_ITSELF(MSI_KERNELS_UNARY_GRADIENT, X)                                             \
    X(gelu, msi_ew_args)                                                                           \
    X(gelu_tanh, msi_ew_args)                                                                      \
    X(softplus, msi_ew_args)       /* with b = scalar[0]: log(1 + exp(b x)) / b, x where b x >     \
                                      scalar[1] */                                                 \
    X(maximum_grad, msi_ew_args)   /* in[0] where in[1] > in[2], half of it where they are equal,  \
                                      0 where in[1] < in[2] */                                     \
    X(minimum_grad, msi_ew_args)   /* likewise, < and > exchanged */                               \
    X(clamp_grad, msi_ew_args)     /* in[0] where scalar[0] <= in[1] <= scalar[1], else 0 */       \
    X(mul_neg, msi_ew_args)        /* -(in[0] * in[1] * in[2]): for the gradient of 1/x */         \
    X(div_neg, msi_ew_args)        /* -(in[0] * in[1] / in[2]): for the gradient of x/y */         \
    X(gelu_grad, msi_ew_args)      /* in[0] gelu'(in[1]), in[1] = x */                             \
    X(gelu_tanh_grad, msi_ew_args) /* likewise, tanh form */                                       \
    X(softplus_grad, msi_ew_args)  /* in[0] softplus'(in[1]), in[1] = x, scalars as there */       \
    X(mse, msi_ew_args)            /* (in[0] - in[1])^2 */                                         \
    X(mse_grad, msi_ew_args)       /* scalar[0] in[2] (in[0] - in[1]), in[2] one number */         \
    X(pow_grad, msi_ew_args)       /* in[0] scalar[0] in[1]^(scalar[0] - 1), in[1] = x */          \
    X(eq, msi_ew_args)             /* bool of in[0] == in[1], of in_dtype; likewise: */            \
    X(ne, msi_ew_args)                                                                             \
    X(lt, msi_ew_args)                                                                             \
    X(le, msi_ew_args)                                                                             \
    X(is_inf, msi_ew_args)    /* bool, of in[0] = in[1] */                                         \
    X(is_finite, msi_ew_args) /* likewise */                                                       \
    X(close, msi_ew_args)     /* |in[0] - in[1]| <= scalar[1] + scalar[0] |in[1]|, or equal */     \
    X(where, msi_ew_args)     /* in[1] where in[0] (bool) is true, else in[2] */                   \
    X(sum, msi_sum_args)                                                                           \
    X(cumsum, msi_sum_args) /* along reduced, whose stride[0] is of out; both of any strides */    \
    X(layer_norm, msi_layer_norm_args)                                                             \
    X(layer_norm_grad, msi_layer_norm_grad_args)                                                   \
    X(log_softmax, msi_softmax_args)                                                               \
    X(log_softmax_grad, msi_softmax_args)                                                          \
    X(softmax, msi_softmax_args)                                                                   \
    X(softmax_grad, msi_softmax_args)                                                              \
    X(cross_entropy, msi_cross_entropy_args)                                                       \
    X(cross_entropy_grad, msi_cross_entropy_args)                                                  \
    X(embedding, msi_embedding_args)                                                               \
    X(embedding_grad, msi_embedding_args)                                                          \
    X(attention, msi_attention_args)                                                               \
    X(attention_grad, msi_attention_args)                                                          \
    X(dropout, msi_dropout_args)                                                                   \
    X(init, msi_init_args)                                                                         \
    X(sgd, msi_sgd_args)                                                                           \
    X(adam, msi_adam_args)                                                                         \
    X(norm, msi_norm_args)                                                                         \
    X(norm_fold, msi_norm_fold_args)                                                               \
    X(tree, msi_tree_args)                                                                         \
    X(gemm, msi_gemm_args) /* own, for f64, tiny shapes, and where no library is there */

enum {
#define MSI_KERNEL_ENUM(name, args) MSI_K_##name,
    MSI_KERNELS(MSI_KERNEL_ENUM)
#undef MSI_KERNEL_ENUM
        MSI_K_COUNT
};

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
/** The table of one build, NULL when this machine cannot run it. @param isa  2, 3 or 4 */
const msi_kernel_table *msi_kernels_of(int32_t isa);
/** Is there such a kernel? The error msi_dispatch() has where there is none. */
ms_status msi_check_kernel(const char *op, int32_t kernel, int32_t dtype);
/** The error itself. */
ms_status msi_kernel_missing(const char *op, int32_t dtype, const char *device);
/** Bytes of a copy of a kernel's arguments with the list that they point to (a tree's sources), for
 * a device that runs it later; and that copy, to where any type may lie. */
int64_t msi_args_bytes(int32_t kernel, const void *args);
void msi_args_copy(int32_t kernel, void *to, const void *args);
/** Run a kernel; `args` and their list are the caller's again on return. `op` names the caller in
 * the error about a missing one. */
ms_status msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args);
/** Run the CPU's on memory of the host, whatever the context's device: it has run on return. */
ms_status msi_dispatch_host(const char *op, int32_t kernel, int32_t dtype, const void *args);

/**
 * Matrix multiplication by the best means for the shape: own kernel for f64 and tiny shapes
 * (m n k <= 4,096), else the library plug-in (oneDNN), else the own kernel. The choice depends on
 * shape and dtype alone. One thread. A narrow dtype without hardware support
 * is computed in f32.
 */
ms_status msi_gemm(ms_context *ctx, const msi_gemm_args *args);
/** Name of what msi_gemm() uses for a large product of this dtype, e.g. "brg:avx512_core_bf16". */
const char *msi_gemm_name(ms_context *ctx, int32_t dtype);
/** The dtype in which operands of a large product of this dtype are multiplied: f32 for a narrow
 * one where the library has no products of it (operands are then better widened once than by every
 * product).
 */
ms_status msi_gemm_operands(ms_context *ctx, int32_t dtype, int32_t *operands);
/** Bytes of work space that a large product of this dtype takes at most. */
int64_t msi_gemm_scratch(ms_context *ctx, int32_t dtype, int64_t m, int64_t n, int64_t k);
/** Let go of work space kept for the next product. */
void msi_gemm_trim(ms_context *ctx);
/** The matrix library behind it, e.g. "oneDNN 2.6.3", or "none". */
const char *msi_gemm_library(ms_context *ctx);
/** Matrix primitives created so far in this context (none is created after the second step). */
int64_t msi_gemm_created(ms_context *ctx);
/** Those that are kept: the least recently used is given up for a new one past 256. */
int64_t msi_gemm_kept(ms_context *ctx);

/** Scratch bytes the attention kernels need for these arguments. */
int64_t msi_attention_work_bytes(const msi_attention_args *args, int32_t dtype, bool gradient);

/* -- what is done in the order of the context's stream of computing ---------------------------- */

ms_status msi_device_wait(struct msi_device *d);
bool msi_device_drain(struct msi_device *d);
ms_status msi_device_settle(struct msi_device *d);
ms_status msi_mem_copy_on(struct msi_device *d, void *to, const void *from, int64_t nbytes);
ms_status msi_mem_set_on(struct msi_device *d, void *to, int32_t byte, int64_t nbytes);

/** Wait until all that was enqueued has run: who reads or writes pinned memory that it uses calls
 * it first. (Who reads or writes a tensor asks for a host view, tensor.h.) What failed meanwhile is
 * its error. */
static inline ms_status msi_settle(const ms_context *ctx)
{
    return MSI_LIKELY(ctx->device == NULL) ? MS_OK : msi_device_settle(ctx->device);
}

/** The same where no error can be told, and the message of another may be set, which stays: the
 * next msi_settle() tells it. */
static inline void msi_drain(const ms_context *ctx)
{
    if (MSI_UNLIKELY(ctx->device != NULL)) {
        (void)msi_device_drain(ctx->device);
    }
}

/** Where a kernel that runs later keeps what its products came to, of which msi_settle() tells. On
 * the CPU `now`. */
ms_status *msi_device_status(const ms_context *ctx, ms_status *now);

/** Where kernels say what they find wrong with data: msi_settle() tells. On the CPU `now`, which
 * msi_fault_report() then tells of. */
msi_fault *msi_device_fault(const ms_context *ctx, msi_fault *now);
/** The error of what was found, if anything was; once. */
ms_status msi_fault_report(msi_fault *fault);

/** In stream order, as kernels are; host memory stays as it is until it has run. */
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

/** `bytes` for the runtime's own records, 64-byte aligned, whose pages are there: one call of the
 * system in place of a fault for each. To be freed with free(). NULL when memory is out. */
void *msi_take_touched(int64_t bytes);

/** `bytes` for the caching heap, a multiple of 64, 64-byte aligned; NULL when memory is out.
 */
void *msi_system_take(int64_t bytes);
/** Give back what msi_system_take() gave for as many bytes. */
void msi_system_give(void *p, int64_t bytes);
/** May this process take so many bytes of address space? */
bool msi_system_has(int64_t bytes);

/** A piece of memory of the context's caching heap, known by this record, which lies beside it. */
typedef struct msi_mem_block {
    void *data;     /**< 64-byte aligned */
    int64_t nbytes; /**< asked for */
    /* What follows is the heap's (heap.h). */
    struct msi_heap *heap;
    struct msi_class *list;      /* of its size */
    struct msi_mem_block *next;  /* free or waiting ones */
    struct msi_mem_block *first; /* of the piece it was cut from: itself where it came alone */
    union {
        int64_t released; /* stats.n_allocs at that time */
        uint64_t ticket;  /* while it waits: of the mark */
    };
    int16_t kind;
    int16_t n_blocks; /* the first's: of the piece */
    int16_t n_free;   /* the first's: while a list is searched, and once the heap is closed */
} msi_mem_block;

/** Take no memory, but make what the first of it makes: the heap, and the device is opened. */
ms_status msi_memory_open(ms_context *ctx);
/** A block to be released, for use in the order of the stream of computing. `kind` is MS_MEM_*.
 * nbytes 0 gives one with a valid unique pointer. MS_OUT_OF_MEMORY names bytes, kind and what is
 * live. */
ms_status msi_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, msi_mem_block **out);
/** The same, of memory that the host reads and writes as it goes, whatever the device: for the
 * runtime's own records, and what goes to a device or comes from it. */
ms_status msi_host_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, msi_mem_block **out);
/** Give a block back, also after its context was closed; NULL is allowed. What was enqueued for it
 * on its stream still has it; of the host's, nobody. For others: msi_release_after(). */
void msi_release(msi_mem_block *block);
/** What lies free goes back to the system. */
void msi_alloc_trim(ms_context *ctx);
/**
 * Is there address space for `nbytes` more? Asked before calls of a library that does not look
 * whether it got the memory it asked for. Takes nothing.
 * @param what  what the library is about to make, for the message of MS_OUT_OF_MEMORY
 */
ms_status msi_alloc_probe(ms_context *ctx, int64_t nbytes, const char *what);
/** Count a live block's bytes as another kind. */
void msi_mem_set_kind(msi_mem_block *block, int32_t kind);
/** Count bytes that live elsewhere (the arena). May be negative. */
void msi_count_external(ms_context *ctx, int64_t nbytes, int32_t kind);
/** Test hook: the k-th allocation from now fails (0: the next), of the host's memory too, -1: none.
 * MS_FAIL_ALLOC sets it. */
void msi_alloc_fail_at(ms_context *ctx, int64_t k);
void msi_memory_stats(ms_context *ctx, ms_memory_stats *stats);

#endif
