/* Making a folder of files a checkpoint. */
#include "publish.h"
#include "io.h"
#include "manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Give `folder` its final name, for good. */
static ms_status put_in_place(const char *folder, const char *root, const char *final,
                              bool *displaced)
{
    MS_TRY(msi_io_replace(folder, final, displaced));
    ms_status status = msi_io_sync_folder(root);

    if (status != MS_OK) { /* nobody knows what a power loss would leave now: undo it */
        if (*displaced) {
            msi_io_replace(folder, final, displaced);
        } else {
            rename(final, folder);
        }
    }
    return status;
}

/* Point `<root>/latest` at the checkpoint. */
static ms_status move_pointer(const char *root, const char *name, const char *nonce)
{
    char *beside = msi_io_path("%s/latest.tmp-%s", root, nonce);
    char *pointer = msi_io_path("%s/latest", root);
    ms_status status = beside != NULL && pointer != NULL ? MS_OK : MS_OUT_OF_MEMORY;

    if (status == MS_OK) {
        status = msi_io_symlink(name, beside);
    }
    if (status == MS_OK) {
        status = msi_io_rename(beside, pointer);
        if (status != MS_OK) {
            unlink(beside);
        } else {
            status = msi_io_sync_folder(root);
        }
    }
    free(beside);
    free(pointer);
    return status;
}

ms_status msi_checkpoint_publish(const char *folder, const char *root, const char *name,
                                 const char *nonce, const char *manifest)
{
    char *final = msi_io_path("%s/%s", root, name);
    bool displaced = false;
    ms_status status = MS_OUT_OF_MEMORY;

    if (final == NULL) {
        return status;
    }
    MS_TRY_GOTO(write_manifest(folder, manifest), done);
    MS_TRY_GOTO(put_in_place(folder, root, final, &displaced), done);
    /* the checkpoint is safe; what fails from here on is worth a warning */
    if (move_pointer(root, name, nonce) != MS_OK) {
        msi_warn("UserWarning", "%s is saved, but 'latest' does not point there: %s", final,
                 ms_error_message());
    }
    if (displaced && msi_io_remove_folder(folder) != MS_OK) {
        msi_warn("UserWarning", "the replaced checkpoint is left over: %s", ms_error_message());
    }
done:
    free(final);
    return status;
}
