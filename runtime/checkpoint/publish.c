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

/* Take `final` back to `folder`, and what it displaced to `final`. @return true when that worked */
static bool undo(const char *folder, const char *final, const char *aside, bool displaced)
{
    return displaced ? replace(folder, final, aside, &displaced) == MS_OK
                     : rename(final, folder) == 0;
}

/* Give `folder` its final name, for good. When that cannot be made sure, nobody knows what a power
 * loss would leave: undo it. When not even that can be done the new one is there, and what it
 * displaced stays beside it. */
static ms_status put_in_place(const char *folder, const char *root, const char *final,
                              const char *aside, bool *displaced)
{
    MS_TRY(replace(folder, final, aside, displaced));
    msi_outcome failure = {0};

    msi_outcome_keep(&failure, msi_io_sync_folder(root));
    if (failure.status == MS_OK) {
        return MS_OK;
    }
    if (undo(folder, final, aside, *displaced)) {
        return MS_FAIL(failure.status, "%s", failure.message);
    }
    msi_warn("UserWarning", "%s is saved, but a power loss might undo it: %s", final,
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

/* Point the link `pointer` at the checkpoint: made as `beside`, then renamed. */
static ms_status replace_link(const char *root, const char *name, const char *beside,
                              const char *pointer)
{
    ms_status status = msi_io_symlink(name, beside);

    if (status == MS_OK) {
        status = msi_io_rename(beside, pointer);
    }
    if (status != MS_OK) {
        unlink(beside);
        unlink(pointer); /* it would have an older one resumed: without it, steps decide */
        return status;
    }
    if (msi_io_sync_folder(root) != MS_OK) {
        msi_warn("UserWarning", "%s points at '%s', but a power loss might undo it: %s", pointer,
                 name, ms_error_message());
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
    char *final = msi_io_path("%s/%s", root, name), *aside = msi_io_path("%s/%s.old", root, name);
    char *beside = msi_io_path("%s/latest.tmp-%s", root, nonce);
    char *pointer = msi_io_path("%s/latest", root);
    bool displaced = false, is_ours;
    ms_status status = MS_OUT_OF_MEMORY;
    int held = -1;

    if (final == NULL || aside == NULL || beside == NULL || pointer == NULL) {
        goto done;
    }
    MS_TRY_GOTO(write_manifest(folder, draft->text), done);
    MS_TRY_GOTO(read_back(folder, draft), done);
    MS_TRY_GOTO(hold_displaced(&held, final), done);
    /* what `latest` takes is asked for while it may fail: left as it is, it would point at an older
     * one for good */
    MS_TRY_GOTO(check_pointer(&is_ours, pointer), done);
    MS_TRY_GOTO(put_in_place(folder, root, final, aside, &displaced), done);
    /* the checkpoint is safe; what fails from here on is worth a warning */
    if (!is_ours) {
        msi_warn(
            "UserWarning",
            "%s is saved, but 'latest' does not point there: it is no link, and stays as it is",
            final);
    } else if (replace_link(root, name, beside, pointer) != MS_OK) {
        msi_warn("UserWarning", "%s is saved, but 'latest' does not point there: %s", final,
                 ms_error_message());
    }
    if (displaced) {
        remove_displaced(folder, final);
    }
done:
    if (held >= 0) {
        close(held);
    }
    free(final);
    free(aside);
    free(beside);
    free(pointer);
    return status;
}
