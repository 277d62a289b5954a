/* Where the link `latest` leads. Writers give it a plain name; people move it by hand, with a slash
 * behind the name, from another place, through another link. */
#include "pointer.h"
#include "io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the link says; nothing where no link is. */
static ms_status read_text(msi_pointer *p, const char *link)
{
    const ssize_t n = readlink(link, p->text, sizeof(p->text) - 1);

    return n >= 0 || errno == ENOENT || errno == EINVAL ? MS_OK : msi_io_fail("read", link);
}

/* Are both paths those of one folder? One that is gone is none. */
static ms_status is_same_folder(bool *same, const char *a, const char *b)
{
    struct stat of_a, of_b;

    *same = false;
    if (stat(a, &of_a) != 0) {
        return errno == ENOENT ? MS_OK : msi_io_fail("stat", a);
    }
    if (stat(b, &of_b) != 0) {
        return errno == ENOENT ? MS_OK : msi_io_fail("stat", b);
    }
    *same = of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
    return MS_OK;
}

/* The name by which `link` reaches into `root`. */
static ms_status follow(msi_pointer *p, const char *link, const char *root)
{
    char *target = realpath(link, NULL);

    if (target == NULL) {
        const bool nowhere =
            errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENAMETOOLONG;

        return nowhere ? MS_OK : msi_io_fail("follow", link);
    }
    char *name = strrchr(target, '/') + 1;
    char *parent = msi_io_parent(target);
    bool is_here = false;
    const ms_status status =
        parent != NULL ? is_same_folder(&is_here, parent, root) : MS_OUT_OF_MEMORY;

    if (is_here) {
        snprintf(p->name, sizeof(p->name), "%s", name);
    }

    free(parent);
    free(target);
    return status;
}

ms_status msi_pointer_read(msi_pointer *p, const char *root)
{
    char *link = msi_io_path("%s/latest", root);

    *p = (msi_pointer){0};
    ms_status status = link != NULL ? read_text(p, link) : MS_OUT_OF_MEMORY;

    if (status == MS_OK && p->text[0] != '\0') {
        status = follow(p, link, root);
    }
    free(link);
    return status;
}
