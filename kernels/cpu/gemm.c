/* The built-in matrix product: for f64, for shapes too small for a call of the library, and for
 * builds without the library. bf16 and f16 are widened block by block, computed in f32 and rounded
 * once.
 *
 * Lanes are columns of C, so vectors may have each instruction set's width without changing bits:
 * see gemm_tile.h. Because fused multiply-add is not used (decision 8.10), its peak rate is half of
 * the library's. */
#include "element.h"
#include "gemm_rows.h"
#include "lanes.h"
#include "table.h"

#include "moonshard/tensor.h"

#include <string.h>

#if MSI_ISA == 4
enum { VECTOR_BYTES = 64, ROWS = 8 };
#elif MSI_ISA == 3
enum { VECTOR_BYTES = 32, ROWS = 4 };
#else
enum { VECTOR_BYTES = 16, ROWS = 4 };
#endif
enum { MC = 64, NC = 128, KC = 128 };

void MSI_NAME(gemm_rows_f32)(const void *args);
void MSI_NAME(gemm_rows_bf16)(const void *args);
void MSI_NAME(gemm_rows_f16)(const void *args);

#define NAME gemm_f32
#define FEW_ROWS MSI_NAME(gemm_rows_f32)
#define REAL float
#define T float
#define WIDEN(x) (x)
#include "gemm_tile.h"

#define NAME gemm_f64
#define REAL double
#define T double
#define WIDEN(x) (x)
#include "gemm_tile.h"

#define WIDENED

#define NAME gemm_bf16
#define FEW_ROWS MSI_NAME(gemm_rows_bf16)
#define REAL float
#define T uint16_t
#define DTYPE MS_DTYPE_BF16
#define WIDEN(x) get_bf16(x)
#define NARROWED(x) put_bf16(x)
#include "gemm_tile.h"

#define NAME gemm_f16
#define FEW_ROWS MSI_NAME(gemm_rows_f16)
#define REAL float
#define T uint16_t
#define DTYPE MS_DTYPE_F16
#define WIDEN(x) get_f16(x)
#define NARROWED(x) put_f16(x)
#include "gemm_tile.h"
