/* Passes: one forward of one unit, as its graph remembers it.
 *
 * Several graphs of a unit may be alive at once and be differentiated in any order, and a graph may
 * outlive its model. So what backward needs hangs on the graph: which unit, and where on the tape
 * this forward began. Records are kept by the unit and used again. */
#include "fsdp.h"

#include <stdlib.h>

ms_status msi_pass_new(msi_pass **out, ms_fsdp_unit *u, uint64_t place)
{
    msi_pass *pass = u->passes;

    while (pass != NULL && pass->refcount > 0) {
        pass = pass->next;
    }
    if (pass == NULL) {
        pass = calloc(1, sizeof(*pass));
        if (pass == NULL) {
            *out = NULL;
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a forward of unit '%s'", u->name);
        }
        pass->next = u->passes;
        u->passes = pass;
    }
    pass->unit = u;
    pass->place = place;
    pass->refcount = 1;
    *out = pass;
    return MS_OK;
}

msi_pass *msi_pass_retain(msi_pass *pass)
{
    pass->refcount++;
    return pass;
}

void msi_pass_drop(void *p)
{
    msi_pass *pass = p;

    if (pass != NULL && --pass->refcount == 0 && pass->unit == NULL) {
        free(pass); /* its unit is gone, so nobody else has it */
    }
}

void msi_unit_passes_free(ms_fsdp_unit *u)
{
    msi_pass_drop(u->pass);
    u->pass = NULL;
    while (u->passes != NULL) {
        msi_pass *pass = u->passes;

        u->passes = pass->next;
        pass->unit = NULL;
        if (pass->refcount == 0) {
            free(pass);
        }
    }
}
