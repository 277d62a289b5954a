/* Writing a checkpoint: all or nothing, with one outcome on all ranks.
 *
 * [Note: order on disk] Ranks write their files into `<root>/<name>.tmp-<nonce>` and sync them.
 * Then rank 0 writes the manifest, syncs it and the folder, renames the folder, moves the link
 * `latest`, and syncs the root. Before the rename only the temporary folder has changed; after it
 * everything in the manifest is on disk. An older checkpoint of the name is exchanged with the new
 * one and removed last.
 *
 * [Note: folders] If hosts share the root, rank 0 makes and publishes the folder. A host that does
 * not see rank 0's folder has one of its own, for its ranks' files and the same manifest: its first
 * rank makes and publishes that. If a job ends between two publications, a host has no manifest of
 * the step, or that of an older checkpoint of the name: resume passes the checkpoint over.
 *
 * The rank that makes a folder locks it ([Note: locks] in paths.h), so that pruning processes do
 * not take it for a dead writer's. It alone removes it: another rank that fails cannot know whether
 * its files are being published. */
#include "op.h"
#include "outcome.h"
#include "publish.h"
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Header space at the start of each file. A file whose header is full is finished and another one
 * started, so elements are written once and never moved. */
enum { HEADER_ROOM = 64 << 10, KEY_MAX = 1024 };

struct ms_checkpoint_writer {
    ms_comm *comm;
    int32_t rank, world;
    char name[NAME_MAX + 1];
    msi_path root;
    msi_path path;   /* final path: `<root>/<name>` */
    msi_path folder; /* temporary folder */
    char nonce[MSI_NONCE_ROOM];
    int lock; /* of the folder, in the rank that made it; else -1 */
    int32_t n_folders;
    json_t *report;
    json_t *keys; /* those added so far */
    int32_t n_files;
    /* the current file; fd -1: none */
    int fd;
    char file_name[MSI_SHARD_NAME];
    msi_path file_path;
    json_t *header;
    int64_t header_used, data_end;
    msi_outcome own; /* its failure, for all ranks at commit */
};

static ms_status check_name(const char *name)
{
    size_t n = strlen(name);
    bool reserved = strcmp(name, "latest") == 0 || strstr(name, MSI_TEMPORARY_MARK) != NULL ||
                    (n >= 4 && strcmp(name + n - 4, ".old") == 0);

    if (n == 0 || n > 200 || name[0] == '.' || strchr(name, '/') != NULL || reserved ||
        !msi_is_printable(name)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "'%s' cannot name a checkpoint, expected 1 to 200 bytes of UTF-8 without "
                       "control characters or '/', not '.' first%s",
                       msi_foreign_name(name), reserved ? "; this one is reserved" : "");
    }
    return MS_OK;
}

static void writer_free(ms_checkpoint_writer *w)
{
    if (w->fd >= 0) {
        close(w->fd);
    }
    if (w->lock >= 0) {
        close(w->lock);
    }
    json_decref(w->report);
    json_decref(w->keys);
    json_decref(w->header);
    free(w);
}

/* Nothing will be published: the rank that made a folder removes it. The next writer sweeps the
 * rest. */
static void remove_written(const ms_checkpoint_writer *w)
{
    bool others;

    if (w->lock >= 0) {
        msi_folder_retire(w->folder, w->path, &others);
    }
}

/* Fail; the cleanup keeps the error message. */
static ms_status give_up(ms_checkpoint_writer *w, ms_status status)
{
    msi_outcome failure = {0};

    msi_outcome_keep(&failure, status);
    if (w != NULL) {
        remove_written(w);
        writer_free(w);
    }
    return MS_FAIL(status, "%s", failure.message);
}

/* Make root and temporary folder, on another host than rank 0's with its name; remove what dead
 * writers of this name left. */
static ms_status make_folder(ms_checkpoint_writer *w)
{
    MS_TRY(msi_checkpoint_check_target(w->root, w->name));
    MS_TRY(msi_io_mkdir_all(w->root));
    MS_TRY(msi_folder_sweep(w->root, w->name));
    return w->rank == 0 ? msi_temporary_new(&w->lock, w->folder, w->nonce, w->path, true)
                        : msi_temporary_folder(&w->lock, w->folder);
}

