/* What a unit's parameters and its flat parameter have in common for lower layers. */
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
