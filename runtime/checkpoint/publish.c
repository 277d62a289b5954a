#include "publish.h"
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
    char *aside;         /* the old checkpoint, where two folders cannot be exchanged */
    char *latest, *link; /* the link, and its temporary name */
} places;

static void places_free(places *p)
{
    free(p->final);
    free(p->aside);
    free(p->latest);
    free(p->link);
}

static ms_status places_new(places *p, const char *root, const char *name, const char *nonce)
{
    *p = (places){.root = root,
                  .name = name,
                  .final = msi_io_path("%s/%s", root, name),
                  .aside = msi_io_path("%s/%s.old", root, name),
                  .latest = msi_io_path("%s/latest", root)};
    p->link = p->latest != NULL ? msi_temporary_path(p->latest, nonce) : NULL;
    if (p->final != NULL && p->aside != NULL && p->latest != NULL && p->link != NULL) {
        return MS_OK;
    }
    places_free(p);
    return MS_OUT_OF_MEMORY;
}

ms_status msi_checkpoint_check_target(const char *root, const char *name)
{
    static const char *const kinds[] = {[MSI_CONTENTS_OTHERS] = "a folder of something else",
                                        [MSI_CONTENTS_NO_FOLDER] = "no folder",
                                        [MSI_CONTENTS_LINK] = "a symbolic link"};
    char *path = msi_io_path("%s/%s", root, name);
    msi_contents contents = MSI_CONTENTS_GONE;
    ms_status status = path != NULL ? msi_folder_look(&contents, path) : MS_OUT_OF_MEMORY;

    /* a step without our files holds what others had put into it before it was pruned */
    if (status == MS_OK && contents >= MSI_CONTENTS_OTHERS &&
        (contents != MSI_CONTENTS_OTHERS || msi_folder_step(name) < 0)) {
        status =
            MS_FAIL(MS_VALUE_ERROR, "%s is %s, expected nothing there or a checkpoint to replace",
                    path, kinds[contents]);
    }
    free(path);
    return status;
}

static ms_status write_manifest(const char *folder, const char *text)
{
    char *path = msi_io_path("%s/%s", folder, MSI_MANIFEST_NAME);
    ms_status status = MS_OUT_OF_MEMORY;
    int fd = -1;

    if (path == NULL) {
        return status;
    }
    MS_TRY_GOTO(msi_io_create(&fd, path), done);
    MS_TRY_GOTO(msi_io_write(fd, path, text, (int64_t)strlen(text), 0), done);
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

/* [Note: replacing in steps] Without an exchange the old checkpoint moves to `<name>.old`, the new
 * one in, the old one to `from`. Should the process die between the first two, whoever finds
 * nothing at `to` opens `<name>.old`. */
static ms_status replace_in_steps(const char *from, const char *to, const char *aside,
                                  bool *displaced)
{
    bool others;

    MS_TRY(msi_folder_remove(aside, &others));
    MS_TRY(msi_io_rename(to, aside));
    ms_status status = msi_io_sync_parent(to);

    if (status == MS_OK) {
        status = msi_io_rename(from, to);
    }
    if (status == MS_OK) {
        *displaced = rename(aside, from) == 0;
    } else {
        rename(aside, to);
    }
    return status;
}

/* Rename `folder` to its final name. The checkpoint that was there is at `folder` afterwards, when
 * `*displaced`. */
static ms_status put_in_place(const places *p, const char *folder, bool *displaced)
{
    const ms_status status = msi_io_rename(folder, p->final);

    *displaced = false;
    if (status == MS_OK || (errno != ENOTEMPTY && errno != EEXIST)) {
        return status;
    }
    MS_TRY(msi_io_exchange(displaced, folder, p->final));
    return *displaced ? MS_OK : replace_in_steps(folder, p->final, p->aside, displaced);
}

/* Lock the checkpoint that will be replaced, so that nobody removes it as a leftover. A process
 * that removes it is soon done; one that keeps the lock does not keep this checkpoint from being
 * saved.
 */
static ms_status lock_displaced(int *fd, const char *final)
{
    msi_lock lock = MSI_LOCK_BUSY;

    for (int ms = 0; lock == MSI_LOCK_BUSY && ms < 1000; ms++) {
        if (ms > 0) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        MS_TRY(msi_folder_lock(fd, &lock, final));
    }
    return MS_OK;
}

/* Point the link `latest` at the checkpoint, unless something else than a link is there. */
static void point_latest(const places *p)
{
    const char *reason = "it is no link, and stays as it is";
    struct stat st;

    if (lstat(p->latest, &st) != 0 || S_ISLNK(st.st_mode)) {
        ms_status status = msi_io_symlink(p->name, p->link);

        if (status == MS_OK) {
            status = msi_io_rename(p->link, p->latest);
        }
        if (status == MS_OK) {
            return;
        }
        unlink(p->link);
        unlink(p->latest); /* a link to an older one would be resumed; without it, steps decide */
        reason = ms_error_message();
    }
    msi_warn("UserWarning", "%s is saved, but 'latest' does not point there: %s", p->final, reason);
}

/* Remove the checkpoint that was replaced, but not what others have put into it. */
static void remove_displaced(const char *folder, const char *final)
{
    bool others;

    if (msi_folder_remove(folder, &others) != MS_OK) {
        msi_warn("UserWarning", "the replaced checkpoint is left over: %s", ms_error_message());
    } else if (others) {
        msi_warn("UserWarning", "what others put into %s is in %s", final, folder);
    }
}

/* The checkpoint has its name. Its predecessor is removed only when that is on the disk. */
static void finish(const places *p, const char *folder, bool displaced)
{
    point_latest(p);
    if (msi_io_sync_folder(p->root) != MS_OK) {
        msi_warn("UserWarning", "%s is saved, but a power loss might undo it: %s", p->final,
                 ms_error_message());
    } else if (displaced) {
        remove_displaced(folder, p->final);
    }
}

ms_status msi_checkpoint_publish(const char *folder, const char *root, const char *name,
                                 const char *nonce, const msi_manifest_draft *draft)
{
    bool displaced = false;
    ms_status status = MS_OK;
    int locked = -1;
    places p;

    MS_TRY(places_new(&p, root, name, nonce));
    MS_TRY_GOTO(write_manifest(folder, draft->text), done);
    MS_TRY_GOTO(read_back(folder, draft), done);
    MS_TRY_GOTO(lock_displaced(&locked, p.final), done);
    MS_TRY_GOTO(put_in_place(&p, folder, &displaced), done);
    finish(&p, folder, displaced);
done:
    if (locked >= 0) {
        close(locked);
    }
    places_free(&p);
    return status;
}