static ms_status writer_new(ms_checkpoint_writer **out, ms_comm *comm, const char *root,
                            const char *name)
{
    ms_checkpoint_writer *w = calloc(1, sizeof(*w));

    *out = w;
    if (w == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to write a checkpoint");
    }
    w->comm = comm;
    w->rank = ms_comm_rank(comm);
    w->world = ms_comm_size(comm);
    w->fd = w->lock = -1;
    w->n_folders = 1;
    MS_TRY(check_name(name));
    snprintf(w->name, sizeof(w->name), "%s", name);
    MS_TRY(msi_path_set(w->root, "%s", root));
    MS_TRY(msi_path_set(w->path, "%s/%s", root, name));
    w->report = msi_report_new();
    w->keys = json_object();
    if (w->report == NULL || w->keys == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to write a checkpoint");
    }
    return w->rank == 0 ? make_folder(w) : MS_OK;
}

/* On several hosts: see [Note: folders]. */
static ms_status make_local_folders(ms_checkpoint_writer *w)
{
    msi_outcome all[w->world];

    if (ms_comm_leads_host(w->comm) && w->rank != 0 && w->own.status == MS_OK &&
        access(w->folder, F_OK) != 0 && errno == ENOENT) {
        msi_outcome_keep(&w->own, make_folder(w));
    }
    w->own.n_bytes = w->lock >= 0;
    MS_TRY(msi_outcome_agree(w->comm, "checkpoint.save (folders)", &w->own, all));
    w->n_folders = 0;
    for (int32_t r = 0; r < w->world; r++) {
        w->n_folders += all[r].n_bytes != 0;
    }
    return MS_OK;
}

/* All ranks are ready: use rank 0's name. */
static ms_status begin_together(ms_checkpoint_writer *w, const msi_outcome *all)
{
    MS_TRY(msi_outcome_same_path(all, w->comm, "saves checkpoint"));
    if (w->rank != 0) {
        memcpy(w->nonce, all[0].nonce, sizeof(w->nonce));
        msi_outcome_keep(&w->own, msi_temporary_path(w->folder, w->path, w->nonce));
    }
    return msi_comm_hosts(w->comm)->n > 1 ? make_local_folders(w) : MS_OK;
}

ms_status ms_checkpoint_begin(ms_checkpoint_writer **out, ms_comm *comm, const char *root,
                              const char *name)
{
    ms_checkpoint_writer *w;

    *out = NULL;
    MS_TRY(msi_outcome_check_group(comm, "checkpoint.save"));
    msi_outcome own = {0}, all[ms_comm_size(comm)];

    msi_outcome_keep(&own, writer_new(&w, comm, root, name));
    if (own.status == MS_OK) {
        msi_outcome_path(&own, w->path);
        memcpy(own.nonce, w->nonce, sizeof(own.nonce));
    }
    ms_status status = msi_outcome_agree(comm, "checkpoint.save", &own, all);

    if (status == MS_OK) {
        status = begin_together(w, all);
    }
    if (status != MS_OK) {
        return give_up(w, status);
    }
    *out = w;
    return MS_OK;
}

