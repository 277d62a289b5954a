/* The device that executes nothing: it notes kernels, and gives every block an address of its own
 * that no memory has. Its context lives as long as the thread's, so that products' libraries are
 * opened once. */
#include "graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct record_device {
    msi_device base;
    msi_device_ops ops;
    msi_device *under; /* NULL: the CPU */
    msi_plan *plan;    /* NULL: between lowerings */
    uint64_t next;     /* address */
    bool waited;
    ms_status failed; /* first failure to note something in the plan, and its message */
    char why[MSI_MESSAGE_BYTES];
} record_device;

/* Not canonical on x86-64: an access to it faults. */
#define FIRST_ADDRESS ((uint64_t)1 << 56)

/* State of graph/ in a context: its programs, and the context in which they are lowered. */
typedef struct lowering {
    ms_program *programs;
    ms_context *ctx;
    ms_context *before; /* while lowering: the thread's current one */
    record_device device;
    msi_fault fault;
} lowering;

static record_device *of(msi_device *d)
{
    return (record_device *)d;
}

static int32_t outcome_of(record_device *r, ms_status status)
{
    if (status != MS_OK && r->failed == MS_OK) {
        r->failed = status;
        snprintf(r->why, sizeof(r->why), "%s", ms_error_message());
    }
    return status == MS_OK ? MSI_DEV_OK : MSI_DEV_FAILED;
}

/* -- memory ------------------------------------------------------------------------------------ */

static void record_info(msi_device *d, msi_device_info *out)
{
    if (of(d)->under != NULL) {
        of(d)->under->ops->info(of(d)->under, out);
    } else {
        *out = (msi_device_info){.name = "recorder"};
    }
    out->chunk = 0;
    out->spoils = false;
}

static int32_t record_take(msi_device *d, int64_t nbytes, int32_t place, void **out)
{
    if (place == MSI_PLACE_PINNED) {
        *out = msi_system_take(nbytes);
        return *out != NULL ? MSI_DEV_OK : MSI_DEV_NO_MEMORY;
    }
    *out = (void *)(uintptr_t)of(d)->next;
    of(d)->next += (uint64_t)msi_round_up(nbytes + 1, 64);
    return MSI_DEV_OK;
}

static void record_give(msi_device *d, void *p, int64_t nbytes, int32_t place)
{
    (void)d;
    if (place == MSI_PLACE_PINNED) {
        msi_system_give(p, nbytes);
    }
}

int32_t msi_plan_buffer_at(const msi_plan *plan, const void *address)
{
    const uint64_t a = (uint64_t)(uintptr_t)address;
    int32_t low = 0, high = plan->n_buffers;

    if (a < FIRST_ADDRESS) {
        return -1;
    }
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;

        if (plan->buffers[middle].address <= a) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 && a <= plan->buffers[low - 1].address + (uint64_t)plan->buffers[low - 1].nbytes
               ? low - 1
               : -1;
}

/* Blocks are allocated at ascending addresses. */
static void record_block(msi_device *d, void *data, int64_t nbytes, bool released)
{
    record_device *r = of(d);
    msi_plan *plan = r->plan;

    if (plan == NULL) {
        return;
    }
    if (released) {
        const int32_t i = msi_plan_buffer_at(plan, data);

        if (i >= 0) {
            plan->buffers[i].died = plan->n_entries;
        }
        return;
    }
    if (outcome_of(r, msi_grow(&plan->buffers, plan->n_buffers, &plan->cap_buffers,
                               sizeof(*plan->buffers))) != MSI_DEV_OK) {
        return;
    }
    plan->buffers[plan->n_buffers++] = (msi_buffer){.address = (uint64_t)(uintptr_t)data,
                                                    .nbytes = nbytes,
                                                    .kind = MSI_BUFFER_TEMP,
                                                    .maker = -1,
                                                    .born = plan->n_entries,
                                                    .died = INT32_MAX};
}

/* -- kernels ----------------------------------------------------------------------------------- */

