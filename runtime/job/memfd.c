/* Anonymous files (memfd) for ranks to map. */
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Returns errno. */
static int reserve(int fd, int64_t nbytes)
{
    int error;

    do {
        error = posix_fallocate(fd, 0, nbytes);
    } while (error == EINTR);
    if (error == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        error = errno;
    }
    return error;
}

msi_bound msi_memfd_new(int32_t *fd, const char *name, int64_t nbytes)
{
    msi_bound memory = msi_memory_left("");

    *fd = -1;
    if (nbytes > memory.left) { /* reserving it would wake the OOM killer */
        memory.error = ENOMEM;
        return memory;
    }
    if (nbytes > msi_file_size_left().left) { /* SIGXFSZ */
        return msi_bound_of(EFBIG);
    }
    int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int error = made < 0 ? errno : reserve(made, nbytes);

    if (error == 0) {
        *fd = made;
    } else if (made >= 0) {
        close(made);
    }
    return msi_bound_of(error);
}
