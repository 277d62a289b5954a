/* A root of checkpoints: finding the newest intact one, and removing old ones. */
#include "store.h"
#include "paths.h"
#include "reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* -- listing ----------------------------------------------------------------------------------- */

void msi_listing_dispose(msi_listing *l)
{
    for (int32_t i = 0; i < l->n; i++) {
        free(l->list[i].name);
    }
    free(l->list);
    *l = (msi_listing){0};
}

/* Greatest step first, then by name, for a fixed order. */
static int compare_found(const void *a, const void *b)
{
    const msi_found *x = a, *y = b;

    if (x->step != y->step) {
        return x->step > y->step ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/* True if `<root>/<name>` is a checkpoint, intact or broken. MS_IO_ERROR, with errno, if
 * unreadable. */
static ms_status is_candidate(bool *is, const char *root, const char *name)
{
    msi_contents contents;
    msi_path path;

    *is = false;
    if (name[0] == '.' || name[0] == '\0' || msi_is_temporary(name, NULL)) {
        return MS_OK;
    }
    MS_TRY(msi_path_set(path, "%s/%s", root, name));
    MS_TRY(msi_folder_look(&contents, path));
    *is = contents == MSI_CONTENTS_OURS;
    return MS_OK;
}

ms_status msi_listing_pass_over(msi_listing *l, const char *name)
{
    const size_t used = strlen(l->broken);
    bool is;

    MS_TRY(is_candidate(&is, l->root, name));
    if (!is) {
        l->gone = true;
        return MS_OK;
    }
    if (l->warns) {
        msi_warn("UserWarning", "a broken checkpoint is passed over: %s", ms_error_message());
    }
    snprintf(l->broken + used, sizeof(l->broken) - used, "%s%s", l->n_broken > 0 ? "; " : "",
             ms_error_message());
    l->n_broken++;
    return MS_OK;
}

static ms_status append(msi_listing *l, msi_found found)
{
    msi_found *list = realloc(l->list, ((size_t)l->n + 1) * sizeof(*list));

    if (list != NULL) {
        l->list = list;
        found.name = strdup(found.name);
        list[l->n] = found;
    }
    if (list == NULL || found.name == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a list of checkpoints");
    }
    l->n++;
    return MS_OK;
}

/* Append a checkpoint if it opens. */
static ms_status examine(msi_listing *l, const char *root, char *name)
{
    ms_checkpoint *c;
    ms_status status;
    msi_path path;

    MS_TRY(msi_path_set(path, "%s/%s", root, name));
    if (strcmp(name, "latest") == 0) { /* a copy that followed the link */
        status = MS_FAIL(MS_FORMAT_ERROR, "%s is a folder, expected a link to a checkpoint", path);
    } else {
        status = msi_checkpoint_missing(ms_checkpoint_open(&c, path));
    }
    if (status != MS_OK) {
        return status == MS_FORMAT_ERROR ? msi_listing_pass_over(l, name) : status;
    }
    const int64_t step = msi_checkpoint_manifest(c)->step;

    if (l->from < 0 || msi_folder_step(name) == step) {
        status = append(l, (msi_found){.name = name, .step = step});
    }
    ms_checkpoint_close(c);
    return status;
}

static ms_status consider(void *user, const char *root, const char *entry)
{
    const int64_t step = msi_folder_step(entry);
    char *name = (char *)(uintptr_t)entry;
    msi_listing *l = user;
    bool is;

    if (step < l->from) {
        return MS_OK;
    }
    ms_status status = is_candidate(&is, root, name);

    if (status == MS_OK && is) {
        status = examine(l, root, name);
    }
    /* an unreadable step may be intact: the caller fails */
    if (status != MS_IO_ERROR || step >= 0 || (errno != EACCES && errno != EPERM)) {
        return status;
    }
    if (l->warns) {
        msi_warn("UserWarning", "a folder that may not be opened is passed over: %s",
                 ms_error_message());
    }
    return MS_OK;
}

static void move_first(msi_listing *l, int32_t i)
{
    const msi_found found = l->list[i];

    memmove(l->list + 1, l->list, (size_t)i * sizeof(found));
    l->list[0] = found;
}

/* The last saved one is first, whatever its step: a run that went back continues from there. Warns
 * if it is lost and another one is used. */
static ms_status put_latest_first(msi_listing *l)
{
    msi_pointer latest;
    bool is = false;

    MS_TRY(msi_pointer_read(&latest, l->root));
    for (int32_t i = 0; i < l->n; i++) {
        if (strcmp(l->list[i].name, latest.name) == 0) {
            move_first(l, i);
            return MS_OK;
        }
    }
    MS_TRY(is_candidate(&is, l->root, latest.name));
    if (is && l->from >= 0 && l->warns && msi_folder_step(latest.name) < 0) {
        msi_warn("UserWarning",
                 "%s/%s, which is not named by its step, is passed over: %s is taken", l->root,
                 msi_foreign_name(latest.name), l->n > 0 ? l->list[0].name : "none");
    }
    l->lost = latest.text[0] != '\0' && !is;
    if (l->lost && l->n > 0 && l->warns) {
        msi_warn("UserWarning",
                 "%s/latest points at '%s', but no checkpoint of this folder is there: another "
                 "one is taken",
                 l->root, msi_foreign_name(latest.text));
    }
    return MS_OK;
}

ms_status msi_listing_read(msi_listing *l, const char *root, int64_t from, bool warns)
{
    *l = (msi_listing){.root = root, .from = from, .warns = warns};
    MS_TRY(msi_folder_each(root, true, consider, l));
    if (l->n > 1) {
        qsort(l->list, (size_t)l->n, sizeof(*l->list), compare_found);
    }
    return put_latest_first(l);
}

const char *msi_listing_next(msi_listing *l)
{
    return l->next < l->n ? l->list[l->next++].name : NULL;
}

ms_status msi_listing_none(const msi_listing *l)
{
    msi_pointer latest;

    if (l->n_broken > 0) {
        return MS_FAIL(MS_FORMAT_ERROR, "%s holds %d checkpoint%s, %s: %s", l->root, l->n_broken,
                       l->n_broken > 1 ? "s" : "",
                       l->n_broken > 1 ? "none of them intact" : "which is not intact", l->broken);
    }
    if (l->gone) {
        return MS_FAIL(MS_IO_ERROR, "%s: its checkpoints were removed while they were read",
                       l->root);
    }
    if (!l->lost) {
        return MS_OK;
    }
    MS_TRY(msi_pointer_read(&latest, l->root));
    return MS_FAIL(MS_FORMAT_ERROR,
                   "%s/latest points at '%s', but no checkpoint of this folder is there", l->root,
                   msi_foreign_name(latest.text));
}

/* -- the latest -------------------------------------------------------------------------------- */

static ms_status verify(const char *path)
{
    ms_checkpoint *c;

    MS_TRY(msi_checkpoint_missing(ms_checkpoint_open(&c, path)));
    const ms_status status = msi_checkpoint_missing(msi_checkpoint_verify(c, 0, 1));

    ms_checkpoint_close(c);
    return status;
}

/* Uses no group: a script may call it before starting ranks. */
ms_status ms_make_folder(const char *path)
{
    if (path == NULL || path[0] == '\0')
        return MS_FAIL(MS_VALUE_ERROR, "make_folder: the path is empty");
    return msi_io_mkdir_all(path);
}

ms_status ms_checkpoint_latest(const char **out, const char *root)
{
    static _Thread_local msi_path path;
    const char *name;
    msi_listing l;

    *out = NULL;
    ms_status status = msi_listing_read(&l, root, -1, true);

    while (status == MS_OK && *out == NULL && (name = msi_listing_next(&l)) != NULL) {
        MS_TRY_GOTO(msi_path_set(path, "%s/%s", root, name), done);
        status = verify(path);
        if (status == MS_OK) {
            *out = path;
        } else if (status == MS_FORMAT_ERROR) {
            status = msi_listing_pass_over(&l, name);
        }
    }
    if (status == MS_OK && *out == NULL) {
        status = msi_listing_none(&l);
    }
done:
    msi_listing_dispose(&l);
    return status;
}

/* -- removing ---------------------------------------------------------------------------------- */

/* Remove a checkpoint unless it is locked or `latest` points to it, which is checked under the
 * lock, when no writer can replace it. Warns about what it cannot remove. */
static ms_status remove_checkpoint(const char *root, const char *name)
{
    msi_pointer latest = {0};
    bool others = false;
    msi_path path;
    msi_lock lock;
    int fd;

    MS_TRY(msi_path_set(path, "%s/%s", root, name));
    ms_status status = msi_folder_lock(&fd, &lock, path);
    const bool locked = lock == MSI_LOCK_OURS || lock == MSI_LOCK_NONE;

    if (status == MS_OK && locked) {
        status = msi_pointer_read(&latest, root);
    }
    if (status == MS_OK && locked && strcmp(latest.name, name) != 0) {
        status = msi_folder_retire(path, path, &others);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (others) {
        msi_warn("UserWarning", "an old checkpoint is removed, but not what others put into %s",
                 path);
    }
    if (status == MS_IO_ERROR) {
        msi_warn("UserWarning", "an old checkpoint is not removed: %s", ms_error_message());
        return MS_OK;
    }
    return status;
}

/* Keep the first `keep` of the listing up to a step, and all later ones. Frees the listing. */
static ms_status keep_first(msi_listing *l, int64_t up_to, int32_t keep)
{
    const char *root = l->root;
    msi_pointer latest;
    ms_status status = msi_pointer_read(&latest, root);

    if (status == MS_OK && l->n > 1 && l->list[1].step > l->list[0].step &&
        strcmp(latest.name, l->list[0].name) == 0) {
        msi_warn(
            "UserWarning",
            "%s/%s was saved last, with step %lld, though %s has step %lld: to resume is to go "
            "on from what was saved last",
            root, l->list[0].name, (long long)l->list[0].step, l->list[1].name,
            (long long)l->list[1].step);
    }
    for (int32_t i = 0; i < l->n && status == MS_OK; i++) {
        if (l->list[i].step <= up_to && keep-- <= 0) {
            status = remove_checkpoint(root, l->list[i].name);
        }
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
    const ms_status status = msi_listing_read(&l, root, -1, false);

    if (status != MS_OK) {
        msi_listing_dispose(&l);
        return status;
    }
    return keep_first(&l, INT64_MAX, keep);
}

ms_status ms_checkpoint_rotate(const char *root, int64_t step, int32_t keep)
{
    msi_listing l;

    if (keep < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "rotate keeps at least 1 checkpoint, or all (0), got %d",
                       keep);
    }
    /* If all are kept, only later steps matter, for the warning: a run may have hundreds. */
    const ms_status status = msi_listing_read(&l, root, keep > 0 ? 0 : step, false);

    if (status != MS_OK) {
        msi_listing_dispose(&l);
        return status;
    }
    for (int32_t i = 0; i < l.n; i++) {
        if (l.list[i].step == step) {
            move_first(&l, i);
        }
    }
    return keep_first(&l, step, keep > 0 ? keep : INT32_MAX);
}
