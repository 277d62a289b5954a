/* Choice of the implementation of a matrix product: own kernel for f64, tiny shapes and few rows,
 * else the library's plug-in, else (none, or unsuitable) the own kernel.
 *
 * The choice depends on shape, strides and dtype only, not on values or history, so equal calls
 * give equal bits. Without hardware products of a narrow dtype (bf16, f16) operands are widened,
 * multiplied in f32 and rounded once. */
#include "device_plan.h"

#include "gemm_rows.h"
#include "plugin.h"

#include "moonshard/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TINY = 4096, /* m n k up to which a library call costs more than it saves */
    ROOM_WINDOW = 4096
};

/* Work space kept between products, since blocks of each size would need many times as much. Its
 * size is the largest of this window and the one before. Host memory: device blocks could be reused
 * while the product runs as an item. */
typedef struct work_room {
    msi_mem_block *block;
    int64_t nbytes;
    int64_t needed; /* maximum in this window */
    int32_t n_used; /* uses in this window */
} work_room;

typedef struct gemm_state {
    ms_context *ctx;
    const msi_plugin *plugin; /* NULL: none */
    void *state;              /* the plug-in's */
    bool plans;               /* nothing is computed: device_plan.h */
    work_room widened;        /* f32 operands */
    work_room packed;         /* operands in another order */
    work_room library;        /* for the plug-in, while `widened` is in use */
    /* per narrow dtype: library has products; warned that not */
    bool multiplies[MS_DTYPE_COUNT], warned[MS_DTYPE_COUNT];
    char name[MS_DTYPE_COUNT][64];
} gemm_state;

static void empty_room(work_room *room)
{
    msi_release(room->block);
    *room = (work_room){0};
}

static ms_status resize_room(ms_context *ctx, work_room *room, int64_t nbytes)
{
    empty_room(room);
    MS_TRY(msi_host_alloc(ctx, nbytes, MS_MEM_SCRATCH, &room->block));
    room->nbytes = nbytes;
    return MS_OK;
}

/* Space for one product; valid until the next. */
static ms_status use_room(ms_context *ctx, work_room *room, int64_t nbytes, void **out)
{
    room->needed = nbytes > room->needed ? nbytes : room->needed;
    room->n_used++;
    if (MSI_UNLIKELY(nbytes > room->nbytes)) {
        MS_TRY(resize_room(ctx, room, nbytes));
    } else if (MSI_UNLIKELY(room->n_used >= ROOM_WINDOW)) {
        if (room->needed < room->nbytes) {
            MS_TRY(resize_room(ctx, room, room->needed));
        }
        room->needed = nbytes;
        room->n_used = 0;
    }
    *out = room->block->data;
    return MS_OK;
}

static void empty_rooms(gemm_state *s)
{
    empty_room(&s->widened);
    empty_room(&s->packed);
    empty_room(&s->library);
}

static void *host_room(void *user, int64_t nbytes)
{
    gemm_state *s = user;
    void *block = NULL;

    return use_room(s->ctx, &s->library, nbytes, &block) == MS_OK ? block : NULL;
}

static bool host_probe(void *user, int64_t nbytes, const char *what)
{
    gemm_state *s = user;

    return msi_alloc_probe(s->ctx, nbytes, what) == MS_OK;
}

static void close_state(void *state)
{
    gemm_state *s = state;

    if (s->state != NULL) {
        s->plugin->close(s->state);
    }
    empty_rooms(s);
    free(s);
}

/* Convert a plug-in's error. */
static ms_status plugin_failed(int32_t outcome, const char *error)
{
    if (outcome == MSI_PLUGIN_NO_MEMORY && error[0] == '\0') {
        return MS_OUT_OF_MEMORY; /* set by the host's function */
    }
    return MS_FAIL(outcome == MSI_PLUGIN_NO_MEMORY ? MS_OUT_OF_MEMORY : MS_DEVICE_ERROR, "%s",
                   error);
}

