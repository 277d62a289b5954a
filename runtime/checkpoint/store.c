/* A folder of checkpoints: the newest intact one, and removing what is no longer wanted. */
#include "folder.h"
#include "io.h"
#include "listing.h"
#include "pointer.h"
#include "reader.h"
#include "search.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Is every byte of the checkpoint at `path` what was written? */
static ms_status verify(const char *path)
{
    ms_checkpoint *c;

    MS_TRY(msi_checkpoint_missing(ms_checkpoint_open(&c, path)));
    ms_status status = msi_checkpoint_missing(msi_checkpoint_verify(c, 0, 1));

    ms_checkpoint_close(c);
    return status;
}

ms_status ms_checkpoint_latest(const char **out, const char *root)
{
    static _Thread_local char path[PATH_MAX];
    const char *name;
    msi_search s;

    *out = NULL;
    ms_status status = msi_search_begin(&s, root, false);

    while (status == MS_OK && *out == NULL && (name = msi_search_next(&s)) != NULL) {
        if (snprintf(path, sizeof(path), "%s/%s", root, name) >= (int)sizeof(path)) {
            status =
                MS_FAIL(MS_VALUE_ERROR, "the path of a checkpoint under %.200s is too long", root);
            break;
        }
        status = verify(path);
        if (status == MS_OK) {
            *out = path;
        } else if (status == MS_FORMAT_ERROR) {
            status = msi_search_pass_over(&s);
        }
    }
    if (status == MS_OK && *out == NULL) {
        status = msi_search_none(&s);
    }
    msi_search_end(&s);
    return status;
}

/* Remove the checkpoint at `path`, unless a writer has just put it there or `latest` leads to it.
 * That is known for sure only while it is held, as no writer replaces it then. */
static ms_status retire(const char *path, const char *name, const char *root, bool *others)
{
    char nonce[MSI_NONCE_ROOM], *doomed;
    msi_pointer pointer;
    msi_hold hold;
    int fd;

    MS_TRY(msi_io_nonce(nonce));
    MS_TRY(msi_folder_hold(&fd, &hold, path));
    const bool held = hold == MSI_HOLD_OURS || hold == MSI_HOLD_NONE;
    ms_status status = held ? msi_pointer_read(&pointer, root) : MS_OK;

    if (held && status == MS_OK && strcmp(pointer.name, name) != 0) {
        doomed = msi_temporary_path(path, nonce);
        status = doomed != NULL ? msi_folder_retire(path, doomed, others) : MS_OUT_OF_MEMORY;
        free(doomed);
    }
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

/* Remove a checkpoint, warning about what cannot be removed. */
static ms_status remove_checkpoint(const char *root, const char *name)
{
    char *path = msi_io_path("%s/%s", root, name);
    bool others = false;
    ms_status status = path != NULL ? retire(path, name, root, &others) : MS_OUT_OF_MEMORY;

    if (status == MS_IO_ERROR) {
        msi_warn("UserWarning", "an old checkpoint is not removed: %s", ms_error_message());
        status = MS_OK;
    } else if (others) {
        msi_warn("UserWarning", "an old checkpoint is removed, but not what others put into %s",
                 path);
    }
    free(path);
    return status;
}

/* Remove all but the first `keep` of those up to a step. What cannot be read now is not counted,
 * and stays. */
static ms_status remove_old(const msi_listing *l, const char *root, int64_t up_to, int32_t keep)
{
    ms_status status = MS_OK;

    for (int32_t i = 0; i < l->n && status == MS_OK; i++) {
        if (l->list[i].unread || l->list[i].step > up_to) {
            continue;
        } else if (keep > 0) {
            keep--;
        } else {
            status = remove_checkpoint(root, l->list[i].name);
        }
    }
    return status;
}

/* The second is the newest of those that were not saved last. */
static ms_status tell_of_newer(const msi_listing *l, const char *root)
{
    msi_pointer pointer;

    MS_TRY(msi_pointer_read(&pointer, root));
    if (l->n > 1 && l->list[1].step > l->list[0].step &&
        strcmp(pointer.name, l->list[0].name) == 0) {
        msi_warn(
            "UserWarning",
            "%s/%s was saved last, with step %lld, though %s has step %lld: to resume is to go "
            "on from what was saved last",
            root, l->list[0].name, (long long)l->list[0].step, l->list[1].name,
            (long long)l->list[1].step);
    }
    return MS_OK;
}

/* Keep the first `keep` of the listing up to a step, and all beyond. The listing is disposed of. */
static ms_status keep_first(msi_listing *l, const char *root, int64_t up_to, int32_t keep)
{
    ms_status status = tell_of_newer(l, root);

    if (status == MS_OK) {
        status = remove_old(l, root, up_to, keep);
    }
    msi_listing_dispose(l);
    return status == MS_OK ? msi_folder_sweep(root, NULL) : status;
}

ms_status ms_checkpoint_prune(const char *root, int32_t keep)
{
    msi_listing l;

    if (keep < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "prune keeps at least 1 checkpoint, got %d", keep);
    }
    MS_TRY(msi_listing_read(&l, root, -1));
    return keep_first(&l, root, INT64_MAX, keep);
}

ms_status ms_checkpoint_rotate(const char *root, int64_t step, int32_t keep)
{
    msi_listing l;

    if (keep < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "rotate keeps at least 1 checkpoint, or all (0), got %d",
                       keep);
    }
    /* Where all stay, only those that came later are of interest: a run may have hundreds. */
    MS_TRY(msi_listing_read(&l, root, keep > 0 ? 0 : step));
    msi_listing_leave_steps(&l, root);
    for (int32_t i = 0; i < l.n; i++) {
        if (l.list[i].step == step) {
            msi_listing_move_first(&l, i);
        }
    }
    return keep_first(&l, root, step, keep > 0 ? keep : INT32_MAX);
}