static ms_status add_reloc(msi_plan *plan, int64_t at, int32_t buffer, int64_t offset)
{
    MS_TRY(msi_grow(&plan->relocs, plan->n_relocs, &plan->cap_relocs, sizeof(*plan->relocs)));
    plan->relocs[plan->n_relocs++] = (msi_reloc){(int32_t)at, buffer, offset};
    return MS_OK;
}

/* A pointer at `at` in the plan's bytes. */
static ms_status locate(msi_plan *plan, int64_t at)
{
    void *p;

    memcpy(&p, plan->bytes + at, sizeof(p));
    if (p == NULL) {
        return MS_OK;
    }
    const int32_t buffer = msi_plan_buffer_at(plan, p);

    if (buffer < 0) {
        return MS_FAIL(MS_RUNTIME_ERROR, "a kernel uses memory that no tensor has");
    }
    return add_reloc(plan, at, buffer,
                     (int64_t)((uint64_t)(uintptr_t)p - plan->buffers[buffer].address));
}

static ms_status add_bytes(msi_plan *plan, int64_t nbytes, int64_t *at)
{
    const int64_t size = msi_round_up(nbytes, 16);

    while (plan->n_bytes + size > plan->cap_bytes) {
        const int64_t capacity = plan->cap_bytes > 0 ? plan->cap_bytes * 2 : 4096;
        char *grown = realloc(plan->bytes, (size_t)capacity);

        if (grown == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a plan");
        }
        plan->bytes = grown;
        plan->cap_bytes = capacity;
    }
    *at = plan->n_bytes;
    plan->n_bytes += size;
    return MS_OK;
}

static ms_status add_entry(msi_plan *plan, int32_t kind, int32_t kernel, int32_t dtype,
                           int64_t nbytes, msi_entry **out)
{
    int64_t at = 0;

    MS_TRY(msi_grow(&plan->entries, plan->n_entries, &plan->cap_entries, sizeof(*plan->entries)));
    MS_TRY(add_bytes(plan, nbytes, &at));
    *out = &plan->entries[plan->n_entries];
    **out = (msi_entry){.kind = (int8_t)kind,
                        .kernel = (int16_t)kernel,
                        .dtype = (int8_t)dtype,
                        .args = (int32_t)at,
                        .reloc = plan->n_relocs,
                        .op = plan->op,
                        .in_region = plan->in_region};
    return MS_OK;
}

static void end_entry(msi_plan *plan, msi_entry *e)
{
    e->n_relocs = plan->n_relocs - e->reloc;
    plan->n_entries++;
}

/* The sources behind a tree's arguments. */
static ms_status locate_sources(msi_plan *plan, int64_t at)
{
    msi_tree_args tree;

    memcpy(&tree, plan->bytes + at, sizeof(tree));
    for (int32_t i = 0; i < tree.n_src; i++) {
        MS_TRY(locate(plan, at + (int64_t)sizeof(tree) + i * (int64_t)sizeof(msi_tree_source) +
                                (int64_t)offsetof(msi_tree_source, data)));
    }
    return MS_OK;
}

/* A random mask's numbers, which kernels' arguments have in the order of msi_draw. */
static ms_status locate_draw(msi_plan *plan, int64_t at)
{
    msi_draw draw;

    memcpy(&draw, plan->bytes + at, offsetof(msi_draw, active));
    return draw.call >= MSI_FIRST_CALL
               ? add_reloc(plan, at, -1 - MSI_FIELD_DRAW, draw.call - MSI_FIRST_CALL)
               : MS_OK;
}

static ms_status add_kernel(msi_plan *plan, int32_t kind, int32_t kernel, int32_t dtype,
                            const void *args)
{
    msi_entry *e;
    int32_t n;
    const msi_args_field *fields = msi_args_fields(kernel, &n);

    MS_TRY(add_entry(plan, kind, kernel, dtype, msi_args_bytes(kernel, args), &e));
    msi_args_copy(kernel, plan->bytes + e->args, args);
    for (int32_t i = 0; i < n; i++) {
        const int64_t at = e->args + fields[i].offset;
        void *p;

        memcpy(&p, plan->bytes + at, sizeof(p));
        if (fields[i].kind == MSI_FIELD_MEMORY) {
            MS_TRY(locate(plan, at));
        } else if (fields[i].kind == MSI_FIELD_DRAW) {
            MS_TRY(locate_draw(plan, at));
        } else if (p != NULL) {
            e->faults |= fields[i].kind != MSI_FIELD_CONTEXT;
            MS_TRY(add_reloc(plan, at, -1 - fields[i].kind, 0));
        }
    }
    if (kernel == MSI_K_tree) {
        MS_TRY(locate_sources(plan, e->args));
    }
    end_entry(plan, e);
    return MS_OK;
}

