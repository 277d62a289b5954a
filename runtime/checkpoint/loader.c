/* Reading a checkpoint into tensors, all or nothing, with one outcome on all ranks.
 *
 * [Note: loading] Ranks open one checkpoint and together verify every file. Each reads its elements
 * into staging memory. Only when all ranks have done so are tensors written, by copies that need no
 * memory. So this rank's part exists twice for a moment; staging memory is freed tensor by tensor.
 */
#include "gather.h"
#include "op.h"
#include "outcome.h"
#include "reader.h"
#include "store.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 8 << 20 };

/* Staged values of a tensor. */
typedef struct staged {
    struct staged *next;
    ms_tensor *local; /* retained */
    int64_t nbytes;
    void *bytes;
    bool late; /* read at commit: from a file of another host */
    char *key;
    ms_param_extent extent;
} staged;

struct ms_checkpoint_loader {
    ms_comm *comm;
    ms_checkpoint *c;
    staged *list;
    bool *lacks;     /* (n_files) needed, and not on this host */
    msi_outcome own; /* the caller's failure, for all ranks at commit */
};

static void loader_free(ms_checkpoint_loader *l)
{
    if (l == NULL) {
        return;
    }
    while (l->list != NULL) {
        staged *s = l->list;

        l->list = s->next;
        ms_tensor_free(s->local);
        free(s->bytes);
        free(s->key);
        free(s);
    }
    free(l->lacks);
    ms_checkpoint_close(l->c);
    free(l);
}

static ms_status loader_new(ms_checkpoint_loader **out, ms_comm *comm)
{
    *out = calloc(1, sizeof(**out));
    if (*out == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to read a checkpoint");
    }
    (*out)->comm = comm;
    return MS_OK;
}

/* Open `path` and verify this rank's share of its files: of folders of several hosts, a host's
 * files are divided among its ranks. */
static ms_status open_share(ms_checkpoint_loader *l, const char *path, bool listed)
{
    const msi_hosts *hosts = msi_comm_hosts(l->comm);
    ms_status status = ms_checkpoint_open(&l->c, path);

    if (status == MS_OK && msi_checkpoint_manifest(l->c)->n_folders > 1 && hosts->n > 1) {
        status = hosts->per_host > 0
                     ? msi_checkpoint_verify(l->c, ms_comm_rank(l->comm) - hosts->leader,
                                             hosts->per_host)
                     : msi_checkpoint_verify(l->c, 0, 1);
    } else if (status == MS_OK) {
        status = msi_checkpoint_verify(l->c, ms_comm_rank(l->comm), ms_comm_size(l->comm));
    }
    return listed ? msi_checkpoint_missing(status) : status;
}

enum { ONE_FOLDER = -1 };

/* Number of files that this rank adds to those of all folders: the leader of a host, its host's. */
static int64_t count_files(const ms_checkpoint_loader *l)
{
    const msi_manifest *m = msi_checkpoint_manifest(l->c);
    int64_t n = 0;

    if (m->n_folders == 1) {
        return ONE_FOLDER;
    }
    for (int32_t i = 0; i < m->n_files && ms_comm_leads_host(l->comm); i++) {
        n += msi_checkpoint_has_file(l->c, i);
    }
    return n;
}

/* MS_FORMAT_ERROR if a file is in no host's folder. */
static ms_status check_files(const ms_checkpoint_loader *l, const msi_outcome *all)
{
    const msi_manifest *m = msi_checkpoint_manifest(l->c);
    int64_t n = 0;

    for (int32_t r = 0; r < ms_comm_size(l->comm); r++) {
        n += all[r].n_bytes;
    }
    return m->n_folders == 1 || n >= m->n_files
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR,
                         "%s: %lld of %d files are on the hosts of this job; the checkpoint was "
                         "saved in folders of %lld hosts",
                         all[0].name, (long long)n, (int)m->n_files, (long long)m->n_folders);
}

/* Error unless all opened the same. A job that ends while hosts publish may leave different
 * checkpoints in their folders, so a listed one is then broken. */
static ms_status check_one(const msi_outcome *all, const ms_comm *comm, bool listed)
{
    for (int32_t r = 1; r < ms_comm_size(comm); r++) {
        if (all[r].path != all[0].path || all[r].hash != all[0].hash) {
            const bool in_folders = all[r].n_bytes != ONE_FOLDER || all[0].n_bytes != ONE_FOLDER;

            return MS_FAIL(
                listed && in_folders ? MS_FORMAT_ERROR : MS_VALUE_ERROR,
                "rank %d opened '%s' with step %lld (manifest %016llx), rank %d '%s' with "
                "step %lld (%016llx): expected one checkpoint on all ranks",
                (int)msi_comm_rank_in_job(comm, r), all[r].name, (long long)all[r].step,
                (unsigned long long)all[r].hash, (int)msi_comm_rank_in_job(comm, 0), all[0].name,
                (long long)all[0].step, (unsigned long long)all[0].hash);
        }
    }
    return MS_OK;
}

