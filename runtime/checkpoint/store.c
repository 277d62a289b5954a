/* A folder of checkpoints: which are whole, which is the newest intact one, and removing what is no
 * longer wanted. */
#include "store.h"
#include "folder.h"
#include "io.h"
#include "pointer.h"
#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void msi_listing_dispose(msi_listing *l)
{
    for (int32_t i = 0; i < l->n; i++) {
        free(l->list[i].name);
    }
    free(l->list);
    *l = (msi_listing){0};
}

/* Greatest step first; equal steps by name, so that the order depends on nothing else. */
static int compare_found(const void *a, const void *b)
{
    const msi_found *x = a, *y = b;

    if (x->step != y->step) {
        return x->step > y->step ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

ms_status msi_listing_pass_over(msi_listing *l, ms_status status, bool tell)
{
    const size_t used = strlen(l->broken);

    if (status != MS_FORMAT_ERROR) {
        return status;
    }
    if (tell) {
        msi_warn("UserWarning", "a broken checkpoint is passed over: %s", ms_error_message());
    }
    snprintf(l->broken + used, sizeof(l->broken) - used, "%s%s", l->n_broken > 0 ? "; " : "",
             ms_error_message());
    l->n_broken++;
    return MS_OK;
}

ms_status msi_listing_none(const msi_listing *l, const char *root)
{
    if (l->n_broken > 0) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s holds %d checkpoint%s, %s: %s", root, l->n_broken,
                       l->n_broken > 1 ? "s" : "",
                       l->n_broken > 1 ? "none of them intact" : "which is not intact", l->broken);
    }
    return l->lost[0] == '\0'
               ? MS_OK
               : MS_FAIL(MS_FORMAT_ERROR,
                         "%s/latest points at '%s', but no checkpoint of this folder is there",
                         root, msi_foreign_name(l->lost));
}

/* May this be a checkpoint, whole or broken? */
static ms_status is_candidate(bool *is, const char *root, const char *name)
{
    *is = false;
    if (name[0] == '.' || name[0] == '\0' || msi_folder_is_leftover(name)) {
        return MS_OK;
    }
    char *path = msi_io_path("%s/%s", root, name);
    const ms_status status = path != NULL ? msi_folder_holds_ours(is, path) : MS_OUT_OF_MEMORY;

    free(path);
    return status;
}

/* Append a checkpoint when it opens. */
static ms_status examine(msi_listing *l, const char *root, const char *name, bool tell)
{
    char *path = msi_io_path("%s/%s", root, name);
    ms_checkpoint *c;
    msi_found *list;
    ms_status status;

    if (path == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    if (strcmp(name, "latest") == 0) { /* a copy that followed the link is that, and no other one */
        status = MS_FAIL(MS_FORMAT_ERROR, "%s is a folder, expected a link to a checkpoint", path);
    } else {
        status = msi_checkpoint_missing(ms_checkpoint_open(&c, path));
    }
    free(path);
    if (status != MS_OK) {
        return msi_listing_pass_over(l, status, tell);
    }
    list = realloc(l->list, ((size_t)l->n + 1) * sizeof(*list));
    if (list != NULL) {
        l->list = list;
        list[l->n] = (msi_found){.name = strdup(name), .step = msi_checkpoint_manifest(c)->step};
    }
    ms_checkpoint_close(c);
    if (list == NULL || list[l->n].name == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a list of checkpoints");
    }
    l->n++;
    return MS_OK;
}

static void move_first(msi_listing *l, int32_t i)
{
    const msi_found found = l->list[i];

    memmove(l->list + 1, l->list, (size_t)i * sizeof(found));
    l->list[0] = found;
}

/* `latest` leads to no checkpoint of the folder: what was saved last is lost, and where there are
 * others, a run is about to go on from one of them. */
static void note_lost(msi_listing *l, const char *root, const char *text, bool tell)
{
    snprintf(l->lost, sizeof(l->lost), "%s", text);
    if (tell && l->n > 0) {
        msi_warn("UserWarning",
                 "%s/latest points at '%s', but no checkpoint of this folder is there: another one "
                 "is taken",
                 root, msi_foreign_name(l->lost));
    }
}

/* What was saved last comes first, whatever its step: who went back to an earlier step means to go
 * on from there. */
static ms_status put_pointed_first(msi_listing *l, const char *root, bool tell)
{
    msi_pointer pointer;
    bool is_there;

    MS_TRY(msi_pointer_read(&pointer, root));
    MS_TRY(is_candidate(&is_there, root, pointer.name));
    if (!is_there && pointer.text[0] != '\0') {
        note_lost(l, root, pointer.text, tell);
    }
    for (int32_t i = 0; i < l->n; i++) {
        if (strcmp(l->list[i].name, pointer.name) == 0) {
            move_first(l, i);
            break;
        }
    }
    return MS_OK;
}

const char *ms_checkpoint_step_name(int64_t step)
{
    static _Thread_local char name[32];

    snprintf(name, sizeof(name), "step-%08lld", (long long)step);
    return name;
}

/* The step that a checkpoint of this name is called by, -1 when it is called otherwise. */
static int64_t step_of(const char *name)
{
    const int64_t step = strncmp(name, "step-", 5) == 0 ? strtoll(name + 5, NULL, 10) : -1;

    return step >= 0 && strcmp(name, ms_checkpoint_step_name(step)) == 0 ? step : -1;
}

/* As msi_listing_read(), of those alone that are called by a step from `from` on; -1: all. */
static ms_status read_from(msi_listing *l, const char *root, int64_t from, bool tell)
{
    DIR *dir = opendir(root);
    ms_status status = MS_OK;
    struct dirent *e;

    *l = (msi_listing){0};
    if (dir == NULL) {
        return errno == ENOENT ? msi_io_absent(root) : msi_io_fail("open", root);
    }
    while (status == MS_OK && (status = msi_io_next(&e, dir, root)) == MS_OK && e != NULL) {
        bool is;

        if (step_of(e->d_name) < from) {
            continue;
        }
        status = is_candidate(&is, root, e->d_name);
        if (status == MS_OK && is) {
            status = examine(l, root, e->d_name, tell);
        }
    }
    closedir(dir);
    if (l->n > 1) {
        qsort(l->list, (size_t)l->n, sizeof(*l->list), compare_found);
    }
    if (status == MS_OK) {
        status = put_pointed_first(l, root, tell);
    }
    if (status != MS_OK) {
        msi_listing_dispose(l);
    }
    return status;
}

ms_status msi_listing_read(msi_listing *l, const char *root, bool tell)
{
    return read_from(l, root, -1, tell);
}

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
    ms_status status = MS_OK;
    msi_listing l;

    *out = NULL;
    MS_TRY(msi_listing_read(&l, root, true));
    for (int32_t i = 0; i < l.n && *out == NULL && status == MS_OK; i++) {
        if (snprintf(path, sizeof(path), "%s/%s", root, l.list[i].name) >= (int)sizeof(path)) {
            status =
                MS_FAIL(MS_VALUE_ERROR, "the path of a checkpoint under %.200s is too long", root);
            break;
        }
        status = verify(path);
        if (status == MS_OK) {
            *out = path;
        } else {
            status = msi_listing_pass_over(&l, status, true);
        }
    }
    if (status == MS_OK && *out == NULL) {
        status = msi_listing_none(&l, root);
    }
    msi_listing_dispose(&l);
    return status;
}

