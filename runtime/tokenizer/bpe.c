/* Byte-pair encoding: merges by rank, then from the left, as the reference applies them. A heap
 * keeps the candidates, since a tokenizer without a pre-tokenizer makes one word of a document. */
#include "bpe.h"

#include "array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CACHE_SLOTS = 1 << 16, MAX_CACHED = CACHE_SLOTS / 2, LONGEST_CACHED = 128 };

ms_status msi_ids_add(msi_ids *ids, const int32_t *more, int64_t n)
{
    if (MSI_UNLIKELY(n > ids->capacity - ids->n)) {
        const int64_t capacity =
            ids->n + n < 2 * ids->capacity ? 2 * ids->capacity : ids->n + n + 64;
        int32_t *data = realloc(ids->data, sizeof(*data) * (size_t)capacity);

        if (data == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for %lld tokens", (long long)capacity);
        }
        ids->data = data;
        ids->capacity = capacity;
    }
    if (n > 0) {
        memcpy(ids->data + ids->n, more, sizeof(*more) * (size_t)n);
        ids->n += n;
    }
    return MS_OK;
}

/* -- merges ------------------------------------------------------------------------------------ */

static inline msi_merge *slot_of(const msi_bpe *m, int32_t left, int32_t right)
{
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    int64_t slot = (int64_t)((pair * 0x9E3779B97F4A7C15u) >> 32) & (m->n_slots - 1);

    while (m->merges[slot].rank >= 0 && m->merges[slot].pair != pair) {
        slot = (slot + 1) & (m->n_slots - 1);
    }
    return &m->merges[slot];
}

static void find_bytes(msi_bpe *m)
{
    char text[8];

    for (int32_t b = 0; b < MSI_COUNT(m->bytes); b++) {
        snprintf(text, sizeof(text), "<0x%02X>", (unsigned)b);
        m->bytes[b] = msi_vocabulary_id(&m->vocabulary, text, 6);
    }
    for (int32_t c = 0; c < MSI_COUNT(m->low); c++) {
        m->low[c] = msi_vocabulary_id(&m->vocabulary, text, msi_utf8_write(text, (uint32_t)c));
    }
}

ms_status msi_bpe_begin(msi_bpe *m, int64_t n)
{
    for (m->n_slots = 16; m->n_slots < 2 * n; m->n_slots *= 2) {
    }
    MS_TRY(msi_new_array(&m->merges, m->n_slots, "merges"));
    for (int64_t i = 0; i < m->n_slots; i++) {
        m->merges[i].rank = -1;
    }
    MS_TRY(msi_new_array(&m->cache, CACHE_SLOTS, "words"));
    find_bytes(m);
    return MS_OK;
}

void msi_bpe_merge(msi_bpe *m, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    *slot_of(m, left, right) = (msi_merge){
        .pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, .rank = rank, .id = id};
}

void msi_bpe_dispose(msi_bpe *m)
{
    msi_vocabulary_dispose(&m->vocabulary);
    free(m->merges);
    free(m->symbols);
    free(m->heap);
    free(m->cache);
    free(m->words.data);
    free(m->found.data);
}

/* -- the heap: lowest rank first, then leftmost ------------------------------------------------ */

