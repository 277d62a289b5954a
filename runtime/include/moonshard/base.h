/* Status, errors, warnings, memory statistics, seeds. Every other public header includes this one.
 *
 * The public headers use a subset of C that LuaJIT can parse (through `cc -E -DMS_FFI_CDEF`):
 * fixed-width integers, pointers, opaque and plain structs, anonymous enums; no struct by value, no
 * varargs, no inline functions, no constants as macros. Declarations for C hosts only are under
 * `#ifndef MS_FFI_CDEF`. `MS_NULLABLE` before a parameter means that it may be NULL; before a
 * `**out`, that the result may be NULL. A list may be NULL if it is empty.
 *
 * Every thread has its own context. Handles and groups belong to the context that made them; no
 * other thread may use or free them. */
#ifndef MOONSHARD_BASE_H
#define MOONSHARD_BASE_H

#ifdef MS_FFI_CDEF
#define MS_API
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define MS_API __attribute__((visibility("default")))
#define MS_NULLABLE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** MS_OK or a negative kind. Results go to `**out`, the first parameter; NULL on failure. */
typedef int32_t ms_status;

/** Kinds of errors; scripts see their names (`ValueError`, ...). */
enum {
    MS_OK = 0,
    MS_VALUE_ERROR = -1,
    MS_TYPE_ERROR = -2,
    MS_RUNTIME_ERROR = -3,
    MS_ASSERTION_ERROR = -4,
    MS_NOT_IMPLEMENTED_ERROR = -5,
    MS_INDEX_ERROR = -6,
    MS_KEY_ERROR = -7,
    MS_OUT_OF_MEMORY = -8,
    MS_IO_ERROR = -9,
    MS_FORMAT_ERROR = -10,
    MS_COMM_ERROR = -11,
    MS_DEVICE_ERROR = -12,
    MS_INTERNAL_ERROR = -13,
    MS_HOOK_ERROR = -14 /**< a host's hook failed; the host keeps its own error object */
};

/** Name of a kind, e.g. "ValueError"; "UnknownError" for an unknown number. Static. */
MS_API const char *ms_status_name(ms_status status);

/** Message of the thread's last error, at most 4,095 bytes, valid until its next failing call. The
 * first line is the error; others are a host's or another rank's traceback. */
MS_API const char *ms_error_message(void);

/** True if the thread's last error came from work that a device ran asynchronously, so that the
 * call that returned it only waited. Repeating that call does not help. */
MS_API bool ms_error_is_late(void);

/** Clear the calling thread's last error. */
MS_API void ms_error_clear(void);

/** Set the calling thread's last error (for hosts and hooks).
 * @return `kind`, to be passed on; MS_RUNTIME_ERROR if it is not an error kind */
MS_API ms_status ms_error_set(ms_status kind, MS_NULLABLE const char *message);

/** Version, e.g. "0.1.0". Static. */
MS_API const char *ms_version(void);

/** Hash of the public headers this library was built from; the Lua loader compares it with the hash
 * of its cdef. Static. */
MS_API const char *ms_abi_hash(void);

/** Name of the instruction set the CPU kernels use: "x86-64-v2", "-v3" or "-v4". Static. */
MS_API const char *ms_cpu_isa(void);

/**
 * Queue warnings instead of printing them to stderr.
 * @param on  true: queue from now on; false: print again and empty the queue
 */
MS_API void ms_warnings_capture(bool on);

/**
 * Issue a warning: print it, or queue it (ms_warnings_capture()).
 * @param kind     prefix: "UserWarning" or "FutureWarning" for this library's own. The queue keeps
 *                 15 bytes of a host's kind. Control characters are escaped
 * @param message  one or more lines, at most 4,095 bytes
 */
MS_API void ms_warn(const char *kind, const char *message);

/** Take the oldest queued warning. Both texts stay valid until the thread's next call.
 * @return false if the queue is empty */
MS_API bool ms_warning_take(const char **kind, const char **message);

/** Purpose of a memory block; statistics are kept by kind. */
enum {
    MS_MEM_PARAMETER = 0,
    MS_MEM_GRADIENT = 1,
    MS_MEM_OPTIMIZER = 2,
    MS_MEM_ACTIVATION = 3, /**< results of operators, and plain tensors */
    MS_MEM_ARENA = 4,      /**< shared slots (counted by every rank that maps them) */
    MS_MEM_SCRATCH = 5,    /**< work space of kernels */
    MS_MEM_KINDS = 6
};

/** Exact byte counts of the calling thread's context. */
typedef struct ms_memory_stats {
    int64_t live[6];      /**< bytes allocated and not freed, by kind */
    int64_t peak[6];      /**< highest `live` of each kind since the last reset */
    int64_t live_total;   /**< sum over kinds */
    int64_t peak_total;   /**< highest sum (not the sum of the peaks) */
    int64_t reserved;     /**< bytes taken from the system, caches included */
    int64_t cached;       /**< part of `reserved` in free blocks */
    int64_t n_allocs;     /**< allocations so far */
    int64_t n_system;     /**< allocations that called the system */
    int64_t live_handles; /**< live tensor handles */
    int64_t pinned;       /**< host memory a device can access, in bytes; not included in the fields
                             above. 0 on the CPU, where it is counted by kind */
} ms_memory_stats;

