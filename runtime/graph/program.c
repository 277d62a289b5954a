/* The life of a graph: recording, runs, freeing. */
#include "moonshard/program.h"

#include "base.h"

#include <stdlib.h>

struct ms_program {
    const char *broken;
};

ms_status ms_program_begin(ms_program **out)
{
    *out = calloc(1, sizeof(**out));
    if (*out == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a graph");
    }
    (*out)->broken = "replay is not built yet";
    return MS_OK;
}

ms_status ms_program_argument(ms_program *p, ms_tensor *t)
{
    (void)p;
    (void)t;
    return MS_OK;
}

ms_status ms_program_cut(ms_program *p, int32_t *segment)
{
    (void)p;
    *segment = -1;
    return MS_OK;
}

ms_status ms_program_value(ms_program *p, ms_tensor *t, int32_t *value)
{
    (void)p;
    (void)t;
    *value = -1;
    return MS_OK;
}

void ms_program_break(ms_program *p, const char *why)
{
    (void)p;
    (void)why;
}

const char *ms_program_broken(const ms_program *p)
{
    return p->broken;
}

ms_status ms_program_end(ms_program *p)
{
    (void)p;
    return MS_OK;
}

void ms_program_free(ms_program *p)
{
    free(p);
}

void ms_program_info_get(const ms_program *p, ms_program_info *info)
{
    (void)p;
    *info = (ms_program_info){0};
}

ms_status ms_program_set(ms_program *p, int32_t value, ms_tensor *t, bool *fits)
{
    (void)p;
    (void)value;
    (void)t;
    *fits = false;
    return MS_OK;
}

const char *ms_program_misfit(const ms_program *p)
{
    return p->broken;
}

ms_status ms_program_run(ms_program *p, int32_t segment)
{
    (void)segment;
    return MS_FAIL(MS_RUNTIME_ERROR, "%s", p->broken);
}

ms_status ms_program_get(ms_tensor **out, ms_program *p, int32_t value)
{
    (void)value;
    *out = NULL;
    return MS_FAIL(MS_RUNTIME_ERROR, "%s", p->broken);
}

void ms_program_done(ms_program *p)
{
    (void)p;
}
