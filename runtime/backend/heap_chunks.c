/* Chunks: what one request to a device's system gives, and pieces cut from them.
 *
 * A request to the system may stop the device, so its size is info.chunk or more. A piece comes
 * from the smallest free range that holds it; neighbouring free ranges are joined. A chunk without
 * pieces is returned. Ranges of a chunk are in order of addresses and are aligned to RANGE_BYTES.
 */
#include "heap.h"

#include <stdlib.h>

enum { RANGE_BYTES = 512 };

typedef struct range {
    struct range *next;
    int64_t begin, nbytes; /* in its chunk */
    bool is_free;
} range;

struct msi_chunk {
    msi_chunk *next;
    char *data;
    int64_t nbytes;
    range first;
};

static void *take_chunk(msi_heap *h, int64_t nbytes)
{
    msi_chunk *c = calloc(1, sizeof(*c));
    void *p = NULL;

    if (c == NULL || h->device->ops->take(h->device, nbytes, h->place, &p) != MSI_DEV_OK) {
        free(c);
        return NULL;
    }
    c->data = p;
    c->nbytes = nbytes;
    c->first = (range){.nbytes = nbytes, .is_free = true};
    c->next = h->chunks;
    h->chunks = c;
    h->stats.reserved += nbytes;
    h->stats.n_system++;
    return c;
}

/* The smallest free range that holds `nbytes`; NULL: none. */
static range *find(const msi_heap *h, int64_t nbytes, msi_chunk **in)
{
    range *best = NULL;

    for (msi_chunk *c = h->chunks; c != NULL; c = c->next) {
        for (range *r = &c->first; r != NULL; r = r->next) {
            if (r->is_free && r->nbytes >= nbytes && (best == NULL || r->nbytes < best->nbytes)) {
                best = r;
                *in = c;
            }
        }
    }
    return best;
}

void *msi_chunk_take(msi_heap *h, int64_t bytes)
{
    const int64_t nbytes = msi_round_up(bytes, RANGE_BYTES);
    msi_chunk *c;
    range *r = find(h, nbytes, &c);

    if (r == NULL) {
        const int64_t least = nbytes > h->chunk_bytes ? nbytes : h->chunk_bytes;

        if (take_chunk(h, least) == NULL && (least == nbytes || take_chunk(h, nbytes) == NULL)) {
            return NULL;
        }
        c = h->chunks;
        r = &c->first;
    }
    range *rest = r->nbytes > nbytes ? malloc(sizeof(*rest)) : NULL;

    if (rest != NULL) { /* without memory for it the piece is larger */
        *rest = (range){r->next, r->begin + nbytes, r->nbytes - nbytes, true};
        r->next = rest;
        r->nbytes = nbytes;
    }
    r->is_free = false;
    return c->data + r->begin;
}

/* Join free neighbours. */
static void join(msi_chunk *c)
{
    for (range *r = &c->first; r->next != NULL;) {
        range *next = r->next;

        if (r->is_free && next->is_free) {
            r->nbytes += next->nbytes;
            r->next = next->next;
            free(next);
        } else {
            r = next;
        }
    }
}

static void free_chunk(msi_heap *h, msi_chunk **at)
{
    msi_chunk *c = *at;

    *at = c->next;
    h->stats.reserved -= c->nbytes;
    if (h->device != NULL) {
        h->device->ops->give(h->device, c->data, c->nbytes, h->place);
    }
    for (range *r = c->first.next; r != NULL;) {
        range *next = r->next;

        free(r);
        r = next;
    }
    free(c);
}

void msi_chunk_give(msi_heap *h, const void *p)
{
    msi_chunk **at = &h->chunks;

    while (*at != NULL &&
           ((const char *)p < (*at)->data || (const char *)p >= (*at)->data + (*at)->nbytes)) {
        at = &(*at)->next;
    }
    msi_chunk *c = *at;

    if (c == NULL) {
        return;
    }
    for (range *r = &c->first; r != NULL; r = r->next) {
        if (c->data + r->begin == (const char *)p) {
            r->is_free = true;
        }
    }
    join(c);
    if (c->first.is_free && c->first.next == NULL) {
        free_chunk(h, at);
    }
}

void msi_chunks_forget(msi_heap *h)
{
    while (h->chunks != NULL) {
        free_chunk(h, &h->chunks);
    }
}
