/* Groups of ranks, and collectives.
 *
 * Every collective first publishes a fingerprint (kind, dtype, count, unit, slot, sequence, hash of
 * the schedule so far). A mismatch or a dead peer is MS_COMM_ERROR on all ranks within a second,
 * with rank, operation, unit and sequence; the group is then unusable. It is also unusable in a
 * process that a rank forks. Sums over ranks use one fixed binary tree, so that results depend on
 * the values only. */
#ifndef MOONSHARD_COMM_H
#define MOONSHARD_COMM_H

#include "job.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Ranks that call collectives together. */
typedef struct ms_comm ms_comm;
/** A tensor on its way between two ranks. */
typedef struct ms_message ms_message;

enum { MS_REDUCE_SUM = 0, MS_REDUCE_AVG = 1, MS_REDUCE_MAX = 2, MS_REDUCE_MIN = 3 };

/** The group of all ranks; borrowed, valid until ms_dist_leave() or ms_close(), then
 * MS_RUNTIME_ERROR. Joins if needed. A rank is the thread that joined; other threads of the process
 * are worlds of one. */
MS_API ms_status ms_comm_world(ms_comm **out);
/** A group of this rank alone; borrowed. */
MS_API ms_status ms_comm_self(ms_comm **out);
/**
 * Split a group: ranks of `parent` with equal color form a group, ordered by key, then by rank in
 * `parent`. Groups can be split again. Errors give ranks in the job. A rank that dies or fails ends
 * the job for all groups.
 *
 * Ranks:   collective over `parent`, for every color.
 * Memory:  shared, three quarters of a MiB of staging and messages, plus records, per rank. The
 * caller frees `*out` with ms_comm_free(); otherwise its context does.
 *
 * @param out    NULL for a color below 0: this rank joins none
 * @return MS_OUT_OF_MEMORY or MS_RUNTIME_ERROR on all ranks if one has no memory or descriptor;
 *         MS_COMM_ERROR if a peer failed
 *
 * Source:  MPI_Comm_split.
 */
MS_API ms_status ms_comm_split(ms_comm **out, ms_comm *parent, int32_t color, int32_t key);
/**
 * The same by lists of members: a rank passes those of its group, equal on all of them, in the
 * order of the group. Of two lists that are not equal no rank may be in both.
 *
 * @param ranks  (n) members' ranks in `parent`, distinct, this rank among them
 * @param n      0: this rank joins no group, `*out` is NULL
 * @return as ms_comm_split(); MS_NOT_IMPLEMENTED_ERROR in a fake group for ranks that are not
 *         equally spaced, which is a fake group, too
 */
MS_API ms_status ms_comm_subgroup(ms_comm **out, ms_comm *parent, const int32_t *ranks, int32_t n);
/**
 * A group of `world` ranks in which this process plays rank `rank` and no other exists, to plan and
 * step a model as that rank would. Every member is assumed to have this rank's data; nothing waits
 * or is sent. A gather repeats this rank's part `world` times, a sum is `world` times its value,
 * broadcast and barrier change nothing. Values are meaningless; ms_memory_stats_get() is as on that
 * rank (shared memory is counted whole, but one rank's part is allocated). MS_RUNTIME_ERROR for
 * calls that need peers' data: ms_comm_split(), saving and loading checkpoints.
 *
 * Ranks:   not collective. Joins if needed.
 * Memory:  about 20 KiB for every `world`. The caller frees `*out` with ms_comm_free(); otherwise
 * its context does.
 *
 * @param rank   0 to world - 1 (MS_VALUE_ERROR)
 * @param world  1 or more (MS_VALUE_ERROR)
 * @return MS_OK; MS_OUT_OF_MEMORY; MS_RUNTIME_ERROR after ms_dist_leave()
 */
MS_API ms_status ms_comm_fake(ms_comm **out, int32_t rank, int32_t world);
/** Make the group of all ranks, ms_comm_world(), such a group, for a script that is planned. Before
 * the first use of that group in a process that is no rank. Memory is the context's.
 * @return MS_OK; as ms_comm_fake(); MS_RUNTIME_ERROR if there is a group of all ranks */
MS_API ms_status ms_comm_fake_world(int32_t rank, int32_t world);
/** Free a group made by ms_comm_split() or ms_comm_fake(). Units and trees over it keep it until
 * they are freed. Not collective; a later call of a member that needs this rank fails. Pending
 * notes are compared when the last member frees it or leaves. No effect on borrowed groups. */
MS_API void ms_comm_free(ms_comm *comm);
/** Add an owner, as units and trees do. The group and its shared memory are freed with the last
 * owner. No effect on borrowed groups. */
MS_API void ms_comm_retain(ms_comm *comm);
/** Remove an owner; the last one frees the group. */
MS_API void ms_comm_release(ms_comm *comm);
/** Give up the only handle, as a finalizer does: ms_comm_reap() frees the group once no unit, tree,
 * graph or pending message uses it. Nothing else happens here. No effect on borrowed groups. */
