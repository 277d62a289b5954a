#include "table.h"

const msi_op *const msi_ops[] = {
#define ROW(name) &msi_op_##name,
    MSI_OPS(ROW)
#undef ROW
        NULL};
