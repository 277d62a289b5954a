/* The device that plans. */
#include "device_plan.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct plan_device {
    msi_device base;
    msi_device_ops ops; /* the CPU's, with the functions below */
    msi_device_host host;
} plan_device;

static const char plan_kind[] = "plan";

bool msi_device_plans(const ms_context *ctx)
{
    return ctx->device != NULL && ctx->device->ops->kind == plan_kind;
}

static void plan_info(msi_device *d, msi_device_info *out)
{
    (void)d;
    *out = (msi_device_info){.name = "plan"};
}

/* Pages that nobody writes take no memory. */
static int32_t plan_take(msi_device *d, int64_t nbytes, int32_t place, void **out)
{
    (void)d;
    (void)place;
    *out = mmap(NULL, (size_t)nbytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *out != MAP_FAILED ? MSI_DEV_OK : MSI_DEV_NO_MEMORY;
}

static void plan_give(msi_device *d, void *p, int64_t nbytes, int32_t place)
{
    (void)d;
    (void)place;
    munmap(p, (size_t)nbytes);
}

static int32_t plan_share(msi_device *d, int64_t nbytes, void **out, int32_t *fd)
{
    *fd = memfd_create("moonshard", MFD_CLOEXEC);
    if (*fd < 0) {
        return MSI_DEV_NO_MEMORY;
    }
    int32_t outcome = ftruncate(*fd, nbytes) == 0 ? d->ops->attach(d, *fd, nbytes, false, out)
                                                  : MSI_DEV_NO_MEMORY;

    if (outcome != MSI_DEV_OK) {
        close(*fd);
    }
    return outcome;
}

static int32_t plan_run(msi_device *d, int32_t stream, int32_t kernel, int32_t dtype,
                        const void *args)
{
    (void)stream;
    (void)args;
    return ((plan_device *)d)->host.kernel(kernel, dtype) != NULL ? MSI_DEV_OK
                                                                  : MSI_DEV_UNSUPPORTED;
}

/* The work space of products is the CPU's. */
static int32_t plan_gemm(msi_device *d, int32_t stream, const msi_gemm_args *args)
{
    const msi_device_host *host = &((plan_device *)d)->host;

    (void)stream;
    return host->gemm(host->user, args) == MS_OK ? MSI_DEV_OK : MSI_DEV_FAILED;
}

static int32_t plan_copy(msi_device *d, int32_t stream, void *to, const void *from, int64_t nbytes)
{
    (void)d;
    (void)stream;
    (void)to;
    (void)from;
    (void)nbytes;
    return MSI_DEV_OK;
}

static int32_t plan_set(msi_device *d, int32_t stream, void *to, int32_t byte, int64_t nbytes)
{
    (void)byte;
    return plan_copy(d, stream, to, NULL, nbytes);
}

static void plan_close(msi_device *d)
{
    free(d);
}

static int32_t plan_open(msi_device **out, const msi_device_host *host, int32_t index, char *error)
{
    plan_device *p = calloc(1, sizeof(*p));

    (void)index;
    (void)error;
    if (p == NULL) {
        return MSI_DEV_NO_MEMORY;
    }
    p->ops = *host->cpu;
    p->ops.kind = plan_kind;
    p->ops.close = plan_close;
    p->ops.info = plan_info;
    p->ops.take = plan_take;
    p->ops.give = plan_give;
    p->ops.share = plan_share;
    p->ops.run = plan_run;
    p->ops.gemm = plan_gemm;
    p->ops.copy = plan_copy;
    p->ops.set = plan_set;
    p->base.ops = &p->ops;
    p->host = *host;
    *out = &p->base;
    return MSI_DEV_OK;
}

const msi_device_ops msi_plan_device_ops = {
    .version = MSI_DEVICE_VERSION, .kind = plan_kind, .open = plan_open};
