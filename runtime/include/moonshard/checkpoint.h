/* Checkpoints: every rank writes its elements into its own safetensors file, rank 0 writes a
 * manifest; any world size can load them. Nothing in a checkpoint is executed. */
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
 * Begin writing `<root>/<name>`, all or nothing: files are written to a temporary folder beside it
 * and synced; ms_checkpoint_commit() renames the folder. Replaces a checkpoint of this name as a
 * whole and removes what a dead writer of it left. Collective, with one outcome on all ranks.
 * A folder named as a step (ms_checkpoint_step_name()) with only foreign files is replaced too:
 * they are moved aside, with a warning.
 * Groups of a job may save at the same time, each under its own path. Checkpoints named by steps
 * under one root belong to one group.
 * @param root  folder of checkpoints, created if missing; equal on all ranks
 * @param name  a plain file name, equal on all ranks; "latest", "....old" and "....tmp-..." are
 *              reserved
 * @return MS_VALUE_ERROR also if `<root>/<name>` is not a checkpoint, or another group of the job
 *         writes or saved it (for a step's name: any step)
 */
MS_API ms_status ms_checkpoint_begin(ms_checkpoint_writer **out, ms_comm *comm, const char *root,
                                     const char *name);
/**
 * Add this rank's elements of one tensor. Every rank adds the same keys in the same order, with
 * `local` NULL if it has none. If several ranks have an element, one adds it: the commit rejects
 * tensors with missing or repeated elements (MS_VALUE_ERROR). A disk failure is reported by
 * ms_checkpoint_commit(), on all ranks.
 * @param key     unique, e.g. "model/h.0.attn.qkv.weight" or "optim/0/exp_avg/<parameter>"
 * @param extent  position of the elements in the whole tensor
 * @param local   1-D, extent->numel elements; read during the call
 */
MS_API ms_status ms_checkpoint_add(ms_checkpoint_writer *w, const char *key,
                                   const ms_param_extent *extent,
                                   MS_NULLABLE const ms_tensor *local);
/** Check a text that must be equal on all ranks, in the same order. If it differs, the commit fails
 * on all ranks with the first difference. It is not written.
 * @param what  subject, e.g. "config"
 * @return MS_OK; the commit returns a failure */
MS_API ms_status ms_checkpoint_same(ms_checkpoint_writer *w, const char *what, const char *text);
/** Make the commit fail on all ranks with this error of the caller. */
MS_API void ms_checkpoint_fail(ms_checkpoint_writer *w, ms_status kind, const char *message);
/** Sync files, gather hashes, write the manifest with `meta_json` (an object, rank 0's; NULL:
 * empty), read everything back, rename, set the link `<root>/latest` (anything else there is kept,
 * with a warning). The object's integer "step", 0 to 2^53, equal on all ranks, orders checkpoints.
 * Collective, with one outcome on all ranks. Frees `w` in any case; a failure leaves no files and
 * keeps an earlier checkpoint of the name. */
MS_API ms_status ms_checkpoint_commit(ms_checkpoint_writer *w, MS_NULLABLE const char *meta_json);
/** Abandon a checkpoint: rank 0 removes its files. Frees `w`. */
MS_API void ms_checkpoint_discard(ms_checkpoint_writer *w);

/** Open for reading; checks manifest and file sizes. The manifest takes about twenty times its size
 * in memory. Files stay open, so that a replaced checkpoint can still be read. MS_FORMAT_ERROR with
 * file, found and expected; MS_IO_ERROR with the system's reason. */
MS_API ms_status ms_checkpoint_open(ms_checkpoint **out, const char *path);
MS_API void ms_checkpoint_close(ms_checkpoint *c);
/** The opened folder. Borrowed from `c`. */
MS_API const char *ms_checkpoint_path(const ms_checkpoint *c);
/** The JSON object passed to commit. Borrowed from `c`. */
MS_API const char *ms_checkpoint_meta(const ms_checkpoint *c);
MS_API bool ms_checkpoint_has(const ms_checkpoint *c, const char *key);
MS_API int32_t ms_checkpoint_n_keys(const ms_checkpoint *c);
/** Borrowed from `c`. */
MS_API const char *ms_checkpoint_key(const ms_checkpoint *c, int32_t i);
/** Shape and dtype of the whole tensor of `key` (start 0, numel its size). */
MS_API ms_status ms_checkpoint_extent(const ms_checkpoint *c, const char *key,
                                      ms_param_extent *extent);
/** Read elements [extent->start, + extent->numel) into `local` (1-D, same dtype). A file's hash is
 * verified before its first use; a damaged file leaves `local` unchanged. Bytes of a bool other
 * than 0 are read as 1, as in all files. */
MS_API ms_status ms_checkpoint_read(ms_checkpoint *c, const char *key,
                                    const ms_param_extent *extent, ms_tensor *local);

/**
 * Begin reading one checkpoint into tensors, all or nothing. Ranks check that they opened the same
 * one, and together verify all of its files. Collective, with one outcome on all ranks.
 * @param out  freed by ms_checkpoint_load_commit() or ms_checkpoint_load_discard()
 * @return MS_FORMAT_ERROR, MS_IO_ERROR as ms_checkpoint_open(), MS_VALUE_ERROR if ranks opened
 *         different ones
 */
MS_API ms_status ms_checkpoint_load_begin(ms_checkpoint_loader **out, ms_comm *comm,
                                          const char *path);
/** The same for the checkpoint saved last under rank 0's `root`: the target of the link `latest`.
 * If that is missing or broken: the newest by step that is intact on every rank; rank 0 warns about
 * broken ones. Collective.
 * A checkpoint is a folder (not a link) with a manifest or files of ranks that is not temporary. A
 * folder named `latest` (a copy that followed links) is a broken one.
 *
 * | found under root                              | result                    |
 * | no checkpoint                                 | MS_OK, `*out` NULL        |
 * | broken ones only, or `latest` leads to none   | MS_FORMAT_ERROR           |
 * | a step's folder that cannot be read now       | MS_IO_ERROR               |
 * | another folder that cannot be opened          | a warning                 |
 * | only ones that other processes then removed   | MS_IO_ERROR               | */
MS_API ms_status ms_checkpoint_load_latest(ms_checkpoint_loader **out, ms_comm *comm,
                                           const char *root);
/** As ms_checkpoint_load_latest(), for checkpoints named by their own steps
 * (ms_checkpoint_step_name()). If `latest` points to another name, a warning gives both. `*out` is
 * NULL also if only other names exist. MS_VALUE_ERROR if another group of the job saves steps
 * there. Collective. */
MS_API ms_status ms_checkpoint_load_latest_step(ms_checkpoint_loader **out, ms_comm *comm,
                                                const char *root);
/** The checkpoint being read: meta data, keys, extents. Borrowed from `l`. */
MS_API const ms_checkpoint *ms_checkpoint_load_source(const ms_checkpoint_loader *l);
/**
 * Read elements [extent->start, + extent->numel); the commit writes them to `local`.
 * @param local  as for ms_checkpoint_read(); retained. NULL if this rank has no elements: checks
 *               only key, shape and dtype
 * @return MS_KEY_ERROR; MS_VALUE_ERROR if shape or dtype differ
 */
MS_API ms_status ms_checkpoint_load_add(ms_checkpoint_loader *l, const char *key,
                                        const ms_param_extent *extent,
                                        MS_NULLABLE ms_tensor *local);
/** Make the commit fail on all ranks with this error of the caller. */
MS_API void ms_checkpoint_load_fail(ms_checkpoint_loader *l, ms_status kind, const char *message);
/** Write all added tensors, or none on any rank if a rank has failed. Collective, with one outcome
 * on all ranks. Frees `l`. */
MS_API ms_status ms_checkpoint_load_commit(ms_checkpoint_loader *l);
/** Write nothing. Not collective. Frees `l`. */
MS_API void ms_checkpoint_load_discard(ms_checkpoint_loader *l);

/** The checkpoint saved last under `root`: the target of the link `latest`; if that is missing or
 * broken, the newest intact one by its manifest's `step`. Verifies every byte. Warns about broken
 * ones. Errors as in ms_checkpoint_load_latest(). A missing root has no checkpoints; a root behind
 * a dangling link is MS_IO_ERROR, in all functions.
 * @param out  path, valid until the thread's next call; NULL if there is none */
MS_API ms_status ms_checkpoint_latest(const char **out, const char *root);

/* Make a folder and its parents; it may exist. MS_IO_ERROR. */
MS_API ms_status ms_make_folder(const char *path);
/** Keep `keep` checkpoints under `root`: the target of the link `latest`, then the newest by step
 * (with a warning if one has a greater step than the first). Remove the others and leftovers of
 * dead writers. Broken ones are neither counted nor removed. Removes only files of checkpoints,
 * follows no link, and warns about files it cannot remove. */
MS_API ms_status ms_checkpoint_prune(const char *root, int32_t keep);
/** Name of a step's checkpoint: "step-00000010". Valid until the thread's next call. */
MS_API const char *ms_checkpoint_step_name(int64_t step);
/** As ms_checkpoint_prune(), after ms_checkpoint_step_name(step) was saved, which counts as the
 * last saved whatever `latest` is. Counts and removes only checkpoints named by their own steps, up
 * to `step`. Greater steps are kept: they belong to a run that this one does not continue.
 * @param keep  0: all of them */
MS_API ms_status ms_checkpoint_rotate(const char *root, int64_t step, int32_t keep);

/**
 * Write named full tensors as one safetensors file (metadata format=pt), atomically: a failure
 * leaves the old file unchanged. Removes what dead writers of this file left.
 * @param path  missing, a regular file, or a link to one, whose target is replaced; anything else,
 *              "" and a trailing '/' are MS_VALUE_ERROR. Its folder is created if missing
 */
MS_API ms_status ms_safetensors_save(const char *path, ms_tensor *const *tensors, int32_t n_tensors,
                                     const char *const *names);
/** The same by rank 0 of a group; other ranks' tensors are ignored. Collective, with one outcome on
 * all ranks.
 * @param path  equal on all ranks */
MS_API ms_status ms_safetensors_export(ms_comm *comm, const char *path, ms_tensor *const *tensors,
                                       int32_t n_tensors, const char *const *names);

/** An open safetensors file; opening checks the whole header. */
typedef struct ms_safetensors ms_safetensors;
/** `path` may be a link, as in model caches. */
MS_API ms_status ms_safetensors_open(ms_safetensors **out, const char *path);
MS_API void ms_safetensors_close(ms_safetensors *f);
MS_API int32_t ms_safetensors_n(const ms_safetensors *f);
/** Borrowed from `f`. */
MS_API const char *ms_safetensors_name(const ms_safetensors *f, int32_t i);
/** Copy of tensor `i`. The caller owns `*out`. */
MS_API ms_status ms_safetensors_get(ms_tensor **out, const ms_safetensors *f, int32_t i);
/** Shape and dtype of tensor `i` (start 0, numel its size), if ms_safetensors_get() can read it. */
MS_API ms_status ms_safetensors_extent(const ms_safetensors *f, int32_t i, ms_param_extent *extent);
/** Copy of elements [start, start + numel) of tensor `i`, 1-D. The caller owns `*out`. */
MS_API ms_status ms_safetensors_slice(ms_tensor **out, const ms_safetensors *f, int32_t i,
                                      int64_t start, int64_t numel);

#ifdef __cplusplus
}
#endif

#endif
