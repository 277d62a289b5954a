/* Notes of units and models, compared over the ranks of the group: see note.h. */
#include "unit.h"

void msi_model_note(ms_comm *comm, int32_t model, const msi_note *note)
{
    msi_note own = *note;

    own.model = model;
    msi_comm_note(comm, &own);
}

int64_t msi_unit_model_number(void *unit)
{
    const ms_fsdp_unit *u = unit;

    return msi_unit_model(u) - ((int64_t)u->world << 32);
}

void msi_unit_note(void *unit, const msi_note *note)
{
    const ms_fsdp_unit *u = unit;

    msi_model_note(u->comm, msi_unit_model(u), note);
}
