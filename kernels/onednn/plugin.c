/* libmoonshard_onednn.so: the table of functions the runtime gets, and the run of one product.
 *
 * oneDNN is kept to the calling thread: its primitives are split differently by more threads, which
 * would change bits, and two teams on shared cores stall each other. */
#include "matmul.h"

#include "moonshard/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void omp_set_num_threads(int n); /* libgomp's, which oneDNN runs on */

static void state_close(void *handle)
{
    onednn *state = handle;

    matmul_free_all(state);
    if (state->stream != NULL) {
        dnnl_stream_destroy(state->stream);
    }
    if (state->engine != NULL) {
        dnnl_engine_destroy(state->engine);
    }
    free(state);
}

static int32_t state_open(void **out, const msi_plugin_host *host, char *error)
{
    onednn *state = calloc(1, sizeof(*state));
    dnnl_status_t status;

    *out = NULL;
    if (state == NULL) {
        return onednn_failed(error, "making the state", dnnl_out_of_memory);
    }
    state->host = *host;
    omp_set_num_threads(1);
    if (host->isa == 2 || host->isa == 3) {
        /* One setting per process, fixed by its first use: a second context finds it made. */
        guarded.set_max_cpu_isa(host->isa == 2 ? dnnl_cpu_isa_sse41 : dnnl_cpu_isa_avx2);
    }
    status = guarded.engine_create(&state->engine, dnnl_cpu, 0);
    if (status != dnnl_success) {
        state_close(state);
        return onednn_failed(error, "dnnl_engine_create", status);
    }
    status = guarded.stream_create(&state->stream, state->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        state_close(state);
        return onednn_failed(error, "dnnl_stream_create", status);
    }
    *out = state;
    return MSI_PLUGIN_OK;
}

/* A matrix with one row or one column can be described in two ways: take the dense one. */
static void normalise(int64_t rows, int64_t cols, int64_t *row, int64_t *col)
{
    if (rows == 1 && (cols == 1 || *col == 1)) {
        *row = cols;
        *col = 1;
    } else if (rows == 1) {
        *row = 1;
    } else if (cols == 1) {
        *col = 1;
    }
}

static matmul_key key_of(const msi_gemm_args *g)
{
    bool batched = g->batch > 1;
    matmul_key key = {
        .m = g->m,
        .n = g->n,
        .k = g->k,
        .batch = g->batch,
        .a_row = g->a_row,
        .a_col = g->a_col,
        .b_row = g->b_row,
        .b_col = g->b_col,
        .c_row = g->m == 1 ? g->n : g->c_row,
        .a_batch = batched ? g->a_batch : 0,
        .b_batch = batched ? g->b_batch : 0,
        .c_batch = batched ? g->c_batch : 0,
        .dtype = g->dtype,
        .c_dtype = g->c_dtype,
        .bias = g->bias != NULL,
        .accumulate = g->accumulate,
    };

    normalise(g->m, g->k, &key.a_row, &key.a_col);
    normalise(g->k, g->n, &key.b_row, &key.b_col);
    return key;
}

static int32_t state_gemm(void *handle, const msi_gemm_args *g, char *error)
{
    onednn *state = handle;
    matmul_key key = key_of(g);
    matmul *mm = NULL;
    int32_t outcome = matmul_find(state, &key, &mm, error);

    if (outcome != MSI_PLUGIN_OK) {
        return outcome;
    }
    if (mm->primitive == NULL) {
        return MSI_PLUGIN_UNSUPPORTED;
    }
    void *scratch = NULL;

    if (mm->scratch_nbytes > 0) {
        scratch = state->host.room(state->host.user, mm->scratch_nbytes);
        if (scratch == NULL) {
            return MSI_PLUGIN_NO_MEMORY;
        }
    }
    if (*state->host.plans) {
        return MSI_PLUGIN_OK;
    }
    void *handles[5] = {(void *)(uintptr_t)g->a, (void *)(uintptr_t)g->b, g->c, scratch,
                        (void *)(uintptr_t)g->bias};
    dnnl_status_t status = dnnl_success;

    for (int32_t i = 0; i < mm->n_args && status == dnnl_success; i++) {
        status = guarded.memory_set_data_handle(mm->args[i].memory, handles[i]);
    }
    if (status != dnnl_success) {
        return onednn_failed(error, "dnnl_memory_set_data_handle", status);
    }
    status = guarded.primitive_execute(mm->primitive, state->stream, mm->n_args, mm->args);
    return status == dnnl_success ? MSI_PLUGIN_OK
                                  : onednn_failed(error, "dnnl_primitive_execute", status);
}

static int32_t state_name(void *handle, int32_t dtype, const char **name, char *error)
{
    onednn *state = handle;
    const matmul_key key = {.m = 256,
                            .n = 256,
                            .k = 256,
                            .batch = 1,
                            .a_row = 256,
                            .a_col = 1,
                            .b_row = 256,
                            .b_col = 1,
                            .c_row = 256,
                            .dtype = dtype,
                            .c_dtype = dtype};
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = matmul_describe(state, &key, &pd, name);

    dnnl_primitive_desc_destroy(pd); /* the name is static in the library */
    if (status != dnnl_success && !matmul_unsupported(status)) {
        return onednn_failed(error, "describing a large product", status);
    }
    return status == dnnl_success && matmul_good(dtype, *name) ? MSI_PLUGIN_OK
                                                               : MSI_PLUGIN_UNSUPPORTED;
}

static int64_t state_created(const void *handle)
{
    const onednn *state = handle;

    return state->created;
}

static int64_t state_kept(const void *handle)
{
    const onednn *state = handle;

    return state->n_used;
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

extern const msi_plugin msi_onednn_plugin;
__attribute__((visibility("default"))) const msi_plugin msi_onednn_plugin = {
    .version = MSI_PLUGIN_VERSION,
    .library = "oneDNN " TEXT(DNNL_VERSION_MAJOR) "." TEXT(DNNL_VERSION_MINOR) "." TEXT(
        DNNL_VERSION_PATCH),
    .open = state_open,
    .close = state_close,
    .gemm = state_gemm,
    .name = state_name,
    .created = state_created,
    .kept = state_kept,
};
