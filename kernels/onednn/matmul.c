/* Primitives for matrix products: made once per shape, then looked up; past a bound the least
 * recently used goes. Transposed operands are
 * described by their strides, the bias by the primitive's own, adding to C by a sum post-op. */
#include "matmul.h"

#include "moonshard/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The library writes through pointers that its allocations of generated code (256 KiB of address
 * space each) and objects gave it without looking at them. 12 MiB is the most a primitive took. */
enum { CREATING_BYTES = 32 << 20 };

int32_t onednn_failed(char *error, const char *call, dnnl_status_t status)
{
    static const char *const names[] = {"success",       "out of memory", "invalid arguments",
                                        "unimplemented", "iterator ends", "runtime error",
                                        "not required"};
    int32_t n_names = (int32_t)(sizeof(names) / sizeof(names[0]));

    snprintf(error, MSI_PLUGIN_ERROR, "oneDNN: %s: %s (%d)", call,
             (int32_t)status < n_names ? names[status] : "unknown status", (int)status);
    return status == dnnl_out_of_memory ? MSI_PLUGIN_NO_MEMORY : MSI_PLUGIN_FAILED;
}

static dnnl_data_type_t data_type(int64_t dtype)
{
    return dtype == MS_DTYPE_BF16 ? dnnl_bf16 : dtype == MS_DTYPE_F16 ? dnnl_f16 : dnnl_f32;
}

/* (batch, rows, cols), or (rows, cols) when the product has no batch. A batch stride of 0 means the
 * same matrix for all: one entry, which the library broadcasts. */
static dnnl_status_t describe_matrix(dnnl_memory_desc_t *out, const matmul_key *key, int64_t dtype,
                                     int64_t rows, int64_t cols, int64_t row, int64_t col,
                                     int64_t batch_stride)
{
    int first = key->batch > 1 ? 0 : 1;
    dnnl_dims_t dims = {batch_stride != 0 ? key->batch : 1, rows, cols};
    dnnl_dims_t strides = {batch_stride != 0 ? batch_stride : rows * cols, row, col};

    return guarded.memory_desc_init_by_strides(out, 3 - first, dims + first, data_type(dtype),
                                               strides + first);
}

static dnnl_status_t describe_bias(dnnl_memory_desc_t *out, const matmul_key *key)
{
    int first = key->batch > 1 ? 0 : 1;
    dnnl_dims_t dims = {1, 1, key->n};
    dnnl_dims_t strides = {key->n, key->n, 1};

    return guarded.memory_desc_init_by_strides(out, 3 - first, dims + first, data_type(key->dtype),
                                               strides + first);
}

static dnnl_status_t make_attributes(dnnl_primitive_attr_t *out, bool accumulate)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status = guarded.primitive_attr_create(&attr);

    if (status == dnnl_success) {
        status = guarded.primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    }
    if (status == dnnl_success && accumulate) {
        dnnl_post_ops_t ops = NULL;

        status = guarded.post_ops_create(&ops);
        if (status == dnnl_success) {
            status = guarded.post_ops_append_sum(ops, 1.0f);
        }
        if (status == dnnl_success) {
            status = guarded.primitive_attr_set_post_ops(attr, ops);
        }
        dnnl_post_ops_destroy(ops);
    }
    if (status != dnnl_success) {
        dnnl_primitive_attr_destroy(attr);
        attr = NULL;
    }
    *out = attr;
    return status;
}

