/* What lies idle goes back to the system.
 *
 * [Note: what stays cached] Once more than half of what the heap holds is in free blocks that a
 * window of allocations did without, they go back to the system. A step longer than
 * the window would lose blocks that it takes again: a class that has to ask the system after it
 * gave blocks back makes the windows twice as long, until they span a step. Windows are counted in
 * allocations, so every run does the same whatever the time. One is never shorter than the list of
 * free blocks that its end has to walk.
 *
 * [Note: how much is held] Sizes that never come again, of a text that grows or of rows of any
 * length, would fill every class they pass. So before the heap takes more than twice what was in
 * use at once of late (in this window or the last, and some MiB) it gives free blocks back, the
 * longest idle first. A loop gets there only where phases of different sizes take turns that want
 * more than that together: each then takes from the system what it misses, every time. */
#include "heap.h"

enum { LAST_WINDOW = 1 << 24, ALWAYS_HELD = 32 << 20 };

/* Give back the pieces of a class whose blocks were all released by allocation `n`. */
static bool trim_class(msi_class *c, int64_t n)
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
            b->first->n_free = 0; /* and so for the piece's other blocks */
            end = &b->next;
            continue;
        }
        *end = b->next;
        if (b == b->first) {
            b->next = gone;
            gone = b;
        }
    }
    const bool some = gone != NULL;

    while (gone != NULL) {
        msi_mem_block *next = gone->next;

        msi_piece_give(gone);
        gone = next;
    }
    return some;
}

void msi_heap_trim(msi_heap *h)
{
    if (!msi_pieces_may_go(h)) {
        return;
    }
    for (int32_t i = 0; i < h->n_classes; i++) {
        trim_class(&h->classes[i], INT64_MAX);
    }
}

typedef struct free_blocks {
    int64_t n;
    int64_t bytes;
    int64_t old_bytes; /* of those that were released by the allocation asked about */
} free_blocks;

/* ... by allocation `n`. */
static free_blocks count_free(const msi_heap *h, int64_t n)
{
    free_blocks f = {0};

    for (int32_t i = 0; i < h->n_classes; i++) {
        for (const msi_mem_block *b = h->classes[i].free; b != NULL; b = b->next) {
            f.n++;
            f.bytes += b->list->capacity;
            f.old_bytes += b->released <= n ? b->list->capacity : 0;
        }
    }
    return f;
}

int64_t msi_heap_cached(const msi_heap *h)
{
    return count_free(h, INT64_MAX).bytes;
}

/* See [Note: what stays cached]. What lay free since the window began, it did without. */
void msi_heap_end_window(msi_heap *h)
{
    const free_blocks f = count_free(h, h->window_began);

    if (f.old_bytes > h->stats.reserved / 2 && msi_pieces_may_go(h)) {
        for (int32_t i = 0; i < h->n_classes; i++) {
            h->classes[i].gave_back |= trim_class(&h->classes[i], h->window_began);
        }
    }
    if (h->missed && h->window < LAST_WINDOW) {
        h->window *= 2;
    }
    h->missed = false;
    h->most_before = h->most;
    h->most = h->in_use;
    h->window_began = h->stats.n_allocs;
    h->window_end = h->window_began + (h->window > f.n ? h->window : f.n);
}

static void turn_list(msi_class *c)
{
    msi_mem_block *turned = NULL;

    while (c->free != NULL) {
        msi_mem_block *b = c->free;

        c->free = b->next;
        b->next = turned;
        turned = b;
    }
    c->free = turned;
}

/* Its blocks are pieces of their own. */
static bool is_large(const msi_class *c)
{
    return c->capacity >= MSI_IDLE_BYTES;
}

static void turn_large(msi_heap *h)
{
    for (int32_t i = 0; i < h->n_classes; i++) {
        if (is_large(&h->classes[i])) {
            turn_list(&h->classes[i]);
        }
    }
}

/* The class of large blocks whose list, turned, begins with the one that was released first, or
 * NULL. */
static msi_class *longest_idle(msi_heap *h)
{
    msi_class *found = NULL;

    for (int32_t i = 0; i < h->n_classes; i++) {
        msi_class *c = &h->classes[i];

        if (is_large(c) && c->free != NULL &&
            (found == NULL || c->free->released < found->free->released)) {
            found = c;
        }
    }
    return found;
}

/* Give back at least so many bytes of large blocks, or all of them: the longest idle. */
static void give_idle(msi_heap *h, int64_t bytes)
{
    msi_class *c;

    turn_large(h);
    while (bytes > 0 && (c = longest_idle(h)) != NULL) {
        msi_mem_block *b = c->free;

        c->free = b->next;
        bytes -= c->capacity;
        msi_piece_give(b);
    }
    turn_large(h);
}

/* See [Note: how much is held]. */
void msi_heap_keep_within(msi_heap *h, int64_t bytes)
{
    const int64_t most = h->most > h->most_before ? h->most : h->most_before;
    const int64_t limit = 2 * most + ALWAYS_HELD;
    const int64_t excess = h->stats.reserved + bytes - limit;

    if (excess > 0 && bytes > MSI_IDLE_BYTES && h->stats.reserved > h->in_use &&
        msi_pieces_may_go(h)) {
        give_idle(h, excess + limit / 8); /* so that the next few need not look */
    }
}
