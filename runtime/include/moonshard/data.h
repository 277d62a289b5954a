/* Token streams: mapped files, shuffled windows, sampling of the next token. */
#ifndef MOONSHARD_DATA_H
#define MOONSHARD_DATA_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Map a file of tokens read-only as a tensor of shape (n). Later writes to the file are visible. If
 * the file is truncated, lost bytes read as zeros (reported once on stderr), and ms_data_windows()
 * and ms_data_digest() of the tensor fail from then on, unless all lost bytes were zeros. The first
 * call chains a SIGBUS handler before the process's own.
 * @param out    the caller owns `*out`; writing to it is MS_RUNTIME_ERROR
 * @param dtype  MS_DTYPE_U8 or MS_DTYPE_I64 (native byte order), else MS_TYPE_ERROR
 * @return MS_IO_ERROR with the system's reason, MS_FORMAT_ERROR if the file is empty or not a
 *         multiple of the element size, MS_OUT_OF_MEMORY, also if 256 files are mapped
 */
MS_API ms_status ms_data_map(ms_tensor **out, const char *path, int32_t dtype);

/**
 * Tokens are u8 or i64 (n), or u8 (n, 2) or (n, 4): the bytes of unsigned numbers, the lowest
 * first. MS_TYPE_ERROR or MS_VALUE_ERROR for others.
 */

/** Number of windows of `context` tokens in `tokens`, each followed by at least one token. */
MS_API ms_status ms_data_n_windows(const ms_tensor *tokens, int64_t context, int64_t *n);

/**
 * Copy tokens [first, first + n).
 * @param out  i64 (n), contiguous, overwritten
 * @return MS_INDEX_ERROR if there are not so many, MS_IO_ERROR if a mapped file was truncated
 */
MS_API ms_status ms_data_read(ms_tensor *out, const ms_tensor *tokens, int64_t first);

/** Hash of a stream's length and of 64 KiB at each end, to tell files apart cheaply. */
MS_API ms_status ms_data_digest(const ms_tensor *tokens, uint64_t *digest);

/**
 * Copy the windows of B samples, and their targets one token later, and begin a micro-batch of
 * these samples (ms_samples_begin()).
 * Samples are numbered across epochs of `per_epoch` samples. Sample s of an epoch is window p(s),
 * where the permutation p of all windows depends only on (seed, epoch, number of windows) and is
 * computed without a table.
 * @param x, y       i64 (B, T), contiguous, overwritten
 * @param tokens     (n), or bytes as above
 * @param sample     number of row 0; it and the next B - 1 must be windows (MS_INDEX_ERROR)
 * @param per_epoch  at most the number of windows
 * @param shuffle    false: p is the identity
 * @return MS_IO_ERROR if a mapped file was truncated; x and y are then invalid
 */
MS_API ms_status ms_data_windows(ms_tensor *x, ms_tensor *y, const ms_tensor *tokens,
                                 int64_t sample, int64_t per_epoch, uint64_t seed, bool shuffle);

/**
 * Sample `i` of an epoch over n samples in shuffled order: the permutation of ms_data_windows().
 * @param i  0 to n - 1 (MS_INDEX_ERROR)
 */
MS_API ms_status ms_data_permute(int64_t *sample, int64_t i, int64_t n, uint64_t seed,
                                 int64_t epoch);

/** How a token is drawn. The steps follow in this order. */
typedef struct ms_sampling {
    const int64_t *seen;       /**< `n_seen` ids from 0; may be NULL. Repeated ids count once */
    int64_t n_seen;            /**< 0 or more */
    double repetition_penalty; /**< above 0; logits of seen ids are divided by it, negative ones
                                    multiplied; 1: unchanged */
    double temperature;        /**< divides logits; 0: the first largest is drawn */
    double top_p;              /**< keep the most likely tokens, up to the one with which their
                                    probabilities reach this, above 0; 1: all */
    double min_p;              /**< drop tokens less likely than this times the most likely one, 0
                                    to 1 */
    int32_t top_k;             /**< keep so many of the largest, before top_p; 0: all */
} ms_sampling;

/**
 * Draw one token from softmax(logits), as changed and limited by `how`. Of equal logits at a limit
 * the first ones are kept.
 * @param logits  floating, V elements; -inf is never drawn, +inf always before finite ones;
 *                MS_VALUE_ERROR for NaN, or if all are -inf
 * @param draw    number of this draw: equal (seed, draw) and logits give equal tokens
 * @return MS_INDEX_ERROR for a seen id that has no logit
 */
MS_API ms_status ms_data_sample(int64_t *token, const ms_tensor *logits, const ms_sampling *how,
                                uint64_t seed, int64_t draw);

#ifdef __cplusplus
}
#endif

#endif