static ms_status open_file(ms_checkpoint_writer *w)
{
    msi_shard_name(w->file_name, w->rank, w->world, w->n_files);
    MS_TRY(msi_path_set(w->file_path, "%s/%s", w->folder, w->file_name));
    json_decref(w->header);
    w->header = msi_st_header_new();
    if (w->header == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    w->header_used = 8 + 256; /* upper bound of the metadata */
    w->data_end = HEADER_ROOM;
    return msi_io_create(&w->fd, w->file_path);
}

/* Write the header, sync, hash, report. */
static ms_status finish_file(ms_checkpoint_writer *w)
{
    char *text;
    int64_t nbytes;
    uint64_t hash;

    if (w->fd < 0) {
        return MS_OK;
    }
    MS_TRY(msi_st_header_text(&text, &nbytes, w->header, HEADER_ROOM));
    ms_status status = msi_io_write(w->fd, w->file_path, text, nbytes, 0);

    free(text);
    MS_TRY(status);
    MS_TRY(msi_io_sync(w->fd, w->file_path));
    MS_TRY(msi_io_hash(w->fd, w->file_path, w->data_end, &hash));
    MS_TRY(msi_report_file(w->report, w->file_name, w->data_end, hash));
    close(w->fd);
    w->fd = -1;
    w->n_files++;
    return MS_OK;
}

/* Append this rank's piece of a tensor to a file with header space. */
static ms_status write_piece(ms_checkpoint_writer *w, const char *key,
                             const ms_param_extent *extent, const ms_tensor *local)
{
    /* JSON escapes grow a key at most sixfold; the rest of an entry is below 150 bytes */
    int64_t entry = 6 * (int64_t)strlen(key) + 150;
    int64_t nbytes = extent->numel * ms_dtype_size(extent->dtype);
    int64_t begin = w->data_end - HEADER_ROOM;

    if (w->fd >= 0 && w->header_used + entry > HEADER_ROOM) {
        MS_TRY(finish_file(w));
    }
    if (w->fd < 0) {
        MS_TRY(open_file(w));
        begin = 0;
    }
    MS_TRY(
        msi_st_header_add(w->header, key, extent->dtype, 1, &extent->numel, begin, begin + nbytes));
    MS_TRY(msi_st_write_view(w->fd, w->file_path, local->ctx, &local->v, w->data_end));
    MS_TRY(msi_report_tensor(w->report, key, extent, w->n_files, w->data_end));
    w->header_used += entry;
    w->data_end += nbytes;
    return MS_OK;
}

static ms_status check_add(ms_checkpoint_writer *w, const char *key, const ms_param_extent *extent,
                           const ms_tensor *local)
{
    int64_t whole;

    if (strlen(key) > KEY_MAX || key[0] == '\0' || strcmp(key, "__metadata__") == 0 ||
        !msi_is_printable(key)) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "'%s' is no key, expected 1 to %d bytes of UTF-8 without control characters",
                       msi_foreign_name(key), KEY_MAX);
    }
    MS_TRY(msi_extent_check(key, extent, &whole));
    if (json_object_get(w->keys, key) != NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "'%s' is in the checkpoint already", key);
    }
    if (local != NULL && (local->v.dtype != extent->dtype || local->v.ndim != 1 ||
                          local->v.shape[0] != extent->numel)) {
        return MS_FAIL(MS_VALUE_ERROR, "'%s': got %s of shape %s, expected %lld elements of %s",
                       key, ms_dtype_name(local->v.dtype),
                       msi_shape_text(local->v.ndim, local->v.shape), (long long)extent->numel,
                       ms_dtype_name(extent->dtype));
    }
    return MS_OK;
}

ms_status ms_checkpoint_add(ms_checkpoint_writer *w, const char *key, const ms_param_extent *extent,
                            const ms_tensor *local)
{
    ms_param_extent held;

    msi_op_host(msi_context(), "tensors are written to a checkpoint");
    MS_TRY(check_add(w, key, extent, local));
    if (json_object_set_new(w->keys, key, json_true()) != 0) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a key of a checkpoint");
    }
    if (w->own.status != MS_OK) {
        return MS_OK; /* the commit fails on all ranks */
    }
    held = *extent;
    if (local == NULL) {
        held.numel = 0;
    }
    msi_outcome_keep(&w->own, held.numel > 0 ? write_piece(w, key, &held, local)
                                             : msi_report_tensor(w->report, key, &held, 0, 0));
    return MS_OK;
}

ms_status ms_checkpoint_same(ms_checkpoint_writer *w, const char *what, const char *text)
{
    msi_outcome_keep(&w->own, msi_report_same(w->report, what, text));
    return MS_OK;
}

