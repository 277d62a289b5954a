/* Checkpoints: every rank writes the elements it holds into a safetensors file of its own, rank 0
 * a manifest; they are read back at any world size. Nothing in a checkpoint is executed. */
#ifndef MOONSHARD_CHECKPOINT_H
#define MOONSHARD_CHECKPOINT_H

#include "comm.h"
#include "fsdp.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A checkpoint being written. */
typedef struct ms_checkpoint_writer ms_checkpoint_writer;
/** A checkpoint being read. */
typedef struct ms_checkpoint ms_checkpoint;
/** A checkpoint being read into tensors by all ranks. */
typedef struct ms_checkpoint_loader ms_checkpoint_loader;

/**
 * Begin writing `<root>/<name>`, all or nothing: files go to a temporary folder beside it, are
 * synced, and ms_checkpoint_commit() renames the folder. What a writer of this name left when it
 * died is removed. A checkpoint of this name is replaced as a whole. Collective, with one outcome
 * on all ranks.
 * @param root  folder of checkpoints, made when missing; equal on all ranks
 * @param name  a plain file name, equal on all ranks; "latest", "....old" and "....tmp-..." are
 *              reserved
 * A folder with the name of a step (ms_checkpoint_step_name()) is replaced, too, when it holds only
 * files of others: these move aside, and a warning says where.
 * Groups of a job save side by side, each under a path of its own. Checkpoints that are named by
 * steps under one root belong to one group.
 * @return MS_VALUE_ERROR also when something else than a checkpoint is at `<root>/<name>`, or
 *         another group of the job writes or has saved it (any step, where `name` is that of a
 *         step)
 */
MS_API ms_status ms_checkpoint_begin(ms_checkpoint_writer **out, ms_comm *comm, const char *root,
                                     const char *name);
/**
 * Add this rank's elements of one tensor. Every rank adds the same keys in the same order; a rank
 * that holds nothing passes `local` NULL. Elements that several ranks hold are given by one of
 * them: a commit refuses a tensor of which an element was added by none or by several
 * (MS_VALUE_ERROR). A failure of the disk is kept until ms_checkpoint_commit(), which fails on all
 * ranks together.
 * @param key     unique, e.g. "model/h.0.attn.qkv.weight" or "optim/0/exp_avg/<parameter>"
 * @param extent  where the elements belong in the whole tensor
 * @param local   1-D, extent->numel elements; read at once
 */
MS_API ms_status ms_checkpoint_add(ms_checkpoint_writer *w, const char *key,
                                   const ms_param_extent *extent,
                                   MS_NULLABLE const ms_tensor *local);
/** A fact that is the same on all ranks, which add their facts in the same order: the commit fails
 * on all ranks when one differs, and names the first difference. It is not written.
 * @param what  what it is about, e.g. "config"
 * @return MS_OK: the commit returns a failure
 */
MS_API ms_status ms_checkpoint_same(ms_checkpoint_writer *w, const char *what, const char *text);
/** The caller cannot go on, for a reason of its own: the commit will fail on all ranks and name it.
 */
MS_API void ms_checkpoint_fail(ms_checkpoint_writer *w, ms_status kind, const char *message);
/** Sync files, gather hashes, write the manifest with `meta_json` (an object, rank 0's is taken;
 * NULL: empty) inside, read all of it back, rename, point the link `<root>/latest` at it (what is
 * there and no link stays, with a warning). The object's integer "step", from 0 to 2^53, orders
 * checkpoints and is equal on all ranks.
 * Collective, with one outcome on all ranks. Frees `w` in any case; on failure nothing is left
 * behind and an earlier checkpoint of the name is untouched. */
MS_API ms_status ms_checkpoint_commit(ms_checkpoint_writer *w, MS_NULLABLE const char *meta_json);
/** Give a checkpoint up: rank 0 removes what was written. Frees `w`. */
MS_API void ms_checkpoint_discard(ms_checkpoint_writer *w);