static inline bool before(msi_candidate a, msi_candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

/* Add the pair whose left symbol is `at`, if it has a merge. A word of n symbols has at most n - 1
 * pairs at first, and each merge, of which there are as many, adds at most two. */
static void consider(msi_bpe *m, int32_t at)
{
    const msi_symbol *s = &m->symbols[at];
    const msi_merge *merge = slot_of(m, s->id, m->symbols[s->next].id);

    if (merge->rank < 0) {
        return;
    }
    const msi_candidate c = {.rank = merge->rank, .at = at, .id = merge->id};
    int64_t i = m->n_heap++;

    for (; i > 0 && before(c, m->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        m->heap[i] = m->heap[(i - 1) / 2];
    }
    m->heap[i] = c;
}

static msi_candidate take_first(msi_bpe *m)
{
    const msi_candidate first = m->heap[0], last = m->heap[--m->n_heap];
    int64_t i = 0;

    for (int64_t child = 1; child < m->n_heap; child = 2 * i + 1) {
        child += child + 1 < m->n_heap && before(m->heap[child + 1], m->heap[child]);
        if (!before(m->heap[child], last)) {
            break;
        }
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return first;
}

/* -- words ------------------------------------------------------------------------------------- */

/* Room for a word of `n` bytes: a symbol is at least a byte. */
static ms_status make_room(msi_bpe *m, int64_t n)
{
    if (n <= m->room) {
        return MS_OK;
    }
    free(m->symbols);
    free(m->heap);
    m->symbols = NULL;
    m->heap = NULL;
    m->room = 0;
    MS_TRY(msi_new_array(&m->symbols, 2 * n, "symbols of a word"));
    MS_TRY(msi_new_array(&m->heap, 3 * 2 * n, "merges of a word"));
    m->room = 2 * n;
    return MS_OK;
}

static void add_symbol(msi_bpe *m, int32_t *n, int32_t id)
{
    m->symbols[*n] = (msi_symbol){.id = id, .length = 1, .previous = *n - 1, .next = *n + 1};
    ++*n;
}

/* Add the bytes of an unknown character. @return false if a byte has no token */
static bool add_bytes(msi_bpe *m, int32_t *n, const char *c, int32_t length)
{
    for (int32_t i = 0; i < length; i++) {
        if (m->bytes[(unsigned char)c[i]] < 0) {
            return false;
        }
    }
    for (int32_t i = 0; i < length; i++) {
        add_symbol(m, n, m->bytes[(unsigned char)c[i]]);
    }
    return true;
}

/* The characters of a word as symbols; an unknown one becomes bytes, the unknown token, or nothing.
 * As in the reference an unknown token follows bytes that come behind it. @return their number */
static int32_t begin_word(msi_bpe *m, const char *word, int64_t n)
{
    bool unknown = false;
    int32_t n_symbols = 0, length;

    for (int64_t at = 0; at < n; at += length) {
        const uint32_t c = msi_utf8_char(word + at, &length);
        const int32_t id = c < (uint32_t)MSI_COUNT(m->low)
                               ? m->low[c]
                               : msi_vocabulary_id(&m->vocabulary, word + at, length);

        if (id < 0 &&
            ((m->byte_fallback && add_bytes(m, &n_symbols, word + at, length)) || m->unk < 0)) {
            continue;
        }
        if (unknown && (id >= 0 || !m->fuse_unk)) {
            add_symbol(m, &n_symbols, m->unk);
        }
        unknown = id < 0;
        if (id >= 0) {
            add_symbol(m, &n_symbols, id);
        }
    }
    if (unknown) {
        add_symbol(m, &n_symbols, m->unk);
    }
    if (n_symbols > 0) {
        m->symbols[n_symbols - 1].next = -1;
    }
    return n_symbols;
}

/* Apply the candidate, unless its pair is gone: another symbol became a neighbour. */
static void apply(msi_bpe *m, msi_candidate c)
{
    msi_symbol *left = &m->symbols[c.at];

    if (left->length == 0 || left->next < 0) {
        return;
    }
    msi_symbol *right = &m->symbols[left->next];
    const msi_merge *merge = slot_of(m, left->id, right->id);

    if (merge->rank < 0 || merge->id != c.id) {
        return;
    }
    left->id = c.id;
    right->length = 0;
    left->next = right->next;
    if (left->next >= 0) {
        m->symbols[left->next].previous = c.at;
        consider(m, c.at);
    }
    if (left->previous >= 0) {
        consider(m, left->previous);
    }
}

static ms_status merge_word(msi_bpe *m, msi_ids *ids, const char *word, int64_t n)
{
    MS_TRY(make_room(m, n));
    const int32_t n_symbols = begin_word(m, word, n);

    m->n_heap = 0;
    for (int32_t at = 0; at + 1 < n_symbols; at++) {
        consider(m, at);
    }
    while (m->n_heap > 0) {
        apply(m, take_first(m));
    }
    for (int32_t at = n_symbols > 0 ? 0 : -1; at >= 0; at = m->symbols[at].next) {
        MS_TRY(msi_ids_add(ids, &m->symbols[at].id, 1));
    }
    return MS_OK;
}

/* The word's slot in the cache, or the free slot where it belongs. */
static msi_cached *cached(const msi_bpe *m, const char *word, int64_t n, uint64_t hash)
{
    uint64_t slot = hash & (CACHE_SLOTS - 1);

    while (m->cache[slot].length > 0 &&
           (m->cache[slot].hash != hash || m->cache[slot].length != n ||
            memcmp(m->words.data + m->cache[slot].word, word, (size_t)n) != 0)) {
        slot = (slot + 1) & (CACHE_SLOTS - 1);
    }
    return &m->cache[slot];
}

/* Keep the ids of a word; a full cache begins anew. */
static ms_status keep(msi_bpe *m, msi_cached *slot, const char *word, int64_t n, uint64_t hash,
                      const int32_t *ids, int64_t n_ids)
{
    if (m->n_cached == MAX_CACHED) {
        memset(m->cache, 0, sizeof(*m->cache) * CACHE_SLOTS);
        m->n_cached = m->words.n = m->found.n = 0;
        slot = cached(m, word, n, hash);
    }
    const msi_cached entry = {.hash = hash,
                              .word = m->words.n,
                              .ids = m->found.n,
                              .length = (int32_t)n,
                              .n_ids = (int32_t)n_ids};

    MS_TRY(msi_bytes_add(&m->words, word, n));
    MS_TRY(msi_ids_add(&m->found, ids, n_ids));
    *slot = entry;
    m->n_cached++;
    return MS_OK;
}

ms_status msi_bpe_encode(msi_bpe *m, msi_ids *ids, const char *word, int64_t n)
{
    const int64_t first = ids->n;

    if (n == 0) {
        return MS_OK;
    }
    if (n > 1 << 30) {
        return MS_FAIL(MS_VALUE_ERROR, "a word has %lld bytes, expected at most %d", (long long)n,
                       1 << 30);
    }
    const uint64_t hash = n <= LONGEST_CACHED ? XXH3_64bits(word, (size_t)n) : 0;
    msi_cached *slot = n <= LONGEST_CACHED ? cached(m, word, n, hash) : NULL;

    if (slot != NULL && slot->length > 0) {
        return msi_ids_add(ids, m->found.data + slot->ids, slot->n_ids);
    }
    const int32_t whole = m->ignore_merges ? msi_vocabulary_id(&m->vocabulary, word, n) : -1;

    MS_TRY(whole >= 0 ? msi_ids_add(ids, &whole, 1) : merge_word(m, ids, word, n));
    return slot == NULL ? MS_OK : keep(m, slot, word, n, hash, ids->data + first, ids->n - first);
}
