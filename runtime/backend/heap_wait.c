/* Blocks that must not be reused before a point in a stream. */
#include "heap.h"

void msi_wait_for(msi_mem_block *b, msi_mark mark)
{
    msi_waiting *w = &b->heap->waiting[mark.stream];

    b->ticket = mark.ticket;
    b->next = NULL;
    *(w->first != NULL ? &w->last->next : &w->first) = b;
    w->last = b;
    b->heap->n_waiting++;
}

/* Free one stream's blocks up to the first one not over. */
static void free_until(msi_heap *h, int32_t stream, bool (*is_over)(msi_device *d, msi_mark mark))
{
    msi_waiting *w = &h->waiting[stream];

    while (w->first != NULL && is_over(h->device, (msi_mark){stream, w->first->ticket})) {
        msi_mem_block *b = w->first;

        w->first = b->next;
        h->n_waiting--;
        msi_block_free(b);
    }
}

static void free_all_until(msi_heap *h, bool (*is_over)(msi_device *d, msi_mark mark))
{
    for (int32_t i = 0; h->n_waiting > 0 && i < MSI_STREAMS; i++) {
        free_until(h, i, is_over);
    }
}

/* Also true if the device failed, as nothing will use it. */
static bool is_done(msi_device *d, msi_mark mark)
{
    return d->ops->done(d, mark) != MSI_DEV_NOT_YET;
}

static bool is_waited_for(msi_device *d, msi_mark mark)
{
    return msi_device_drain_to(d, mark);
}

static bool is_gone(msi_device *d, msi_mark mark)
{
    (void)d;
    (void)mark;
    return true;
}

void msi_wait_look(msi_heap *h)
{
    free_all_until(h, is_done);
}

void msi_wait_end(msi_heap *h)
{
    free_all_until(h, is_waited_for);
}

void msi_wait_forget(msi_heap *h)
{
    free_all_until(h, is_gone);
}
