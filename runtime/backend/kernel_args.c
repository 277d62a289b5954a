/* Copies of kernel arguments, for devices that run later. */
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
