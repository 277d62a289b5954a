/* The parameters of a unit: gathered, released, and shown by handles. */
#ifndef MSI_FSDP_UNSHARD_H
#define MSI_FSDP_UNSHARD_H

#include "unit.h"

/* -- show.c: what handles show ----------------------------------------------------------------- */
/* Update all handles: [Note: what handles show]. */
void msi_unit_show(ms_fsdp_unit *u);
/* The same if only the unit's users may have changed; cheap without a change. */
void msi_unit_show_use(ms_fsdp_unit *u);
/* Update handles that show shards after run->hides_shards changed. */
void msi_unit_hide_shards(ms_fsdp_unit *u);
/* Set the error of views without memory: sharded (NULL), or the backward's gradients were dropped
 * because a forward failed with `cause`. */
void msi_unit_explain(ms_fsdp_unit *u, const char *cause);
/* Give `v` the shape of this rank's shard of a parameter: 1-D, or its rows. */
void msi_unit_shape_shard(const ms_fsdp_unit *u, const msi_unit_param *p, int32_t dtype,
                          msi_view *v);

/* -- cast.c ------------------------------------------------------------------------------------ */
/* Set the dtypes of compute and reduction, which follow the options and the parameters' dtype. */
void msi_unit_set_dtypes(ms_fsdp_unit *u, int32_t orig_dtype);
/* Set the dtypes of `sums`, which follow them. */
void msi_unit_set_sum_dtypes(ms_fsdp_unit *u);
/* For msi_param_ops. */
ms_status msi_unit_cast(void *unit, int32_t dtype);

/* -- unshard.c: parameters --------------------------------------------------------------------- */
/* Choose how parameters are gathered; `home` slot, or NULL. The unit is materialized. */
void msi_unit_connect_params(ms_fsdp_unit *u, msi_slot *home);
/* Gather in this dtype from now on: the unit is resharded if it is gathered in another one.
 * `forwards`: running ones that begin with this use. */
ms_status msi_unit_gather_in(ms_fsdp_unit *u, int32_t dtype, int32_t forwards);
/* SHARDED -> PUBLISHED: commit the use; cast own extents once the slot may be written. */
ms_status msi_unit_publish(ms_fsdp_unit *u);
/* -> UNSHARDED: wait for peers' extents, bind the views. */
ms_status msi_unit_unshard(ms_fsdp_unit *u);
/* -> SHARDED: unbind, signal the peers. Needs neither memory nor peers. */
void msi_unit_reshard(ms_fsdp_unit *u);
/* The master was written on any rank: an earlier publish is void, so that no slot mixes old and new
 * values. */
void msi_unit_written(ms_fsdp_unit *u);
/* Enter a state, and update what depends on it. */
void msi_unit_set(ms_fsdp_unit *u, int32_t state);
/* True if the slot has older values than this rank's shard. */
bool msi_unit_differs(const ms_fsdp_unit *u);
/* Copy all ranks' shards in a row to the full parameters, both in one dtype of `size` bytes. */
ms_status msi_unit_scatter_shards(ms_fsdp_unit *u, const void *shards, void *full, int64_t size);
/* The reverse; leaves the shards' padding as it is. */
ms_status msi_unit_pack_shards(ms_fsdp_unit *u, const void *full, void *shards, int64_t size);

/* -- full.c ------------------------------------------------------------------------------------ */
/* The whole flat parameter in the master's dtype, in new memory. Collective. `what` names the
 * script's call in messages: "hash of unit". */
ms_status msi_unit_gather_flat(ms_fsdp_unit *u, const char *what, msi_storage **out);
/* All ranks' `own` shards in a row into `full`, both in the master's dtype. Collective. */
ms_status msi_unit_gather_shards(ms_fsdp_unit *u, const char *what, msi_storage *own,
                                 msi_storage *full);

#endif
