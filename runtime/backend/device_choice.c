/* Which device a context has, chosen or MS_DEVICE's, and its plug-in. */
#include "device_plan.h"
#include "heap.h"
#include "library.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const kinds[] = {"cpu", "fake", "cuda", "plan"};

/* A static copy of the kind; NULL: unknown. */
static const char *known_kind(const char *name)
{
    for (int32_t i = 0; i < MSI_COUNT(kinds); i++) {
        if (strcmp(name, kinds[i]) == 0) {
            return kinds[i];
        }
    }
    return NULL;
}

const char *ms_device_kind(void)
{
    const ms_context *ctx = msi_context_peek();

    return ctx != NULL && ctx->device_kind != NULL ? ctx->device_kind
                                                   : msi_switch_text("MS_DEVICE", kinds[0]);
}

/* An unknown kind is an error, not a warning: it would compute on the CPU. */
ms_status msi_device_choice(const ms_context *ctx, const char **kind, int32_t *index)
{
    const char *value = msi_switch_text("MS_DEVICE", kinds[0]);

    if (ctx->device_kind != NULL) {
        value = ctx->device_kind;
        *index = ctx->device_index >= 0 ? ctx->device_index : *index;
    }
    *kind = known_kind(value);
    if (*kind == NULL) {
        return MS_FAIL(MS_DEVICE_ERROR, "MS_DEVICE is '%s', expected cpu, cuda, plan or fake",
                       value);
    }
    *kind = *kind == kinds[0] ? NULL : *kind;
    return MS_OK;
}

/* The function table of a device kind. */
ms_status msi_device_load(ms_context *ctx, const char *kind, const msi_device_ops **ops)
{
    const msi_device_ops *(*plugin)(void);
    const char *why;
    char file[64], what[80];
    const msi_library library = {
        .file = file, .symbol = "msi_device_plugin", .what = what, .nbytes = 1 << 20};
    void *symbol;

    if (strcmp(kind, msi_plan_device_ops.kind) == 0) {
        *ops = &msi_plan_device_ops;
        return MS_OK;
    }
    snprintf(file, sizeof(file), "libmoonshard_%s.so", kind);
    snprintf(what, sizeof(what), "device '%s' (the default is the CPU)", kind);
    MS_TRY(msi_library_open(ctx, &library, &symbol, &why));
    if (symbol == NULL) {
        return MS_FAIL(MS_DEVICE_ERROR, "device '%s': %s", kind, why);
    }
    memcpy(&plugin, &symbol, sizeof(plugin));
    *ops = plugin();
    return (*ops)->version == MSI_DEVICE_VERSION
               ? MS_OK
               : MS_FAIL(MS_DEVICE_ERROR, "%s has interface version %d, expected %d", file,
                         (int)(*ops)->version, MSI_DEVICE_VERSION);
}

ms_status msi_device_check_index(const msi_device_ops *ops, int32_t index)
{
    char error[MSI_DEVICE_ERROR];
    const int32_t n = ops->count != NULL ? ops->count(error) : INT32_MAX;

    return index < n || n == 0 /* open() has the reason */
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "invalid device ordinal: '%s:%d', found %d", ops->kind,
                         (int)index, (int)n);
}

/* Before any tensor exists; an unused heap of the CPU goes. */
static ms_status check_unused(ms_context *ctx, const char *kind, int32_t index)
{
    msi_heap *h = ctx->room[MSI_ROOM_BACKEND];
    const msi_device *d = ctx->device;
    msi_device_info info = {0};

    if (h == NULL) {
        return MS_OK;
    }
    if (d == NULL && h->n_live == 0) {
        ctx->close[MSI_ROOM_BACKEND](h);
        ctx->room[MSI_ROOM_BACKEND] = NULL;
        return MS_OK;
    }
    if (d != NULL) {
        d->ops->info(ctx->device, &info);
    }
    const char *now = d != NULL ? d->ops->kind : kinds[0];

    if (strcmp(now, kind) != 0) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "device: the device of this process is '%s' since its first tensor; choose "
                       "'%s' before any tensor exists",
                       now, kind);
    }
    return index < 0 || index == info.index
               ? MS_OK
               : MS_FAIL(MS_RUNTIME_ERROR,
                         "device: the device of this process is '%s:%d' since its first tensor; "
                         "choose '%s:%d' before any tensor exists",
                         now, (int)info.index, kind, (int)index);
}

ms_status ms_device_use(const char *kind, int32_t index)
{
    ms_context *ctx = msi_context();
    const char *known = known_kind(kind);

    if (ctx == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    if (known == NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "device: the kind is '%s', expected cpu, cuda or plan",
                       msi_foreign_name(kind));
    }
    if (index > 0 && known == kinds[0]) {
        return MS_FAIL(MS_VALUE_ERROR, "invalid device ordinal: 'cpu:%d', found 1", (int)index);
    }
    MS_TRY(check_unused(ctx, known, known == kinds[0] ? -1 : index));
    if (ctx->room[MSI_ROOM_BACKEND] == NULL) {
        ctx->device_kind = known;
        ctx->device_index = index;
    }
    return MS_OK;
}

ms_status ms_device_describe(ms_device_info *out)
{
    ms_context *ctx = msi_context();
    static _Thread_local msi_device_info info;

    info = (msi_device_info){0};
    *out = (ms_device_info){.index = 0};
    MS_TRY(ctx != NULL ? msi_memory_open(ctx) : MS_OUT_OF_MEMORY);
    msi_device *d = ctx->device;

    if (d != NULL) {
        d->ops->info(d, &info);
        out->waits = d->n_waits;
    }
    out->kind = d != NULL ? d->ops->kind : kinds[0];
    out->name = d != NULL ? info.name : msi_kernels()->isa;
    out->index = info.index;
    out->capability = info.capability;
    out->total_bytes = info.total;
    out->free_bytes = info.free;
    return MS_OK;
}

static int32_t count(const msi_device_ops *ops)
{
    char error[MSI_DEVICE_ERROR];

    return ops->count != NULL ? ops->count(error) : 1;
}

/* In a child process, since one that asked the driver cannot fork ranks. */
static int32_t count_apart(ms_context *ctx, const char *kind)
{
    const msi_device_ops *ops;
    int status = 0;
    const pid_t child = fork();

    if (child == 0) {
        _exit(msi_device_load(ctx, kind, &ops) == MS_OK ? count(ops) & 0x7f : 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        return 0;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

ms_status ms_device_count(const char *kind, int32_t *n)
{
    ms_context *ctx = msi_context();
    const char *known = known_kind(kind);

    *n = 0;
    if (ctx == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    if (known == NULL || known == kinds[0]) {
        *n = known != NULL;
    } else if (ctx->device != NULL && strcmp(ctx->device->ops->kind, known) == 0) {
        *n = count(ctx->device->ops);
    } else {
        *n = count_apart(ctx, known);
    }
    return MS_OK;
}