/* Open the plug-in, if any, and query it. */
static ms_status open_plugin(gemm_state *s)
{
    char error[MSI_PLUGIN_ERROR] = "";
    const char *reason = NULL, *name = NULL, *isa = msi_switch_text("MS_CPU_ISA", "");
    const msi_plugin_host host = {.user = s,
                                  .room = host_room,
                                  .probe = host_probe,
                                  .plans = &s->plans,
                                  .isa = strcmp(isa, "v2") == 0   ? 2
                                         : strcmp(isa, "v3") == 0 ? 3
                                                                  : 0};

    MS_TRY(msi_plugin_open(s->ctx, &s->plugin, &reason));
    if (s->plugin == NULL) {
        msi_log(2, "no matrix library (%s): using own kernels", reason);
        return MS_OK;
    }
    int32_t outcome = s->plugin->open(&s->state, &host, error);

    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT && outcome == MSI_PLUGIN_OK; dtype++) {
        if (ms_dtype_is_narrow(dtype)) {
            const int32_t named = s->plugin->name(s->state, dtype, &name, error);

            s->multiplies[dtype] = named == MSI_PLUGIN_OK;
            outcome = named == MSI_PLUGIN_UNSUPPORTED ? MSI_PLUGIN_OK : named;
        }
    }
    if (outcome != MSI_PLUGIN_OK && outcome != MSI_PLUGIN_UNSUPPORTED) {
        return plugin_failed(outcome, error);
    }
    msi_log(2, "matrix library: %s", s->plugin->library);
    return MS_OK;
}

/* The context's state. Opens the plug-in on demand, not earlier, since ranks fork first. A failure
 * is retried at the next call. */
static ms_status state_of(ms_context *ctx, gemm_state **out)
{
    gemm_state *s = ctx->room[MSI_ROOM_ONEDNN];

    *out = s;
    if (MSI_LIKELY(s != NULL)) {
        return MS_OK;
    }
    s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the matrix state (%zu bytes)", sizeof(*s));
    }
    s->ctx = ctx;
    ms_status status = open_plugin(s);

    if (status != MS_OK) {
        close_state(s);
        return status;
    }
    ctx->room[MSI_ROOM_ONEDNN] = s;
    ctx->close[MSI_ROOM_ONEDNN] = close_state;
    *out = s;
    return MS_OK;
}

static void run_own(const ms_context *ctx, const msi_gemm_args *g)
{
    if (!msi_device_plans(ctx)) {
        msi_kernels()->fn[MSI_K_gemm][g->dtype](g);
    }
}

/* out (rows, cols) = in, cast; both may have any strides. */
static void cast_matrix(const gemm_state *s, void *out, int32_t out_dtype, int64_t out_row,
                        int64_t out_col, const void *in, int32_t in_dtype, int64_t in_row,
                        int64_t in_col, int64_t rows, int64_t cols)
{
    if (s->plans) {
        return;
    }
    bool by_column = in_row == 1 && in_col != 1; /* keep the unit stride innermost */
    msi_ew_args e = {.out = out, .in = {in}, .in_dtype = in_dtype};

    e.loop.ndim = 2;
    e.loop.shape[0] = by_column ? cols : rows;
    e.loop.shape[1] = by_column ? rows : cols;
    e.loop.stride[0][0] = by_column ? out_col : out_row;
    e.loop.stride[0][1] = by_column ? out_row : out_col;
    e.loop.stride[1][0] = by_column ? in_col : in_row;
    e.loop.stride[1][1] = by_column ? in_row : in_col;
    msi_kernels()->fn[MSI_K_copy][out_dtype](&e);
}

/* The operands of a product that are copied first. */
typedef struct packing {
    bool a, b;
} packing;

/* [Note: packing] The library reads some operands in place: an a that is dense along m (transposed)
 * one element a row, a b that is dense along n a page per row. On many processors that takes longer
 * than the product of a row-major a and a column-major b, so large products copy an operand to that
 * order first. Rows a multiple of 4 or 2 KiB apart are worst: they share sets of the caches. */

