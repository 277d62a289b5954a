/* Transposed tiles of a matrix, for reading a source that is dense across the rows of its
 * destination. */
#ifndef MSI_TILE_H
#define MSI_TILE_H

#include "lanes.h"
#include "table.h"

enum {
    TILE_LENGTH = 128,            /* elements of a row */
    TILE_LINE = 64,               /* bytes read at once: a cache line */
    TILE_PITCH = TILE_LENGTH + 16 /* distance between rows, so that they use different cache sets */
};

/* Rows in a tile of elements of `bytes` each. */
static inline int64_t tile_rows(int64_t bytes)
{
    return TILE_LINE / bytes;
}

/* to[j][i] = from[i][j] for i < n and j < rows; rows of `to` are TILE_PITCH apart, those of `from`
 * `stride` elements. n <= TILE_LENGTH, rows <= tile_rows(bytes). */
#define tile_read MSI_NAME(tile_read)
void tile_read(void *to, const void *from, int64_t stride, int64_t n, int64_t rows, int64_t bytes);

#endif
