/* Memory from the system. */
#include "backend.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Larger blocks are mapped, in huge pages if possible. */
enum { MAP_BYTES = 1 << 20 };

static void *map(int64_t bytes)
{
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p != MAP_FAILED ? p : NULL;
}

void *msi_system_take(int64_t bytes)
{
    if (bytes < MAP_BYTES) {
        return aligned_alloc(64, (size_t)bytes);
    }
    void *p = map(bytes);

    if (p != NULL) {
        madvise(p, (size_t)bytes, MADV_HUGEPAGE);
    }
    return p;
}

void msi_system_give(void *p, int64_t bytes)
{
    if (bytes < MAP_BYTES) {
        free(p);
    } else {
        munmap(p, (size_t)bytes);
    }
}

bool msi_system_has(int64_t bytes)
{
    void *p = map(bytes);

    return p != NULL && munmap(p, (size_t)bytes) == 0;
}

void *msi_take_touched(int64_t bytes)
{
    enum { PAGE = 4096 };
    char *p = aligned_alloc(64, (size_t)msi_round_up(bytes, 64));
    const uintptr_t begin = msi_round_up((uintptr_t)p, PAGE);
    const uintptr_t end = ((uintptr_t)p + (uintptr_t)bytes) / PAGE * PAGE;

    if (p != NULL && end > begin) {
        madvise((void *)begin, end - begin, MADV_POPULATE_WRITE); /* Linux before 5.14 faults */
    }
    return p;
}
