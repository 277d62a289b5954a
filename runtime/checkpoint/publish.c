/* Making a folder of files a checkpoint. */
#include "publish.h"
#include "folder.h"
#include "io.h"
#include "outcome.h"
#include "reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Where a checkpoint goes. */
typedef struct places {
    const char *root, *name;
    char *final;
    char *aside;            /* what is displaced, while it is replaced in steps */
    char *pointer, *beside; /* the link to the newest, and as what it is made */
} places;

static void places_free(places *p)
{
    free(p->final);
    free(p->aside);
    free(p->pointer);
    free(p->beside);
}

static ms_status places_new(places *p, const char *root, const char *name, const char *nonce)
{
    *p = (places){.root = root,
                  .name = name,
                  .final = msi_io_path("%s/%s", root, name),
                  .aside = msi_io_path("%s/%s.old", root, name),
                  .pointer = msi_io_path("%s/latest", root)};
    p->beside = p->pointer != NULL ? msi_temporary_path(p->pointer, nonce) : NULL;
    if (p->final != NULL && p->aside != NULL && p->pointer != NULL && p->beside != NULL) {
        return MS_OK;
    }
    places_free(p);
    return MS_OUT_OF_MEMORY;
}

/* Is nothing at all at `path`? */
static bool is_free(const char *path)
{
    struct stat st;

    return lstat(path, &st) != 0 && errno == ENOENT;
}

static ms_status check_target(const char *path, const char *manifest, const char *name)
{
    struct stat st;

    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? MS_OK : msi_io_fail("stat", path);
    }
    if (S_ISDIR(st.st_mode)) {
        msi_contents contents;
        bool empty;

        MS_TRY(msi_folder_look(&contents, path)); /* one that may not be opened stays */
        /* in a step without a manifest is what others had put into it before it was pruned */
        if (msi_folder_step(name) >= 0 || access(manifest, F_OK) == 0) {
            return MS_OK;
        }
        if (errno != ENOENT) {
            return msi_io_fail("look for", manifest);
        }
        const ms_status status = msi_io_is_empty(&empty, path);

        if (status != MS_OK ? errno == ENOENT : empty) {
            return MS_OK;
        }
        MS_TRY(status);
    }
    if (is_free(path)) { /* somebody has pruned it meanwhile */
        return MS_OK;
    }
    return MS_FAIL(MS_VALUE_ERROR, "%s is %s, expected nothing there or a checkpoint to replace",
                   path,
                   S_ISLNK(st.st_mode)   ? "a symbolic link"
                   : S_ISDIR(st.st_mode) ? "a folder of something else"
                                         : "no folder");
}

ms_status msi_checkpoint_check_target(const char *root, const char *name)
{
    char *path = msi_io_path("%s/%s", root, name);
    char *manifest = msi_io_path("%s/%s/%s", root, name, MSI_MANIFEST_NAME);
    ms_status status =
        path != NULL && manifest != NULL ? check_target(path, manifest, name) : MS_OUT_OF_MEMORY;

    free(path);
    free(manifest);
    return status;
}

static ms_status write_manifest(const char *folder, const char *manifest)
{
    char *path = msi_io_path("%s/%s", folder, MSI_MANIFEST_NAME);
    ms_status status = MS_OUT_OF_MEMORY;
    int fd = -1;

    if (path == NULL) {
        return status;
    }
    MS_TRY_GOTO(msi_io_create(&fd, path), done);
    MS_TRY_GOTO(msi_io_write(fd, path, manifest, (int64_t)strlen(manifest), 0), done);
    MS_TRY_GOTO(msi_io_sync(fd, path), done);
    status = msi_io_sync_folder(folder);
done:
    if (fd >= 0) {
        close(fd);
    }
    free(path);
    return status;
}

/* See the folder as a reader will: every file there with its size, the manifest what was meant. */
static ms_status read_back(const char *folder, const msi_manifest_draft *draft)
{
    ms_checkpoint *c;

    MS_TRY(ms_checkpoint_open(&c, folder));
    ms_status status = msi_manifest_compare(msi_checkpoint_manifest(c), folder, draft);

    ms_checkpoint_close(c);
    return status;
}

/* [Note: replacing in steps] Without an exchange the old one moves aside to `<to>.old`, the new one
 * in, the old one to `from`. Should the process die between the first two, whoever finds nothing at
 * `to` looks aside. So what is aside goes only when there is something at `to`. */
static ms_status replace_in_steps(const char *from, const char *to, const char *aside,
                                  bool *displaced)
{
    bool moved = false, others;

    if (!is_free(to)) {
        MS_TRY(msi_folder_remove(aside, &others));
        MS_TRY(msi_io_rename(to, aside));
        moved = true;
    }
    ms_status status = moved ? msi_io_sync_parent(to) : MS_OK;

    if (status == MS_OK) {
        status = msi_io_rename(from, to);
    }
    if (status == MS_OK) {
        *displaced = rename(aside, from) == 0;
    } else if (moved) {
        rename(aside, to);
    }
    return status;
}

/* Put `from` in the place of `to`. What was there is at `from` afterwards, `*displaced` tells. In
 * one step where the file system can. */
