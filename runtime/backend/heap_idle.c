/* Blocks that wait for a mark, and returning idle memory: a piece is returned once all its blocks
 * were free for two steps. A step is STEP allocations, so that it does not depend on speed. */
#include "heap.h"

enum { STEP = 1 << 15 };

/* -- blocks that must not be reused before a point in a stream --------------------------------- */

void msi_wait_for(msi_mem_block *b, msi_mark mark)
{
    msi_waiting *w = &b->heap->waiting[mark.stream];

    b->ticket = mark.ticket;
    b->next = NULL;
    *(w->first != NULL ? &w->last->next : &w->first) = b;
    w->last = b;
    b->heap->n_waiting++;
}

/* Done also if the device failed, as nothing will use it. */
static bool is_over(msi_device *d, msi_mark mark, int32_t until)
{
    return until == MSI_UNTIL_CLOSED ||
           (until == MSI_UNTIL_WAITED ? msi_device_drain_to(d, mark)
                                      : d->ops->done(d, mark) != MSI_DEV_NOT_YET);
}

void msi_heap_free_waiting(msi_heap *h, int32_t until)
{
    for (int32_t i = 0; h->n_waiting > 0 && i < MSI_STREAMS; i++) {
        msi_waiting *w = &h->waiting[i];

        while (w->first != NULL && is_over(h->device, (msi_mark){i, w->first->ticket}, until)) {
            msi_mem_block *b = w->first;

            w->first = b->next;
            h->n_waiting--;
            msi_block_free(b);
        }
    }
}

/* -- idle memory ------------------------------------------------------------------------------- */

/* Return a class's pieces whose blocks were all released before allocation `n`. */
static void trim_class(msi_class *c, int64_t n)
{
    msi_mem_block **end = &c->free, *gone = NULL;

    while (*end != NULL && (*end)->released > n) {
        end = &(*end)->next;
    }
    for (msi_mem_block *b = *end; b != NULL; b = b->next) {
        b->first->n_free++;
    }
    while (*end != NULL) {
        msi_mem_block *b = *end;

        if (b->first->n_free < b->first->n_blocks) {
            b->first->n_free = 0; /* likewise for its other blocks */
            end = &b->next;
            continue;
        }
        *end = b->next;
        if (b == b->first) {
            b->next = gone;
            gone = b;
        }
    }
    while (gone != NULL) {
        msi_mem_block *next = gone->next;

        msi_piece_give(gone);
        gone = next;
    }
}

/* Bytes of free blocks released before allocation `n`. */
static int64_t bytes_idle_since(const msi_heap *h, int64_t n)
{
    int64_t bytes = 0;

    for (int32_t i = 0; i < MSI_CLASSES; i++) {
        for (const msi_mem_block *b = h->classes[i].free; b != NULL; b = b->next) {
            bytes += b->released <= n ? b->list->capacity : 0;
        }
    }
    return bytes;
}

/* Pieces go after their users have run, so not inside a running item, whose later work may use
 * them. (Free host blocks have no users.) */
static void trim(msi_heap *h, int64_t n)
{
    const bool is_used = h->device != NULL && h->place != MSI_PLACE_PINNED;

    if (bytes_idle_since(h, n) == 0 || (is_used && !msi_device_drain(h->device))) {
        return;
    }
    for (int32_t i = 0; i < MSI_CLASSES; i++) {
        trim_class(&h->classes[i], n);
    }
}

void msi_heap_trim(msi_heap *h)
{
    trim(h, INT64_MAX);
}

int64_t msi_heap_cached(const msi_heap *h)
{
    return bytes_idle_since(h, INT64_MAX);
}

void msi_heap_end_step(msi_heap *h)
{
    trim(h, h->step_end - 2 * STEP);
    h->step_end += STEP;
}