MS_API void ms_comm_abandon(ms_comm *comm);
/** Free abandoned groups that nothing uses, as ms_comm_free() does. Not collective. */
MS_API void ms_comm_reap(void);
/** A number unique among this process's groups, past and future; 0 if the group was freed or
 * belongs to another thread. Accepts freed handles. */
MS_API double ms_comm_serial(const ms_comm *comm);
/**
 * ms_dist_stop_agreed() for the members of a group, after a step of theirs. Other groups ask for
 * their own members and get the same signals.
 * @param signal  0: go on; otherwise the signal's number, equal on all members
 */
MS_API ms_status ms_comm_stop_agreed(ms_comm *comm, int32_t *signal);
MS_API int32_t ms_comm_rank(const ms_comm *comm);
MS_API int32_t ms_comm_size(const ms_comm *comm);
/** True for the first member of each host: where each host has a folder of its own, it writes what
 * the folder has once. */
MS_API bool ms_comm_leads_host(const ms_comm *comm);
/** The members' ranks in the job, in the group's order; fake: 0, 1, ..., or of a part of a fake
 * group its ranks there.
 * @param ranks  room for ms_comm_size() */
MS_API void ms_comm_ranks(const ms_comm *comm, int32_t *ranks);
/** True for a group of ms_comm_fake(). */
MS_API bool ms_comm_is_fake(const ms_comm *comm);

/* Collectives on existing tensors: contiguous, one dtype, not recorded. Meta tensors: checks shapes
 * only, without communication. */

/** in (n) on every rank -> out (W * n); rank r's part is [r*n, (r+1)*n). */
MS_API ms_status ms_comm_all_gather(ms_comm *comm, ms_tensor *out, ms_tensor *in);
/** in (W * n) on every rank -> out (n): rank r's part of the reduction over ranks. */
MS_API ms_status ms_comm_reduce_scatter(ms_comm *comm, ms_tensor *out, ms_tensor *in,
                                        int32_t reduce);
/** In place, equal bits on every rank. */
MS_API ms_status ms_comm_all_reduce(ms_comm *comm, ms_tensor *t, int32_t reduce);
/** In place: rank `root`'s values on every rank. */
MS_API ms_status ms_comm_broadcast(ms_comm *comm, ms_tensor *t, int32_t root);

/** in (W * n) on rank `root` -> out (n): rank r's part on rank r. `in` is not used elsewhere. */
MS_API ms_status ms_comm_scatter(ms_comm *comm, ms_tensor *out, MS_NULLABLE ms_tensor *in,
                                 int32_t root);
/** in (n) on every rank -> out (W * n) on rank `root`. `out` is not used elsewhere. */
MS_API ms_status ms_comm_gather(ms_comm *comm, MS_NULLABLE ms_tensor *out, ms_tensor *in,
                                int32_t root);
/** In place on rank `root`, with the bits of ms_comm_all_reduce(); unchanged elsewhere. */
MS_API ms_status ms_comm_reduce(ms_comm *comm, ms_tensor *t, int32_t root, int32_t reduce);
/**
 * Rows (first dimension) of `in` to every rank, rows of `out` from every rank, in rank order.
 * MS_COMM_ERROR on all ranks, which may go on, if a rank sends another number than is expected.
 * @param out_rows  (W) from each rank, @param in_rows (W) to each; both NULL: equal parts
 */
MS_API ms_status ms_comm_all_to_all(ms_comm *comm, ms_tensor *out, ms_tensor *in,
                                    MS_NULLABLE const int64_t *out_rows,
                                    MS_NULLABLE const int64_t *in_rows);

/* Messages between two ranks of a group, beside its collectives. Those of a pair arrive in the
 * order of their calls. They move in these calls and whenever this rank waits for others; a rank
 * that waits for one whose peer has left gets MS_COMM_ERROR, and the job ends. */

/** Begin to send a contiguous tensor, which must not change until it is sent. The caller frees
 * `*out`. In a fake group it is sent at once. MS_VALUE_ERROR for this rank itself. */
MS_API ms_status ms_comm_send(ms_message **out, ms_comm *comm, ms_tensor *t, int32_t to,
                              int32_t tag);
/** Begin to receive into a contiguous tensor. dtype, number of elements and tag must be the
 * sender's: MS_COMM_ERROR on all ranks otherwise. In a fake group nothing is written.
 * @param from  -1: any rank, see ms_message_peer() */
MS_API ms_status ms_comm_recv(ms_message **out, ms_comm *comm, ms_tensor *t, int32_t from,
                              int32_t tag);