/* Of a product on x86-64-v4. */
static bool packs_b(int64_t m, int64_t n, int64_t k)
{
    static const struct {
        int64_t rows, numel, stride; /* least m and k n; n is a multiple of */
    } table[] = {
        {128, 1 << 21, 1024},
        {512, 1 << 18, 512},
        {512, 1 << 19, 1},
    };

    for (size_t i = 0; i < MSI_COUNT(table); i++) {
        if (m >= table[i].rows && n >= 256 && k * n >= table[i].numel && n % table[i].stride == 0) {
            return true;
        }
    }
    return false;
}

/* With AVX2 the library copies both operands itself, except where 1/m + 1/n >= 0.0038. With SSE
 * products are bound by arithmetic, and packing gains nothing. */
static packing packing_of(int64_t m, int64_t n, int64_t k, bool a_by_column, bool b_by_row)
{
    const char *isa = msi_kernels()->isa;
    const bool in_place = 10000 * (m + n) >= 38 * m * n;

    if (strcmp(isa, "x86-64-v4") == 0) {
        return (packing){.b = b_by_row && packs_b(m, n, k)};
    }
    if (strcmp(isa, "x86-64-v3") == 0 && in_place && m >= 128 && n >= 128 && m * k * n >= 1 << 23) {
        return (packing){.a = a_by_column && (m < 512 || m % 512 == 0),
                         .b = b_by_row && n % 512 == 0};
    }
    return (packing){0};
}

static int64_t packed_bytes(packing p, int64_t m, int64_t n, int64_t k)
{
    return ((p.a ? m * k : 0) + (p.b ? k * n : 0)) * (int64_t)sizeof(float);
}

static ms_status run(gemm_state *s, const msi_gemm_args *g);

/* f32 copies of both operands, a narrow result, and the bias. */
static int64_t widening_bytes(int64_t m, int64_t n, int64_t k, bool direct)
{
    return (m * k + k * n + (direct ? 0 : m * n) + n) * (int64_t)sizeof(float);
}

/* One narrow product in f32. */
static ms_status run_widened(gemm_state *s, const msi_gemm_args *g)
{
    const int32_t wide = MS_DTYPE_F32, narrow = g->dtype;
    bool direct = g->c_dtype == wide;
    msi_gemm_args f = *g;
    void *room;

    MS_TRY(use_room(s->ctx, &s->widened, widening_bytes(g->m, g->n, g->k, direct), &room));
    float *a = room, *b = a + g->m * g->k, *c = b + g->k * g->n,
          *bias = c + (direct ? 0 : g->m * g->n);

    f.dtype = f.c_dtype = wide;
    f.a = a;
    f.b = b;
    const packing packs = packing_of(g->m, g->n, g->k, g->a_col != 1, g->b_col == 1);
    const bool a_by_row = g->a_col == 1 || packs.a, b_by_row = g->b_col == 1 && !packs.b;

    f.a_row = a_by_row ? g->k : 1;
    f.a_col = a_by_row ? 1 : g->m;
    f.b_row = b_by_row ? g->n : 1;
    f.b_col = b_by_row ? 1 : g->k;
    cast_matrix(s, a, wide, f.a_row, f.a_col, g->a, narrow, g->a_row, g->a_col, g->m, g->k);
    cast_matrix(s, b, wide, f.b_row, f.b_col, g->b, narrow, g->b_row, g->b_col, g->k, g->n);
    if (g->bias != NULL) {
        cast_matrix(s, bias, wide, g->n, 1, g->bias, narrow, g->n, 1, 1, g->n);
        f.bias = bias;
    }
    if (!direct) {
        f.c = c;
        f.c_row = g->n;
        if (g->accumulate) {
            cast_matrix(s, c, wide, g->n, 1, g->c, narrow, g->c_row, 1, g->m, g->n);
        }
    }
    MS_TRY(run(s, &f));
    if (!direct) {
        cast_matrix(s, g->c, narrow, g->c_row, 1, c, wide, g->n, 1, g->m, g->n);
    }
    return MS_OK;
}

