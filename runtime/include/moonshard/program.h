/* Recorded programs: the operators of a function, captured once and replayed as a list of kernels.
 *
 * A program records the operators that run between ms_program_begin() and ms_program_end(). Steps
 * of the host between them (the gathering of a sharded unit) cut it into segments. A segment runs
 * as one operator: its forward and its backward replay kernels, with the bits of the operators it
 * was recorded from, and autograd, hooks and sharded units see one node. */
#ifndef MOONSHARD_PROGRAM_H
#define MOONSHARD_PROGRAM_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ms_program ms_program;

/** Levels: how a program is lowered. Every level has the bits of eager execution. */
enum {
    MS_PROGRAM_REPLAY,    /**< the kernels that eager execution runs */
    MS_PROGRAM_PARTITION, /**< backward recomputes cheap results, where that lowers the peak */
    MS_PROGRAM_FUSE       /**< with rewrites besides */
};

/** Record the operators of this thread from now on. MS_RUNTIME_ERROR if it records already. The
 * caller owns `*out`. `level`: MS_PROGRAM_*. */
MS_API ms_status ms_program_begin(ms_program **out, int32_t level);
/** Declare the next argument of later runs: values 0, 1, ... in order. Before any operator ran. */
MS_API ms_status ms_program_argument(ms_program *p, ms_tensor *t);
/** End the current segment: a step of the host follows. `*segment` is its number, from 0; -1 if no
 * operator ran since the last cut. */
MS_API ms_status ms_program_cut(ms_program *p, int32_t *segment);
/** The number of the value that `t` shows, which ms_program_get() returns in later runs: until the
 * next segment ran, with `keep` until the run ends. -1 if `t` is not a value of the program, which
 * is then broken. */
MS_API ms_status ms_program_value(ms_program *p, ms_tensor *t, bool keep, int32_t *value);
/** An activation checkpoint begins: until the matching ms_program_region_end() its operators run,
 * and then ms_checkpoint_graph() is called, if a result requires grad. Replays compute them again
 * in backward. Checkpoints may be nested. */
MS_API ms_status ms_program_region_begin(ms_program *p);
MS_API ms_status ms_program_region_end(ms_program *p);
/** Stop recording while a step of the host runs, and go on after it. */
MS_API void ms_program_pause(ms_program *p, bool pause);
/** Declare a tensor that a step of the host made: a value, which each run sets at that point with
 * ms_program_set(). -1 if `t` is a leaf that requires grad or shares memory with a tensor that the
 * program had before the step; the program is then broken.
 * @param step  the step's name, for messages */
MS_API ms_status ms_program_made(ms_program *p, const char *step, ms_tensor *t, int32_t *value);
/** Set what ms_program_op.place is of the operators that follow: a number of the caller's choice
 * for a position in its source. 0 until it is set. */
MS_API void ms_program_place(ms_program *p, int32_t place);
/** Number of random masks recorded so far. */
MS_API int32_t ms_program_n_draws(const ms_program *p);
/** Set the call number of a random mask (0: the first recorded) for the next run of its segment;
 * seed and samples are the context's. */
MS_API ms_status ms_program_draw(ms_program *p, int32_t draw, int64_t call);
/** Record why a run cannot be replayed; the first reason is kept. */
MS_API void ms_program_break(ms_program *p, const char *why);
/** Why the program is broken; NULL if it is not. */
MS_API const char *ms_program_broken(const ms_program *p);
/** Stop recording, and lower the segments to kernels. The program may be broken afterwards; an
 * error status is one of memory. */
MS_API ms_status ms_program_end(ms_program *p);
/** Also while it records, which ends then. Waits for no backward: nodes keep what they need. */
MS_API void ms_program_free(MS_NULLABLE ms_program *p);

/** Numbers of a program, for reports. */
typedef struct ms_program_info {
    int32_t segments; /**< nodes on the tape */
    int32_t steps;    /**< of ms_program_run() */
    int32_t ops;
    int32_t kernels;     /**< of the forwards */
    int64_t saved_bytes; /**< kept from forward to backward */
    int64_t arena_bytes; /**< temporary memory of the largest segment */
} ms_program_info;
MS_API void ms_program_info_get(const ms_program *p, ms_program_info *info);

