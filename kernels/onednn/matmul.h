/* Matrix products by oneDNN: a table of primitives keyed by everything a product depends on but
 * its pointers. */
#ifndef MSI_ONEDNN_MATMUL_H
#define MSI_ONEDNN_MATMUL_H

#include "guarded.h"
#include "plugin.h"

/* What distinguishes one primitive from another. All members are int64_t, so equal keys are equal
 * bytes. Strides of dimensions with one entry are normalised. */
typedef struct matmul_key {
    int64_t m, n, k, batch;
    int64_t a_row, a_col, b_row, b_col, c_row;
    int64_t a_batch, b_batch, c_batch;
    int64_t dtype, c_dtype, bias, accumulate;
} matmul_key;

enum {
    /* Primitives kept. A training step has twenty; one takes 50 KiB (AVX2) to 140 KiB (AMX), most
     * of it generated code, so text written at ever new lengths must not keep all. */
    MATMUL_KEPT = 256,
    MATMUL_PLACES = 2 * MATMUL_KEPT /* a power of two */
};

/* A primitive with its memory objects, whose data handles are set anew for each run. */
typedef struct matmul {
    matmul_key key;
    uint64_t hash;
    dnnl_primitive_t primitive; /* NULL: the library has nothing good for this key */
    dnnl_exec_arg_t args[5];    /* source, weights, destination, scratch, bias */
    int32_t n_args;
    int64_t scratch_nbytes;
    int64_t last_used; /* by the state's clock */
} matmul;

/* One context's state. */
typedef struct onednn {
    msi_plugin_host host;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int64_t created;
    int64_t clock;                /* products looked for */
    int64_t n_used;               /* entries of the table */
    matmul *table[MATMUL_PLACES]; /* open addressing */
} onednn;

/* The primitive for `key`, from the table or created in place of the one unused for longest. */
int32_t matmul_find(onednn *state, const matmul_key *key, matmul **out, char *error);
/* Descriptor of the product; *name is the implementation's. dnnl_unimplemented: there is none. */
dnnl_status_t matmul_describe(const onednn *state, const matmul_key *key,
                              dnnl_primitive_desc_t *out, const char **name);
/* Is the implementation of this name, which was described, worth using for this dtype? */
bool matmul_good(int64_t dtype, const char *name);
void matmul_free_all(onednn *state);
/* Is there no implementation of what was described? (Else a failure is one.) */
bool matmul_unsupported(dnnl_status_t status);
/* Text of a failed library call. @return MSI_PLUGIN_FAILED or MSI_PLUGIN_NO_MEMORY */
int32_t onednn_failed(char *error, const char *call, dnnl_status_t status);

#endif
