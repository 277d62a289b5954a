/* What every room may use: failing with a message, contexts, switches, names, time. */
#ifndef MSI_BASE_H
#define MSI_BASE_H

#include "moonshard/base.h"

#include <stdarg.h>

#define MSI_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define MSI_LIKELY(x) __builtin_expect(!!(x), 1)
#define MSI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define MSI_COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

enum { MSI_MESSAGE_BYTES = 4096 }; /* of an error's text, zero included */

/** Set the thread's error text and return `kind`. */
ms_status msi_fail(ms_status kind, const char *format, ...) MSI_PRINTF(2, 3);
/** Put text in front of the present message ("unit 'h.0': " + ...). @return `kind` */
ms_status msi_fail_prefix(ms_status kind, const char *format, ...) MSI_PRINTF(2, 3);
/** The error that was set last is that of earlier work (ms_error_is_late()); prefixes keep that. */
void msi_error_late(void);

/** The thread's last error, set aside while what may fail, too, cleans up after it. */
typedef struct msi_error {
    bool late;
    char message[MSI_MESSAGE_BYTES];
} msi_error;

void msi_error_keep(msi_error *kept);
void msi_error_put_back(const msi_error *kept);
/** What the host calls the kind of an error, as one of our statuses: MS_RUNTIME_ERROR for a number
 * that is none. */
ms_status msi_kind_of_host(ms_status kind);
/** What a function of the host returned, as one of our statuses: a number that is none becomes
 * MS_RUNTIME_ERROR. `what` begins the text of that, and of a failure without one ("its function").
 */
ms_status msi_status_of_host(ms_status status, const char *what);
/** msi_fail() as an expression that names the caller's mistake. */
#define MS_FAIL(kind, ...) msi_fail((kind), __VA_ARGS__)

/** Pass a failure up. */
#define MS_TRY(call)                                                                               \
    do {                                                                                           \
        ms_status try_ = (call);                                                                   \
        if (MSI_UNLIKELY(try_ != MS_OK)) {                                                         \
            return try_;                                                                           \
        }                                                                                          \
    } while (0)

/** Pass a failure to a label that cleans up; `status` must be in scope. */
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

/** vsnprintf(), but every NaN is "nan": what its sign says is nothing. */
void msi_text_write(char *text, size_t size, const char *format, va_list args);
/** Copy text that may come from anywhere (files, other processes) for people to read: lines and
 * tabs stay, every other control character and what is no UTF-8 becomes "\x1b". Errors, warnings
 * and the log have been through it; a second time changes nothing. What does not fit is cut.
 * @return bytes written without the zero behind */
size_t msi_printable(char *to, size_t room, const char *from);
/** Is it UTF-8 without any control character? */
bool msi_is_printable(const char *text);
/** Room for a part of a message: MSI_PART_TEXT bytes that stay until the thread has asked for four
 * more. */
enum { MSI_PART_TEXT = 208 };
char *msi_part_text(void);
/** A name from anywhere on one line, at most 200 bytes of it, in msi_part_text(). */
const char *msi_foreign_name(const char *name);

/* -- contexts: one per thread, made on first use ----------------------------------------------- */

/** Rooms that keep state in a context; closed in ascending order (users before what they use). */
enum {
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
    const struct msi_op_recorder *recorder; /* told of every operator (op.h); never NULL */
    uint64_t seed;
    /* Global number of the first sample of what comes next. Unless somebody has said it, the
     * rows of rank r, its sample_rank, are the samples from r times their number on: ranks see
     * different samples. */
    int64_t sample_base;
    bool sample_base_known;
    int64_t sample_epoch; /* micro-batches begun */
    int64_t live_handles; /* of tensors */
    int32_t rank;         /* in its job; what is true of every rank is said by rank 0 */
    int32_t sample_rank;  /* the same; in the forward of a sharded model in that model's group */
    int32_t host_calls;   /* functions of the host at work: what called them must not be freed */
    bool collecting;      /* what goes now goes when a rank's collector finds it */
    struct msi_device *device; /* NULL: the CPU, where what is asked for has been done on return */
    ms_status (*open_device)(struct ms_context *ctx); /* with its first memory */
    /* Before it closes, or its process ends: what was enqueued has run, and what was wrong with it
     * is the error. NULL without a device, and in a process that was forked later. */
    ms_status (*end_work)(struct ms_context *ctx);
    /* The device waits, for so long, for words that peers have promised: MS_COMM_ERROR when they
     * are gone, or take too long. */
    ms_status (*check_peers)(struct ms_context *ctx, int64_t waited_ns);
    /* What has run on this rank's device was wrong, as the error says that is set: the peers, who
     * went on, learn it with their next collective. */
    void (*tell_peers)(struct ms_context *ctx);
} ms_context;

