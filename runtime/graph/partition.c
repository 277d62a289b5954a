/* Recomputation: what a cheap kernel made is not saved for backward, which runs the kernel again
 * before the first one that reads its result.
 *
 * A kernel can run again if it is elementwise or normalises rows, and backward finds its operands
 * unchanged: parameters, inputs and outputs that are kept anyway, saved buffers, or results of
 * other such kernels. Kernels are deterministic, so gradients have the same bits. A fresh buffer is
 * written by the first kernel that uses it. Operators write to their results alone, so the only
 * later writes are those of the same operator and of operators in place.
 *
 * Backwards run in reverse order of operators. One that overwrites an operand thus comes after all
 * kernels that read the results of its operator and of later ones, but before some that read those
 * of earlier operators. */
#include "graph.h"

#include <stdlib.h>

/* The most kernels in a row whose results nothing saves: they would not run again otherwise. */
enum { MAX_DEPTH = 2 };

enum { COSTLY, ELEMENTWISE, NORMALISES };

static int32_t class_of(const msi_entry *e)
{
    static const int8_t class[] = {
#define CLASS(name, args)                                                                          \
    _Generic((args *)NULL, msi_ew_args *                                                           \
             : ELEMENTWISE, msi_dropout_args *                                                     \
             : ELEMENTWISE, msi_layer_norm_args *                                                  \
             : NORMALISES, msi_softmax_args *                                                      \
             : NORMALISES, default                                                                 \
             : COSTLY),
        MSI_KERNELS(CLASS)
#undef CLASS
    };

    return e->kind == MSI_ENTRY_KERNEL ? class[e->kernel] : COSTLY;
}

/* True if a cheap kernel writes to the memory behind its pointer at `offset`. */
static bool is_result(const msi_entry *e, int64_t offset)
{
    switch (e->kernel) {
    case MSI_K_layer_norm:
        return offset == offsetof(msi_layer_norm_args, y) ||
               offset == offsetof(msi_layer_norm_args, mean) ||
               offset == offsetof(msi_layer_norm_args, rstd);
    case MSI_K_softmax:
    case MSI_K_log_softmax:
        return offset == offsetof(msi_softmax_args, out);
    case MSI_K_dropout:
        return offset == offsetof(msi_dropout_args, out);
    default:
        return offset == offsetof(msi_ew_args, out);
    }
}

/* Where the value of a buffer comes from. */
typedef struct origin {
    int32_t by;    /* entry that uses it first; -1: none */
    int32_t last;  /* entry */
    int32_t depth; /* kernels that run again for it alone */
    bool changes;  /* after that entry */
    int32_t over;  /* last operator whose backward may overwrite it; -1: none */
    bool again;    /* its entry can run again */
    bool needed;   /* an entry that runs again reads it */
} origin;

/* True if entry `e` may write to a buffer that is not new. */
static bool may_change(const msi_graph_segment *s, const msi_entry *e, const msi_entry *by,
                       int64_t offset)
{
    if (s->program->ops[e->op].into) {
        return true;
    }
    return class_of(e) == COSTLY ? by != NULL && by->op == e->op : is_result(e, offset);
}

/* Use of each buffer, in the order of entries. */
static void find_makers(const msi_graph_segment *s, origin *made)
{
    const msi_plan *plan = &s->forward;

    for (int32_t i = 0; i < plan->n_buffers; i++) {
        made[i].by = -1;
        made[i].over = -1;
    }
    for (int32_t i = 0; i < plan->n_entries; i++) {
        const msi_entry *e = &plan->entries[i];

        for (int32_t k = e->reloc; k < e->reloc + e->n_relocs; k++) {
            const int32_t b = plan->relocs[k].buffer;

            if (b < 0) {
                continue;
            }
            const int64_t offset = plan->relocs[k].at - e->args;
            const bool is_new = made[b].by < 0 && plan->buffers[b].kind != MSI_BUFFER_INPUT;

            made[b].by = is_new ? i : made[b].by;
            made[b].last = i;
            if (made[b].by != i) {
                made[b].changes |=
                    may_change(s, e, made[b].by >= 0 ? &plan->entries[made[b].by] : NULL, offset);
                made[b].over = s->program->ops[e->op].op->overwrites ? e->op : made[b].over;
            }
        }
    }
}

