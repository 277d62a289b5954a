/* Words in host memory that streams of several ranks post and await, where the driver has no
 * stream memory operations. */
#include "cuda_kernel.h"

static __global__ void await_word(const volatile uint64_t *word, uint64_t value)
{
    while (threadIdx.x == 0 && (int64_t)(*word - value) < 0) {
        __nanosleep(500);
    }
}

static __global__ void post_word(volatile uint64_t *word, uint64_t value)
{
    if (threadIdx.x == 0) {
        __threadfence_system();
        *word = value;
    }
}

extern "C" cudaError_t msi_cuda_await_word(cudaStream_t stream, const uint64_t *word,
                                           uint64_t value)
{
    return ms_launch(await_word, 1, 32, 0, stream, (const volatile uint64_t *)word, value);
}

extern "C" cudaError_t msi_cuda_post_word(cudaStream_t stream, uint64_t *word, uint64_t value)
{
    return ms_launch(post_word, 1, 32, 0, stream, (volatile uint64_t *)word, value);
}
