/* Declarations shared by the files of moonshard_lua.so. */
#ifndef MOONSHARD_LUA_MODULE_H
#define MOONSHARD_LUA_MODULE_H

#include "moonshard.h"

#include <lauxlib.h>
#include <lua.h>

/* Make the record of this Lua state for its hooks; it has the state's lifetime. */
void host_open(lua_State *L);

/* Run `fn(arg)` with `L` as the state for hooks of this thread. If a hook raised an error, the same
 * error object is raised again once `fn` has returned. */
ms_status host_enter(lua_State *L, ms_status (*fn)(void *arg), void *arg);

/* hook(ref, fn) -> status, id: `fn(address of a ms_ref)` sees each gradient of the tensor. */
int lua_hook(lua_State *L);
/* accumulate_hook(ref, fn) -> status, id: `fn(address of a ms_ref)` gets the leaf and owns it. */
int lua_accumulate_hook(lua_State *L);
/* collect_hooks(): let Lua collect the functions of dropped hooks. */
int lua_collect_hooks(lua_State *L);
/* replace(ref): called by a hook, replaces the gradient by this tensor. */
int lua_replace_gradient(lua_State *L);

/* custom(refs, n_out, n_in, fn) -> status. `refs` is an array of results, inputs (NULL: none) and
 * room for the outputs, which the caller owns. `fn(address of refs)` gets the gradients of the
 * outputs (NULL: none) and room for those of the inputs, which it owns. */
int lua_custom(lua_State *L);
/* checkpoint(refs, n_out, since, fn) -> status. `refs` is an array of results and room for the
 * outputs. `fn(address of refs)` gets the gradients of the outputs. */
int lua_checkpoint(lua_State *L);
/* unit_hook(unit, moment, fn) -> status. `fn(address of refs)` gets a unit's gradient and, of a
 * sharded unit with MS_HOOK_REDUCE, room for this rank's shard of the sum. */
int lua_unit_hook(lua_State *L);
/* extend(refs, n) -> status. `refs` is an array of outputs and their gradients (NULL: none). */
int lua_extend(lua_State *L);

/* json_encode(value, null, array) -> text; json_decode(text, null, array) -> value; json.c. */
int lua_json_encode(lua_State *L);
int lua_json_decode(lua_State *L);

/* The handle behind a ref. @return MS_RUNTIME_ERROR, with a message, if the ref is stale */
ms_status handle_of(const ms_ref *ref, const char *function, ms_tensor **t);
/* The handle behind the ref (a cdata) at argument `arg`, NULL for nil. @return MS_TYPE_ERROR or, if
 * the ref is stale, MS_RUNTIME_ERROR, with a message */
ms_status handle_arg(lua_State *L, int arg, const char *function, ms_tensor **t);

#endif
