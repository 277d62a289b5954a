/* Handles behind refs. */
#include "lua_module.h"

#include <stdio.h>
#include <string.h>

enum { TYPE_CDATA = 10 }; /* LuaJIT's type tag of FFI objects, which lua.h does not define */

ms_status handle_of(const ms_ref *ref, const char *function, ms_tensor **t)
{
    char text[160];

    if (ms_ref_alive(ref)) {
        *t = ref->ptr;
        return MS_OK;
    }
    const char *scope = ms_ref_released_by(ref);

    snprintf(text, sizeof(text),
             strcmp(scope, "ms.close") == 0 ? "%s: the tensor was released by %s()"
             : scope[0] != '\0'
                 ? "%s: the tensor was released at the end of %s; return it or ms.keep it"
                 : "%s: the tensor was released%s",
             function, scope);
    return ms_error_set(MS_RUNTIME_ERROR, text);
}

ms_status handle_arg(lua_State *L, int arg, const char *function, ms_tensor **t)
{
    char text[160];

    *t = NULL;
    if (lua_isnoneornil(L, arg)) {
        return MS_OK;
    }
    if (lua_type(L, arg) != TYPE_CDATA) {
        snprintf(text, sizeof(text), "%s: argument %d is a %s, expected a tensor", function, arg,
                 luaL_typename(L, arg));
        return ms_error_set(MS_TYPE_ERROR, text);
    }
    /* LuaJIT returns the payload of a cdata */
    return handle_of(lua_topointer(L, arg), function, t);
}
