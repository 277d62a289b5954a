/* What is published before it is used. */
#include "schedule.h"

ms_status msi_prefetch(ms_fsdp_unit *u)
{
    return u->state == MS_UNIT_SHARDED && u->gather.ops->available(&u->gather) ? msi_unit_publish(u)
                                                                               : MS_OK;
}

/* Prefetched, and not used. All ranks say so: one that skips alone would be found out only where
 * its part had to wait for the slot. */
void msi_skip(ms_fsdp_unit *u)
{
    msi_note note = {.n_numbers = 0};

    if (u->gather.slot != NULL) {
        msi_label_about(&note.label, "skipped unit", u->name);
        msi_unit_note(u, &note);
    }
    msi_unit_reshard(u);
}
