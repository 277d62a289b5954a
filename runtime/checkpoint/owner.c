/* Checkpoints bear the mark of the group that writes them: a temporary folder in its name, a
 * manifest in its nonce. */
#include "owner.h"
#include "folder.h"
#include "io.h"
#include "manifest.h"
#include "pointer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Digits of a mark. The least rank of the members can be told; another group may have it, too. */
enum { JOB_DIGITS = 6, RANK_DIGITS = 2, MEMBERS_DIGITS = 4 };
_Static_assert(JOB_DIGITS + RANK_DIGITS + MEMBERS_DIGITS + 1 == MSI_OWNER_ROOM, "a mark");
_Static_assert(MS_MAX_RANKS <= 1 << 4 * RANK_DIGITS, "a rank has so many digits");

/* The members' ranks in the job, of more than eight the first six and the last. */
static void write_ranks(char *ranks, const ms_comm *comm)
{
    const int32_t n = ms_comm_size(comm), shown = n > 8 ? 6 : n;
    int at = 0;

    for (int32_t q = 0; q < shown; q++) {
        at += snprintf(ranks + at, (size_t)(MSI_OWNER_RANKS - at), "%s%d", q > 0 ? ", " : "",
                       (int)msi_comm_rank_in_job(comm, q));
    }
    if (shown < n) {
        snprintf(ranks + at, (size_t)(MSI_OWNER_RANKS - at), ", ..., %d",
                 (int)msi_comm_rank_in_job(comm, n - 1));
    }
}

msi_owner msi_owner_of(const ms_comm *comm)
{
    uint64_t members = 0;
    msi_owner owner;

    for (int32_t q = 0; q < ms_comm_size(comm); q++) {
        const uint64_t link[2] = {members, (uint64_t)msi_comm_rank_in_job(comm, q)};

        members = ms_hash_bytes(link, sizeof(link));
    }
    snprintf(owner.mark, sizeof(owner.mark), "%06x%02x%04x",
             (unsigned)(msi_comm_job_number(comm) >> 40), (unsigned)msi_comm_first_in_job(comm),
             (unsigned)(members >> 48));
    write_ranks(owner.ranks, comm);
    return owner;
}

static bool is_of_another(const char *nonce, const char *mark)
{
    return strncmp(nonce, mark, JOB_DIGITS) == 0 &&
           strncmp(nonce + JOB_DIGITS, mark + JOB_DIGITS, RANK_DIGITS + MEMBERS_DIGITS) != 0;
}

static int rank_of(const char *mark)
{
    char digits[RANK_DIGITS + 1] = {0};

    memcpy(digits, mark + JOB_DIGITS, RANK_DIGITS);
    return (int)strtol(digits, NULL, 16);
}

static ms_status refuse(const char *does, const char *root, const char *name, const char *nonce,
                        const msi_owner *asks)
{
    return MS_FAIL(MS_VALUE_ERROR,
                   "another group of this job, whose least rank is %d, %s checkpoint '%s/%s': "
                   "give this one, of ranks %s, a %s of its own",
                   rank_of(nonce), does, root, name, asks->ranks,
                   msi_folder_step(name) >= 0 ? "root" : "path");
}

/* Refuse to share with the writer of `<root>/<name>`, if it holds what has this nonce there. */
static ms_status check_writer(const char *root, const char *name, const char *nonce,
                              const msi_owner *asks)
{
    int fd = -1;
    msi_hold hold;

    if (!is_of_another(nonce, asks->mark)) {
        return MS_OK;
    }
    char *place = msi_io_path("%s/%s", root, name);
    char *path = place != NULL ? msi_temporary_path(place, nonce) : NULL;
    const ms_status status = path != NULL ? msi_folder_hold(&fd, &hold, path) : MS_OUT_OF_MEMORY;

    if (fd >= 0) {
        close(fd);
    }
    free(path);
    free(place);
    MS_TRY(status);
    return hold == MSI_HOLD_OTHERS ? refuse("is writing", root, name, nonce, asks) : MS_OK;
}