/** The calling thread's context. NULL only when memory is out (error set). */
ms_context *msi_context(void);
/** The thread's context if it has one, else NULL. */
ms_context *msi_context_peek(void);
/** Put into a new context what lower rooms find there of higher ones. By runtime/context_init.c,
 * which alone knows them all. */
void msi_context_init(ms_context *ctx);

/* -- handles of hosts: each begins with `uint32_t magic` ----------------------------------------
 */

enum {
    MSI_MAGIC_OPTIM = 0x4d530001,
    MSI_MAGIC_FSDP_UNIT,
    MSI_MAGIC_FSDP_TREE,
    MSI_MAGIC_COMM,
    MSI_MAGIC_LAUNCH,
    MSI_MAGIC_LAYOUT,
    MSI_MAGIC_CHECKPOINT_WRITER,
    MSI_MAGIC_CHECKPOINT,
    MSI_MAGIC_CHECKPOINT_LOADER,
    MSI_MAGIC_SAFETENSORS,
};

/** A debug build aborts where a host passes NULL, a freed handle or one of another kind. */
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
/** As above, from `least` to `most`: what lies outside becomes the nearer of the two. Says so. */
int64_t msi_switch_within(const char *name, int64_t fallback, int64_t least, int64_t most);
const char *msi_switch_text(const char *name, const char *fallback);
/** Which of `choices` it is; `fallback` when it is unset, or none of them: then says so. */
int32_t msi_switch_choice(const char *name, const char *const *choices, int32_t n,
                          int32_t fallback);
/** Say what is wrong with a switch: a warning, by rank 0 for all. */
void msi_switch_warn(const char *format, ...) MSI_PRINTF(1, 2);

/** x for a host: every NaN becomes the plain one. LuaJIT keeps types in the bits of other NaNs and
 * does not look when it reads a double from C, so a crafted one would pass for an object. */
static inline double msi_plain_nan(double x)
{
    return x != x ? __builtin_nan("") : x;
}

/** The next multiple of `to`. */
static inline int64_t msi_round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/** One field of a public struct that begins with its own size, `uint32_t struct_size`. */
typedef struct msi_field {
    uint32_t begin, end, whole; /* whole: size of the struct */
} msi_field;
#define MSI_FIELD(type, name)                                                                      \
    {                                                                                              \
        offsetof(type, name), offsetof(type, name) + sizeof(((type *)0)->name), sizeof(type)       \
    }
/** Copy what the caller knows of such a struct over `out`, whose other fields stay. `fields`: all
 * of them, in order. MS_VALUE_ERROR for a size beyond the struct or within a field. */
ms_status msi_struct_take(void *out, const void *given, const char *name, const msi_field *fields,
                          int32_t n_fields);
/** The other way: write as much of `ours` as the `size` bytes at `out` hold, and into its
 * struct_size how much that is. */
void msi_struct_give(void *out, uint32_t size, const void *ours, uint32_t whole);
/** As msi_struct_give(), for as many bytes as `out`'s struct_size says. MS_VALUE_ERROR for a size
 * within a field. */
ms_status msi_struct_fill(void *out, const void *ours, const char *name, const msi_field *fields,
                          int32_t n_fields);

uint64_t msi_mix64(uint64_t x);
int64_t msi_now_ns(void);
/** Of the time since a waiter looked last, what counts: this process may have been stopped in it.
 */
static inline int64_t msi_looked_ns(int64_t since)
{
    return since < 1000000000 ? since : 1000000000;
}

/** Log a line to stderr when MS_LOG is at least `level` (1 warn, 2 info, 3 trace). */
void msi_log(int level, const char *format, ...) MSI_PRINTF(2, 3);

#endif
