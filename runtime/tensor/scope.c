/* Scopes: lists of handles that are released together; and refs of scripts. */
#include "pool.h"

#include <stdlib.h>

static ms_status state_here(msi_tensor_state **s)
{
    *s = msi_tensor_state_of(msi_context());
    return *s != NULL ? MS_OK : MS_OUT_OF_MEMORY;
}

ms_status ms_scope_open(const char *name)
{
    msi_tensor_state *s;

    MS_TRY(state_here(&s));
    if (s->depth == MSI_SCOPE_MAX) {
        return MS_FAIL(MS_RUNTIME_ERROR, "scope '%s' would be %d deep, expected at most %d", name,
                       MSI_SCOPE_MAX + 1, MSI_SCOPE_MAX);
    }
    s->scope[s->depth].name = name;
    s->scope[s->depth].count = 0;
    s->scope[s->depth].serial = ++s->n_scopes_opened;
    s->depth++;
    return MS_OK;
}

/* Remove a handle from its list; the caller owns it. */
static void move_out(msi_tensor_state *s, ms_tensor *t)
{
    s->scope[t->scope - 1].list[t->scope_index] = NULL;
    t->scope = 0;
}

ms_status ms_scope_close(const ms_ref *results, int32_t n_results)
{
    msi_tensor_state *s;
    ms_status status = MS_OK;

    MS_TRY(state_here(&s));
    if (s->depth == 0) {
        return MS_FAIL(MS_RUNTIME_ERROR, "scope_close: no scope is open");
    }
    int32_t depth = s->depth;
    msi_scope *scope = &s->scope[depth - 1];

    for (int32_t i = 0; i < n_results && status == MS_OK; i++) {
        ms_tensor *t = results[i].ptr;

        if (t == NULL || t->generation != results[i].generation || t->scope != depth) {
            continue; /* stale, or of an outer scope */
        }
        move_out(s, t);
        if (depth > 1) {
            status = msi_scope_enlist(s, t, depth - 1);
        }
    }
    for (int32_t i = scope->count - 1; i >= 0; i--) {
        ms_tensor *t = scope->list[i];

        if (t == NULL) {
            continue;
        }
        scope->list[i] = NULL;
        t->scope = 0;
        if (--t->refcount == 0) {
            msi_tensor_destroy(t, scope->name);
        } else {
            t->generation++; /* the runtime retains it, but refs of the scope become stale */
            t->released_by = scope->name;
        }
    }
    scope->count = 0;
    s->depth--;
    return status;
}

int32_t ms_scope_depth(void)
{
    ms_context *ctx = msi_context_peek();

    return ctx != NULL && ctx->room[MSI_ROOM_TENSOR] != NULL
               ? ((msi_tensor_state *)ctx->room[MSI_ROOM_TENSOR])->depth
               : 0;
}

msi_scope_place msi_scope_now(const ms_context *ctx)
{
    const msi_tensor_state *s = ctx->room[MSI_ROOM_TENSOR];
    msi_scope_place place = {.depth = s != NULL ? s->depth : 0};

    if (place.depth > 0) {
        place.serial = s->scope[place.depth - 1].serial;
    }
    return place;
}

bool msi_scope_is_open(const ms_context *ctx, msi_scope_place place)
{
    const msi_tensor_state *s = ctx->room[MSI_ROOM_TENSOR];

    return place.depth == 0 ||
           (s->depth >= place.depth && s->scope[place.depth - 1].serial == place.serial);
}

ms_status ms_scope_keep(ms_tensor *t)
{
    if (t->scope > 0) {
        move_out(msi_tensor_state_of(t->ctx), t);
    }
    return MS_OK;
}

const char *ms_ref_released_by(const ms_ref *ref)
{
    return ref->ptr != NULL && ref->ptr->released_by != NULL ? ref->ptr->released_by : "";
}

bool ms_ref_alive(const ms_ref *ref)
{
    return ref->ptr != NULL && ref->ptr->generation == ref->generation;
}

ms_status ms_ref_of(ms_ref *ref, ms_tensor *t)
{
    if (ref == NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "ms_ref_of: 'ref' is NULL, expected a pointer");
    }
    *ref = (ms_ref){.ptr = NULL};
    if (t == NULL || t->refcount <= 0) {
        return MS_FAIL(MS_VALUE_ERROR, "ms_ref_of: 't' is %s, expected a tensor",
                       t == NULL ? "NULL" : "a freed tensor");
    }
    ref->ptr = t;
    ref->generation = t->generation;
    return MS_OK;
}

void ms_ref_release(ms_ref *ref)
{
    if (ms_ref_alive(ref)) {
        ms_context *ctx = ref->ptr->ctx;

        /* Others may retain it: its scope must not release it again. */
        (void)ms_scope_keep(ref->ptr);
        ctx->collecting = true;
        ms_tensor_free(ref->ptr);
        ctx->collecting = false;
    }
    ref->ptr = NULL;
}