/** Return when it is sent (its tensor may change) or received. */
MS_API ms_status ms_message_wait(ms_message *message);
/** Move it on, without waiting. */
MS_API ms_status ms_message_test(ms_message *message, bool *done);
/** The other rank's place in the group; -1: a message of any rank has not come yet. */
MS_API int32_t ms_message_peer(const ms_message *message);
/** Give up the handle. A message that is on its way still arrives. */
MS_API void ms_message_free(ms_message *message);

/* The same as operators: x may have any strides, the result is new and owned by the caller. The
 * gradient is a collective in backward: x must require grad on all ranks or on none, every rank
 * must differentiate the result, and the group must still exist (MS_RUNTIME_ERROR). */

/** x on every rank -> the reduction over ranks. The gradient of a sum is the sum over ranks, of an
 * average the average; maximum and minimum have none. */
MS_API ms_status ms_op_all_reduce(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t reduce);
/** x (n, ...) -> (W * n, ...), in rank order; () -> (W). The gradient is this rank's part of the
 * sum of the ranks' gradients. */
MS_API ms_status ms_op_all_gather(ms_tensor **out, ms_comm *comm, ms_tensor *x);
/** x (W * n, ...) -> (n, ...), rank r's part of the reduction over ranks. The gradient is the
 * all-gather of the ranks' gradients, divided by W for an average; maximum and minimum have none.
 */
MS_API ms_status ms_op_reduce_scatter(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t reduce);
/** Rank `root`'s x on every rank; other ranks' x gives shape and dtype. The gradient is the sum
 * over ranks on `root`, zero elsewhere. */
MS_API ms_status ms_op_broadcast(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root);

/** Rank `root`'s x (W * n, ...) -> (n, ...), rank r's part; other ranks' x gives shape and dtype.
 * The gradient on `root` is the ranks' gradients in rank order, zero elsewhere. */
MS_API ms_status ms_op_dist_scatter(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root);
/** x (n, ...) -> (W * n, ...) on rank `root`, zeros elsewhere; () -> (W). The gradient is this
 * rank's part of `root`'s gradient. */
MS_API ms_status ms_op_dist_gather(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root);
/** The reduction on rank `root`, zeros elsewhere. The gradient is `root`'s gradient, divided
 * by W for an average; maximum and minimum have none. */
MS_API ms_status ms_op_dist_reduce(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root,
                                   int32_t reduce);
/** x (rows, ...) -> (rows from all ranks, ...), as ms_comm_all_to_all(). The gradient goes back the
 * same way. */
MS_API ms_status ms_op_all_to_all(ms_tensor **out, ms_comm *comm, ms_tensor *x,
                                  MS_NULLABLE const int64_t *out_rows,
                                  MS_NULLABLE const int64_t *in_rows);
/** x (n, ...) of the rank that names this one -> (n, ...): x goes to rank to[rank]. The gradient
 * goes back the same way. MS_COMM_ERROR on all ranks, which may go on, if their first sizes differ.
 * @param to  (W), every rank once */
MS_API ms_status ms_op_dist_permute(ms_tensor **out, ms_comm *comm, ms_tensor *x,
                                    const int64_t *to);

/** Returns when every rank has called it. */
MS_API ms_status ms_comm_barrier(ms_comm *comm);
/**
 * Check that every rank of the group calls this with equal arguments: a text, or up to eight
 * numbers with their names, separated by spaces, in `text`. Sends nothing. The next collective
 * compares; a different, missing or reordered call is MS_COMM_ERROR on all ranks, with the first
 * difference. Calls after the last collective are compared when all ranks have left, and then fail
 * the job. No effect after ms_dist_leave(). Copies its arguments.
 * @param label  subject, e.g. "batch size". label and text are compared in full; errors truncate
 *               them
 */
MS_API ms_status ms_comm_same(ms_comm *comm, const char *label, const char *text,
                              const double *numbers, int32_t n_numbers);
/**
 * All-gather of numbers: rank r's are at all[r * n_numbers], on every rank.
 * @param what  the host's operation, for errors
 * @param all   (size, n_numbers)
 */
MS_API ms_status ms_comm_exchange(ms_comm *comm, const char *what, const double *numbers,
                                  int32_t n_numbers, double *all);
/**
 * Set the reason why this rank fails, before its peers learn of the failure from a collective that
 * carries its outcome, or from a mismatched call. Their errors then include the latest message.
 * Sends nothing.
 * @param message  one or more lines, 3,900 bytes in total; copied
 */
MS_API void ms_comm_failed(ms_comm *comm, const char *message);
/** Collectives this rank has called in `comm`, by kind: all-gather, reduce-scatter, all-reduce,
 * broadcast, barrier (an unshard is an all-gather, a unit's reduction a reduce-scatter or
 * all-reduce). For tests. */
MS_API void ms_comm_counts(const ms_comm *comm, int64_t *counts5);
/** Seconds this rank has waited for peers in `comm`: exposed communication. */
MS_API double ms_comm_wait_seconds(const ms_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
