/* Memory of a plan: every buffer's place, found before the first run. */
#include "graph.h"

#include <stdlib.h>

enum { ALIGNMENT = 64 };

static bool live_together(const msi_buffer *a, const msi_buffer *b)
{
    return a->born < b->died && b->born < a->died;
}

/* Larger first; of equals the earlier. */
static int by_size(const void *a, const void *b)
{
    const msi_buffer *x = *(msi_buffer *const *)a, *y = *(msi_buffer *const *)b;

    if (x->nbytes != y->nbytes) {
        return x->nbytes > y->nbytes ? -1 : 1;
    }
    return x->address < y->address ? -1 : 1;
}

static int by_offset(const void *a, const void *b)
{
    const msi_buffer *x = *(msi_buffer *const *)a, *y = *(msi_buffer *const *)b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int64_t size_of(const msi_buffer *b)
{
    return msi_round_up(b->nbytes > 0 ? b->nbytes : 1, ALIGNMENT);
}

/* Offset for `b` in the smallest gap between the placed buffers that are live with it (n, in order
 * of offsets); a gap does not reach across `saved`, where a block ends. */
static int64_t best_gap(const msi_buffer *b, msi_buffer *const *placed, int32_t n, int64_t saved)
{
    const int64_t size = size_of(b);
    int64_t best = -1, best_size = 0, at = 0;

    for (int32_t i = 0; i <= n; i++) {
        if (i < n && !live_together(b, placed[i])) {
            continue;
        }
        const int64_t until = i < n ? placed[i]->offset : INT64_MAX;
        const int64_t parts[2][2] = {{at, until < saved ? until : saved},
                                     {at > saved ? at : saved, until}};

        for (int32_t k = 0; k < 2; k++) {
            const int64_t room = parts[k][1] - parts[k][0];

            if (room >= size && (best < 0 || room < best_size)) {
                best = parts[k][0];
                best_size = room;
            }
        }
        if (i < n && placed[i]->offset + size_of(placed[i]) > at) {
            at = placed[i]->offset + size_of(placed[i]);
        }
    }
    return best;
}

static void insert(msi_buffer **placed, int32_t n, msi_buffer *b)
{
    int32_t i = n;

    for (; i > 0 && by_offset(&placed[i - 1], &b) > 0; i--) {
        placed[i] = placed[i - 1];
    }
    placed[i] = b;
}

int64_t msi_plan_live(const msi_plan *plan, int32_t kind, int32_t other)
{
    int64_t most = 0;

    for (int32_t i = 0; i < plan->n_buffers; i++) {
        int64_t live = 0;

        for (int32_t k = 0; k < plan->n_buffers; k++) {
            const msi_buffer *b = &plan->buffers[k];

            if ((b->kind == kind || b->kind == other) && b->born <= plan->buffers[i].born &&
                b->died > plan->buffers[i].born) {
                live += b->nbytes;
            }
        }
        most = live > most ? live : most;
    }
    return most;
}

ms_status msi_plan_place(msi_plan *plan, int32_t kind, int64_t saved, int64_t *end)
{
    msi_buffer **todo, **placed = NULL;
    int32_t n = 0, n_placed = 0;

    *end = saved;
    MS_TRY(msi_new_array(&todo, plan->n_buffers + 1, "buffers"));
    ms_status status = msi_new_array(&placed, plan->n_buffers + 1, "buffers");

    for (int32_t i = 0; i < plan->n_buffers && status == MS_OK; i++) {
        msi_buffer *b = &plan->buffers[i];

        if (b->kind == kind) {
            todo[n++] = b;
        } else if (saved > 0 && b->kind == MSI_BUFFER_SAVED) {
            placed[n_placed++] = b;
        }
    }
    if (status == MS_OK) {
        qsort(todo, (size_t)n, sizeof(*todo), by_size);
        qsort(placed, (size_t)n_placed, sizeof(*placed), by_offset);
    }
    for (int32_t i = 0; i < n && status == MS_OK; i++) {
        todo[i]->offset = best_gap(todo[i], placed, n_placed, saved);
        insert(placed, n_placed++, todo[i]);
        if (todo[i]->offset + size_of(todo[i]) > *end) {
            *end = todo[i]->offset + size_of(todo[i]);
        }
    }
    free(placed);
    free(todo);
    return status;
}
