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

/* -- pointers ---------------------------------------------------------------------------------- */

/* The pointers of a struct: a function of the struct's name returns them. A kernel whose struct has
 * no list does not compile. */
#define FIELDS(args, ...)                                                                          \
    static const msi_args_field *of_##args(int32_t *n)                                             \
    {                                                                                              \
        typedef args structure;                                                                    \
        static const msi_args_field fields[] = {__VA_ARGS__};                                      \
                                                                                                   \
        *n = MSI_COUNT(fields);                                                                    \
        return fields;                                                                             \
    }
#define FIELD(name, kind)                                                                          \
    {                                                                                              \
        offsetof(structure, name), kind                                                            \
    }
#define M(name) FIELD(name, MSI_FIELD_MEMORY)
#define FAULT(name) FIELD(name, MSI_FIELD_FAULT)
#define STATUS(name) FIELD(name, MSI_FIELD_STATUS)
#define CONTEXT(name) FIELD(name, MSI_FIELD_CONTEXT)
#define DRAW(name) FIELD(name, MSI_FIELD_DRAW)

FIELDS(msi_ew_args, M(out), M(in[0]), M(in[1]), M(in[2]))
FIELDS(msi_sum_args, M(in), M(out))
FIELDS(msi_reduction_args, M(in), M(out), M(index), M(y), M(g))
FIELDS(msi_layer_norm_args, M(x), M(w), M(b), M(y), M(mean), M(rstd))
FIELDS(msi_layer_norm_grad_args, M(dy), M(x), M(w), M(mean), M(rstd), M(dx), M(dw), M(db), M(work))
FIELDS(msi_channel_norm_args, M(x), M(w), M(b), M(stats), M(y), M(dy), M(dx), M(dw), M(db), M(work))
FIELDS(msi_softmax_args, M(x), M(y), M(dy), M(out))
FIELDS(msi_cross_entropy_args, M(logits), M(targets), M(loss), M(n_counted), M(max), M(sum),
       M(dloss), M(dlogits), FAULT(fault))
FIELDS(msi_nll_args, M(x), M(dy), M(targets), M(out), FAULT(fault))
FIELDS(msi_embedding_args, M(ids), M(table), M(out), M(dy), M(dtable), M(work), FAULT(fault))
FIELDS(msi_gather_args, M(index), M(in), M(out), FAULT(fault))
FIELDS(msi_argsort_args, M(in), M(out), M(work))
FIELDS(msi_attention_args, M(q), M(k), M(v), M(mask), DRAW(seed), M(out), M(max), M(rsum), M(o),
       M(dout), M(dq), M(dk), M(dv), M(dmask), M(work), CONTEXT(ctx), STATUS(status))
FIELDS(msi_rotary_args, M(x), M(cos), M(sin), M(out))
FIELDS(msi_conv_args, M(x), M(w), M(bias), M(dy), M(y), M(dx), M(dw), M(work), CONTEXT(ctx),
       STATUS(status))
FIELDS(msi_pool_args, M(x), M(dy), M(y), M(taps), M(dx))
FIELDS(msi_dropout_args, M(x), M(out), DRAW(seed))
FIELDS(msi_init_args, M(out))
FIELDS(msi_sgd_args, M(p), M(g), M(buf))
FIELDS(msi_adam_args, M(p), M(g), M(m), M(v), M(most))
FIELDS(msi_rmsprop_args, M(p), M(g), M(v), M(mean), M(buf))
FIELDS(msi_adagrad_args, M(p), M(g), M(sum))
FIELDS(msi_lion_args, M(p), M(g), M(m))
FIELDS(msi_norm_args, M(x), M(out))
FIELDS(msi_norm_cut_args, M(first), M(pieces), M(in), M(out))
FIELDS(msi_norm_fold_args, M(blocks), M(norm), M(coefficient))
FIELDS(msi_tree_args, M(out))
FIELDS(msi_gemm_args, M(a), M(b), M(c), M(bias), M(before), M(a_sum), M(work))

const msi_args_field *msi_args_fields(int32_t kernel, int32_t *n)
{
    static const msi_args_field *(*const of[])(int32_t *) = {
#define ROW(name, args) of_##args,
        MSI_KERNELS(ROW)
#undef ROW
    };

    return of[kernel](n);
}
