/* Groups of ranks, and collectives.
 *
 * Every collective first publishes a fingerprint (kind, dtype, count, unit, slot, sequence, hash of
 * the schedule so far). A mismatch or a dead peer is MS_COMM_ERROR on all ranks within a second,
 * naming rank, operation, unit and sequence; the group is unusable afterwards. So is it in a
 * process that a rank forks. Sums run over ranks by one fixed binary tree, so results depend on
 * nothing but the values. */
#ifndef MOONSHARD_COMM_H
#define MOONSHARD_COMM_H

#include "job.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Ranks that call collectives together. */
typedef struct ms_comm ms_comm;

enum { MS_REDUCE_SUM = 0, MS_REDUCE_AVG = 1, MS_REDUCE_MAX = 2, MS_REDUCE_MIN = 3 };

/** The group of all ranks; borrowed, valid until ms_dist_leave() or ms_close(), after which a
 * rank is none any more: MS_RUNTIME_ERROR. Joins when nobody has yet. A rank is the thread that
 * joined: any other thread of its process is a world of one. */
MS_API ms_status ms_comm_world(ms_comm **out);
/** A group of this rank alone; borrowed. */
MS_API ms_status ms_comm_self(ms_comm **out);
/**
 * Divide a group: those of its ranks that give the same color form a group of their own, ordered by
 * key and, where keys are equal, as they are in `parent`. Groups of groups may be divided again.
 * Errors name ranks by their rank in the job; a rank that dies or fails ends the job for all
 * groups.
 *
 * Ranks:   collective over `parent`: every rank of it calls this, whatever its color.
 * Memory:  shared memory for half a MiB of staging, and records, per rank. The caller frees `*out`
 *          with ms_comm_free(); what it forgets ends with its context.
 *
 * @param out    NULL for a color below 0: this rank joins none
 * @return MS_OK; MS_OUT_OF_MEMORY or MS_RUNTIME_ERROR, on all ranks, when one has no memory or
 *         descriptor for it; MS_COMM_ERROR if a peer failed
 *
 * Source:  MPI_Comm_split.
 */
MS_API ms_status ms_comm_split(ms_comm **out, ms_comm *parent, int32_t color, int32_t key);
/**
 * A group of `world` ranks of which this one is number `rank` and the only one there is: every
 * member holds what this rank holds, and has done what it would have to do. Nothing waits and
 * nothing is sent: what is gathered is this rank's part `world` times, a sum is `world` times what
 * it brings, a broadcast and a barrier change nothing. A model that is sharded over it is planned
 * and steps as on rank `rank` of so many, and ms_memory_stats_get() counts what it would there;
 * memory that the ranks of a host share is counted whole, and one rank's part of it is taken. The
 * numbers that come out mean nothing. What needs the others' own words is MS_RUNTIME_ERROR:
 * ms_comm_split(), saving and loading checkpoints.
 *
 * Ranks:   not collective. Joins when nobody has yet.
 * Memory:  some 20 KiB, whatever `world` is. The caller frees `*out` with ms_comm_free(); what it
 *          forgets ends with its context.
 *
 * @param rank   0 to world - 1 (MS_VALUE_ERROR)
 * @param world  1 or more (MS_VALUE_ERROR)
 * @return MS_OK; MS_OUT_OF_MEMORY; MS_RUNTIME_ERROR after ms_dist_leave()
 */
MS_API ms_status ms_comm_fake(ms_comm **out, int32_t rank, int32_t world);
/** Free what ms_comm_split() or ms_comm_fake() made; units and trees that were made with it keep it
 * until they go themselves. Not collective; a call of a member that needs this rank then fails.
 * What members said after their last call is compared when the last of them frees, or leaves the
 * job. Does nothing to groups that are borrowed. */
MS_API void ms_comm_free(ms_comm *comm);
/** Keep a group beyond ms_comm_free(), as units and trees do: it goes, and the memory its members
 * share with it, when as many have let go. Nothing for groups that are borrowed. */
MS_API void ms_comm_retain(ms_comm *comm);
/** The group may be gone on return. Nothing where nobody holds it. */
MS_API void ms_comm_release(ms_comm *comm);
/** A number that no other group of this process has, had or will have; 0: the group is gone, or
 * belongs to another thread. Takes freed handles. */
MS_API double ms_comm_serial(const ms_comm *comm);
/**
 * As ms_dist_stop_agreed(), by the members of a group, after a step of theirs: other groups ask
 * after theirs, and are told of the same signals.
 * @param signal  0: go on; otherwise the signal's number, equal on all members
 */
