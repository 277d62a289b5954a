/* A folder of checkpoints: which is the newest that is whole, and removing what is no longer
 * wanted. Only folders with a manifest of ours and leftovers of our own writers are ever removed.
 */
#include "store.h"
#include "io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct found {
    char *name;
    int64_t step;
} found;

typedef struct listing {
    found *list; /* whole checkpoints, newest first */
    int32_t n;
} listing;

static void listing_dispose(listing *l)
{
    for (int32_t i = 0; i < l->n; i++) {
        free(l->list[i].name);
    }
    free(l->list);
}

/* Greatest step first; equal steps by name, so that the order depends on nothing else. */
static int compare_found(const void *a, const void *b)
{
    const found *x = a, *y = b;

    if (x->step != y->step) {
        return x->step > y->step ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/* Is `name` what a writer leaves behind when it dies: <anything>.tmp-<16 hexadecimal digits>? */
static bool is_leftover(const char *name)
{
    const char *mark = strrchr(name, '.');

    return mark != NULL && strncmp(mark, ".tmp-", 5) == 0 && strlen(mark + 5) == 16 &&
           strspn(mark + 5, "0123456789abcdef") == 16;
}

/* Is it a folder itself (not a link to one), with something called a manifest in it? */
static bool is_candidate(int root, const char *name)
{
    struct stat st;
    char manifest[NAME_MAX + 32];

    if (name[0] == '.' || is_leftover(name) || fstatat(root, name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISDIR(st.st_mode)) {
        return false;
    }
    snprintf(manifest, sizeof(manifest), "%s/manifest.json", name);
    return faccessat(root, manifest, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Append a checkpoint when it opens; tell about it when it does not. */
static ms_status examine(listing *l, const char *root, const char *name)
{
    char *path = msi_io_path("%s/%s", root, name);
    ms_checkpoint *c;
    found *list;
    ms_status status;

    if (path == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    status = ms_checkpoint_open(&c, path);
    if (status != MS_OK) {
        if (status != MS_OUT_OF_MEMORY) {
            msi_warn("UserWarning", "a broken checkpoint is passed over: %s", ms_error_message());
            status = MS_OK;
        }
        free(path);
        return status;
    }
    free(path);
    list = realloc(l->list, ((size_t)l->n + 1) * sizeof(*list));
    if (list != NULL) {
        l->list = list;
        list[l->n] = (found){.name = strdup(name), .step = msi_checkpoint_step(c)};
    }
    ms_checkpoint_close(c);
    if (list == NULL || list[l->n].name == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a list of checkpoints");
    }
    l->n++;
    return MS_OK;
}

/* All whole checkpoints under `root`; none when it does not exist. */
static ms_status list_checkpoints(listing *l, const char *root)
{
    DIR *dir = opendir(root);
    ms_status status = MS_OK;

    *l = (listing){0};
    if (dir == NULL) {
        return errno == ENOENT ? MS_OK : msi_io_fail("open", root);
    }
    for (struct dirent *e = readdir(dir); e != NULL && status == MS_OK; e = readdir(dir)) {
        if (is_candidate(dirfd(dir), e->d_name)) {
            status = examine(l, root, e->d_name);
        }
    }
    closedir(dir);
    if (status == MS_OK && l->n > 1) {
        qsort(l->list, (size_t)l->n, sizeof(*l->list), compare_found);
    }
    if (status != MS_OK) {
        listing_dispose(l);
    }
    return status;
}

ms_status ms_checkpoint_latest(const char **out, const char *root)
{
    static _Thread_local char path[PATH_MAX];
    listing l;

    MS_CHECK_ARG(out != NULL && root != NULL);
    *out = NULL;
    MS_TRY(list_checkpoints(&l, root));
    if (l.n > 0) {
        int n = snprintf(path, sizeof(path), "%s/%s", root, l.list[0].name);

        if (n < (int)sizeof(path)) {
            *out = path;
        }
    }
    bool too_long = l.n > 0 && *out == NULL;

    listing_dispose(&l);
    return too_long
               ? MS_FAIL(MS_VALUE_ERROR, "the path of a checkpoint under %.200s is too long", root)
               : MS_OK;
}

/* Does a writer hold the lock on its temporary folder? */
static bool is_locked(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;

    if (fd >= 0) {
        close(fd);
    }
    return locked;
}

/* Remove folders and links that writers left when they died. */
static ms_status remove_leftovers(const char *root)
{
    DIR *dir = opendir(root);
    ms_status status = MS_OK;

    if (dir == NULL) {
        return errno == ENOENT ? MS_OK : msi_io_fail("open", root);
    }
    for (struct dirent *e = readdir(dir); e != NULL && status == MS_OK; e = readdir(dir)) {
        struct stat st;
        char *path;

        if (!is_leftover(e->d_name)) {
            continue;
        }
        path = msi_io_path("%s/%s", root, e->d_name);
        if (path == NULL) {
            status = MS_OUT_OF_MEMORY;
        } else if (lstat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
            status = msi_io_unlink(path);
        } else if (!is_locked(path)) {
            status = msi_io_remove_folder(path);
        }
        free(path);
    }
    closedir(dir);
    return status;
}

/* Remove a checkpoint: renamed first, so that it is never seen with files missing. */
static ms_status remove_checkpoint(const char *root, const char *name)
{
    char nonce[17], *path = msi_io_path("%s/%s", root, name), *doomed = NULL;
    ms_status status = path != NULL ? msi_io_nonce(nonce) : MS_OUT_OF_MEMORY;

    if (status == MS_OK) {
        doomed = msi_io_path("%s.tmp-%s", path, nonce);
        status = doomed != NULL ? msi_io_rename(path, doomed) : MS_OUT_OF_MEMORY;
    }
    if (status == MS_OK) {
        status = msi_io_remove_folder(doomed);
    }
    free(path);
    free(doomed);
    return status;
}

ms_status ms_checkpoint_prune(const char *root, int32_t keep)
{
    char pointed[NAME_MAX + 1] = "", *pointer;
    listing l;
    ms_status status = MS_OK;

    MS_CHECK_ARG(root != NULL);
    if (keep < 1) {
        return MS_FAIL(MS_VALUE_ERROR, "prune keeps at least 1 checkpoint, got %d", keep);
    }
    pointer = msi_io_path("%s/latest", root);
    if (pointer == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    ssize_t n = readlink(pointer, pointed, sizeof(pointed) - 1);

    pointed[n > 0 ? n : 0] = '\0';
    free(pointer);
    MS_TRY(list_checkpoints(&l, root));
    for (int32_t i = keep; i < l.n && status == MS_OK; i++) {
        if (strcmp(l.list[i].name, pointed) != 0) { /* what was saved last stays in any case */
            status = remove_checkpoint(root, l.list[i].name);
        }
    }
    listing_dispose(&l);
    return status == MS_OK ? remove_leftovers(root) : status;
}