static ms_status replace(const char *from, const char *to, const char *aside, bool *displaced)
{
    msi_renamed renamed;

    *displaced = false;
    MS_TRY(msi_io_rename_new(&renamed, from, to));
    if (renamed == MSI_RENAME_TAKEN) {
        MS_TRY(msi_io_exchange(&renamed, from, to));
        *displaced = renamed == MSI_RENAMED;
    }
    return renamed == MSI_RENAMED ? MS_OK : replace_in_steps(from, to, aside, displaced);
}

/* Hold the checkpoint that will be replaced: it must not be taken for a leftover while it may have
 * to come back. Somebody who is removing it is soon done; whoever holds it for longer does not keep
 * this one from being saved. `*fd` holds it, -1: none. */
static ms_status hold_displaced(int *fd, const char *final)
{
    msi_hold hold = MSI_HOLD_OTHERS;

    for (int ms = 0; hold == MSI_HOLD_OTHERS && ms < 1000; ms++) {
        if (ms > 0) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        MS_TRY(msi_folder_hold(fd, &hold, final));
    }
    return MS_OK;
}

/* Take the final one back to `folder`, and what it displaced to its place. @return true when that
 * worked */
static bool undo(const places *p, const char *folder, bool displaced)
{
    return displaced ? replace(folder, p->final, p->aside, &displaced) == MS_OK
                     : rename(p->final, folder) == 0;
}

/* Give `folder` its final name, for good. When that cannot be made sure, nobody knows what a power
 * loss would leave: undo it. When not even that can be done the new one is there, and what it
 * displaced stays beside it. */
static ms_status put_in_place(const places *p, const char *folder, bool *displaced)
{
    MS_TRY(replace(folder, p->final, p->aside, displaced));
    msi_outcome failure = {0};

    msi_outcome_keep(&failure, msi_io_sync_folder(p->root));
    if (failure.status == MS_OK) {
        return MS_OK;
    }
    if (undo(p, folder, *displaced)) {
        return MS_FAIL(failure.status, "%s", failure.message);
    }
    msi_warn("UserWarning", "%s is saved, but a power loss might undo it: %s", p->final,
             failure.message);
    *displaced = false;
    return MS_OK;
}

/* May a link be put at `pointer`: is one there, or nothing? */
static ms_status check_pointer(bool *is_ours, const char *pointer)
{
    struct stat st;
    const bool there = lstat(pointer, &st) == 0;

    *is_ours = !there || S_ISLNK(st.st_mode);
    return there || errno == ENOENT ? MS_OK : msi_io_fail("stat", pointer);
}

/* Point the link at the checkpoint. */
static ms_status replace_link(const places *p)
{
    ms_status status = msi_io_symlink(p->name, p->beside);

    if (status == MS_OK) {
        status = msi_io_rename(p->beside, p->pointer);
    }
    if (status != MS_OK) {
        unlink(p->beside);
        unlink(p->pointer); /* it would have an older one resumed: without it, steps decide */
        return status;
    }
    if (msi_io_sync_folder(p->root) != MS_OK) {
        msi_warn("UserWarning", "%s points at '%s', but a power loss might undo it: %s", p->pointer,
                 p->name, ms_error_message());
    }
    return MS_OK;
}

/* The checkpoint whose place was taken is removed; what others have put into it is not. */
static void remove_displaced(const char *folder, const char *final)
{
    bool others;

    if (msi_folder_remove(folder, &others) != MS_OK) {
        msi_warn("UserWarning", "the replaced checkpoint is left over: %s", ms_error_message());
    } else if (others) {
        msi_warn("UserWarning", "what others put into %s is in %s", final, folder);
    }
}

ms_status msi_checkpoint_publish(const char *folder, const char *root, const char *name,
                                 const char *nonce, const msi_manifest_draft *draft)
{
    bool displaced = false, is_ours;
    ms_status status = MS_OK;
    int held = -1;
    places p;

    MS_TRY(places_new(&p, root, name, nonce));
    MS_TRY_GOTO(write_manifest(folder, draft->text), done);
    MS_TRY_GOTO(read_back(folder, draft), done);
    MS_TRY_GOTO(hold_displaced(&held, p.final), done);
    /* what `latest` takes is asked for while it may fail: left as it is, it would point at an older
     * one for good */
    MS_TRY_GOTO(check_pointer(&is_ours, p.pointer), done);
    MS_TRY_GOTO(put_in_place(&p, folder, &displaced), done);
    /* the checkpoint is safe; what fails from here on is worth a warning */
    if (!is_ours) {
        msi_warn(
            "UserWarning",
            "%s is saved, but 'latest' does not point there: it is no link, and stays as it is",
            p.final);
    } else if (replace_link(&p) != MS_OK) {
        msi_warn("UserWarning", "%s is saved, but 'latest' does not point there: %s", p.final,
                 ms_error_message());
    }
    if (displaced) {
        remove_displaced(folder, p.final);
    }
done:
    if (held >= 0) {
        close(held);
    }
    places_free(&p);
    return status;
}
