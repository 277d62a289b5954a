/* This process's maps of the job's shared memory, except the control block. */
#include "job.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void msi_unmap(char *rw, char *ro, int64_t nbytes)
{
    if (ro != NULL && ro != rw) {
        munmap(ro, msi_map_bytes(nbytes));
    }
    if (rw != NULL) {
        munmap(rw, msi_map_bytes(nbytes));
    }
}

msi_shared_map *msi_maps_add(msi_job *job, const msi_shared_map *made, int32_t owners)
{
    msi_shared_map *map = malloc(sizeof(*map));

    if (map == NULL) {
        return NULL;
    }
    map->fd = made->fd;
    map->rw = made->rw;
    map->ro = made->ro;
    map->nbytes = made->nbytes;
    atomic_init(&map->owners, owners);
    map->next = atomic_load(&job->maps);
    while (!atomic_compare_exchange_weak(&job->maps, &map->next, map)) {
    }
    return map;
}

void msi_maps_drop(msi_shared_map *map)
{
    if (atomic_fetch_sub(&map->owners, 1) == 1) {
        msi_unmap(map->rw, map->ro, map->nbytes);
    }
}

void msi_make_private(void *map, size_t nbytes, int protection, int32_t fd)
{
    if (mmap(map, nbytes, protection, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED) {
        _exit(128 + SIGABRT); /* rather than write to the job */
    }
}

void msi_maps_make_private(const msi_job *job)
{
    for (msi_shared_map *map = atomic_load(&job->maps); map != NULL; map = map->next) {
        if (atomic_load(&map->owners) > 0) {
            const size_t nbytes = msi_map_bytes(map->nbytes);

            msi_make_private(map->rw, nbytes, PROT_READ | PROT_WRITE, map->fd);
            msi_make_private(map->ro, nbytes, PROT_READ, map->fd);
        }
    }
}

void msi_maps_sweep(msi_job *job)
{
    msi_shared_map *map = atomic_load(&job->maps);

    while (map != NULL) {
        msi_shared_map *next = map->next;

        if (atomic_load(&map->owners) > 0) {
            msi_unmap(map->rw, map->ro, map->nbytes);
        }
        free(map);
        map = next;
    }
    atomic_store(&job->maps, NULL);
}