/* Remove the checkpoint at `path`, unless a writer has just put it there or `latest` leads to it.
 * That is known for sure only while it is held, as no writer replaces it then. */
static ms_status retire(const char *path, const char *name, const char *root, bool *others)
{
    char nonce[17], *doomed;
    msi_pointer pointer;
    msi_hold hold;
    int fd;

    MS_TRY(msi_io_nonce(nonce));
    MS_TRY(msi_folder_hold(&fd, &hold, path));
    const bool held = hold == MSI_HOLD_OURS || hold == MSI_HOLD_NONE;
    ms_status status = held ? msi_pointer_read(&pointer, root) : MS_OK;

    if (held && status == MS_OK && strcmp(pointer.name, name) != 0) {
        doomed = msi_io_path("%s.tmp-%s", path, nonce);
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

/* Remove all but the first `keep` of those up to a step. */
static ms_status remove_old(const msi_listing *l, const char *root, int64_t up_to, int32_t keep)
{
    ms_status status = MS_OK;

    for (int32_t i = 0; i < l->n && status == MS_OK; i++) {
        if (l->list[i].step > up_to) {
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
    MS_TRY(msi_listing_read(&l, root, false));
    return keep_first(&l, root, INT64_MAX, keep);
}

static bool is_named_by_step(const msi_found *found)
{
    return found->step >= 0 && step_of(found->name) == found->step;
}

void msi_listing_leave_steps(msi_listing *l, const char *root, bool tell)
{
    int32_t first = 0, n = 0;

    while (first < l->n && !is_named_by_step(&l->list[first])) {
        first++;
    }
    if (tell && first > 0) {
        msi_warn("UserWarning",
                 "%s/%s, which is not named by its step, is passed over: %s is taken", root,
                 msi_foreign_name(l->list[0].name), first < l->n ? l->list[first].name : "none");
    }
    for (int32_t i = 0; i < l->n; i++) {
        if (is_named_by_step(&l->list[i])) {
            l->list[n++] = l->list[i];
        } else {
            free(l->list[i].name);
        }
    }
    l->n = n;
}

ms_status ms_checkpoint_rotate(const char *root, int64_t step, int32_t keep)
{
    msi_listing l;

    if (keep < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "rotate keeps at least 1 checkpoint, or all (0), got %d",
                       keep);
    }
    /* Where all stay, only those that came later are of interest: a run may have hundreds. */
    MS_TRY(read_from(&l, root, keep > 0 ? 0 : step, false));
    msi_listing_leave_steps(&l, root, false);
    for (int32_t i = 0; i < l.n; i++) {
        if (l.list[i].step == step) {
            move_first(&l, i);
        }
    }
    return keep_first(&l, root, step, keep > 0 ? keep : INT32_MAX);
}
