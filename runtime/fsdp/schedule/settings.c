/* Settings of units and trees, which scripts change between steps. */
#include "array.h"
#include "gradient.h"
#include "schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Let ranks compare a setting that changes: the next collective reports a difference. */
static void note_change(ms_fsdp_unit *u, const char *setter, double before, double value)
{
    msi_note note = {.number = {value}, .n_numbers = 1};

    if (before != value) {
        msi_label_about(&note.label, setter, u->name);
        msi_label_words(&note.text, "value");
        msi_unit_note(u, &note);
    }
}

/* -- gradients --------------------------------------------------------------------------------- */

static ms_status check_no_backward(const ms_fsdp_tree *tree)
{
    return tree == NULL || !msi_in_backward(&tree->run)
               ? MS_OK
               : MS_FAIL(MS_ASSERTION_ERROR,
                         "the synchronisation of gradients cannot change during backward; call "
                         "no_sync() or set_requires_gradient_sync() before it");
}

ms_status ms_fsdp_unit_set_sync(ms_fsdp_unit *u, bool sync)
{
    ms_fsdp_tree *tree = msi_tree_of(u);

    MS_TRY(check_no_backward(tree));
    if (!sync && tree != NULL && tree->run.phase != MSI_UNUSED) { /* else when slots are made */
        MS_TRY(msi_pools_widen(tree));
    }
    note_change(u, "set_sync of unit", u->settings.sync, sync);
    u->settings.sync = sync;
    return MS_OK;
}

ms_status ms_fsdp_tree_set_sync(ms_fsdp_tree *tree, bool sync)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(ms_fsdp_unit_set_sync(tree->units[i], sync));
    }
    return MS_OK;
}

bool ms_fsdp_unit_sync(const ms_fsdp_unit *u)
{
    return u->settings.sync;
}

ms_status ms_fsdp_unit_set_gradient_factor(ms_fsdp_unit *u, double factor)
{
    if (!(factor >= 0 && isfinite(factor))) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "gradient factor is %g, expected 0 (default) or a finite number above",
                       factor);
    }
    MS_TRY(msi_unit_check_gradient(u, "set_gradient_factor"));
    note_change(u, "set_gradient_factor of unit", u->settings.factor, factor);
    u->settings.factor = factor;
    return MS_OK;
}

ms_status ms_fsdp_tree_set_gradient_factor(ms_fsdp_tree *tree, double factor)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(msi_unit_check_gradient(tree->units[i], "set_gradient_factor"));
    }
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(ms_fsdp_unit_set_gradient_factor(tree->units[i], factor));
    }
    return MS_OK;
}

ms_status ms_fsdp_unit_set_hook(ms_fsdp_unit *u, int32_t moment, ms_unit_hook fn, void *user,
                                void (*drop)(void *user))
{
    if (moment != MS_HOOK_REDUCE && moment != MS_HOOK_REDUCED) {
        return MS_FAIL(MS_VALUE_ERROR, "unknown moment %d of a hook of unit '%s'", (int)moment,
                       u->name);
    }
    msi_unit_hook *hook = &u->hooks[moment];

    if (moment == MS_HOOK_REDUCE && hook->fn != NULL) {
        return MS_FAIL(MS_ASSERTION_ERROR, "A communication hook is already registered");
    }
    if (moment == MS_HOOK_REDUCE && u->shards != u->comm) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                       "Communication hook is not supported for hybrid strategies");
    }
    MS_TRY(msi_unit_check_gradient(u, moment == MS_HOOK_REDUCE ? "register_comm_hook"
                                                               : "set_all_reduce_hook"));
    msi_unit_hook_drop(hook);
    *hook = (msi_unit_hook){fn, user, drop};
    return MS_OK;
}

/* -- parameters -------------------------------------------------------------------------------- */

ms_status ms_fsdp_unit_set_full_precision(ms_fsdp_unit *u, bool on)
{
    if (on && !u->options.full_precision_in_eval) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "unit '%s' was made without full_precision_in_eval: its slot has no room",
                       u->name);
    }
    u->full_forward = on;
    return MS_OK;
}

ms_status ms_fsdp_unit_set_reshard_after_forward(ms_fsdp_unit *u, bool reshard)
{
    const int32_t after = reshard ? MSI_RESHARD : MSI_KEEP;

    note_change(u, "set_reshard_after_forward of unit", u->settings.after_forward, after);
    u->settings.after_forward = after;
    return MS_OK;
}

ms_status ms_fsdp_unit_set_reshard_after_backward(ms_fsdp_unit *u, bool reshard)
{
    const int32_t after = reshard ? MSI_RESHARD : MSI_KEEP;

    note_change(u, "set_reshard_after_backward of unit", u->settings.after_backward, after);
    u->settings.after_backward = after;
    return MS_OK;
}

ms_status ms_fsdp_unit_set_unshard_in_backward(ms_fsdp_unit *u, bool unshard)
{
    note_change(u, "set_unshard_in_backward of unit", !u->settings.forward_only, unshard);
    u->settings.forward_only = !unshard;
    return MS_OK;
}

/* -- order ------------------------------------------------------------------------------------- */

static uint64_t hash_of(const msi_unit_list *list)
{
    uint64_t hash = list->units != NULL;

    for (int32_t i = 0; i < list->n; i++) {
        hash = msi_mix64(hash ^ (uint64_t)(list->units[i]->index + 1));
    }
    return hash;
}

ms_status ms_fsdp_unit_set_prefetch(ms_fsdp_unit *u, ms_fsdp_unit *const *next, int32_t n,
                                    bool backward)
{
    msi_unit_list list = {.n = n};

    if (u->run == NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "set_prefetch: unit '%s' is in no tree", u->name);
    }
    for (int32_t i = 0; i < n; i++) {
        if (next[i]->run != u->run) {
            return MS_FAIL(MS_VALUE_ERROR, "set_prefetch: units '%s' and '%s' are not in one tree",
                           u->name, next[i]->name);
        }
    }
    if (next != NULL) {
        MS_TRY(msi_new_array(&list.units, n + 1, "units to prefetch"));
        memcpy(list.units, next, sizeof(*next) * (size_t)n);
    }
    msi_unit_schedule *course = msi_unit_schedule_of(u);
    msi_unit_list *of = backward ? &course->ahead_backward : &course->ahead_forward;

    note_change(u, backward ? "backward prefetch of unit" : "forward prefetch of unit",
                msi_note_hash(hash_of(of)), msi_note_hash(hash_of(&list)));
    free(of->units);
    *of = list;
    return MS_OK;
}

ms_status ms_fsdp_tree_set_last_backward(ms_fsdp_tree *tree, bool last)
{
    tree->last_backward = last;
    return MS_OK;
}
