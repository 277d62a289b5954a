/* Status, errors, warnings, memory figures, seeds. Every other public header includes this one.
 *
 * The public headers are written in a small dialect, because LuaJIT reads them too (through
 * `cc -E -DMS_FFI_CDEF`): fixed-width integers, pointers, opaque and plain structs, anonymous
 * enums; no struct by value, no varargs, no inline functions, no constants as macros. What only C
 * hosts can use stands under `#ifndef MS_FFI_CDEF`. `MS_NULLABLE` in front of a parameter says that
 * it may be NULL (of a `**out`: that what comes back may be); all others are checked, and lists may
 * be NULL when they are empty.
 *
 * Every thread has a context of its own. Handles, groups and all else it is given belong to that
 * context: no other thread may use or free them. */
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

/** 0 or a negative kind. Results come through `**out`, the first parameter, NULL on failure. */
typedef int32_t ms_status;

/** The kinds of errors; scripts see their names (`ValueError`, ...). */
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

/** Name of a kind, e.g. "ValueError"; "UnknownError" for a number that is none. Static. */
MS_API const char *ms_status_name(ms_status status);

/** Text of the calling thread's last error, at most 4,095 bytes, valid until its next failing call:
 * a line, which others follow where a host's own text, or another rank's, has more. */
MS_API const char *ms_error_message(void);

/** Is the calling thread's last error that of earlier work, which a device has done since, and the
 * call that returned it only waited? Then nothing is mended by making that call again. */
MS_API bool ms_error_is_late(void);

/** Forget the calling thread's last error. */
MS_API void ms_error_clear(void);

/** Set the thread's last error from outside (hosts and hooks).
 * @return `kind`, to be passed on; MS_RUNTIME_ERROR when it is no kind of an error */
MS_API ms_status ms_error_set(ms_status kind, MS_NULLABLE const char *message);

/** Version text, e.g. "0.1.0". Static. */
MS_API const char *ms_version(void);

/** Hash of the text of the public headers this library was built from; the Lua loader compares it
 * with the hash of its own cdef. Static. */
MS_API const char *ms_abi_hash(void);

/** Name of the instruction set the CPU kernels use: "x86-64-v2", "-v3" or "-v4". Static. */
MS_API const char *ms_cpu_isa(void);

/**
 * Keep warnings in a queue instead of printing them to stderr.
 * @param on  true: queue from now on; false: print again and empty the queue
 */
MS_API void ms_warnings_capture(bool on);

/**
 * Issue a warning through the one function all warnings of the calling thread pass.
 * @param kind     what stands in front: "UserWarning" or "FutureWarning" for those of this library;
 *                 of a host's own a queue keeps 15 bytes. Control characters are written out
 * @param message  a line that may be followed by others, at most 4,095 bytes
 */
MS_API void ms_warn(const char *kind, const char *message);

/**
 * Take the oldest captured warning. Both texts stay valid until the next call in this thread.
 * @return false when the queue is empty
 */
MS_API bool ms_warning_take(const char **kind, const char **message);

/** What a block of memory is for; figures are kept for each. */
enum {
    MS_MEM_PARAMETER = 0,
    MS_MEM_GRADIENT = 1,
    MS_MEM_OPTIMIZER = 2,
    MS_MEM_ACTIVATION = 3, /**< everything a forward makes, and plain tensors */
    MS_MEM_ARENA = 4,      /**< shared slots (counted by every rank that maps them) */
    MS_MEM_SCRATCH = 5,    /**< kernels' work space */
    MS_MEM_KINDS = 6
};

/** Exact byte counts of the calling thread's context. */
typedef struct ms_memory_stats {
    int64_t live[6];      /**< bytes asked for and not given back, by kind */
    int64_t peak[6];      /**< highest `live` of each kind since the last reset */
    int64_t live_total;   /**< sum over kinds */
    int64_t peak_total;   /**< highest sum (not the sum of the peaks) */
    int64_t reserved;     /**< bytes held from the system, caches included */
    int64_t cached;       /**< of them in free blocks, kept for requests to come */
    int64_t n_allocs;     /**< allocations so far */
    int64_t n_system;     /**< allocations that had to ask the system */
    int64_t live_handles; /**< tensor handles alive */
    int64_t pinned;       /**< bytes of the host's memory that a device reaches, asked for and not
                               given back, beside all of the above; 0 on the CPU, where they are
                               counted by kind */
} ms_memory_stats;

