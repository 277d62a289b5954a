/* Scratch size of the attention kernels. The CPU's layout: kernels/cpu/attention.c. */
#include "device.h"

#include "moonshard/tensor.h"

int64_t msi_attention_work_bytes(const msi_attention_args *a, int32_t dtype, bool gradient)
{
    const int64_t of_device =
        msi_work_bytes(a->ctx, gradient ? MSI_K_attention_grad : MSI_K_attention, dtype, a);

    if (of_device >= 0) {
        return of_device;
    }
    const int64_t real = dtype == MS_DTYPE_F64 ? 8 : 4; /* scores and sums */
    const int64_t store = ms_dtype_size(a->tile_dtype);
    const int64_t rows = a->q_len < MSI_ATTENTION_ROWS ? a->q_len : MSI_ATTENTION_ROWS;
    const int64_t cols = a->kv_len < MSI_ATTENTION_COLS ? a->kv_len : MSI_ATTENTION_COLS;
    const int64_t tile = rows * ((cols + 15) / 16 * 16), depth = a->head_dim;
    int64_t bytes = (a->q_len + 2 * a->kv_len) * depth * store + tile * (real + store);

    if (gradient) {
        bytes += a->q_len * depth * (store + real) + tile * (real + store) +
                 2 * cols * depth * real + a->q_len * real;
        if (a->kv_heads < a->heads) {
            bytes += 2 * a->kv_len * depth * real;
        }
    } else {
        bytes += rows * depth * real;
    }
    return bytes + 14 * 64; /* cache line alignment of each part */
}
