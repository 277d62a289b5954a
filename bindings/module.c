/* moonshard_lua.so: functions that may call back into Lua and so cannot go through the FFI.
 * bindings/moonshard_ffi calls them. Operands are cdata refs, results are statuses. */
#include "abi_hash.h"
#include "lua_module.h"

#include <string.h>

struct backward {
    ms_tensor *root, *grad;
    int32_t flags;
};

static ms_status run_backward(void *arg)
{
    const struct backward *b = arg;

    return ms_backward_with(b->root, b->grad, b->flags);
}

/* backward(root, grad or nil, flags) -> status. An error of a hook is raised again. */
static int lua_backward(lua_State *L)
{
    struct backward b;
    ms_status status = handle_arg(L, 1, "backward", &b.root);

    if (status == MS_OK) {
        status = handle_arg(L, 2, "backward", &b.grad);
    }
    b.flags = (int32_t)lua_tointeger(L, 3);
    if (status == MS_OK) {
        status = host_enter(L, run_backward, &b);
    }
    lua_pushinteger(L, status);
    return 1;
}

struct grad {
    ms_tensor **tensors; /* outputs, their gradients, inputs, results */
    int32_t n_outputs, n_inputs, flags;
};

static ms_status run_grad(void *arg)
{
    const struct grad *g = arg;
    ms_tensor **given = g->tensors + g->n_outputs, **inputs = given + g->n_outputs;

    return ms_grad(inputs + g->n_inputs, g->tensors, given, g->n_outputs, inputs, g->n_inputs,
                   g->flags);
}

/* grad(refs, n_outputs, n_inputs, flags) -> status. `refs` is an array of outputs, their gradients
 * (NULL: none), inputs, and room for the results, which the caller owns. */
static int lua_grad(lua_State *L)
{
    ms_ref *refs = (ms_ref *)lua_topointer(L, 1);
    struct grad g = {.n_outputs = (int32_t)lua_tointeger(L, 2),
                     .n_inputs = (int32_t)lua_tointeger(L, 3),
                     .flags = (int32_t)lua_tointeger(L, 4)};
    const int32_t n_given = 2 * g.n_outputs + g.n_inputs;

    /* allocated by Lua, because a hook's error unwinds this frame */
    g.tensors = lua_newuserdata(L, sizeof(*g.tensors) * (size_t)(n_given + g.n_inputs));
    memset(g.tensors, 0, sizeof(*g.tensors) * (size_t)(n_given + g.n_inputs));
    ms_status status = MS_OK;

    for (int32_t i = 0; i < n_given && status == MS_OK; i++) {
        const bool may_lack = i >= g.n_outputs && i < 2 * g.n_outputs;

        if (!may_lack || refs[i].ptr != NULL) {
            status = handle_of(&refs[i], "grad", &g.tensors[i]);
        }
    }
    if (status == MS_OK) {
        status = host_enter(L, run_grad, &g);
    }
    for (int32_t i = n_given; i < n_given + g.n_inputs && status == MS_OK; i++) {
        if (g.tensors[i] != NULL) {
            status = ms_ref_of(&refs[i], g.tensors[i]);
        }
    }
    lua_pushinteger(L, status);
    return 1;
}

__attribute__((visibility("default"))) int luaopen_moonshard_lua(lua_State *L);

int luaopen_moonshard_lua(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"backward", lua_backward},
        {"grad", lua_grad},
        {"hook", lua_hook},
        {"accumulate_hook", lua_accumulate_hook},
        {"collect_hooks", lua_collect_hooks},
        {"replace_gradient", lua_replace_gradient},
        {"custom", lua_custom},
        {"checkpoint", lua_checkpoint},
        {"extend", lua_extend},
        {"unit_hook", lua_unit_hook},
        {"json_encode", lua_json_encode},
        {"json_decode", lua_json_decode},
        {NULL, NULL},
    };

    host_open(L);
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    lua_pushliteral(L, MSI_ABI_HASH);
    lua_setfield(L, -2, "abi_hash");
    return 1;
}
