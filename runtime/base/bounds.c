/* Available memory and its limits: allocating beyond them wakes the OOM killer, or raises a signal,
 * instead of failing. */
#include "bounds.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATH_BYTES = 512 };

/* -- numbers in files -------------------------------------------------------------------------- */

static FILE *open_under(const char *root, const char *folder, const char *name)
{
    char path[2 * PATH_BYTES];

    return (size_t)snprintf(path, sizeof(path), "%s%s%s", root, folder, name) < sizeof(path)
               ? fopen(path, "re")
               : NULL;
}

/* The number after `key` and blanks, or the file's first number if `key` is empty. INT64_MAX for no
 * number ("max") and for one above INT64_MAX / 2, which means unlimited. */
static int64_t number_in(const char *root, const char *folder, const char *name, const char *key)
{
    FILE *file = open_under(root, folder, name);
    int64_t value = INT64_MAX;
    size_t n = strlen(key);
    char line[128];

    if (file == NULL) {
        return value;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, n) == 0 && (n == 0 || line[n] == ' ' || line[n] == ':')) {
            if (sscanf(line + n + (line[n] == ':'), " %" SCNd64, &value) != 1 ||
                value > INT64_MAX / 2) {
                value = INT64_MAX;
            }
            break;
        }
    }
    fclose(file);
    return value;
}

static int64_t or_none(int64_t number)
{
    return number == INT64_MAX ? 0 : number;
}

/* -- this host, and the control groups (version 2) this process is in -------------------------- */

static const char mount[] = "/sys/fs/cgroup";

/* Memory left under the limit of the group in `folder` (with a final slash). */
static msi_bound bound_of_group(const char *root, const char *folder)
{
    int64_t limit = number_in(root, folder, "memory.max", "");

    if (limit == INT64_MAX) {
        return (msi_bound){.left = INT64_MAX};
    }
    /* the cache is reclaimed when memory is short */
    int64_t cache = or_none(number_in(root, folder, "memory.stat", "inactive_file"));
    int64_t left = limit - or_none(number_in(root, folder, "memory.current", "")) + cache;

    return (msi_bound){.kind = MSI_BOUND_CGROUP, .left = left > 0 ? left : 0, .limit = limit};
}

/* Limits include nested groups: check every level up to the mount, where a container's limit is.
 * `line` is "0::/group". */
static msi_bound bound_of_groups(const char *root, char *line)
{
    msi_bound tightest = {.left = INT64_MAX};
    char folder[PATH_BYTES];

    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "0::", 3) != 0 ||
        (size_t)snprintf(folder, sizeof(folder), "%s%s/", mount, line + 3) >= sizeof(folder)) {
        return tightest;
    }
    for (size_t n = strlen(folder); n >= sizeof(mount); n--) {
        if (folder[n - 1] == '/') {
            folder[n] = '\0';
            msi_bound b = bound_of_group(root, folder);

            tightest = b.left < tightest.left ? b : tightest;
        }
    }
    return tightest;
}

msi_bound msi_memory_left(const char *root)
{
    int64_t available = number_in(root, "/proc/", "meminfo", "MemAvailable");
    int64_t swap = 1024 * or_none(number_in(root, "/proc/", "meminfo", "SwapFree"));
    msi_bound tightest = {.left = INT64_MAX};
    char line[PATH_BYTES];

    if (available != INT64_MAX) {
        tightest = (msi_bound){.kind = MSI_BOUND_HOST, .left = 1024 * available + swap};
    }
    FILE *groups = open_under(root, "/proc/self/", "cgroup");

    if (groups == NULL) {
        return tightest;
    }
    while (fgets(line, sizeof(line), groups) != NULL) {
        msi_bound b = bound_of_groups(root, line);

        tightest = b.left < tightest.left ? b : tightest;
    }
    fclose(groups);
    return tightest;
}

/* -- limits of this process -------------------------------------------------------------------- */

msi_bound msi_file_size_left(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= INT64_MAX) {
        return (msi_bound){.left = INT64_MAX};
    }
    return (msi_bound){.kind = MSI_BOUND_FILE_SIZE,
                       .left = (int64_t)limit.rlim_cur,
                       .limit = (int64_t)limit.rlim_cur};
}

/* Address space taken, in pages. Allocates nothing: there may be no memory. */
static int64_t pages_mapped(void)
{
    char text[128] = "";
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return 0;
    }
    ssize_t n = read(fd, text, sizeof(text) - 1);

    close(fd);
    return n > 0 ? strtoll(text, NULL, 10) : 0;
}

msi_bound msi_address_space_left(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= INT64_MAX) {
        return (msi_bound){.left = INT64_MAX};
    }
    int64_t left = (int64_t)limit.rlim_cur - pages_mapped() * sysconf(_SC_PAGESIZE);

    return (msi_bound){.kind = MSI_BOUND_ADDRESS_SPACE,
                       .left = left > 0 ? left : 0,
                       .limit = (int64_t)limit.rlim_cur};
}

static msi_bound bound_met(int error)
{
    msi_bound space;

    switch (error) {
    case EFBIG:
        return msi_file_size_left();
    case ENOMEM:
        space = msi_address_space_left();
        return space.kind != MSI_BOUND_NONE ? space : msi_memory_left("");
    case ENOSPC:
        return msi_memory_left("");
    default:
        return (msi_bound){.left = INT64_MAX};
    }
}

msi_bound msi_bound_of(int error)
{
    msi_bound b = bound_met(error);

    b.error = error;
    return b;
}

/* -- texts ------------------------------------------------------------------------------------- */

const char *msi_bound_text(msi_bound b, char *buffer, size_t nbytes)
{
    long long left = (long long)b.left, limit = (long long)b.limit;

    switch (b.kind) {
    case MSI_BOUND_HOST:
        snprintf(buffer, nbytes, " (%lld bytes are available on this host)", left);
        break;
    case MSI_BOUND_CGROUP:
        snprintf(buffer, nbytes, " (%lld bytes are left of its cgroup's limit of %lld bytes)", left,
                 limit);
        break;
    case MSI_BOUND_FILE_SIZE:
        snprintf(buffer, nbytes, " (files may have %lld bytes: ulimit -f)", limit);
        break;
    case MSI_BOUND_ADDRESS_SPACE:
        snprintf(buffer, nbytes, " (%lld bytes of address space are left of %lld: ulimit -v)", left,
                 limit);
        break;
    default:
        buffer[0] = '\0';
    }
    return buffer;
}