/* Warn once that a narrow dtype is computed in f32. */
static void warn_widened(gemm_state *s, int32_t dtype)
{
    const char *name = NULL;

    if (!s->warned[dtype]) {
        char error[MSI_PLUGIN_ERROR];

        s->warned[dtype] = true;
        s->plugin->name(s->state, dtype, &name, error);
        if (s->ctx->rank == 0) {
            msi_warn("UserWarning",
                     "this processor has no %s matrix products (%s: %s): computing them in fp32",
                     ms_dtype_name(dtype), s->plugin->library,
                     strcmp(name, "none") == 0 ? "no implementation" : name);
        }
    }
}

static ms_status run_widened_batch(gemm_state *s, const msi_gemm_args *g)
{
    msi_gemm_args one = *g;
    const int64_t in_bytes = ms_dtype_size(g->dtype), c_bytes = ms_dtype_size(g->c_dtype);

    warn_widened(s, g->dtype);
    one.batch = 1;
    for (int64_t i = 0; i < g->batch; i++) {
        one.a = (const char *)g->a + i * g->a_batch * in_bytes;
        one.b = (const char *)g->b + i * g->b_batch * in_bytes;
        one.c = (char *)g->c + i * g->c_batch * c_bytes;
        MS_TRY(run_widened(s, &one));
    }
    return MS_OK;
}

/* The same product with operands copied to work space. [Note: packing] */
static ms_status pack(gemm_state *s, packing p, msi_gemm_args *g)
{
    const int32_t f32 = MS_DTYPE_F32;
    void *room;

    MS_TRY(use_room(s->ctx, &s->packed, packed_bytes(p, g->m, g->n, g->k), &room));
    float *a = room, *b = a + (p.a ? g->m * g->k : 0);

    if (p.a) {
        cast_matrix(s, a, f32, g->k, 1, g->a, f32, g->a_row, g->a_col, g->m, g->k);
        g->a = a;
        g->a_row = g->k;
        g->a_col = 1;
    }
    if (p.b) {
        cast_matrix(s, b, f32, 1, g->k, g->b, f32, g->b_row, g->b_col, g->k, g->n);
        g->b = b;
        g->b_row = 1;
        g->b_col = g->k;
    }
    return MS_OK;
}

static ms_status run(gemm_state *s, const msi_gemm_args *given)
{
    char error[MSI_PLUGIN_ERROR] = "";
    msi_gemm_args packed;
    const msi_gemm_args *g = given;

    if (s->plugin == NULL) {
        run_own(s->ctx, g);
        return MS_OK;
    }
    if (g->dtype == MS_DTYPE_F32 && g->batch == 1) {
        const packing p =
            packing_of(g->m, g->n, g->k, g->a_row == 1 && g->a_col != 1, g->b_col == 1);

        if (p.a || p.b) {
            packed = *given;
            MS_TRY(pack(s, p, &packed));
            g = &packed;
        }
    }
    int32_t outcome = s->plugin->gemm(s->state, g, error);

    if (MSI_LIKELY(outcome == MSI_PLUGIN_OK)) {
        return MS_OK;
    }
    if (outcome != MSI_PLUGIN_UNSUPPORTED) {
        return plugin_failed(outcome, error);
    }
    if (ms_dtype_is_narrow(g->dtype)) {
        return run_widened_batch(s, g);
    }
    run_own(s->ctx, g);
    return MS_OK;
}

ms_status msi_gemm_now(ms_context *ctx, const msi_gemm_args *g)
{
    gemm_state *s = NULL;

    if (MSI_UNLIKELY(!ms_dtype_is_floating(g->dtype))) {
        MS_TRY(msi_check_host_kernel("gemm", MSI_K_gemm, g->dtype));
        run_own(ctx, g);
        return MS_OK;
    }
    if (g->m == 0 || g->n == 0 || g->batch == 0) {
        return MS_OK;
    }
    if (g->dtype == MS_DTYPE_F64 || (double)g->m * (double)g->n * (double)g->k <= TINY ||
        msi_gemm_has_few_rows(g)) {
        run_own(ctx, g); /* k = 0 too: zeros, bias or old values */
        return MS_OK;
    }
    MS_TRY(state_of(ctx, &s));
    s->plans = msi_device_plans(ctx); /* it may have been opened after the state */
    return run(s, g);
}

