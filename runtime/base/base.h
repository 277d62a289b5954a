/* For all layers: errors with a message, contexts, switches, names, time. */
#ifndef MSI_BASE_H
#define MSI_BASE_H

#include "moonshard/base.h"

#include <stdarg.h>

#define MSI_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define MSI_LIKELY(x) __builtin_expect(!!(x), 1)
#define MSI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define MSI_COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

enum { MSI_MESSAGE_BYTES = 4096 }; /* of an error message, with its zero */

/** Set the thread's error text and return `kind`. */
ms_status msi_fail(ms_status kind, const char *format, ...) MSI_PRINTF(2, 3);
/** Prefix the current message ("unit 'h.0': " + ...). @return `kind` */
ms_status msi_fail_prefix(ms_status kind, const char *format, ...) MSI_PRINTF(2, 3);
/** Mark the last error as one of earlier work (ms_error_is_late()); prefixes keep the mark. */
void msi_error_late(void);

/** The thread's last error, saved during a cleanup that may fail, too. */
typedef struct msi_error {
    bool late;
    char message[MSI_MESSAGE_BYTES];
} msi_error;

void msi_error_keep(msi_error *kept);
void msi_error_put_back(const msi_error *kept);
/** A host's error kind as one of ours: MS_RUNTIME_ERROR for an unknown number. */
ms_status msi_kind_of_host(ms_status kind);
/** The result of a host's function as one of our statuses: an unknown number becomes
 * MS_RUNTIME_ERROR. `what` begins its message, and that of a failure without one ("its function").
 */
ms_status msi_status_of_host(ms_status status, const char *what);
/** msi_fail() as an expression. */
#define MS_FAIL(kind, ...) msi_fail((kind), __VA_ARGS__)

/** Return a failure. */
#define MS_TRY(call)                                                                               \
    do {                                                                                           \
        ms_status try_ = (call);                                                                   \
        if (MSI_UNLIKELY(try_ != MS_OK)) {                                                         \
            return try_;                                                                           \
        }                                                                                          \
    } while (0)

