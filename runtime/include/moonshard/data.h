/* Token streams: files mapped as tensors, shuffled windows of them, and drawing the next token. */
#ifndef MOONSHARD_DATA_H
#define MOONSHARD_DATA_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Map a file of tokens read-only, as a tensor of shape (n). Should the file become shorter, what is
 * gone reads as zeros, and ms_data_windows() and ms_data_digest() of the tensor fail from then on,
 * whichever tokens they take (unless nothing but zeros is gone). Others only read, and when a page
 * is gone it is said once on stderr. The first call puts a handler for SIGBUS in front of the
 * process's own. What others write into the file meanwhile is read.
 * @param out    the caller owns `*out`; writing into it is MS_RUNTIME_ERROR
 * @param dtype  MS_DTYPE_U8 or MS_DTYPE_I64 (the machine's byte order)
 * @return MS_IO_ERROR with the system's reason, MS_FORMAT_ERROR when the file is empty or no
 *         multiple of the element's size, MS_TYPE_ERROR for another dtype, MS_OUT_OF_MEMORY
 *         also when 256 files are mapped
 */
MS_API ms_status ms_data_map(ms_tensor **out, const char *path, int32_t dtype);

/** Windows of `context` tokens that `tokens` holds, each with a successor for its last token. */
MS_API ms_status ms_data_n_windows(const ms_tensor *tokens, int64_t context, int64_t *n);

/** Hash of a stream's length and of what stands at its two ends (64 KiB each): tells files apart
 * without reading all of them. */
MS_API ms_status ms_data_digest(const ms_tensor *tokens, uint64_t *digest);

/**
 * Copy the windows of B samples, beside their targets one token later, and tell dropout which
 * samples these are: a new micro-batch begins.
 * Samples are counted on and on, `per_epoch` of them being an epoch. Sample s of an epoch is window
 * p(s), where p permutes all windows; it depends on nothing but (seed, epoch, number of windows),
 * and no table of it is ever held.
 * @param x, y       i64 (B, T), contiguous, overwritten
 * @param tokens     u8 or i64 (n)
 * @param sample     that in row 0; it and the B - 1 after it must be windows (MS_INDEX_ERROR)
 * @param per_epoch  at most as many as there are windows
 * @param shuffle    false: p is the identity
 * @return MS_IO_ERROR when a mapped file has lost bytes; x and y then hold no tokens
 */
MS_API ms_status ms_data_windows(ms_tensor *x, ms_tensor *y, const ms_tensor *tokens,
                                 int64_t sample, int64_t per_epoch, uint64_t seed, bool shuffle);

/**
 * Draw one token from softmax(logits / temperature), limited to the `top_k` largest.
 * @param logits       floating, V elements; one of -inf is never drawn, beside one of +inf nothing
 *                     else; MS_VALUE_ERROR for NaN, and when all are -inf
 * @param temperature  0: the largest, the first of equals
 * @param top_k        0: all
 * @param draw         number of this draw: equal (seed, draw) and logits give equal tokens
 */
MS_API ms_status ms_data_sample(int64_t *token, const ms_tensor *logits, double temperature,
                                int32_t top_k, uint64_t seed, int64_t draw);

#ifdef __cplusplus
}
#endif

#endif
