/* Byte-pair encoding of single words. */
#ifndef MSI_BPE_H
#define MSI_BPE_H

#include "vocabulary.h"

/* Zeroed: empty. The owner frees `data`. */
typedef struct msi_ids {
    int32_t *data;
    int64_t n, capacity;
} msi_ids;

ms_status msi_ids_add(msi_ids *ids, const int32_t *more, int64_t n);

typedef struct msi_merge {
    uint64_t pair; /* left << 32 | right */
    int32_t rank, id;
} msi_merge;

/* An adjacent pair that has a merge. */
typedef struct msi_candidate {
    int32_t rank, at, id; /* at: symbol on the left */
} msi_candidate;

/* A part of the word; length 0: merged into the one on its left. */
typedef struct msi_symbol {
    int32_t id, length, previous, next; /* neighbours: -1 at the ends */
} msi_symbol;

typedef struct msi_cached {
    uint64_t hash;
    int64_t word, ids; /* in `words` and `found` */
    int32_t length, n_ids;
} msi_cached;

/* A model. Its owner sets the fields up to `fuse_unk` and zeroes the others. */
typedef struct msi_bpe {
    msi_vocabulary vocabulary;
    int32_t unk; /* -1: none */
    bool byte_fallback, ignore_merges, fuse_unk;

    msi_merge *merges; /* (n_slots), a power of two, by pair; rank -1: free */
    int64_t n_slots;
    int32_t bytes[256]; /* ids of <0xHH>; -1: none */
    int32_t low[512];   /* ids of the first characters of Unicode */

    /* scratch */
    msi_symbol *symbols;
    msi_candidate *heap;
    int64_t room, heap_room, n_heap;

    /* the last words and their ids */
    msi_cached *cache;
    int64_t n_cached;
    msi_bytes words;
    msi_ids found;
} msi_bpe;

/* Make room for `n` merges; once. */
ms_status msi_bpe_begin(msi_bpe *m, int64_t n);
/* The merge of two tokens. Of two merges of a pair the later one counts. */
void msi_bpe_merge(msi_bpe *m, int32_t left, int32_t right, int32_t rank, int32_t id);
/* Append the ids of a word of valid UTF-8. MS_VALUE_ERROR for one above 2^30 bytes. */
ms_status msi_bpe_encode(msi_bpe *m, msi_ids *ids, const char *word, int64_t n);
void msi_bpe_dispose(msi_bpe *m);

#endif
