#include "publish.h"
#include "reader.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

ms_status msi_checkpoint_check_target(const char *root, const char *name)
{
    static const char *const kinds[] = {[MSI_CONTENTS_OTHERS] = "a folder of something else",
                                        [MSI_CONTENTS_NO_FOLDER] = "no folder",
                                        [MSI_CONTENTS_LINK] = "a symbolic link"};
    msi_contents contents;
    msi_path path;

    MS_TRY(msi_path_set(path, "%s/%s", root, name));
    MS_TRY(msi_folder_look(&contents, path));
    /* a step's folder without our files has what others added before a prune */
    if (contents < MSI_CONTENTS_OTHERS ||
        (contents == MSI_CONTENTS_OTHERS && msi_folder_step(name) >= 0)) {
        return MS_OK;
    }
    return MS_FAIL(MS_VALUE_ERROR, "%s is %s, expected nothing there or a checkpoint to replace",
                   path, kinds[contents]);
}

static ms_status write_manifest(const char *folder, const char *text)
{
    msi_path path;
    int fd;

    MS_TRY(msi_path_set(path, "%s/%s", folder, MSI_MANIFEST_NAME));
    MS_TRY(msi_io_create(&fd, path));
    ms_status status = msi_io_write(fd, path, text, (int64_t)strlen(text), 0);

    if (status == MS_OK) {
        status = msi_io_sync(fd, path);
    }
    close(fd);
    return status == MS_OK ? msi_io_sync_folder(folder) : status;
}

/* Open as a reader: files with their sizes, and the expected manifest. */
static ms_status read_back(const char *folder, const msi_manifest_draft *draft)
{
    ms_checkpoint *c;

    MS_TRY(ms_checkpoint_open(&c, folder));
    ms_status status = msi_manifest_compare(msi_checkpoint_manifest(c), folder, draft);

    ms_checkpoint_close(c);
    return status;
}

/* [Note: replacing in steps] Without an atomic exchange the old checkpoint moves to `<name>.old`,
 * the new one in, the old one to `from`. If the process dies after the first step, a reader that
 * finds nothing at `to` opens `<name>.old`. */
static ms_status replace_in_steps(const char *from, const char *to, bool *displaced)
{
    msi_path aside;
    bool others;

    MS_TRY(msi_path_set(aside, "%s.old", to));
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

/* Rename `folder` to its final name. If `*displaced`, the old checkpoint is then at `folder`. */
static ms_status put_in_place(const char *folder, const char *final, bool *displaced)
{
    const ms_status status = msi_io_rename(folder, final);

    *displaced = false;
    if (status == MS_OK || (errno != ENOTEMPTY && errno != EEXIST)) {
        return status;
    }
    MS_TRY(msi_io_exchange(displaced, folder, final));
    return *displaced ? MS_OK : replace_in_steps(folder, final, displaced);
}

/* Lock the checkpoint to be replaced, so that it is not swept as a leftover. A process that removes
 * it finishes soon; a process that keeps its lock does not prevent this save. */
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

static ms_status replace_link(const char *name, const char *link, const char *latest)
{
    ms_status status = msi_io_symlink(name, link);

    if (status == MS_OK) {
        status = msi_io_rename(link, latest);
    }
    if (status != MS_OK) {
        unlink(link);
        unlink(latest); /* resume would follow a link to an older one; without it, steps decide */
    }
    return status;
}

/* Set the link `latest`, unless something else has that name. */
static ms_status point_latest(const char *root, const char *name, const char *nonce)
{
    msi_path latest, link;
    struct stat st;

    MS_TRY(msi_path_set(latest, "%s/latest", root));
    MS_TRY(msi_temporary_path(link, latest, nonce));
    return lstat(latest, &st) == 0 && !S_ISLNK(st.st_mode)
               ? MS_FAIL(MS_VALUE_ERROR, "it is no link, and stays as it is")
               : replace_link(name, link, latest);
}

/* Remove the replaced checkpoint, except for foreign files. */
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
    bool displaced = false;
    msi_path final;
    int locked = -1;

    MS_TRY(msi_path_set(final, "%s/%s", root, name));
    MS_TRY(write_manifest(folder, draft->text));
    MS_TRY(read_back(folder, draft));
    ms_status status = lock_displaced(&locked, final);

    if (status == MS_OK) {
        status = put_in_place(folder, final, &displaced);
    }
    if (status == MS_OK && point_latest(root, name, nonce) != MS_OK) {
        msi_warn("UserWarning", "%s is saved, but 'latest' does not point there: %s", final,
                 ms_error_message());
    }
    if (status == MS_OK && msi_io_sync_folder(root) != MS_OK) {
        msi_warn("UserWarning", "%s is saved, but a power loss might undo it: %s", final,
                 ms_error_message());
        displaced = false; /* keep it until the new one is on disk */
    }
    if (displaced) {
        remove_displaced(folder, final);
    }
    if (locked >= 0) {
        close(locked);
    }
    return status;
}
