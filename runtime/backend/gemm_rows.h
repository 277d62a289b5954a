/* Products of few rows, as in generation: for the choice of the means and for the own kernel. */
#ifndef MSI_GEMM_ROWS_H
#define MSI_GEMM_ROWS_H

#include "kernel_args.h"

#include "moonshard/tensor.h"

enum { MSI_GEMM_ROWS = 4, MSI_GEMM_ROWS_NUMEL = 4096 };

/* A product that reads b, dense along k, once for a few rows of a: bound by memory. Smaller ones
 * keep the order of sums of the blocked kernel, as f64 does. */
static inline bool msi_gemm_has_few_rows(const msi_gemm_args *g)
{
    return g->m <= MSI_GEMM_ROWS && g->a_col == 1 && g->b_row == 1 && g->dtype != MS_DTYPE_F64 &&
           g->n * g->k > MSI_GEMM_ROWS_NUMEL;
}

#endif
