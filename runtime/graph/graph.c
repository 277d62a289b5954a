/* The life of a graph: recording, runs, freeing. */
#include "moonshard/graph.h"

#include "base.h"

#include <stdlib.h>

struct ms_graph {
    const char *broken;
};

ms_status ms_graph_begin(ms_graph **out)
{
    *out = calloc(1, sizeof(**out));
    if (*out == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a graph");
    }
    (*out)->broken = "replay is not built yet";
    return MS_OK;
}

ms_status ms_graph_argument(ms_graph *g, ms_tensor *t)
{
    (void)g;
    (void)t;
    return MS_OK;
}

ms_status ms_graph_cut(ms_graph *g, int32_t *segment)
{
    (void)g;
    *segment = -1;
    return MS_OK;
}

ms_status ms_graph_value(ms_graph *g, ms_tensor *t, int32_t *value)
{
    (void)g;
    (void)t;
    *value = -1;
    return MS_OK;
}

void ms_graph_break(ms_graph *g, const char *why)
{
    (void)g;
    (void)why;
}

const char *ms_graph_broken(const ms_graph *g)
{
    return g->broken;
}

ms_status ms_graph_end(ms_graph *g)
{
    (void)g;
    return MS_OK;
}

void ms_graph_free(ms_graph *g)
{
    free(g);
}

void ms_graph_info_get(const ms_graph *g, ms_graph_info *info)
{
    (void)g;
    *info = (ms_graph_info){0};
}

ms_status ms_graph_set(ms_graph *g, int32_t value, ms_tensor *t, bool *fits)
{
    (void)g;
    (void)value;
    (void)t;
    *fits = false;
    return MS_OK;
}

const char *ms_graph_misfit(const ms_graph *g)
{
    return g->broken;
}

ms_status ms_graph_run(ms_graph *g, int32_t segment)
{
    (void)segment;
    return MS_FAIL(MS_RUNTIME_ERROR, "%s", g->broken);
}

ms_status ms_graph_get(ms_tensor **out, ms_graph *g, int32_t value)
{
    (void)value;
    *out = NULL;
    return MS_FAIL(MS_RUNTIME_ERROR, "%s", g->broken);
}

void ms_graph_done(ms_graph *g)
{
    (void)g;
}