/* True if input `i` may be kept for the sake of recomputation alone: parameters live anyway. */
static bool is_parameter(const msi_graph_segment *s, int32_t i)
{
    const msi_value *v = &s->program->values[s->in[i]];

    return v->node == 0 && v->requires_grad;
}

/* True if backward has the value of buffer `b`, or can compute it. */
static bool is_available(const msi_graph_segment *s, const origin *made, int32_t b)
{
    const msi_buffer *buffer = &s->forward.buffers[b];

    if (made[b].changes) {
        return false;
    }
    switch (buffer->kind) {
    case MSI_BUFFER_INPUT:
        return s->keeps[buffer->index] || is_parameter(s, buffer->index);
    case MSI_BUFFER_OUTPUT:
        return s->keeps[s->n_in + buffer->index];
    case MSI_BUFFER_SAVED:
        return true;
    default:
        return made[b].again && made[b].depth < MAX_DEPTH;
    }
}

/* Mark the results of entry `i` if it can run again. */
static void consider(const msi_graph_segment *s, origin *made, int32_t i)
{
    const msi_plan *plan = &s->forward;
    const msi_entry *e = &plan->entries[i];
    int64_t saves = 0, reads = 0;
    int32_t depth = 0;
    bool may = class_of(e) != COSTLY && !e->in_region;

    for (int32_t k = e->reloc; k < e->reloc + e->n_relocs && may; k++) {
        const int32_t b = plan->relocs[k].buffer;
        const msi_buffer *buffer = &plan->buffers[b < 0 ? 0 : b];

        if (b < 0) {
            continue;
        }
        if (is_result(e, plan->relocs[k].at - e->args)) {
            may = made[b].by == i && !made[b].changes &&
                  (buffer->kind == MSI_BUFFER_TEMP || buffer->kind == MSI_BUFFER_SAVED);
            saves += buffer->kind == MSI_BUFFER_SAVED ? buffer->nbytes : 0;
        } else {
            may = made[b].by != i && e->op >= made[b].over && is_available(s, made, b);
            reads += buffer->nbytes;
            if (buffer->kind == MSI_BUFFER_TEMP && made[b].depth > depth) {
                depth = made[b].depth;
            }
        }
    }
    /* Of a result that is much smaller than its operands little is saved. */
    may = may && (saves == 0 || 4 * saves >= reads);
    for (int32_t k = e->reloc; k < e->reloc + e->n_relocs && may; k++) {
        const int32_t b = plan->relocs[k].buffer;

        if (b >= 0 && made[b].by == i) {
            made[b].again = true;
            made[b].depth = saves > 0 ? 0 : depth + 1;
        }
    }
}

/* True if backward runs entry `i` again. */
static bool runs_again(const msi_plan *plan, const origin *made, int32_t i)
{
    const msi_entry *e = &plan->entries[i];

    for (int32_t k = e->reloc; k < e->reloc + e->n_relocs; k++) {
        const int32_t b = plan->relocs[k].buffer;

        if (b >= 0 && made[b].by == i && made[b].again &&
            (made[b].needed || plan->buffers[b].kind == MSI_BUFFER_SAVED)) {
            return true;
        }
    }
    return false;
}

/* Note what entry `i` reads, which runs again. */
static void need_operands(msi_graph_segment *s, origin *made, int32_t i)
{
    const msi_plan *plan = &s->forward;
    const msi_entry *e = &plan->entries[i];

    for (int32_t k = e->reloc; k < e->reloc + e->n_relocs; k++) {
        const int32_t b = plan->relocs[k].buffer;

        if (b >= 0 && plan->buffers[b].kind == MSI_BUFFER_INPUT) {
            s->keeps[plan->buffers[b].index] = true;
        } else if (b >= 0) {
            made[b].needed = true;
        }
    }
}

ms_status msi_partition_forward(msi_graph_segment *s)
{
    msi_plan *plan = &s->forward;
    origin *made;

    MS_TRY(msi_new_array(&made, plan->n_buffers + 1, "buffers"));
    find_makers(s, made);
    for (int32_t i = 0; i < plan->n_entries; i++) {
        consider(s, made, i);
    }
    for (int32_t i = plan->n_entries - 1; i >= 0; i--) {
        if (runs_again(plan, made, i)) {
            need_operands(s, made, i);
        }
    }
    for (int32_t i = 0; i < plan->n_buffers; i++) {
        msi_buffer *b = &plan->buffers[i];

        b->maker = made[i].again ? made[i].by : -1;
        if (b->kind == MSI_BUFFER_SAVED && made[i].again) {
            b->kind = MSI_BUFFER_TEMP;
            b->born = made[i].by;
            b->died = made[i].last + 1;
        }
    }
    free(made);
    return MS_OK;
}