/* The device's own products; NULL: they are the CPU's. */
static const char *device_library(const ms_context *ctx)
{
    msi_device *d = ctx->device;

    return MSI_UNLIKELY(d != NULL) && d->ops->library != NULL ? d->ops->library(d) : NULL;
}

const char *msi_gemm_name(ms_context *ctx, int32_t dtype)
{
    const char *of_device = device_library(ctx);
    gemm_state *s = NULL;
    const char *name = NULL;
    char error[MSI_PLUGIN_ERROR];
    const bool narrow = ms_dtype_is_narrow(dtype), library = dtype == MS_DTYPE_F32 || narrow;

    if (of_device != NULL) {
        return of_device;
    }
    if (dtype < 0 || dtype >= MS_DTYPE_COUNT || state_of(ctx, &s) != MS_OK) {
        return "none";
    }
    char *text = s->name[dtype];

    if (text[0] != '\0') {
        return text;
    }
    if (library && s->plugin != NULL) {
        int32_t outcome = s->plugin->name(s->state, dtype, &name, error);

        if (outcome == MSI_PLUGIN_OK) {
            snprintf(text, sizeof(s->name[0]), "%s", name);
            return text;
        }
        if (outcome != MSI_PLUGIN_UNSUPPORTED) {
            return "none";
        }
        if (narrow) {
            snprintf(text, sizeof(s->name[0]), "fp32 by %.50s", msi_gemm_name(ctx, MS_DTYPE_F32));
            return text;
        }
    }
    snprintf(text, sizeof(s->name[0]), "own:%s", msi_kernels()->isa);
    return text;
}

ms_status msi_gemm_operands(ms_context *ctx, int32_t dtype, int32_t *operands)
{
    gemm_state *s = NULL;

    *operands = dtype;
    if (!ms_dtype_is_narrow(dtype) || device_library(ctx) != NULL) {
        return MS_OK;
    }
    MS_TRY(state_of(ctx, &s));
    if (!s->multiplies[dtype]) {
        *operands = MS_DTYPE_F32;
        if (s->plugin != NULL) {
            warn_widened(s, dtype);
        }
    }
    return MS_OK;
}

int64_t msi_gemm_scratch(ms_context *ctx, int32_t dtype, int64_t m, int64_t n, int64_t k)
{
    gemm_state *s = NULL;

    if (device_library(ctx) != NULL || state_of(ctx, &s) != MS_OK || s->plugin == NULL ||
        dtype == MS_DTYPE_F64) {
        return 0;
    }
    if (ms_dtype_is_narrow(dtype)) {
        return s->multiplies[dtype] ? 0 : widening_bytes(m, n, k, false);
    }
    /* gradients of the input, (m, n) x (n, k), and of the weight, (n, m) x (m, k) */
    const int64_t input = packed_bytes(packing_of(m, k, n, false, true), m, k, n);
    const int64_t weight = packed_bytes(packing_of(n, k, m, true, true), n, k, m);

    return input > weight ? input : weight;
}

void msi_gemm_trim(ms_context *ctx)
{
    gemm_state *s = ctx->room[MSI_ROOM_ONEDNN];

    if (s != NULL) {
        empty_rooms(s);
    }
}

const char *msi_gemm_library(ms_context *ctx)
{
    const char *of_device = device_library(ctx);
    gemm_state *s = NULL;

    if (of_device != NULL) {
        return of_device;
    }
    return state_of(ctx, &s) == MS_OK && s->plugin != NULL ? s->plugin->library : "none";
}

int64_t msi_gemm_created(ms_context *ctx)
{
    const gemm_state *s = ctx->room[MSI_ROOM_ONEDNN];

    return s != NULL && s->plugin != NULL ? s->plugin->created(s->state) : 0;
}

int64_t msi_gemm_kept(ms_context *ctx)
{
    const gemm_state *s = ctx->room[MSI_ROOM_ONEDNN];

    return s != NULL && s->plugin != NULL ? s->plugin->kept(s->state) : 0;
}
