/* Arithmetic of sharding: offsets, padding, owners of elements. Pure: no memory of ranks, no
 * communication. Counts are elements, never bytes. */
#ifndef MOONSHARD_LAYOUT_H
#define MOONSHARD_LAYOUT_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The layout of parameters that are gathered together: as one flat parameter, of which each rank
 * has a range, or by rows, of which each rank has some of every parameter. */
typedef struct ms_layout ms_layout;

/** A range of the full parameters in a row: a parameter, or padding (`param` is -1). */
typedef struct ms_layout_entry {
    int64_t offset;
    int64_t numel;
    int32_t param;
} ms_layout_entry;

/** A rank's piece of one parameter; numel 0 and `present` false if it has none. */
typedef struct ms_layout_piece {
    int64_t offset_in_shard; /**< of the piece's first element in the shard */
    int64_t start;           /**< of the piece in the parameter */
    int64_t numel;
    bool present;
} ms_layout_piece;

/**
 * Lay `n` parameters out flat, in order.
 * @param out         the caller owns `*out`
 * @param numels      (n) elements of each parameter
 * @param align       elements per 16 bytes of the forward dtype; 0 or 1: no alignment, and no
 *                    padding for the world inside the flat (shards are then padded on the right)
 * @param world_size  number of ranks, >= 1
 * @return MS_VALUE_ERROR for an empty list, a negative numel or a world below 1
 * Source: the behaviour of torch.distributed.fsdp's FlatParamHandle.
 */
MS_API ms_status ms_layout_flat(ms_layout **out, const int64_t *numels, int32_t n, int64_t align,
                                int32_t world_size);
/**
 * Cut each of `n` parameters along dimension 0, as ms_layout_rows() does. A shard has a rank's rows
 * of all parameters in order, each padded to the rows of rank 0.
 * @param numels      (n) elements of each parameter
 * @param row_numels  (n) elements of a row of each; 0 only without elements
 * @param align       as in ms_layout_flat(), of the full parameters
 * Source: the behaviour of torch.distributed.fsdp.fully_shard.
 */
MS_API ms_status ms_layout_by_rows(ms_layout **out, const int64_t *numels,
                                   const int64_t *row_numels, int32_t n, int64_t align,
                                   int32_t world_size);
MS_API void ms_layout_free(ms_layout *layout);
/** Elements of all parameters in a row, with inner padding. */
MS_API int64_t ms_layout_total(const ms_layout *layout);
/** Elements per rank, with padding, equal on all ranks. */
MS_API int64_t ms_layout_shard_numel(const ms_layout *layout);
MS_API int32_t ms_layout_n_entries(const ms_layout *layout);
MS_API ms_status ms_layout_entry_get(const ms_layout *layout, int32_t i, ms_layout_entry *entry);
/** Offset of parameter `param` in the row. */
MS_API int64_t ms_layout_offset(const ms_layout *layout, int32_t param);
MS_API ms_status ms_layout_piece_get(const ms_layout *layout, int32_t rank, int32_t param,
                                     ms_layout_piece *piece);

/** True if parameters and ranks have equal places in both. */
MS_API bool ms_layout_equal(const ms_layout *a, const ms_layout *b);

/** Rows [*first, *first + *count) of dimension 0 that `rank` owns if a parameter is cut by rows
 * (torch.chunk: ceil pieces, later ones smaller or empty). Each rank sends `*padded` rows. */
MS_API ms_status ms_layout_rows(int64_t rows, int32_t world_size, int32_t rank, int64_t *first,
                                int64_t *count, int64_t *padded);

#ifdef __cplusplus
}
#endif

#endif