/** Fill `*stats` for the calling thread's context. */
MS_API void ms_memory_stats_get(ms_memory_stats *stats);

/** Set every peak to the present live count. */
MS_API void ms_memory_reset_peak(void);

/** Give cached free blocks and the work space of matrix products back to the system. Blocks that
 * lay free for 65,536 allocations go back by themselves. */
MS_API void ms_memory_trim(void);

/** Should a host whose garbage collector releases tensors run it? The collector does not know how
 * much memory a tensor and its graph hold. True when more than 1.5 times as much is live as at the
 * last ms_memory_collected(), and 64 MiB more at least. */
MS_API bool ms_memory_collect_due(void);
/** The host's collector has run: what is held now, it needs. */
MS_API void ms_memory_collected(void);

/** Seed of everything random in this context: initial values, dropout, shuffling. Default 0. All
 * streams begin anew, dropout's masks too: a new micro-batch of which nobody has said where it
 * stands (ms_sample_epoch()). */
MS_API void ms_seed(uint64_t seed);

/** The seed set last. */
MS_API uint64_t ms_seed_get(void);

/** What comes next is a micro-batch of the samples `first`, `first` + 1, ... of all the samples
 * there are, as dropout numbers them. ms_data_windows() says so itself; a host that deals batches
 * before it runs them says so again before each. MS_VALUE_ERROR below 0. */
MS_API ms_status ms_samples_begin(int64_t first);

/** Micro-batches begun so far, by ms_samples_begin(), ms_data_windows() or a new seed: a site of
 * dropout compares it to restart its call counter. */
MS_API int64_t ms_sample_epoch(void);

/** 64-bit key of a name, as used for random streams (FNV-1a). */
MS_API uint64_t ms_name_key(const char *name);

/** Key of one of several random streams of the same name; that of stream 0 is the name's. */
MS_API uint64_t ms_stream_key(const char *name, int64_t stream);

/** Bytes of `n` bytes at `data`, hashed with XXH3 (64 bit). */
MS_API uint64_t ms_hash_bytes(const void *data, int64_t n);

/** Monotonic time in seconds. */
MS_API double ms_time(void);

/**
 * Measure the machine's matrix peak as this runtime reaches it: products of 1024 x 1024 matrices
 * for about `seconds` on this rank's core.
 * @param dtype    MS_DTYPE_F32, _F64 or _BF16
 * @param seconds  more than 0, at most 60: else MS_VALUE_ERROR
 * @param flops    floating-point operations per second: the best of the repetitions
 */
MS_API ms_status ms_matmul_peak(int32_t dtype, double seconds, double *flops);

/** What multiplies large matrices of this dtype, e.g. "brg:avx512_core_bf16". Static. */
MS_API const char *ms_matmul_name(int32_t dtype);

/** Bytes of work space that a large product (m, k) x (k, n) takes at most: those of operands and
 * result in f32 where there are no products of a narrow dtype, else 0. */
MS_API int64_t ms_matmul_scratch(int32_t dtype, int64_t m, int64_t n, int64_t k);

/**
 * All that decides the bits of results besides the inputs, as one line: instruction set, matrix
 * library and what it uses, build. Ranks whose lines are equal compute alike. Valid until the
 * thread's next call. Opens the matrix library.
 */
MS_API const char *ms_numerics(void);

/** Matrix primitives made so far in this context: constant after a model's second step. */
MS_API int64_t ms_matmul_created(void);

/** Matrix primitives kept in the calling thread's context: at most 256, the least recently used of
 * which makes way for a new one. */
MS_API int64_t ms_matmul_kept(void);

/** Is the file descriptor a terminal? */
MS_API bool ms_is_terminal(int32_t fd);

/** Free everything the calling thread's context owns. Handles that Lua or the host still holds
 * become stale and stay safe to release. A later call of any function starts a new context.
 * @return MS_RUNTIME_ERROR in a hook or its drop(): what called it would be freed; nothing is, and
 *         ms_is_open() still. Else what was wrong with what the device was given last, an index out
 *         of range say, and nobody was told; all is freed */
MS_API ms_status ms_close(void);
/** Has the calling thread a context, which ms_close() would free? */
MS_API bool ms_is_open(void);

#ifdef __cplusplus
}
#endif

#endif
