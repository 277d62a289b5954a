/* The gradients of a unit: of one rank, accumulated, reduced, and shown by .grad. */
#ifndef MSI_FSDP_GRADIENT_H
#define MSI_FSDP_GRADIENT_H

#include "unit.h"

/* -- micro.c: gradients of one rank ------------------------------------------------------------ */
void msi_unit_sinks_install(ms_fsdp_unit *u);
/* Drop the running backward's gradient after an error, announced or not; `all`: earlier ones as
 * well, reduced or accumulated. Needs neither memory nor peers. */
void msi_unit_gradient_drop(ms_fsdp_unit *u, bool all);
/* Error if that happened in the running backward (a hook ran and caught a failing forward). */
ms_status msi_unit_check_kept(const ms_fsdp_unit *u);
/* no_sync: add the backward's gradient, even an empty one, to the levels. */
ms_status msi_unit_accumulate(ms_fsdp_unit *u);
/* Reduce it: announce it to the peers, or let the hook do it. */
ms_status msi_unit_reduce(ms_fsdp_unit *u);

/* -- accumulated.c: .grad of the levels -------------------------------------------------------- */
void msi_unit_levels_free(ms_fsdp_unit *u);
/* For msi_param_ops. */
bool msi_unit_accumulates(void *unit, int32_t index);
ms_status msi_unit_accumulated(void *unit, int32_t index, ms_tensor **out);
ms_status msi_unit_replace_accumulated(void *unit, int32_t index, const msi_view *value);

/* -- hook.c ------------------------------------------------------------------------------------ */
/* Reduce the last backward's gradient, with all levels, and run the unit's hooks. */
ms_status msi_unit_reduce_with_hooks(ms_fsdp_unit *u);
static inline bool msi_unit_has_hook(const ms_fsdp_unit *u)
{
    return u->hooks[MS_HOOK_REDUCE].fn != NULL || u->hooks[MS_HOOK_REDUCED].fn != NULL;
}
void msi_unit_hook_drop(msi_unit_hook *hook);

/* -- gradient.c: the reduced gradient ---------------------------------------------------------- */
/* `home` slot, or NULL. The model's gradient slots exist. */
void msi_unit_connect_gradients(ms_fsdp_unit *u, msi_slot *home);
/* Sum the last backward's gradient, if any, and all levels into the slot, allocate what their
 * reduction needs, signal the peers. */
ms_status msi_gradient_announce(ms_fsdp_unit *u);
/* Reduce them to `out`, 1-D of a shard's elements, and wait. Sets `contributed` of the parameters
 * that any rank's backwards reached. */
ms_status msi_gradient_reduce_apart(ms_fsdp_unit *u, ms_tensor *out);
/* For msi_param_ops: [Note: gradients inside a backward]. */
ms_status msi_unit_check_gradient(void *unit, const char *what);
ms_status msi_unit_await_gradient(void *unit);
/* For msi_param_ops: .grad was dropped; does the whole parameter have one? */
void msi_unit_gradient_dropped(void *unit, int32_t index);
bool msi_unit_has_gradient(void *unit, int32_t index);
/* Allocate the reduced gradient and what .grad will show of it. */
ms_status msi_unit_gradient_make(ms_fsdp_unit *u);
/* Show it in .grad of the parameters that contributed, on any rank. */
void msi_unit_gradient_show(ms_fsdp_unit *u);
/* Free the reduced gradient if no .grad shows it. */
void msi_unit_gradient_trim(ms_fsdp_unit *u);
void msi_unit_gradient_free(ms_fsdp_unit *u);
/* For msi_param_ops: view of parameter `index` in the reduced gradient. */
void msi_unit_gradient_like(void *unit, int32_t index, msi_view *like);

/* -- summoned_grads.c -------------------------------------------------------------------------- */
/* Show full gradients of a sharded unit. `has` (n_params): does any rank have one? Collective. On
 * failure .grad is unchanged. */
ms_status msi_unit_summon_gradients(ms_fsdp_unit *u, const uint64_t *has);
/* Copy this rank's elements of them into its own gradients. */
ms_status msi_unit_keep_gradients(ms_fsdp_unit *u);
/* Show this rank's own gradients again. Needs neither memory nor peers. */
void msi_unit_restore_gradients(ms_fsdp_unit *u);

#endif
