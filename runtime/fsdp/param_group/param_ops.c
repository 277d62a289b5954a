/* What the units' parameters and their flat parameter have in common for lower layers, and notes,
 * compared over the ranks of the group: see note.h. */
#include "unshard.h"

void msi_unit_touched(void *unit, int32_t index)
{
    (void)index;
    msi_unit_written(unit);
}

ms_status msi_unit_materialize(void *unit)
{
    return ms_fsdp_unit_materialize(unit);
}

ms_status msi_unit_check_master(void *unit, const char *what)
{
    return msi_masters_check(((const ms_fsdp_unit *)unit)->run, what);
}

int64_t msi_unit_model_number(void *unit)
{
    const ms_fsdp_unit *u = unit;

    return msi_unit_model(u) - ((int64_t)u->world << 32);
}

void msi_unit_note(void *unit, const msi_note *note)
{
    const ms_fsdp_unit *u = unit;
    msi_note own = *note;

    own.model = msi_unit_model(u);
    msi_comm_note(u->comm, &own);
}
