/* Units published before they are used. */
#include "schedule.h"
#include "unshard.h"

ms_status msi_prefetch(ms_fsdp_unit *u)
{
    return u->state == MS_UNIT_SHARDED && u->gather.ops->available(&u->gather) ? msi_unit_publish(u)
                                                                               : MS_OK;
}

/* All ranks note the skip: a rank that skips alone would otherwise be detected only if its part was
 * still waiting for the slot. */
void msi_skip(ms_fsdp_unit *u)
{
    msi_note note = {.n_numbers = 0};

    if (u->gather.slot != NULL) {
        msi_label_about(&note.label, "skipped unit", u->name);
        msi_unit_note(u, &note);
    }
    msi_unit_reshard(u);
}
