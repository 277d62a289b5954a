/* Writing a checkpoint: all or nothing, and every rank learns which.
 *
 * [Note: order on disk] Ranks write into `<root>/<name>.tmp-<nonce>`, each its own files, and sync
 * them. When all have, rank 0 writes the manifest, syncs it and the folder, renames the folder,
 * syncs the root, and moves the pointer `latest`. Before the rename nothing but the temporary
 * folder has changed; after it everything the manifest names is on disk. An older checkpoint of the
 * same name changes places with the new one and is removed last.
 *
 * Rank 0 holds a lock on the temporary folder, so whoever prunes can tell a writer that is at work
 * from the leftovers of one that died. */
#include "comm.h"
#include "io.h"
#include "manifest.h"
#include "publish.h"
#include "safetensors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Room for the header at the start of each file. A file that has no more room is finished and
 * another begun, so elements are written once and never moved. */
enum { HEADER_ROOM = 64 << 10, KEY_MAX = 1024 };

struct ms_checkpoint_writer {
    ms_comm *comm;
    int32_t rank, world;
    char *name, *root, *folder;
    char nonce[17];
    int lock; /* rank 0: the folder, locked; else -1 */
    json_t *report;
    json_t *keys; /* those added so far */
    int32_t n_files;
    /* the file being written; fd -1: none */
    int fd;
    char *file_name, *file_path;
    json_t *header;
    int64_t header_used, data_end;
    /* The first failure of this rank. It is told to all by commit, so that ranks fail together. */
    ms_status failed;
    char message[400];
};

/* What ranks tell each other at the points where they must agree. */
typedef struct verdict {
    int32_t status;
    int64_t report_bytes;
    char nonce[17];
    char message[400];
} verdict;

static void keep_failure(ms_checkpoint_writer *w, ms_status status)
{
    if (status != MS_OK && w->failed == MS_OK) {
        w->failed = status;
        snprintf(w->message, sizeof(w->message), "%s", ms_error_message());
    }
}

/* Exchange verdicts: `all` gets every rank's. Fails on all ranks, equally, when one has failed. */
static ms_status agree(ms_checkpoint_writer *w, const char *what, int64_t report_bytes,
                       verdict *all)
{
    verdict own = {.status = w->failed, .report_bytes = report_bytes};

    snprintf(own.message, sizeof(own.message), "%s", w->message);
    memcpy(own.nonce, w->nonce, sizeof(own.nonce));
    MS_TRY(msi_comm_gather_bytes(w->comm, what, &own, sizeof(own), all));
    for (int32_t r = 0; r < w->world; r++) {
        if (all[r].status != MS_OK) {
            return w->world == 1 ? MS_FAIL(all[r].status, "%s", all[r].message)
                                 : MS_FAIL(all[r].status, "rank %d: %s", r, all[r].message);
        }
    }
    return MS_OK;
}