/** Memory of results and of what is kept and computed between them, of a forward and the backward
 * behind it, as the most recent plan of each segment has it; the caller keeps the results. Without
 * arguments, parameters and their gradients. */
typedef struct ms_program_memory {
    int64_t planned_peak;
    int64_t unplanned_peak;   /**< if each buffer of the same kernels had memory of its own */
    int32_t backward_plans;   /**< of all segments */
    int32_t backward_kernels; /**< of the most recent plans */
} ms_program_memory;
/** Zeros for a program that is broken or records. */
MS_API ms_status ms_program_memory_get(const ms_program *p, ms_program_memory *out);

/** A recorded operator. The arrays are the program's. */
typedef struct ms_program_op {
    const char *name;
    const int32_t *in;  /**< (n_in) values, -1 for an omitted operand */
    const int32_t *out; /**< (n_out) values: of an operator in place, those that it writes */
    int32_t n_in;
    int32_t n_out;
    int32_t step;  /**< of ms_program_run() */
    int32_t place; /**< of ms_program_place() */
    bool in_place;
} ms_program_op;
/** Operator `op` of a program that is not broken and no longer records: 0 to ops - 1. */
MS_API ms_status ms_program_op_get(const ms_program *p, int32_t op, ms_program_op *out);

enum { MS_VALUE_ARGUMENT, MS_VALUE_OUTER, MS_VALUE_RESULT };

/** A value of a program as it was recorded. */
typedef struct ms_program_value_info {
    int32_t kind; /**< MS_VALUE_*: an argument, another tensor from outside, or of an operator */
    int32_t dtype;
    int32_t ndim;
    int64_t shape[8];
    bool requires_grad;
    const char *name; /**< of a parameter from outside; otherwise NULL */
} ms_program_value_info;
MS_API ms_status ms_program_value_get(const ms_program *p, int32_t value,
                                      ms_program_value_info *out);

/** Set an argument, which starts a run, or what a step of the host made. `*fits` is false if its
 * shape, strides, dtype or requires_grad, or the grad mode, differ from those recorded;
 * ms_program_misfit() describes the difference. */
MS_API ms_status ms_program_set(ms_program *p, int32_t value, ms_tensor *t, bool *fits);
/** True if the tensors that the program uses besides its arguments are as recorded. */
MS_API ms_status ms_program_fits(ms_program *p, bool *fits);
/** How the last tensor given to ms_program_set(), or an outer tensor of ms_program_run(), differs.
 */
MS_API const char *ms_program_misfit(const ms_program *p);
/** Run a segment. MS_RUNTIME_ERROR, with nothing changed, if a parameter or other outer tensor no
 * longer has the recorded shape, dtype or requires_grad. */
MS_API ms_status ms_program_run(ms_program *p, int32_t segment);
/** A value of the current run. The caller owns `*out`, a handle in the open scope. */
MS_API ms_status ms_program_get(ms_tensor **out, ms_program *p, int32_t value);
/** End the run: release its values. */
MS_API void ms_program_done(ms_program *p);

#ifndef MS_FFI_CDEF             /* for C programs */
enum { MS_CUSTOM_OP_MAX = 16 }; /* operands, and results, of a custom operator */

/** A custom operator: set `out` (n_out), NULL before, to new tensors, which the caller owns. It may
 * write to operands, which are tensors of the current run. */
typedef ms_status (*ms_custom_op_fn)(void *user, ms_tensor *const *in, int32_t n_in,
                                     ms_tensor **out, int32_t n_out);
/** Call `fn`. While this thread records a program it is a step of it: each run calls `fn` again at
 * that point, as part of ms_program_run(), and the operators that it runs are not recorded. A run
 * whose results differ in shape, strides, dtype or requires_grad from the recorded ones is
 * MS_RUNTIME_ERROR. Results that require grad need a graph, as ms_custom() makes one.
 * @param name  'namespace::name', for messages
 * @param user  must stay valid as long as the program */
MS_API ms_status ms_custom_op(const char *name, ms_custom_op_fn fn, void *user,
                              ms_tensor *const *in, int32_t n_in, ms_tensor **out, int32_t n_out);
#endif

#ifdef __cplusplus
}
#endif

#endif
