/* Copies of kernel arguments, for devices that run later, and the pointers in them. */
#include "backend.h"

#include <string.h>

/* Without the lists. */
static int64_t struct_bytes(int32_t kernel)
{
    static const int64_t bytes[] = {
#define BYTES(name, args) sizeof(args),
        MSI_KERNELS(BYTES)
#undef BYTES
    };

    return bytes[kernel];
}

static int64_t sources_bytes(const msi_tree_args *tree)
{
    return tree->n_src * (int64_t)sizeof(*tree->src);
}

int64_t msi_args_bytes(int32_t kernel, const void *args)
{
    return struct_bytes(kernel) + (kernel == MSI_K_tree ? sources_bytes(args) : 0);
}

void msi_args_copy(int32_t kernel, void *to, const void *args)
{
    memcpy(to, args, (size_t)struct_bytes(kernel));
    if (kernel == MSI_K_tree) {
        msi_tree_args *tree = to;

        memcpy(tree + 1, tree->src, (size_t)sources_bytes(tree));
        tree->src = (const msi_tree_source *)(const void *)(tree + 1);
    }
}

/* clang-format off: one line a struct */
/* -- pointers: a struct without a list does not compile ---------------------------------------- */

#define FIELDS_msi_ew_args(X, s)                                                                   \
    X(s, out, MEMORY) X(s, in[0], MEMORY) X(s, in[1], MEMORY) X(s, in[2], MEMORY)
#define FIELDS_msi_sum_args(X, s) X(s, in, MEMORY) X(s, out, MEMORY)
#define FIELDS_msi_reduction_args(X, s)                                                            \
    X(s, in, MEMORY) X(s, out, MEMORY) X(s, index, MEMORY) X(s, y, MEMORY) X(s, g, MEMORY)
#define FIELDS_msi_layer_norm_args(X, s)                                                           \
    X(s, x, MEMORY)                                                                                \
    X(s, w, MEMORY) X(s, b, MEMORY) X(s, y, MEMORY) X(s, mean, MEMORY) X(s, rstd, MEMORY)
#define FIELDS_msi_layer_norm_grad_args(X, s)                                                      \
    X(s, dy, MEMORY)                                                                               \
    X(s, x, MEMORY) X(s, w, MEMORY) X(s, mean, MEMORY) X(s, rstd, MEMORY) X(s, dx, MEMORY)         \
        X(s, dw, MEMORY) X(s, db, MEMORY)
#define FIELDS_msi_channel_norm_args(X, s)                                                         \
    X(s, x, MEMORY)                                                                                \
    X(s, w, MEMORY) X(s, b, MEMORY) X(s, stats, MEMORY) X(s, y, MEMORY) X(s, dy, MEMORY)           \
        X(s, dx, MEMORY) X(s, dw, MEMORY) X(s, db, MEMORY) X(s, work, MEMORY)
#define FIELDS_msi_softmax_args(X, s)                                                              \
    X(s, x, MEMORY) X(s, y, MEMORY) X(s, dy, MEMORY) X(s, out, MEMORY)
#define FIELDS_msi_cross_entropy_args(X, s)                                                        \
    X(s, logits, MEMORY)                                                                           \
    X(s, targets, MEMORY) X(s, loss, MEMORY) X(s, n_counted, MEMORY) X(s, max, MEMORY)             \
        X(s, sum, MEMORY) X(s, dloss, MEMORY) X(s, dlogits, MEMORY) X(s, fault, FAULT)
#define FIELDS_msi_nll_args(X, s)                                                                  \
    X(s, x, MEMORY) X(s, dy, MEMORY) X(s, targets, MEMORY) X(s, out, MEMORY) X(s, fault, FAULT)
#define FIELDS_msi_embedding_args(X, s)                                                            \
    X(s, ids, MEMORY)                                                                              \
    X(s, table, MEMORY) X(s, out, MEMORY) X(s, dy, MEMORY) X(s, dtable, MEMORY) X(s, work, MEMORY) \
        X(s, fault, FAULT)