static ms_status check_name(const char *name)
{
    size_t n = strlen(name);
    bool reserved = strcmp(name, "latest") == 0 || strstr(name, ".tmp-") != NULL ||
                    (n >= 4 && strcmp(name + n - 4, ".old") == 0);

    if (n == 0 || n > 200 || name[0] == '.' || strchr(name, '/') != NULL || reserved) {
        return MS_FAIL(MS_VALUE_ERROR, "'%.210s' cannot name a checkpoint%s", name,
                       reserved ? ": reserved" : "");
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
    free(w->file_name);
    free(w->file_path);
    free(w->name);
    free(w->root);
    free(w->folder);
    free(w);
}

/* Rank 0: make root and temporary folder, and lock the latter. */
static ms_status make_folder(ms_checkpoint_writer *w)
{
    MS_TRY(msi_io_nonce(w->nonce));
    w->folder = msi_io_path("%s/%s.tmp-%s", w->root, w->name, w->nonce);
    if (w->folder == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(msi_io_mkdir_all(w->root));
    MS_TRY(msi_io_mkdir(w->folder));
    w->lock = open(w->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->lock < 0) {
        return msi_io_fail("open", w->folder);
    }
    flock(w->lock, LOCK_EX | LOCK_NB); /* without it (some network file systems) nothing is lost */
    return MS_OK;
}

ms_status ms_checkpoint_begin(ms_checkpoint_writer **out, ms_comm *comm, const char *root,
                              const char *name)
{
    ms_checkpoint_writer *w;
    verdict *all;
    ms_status status;

    MS_CHECK_ARG(out != NULL && comm != NULL && root != NULL && name != NULL);
    *out = NULL;
    MS_TRY(check_name(name));
    w = calloc(1, sizeof(*w));
    all = calloc((size_t)ms_comm_size(comm), sizeof(*all));
    if (w == NULL || all == NULL) {
        free(w);
        free(all);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to write a checkpoint");
    }
    w->comm = comm;
    w->rank = ms_comm_rank(comm);
    w->world = ms_comm_size(comm);
    w->fd = w->lock = -1;
    w->name = strdup(name);
    w->root = strdup(root);
    w->report = msi_report_new();
    w->keys = json_object();
    if (w->name == NULL || w->root == NULL || w->report == NULL || w->keys == NULL) {
        keep_failure(w, MS_FAIL(MS_OUT_OF_MEMORY, "no memory to write a checkpoint"));
    } else if (w->rank == 0) {
        keep_failure(w, make_folder(w));
    }
    status = agree(w, "begin a checkpoint", 0, all);
    if (status == MS_OK && w->rank != 0) {
        memcpy(w->nonce, all[0].nonce, sizeof(w->nonce));
        w->folder = msi_io_path("%s/%s.tmp-%s", root, name, w->nonce);
        if (w->folder == NULL) {
            keep_failure(w, MS_OUT_OF_MEMORY);
        }
    }
    free(all);
    if (status != MS_OK) {
        if (w->folder != NULL) {
            rmdir(w->folder);
        }
        writer_free(w);
        return status;
    }
    *out = w;
    return MS_OK;
}

static ms_status open_file(ms_checkpoint_writer *w)
{
    free(w->file_name);
    free(w->file_path);
    json_decref(w->header);
    w->file_path = NULL;
    w->header = NULL;
    w->file_name = w->n_files == 0 ? msi_io_path("rank-%05d-of-%05d.safetensors", w->rank, w->world)
                                   : msi_io_path("rank-%05d-of-%05d.%d.safetensors", w->rank,
                                                 w->world, w->n_files);
    if (w->file_name != NULL) {
        w->file_path = msi_io_path("%s/%s", w->folder, w->file_name);
    }
    if (w->file_path == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    w->header = msi_st_header_new();
    if (w->header == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    w->header_used = 8 + 256; /* the metadata, generously */
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
    close(w->fd); /* synced: closing has nothing left to say */
    w->fd = -1;
    w->n_files++;
    return MS_OK;
}

/* Write this rank's piece of a tensor at the end of a file with room in its header. */
static ms_status write_piece(ms_checkpoint_writer *w, const char *key,
                             const ms_param_extent *extent, const ms_tensor *local)
{
    /* a key grows at most sixfold by JSON escapes; the rest of an entry stays below 150 bytes */
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

    if (strlen(key) > KEY_MAX || key[0] == '\0' || strcmp(key, "__metadata__") == 0) {
        return MS_FAIL(MS_VALUE_ERROR, "'%.40s' is no key, expected 1 to %d bytes of text", key,
                       KEY_MAX);
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

    MS_CHECK_ARG(w != NULL && key != NULL && extent != NULL);
    MS_TRY(check_add(w, key, extent, local));
    if (json_object_set_new(w->keys, key, json_true()) != 0) {
        return MS_FAIL(MS_VALUE_ERROR, "the key of a tensor is no UTF-8 text");
    }
    if (w->failed != MS_OK) {
        return MS_OK; /* commit will say so, on all ranks */
    }
    held = *extent;
    if (local == NULL) {
        held.numel = 0;
    }
    keep_failure(w, held.numel > 0 ? write_piece(w, key, &held, local)
                                   : msi_report_tensor(w->report, key, &held, 0, 0));
    return MS_OK;
}

/* Every rank's report as one object each; only rank 0 needs them. */
static ms_status gather_reports(ms_checkpoint_writer *w, const char *text, const verdict *all,
                                json_t **reports)
{
    int64_t longest = 0;
    char *own, *every;
    ms_status status;

    for (int32_t r = 0; r < w->world; r++) {
        longest = all[r].report_bytes > longest ? all[r].report_bytes : longest;
    }
    own = calloc(1, (size_t)longest + 1);
    every = calloc((size_t)w->world, (size_t)longest + 1);
    if (own == NULL || every == NULL) {
        free(own);
        free(every);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the reports of %d ranks", w->world);
    }
    memcpy(own, text, strlen(text));
    status = msi_comm_gather_bytes(w->comm, "gather a checkpoint's contents", own, longest, every);
    for (int32_t r = 0; r < w->world && w->rank == 0 && status == MS_OK; r++) {
        reports[r] = json_loadb(every + r * longest, (size_t)all[r].report_bytes, 0, NULL);
        if (reports[r] == NULL) {
            status = MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the report of rank %d", r);
        }
    }
    free(own);
    free(every);
    return status;
}

static ms_status build_and_publish(ms_checkpoint_writer *w, json_t *const *reports, json_t *meta)
{
    char *manifest;

    MS_TRY(msi_manifest_build(&manifest, reports, w->world, w->nonce, meta));
    ms_status status = msi_checkpoint_publish(w->folder, w->root, w->name, w->nonce, manifest);

    free(manifest);
    return status;
}

/* Remove this rank's files, and the folder when no other rank has any left in it. */
static void remove_written(ms_checkpoint_writer *w)
{
    const json_t *file;
    size_t i;

    json_array_foreach(json_object_get(w->report, "files"), i, file)
    {
        char *path =
            w->folder != NULL
                ? msi_io_path("%s/%s", w->folder, json_string_value(json_object_get(file, "name")))
                : NULL;

        if (path != NULL) {
            unlink(path);
        }
        free(path);
    }
    if (w->file_path != NULL) {
        unlink(w->file_path);
    }
    if (w->folder != NULL) {
        char *manifest = w->rank == 0 ? msi_io_path("%s/%s", w->folder, MSI_MANIFEST_NAME) : NULL;

        if (manifest != NULL) {
            unlink(manifest);
        }
        free(manifest);
        rmdir(w->folder);
    }
}

/* Everything of commit but the cleaning up. */
static ms_status commit(ms_checkpoint_writer *w, json_t *meta, verdict *all, json_t **reports)
{
    char *text = NULL;
    ms_status status;

    if (w->failed == MS_OK) {
        keep_failure(w, finish_file(w));
    }
    if (w->failed == MS_OK) {
        text = json_dumps(w->report, JSON_COMPACT);
        if (text == NULL) {
            keep_failure(w, MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a report"));
        }
    }
    status = agree(w, "finish a checkpoint's files", text != NULL ? (int64_t)strlen(text) : 0, all);
    if (status == MS_OK) {
        keep_failure(w, gather_reports(w, text, all, reports));
        if (w->rank == 0 && w->failed == MS_OK) {
            keep_failure(w, build_and_publish(w, reports, meta));
        }
        status = agree(w, "publish a checkpoint", 0, all);
    }
    free(text);
    return status;
}

ms_status ms_checkpoint_commit(ms_checkpoint_writer *w, const char *meta_json)
{
    json_error_t error;
    json_t *meta, **reports;
    verdict *all;
    ms_status status = MS_OUT_OF_MEMORY;

    MS_CHECK_ARG(w != NULL);
    meta = json_loads(meta_json != NULL ? meta_json : "{}", JSON_REJECT_DUPLICATES, &error);
    reports = calloc((size_t)w->world, sizeof(json_t *));
    all = calloc((size_t)w->world, sizeof(*all));
    if (!json_is_object(meta)) {
        keep_failure(w, MS_FAIL(MS_VALUE_ERROR, "a checkpoint's meta data are a JSON object: %s",
                                meta == NULL ? error.text : "got another value"));
    }
    if (reports != NULL && all != NULL) {
        status = commit(w, meta, all, reports);
    } else {
        MS_FAIL(MS_OUT_OF_MEMORY, "no memory to commit a checkpoint");
    }
    if (status != MS_OK) {
        remove_written(w);
    }
    for (int32_t r = 0; r < w->world && reports != NULL; r++) {
        json_decref(reports[r]);
    }
    free(reports);
    free(all);
    json_decref(meta);
    writer_free(w);
    return status;
}

void ms_checkpoint_discard(ms_checkpoint_writer *w)
{
    if (w != NULL) {
        remove_written(w);
        writer_free(w);
    }
}