/* -- backward ---------------------------------------------------------------------------------- */

/* Entry `i` runs before entry `at` at the latest, if it runs again. */
static void need(const msi_plan *plan, const msi_entry *e, int32_t i, int32_t at, int32_t *before)
{
    for (int32_t k = e->reloc; k < e->reloc + e->n_relocs; k++) {
        const msi_reloc *r = &plan->relocs[k];
        const int32_t maker = r->buffer >= 0 && plan->buffers[r->buffer].kind == MSI_BUFFER_TEMP
                                  ? plan->buffers[r->buffer].maker
                                  : -1;

        if (maker >= 0 && maker != i && at < before[maker]) {
            before[maker] = at;
        }
    }
}

/* The backward's entries behind those that run again before each; `at[i]`: where entry i went. */
static void arrange(msi_plan *plan, int32_t n, const int32_t *before, int32_t *at,
                    msi_entry *entries)
{
    int32_t n_entries = 0;

    for (int32_t i = n; i < plan->n_entries; i++) {
        for (int32_t k = 0; k < n; k++) {
            if (before[k] == i) {
                at[k] = n_entries;
                entries[n_entries++] = plan->entries[k];
            }
        }
        at[i] = n_entries;
        entries[n_entries++] = plan->entries[i];
    }
    at[plan->n_entries] = n_entries;
    free(plan->entries);
    plan->entries = entries;
    plan->cap_entries = plan->n_entries + 1;
    plan->n_entries = n_entries;
}

/* Lifetimes of buffers in the new order: as the lowering's, or until the last use of a kernel that
 * runs again. */
static void move_lives(msi_plan *plan, int32_t n, const int32_t *at, int32_t n_buffers)
{
    for (int32_t i = 0; i < plan->n_buffers; i++) {
        msi_buffer *b = &plan->buffers[i];

        if (i < n_buffers && b->kind == MSI_BUFFER_TEMP) {
            b->born = INT32_MAX;
            b->died = 0;
            continue;
        }
        b->born = b->born > n ? at[b->born] : 0;
        b->died = b->died == INT32_MAX ? INT32_MAX : b->died > n ? at[b->died] : 0;
    }
    for (int32_t i = 0; i < plan->n_entries; i++) {
        const msi_entry *e = &plan->entries[i];

        for (int32_t k = e->reloc; k < e->reloc + e->n_relocs; k++) {
            msi_buffer *b =
                plan->relocs[k].buffer >= 0 ? &plan->buffers[plan->relocs[k].buffer] : NULL;

            if (b != NULL && b - plan->buffers < n_buffers) {
                b->born = i < b->born ? i : b->born;
                b->died = i + 1 > b->died ? i + 1 : b->died;
            }
        }
    }
    for (int32_t i = 0; i < n_buffers; i++) {
        if (plan->buffers[i].kind == MSI_BUFFER_TEMP && plan->buffers[i].died > 0) {
            plan->buffers[i].kind = MSI_BUFFER_BACKWARD;
        }
    }
}

ms_status msi_partition_backward(msi_plan *plan, int32_t n, int32_t n_buffers)
{
    const int32_t n_entries = plan->n_entries;
    int32_t *before, *at = NULL;
    msi_entry *entries = NULL;

    MS_TRY(msi_new_array(&before, n + 1, "kernels"));
    ms_status status = msi_new_array(&at, n_entries + 1, "kernels");

    status = status == MS_OK ? msi_new_array(&entries, n_entries + 1, "kernels") : status;
    if (status == MS_OK) {
        for (int32_t i = 0; i < n; i++) {
            before[i] = INT32_MAX;
        }
        for (int32_t i = n; i < n_entries; i++) {
            need(plan, &plan->entries[i], i, i, before);
        }
        for (int32_t i = n - 1; i >= 0; i--) {
            if (before[i] < INT32_MAX) {
                need(plan, &plan->entries[i], i, before[i], before);
            }
        }
        arrange(plan, n, before, at, entries);
        move_lives(plan, n, at, n_buffers);
    }
    free(at);
    free(before);
    return status;
}