#define FIELDS_msi_gather_args(X, s)                                                               \
    X(s, index, MEMORY) X(s, in, MEMORY) X(s, out, MEMORY) X(s, fault, FAULT)
#define FIELDS_msi_argsort_args(X, s) X(s, in, MEMORY) X(s, out, MEMORY) X(s, work, MEMORY)
#define FIELDS_msi_attention_args(X, s)                                                            \
    X(s, q, MEMORY)                                                                                \
    X(s, k, MEMORY) X(s, v, MEMORY) X(s, mask, MEMORY) X(s, out, MEMORY) X(s, max, MEMORY)         \
        X(s, rsum, MEMORY) X(s, o, MEMORY) X(s, dout, MEMORY) X(s, dq, MEMORY) X(s, dk, MEMORY)    \
            X(s, dv, MEMORY) X(s, dmask, MEMORY) X(s, work, MEMORY) X(s, ctx, CONTEXT)             \
                X(s, status, STATUS)
#define FIELDS_msi_conv_args(X, s)                                                                 \
    X(s, x, MEMORY)                                                                                \
    X(s, w, MEMORY) X(s, bias, MEMORY) X(s, dy, MEMORY) X(s, y, MEMORY) X(s, dx, MEMORY)           \
        X(s, dw, MEMORY) X(s, work, MEMORY) X(s, ctx, CONTEXT) X(s, status, STATUS)
#define FIELDS_msi_pool_args(X, s)                                                                 \
    X(s, x, MEMORY) X(s, dy, MEMORY) X(s, y, MEMORY) X(s, taps, MEMORY) X(s, dx, MEMORY)
#define FIELDS_msi_dropout_args(X, s) X(s, x, MEMORY) X(s, out, MEMORY)
#define FIELDS_msi_init_args(X, s) X(s, out, MEMORY)
#define FIELDS_msi_sgd_args(X, s) X(s, p, MEMORY) X(s, g, MEMORY) X(s, buf, MEMORY)
#define FIELDS_msi_adam_args(X, s)                                                                 \
    X(s, p, MEMORY) X(s, g, MEMORY) X(s, m, MEMORY) X(s, v, MEMORY) X(s, most, MEMORY)
#define FIELDS_msi_rmsprop_args(X, s)                                                              \
    X(s, p, MEMORY) X(s, g, MEMORY) X(s, v, MEMORY) X(s, mean, MEMORY) X(s, buf, MEMORY)
#define FIELDS_msi_adagrad_args(X, s) X(s, p, MEMORY) X(s, g, MEMORY) X(s, sum, MEMORY)
#define FIELDS_msi_lion_args(X, s) X(s, p, MEMORY) X(s, g, MEMORY) X(s, m, MEMORY)
#define FIELDS_msi_norm_args(X, s) X(s, x, MEMORY) X(s, out, MEMORY)
#define FIELDS_msi_norm_fold_args(X, s)                                                            \
    X(s, blocks, MEMORY) X(s, norm, MEMORY) X(s, coefficient, MEMORY)
#define FIELDS_msi_tree_args(X, s) X(s, out, MEMORY)
#define FIELDS_msi_gemm_args(X, s)                                                                 \
    X(s, a, MEMORY) X(s, b, MEMORY) X(s, c, MEMORY) X(s, bias, MEMORY) X(s, work, MEMORY)
/* clang-format on */

const msi_args_field *msi_args_fields(int32_t kernel, int32_t *n)
{
#define FIELD(s, name, kind) {offsetof(s, name), MSI_FIELD_##kind},
#define ROW(name, args)                                                                            \
    static const msi_args_field of_##name[] = {FIELDS_##args(FIELD, args){-1, 0}};
    MSI_KERNELS(ROW)
#undef ROW
    static const struct {
        const msi_args_field *fields;
        int32_t n;
    } rows[] = {
#define ROW(name, args) {of_##name, MSI_COUNT(of_##name) - 1},
        MSI_KERNELS(ROW)
#undef ROW
#undef FIELD
    };

    *n = rows[kernel].n;
    return rows[kernel].fields;
}