static int32_t record_run(msi_device *d, int32_t stream, int32_t kernel, int32_t dtype,
                          const void *args)
{
    (void)stream;
    return outcome_of(of(d), add_kernel(of(d)->plan, MSI_ENTRY_KERNEL, kernel, dtype, args));
}

static int32_t record_gemm(msi_device *d, int32_t stream, const msi_gemm_args *args)
{
    (void)stream;
    return outcome_of(of(d),
                      add_kernel(of(d)->plan, MSI_ENTRY_PRODUCT, MSI_K_gemm, args->dtype, args));
}

static ms_status add_copy(msi_plan *plan, int32_t kind, void *to, const void *from, int32_t byte,
                          int64_t nbytes)
{
    const msi_copy_args args = {to, from, nbytes};
    msi_entry *e;

    MS_TRY(add_entry(plan, kind, byte, 0, sizeof(args), &e));
    memcpy(plan->bytes + e->args, &args, sizeof(args));
    MS_TRY(locate(plan, e->args + (int64_t)offsetof(msi_copy_args, to)));
    MS_TRY(locate(plan, e->args + (int64_t)offsetof(msi_copy_args, from)));
    end_entry(plan, e);
    return MS_OK;
}

static int32_t record_copy(msi_device *d, int32_t stream, void *to, const void *from,
                           int64_t nbytes)
{
    (void)stream;
    return outcome_of(of(d), add_copy(of(d)->plan, MSI_ENTRY_COPY, to, from, 0, nbytes));
}

static int32_t record_set(msi_device *d, int32_t stream, void *to, int32_t byte, int64_t nbytes)
{
    (void)stream;
    return outcome_of(of(d), add_copy(of(d)->plan, MSI_ENTRY_SET, to, NULL, byte, nbytes));
}

/* -- what kernels there are -------------------------------------------------------------------- */

static bool record_has(msi_device *d, int32_t kernel, int32_t dtype)
{
    msi_device *under = of(d)->under;

    return under != NULL && under->ops->has != NULL ? under->ops->has(under, kernel, dtype)
                                                    : msi_kernels()->fn[kernel][dtype] != NULL;
}

/* Products allocate theirs when the plan runs: its size depends on the operands' addresses. */
static int64_t record_work_bytes(msi_device *d, int32_t kernel, int32_t dtype, const void *args)
{
    msi_device *under = of(d)->under;

    if (kernel == MSI_K_gemm) {
        return 0;
    }
    return under != NULL && under->ops->work_bytes != NULL
               ? under->ops->work_bytes(under, kernel, dtype, args)
               : -1;
}

static const char *record_library(msi_device *d)
{
    msi_device *under = of(d)->under;

    return under != NULL && under->ops->library != NULL ? under->ops->library(under) : NULL;
}

/* -- order ------------------------------------------------------------------------------------- */

static int32_t record_wait(msi_device *d, msi_mark m, msi_go_on go_on, void *user)
{
    (void)m;
    (void)go_on;
    (void)user;
    of(d)->waited = of(d)->plan != NULL;
    return of(d)->waited ? MSI_DEV_FAILED : MSI_DEV_OK;
}

static void record_close(msi_device *d)
{
    (void)d;
}

static void record_open(lowering *l)
{
    record_device *r = &l->device;

    r->ops = msi_cpu_device_ops; /* streams are empty */
    r->ops.kind = "recorder";
    r->ops.open = NULL;
    r->ops.share = NULL;
    r->ops.attach = NULL;
    r->ops.close = record_close;
    r->ops.info = record_info;
    r->ops.library = record_library;
    r->ops.take = record_take;
    r->ops.give = record_give;
    r->ops.block = record_block;
    r->ops.has = record_has;
    r->ops.work_bytes = record_work_bytes;
    r->ops.run = record_run;
    r->ops.gemm = record_gemm;
    r->ops.copy = record_copy;
    r->ops.set = record_set;
    r->ops.wait = record_wait;
    r->base.ops = &r->ops;
    r->base.fault = &l->fault;
    r->base.ctx = l->ctx;
    r->next = FIRST_ADDRESS;
}

