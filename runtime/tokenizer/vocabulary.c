/* Tokens and their ids: a hash table with open addressing, and a table by id. */
#include "vocabulary.h"

#include "array.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The slot of this text, or the free slot where it belongs. */
static int64_t slot_of(const msi_vocabulary *v, const char *text, int64_t n)
{
    int64_t slot = (int64_t)(XXH3_64bits(text, (size_t)n) & (uint64_t)(v->n_slots - 1));

    while (v->slots[slot] != 0) {
        const msi_token *t = &v->tokens[v->slots[slot] - 1];

        if (t->n == n && memcmp(v->text.data + t->start, text, (size_t)n) == 0) {
            break;
        }
        slot = (slot + 1) & (v->n_slots - 1);
    }
    return slot;
}

static ms_status grow_slots(msi_vocabulary *v)
{
    int32_t *slots;
    const int64_t n_slots = v->n_slots > 0 ? 2 * v->n_slots : 64;

    MS_TRY(msi_new_array(&slots, n_slots, "slots of a vocabulary"));
    free(v->slots);
    v->slots = slots;
    v->n_slots = n_slots;
    for (int32_t i = 0; i < v->n; i++) {
        const msi_token *t = &v->tokens[i];

        v->slots[slot_of(v, v->text.data + t->start, t->n)] = i + 1;
    }
    return MS_OK;
}

static ms_status grow_ids(msi_vocabulary *v, int32_t n_ids)
{
    if (n_ids > v->id_capacity) {
        const int32_t capacity = n_ids < 2 * v->id_capacity ? 2 * v->id_capacity : n_ids + 64;
        int32_t *by_id;

        MS_TRY(msi_new_array(&by_id, capacity, "ids of a vocabulary"));
        if (v->n_ids > 0) {
            memcpy(by_id, v->by_id, sizeof(*by_id) * (size_t)v->n_ids);
        }
        free(v->by_id);
        v->by_id = by_id;
        v->id_capacity = capacity;
    }
    v->n_ids = n_ids;
    return MS_OK;
}

ms_status msi_vocabulary_add(msi_vocabulary *v, const char *text, int64_t n, int32_t id)
{
    MS_TRY(msi_grow(&v->tokens, v->n, &v->capacity, sizeof(*v->tokens)));
    if (2 * ((int64_t)v->n + 1) > v->n_slots) {
        MS_TRY(grow_slots(v));
    }
    if (id >= v->n_ids) {
        MS_TRY(grow_ids(v, id + 1));
    }
    const int64_t start = v->text.n;

    MS_TRY(msi_bytes_add(&v->text, text, n));
    v->tokens[v->n] = (msi_token){.start = start, .n = (int32_t)n, .id = id};
    v->slots[slot_of(v, text, n)] = v->n + 1;
    v->by_id[id] = ++v->n;
    return MS_OK;
}

int32_t msi_vocabulary_find(const msi_vocabulary *v, const char *text, int64_t n)
{
    return v->n == 0 ? -1 : v->slots[slot_of(v, text, n)] - 1;
}

void msi_vocabulary_dispose(msi_vocabulary *v)
{
    free(v->text.data);
    free(v->tokens);
    free(v->slots);
    free(v->by_id);
}
