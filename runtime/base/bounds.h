/* Available memory, of this process and the host. */
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
    int32_t kind;  /* which limit; NONE: unlimited, `left` is INT64_MAX */
    int32_t error; /* errno of the call that it stopped; 0: none */
    int64_t left, limit;
} msi_bound;

/* Memory available on this host, or under a cgroup's limit. `root` precedes /proc and /sys (""
 * except in tests). */
msi_bound msi_memory_left(const char *root);
/* The largest file this process may make, and the address space it may still map. */
msi_bound msi_file_size_left(void);
msi_bound msi_address_space_left(void);
/* What a call met that failed with `error`, which it keeps; 0: it has not. */
msi_bound msi_bound_of(int error);

enum { MSI_BOUND_TEXT = 128 };
/* " (4096 bytes are available on this host)", or "" if unlimited. */
const char *msi_bound_text(msi_bound b, char *buffer, size_t nbytes);

#endif