/** Open for reading, checking manifest and file sizes. The manifest becomes one tree in memory,
 * some twenty times its text. Files stay open, so that the same checkpoint is read when another
 * replaces it. MS_FORMAT_ERROR names file, found and expected; MS_IO_ERROR the system's reason. */
MS_API ms_status ms_checkpoint_open(ms_checkpoint **out, const char *path);
MS_API void ms_checkpoint_close(ms_checkpoint *c);
/** The folder that was opened. Borrowed from `c`. */
MS_API const char *ms_checkpoint_path(const ms_checkpoint *c);
/** The object given to commit. Borrowed from `c`. */
MS_API const char *ms_checkpoint_meta(const ms_checkpoint *c);
MS_API bool ms_checkpoint_has(const ms_checkpoint *c, const char *key);
MS_API int32_t ms_checkpoint_n_keys(const ms_checkpoint *c);
/** Borrowed from `c`. */
MS_API const char *ms_checkpoint_key(const ms_checkpoint *c, int32_t i);
/** Shape and dtype of the whole tensor behind `key` (start 0, numel all of it). */
MS_API ms_status ms_checkpoint_extent(const ms_checkpoint *c, const char *key,
                                      ms_param_extent *extent);
/** Read elements [extent->start, + extent->numel) into `local` (1-D, same dtype). Each file's hash
 * is verified before its first use; a damaged one leaves `local` as it was. Bytes of a bool other
 * than 0 are 1, here and wherever files are read. */
MS_API ms_status ms_checkpoint_read(ms_checkpoint *c, const char *key,
                                    const ms_param_extent *extent, ms_tensor *local);

/**
 * Begin reading one checkpoint into tensors, all or nothing. Ranks see that they named and opened
 * the same one, and together verify every file of it. Collective, with one outcome on all ranks.
 * @param out  free it with ms_checkpoint_load_commit() or ms_checkpoint_load_discard()
 * @return MS_FORMAT_ERROR, MS_IO_ERROR as ms_checkpoint_open(), MS_VALUE_ERROR when ranks opened
 *         different ones
 */
MS_API ms_status ms_checkpoint_load_begin(ms_checkpoint_loader **out, ms_comm *comm,
                                          const char *path);
/** The same with the checkpoint under rank 0's `root` that was saved last, where the link `latest`
 * points. When it is not there or not intact: the newest by step that every rank finds intact; rank
 * 0 reports the others with ms_warn(). `*out` is NULL when there is none at all. MS_FORMAT_ERROR
 * when there are some and none is intact, or when `latest` leads to none.
 * A checkpoint is a folder (no link to one) that holds a manifest or files of ranks and is not
 * temporary. A folder in the place of the link, as a copy that follows links makes it, is a broken
 * one. MS_IO_ERROR where one that is named by a step cannot be read now; another folder that may
 * not be opened is a warning. Other processes may save and prune meanwhile: what they remove is not
 * broken, and MS_IO_ERROR when nothing else was listed. Collective. */
MS_API ms_status ms_checkpoint_load_latest(ms_checkpoint_loader **out, ms_comm *comm,
                                           const char *root);
/** As ms_checkpoint_load_latest(), of the checkpoints that are named by their own steps, as
 * ms_checkpoint_step_name() has it. Where `latest` points at one of another name, a warning names
 * both. `*out` is NULL also when there are intact ones of other names only. MS_VALUE_ERROR
 * where another group of the job saves such. Collective. */
MS_API ms_status ms_checkpoint_load_latest_step(ms_checkpoint_loader **out, ms_comm *comm,
                                                const char *root);
/** What is being read: its meta data, keys and extents. Borrowed from `l`. */
MS_API const ms_checkpoint *ms_checkpoint_load_source(const ms_checkpoint_loader *l);
/**
 * Read elements [extent->start, + extent->numel), to be written to `local` by the commit.
 * @param local  as for ms_checkpoint_read(); NULL where this rank holds nothing, then key, shape
 *               and dtype are checked only. Takes its own reference
 * @return MS_KEY_ERROR, MS_VALUE_ERROR when the checkpoint holds something else
 */
