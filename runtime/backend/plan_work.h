/* What a kernel computes and moves, from its arguments. */
#ifndef MSI_PLAN_WORK_H
#define MSI_PLAN_WORK_H

#include "kernels.h"

typedef struct msi_work {
    double flops;   /* of products, convolutions and attention */
    double targets; /* rows of cross-entropy losses that are differentiated */
    double nbytes;  /* read and written by kernels that these do not dominate */
} msi_work;

/* Of a kernel (MSI_K_*) that was looked up by `dtype`; nothing: initial values and rare kernels. */
msi_work msi_work_of(int32_t kernel, int32_t dtype, const void *args);

#endif