/* All ranks open and verify a checkpoint, or none does. `own` may have a failure. `listed`: see
 * msi_checkpoint_missing(). */
static ms_status open_together(ms_checkpoint_loader *l, ms_comm *comm, const char *path,
                               bool listed, msi_outcome *own)
{
    msi_outcome all[ms_comm_size(comm)];

    if (own->status == MS_OK) {
        msi_outcome_keep(own, open_share(l, path, listed));
    }
    if (own->status == MS_OK) {
        own->hash = msi_checkpoint_manifest(l->c)->hash;
        own->step = msi_checkpoint_manifest(l->c)->step;
        own->n_bytes = count_files(l);
        msi_outcome_path(own, path);
    }
    MS_TRY(msi_outcome_agree(comm, "checkpoint.load", own, all));
    MS_TRY(check_one(all, comm, listed));
    return listed ? check_files(l, all) : MS_OK;
}

ms_status ms_checkpoint_load_begin(ms_checkpoint_loader **out, ms_comm *comm, const char *path)
{
    ms_checkpoint_loader *l;
    msi_outcome own = {0};

    *out = NULL;
    MS_TRY(msi_outcome_check_group(comm, "checkpoint.load"));
    msi_outcome_keep(&own, loader_new(&l, comm));
    ms_status status = open_together(l, comm, path, false, &own);

    if (status != MS_OK) {
        loader_free(l);
        return status;
    }
    *out = l;
    return MS_OK;
}

/* Error unless all ranks use the same root. `own` may have a failure. */
static ms_status agree_on_root(ms_comm *comm, const char *root, msi_outcome *own)
{
    msi_outcome all[ms_comm_size(comm)];

    msi_outcome_path(own, root);
    MS_TRY(msi_outcome_agree(comm, "find a checkpoint", own, all));
    *own = (msi_outcome){0};
    return msi_outcome_same_path(all, comm, "looks for checkpoints in");
}

/* Broadcast the name of rank 0's next candidate; empty at the end. */
static ms_status propose(ms_comm *comm, msi_listing *listing, msi_outcome *own, char *name,
                         size_t room)
{
    msi_outcome all[ms_comm_size(comm)];
    const char *next = msi_listing_next(listing);

    if (next != NULL) {
        snprintf(own->name, sizeof(own->name), "%s", next);
    } else if (ms_comm_rank(comm) == 0 && own->status == MS_OK) {
        msi_outcome_keep(own, msi_listing_none(listing));
    }
    MS_TRY(msi_outcome_agree(comm, "checkpoint resume (the newest)", own, all));
    snprintf(name, room, "%s", all[0].name);
    return MS_OK;
}

/* Try rank 0's checkpoints, newest first, until one is intact on all ranks. Other ranks' listings
 * are empty. */
static ms_status open_newest(ms_checkpoint_loader *l, ms_comm *comm, const char *root,
                             msi_listing *listing, msi_outcome *own, bool *found)
{
    char name[sizeof(own->name)];

    for (;;) {
        MS_TRY(propose(comm, listing, own, name, sizeof(name)));
        if (name[0] == '\0') {
            *found = false;
            return MS_OK;
        }
        msi_outcome here = {0};
        msi_path path;

        msi_outcome_keep(&here, msi_path_set(path, "%s/%s", root, name));
        ms_status status = open_together(l, comm, path, true, &here);

        if (status == MS_OK) {
            *found = true;
            return MS_OK;
        }
        ms_checkpoint_close(l->c);
        l->c = NULL;
        if (status != MS_FORMAT_ERROR) {
            return status;
        }
        *own = (msi_outcome){0};
        if (ms_comm_rank(comm) == 0) {
            msi_outcome_keep(own, msi_listing_pass_over(listing, name));
        }
    }
}

/* Rank 0 lists the root. `steps`: only checkpoints named by steps. */
static ms_status load_newest(ms_checkpoint_loader **out, ms_comm *comm, const char *root,
                             bool steps)
{
    ms_checkpoint_loader *l;
    msi_listing listing = {0};
    msi_outcome own = {0};
    bool found = false;

    *out = NULL;
    MS_TRY(msi_outcome_check_group(comm, "checkpoint.load"));
    msi_outcome_keep(&own, loader_new(&l, comm));
    if (own.status == MS_OK && ms_comm_rank(comm) == 0) {
        msi_outcome_keep(&own, msi_listing_read(&listing, root, steps ? 0 : -1, true));
    }
    ms_status status = agree_on_root(comm, root, &own);

    if (status == MS_OK) {
        status = open_newest(l, comm, root, &listing, &own, &found);
    }
    msi_listing_dispose(&listing);
    if (status != MS_OK || !found) {
        loader_free(l);
        return status;
    }
    *out = l;
    return MS_OK;
}