void ms_checkpoint_fail(ms_checkpoint_writer *w, ms_status kind, const char *message)
{
    msi_outcome_keep(&w->own, ms_error_set(kind, message));
}

enum { REPORT_CHUNK = 2048 };

/* Send every rank's report to rank 0, as one object each. In chunks of fixed size, so that a rank
 * without memory can take part. */
static ms_status gather_reports(ms_checkpoint_writer *w, const char *text, const msi_outcome *all,
                                json_t **reports)
{
    char own[REPORT_CHUNK], every[(size_t)w->world * REPORT_CHUNK];
    const int64_t n_own = all[w->rank].n_bytes;
    char *gathered = NULL;
    int64_t longest = 0;

    for (int32_t r = 0; r < w->world; r++) {
        longest = all[r].n_bytes > longest ? all[r].n_bytes : longest;
    }
    longest = (longest + REPORT_CHUNK - 1) / REPORT_CHUNK * REPORT_CHUNK;
    if (w->rank == 0) {
        gathered = malloc((size_t)w->world * (size_t)longest);
        if (gathered == NULL) {
            msi_outcome_keep(&w->own, MS_FAIL(MS_OUT_OF_MEMORY,
                                              "no memory for the reports of %d ranks", w->world));
        }
    }
    ms_status status = MS_OK;

    for (int64_t at = 0; at < longest && status == MS_OK; at += REPORT_CHUNK) {
        const int64_t left = n_own - at < 0 ? 0 : n_own - at;

        memset(own, 0, sizeof(own));
        memcpy(own, text + (left > 0 ? at : 0),
               (size_t)(left < REPORT_CHUNK ? left : REPORT_CHUNK));
        status =
            msi_comm_gather_bytes(w->comm, "checkpoint.save (contents)", own, REPORT_CHUNK, every);
        for (int32_t r = 0; r < w->world && gathered != NULL; r++) {
            memcpy(gathered + r * longest + at, every + r * REPORT_CHUNK, REPORT_CHUNK);
        }
    }
    for (int32_t r = 0; r < w->world && status == MS_OK && gathered != NULL; r++) {
        reports[r] = json_loadb(gathered + r * longest, (size_t)all[r].n_bytes, 0, NULL);
        if (reports[r] == NULL) {
            msi_outcome_keep(&w->own,
                             MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the report of rank %d", r));
        }
    }
    free(gathered);
    return status;
}

/* Every rank gets rank 0's manifest, for the folders of other hosts. */
static ms_status share_manifest(ms_checkpoint_writer *w, msi_manifest_draft *draft)
{
    char own[REPORT_CHUNK], every[(size_t)w->world * REPORT_CHUNK];
    msi_outcome all[w->world];

    w->own.n_bytes = draft->text != NULL ? (int64_t)strlen(draft->text) : 0;
    w->own.hash = draft->hash;
    MS_TRY(msi_outcome_agree(w->comm, "checkpoint.save (manifest)", &w->own, all));
    const int64_t nbytes = all[0].n_bytes;
    char *text = w->rank == 0 ? draft->text : malloc((size_t)nbytes + REPORT_CHUNK);

    if (text == NULL) {
        msi_outcome_keep(&w->own, MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a manifest"));
    }
    for (int64_t at = 0; at < nbytes; at += REPORT_CHUNK) {
        const int64_t n = nbytes - at < REPORT_CHUNK ? nbytes - at : REPORT_CHUNK;

        memset(own, 0, sizeof(own));
        if (w->rank == 0) {
            memcpy(own, text + at, (size_t)n);
        }
        const ms_status status =
            msi_comm_gather_bytes(w->comm, "checkpoint.save (manifest)", own, REPORT_CHUNK, every);

        if (status != MS_OK) {
            draft->text = text;
            return status;
        }
        if (w->rank != 0 && text != NULL) {
            memcpy(text + at, every, (size_t)n);
        }
    }
    if (w->rank != 0 && text != NULL) {
        text[nbytes] = '\0';
    }
    *draft = (msi_manifest_draft){.hash = all[0].hash, .text = text};
    return MS_OK;
}

/* Join the reports on rank 0, and publish the folders. */
static ms_status build_and_publish(ms_checkpoint_writer *w, json_t *const *reports, json_t *meta)
{
    msi_manifest_draft draft = {0};
    ms_status status = MS_OK;

    if (w->rank == 0 && w->own.status == MS_OK) {
        msi_outcome_keep(
            &w->own, msi_manifest_build(&draft, reports, w->comm, w->nonce, w->n_folders, meta));
    }
    if (w->n_folders > 1) {
        status = share_manifest(w, &draft);
    }
    if (status == MS_OK && w->lock >= 0 && w->own.status == MS_OK) {
        msi_outcome_keep(&w->own,
                         msi_checkpoint_publish(w->folder, w->root, w->name, w->nonce, &draft));
    }
    msi_manifest_draft_dispose(&draft);
    return status;
}

static ms_status check_steps(const msi_outcome *all, const ms_comm *comm)
{
    for (int32_t r = 1; r < ms_comm_size(comm); r++) {
        if (all[r].step != all[0].step) {
            return MS_FAIL(MS_VALUE_ERROR, "rank %d saves step %lld, rank %d step %lld",
                           (int)msi_comm_rank_in_job(comm, r), (long long)all[r].step,
                           (int)msi_comm_rank_in_job(comm, 0), (long long)all[0].step);
        }
    }
    return MS_OK;
}

/* Everything of commit but parsing and cleaning up. */
static ms_status commit(ms_checkpoint_writer *w, json_t *meta)
{
    msi_outcome all[w->world];
    json_t *reports[w->world], *step = json_object_get(meta, "step");
    char *text = NULL;

    memset(reports, 0, sizeof(reports));
    if (w->own.status == MS_OK) {
        msi_outcome_keep(&w->own, finish_file(w));
    }
    if (w->own.status == MS_OK) {
        text = json_dumps(w->report, JSON_COMPACT);
        if (text == NULL) {
            msi_outcome_keep(&w->own, MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a report"));
        }
    }
    w->own.n_bytes = text != NULL ? (int64_t)strlen(text) : 0;
    w->own.step = json_is_integer(step) ? json_integer_value(step) : -1;
    ms_status status = msi_outcome_agree(w->comm, "checkpoint.save (files)", &w->own, all);

    if (status == MS_OK) {
        status = check_steps(all, w->comm);
    }
    if (status == MS_OK) {
        status = gather_reports(w, text, all, reports);
    }
    if (status == MS_OK) {
        status = build_and_publish(w, reports, meta);
    }
    if (status == MS_OK) {
        status = msi_outcome_agree(w->comm, "checkpoint.save (publication)", &w->own, all);
    }
    for (int32_t r = 0; r < w->world; r++) {
        json_decref(reports[r]);
    }
    free(text);
    return status;
}

ms_status ms_checkpoint_commit(ms_checkpoint_writer *w, const char *meta_json)
{
    json_error_t error;
    json_t *meta = json_loads(meta_json != NULL ? meta_json : "{}", JSON_REJECT_DUPLICATES, &error);

    if (!json_is_object(meta)) {
        msi_outcome_keep(&w->own,
                         MS_FAIL(MS_VALUE_ERROR, "a checkpoint's meta data are a JSON object: %s",
                                 meta == NULL ? error.text : "got another value"));
    } else if (!msi_is_step(json_object_get(meta, "step"))) {
        msi_outcome_keep(&w->own, MS_FAIL(MS_VALUE_ERROR,
                                          "'step' of a checkpoint's meta data is no "
                                          "integer from 0 to 2^%d",
                                          MSI_STEP_BITS));
    }
    ms_status status = commit(w, meta);

    json_decref(meta);
    if (status != MS_OK) {
        return give_up(w, status);
    }
    writer_free(w);
    return MS_OK;
}

void ms_checkpoint_discard(ms_checkpoint_writer *w)
{
    if (w != NULL) {
        remove_written(w);
        writer_free(w);
    }
}