dnnl_status_t matmul_describe(const onednn *state, const matmul_key *key,
                              dnnl_primitive_desc_t *out, const char **name)
{
    dnnl_memory_desc_t a, b, c, bias;
    dnnl_matmul_desc_t op;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status;

    *out = NULL;
    *name = "none";
    status =
        describe_matrix(&a, key, key->dtype, key->m, key->k, key->a_row, key->a_col, key->a_batch);
    if (status == dnnl_success) {
        status = describe_matrix(&b, key, key->dtype, key->k, key->n, key->b_row, key->b_col,
                                 key->b_batch);
    }
    if (status == dnnl_success) {
        status =
            describe_matrix(&c, key, key->c_dtype, key->m, key->n, key->c_row, 1, key->c_batch);
    }
    if (status == dnnl_success && key->bias) {
        status = describe_bias(&bias, key);
    }
    if (status == dnnl_success) {
        status = guarded.matmul_desc_init(&op, &a, &b, key->bias ? &bias : NULL, &c);
    }
    if (status == dnnl_success) {
        status = make_attributes(&attr, key->accumulate != 0);
    }
    if (status == dnnl_success) {
        status = guarded.primitive_desc_create(out, &op, attr, state->engine, NULL);
    }
    if (status == dnnl_success) {
        status = guarded.primitive_desc_query(*out, dnnl_query_impl_info_str, 0, (void *)name);
    }
    dnnl_primitive_attr_destroy(attr);
    return status;
}

bool matmul_unsupported(dnnl_status_t status)
{
    return status == dnnl_unimplemented || status == dnnl_invalid_arguments;
}

bool matmul_good(int64_t dtype, const char *name)
{
    if (strncmp(name, "ref", 3) == 0 || strcmp(name, "none") == 0) {
        return false; /* plain loops: our own kernel is better */
    }
    /* "gemm:jit" does not say what it runs on: without the instructions it emulates them. */
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa(), bf16 = dnnl_cpu_isa_avx512_core_bf16;

#if DNNL_VERSION_MAJOR >= 3
    const dnnl_cpu_isa_t f16 = dnnl_cpu_isa_avx512_core_fp16;

    if (dtype == MS_DTYPE_F16) {
        return (isa & f16) == f16;
    }
#endif
    return dtype == MS_DTYPE_F32 || (dtype == MS_DTYPE_BF16 && (isa & bf16) == bf16);
}

static dnnl_status_t add_memory(matmul *mm, const onednn *state, dnnl_primitive_desc_t pd,
                                dnnl_query_t what, int arg)
{
    const dnnl_memory_desc_t *desc = dnnl_primitive_desc_query_md(pd, what, arg);
    dnnl_exec_arg_t *place = &mm->args[mm->n_args];
    dnnl_status_t status =
        guarded.memory_create(&place->memory, desc, state->engine, DNNL_MEMORY_NONE);

    if (status == dnnl_success) {
        place->arg = arg;
        mm->n_args++;
    }
    return status;
}

static void free_one(matmul *mm)
{
    for (int32_t i = 0; i < mm->n_args; i++) {
        dnnl_memory_destroy(mm->args[i].memory);
    }
    if (mm->primitive != NULL) {
        dnnl_primitive_destroy(mm->primitive);
    }
    free(mm);
}

void matmul_free_all(onednn *state)
{
    for (int64_t i = 0; i < MATMUL_PLACES; i++) {
        if (state->table[i] != NULL) {
            free_one(state->table[i]);
        }
    }
}

/* The process's cache of primitives, which a host that uses the library has too, would keep what
 * our table gives up: it takes none of ours. (Finding its capacity 0 means that another thread is
 * here; then a primitive of ours may get in.) */
static dnnl_status_t create_uncached(dnnl_primitive_t *out, const_dnnl_primitive_desc_t pd)
{
    int capacity = 0;
    dnnl_status_t status = guarded.get_primitive_cache_capacity(&capacity);

    if (status == dnnl_success && capacity > 0) {
        status = guarded.set_primitive_cache_capacity(0);
    }
    if (status == dnnl_success) {
        status = guarded.primitive_create(out, pd);
    }
    if (capacity > 0) {
        guarded.set_primitive_cache_capacity(capacity);
    }
    return status;
}