/** Go to a cleanup label on failure; `status` must be in scope. */
#define MS_TRY_GOTO(call, label)                                                                   \
    do {                                                                                           \
        status = (call);                                                                           \
        if (MSI_UNLIKELY(status != MS_OK)) {                                                       \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/** A broken invariant: aborts in debug builds, MS_INTERNAL_ERROR otherwise. */
ms_status msi_broken(const char *file, int line, const char *cond);
#define MS_ASSERT(cond)                                                                            \
    do {                                                                                           \
        if (MSI_UNLIKELY(!(cond))) {                                                               \
            return msi_broken(__FILE__, __LINE__, #cond);                                          \
        }                                                                                          \
    } while (0)

void msi_warn(const char *kind, const char *format, ...) MSI_PRINTF(2, 3);

/** vsnprintf(), but every NaN is "nan", without a sign. */
void msi_text_write(char *text, size_t size, const char *format, va_list args);
/** Copy text of any origin (files, other processes) for display: lines and tabs stay, other control
 * characters and invalid UTF-8 become "\x1b". Applied to errors, warnings and the log; idempotent.
 * Truncates.
 * @return bytes written, without the zero */
size_t msi_printable(char *to, size_t room, const char *from);
/** True if it is UTF-8 without control characters. */
bool msi_is_printable(const char *text);
/** Buffer for a part of a message: MSI_PART_TEXT bytes, valid until the thread's fourth next call.
 */
enum { MSI_PART_TEXT = 208 };
char *msi_part_text(void);
/** A name of any origin on one line, at most 200 bytes, in msi_part_text(). */
const char *msi_foreign_name(const char *name);

/* -- contexts: one per thread, made on first use ----------------------------------------------- */

/** Layers with state in a context, closed in this order (users before what they use). */
enum {
    MSI_ROOM_GRAPH,
    MSI_ROOM_FSDP,
    MSI_ROOM_FSDP_UNITS,
    MSI_ROOM_COMM,
    MSI_ROOM_JOB,
    MSI_ROOM_AUTOGRAD,
    MSI_ROOM_TENSOR,
    MSI_ROOM_ONEDNN,
    MSI_ROOM_BACKEND,
    MSI_ROOM_DEVICE,
    MSI_ROOM_COUNT
};

struct msi_op_recorder; /* tensor's */

typedef struct ms_context {
    void *room[MSI_ROOM_COUNT];
    void (*close[MSI_ROOM_COUNT])(void *state);
    const struct msi_op_recorder *recorder; /* called for every operator (op.h); never NULL */
    uint64_t seed;
    /* Global number of the next sample. Unless set, B rows of rank r (sample_rank) are the samples
     * from r B on, so that ranks see different samples. */
    int64_t sample_base;
    bool sample_base_known;
    int64_t sample_epoch;      /* micro-batches begun */
    int64_t live_handles;      /* of tensors */
    int32_t rank;              /* in its job; rank 0 warns for all ranks */
    int32_t sample_rank;       /* the same; in a sharded model's forward, of its group */
    int32_t host_calls;        /* running host functions: their callers must not be freed */
    bool collecting;           /* a garbage collector is freeing handles */
    struct msi_device *device; /* NULL: the CPU, where all work is done on return */
    const char *device_kind;   /* chosen by ms_device_use(); NULL: MS_DEVICE's */
    int32_t device_index;      /* chosen with it; -1: by the rank */
    ms_status (*open_device)(struct ms_context *ctx); /* at its first allocation */
    void (*joined)(struct ms_context *ctx);           /* it has become a rank of a job */
    /* Before closing or process exit: waits for enqueued work and returns its error. NULL without a
     * device, and in a forked process. */
    ms_status (*end_work)(struct ms_context *ctx);
    /* The device has waited so long for words that peers promised: MS_COMM_ERROR if they left, or
     * on timeout. */
    ms_status (*check_peers)(struct ms_context *ctx, int64_t waited_ns);
    /* This rank's device work failed with the current error; reports it to the peers with their
     * next collective. */
    void (*tell_peers)(struct ms_context *ctx);
} ms_context;

/** The calling thread's context. NULL only if memory is out (error set). */
ms_context *msi_context(void);
/** The thread's context if it has one, else NULL. */
ms_context *msi_context_peek(void);
/** A context that is no thread's; NULL if memory is out. Free it with msi_context_close(). */
ms_context *msi_context_new(void);
/** Make `ctx` the thread's, for as long as something runs in it. @return the previous one */
ms_context *msi_context_swap(ms_context *ctx);
/** Close all layers of a context, and free it. */
void msi_context_close(ms_context *ctx);
/** Install the hooks of higher layers in a new context. In runtime/context_init.c, which knows all
 * layers. */
void msi_context_init(ms_context *ctx);

/* -- handles of hosts that calls check: each begins with `uint32_t magic` ---------------------- */

enum {
    MSI_MAGIC_OPTIM = 0x4d530001,
    MSI_MAGIC_FSDP_UNIT,
    MSI_MAGIC_FSDP_TREE,
    MSI_MAGIC_COMM,
    MSI_MAGIC_LAUNCH,
    MSI_MAGIC_LAYOUT,
};

/** A debug build aborts for a NULL, freed or wrong handle of a host. */
#ifdef MS_DEBUG
#define MSI_HANDLE(handle, kind)                                                                   \
    ((handle) != NULL && (handle)->magic == (kind) ? (void)0                                       \
                                                   : (void)msi_broken(__FILE__, __LINE__, #kind))
#else
#define MSI_HANDLE(handle, kind) ((void)(handle))
#endif

/* -- small things ------------------------------------------------------------------------------ */

/** Value of an environment switch, or `fallback`. Read each time: for start-up, not hot paths. */
int64_t msi_switch_int(const char *name, int64_t fallback);
/** The same, clamped to [least, most], with a warning. */
int64_t msi_switch_within(const char *name, int64_t fallback, int64_t least, int64_t most);
const char *msi_switch_text(const char *name, const char *fallback);
/** Index in `choices`; `fallback` if unset, or with a warning if not among them. */
int32_t msi_switch_choice(const char *name, const char *const *choices, int32_t n,
                          int32_t fallback);
/** Warn about a switch, on rank 0 only. */
void msi_switch_warn(const char *format, ...) MSI_PRINTF(1, 2);

/** Replace every NaN by the plain one for hosts. LuaJIT encodes types in NaN bits and does not
 * check a double from C, so a crafted one would be taken for an object. */
static inline double msi_plain_nan(double x)
{
    return x != x ? __builtin_nan("") : x;
}

/** Round up to a multiple of `to`. */
static inline int64_t msi_round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/** A field of a public struct that begins with its size, `uint32_t struct_size`. */
typedef struct msi_field {
    uint32_t begin, end, whole; /* whole: size of the struct */
} msi_field;
#define MSI_FIELD(type, name)                                                                      \
    {                                                                                              \
        offsetof(type, name), offsetof(type, name) + sizeof(((type *)0)->name), sizeof(type)       \
    }
/** Copy the caller's fields of such a struct to `out`; its other fields are kept. `fields`: all, in
 * order. MS_VALUE_ERROR for a size beyond the struct or inside a field. */
ms_status msi_struct_take(void *out, const void *given, const char *name, const msi_field *fields,
                          int32_t n_fields);
/** The reverse: write `ours`, at most `size` bytes, to `out`, and the number to its struct_size. */
void msi_struct_give(void *out, uint32_t size, const void *ours, uint32_t whole);
/** msi_struct_give() with `out`'s struct_size. MS_VALUE_ERROR for a size inside a field. */
ms_status msi_struct_fill(void *out, const void *ours, const char *name, const msi_field *fields,
                          int32_t n_fields);

uint64_t msi_mix64(uint64_t x);
int64_t msi_now_ns(void);
/** Part of a waiter's last interval that counts: the process may have been stopped during it. */
static inline int64_t msi_looked_ns(int64_t since)
{
    return since < 1000000000 ? since : 1000000000;
}

/** Log a line to stderr if MS_LOG is at least `level` (1 warn, 2 info, 3 trace). */
void msi_log(int level, const char *format, ...) MSI_PRINTF(2, 3);

#endif