/** Fill `*stats` for the calling thread's context. */
MS_API void ms_memory_stats_get(ms_memory_stats *stats);

/** Set every peak to the current live count. */
MS_API void ms_memory_reset_peak(void);

/** Return free blocks and the work space of matrix products to the system. Blocks that stay free
 * for 65,536 allocations are returned automatically. */
MS_API void ms_memory_trim(void);

/** True if a host with a garbage collector should run it, because the collector does not know how
 * much memory tensors retain: live bytes exceed those at the last ms_memory_collected() by half,
 * and by 64 MiB. */
MS_API bool ms_memory_collect_due(void);
/** The host's collector has run: the new baseline. */
MS_API void ms_memory_collected(void);

/** Set the seed of initial values, dropout and shuffling in this context. Default 0. Restarts all
 * random streams and begins a micro-batch without a sample number (ms_sample_epoch()). */
MS_API void ms_seed(uint64_t seed);

/** The current seed. */
MS_API uint64_t ms_seed_get(void);

/** Begin a micro-batch of the samples `first`, `first` + 1, ... as dropout numbers them.
 * ms_data_windows() calls it; a host that loads batches in advance calls it before each forward.
 * MS_VALUE_ERROR if `first` is below 0. */
MS_API ms_status ms_samples_begin(int64_t first);

/** Number of micro-batches begun, by ms_samples_begin(), ms_data_windows() or a new seed. Dropout
 * sites compare it to restart their call counters. */
MS_API int64_t ms_sample_epoch(void);

/** 64-bit key of a name for random streams (FNV-1a). */
MS_API uint64_t ms_name_key(const char *name);

/** Key of random stream `stream` of a name. Stream 0 has the name's key. */
MS_API uint64_t ms_stream_key(const char *name, int64_t stream);

/** XXH3 (64 bit) of `n` bytes at `data`. */
MS_API uint64_t ms_hash_bytes(const void *data, int64_t n);

/** Monotonic time in seconds. */
MS_API double ms_time(void);

/** Implementation of large products of this dtype, e.g. "brg:avx512_core_bf16". Static. */
MS_API const char *ms_matmul_name(int32_t dtype);

/** Maximum work space of the product (m, k) x (k, n) of a Linear with n outputs and of its
 * gradients, in bytes: f32 copies of operands and result if the narrow dtype has no products of its
 * own; in f32 copies of operands of large gradients in another order. */
MS_API int64_t ms_matmul_scratch(int32_t dtype, int64_t m, int64_t n, int64_t k);

/** One line with all that decides the bits of results besides the inputs: instruction set, matrix
 * library and its kernels, build. Ranks with equal lines compute equal bits. Valid until the
 * thread's next call. Opens the matrix library. */
MS_API const char *ms_numerics(void);

/** Matrix primitives created in this context; constant after a model's second step. */
MS_API int64_t ms_matmul_created(void);

/** Matrix primitives cached in the calling thread's context: at most 256, evicted least recently
 * used first. */
MS_API int64_t ms_matmul_kept(void);

/** True if the file descriptor is a terminal. */
MS_API bool ms_is_terminal(int32_t fd);

/* -- the device -------------------------------------------------------------------------------- */

/** The device of the calling thread's context. */
typedef struct ms_device_info {
    const char *kind;    /**< "cpu", "cuda" */
    const char *name;    /**< "NVIDIA H200", or the instruction set of the CPU kernels; valid until
                            the thread's next call */
    int32_t index;       /**< 0 on the CPU */
    int32_t capability;  /**< compute capability, e.g. 90 for 9.0; 0 if the device has none */
    int64_t total_bytes; /**< of device memory; 0 if unknown */
    int64_t free_bytes;
    int64_t waits; /**< times that the host waited for it so far */
} ms_device_info;

/** Choose the context's device instead of MS_DEVICE. It opens with the first tensor. The same
 * choice again is allowed at any time.
 * @param kind   "cpu", "cuda"
 * @param index  -1: the rank on this host, modulo the number of devices
 * @return MS_VALUE_ERROR for an unknown kind; MS_RUNTIME_ERROR if a tensor exists */
MS_API ms_status ms_device_use(const char *kind, int32_t index);
/** The kind that was chosen, or that of MS_DEVICE. Opens nothing. */
MS_API const char *ms_device_kind(void);
/** Describe the device; opens it. MS_DEVICE_ERROR, MS_OUT_OF_MEMORY. */
MS_API ms_status ms_device_describe(ms_device_info *info);
/** Number of usable devices of a kind, 0 if its plug-in or driver is missing. Opens none: a device
 * that is not open is asked in a child process. */
MS_API ms_status ms_device_count(const char *kind, int32_t *n);

/** Free everything the calling thread's context owns. Handles held by Lua or the host become stale;
 * releasing them is safe. Any later call starts a new context.
 * @return MS_RUNTIME_ERROR inside a hook or its drop(), and then nothing is freed; otherwise the
 *         unreported error of the device's last work, e.g. an index out of range, with all freed */
MS_API ms_status ms_close(void);
/** True if the calling thread has a context for ms_close() to free. */
MS_API bool ms_is_open(void);

#ifdef __cplusplus
}
#endif

#endif
