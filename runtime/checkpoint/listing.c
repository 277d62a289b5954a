/* Which checkpoints are under a root, whole or broken, and in which order. */
#include "listing.h"
#include "folder.h"
#include "io.h"
#include "pointer.h"
#include "reader.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void msi_listing_dispose(msi_listing *l)
{
    for (int32_t i = 0; i < l->n; i++) {
        free(l->list[i].name);
    }
    for (int32_t i = 0; i < l->n_notes; i++) {
        free(l->notes[i]);
    }
    free(l->list);
    free(l->notes);
    *l = (msi_listing){0};
}

/* Where there is no memory for a warning there is none. */
MSI_PRINTF(2, 3) static void note(msi_listing *l, const char *format, ...)
{
    char **notes = realloc(l->notes, ((size_t)l->n_notes + 1) * sizeof(*notes));
    va_list args;

    if (notes == NULL) {
        return;
    }
    l->notes = notes;
    va_start(args, format);
    l->n_notes += vasprintf(&notes[l->n_notes], format, args) >= 0;
    va_end(args);
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

/* May this be a checkpoint, whole or broken? MS_IO_ERROR, with errno, when that cannot be seen. */
static ms_status look(msi_contents *contents, const char *root, const char *name)
{
    *contents = MSI_CONTENTS_OTHERS;
    if (name[0] == '.' || name[0] == '\0' || msi_is_temporary(name, NULL)) {
        return MS_OK;
    }
    char *path = msi_io_path("%s/%s", root, name);
    const ms_status status = path != NULL ? msi_folder_look(contents, path) : MS_OUT_OF_MEMORY;
    const int error = errno;

    free(path);
    errno = error;
    return status;
}

ms_status msi_listing_pass_over(msi_listing *l, const char *root, const char *name)
{
    const size_t used = strlen(l->broken);
    msi_contents contents;

    MS_TRY(look(&contents, root, name));
    if (contents != MSI_CONTENTS_OURS) {
        l->stale = true;
        return MS_OK;
    }
    note(l, "a broken checkpoint is passed over: %s", ms_error_message());
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

/* Append a checkpoint when it opens. */
static ms_status examine(msi_listing *l, const char *root, char *name)
{
    char *path = msi_io_path("%s/%s", root, name);
    ms_checkpoint *c;
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
        return status == MS_FORMAT_ERROR ? msi_listing_pass_over(l, root, name) : status;
    }
    status = append(l, (msi_found){.name = name, .step = msi_checkpoint_manifest(c)->step});
    ms_checkpoint_close(c);
    return status;
}

/* One entry of the root. What cannot be read now may be whole: where its name says its step, it is
 * listed, and whoever comes to it fails. */
static ms_status consider(msi_listing *l, const char *root, char *name)
{
    msi_contents contents;
    ms_status status = look(&contents, root, name);
    const bool denied = status == MS_IO_ERROR && (errno == EACCES || errno == EPERM);
    const int64_t step = msi_folder_step(name);

    if (denied && step < 0) {
        if (strcmp(name, "lost+found") != 0) { /* volumes have that */
            note(l, "a folder that may not be opened is passed over: %s", ms_error_message());
        }
        return MS_OK;
    }
    if (status == MS_OK && contents == MSI_CONTENTS_OURS) {
        status = examine(l, root, name);
    }
    l->stale |= contents == MSI_CONTENTS_GONE;
    return status == MS_IO_ERROR && step >= 0
               ? append(l, (msi_found){.name = name, .step = step, .unread = true})
               : status;
}

void msi_listing_move_first(msi_listing *l, int32_t i)
{
    const msi_found found = l->list[i];

    memmove(l->list + 1, l->list, (size_t)i * sizeof(found));
    l->list[0] = found;
}

/* `latest` leads to no checkpoint of the folder: what was saved last is lost, and where there are
 * others, a run is about to go on from one of them. */
static void note_lost(msi_listing *l, const char *root, const char *text)
{
    snprintf(l->lost, sizeof(l->lost), "%s", text);
    if (l->n > 0) {
        note(l,
             "%s/latest points at '%s', but no checkpoint of this folder is there: another one is "
             "taken",
             root, msi_foreign_name(l->lost));
    }
}

/* What was saved last comes first, whatever its step: who went back to an earlier step means to go
 * on from there. `before`: where `latest` led before the entries were read. */
static ms_status put_pointed_first(msi_listing *l, const char *root, const msi_pointer *before)
{
    msi_contents contents = MSI_CONTENTS_GONE;
    msi_pointer after;

    for (int32_t i = 0; i < l->n; i++) {
        if (strcmp(l->list[i].name, before->name) == 0) {
            msi_listing_move_first(l, i);
            contents = MSI_CONTENTS_OURS;
            break;
        }
    }
    if (contents != MSI_CONTENTS_OURS) { /* it is broken, not listed, or none */
        MS_TRY(look(&contents, root, before->name));
    }
    MS_TRY(msi_pointer_read(&after, root));
    if (strcmp(before->text, after.text) != 0 || strcmp(before->name, after.name) != 0) {
        l->stale = true;
    } else if (contents != MSI_CONTENTS_OURS && after.text[0] != '\0') {
        note_lost(l, root, after.text);
    }
    return MS_OK;
}

static ms_status consider_all(msi_listing *l, DIR *dir, const char *root, int64_t from)
{
    msi_pointer pointer;
    struct dirent *e;

    MS_TRY(msi_pointer_read(&pointer, root));
    for (;;) {
        MS_TRY(msi_io_next(&e, dir, root));
        if (e == NULL) {
            break;
        }
        if (msi_folder_step(e->d_name) >= from) {
            MS_TRY(consider(l, root, e->d_name));
        }
    }
    if (l->n > 1) {
        qsort(l->list, (size_t)l->n, sizeof(*l->list), compare_found);
    }
    return put_pointed_first(l, root, &pointer);
}

ms_status msi_listing_read(msi_listing *l, const char *root, int64_t from)
{
    DIR *dir = opendir(root);

    *l = (msi_listing){0};
    if (dir == NULL) {
        return errno == ENOENT ? msi_io_absent(root) : msi_io_fail("open", root);
    }
    const ms_status status = consider_all(l, dir, root, from);

    closedir(dir);
    if (status != MS_OK) {
        msi_listing_dispose(l);
    }
    return status;
}

static bool is_named_by_step(const msi_found *found)
{
    return found->step >= 0 && msi_folder_step(found->name) == found->step;
}

void msi_listing_leave_steps(msi_listing *l, const char *root)
{
    int32_t first = 0, n = 0;

    while (first < l->n && !is_named_by_step(&l->list[first])) {
        first++;
    }
    if (first > 0) {
        note(l, "%s/%s, which is not named by its step, is passed over: %s is taken", root,
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
