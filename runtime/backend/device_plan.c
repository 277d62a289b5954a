/* The device that plans. */
#include "device_plan.h"

#include "heap.h"
#include "plan_work.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct plan_device {
    msi_device base;
    msi_device_ops ops; /* the CPU's, with the functions below */
    msi_device_host host;
    bool traces;
    bool lost;             /* an event, for lack of memory */
    ms_plan_event *events; /* (n), with room for `room` */
    int64_t n, room;
    char **names; /* (n_names) of events, each once */
    int32_t n_names;
} plan_device;

static const char plan_kind[] = "plan";

bool msi_device_plans(const ms_context *ctx)
{
    return ctx->device != NULL && ctx->device->ops->kind == plan_kind;
}

/* -- the trace --------------------------------------------------------------------------------- */

/* Room for one more event; NULL if memory is out. */
static ms_plan_event *next_event(plan_device *p)
{
    if (p->n == p->room) {
        const int64_t room = p->room > 0 ? 2 * p->room : 256;
        ms_plan_event *more = realloc(p->events, (size_t)room * sizeof(*more));

        if (more == NULL) {
            p->lost = true;
            return NULL;
        }
        p->events = more;
        p->room = room;
    }
    return &p->events[p->n++];
}

/* The kept copy of a name; NULL if memory is out. */
static const char *kept_name(plan_device *p, const char *name)
{
    for (int32_t i = 0; i < p->n_names; i++) {
        if (strcmp(p->names[i], name) == 0) {
            return p->names[i];
        }
    }
    char **more = realloc(p->names, (size_t)(p->n_names + 1) * sizeof(*more));

    p->names = more != NULL ? more : p->names;
    char *copy = more != NULL ? strdup(name) : NULL;

    if (copy != NULL) {
        p->names[p->n_names++] = copy;
    }
    p->lost |= copy == NULL;
    return copy;
}

static double live_bytes(const plan_device *p)
{
    return (double)((const msi_heap *)p->base.ctx->room[MSI_ROOM_BACKEND])->stats.live_total;
}

static void add_event(plan_device *p, const ms_plan_event *event)
{
    ms_plan_event *next = p->traces ? next_event(p) : NULL;

    if (next != NULL) {
        *next = *event;
        next->name = event->name != NULL ? kept_name(p, event->name) : NULL;
        next->live = live_bytes(p);
    }
}

void msi_plan_event(const ms_context *ctx, const ms_plan_event *event)
{
    if (MSI_UNLIKELY(msi_device_plans(ctx))) {
        add_event((plan_device *)ctx->device, event);
    }
}

static void add_work(plan_device *p, msi_work work)
{
    ms_plan_event *last = p->n > 0 ? &p->events[p->n - 1] : NULL;

    if (last == NULL || last->kind != MS_PLAN_COMPUTE) {
        if (work.flops + work.targets + work.nbytes <= 0) {
            return;
        }
        add_event(p, &(ms_plan_event){.kind = MS_PLAN_COMPUTE,
                                      .flops = work.flops,
                                      .targets = work.targets,
                                      .nbytes = work.nbytes});
    } else if (p->traces) {
        const double live = live_bytes(p);

        last->flops += work.flops;
        last->targets += work.targets;
        last->nbytes += work.nbytes;
        last->live = live > last->live ? live : last->live;
    }
}

ms_status ms_plan_start(void)
{
    const ms_context *ctx = msi_context_peek();

    if (ctx == NULL || !msi_device_plans(ctx)) {
        return MS_FAIL(MS_RUNTIME_ERROR, "the device 'plan' is not open: choose it, and call "
                                         "ms_device_describe()");
    }
    plan_device *p = (plan_device *)ctx->device;

    p->traces = true;
    p->lost = false;
    p->n = 0;
    return MS_OK;
}

ms_status ms_plan_events(const ms_plan_event **out, int64_t *n)
{
    const ms_context *ctx = msi_context_peek();

    *out = NULL;
    *n = 0;
    if (ctx == NULL || !msi_device_plans(ctx) || !((plan_device *)ctx->device)->traces) {
        return MS_FAIL(MS_RUNTIME_ERROR, "no plan is traced: ms_plan_start() comes first");
    }
    const plan_device *p = (const plan_device *)ctx->device;

    if (p->lost) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the events of a plan");
    }
    *out = p->events;
    *n = p->n;
    return MS_OK;
}

/* -- the device -------------------------------------------------------------------------------- */

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
    plan_device *p = (plan_device *)d;

    (void)stream;
    if (p->traces) {
        add_work(p, msi_work_of(kernel, dtype, args));
    }
    return p->host.kernel(kernel, dtype) != NULL ? MSI_DEV_OK : MSI_DEV_UNSUPPORTED;
}

/* The work space of products is the CPU's. */
static int32_t plan_gemm(msi_device *d, int32_t stream, const msi_gemm_args *args)
{
    plan_device *p = (plan_device *)d;
    const msi_device_host *host = &p->host;

    (void)stream;
    if (p->traces) {
        add_work(p, msi_work_of(MSI_K_gemm, args->dtype, args));
    }
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
    plan_device *p = (plan_device *)d;

    for (int32_t i = 0; i < p->n_names; i++) {
        free(p->names[i]);
    }
    free(p->names);
    free(p->events);
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