ms_status ms_checkpoint_load_latest(ms_checkpoint_loader **out, ms_comm *comm, const char *root)
{
    return load_newest(out, comm, root, false);
}

ms_status ms_checkpoint_load_latest_step(ms_checkpoint_loader **out, ms_comm *comm,
                                         const char *root)
{
    return load_newest(out, comm, root, true);
}

const ms_checkpoint *ms_checkpoint_load_source(const ms_checkpoint_loader *l)
{
    return l->c;
}

/* Read the elements of `extent` into staging memory. */
static ms_status stage(ms_checkpoint_loader *l, const char *key, const ms_param_extent *extent,
                       ms_tensor *local)
{
    staged *s = calloc(1, sizeof(*s));

    if (s != NULL) {
        s->extent = *extent;
        s->key = strdup(key);
        s->nbytes = extent->numel * ms_dtype_size(extent->dtype);
        s->bytes = malloc((size_t)s->nbytes);
        s->local = ms_tensor_retain(local);
        s->next = l->list;
        l->list = s;
    }
    if (l->lacks == NULL) {
        l->lacks = calloc((size_t)msi_checkpoint_manifest(l->c)->n_files + 1, sizeof(*l->lacks));
    }
    if (s == NULL || s->bytes == NULL || s->key == NULL || l->lacks == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for '%s'", key);
    }
    s->late = msi_checkpoint_lacks(l->c, key, extent, l->lacks);
    return s->late ? MS_OK : msi_checkpoint_fetch(l->c, key, extent, s->bytes);
}

ms_status ms_checkpoint_load_add(ms_checkpoint_loader *l, const char *key,
                                 const ms_param_extent *extent, ms_tensor *local)
{
    MS_TRY(msi_checkpoint_check(l->c, key, extent, local));
    if (local == NULL || extent->numel == 0) {
        return MS_OK;
    }
    MS_TRY(msi_view_present(&local->v));
    return stage(l, key, extent, local);
}

void ms_checkpoint_load_fail(ms_checkpoint_loader *l, ms_status kind, const char *message)
{
    msi_outcome_keep(&l->own, ms_error_set(kind, message));
}

/* Read what is in files of other hosts, if the checkpoint has such. */
static ms_status read_late(ms_checkpoint_loader *l)
{
    const msi_manifest *m = msi_checkpoint_manifest(l->c);

    if (m->n_folders == 1) {
        return MS_OK;
    }
    MS_TRY(msi_checkpoint_gather_files(l->c, l->comm, l->lacks, &l->own));
    for (staged *s = l->list; s != NULL && l->own.status == MS_OK; s = s->next) {
        if (s->late) {
            msi_outcome_keep(&l->own, msi_checkpoint_fetch(l->c, s->key, &s->extent, s->bytes));
        }
    }
    return MS_OK;
}

/* Copy what was read to the tensor, which is contiguous: to a device by CHUNK bytes of pinned
 * memory; NULL: there is no device. */
static ms_status copy_staged(const staged *s, const msi_mem_block *pinned)
{
    char *to = msi_view_address(&s->local->v);

    if (pinned == NULL) {
        return msi_mem_copy(s->local->ctx, to, s->bytes, s->nbytes);
    }
    for (int64_t at = 0; at < s->nbytes; at += CHUNK) {
        const int64_t n = s->nbytes - at < CHUNK ? s->nbytes - at : CHUNK;

        memcpy(pinned->data, (char *)s->bytes + at, (size_t)n);
        MS_TRY(msi_mem_copy(s->local->ctx, to + at, pinned->data, n));
        MS_TRY(msi_settle_stream(s->local->ctx));
    }
    return MS_OK;
}

ms_status ms_checkpoint_load_commit(ms_checkpoint_loader *l)
{
    msi_outcome all[ms_comm_size(l->comm)];
    msi_mem_block *pinned = NULL;

    msi_op_host(msi_context(), "tensors are read from a checkpoint");
    for (staged *s = l->list; s != NULL && l->own.status == MS_OK; s = s->next) {
        msi_outcome_keep(&l->own, msi_tensor_check_write(s->local, "checkpoint"));
    }
    if (msi_context()->device != NULL) {
        msi_outcome_keep(&l->own, msi_host_alloc(msi_context(), CHUNK, MS_MEM_SCRATCH, &pinned));
    }
    ms_status status = read_late(l);

    if (status == MS_OK) {
        status = msi_outcome_agree(l->comm, "checkpoint.load (contents)", &l->own, all);
    }

    for (staged *s = l->list; s != NULL && status == MS_OK; s = s->next) {
        status = copy_staged(s, pinned);
        s->local->v.storage->version++;
        free(s->bytes);
        s->bytes = NULL;
    }
    msi_release(pinned);
    loader_free(l);
    return status;
}

void ms_checkpoint_load_discard(ms_checkpoint_loader *l)
{
    loader_free(l);
}
