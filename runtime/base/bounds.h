/* What there is of memory, of this process's and of the host's. */
#ifndef MSI_BOUNDS_H
#define MSI_BOUNDS_H

#include <stddef.h>
#include <stdint.h>

enum {
    MSI_BOUND_NONE,
    MSI_BOUND_HOST,
    MSI_BOUND_CGROUP,
    MSI_BOUND_FILE_SIZE,
    MSI_BOUND_ADDRESS_SPACE
};

typedef struct msi_bound {
    int32_t kind;  /* which bound this is; NONE: there is none, `left` is INT64_MAX */
    int32_t error; /* errno of what failed by it, 0: nothing has */
    int64_t left, limit;
} msi_bound;

/* Memory that can still be taken here: of this host, or under the limit of a cgroup. `root` stands
 * before /proc and /sys ("", but in tests). */
msi_bound msi_memory_left(const char *root);
/* The largest file this process may make, and the address space it may still map. */
msi_bound msi_file_size_left(void);
msi_bound msi_address_space_left(void);
/* What a call met that failed with `error`, which it keeps; 0: it has not. */
msi_bound msi_bound_of(int error);

enum { MSI_BOUND_TEXT = 128 };
/* " (4096 bytes are available on this host)", or "" when there is no bound. */
const char *msi_bound_text(msi_bound b, char *buffer, size_t nbytes);

#endif