/* The nonce of who has saved `<root>/<name>`; "": nobody can tell. */
static ms_status read_nonce(char *nonce, const char *root, const char *name)
{
    char head[MSI_MANIFEST_HEAD], *path = msi_io_path("%s/%s/%s", root, name, MSI_MANIFEST_NAME);

    if (path == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? pread(fd, head, sizeof(head) - 1, 0) : 0;

    head[n > 0 ? n : 0] = '\0';
    if (fd >= 0) {
        close(fd);
    }
    free(path);
    msi_manifest_nonce(nonce, head);
    return MS_OK;
}

/* Refuse to share with who has saved `<root>/<name>`. */
static ms_status check_saved(const char *root, const char *name, const msi_owner *asks)
{
    char nonce[MSI_NONCE_ROOM];

    MS_TRY(read_nonce(nonce, root, name));
    return is_of_another(nonce, asks->mark) ? refuse("has saved", root, name, nonce, asks) : MS_OK;
}

/* Does every step count where `name` is asked for? */
static bool is_any_step(const char *name)
{
    return name == NULL || msi_folder_step(name) >= 0;
}

/* Is the checkpoint `other` one that counts where `name` is asked for? */
static bool counts(const char *other, const char *name)
{
    return is_any_step(name) ? msi_folder_step(other) >= 0 : strcmp(other, name) == 0;
}

/* Look at one entry of the root, if it is of a writer (or, `saved`, if it is a checkpoint). */
static ms_status check_entry(const char *root, const char *entry, const char *name,
                             const msi_owner *asks, bool saved)
{
    const char *nonce;
    size_t n = strlen(entry);
    const bool writes = msi_temporary_name_read(entry, &n, &nonce);
    char other[NAME_MAX + 1];

    if (writes == saved) {
        return MS_OK;
    }
    snprintf(other, sizeof(other), "%.*s", (int)n, entry);
    if (!counts(other, name)) {
        return MS_OK;
    }
    return writes ? check_writer(root, other, nonce, asks) : check_saved(root, other, asks);
}

/* Has the group itself saved the step that `latest` leads to? Then all steps of its job there are
 * its own: who would have saved another was refused. */
static ms_status is_last_ours(bool *ours, const char *root, const msi_owner *asks)
{
    char nonce[MSI_NONCE_ROOM];
    msi_pointer last;
    ms_status status = msi_pointer_read(&last, root);

    *ours = false;
    if (status == MS_OK && msi_folder_step(last.name) >= 0) {
        status = read_nonce(nonce, root, last.name);
        *ours = status == MS_OK && strncmp(nonce, asks->mark, strlen(asks->mark)) == 0;
    }
    return status == MS_IO_ERROR ? MS_OK
                                 : status; /* a link that cannot be followed tells nothing */
}

static ms_status check_entries(const char *root, const char *name, const msi_owner *asks,
                               bool saved)
{
    DIR *dir = opendir(root);
    ms_status status = MS_OK;
    struct dirent *e;

    if (dir == NULL) {
        return errno == ENOENT ? MS_OK : msi_io_fail("open", root);
    }
    while (status == MS_OK && (status = msi_io_next(&e, dir, root)) == MS_OK && e != NULL) {
        status = check_entry(root, e->d_name, name, asks, saved);
    }
    closedir(dir);
    return status;
}

ms_status msi_owner_check(const char *root, const char *name, const msi_owner *asks)
{
    bool ours = false;

    /* In this order: a writer that publishes between the two is seen by the second. */
    MS_TRY(check_entries(root, name, asks, false));
    if (is_any_step(name)) { /* of which a run may have thousands */
        MS_TRY(is_last_ours(&ours, root, asks));
    }
    return ours ? MS_OK : check_entries(root, name, asks, true);
}