MS_API ms_status ms_comm_stop_agreed(ms_comm *comm, int32_t *signal);
MS_API int32_t ms_comm_rank(const ms_comm *comm);
MS_API int32_t ms_comm_size(const ms_comm *comm);
/** The members' ranks in the job, in the group's order; of a fake group 0, 1, ...
 * @param ranks  room for ms_comm_size() */
MS_API void ms_comm_ranks(const ms_comm *comm, int32_t *ranks);
/** Is it of ms_comm_fake(): does this rank stand for all members? */
MS_API bool ms_comm_is_fake(const ms_comm *comm);

/* Collectives on tensors, into ones that are there. Contiguous, one dtype; not recorded. Of meta
 * tensors nothing is said or sent: only the shapes are looked at. */

/** in (n) on every rank -> out (W * n), rank r's at [r*n, (r+1)*n). */
MS_API ms_status ms_comm_all_gather(ms_comm *comm, ms_tensor *out, ms_tensor *in);
/** in (W * n) on every rank -> out (n): rank r's part of the reduction over ranks. */
MS_API ms_status ms_comm_reduce_scatter(ms_comm *comm, ms_tensor *out, ms_tensor *in,
                                        int32_t reduce);
/** In place, equal bits on every rank. */
MS_API ms_status ms_comm_all_reduce(ms_comm *comm, ms_tensor *t, int32_t reduce);
/** In place, rank `root`'s values everywhere. */
MS_API ms_status ms_comm_broadcast(ms_comm *comm, ms_tensor *t, int32_t root);

/* The same as operators: of x, of any strides, they make a new tensor that the caller owns. A
 * gradient takes a collective of its own in backward, so x requires grad on every rank or on none,
 * and every rank differentiates what it was used for. The group must be there then still
 * (MS_RUNTIME_ERROR). */

/** x on every rank -> the reduction over ranks. A sum's gradient is the sum of the ranks'
 * gradients, an average's their average; a maximum and a minimum have none. */
MS_API ms_status ms_op_all_reduce(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t reduce);
/** x (n, ...) -> (W * n, ...), the ranks' one behind the other; of a number (W). The gradient is
 * this rank's part of the sum of the ranks' gradients. */
MS_API ms_status ms_op_all_gather(ms_tensor **out, ms_comm *comm, ms_tensor *x);
/** x (W * n, ...) -> (n, ...), rank r's part of the reduction over ranks. The gradient of a sum is
 * all ranks' gradients one behind the other, that of an average this divided by W; a maximum and a
 * minimum have none. */
MS_API ms_status ms_op_reduce_scatter(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t reduce);
/** Rank `root`'s x, on every rank; the others' say its shape and dtype. The gradient is the sum of
 * the ranks' gradients on `root`, and zero elsewhere. */
MS_API ms_status ms_op_broadcast(ms_tensor **out, ms_comm *comm, ms_tensor *x, int32_t root);

/** Returns when every rank has called it. */
MS_API ms_status ms_comm_barrier(ms_comm *comm);
/**
 * Say something that every rank of the group should say here: a text, or up to eight numbers whose
 * names stand in `text` with a space between two. Nothing is sent: the next collective compares,
 * and is MS_COMM_ERROR on all ranks, naming the first difference, when a rank said something else,
 * in another order, or nothing. What ranks say after their last collective is compared when all
 * have left: then it is the job that fails. Says nothing after ms_dist_leave(). Copies what it is
 * given.
 * @param label  what it is about, e.g. "batch size". All of it counts, and of `text`; what is too
 * long is told cut
 */
MS_API ms_status ms_comm_same(ms_comm *comm, const char *label, const char *text,
                              const double *numbers, int32_t n_numbers);
/**
 * What every rank says in numbers: rank r's from all[r * n_numbers] on, on every rank.
 * @param what  the operation of the host that asks, which errors name
 * @param all   (size, n_numbers)
 */
MS_API ms_status ms_comm_exchange(ms_comm *comm, const char *what, const double *numbers,
                                  int32_t n_numbers, double *all);
/**
 * Say why this rank fails, before what tells its peers that it has: a collective that carries its
 * outcome, or another call than theirs. Their errors then bring the message; the latest one counts.
 * Nothing is sent.
 * @param message  a line that may be followed by others, of 3,900 bytes together; copied
 */
MS_API void ms_comm_failed(ms_comm *comm, const char *message);
/** Collectives of each kind this rank has called in `comm`, for tests: all-gather, reduce-scatter,
 * all-reduce, broadcast, barrier (an unshard counts as an all-gather, a unit's reduction as a
 * reduce-scatter or all-reduce). */
MS_API void ms_comm_counts(const ms_comm *comm, int64_t *counts5);
/** Seconds this rank has waited for others in `comm`: exposed communication. */
MS_API double ms_comm_wait_seconds(const ms_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