MS_API ms_status ms_checkpoint_load_add(ms_checkpoint_loader *l, const char *key,
                                        const ms_param_extent *extent,
                                        MS_NULLABLE ms_tensor *local);
/** The caller cannot use the checkpoint, for a reason of its own: the commit will fail on all ranks
 * and name it. */
MS_API void ms_checkpoint_load_fail(ms_checkpoint_loader *l, ms_status kind, const char *message);
/** Write all tensors that were added, unless a rank has failed: then none on any rank. Collective,
 * with one outcome on all ranks. Frees `l`. */
MS_API ms_status ms_checkpoint_load_commit(ms_checkpoint_loader *l);
/** Write nothing. Not collective. Frees `l`. */
MS_API void ms_checkpoint_load_discard(ms_checkpoint_loader *l);

/** The checkpoint under `root` that was saved last, where the link `latest` points; when it is not
 * there or not intact, the newest intact one by its manifest's `step`. Every byte of it is
 * verified. Broken ones are skipped and reported with ms_warn(); MS_FORMAT_ERROR when there are
 * only such, and MS_IO_ERROR, as for ms_checkpoint_load_latest(). A root that is not there has
 * none; one behind a link to nothing is MS_IO_ERROR, here and wherever a root is given.
 * @param out  path, valid until the next call in this thread; NULL when there is none at all */
MS_API ms_status ms_checkpoint_latest(const char **out, const char *root);
/** Keep `keep` checkpoints under `root`: the one that was saved last, where the link `latest`
 * points, then the newest by step; a warning when one of these has a greater step than the first.
 * Remove the others and leftovers of writers that died; broken ones are not counted and stay. Only
 * files that a checkpoint consists of are removed, no link is followed, and what cannot be removed
 * is a warning. */
MS_API ms_status ms_checkpoint_prune(const char *root, int32_t keep);
/** The name under which checkpoints of one run are told apart: "step-00000010". Valid until the
 * next call in this thread. */
MS_API const char *ms_checkpoint_step_name(int64_t step);
/** As ms_checkpoint_prune(), once ms_checkpoint_step_name(step) has been saved: only checkpoints
 * named so, each by its own step, up to `step`, are counted and removed, and that of `step` is the
 * one that was saved last, wherever `latest` points. Those of greater steps stay, as they are of a
 * run that this one does not continue.
 * @param keep  0: all of them */
MS_API ms_status ms_checkpoint_rotate(const char *root, int64_t step, int32_t keep);

/**
 * Write named full tensors as one safetensors file (metadata format=pt), atomically: an error
 * leaves what was there as it was. What writers of this file left when they died is removed.
 * @param path  nothing, a regular file, or a link to one, whose target is replaced; MS_VALUE_ERROR
 *              when anything else is there, or the path is empty or ends with '/'. Its folder is
 * made when missing
 */
MS_API ms_status ms_safetensors_save(const char *path, ms_tensor *const *tensors, int32_t n_tensors,
                                     const char *const *names);
/** The same by rank 0 of a group; what the others pass is not written. Collective, with one outcome
 * on all ranks.
 * @param path  equal on all ranks */
MS_API ms_status ms_safetensors_export(ms_comm *comm, const char *path, ms_tensor *const *tensors,
                                       int32_t n_tensors, const char *const *names);

/** A safetensors file, open for reading; its header is checked in full at open. */
typedef struct ms_safetensors ms_safetensors;
/** `path` may be a link, as it is in caches of models. */
MS_API ms_status ms_safetensors_open(ms_safetensors **out, const char *path);
MS_API void ms_safetensors_close(ms_safetensors *f);
MS_API int32_t ms_safetensors_n(const ms_safetensors *f);
/** Borrowed from `f`. */
MS_API const char *ms_safetensors_name(const ms_safetensors *f, int32_t i);
/** A copy of tensor `i`. The caller owns `*out`. */
MS_API ms_status ms_safetensors_get(ms_tensor **out, const ms_safetensors *f, int32_t i);

#ifdef __cplusplus
}
#endif

#endif
