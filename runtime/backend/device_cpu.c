/* The CPU as a device: its streams are always empty. */
#include "bounds.h"
#include "device.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct cpu_device {
    msi_device base;
    msi_device_host host;
} cpu_device;

static int32_t cpu_open(msi_device **out, const msi_device_host *host, int32_t index, char *error)
{
    cpu_device *d = calloc(1, sizeof(*d));

    (void)index;
    (void)error;
    if (d == NULL) {
        return MSI_DEV_NO_MEMORY;
    }
    d->base.ops = &msi_cpu_device_ops;
    d->host = *host;
    *out = &d->base;
    return MSI_DEV_OK;
}

static void cpu_close(msi_device *d)
{
    free(d);
}

static void cpu_info(msi_device *d, msi_device_info *out)
{
    (void)d;
    *out = (msi_device_info){.name = "CPU"};
}

static int32_t cpu_take(msi_device *d, int64_t nbytes, int32_t place, void **out)
{
    (void)d;
    (void)place;
    *out = msi_system_take(nbytes);
    return *out != NULL ? MSI_DEV_OK : MSI_DEV_NO_MEMORY;
}

static void cpu_give(msi_device *d, void *p, int64_t nbytes, int32_t place)
{
    (void)d;
    (void)place;
    msi_system_give(p, nbytes);
}

static int32_t cpu_attach(msi_device *d, int32_t fd, int64_t nbytes, bool readonly, void **out)
{
    const int protection = readonly ? PROT_READ : PROT_READ | PROT_WRITE;

    (void)d;
    *out = mmap(NULL, (size_t)nbytes, protection, MAP_SHARED, fd, 0);
    return *out != MAP_FAILED ? MSI_DEV_OK : MSI_DEV_NO_MEMORY;
}

/* Fails if the host is short of memory, which would wake the OOM killer. */
static int32_t cpu_share(msi_device *d, int64_t nbytes, void **out, int32_t *fd)
{
    if (nbytes > msi_memory_left("").left) {
        return MSI_DEV_NO_MEMORY;
    }
    *fd = memfd_create("moonshard", MFD_CLOEXEC);
    if (*fd < 0) {
        return MSI_DEV_NO_MEMORY;
    }
    int32_t outcome = fallocate(*fd, 0, 0, nbytes) == 0 ? cpu_attach(d, *fd, nbytes, false, out)
                                                        : MSI_DEV_NO_MEMORY;

    if (outcome != MSI_DEV_OK) {
        close(*fd);
    }
    return outcome;
}

static void cpu_detach(msi_device *d, void *p, int64_t nbytes)
{
    (void)d;
    munmap(p, (size_t)nbytes);
}

static int32_t cpu_run(msi_device *d, int32_t stream, int32_t kernel, int32_t dtype,
                       const void *args)
{
    msi_kernel_fn fn = ((cpu_device *)d)->host.kernel(kernel, dtype);

    (void)stream;
    if (fn == NULL) {
        return MSI_DEV_UNSUPPORTED;
    }
    fn(args);
    return MSI_DEV_OK;
}

static int32_t cpu_gemm(msi_device *d, int32_t stream, const msi_gemm_args *args)
{
    const msi_device_host *host = &((cpu_device *)d)->host;

    (void)stream;
    return host->gemm(host->user, args) == MS_OK ? MSI_DEV_OK : MSI_DEV_FAILED;
}

static int32_t cpu_copy(msi_device *d, int32_t stream, void *to, const void *from, int64_t nbytes)
{
    (void)d;
    (void)stream;
    memcpy(to, from, (size_t)nbytes);
    return MSI_DEV_OK;
}

static int32_t cpu_set(msi_device *d, int32_t stream, void *to, int32_t byte, int64_t nbytes)
{
    (void)d;
    (void)stream;
    memset(to, byte, (size_t)nbytes);
    return MSI_DEV_OK;
}

static msi_mark cpu_mark(msi_device *d, int32_t stream)
{
    (void)d;
    return (msi_mark){.stream = stream};
}

static int32_t cpu_after(msi_device *d, int32_t stream, msi_mark m)
{
    (void)d;
    (void)stream;
    (void)m;
    return MSI_DEV_OK;
}

static int32_t cpu_done(msi_device *d, msi_mark m)
{
    (void)d;
    (void)m;
    return MSI_DEV_OK;
}

static int32_t cpu_wait(msi_device *d, msi_mark m, msi_go_on go_on, void *user)
{
    (void)go_on;
    (void)user;
    return cpu_done(d, m);
}

static int32_t cpu_poll(msi_device *d)
{
    (void)d;
    return MSI_DEV_OK;
}

static int32_t cpu_post(msi_device *d, int32_t stream, _Atomic uint64_t *word, uint64_t value)
{
    (void)d;
    (void)stream;
    atomic_store(word, value);
    return MSI_DEV_OK;
}

static int32_t cpu_await(msi_device *d, int32_t stream, _Atomic uint64_t *const *words, int32_t n,
                         uint64_t at_least)
{
    (void)d;
    (void)stream;
    for (int32_t i = 0; i < n; i++) {
        if (atomic_load(words[i]) < at_least) {
            return MSI_DEV_FAILED;
        }
    }
    return MSI_DEV_OK;
}

static void cpu_abandon(msi_device *d)
{
    (void)d;
}

const msi_device_ops msi_cpu_device_ops = {.version = MSI_DEVICE_VERSION,
                                           .kind = "cpu",
                                           .open = cpu_open,
                                           .close = cpu_close,
                                           .info = cpu_info,
                                           .take = cpu_take,
                                           .give = cpu_give,
                                           .share = cpu_share,
                                           .attach = cpu_attach,
                                           .detach = cpu_detach,
                                           .run = cpu_run,
                                           .gemm = cpu_gemm,
                                           .copy = cpu_copy,
                                           .set = cpu_set,
                                           .mark = cpu_mark,
                                           .after = cpu_after,
                                           .done = cpu_done,
                                           .wait = cpu_wait,
                                           .poll = cpu_poll,
                                           .post = cpu_post,
                                           .await = cpu_await,
                                           .abandon = cpu_abandon};