/* Fill `mm`; its primitive stays NULL when there is nothing good. */
static int32_t create(onednn *state, matmul *mm, char *error)
{
    dnnl_primitive_desc_t pd = NULL;
    const char *name = NULL;
    const char *call = "creating a matmul descriptor";
    dnnl_status_t status = matmul_describe(state, &mm->key, &pd, &name);

    if (matmul_unsupported(status) ||
        (status == dnnl_success && !matmul_good(mm->key.dtype, name))) {
        dnnl_primitive_desc_destroy(pd);
        return MSI_PLUGIN_OK;
    }
    if (status == dnnl_success) {
        call = "dnnl_primitive_create";
        status = create_uncached(&mm->primitive, pd);
    }
    if (status == dnnl_success) {
        const dnnl_memory_desc_t *scratch =
            dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);

        state->created++;
        mm->scratch_nbytes = (int64_t)dnnl_memory_desc_get_size(scratch);
        call = "dnnl_memory_create";
        status = add_memory(mm, state, pd, dnnl_query_exec_arg_md, DNNL_ARG_SRC);
    }
    if (status == dnnl_success) {
        status = add_memory(mm, state, pd, dnnl_query_exec_arg_md, DNNL_ARG_WEIGHTS);
    }
    if (status == dnnl_success) {
        status = add_memory(mm, state, pd, dnnl_query_exec_arg_md, DNNL_ARG_DST);
    }
    if (status == dnnl_success) {
        status = add_memory(mm, state, pd, dnnl_query_exec_arg_md, DNNL_ARG_SCRATCHPAD);
    }
    if (status == dnnl_success && mm->key.bias) {
        status = add_memory(mm, state, pd, dnnl_query_exec_arg_md, DNNL_ARG_BIAS);
    }
    dnnl_primitive_desc_destroy(pd);
    return status == dnnl_success ? MSI_PLUGIN_OK : onednn_failed(error, call, status);
}

static uint64_t hash_key(const matmul_key *key)
{
    const uint64_t *words = (const uint64_t *)key;
    uint64_t hash = 0;

    for (size_t i = 0; i < sizeof(*key) / sizeof(uint64_t); i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

static matmul **place_of(onednn *state, const matmul_key *key, uint64_t hash)
{
    const int64_t mask = MATMUL_PLACES - 1;
    int64_t i = (int64_t)hash & mask;

    while (state->table[i] != NULL &&
           (state->table[i]->hash != hash || memcmp(&state->table[i]->key, key, sizeof(*key)))) {
        i = (i + 1) & mask;
    }
    return &state->table[i];
}

/* Give up the primitive that has not been used for longest. The rest find new places: one that
 * was passed over on the way to another must not become empty. */
static void give_up_one(onednn *state)
{
    matmul *entries[MATMUL_PLACES], *oldest = NULL;

    memcpy(entries, state->table, sizeof(entries));
    memset(state->table, 0, sizeof(state->table));
    for (int64_t i = 0; i < MATMUL_PLACES; i++) {
        if (entries[i] != NULL && (oldest == NULL || entries[i]->last_used < oldest->last_used)) {
            oldest = entries[i];
        }
    }
    for (int64_t i = 0; i < MATMUL_PLACES; i++) {
        if (entries[i] != NULL && entries[i] != oldest) {
            *place_of(state, &entries[i]->key, entries[i]->hash) = entries[i];
        }
    }
    free_one(oldest);
    state->n_used--;
}

static int32_t add(onednn *state, const matmul_key *key, uint64_t hash, matmul **out, char *error)
{
    if (!state->host.probe(state->host.user, CREATING_BYTES, "making a matrix primitive")) {
        return MSI_PLUGIN_NO_MEMORY;
    }
    matmul *mm = calloc(1, sizeof(*mm));

    if (mm == NULL) {
        return onednn_failed(error, "making a table entry", dnnl_out_of_memory);
    }
    mm->key = *key;
    mm->hash = hash;
    int32_t outcome = create(state, mm, error);

    if (outcome != MSI_PLUGIN_OK) {
        free_one(mm);
        return outcome;
    }
    if (state->n_used == MATMUL_KEPT) {
        give_up_one(state);
    }
    *place_of(state, key, hash) = mm;
    state->n_used++;
    *out = mm;
    return MSI_PLUGIN_OK;
}

int32_t matmul_find(onednn *state, const matmul_key *key, matmul **out, char *error)
{
    uint64_t hash = hash_key(key);
    int32_t outcome = MSI_PLUGIN_OK;

    *out = *place_of(state, key, hash);
    if (*out == NULL) {
        outcome = add(state, key, hash, out, error);
    }
    if (*out != NULL) {
        (*out)->last_used = ++state->clock;
    }
    return outcome;
}