/* -- the context ------------------------------------------------------------------------------- */

static ms_status open_device(ms_context *ctx)
{
    lowering *l = ctx->room[MSI_ROOM_GRAPH];

    ctx->device = &l->device.base;
    return MS_OK;
}

static void close_lowering(void *state)
{
    lowering *l = state;

    while (l->programs != NULL) {
        l->programs->close(l->programs);
    }
    msi_context_close(l->ctx);
    free(l);
}

static ms_status lowering_of(ms_context *ctx, lowering **out)
{
    lowering *l = ctx->room[MSI_ROOM_GRAPH];

    *out = l;
    if (l != NULL) {
        return MS_OK;
    }
    MS_TRY(msi_new_array(&l, 1, "context for lowering"));
    l->ctx = msi_context_new();
    if (l->ctx == NULL) {
        free(l);
        return MS_OUT_OF_MEMORY;
    }
    record_open(l);
    l->device.under = ctx->device;
    l->device.ops.fuses = msi_gemm_fuses(ctx);
    l->ctx->room[MSI_ROOM_GRAPH] = l; /* for open_device(); it has no close */
    l->ctx->open_device = open_device;
    ctx->room[MSI_ROOM_GRAPH] = l;
    ctx->close[MSI_ROOM_GRAPH] = close_lowering;
    *out = l;
    return MS_OK;
}

ms_status msi_graph_enlist(ms_program *p)
{
    lowering *l;

    MS_TRY(lowering_of(p->ctx, &l));
    p->next = l->programs;
    p->link = &l->programs;
    if (p->next != NULL) {
        p->next->link = &p->next;
    }
    l->programs = p;
    return MS_OK;
}

ms_program *msi_graph_recording(void)
{
    const ms_context *ctx = msi_context();
    const lowering *l = ctx->room[MSI_ROOM_GRAPH];
    ms_program *p = l != NULL && msi_op_is_observed(ctx) ? l->programs : NULL;

    while (p != NULL && !p->recording) {
        p = p->next;
    }
    return p;
}

ms_status msi_lowering_begin(ms_context *under, ms_context **out, msi_plan *plan)
{
    lowering *l;

    MS_TRY(lowering_of(under, &l));
    MS_ASSERT(l->before == NULL);
    l->device.plan = plan;
    l->device.waited = false;
    l->device.failed = MS_OK;
    if (l->ctx->room[MSI_ROOM_ONEDNN] == NULL) { /* lent: it is asked only what it computes in */
        l->ctx->room[MSI_ROOM_ONEDNN] = under->room[MSI_ROOM_ONEDNN];
    }
    l->before = msi_context_swap(l->ctx);
    atomic_fetch_add(&msi_n_devices, 1); /* dispatch looks for one */
    *out = l->ctx;
    return MS_OK;
}

static lowering *current(void)
{
    return msi_context_peek()->room[MSI_ROOM_GRAPH];
}

ms_status msi_lowering_status(ms_status status)
{
    const lowering *l = current();

    if (l->device.waited) {
        return MS_FAIL(MS_RUNTIME_ERROR, "the host waits for its result");
    }
    return l->device.failed != MS_OK ? MS_FAIL(l->device.failed, "%s", l->device.why) : status;
}

void msi_lowering_end(void)
{
    lowering *l = current();

    l->device.plan = NULL;
    msi_alloc_trim(l->ctx);
    atomic_fetch_sub(&msi_n_devices, 1);
    (void)msi_context_swap(l->before);
    l->before = NULL;
}

void msi_plan_free(msi_plan *plan)
{
    free(plan->entries);
    free(plan->relocs);
    free(plan->bytes);
    free(plan->buffers);
    *plan = (msi_plan){.entries = NULL};
}
