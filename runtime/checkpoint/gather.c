#include "gather.h"

#include "moonshard/tensor.h"
#include "tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHUNK = 8 << 20, FILES = 1024, HAS = 1, LACKS = 2 };

/* A file without a name, beside the checkpoint's own, or in memory where the file system has no
 * such files (NFS). */
static ms_status open_unnamed(int *fd, const ms_checkpoint *c)
{
    *fd = open(ms_checkpoint_path(c), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd < 0) {
        *fd = memfd_create("moonshard-file", MFD_CLOEXEC);
    }
    return *fd >= 0 ? MS_OK
                    : msi_io_fail("copy a file of another host into", ms_checkpoint_path(c));
}

/* Bytes [at, at + n) of a file, from `source` to the ranks that lack it, through `chunk`. */
static ms_status move_chunk(const ms_checkpoint *c, ms_comm *comm, int32_t file, int32_t source,
                            int fd, int64_t at, int64_t n, ms_tensor *chunk, msi_outcome *own)
{
    msi_host_view host;

    if (ms_comm_rank(comm) == source) {
        MS_TRY(msi_host_view_begin(&host, &chunk->v, MSI_HOST_WRITES));
        msi_outcome_keep(own, msi_checkpoint_file_bytes(c, file, host.data, n, at));
        MS_TRY(msi_host_view_end(&host, MS_OK));
    }
    MS_TRY(msi_comm_broadcast(comm, &chunk->v, source));
    if (fd >= 0) {
        MS_TRY(msi_host_view_begin(&host, &chunk->v, MSI_HOST_READS));
        msi_outcome_keep(own, msi_io_write(fd, ms_checkpoint_path(c), host.data, n, at));
        MS_TRY(msi_host_view_end(&host, MS_OK));
    }
    return MS_OK;
}

static ms_status move_file(ms_checkpoint *c, ms_comm *comm, int32_t file, int32_t source,
                           bool lacks, ms_tensor *chunk, msi_outcome *own)
{
    const int64_t nbytes = msi_checkpoint_manifest(c)->files[file].nbytes;
    ms_status status = MS_OK;
    int fd = -1;

    if (lacks && own->status == MS_OK) {
        msi_outcome_keep(own, open_unnamed(&fd, c));
    }
    for (int64_t at = 0; at < nbytes && status == MS_OK; at += CHUNK) {
        const int64_t n = nbytes - at < CHUNK ? nbytes - at : CHUNK;

        status = move_chunk(c, comm, file, source, fd, at, n, chunk, own);
    }
    if (fd >= 0) {
        msi_checkpoint_take_file(c, file, fd);
    }
    return status;
}

/* Files [first, first + n), n at most FILES. */
static ms_status gather_some(ms_checkpoint *c, ms_comm *comm, int32_t first, int32_t n,
                             const bool *lacks, ms_tensor *chunk, msi_outcome *own)
{
    const int32_t world = ms_comm_size(comm);
    char mine[FILES] = {0}, all[world][FILES];

    for (int32_t i = 0; i < n; i++) {
        mine[i] = (char)(msi_checkpoint_has_file(c, first + i) ? HAS
                         : lacks != NULL && lacks[first + i]   ? LACKS
                                                               : 0);
    }
    MS_TRY(msi_comm_gather_bytes(comm, "checkpoint.load (files)", mine, FILES, all));
    for (int32_t i = 0; i < n; i++) {
        int32_t source = -1;
        bool wanted = false;

        for (int32_t r = world - 1; r >= 0; r--) {
            source = all[r][i] == HAS ? r : source;
            wanted = wanted || all[r][i] == LACKS;
        }
        if (wanted && source >= 0) { /* a file that no rank has is an error when it is read */
            MS_TRY(move_file(c, comm, first + i, source, mine[i] == LACKS, chunk, own));
        }
    }
    return MS_OK;
}

ms_status msi_checkpoint_gather_files(ms_checkpoint *c, ms_comm *comm, const bool *lacks,
                                      msi_outcome *own)
{
    const int32_t n = msi_checkpoint_manifest(c)->n_files;
    const int64_t shape[] = {CHUNK};
    msi_outcome all[ms_comm_size(comm)];
    ms_tensor *chunk = NULL;

    msi_outcome_keep(own, ms_tensor_empty(&chunk, MS_DTYPE_U8, 1, shape));
    ms_status status = msi_outcome_agree(comm, "checkpoint.load (memory)", own, all);

    for (int32_t i = 0; i < n && status == MS_OK; i += FILES) {
        status = gather_some(c, comm, i, n - i < FILES ? n - i : FILES, lacks, chunk, own);
    }
    ms_tensor_free(chunk);
    return status;
}
