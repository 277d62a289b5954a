/* Lua functions as hooks of the runtime.
 *
 * A hook contains a registry reference and its host, the record of a Lua state. Hooks run in
 * host_enter(), on the state that called it, so errors and stacks are the caller's. A hook's error
 * stays on that state's stack until C has unwound, and is then raised again. Hooks may be dropped
 * at any moment, also by a finalizer during an FFI call, where no Lua function may be called. So
 * their references are only queued then, and released at the next entry, at the end of a backward,
 * or by a collection. */
#include "lua_module.h"

#include <stdlib.h>

typedef struct lua_host lua_host;

typedef struct hook {
    lua_host *host;
    int function; /* registry reference */
    struct hook *next_dropped;
} hook;

struct lua_host {
    int32_t owners; /* the state, and every hook */
    bool closed;    /* the state is gone */
    hook *dropped;
};

/* One host_enter() of this thread. */
typedef struct session {
    lua_State *L;
    lua_host *host;
    int error;              /* stack index of a hook's error, or 0 */
    ms_tensor *replacement; /* set by the running hook, owned */
    struct session *outer;
} session;

static _Thread_local session *current;
static const char host_key = 'h';

/* -- hosts ------------------------------------------------------------------------------------- */

static void host_release(lua_host *host)
{
    if (--host->owners == 0) {
        free(host);
    }
}

static hook *take_dropped(lua_host *host)
{
    hook *h = host->dropped;

    if (h != NULL) {
        host->dropped = h->next_dropped;
    }
    return h;
}

static void free_hook(hook *h)
{
    lua_host *host = h->host;

    free(h);
    host_release(host);
}

/* Release the references of dropped hooks, so that Lua can collect their functions. */
static void give_back(lua_State *L, lua_host *host)
{
    for (hook *h; (h = take_dropped(host)) != NULL;) {
        luaL_unref(L, LUA_REGISTRYINDEX, h->function);
        free_hook(h);
    }
}

/* Stored in a Lua state's registry. The host is made at its first use. */
typedef struct host_box {
    lua_host *host;
    bool closing;
} host_box;

static int close_host(lua_State *L)
{
    host_box *box = lua_touserdata(L, 1);
    lua_host *host = box->host;

    box->host = NULL;
    box->closing = true;
    if (host == NULL) {
        return 0;
    }
    host->closed = true;
    for (hook *h; (h = take_dropped(host)) != NULL;) {
        free_hook(h);
    }
    host_release(host);
    return 0;
}

void host_open(lua_State *L)
{
    host_box *box = lua_newuserdata(L, sizeof(*box));

    *box = (host_box){.host = NULL};
    lua_newtable(L);
    lua_pushcfunction(L, close_host);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    lua_pushlightuserdata(L, (void *)(uintptr_t)&host_key);
    lua_insert(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
}

static host_box *box_of(lua_State *L)
{
    lua_pushlightuserdata(L, (void *)(uintptr_t)&host_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    host_box *box = lua_touserdata(L, -1);

    lua_pop(L, 1);
    return box;
}

static ms_status host_of(lua_host **out, lua_State *L)
{
    host_box *box = box_of(L);

    if (box->closing) {
        return ms_error_set(MS_RUNTIME_ERROR, "this Lua state is closing");
    }
    if (box->host == NULL) {
        box->host = calloc(1, sizeof(*box->host));
        if (box->host == NULL) {
            return ms_error_set(MS_OUT_OF_MEMORY, "no memory for hooks");
        }
        box->host->owners = 1;
    }
    give_back(L, box->host);
    *out = box->host;
    return MS_OK;
}

ms_status host_enter(lua_State *L, ms_status (*fn)(void *arg), void *arg)
{
    session s = {.L = L, .outer = current};
    ms_status status = host_of(&s.host, L);

    if (status != MS_OK) {
        return status;
    }
    current = &s;
    status = fn(arg);

    current = s.outer;
    give_back(L, s.host);
    if (s.error != 0 && status != MS_OK) {
        lua_settop(L, s.error);
        return (ms_status)lua_error(L);
    }
    return status;
}

/* -- hooks ------------------------------------------------------------------------------------- */

/* Text of an error object for receivers of text (other ranks). Calls no metamethod. */
static const char *text_of_error(lua_State *L)
{
    if (lua_type(L, -1) == LUA_TTABLE) {
        lua_pushliteral(L, "message");
        lua_rawget(L, -2);
        const char *text = lua_tostring(L, -1);

        lua_pop(L, 1); /* the table keeps it alive */
        return text != NULL ? text : "a Lua hook raised a table";
    }
    return lua_isstring(L, -1) ? lua_tostring(L, -1) : "a Lua hook raised an error";
}

typedef struct visit {
    const hook *h;
    ms_ref *refs; /* arguments of the function */
    bool told;    /* the error text was set */
} visit;

static int run_hook(lua_State *L)
{
    visit *v = lua_touserdata(L, 1);

    lua_rawgeti(L, LUA_REGISTRYINDEX, v->h->function);
    lua_pushlightuserdata(L, v->refs);
    if (lua_pcall(L, 1, 0, 0) == 0) {
        return 0;
    }
    ms_error_set(MS_HOOK_ERROR, text_of_error(L));
    v->told = true;
    return lua_error(L);
}

/* Any call of Lua's API may raise: it allocates, and a collection runs the script's finalizers. So
 * a frame called by the runtime's C contains only the protected call. */
static ms_status call_with(const hook *h, ms_ref *refs)
{
    session *s = current;
    visit v = {.h = h, .refs = refs};

    if (h->host->closed) {
        return ms_error_set(MS_RUNTIME_ERROR, "the Lua state that set this hook is closed");
    }
    if (s == NULL || s->host != h->host) {
        return ms_error_set(MS_RUNTIME_ERROR,
                            "a hook written in Lua runs only in a backward that Lua started");
    }
    int base = lua_gettop(s->L);

    if (lua_cpcall(s->L, run_hook, &v) == 0) {
        return MS_OK;
    }
    if (!v.told) {
        ms_error_set(MS_HOOK_ERROR, "a Lua hook raised an error");
    }
    if (s->error == 0) {
        s->error = base + 1;
    } else {
        lua_settop(s->L, base); /* the first error is reported */
    }
    return MS_HOOK_ERROR;
}

/* `gives`: the function owns the tensor, else it borrows it. */
static ms_status call(const hook *h, ms_tensor *t, bool gives)
{
    ms_ref ref;

    (void)ms_ref_of(&ref, gives ? ms_tensor_retain(t) : t);
    return call_with(h, &ref);
}

static ms_status on_gradient(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    ms_status status = call(user, grad, false);
    session *s = current;

    if (s != NULL && s->replacement != NULL) {
        if (status == MS_OK) {
            *replacement = s->replacement;
        } else {
            ms_tensor_free(s->replacement);
        }
        s->replacement = NULL;
    }
    return status;
}

static ms_status on_accumulate(void *user, ms_tensor *leaf)
{
    return call(user, leaf, true);
}

static void on_drop(void *user)
{
    hook *h = user;

    if (h->host->closed) {
        free_hook(h);
        return;
    }
    h->next_dropped = h->host->dropped;
    h->host->dropped = h;
}

/* A hook record of the function at index `arg`. */
static ms_status new_hook(hook **out, lua_State *L, int arg)
{
    lua_host *host;

    luaL_checktype(L, arg, LUA_TFUNCTION);
    ms_status status = host_of(&host, L);

    if (status != MS_OK) {
        return status;
    }
    lua_pushvalue(L, arg);
    int function = luaL_ref(L, LUA_REGISTRYINDEX);
    hook *h = calloc(1, sizeof(*h));

    if (h == NULL) {
        luaL_unref(L, LUA_REGISTRYINDEX, function);
        return ms_error_set(MS_OUT_OF_MEMORY, "no memory for a hook");
    }
    h->host = host;
    host->owners++;
    h->function = function;
    *out = h;
    return MS_OK;
}

/* hook(ref, fn) or accumulate_hook(ref, fn). */
static int add_hook(lua_State *L, bool accumulates)
{
    int64_t id = 0;
    ms_tensor *t;
    hook *h = NULL;
    ms_status status = handle_arg(L, 1, accumulates ? "accumulate_hook" : "hook", &t);

    if (status == MS_OK) {
        status = new_hook(&h, L, 2);
    }
    if (status == MS_OK) {
        status = accumulates ? ms_tensor_accumulate_hook(t, on_accumulate, h, on_drop, &id)
                             : ms_tensor_hook(t, on_gradient, h, on_drop, &id);
        if (status != MS_OK) {
            on_drop(h);
        }
    }
    lua_pushinteger(L, status);
    lua_pushinteger(L, (lua_Integer)id);
    return 2;
}

int lua_hook(lua_State *L)
{
    return add_hook(L, false);
}

int lua_accumulate_hook(lua_State *L)
{
    return add_hook(L, true);
}

/* -- custom functions -------------------------------------------------------------------------- */

static void lend(ms_ref *refs, ms_tensor *const *tensors, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        refs[i] = (ms_ref){.ptr = NULL};
        if (tensors[i] != NULL) {
            (void)ms_ref_of(&refs[i], tensors[i]);
        }
    }
}

static ms_status on_custom(void *user, ms_tensor *const *grads_out, int32_t n_out,
                           ms_tensor **grads_in, int32_t n_in)
{
    ms_ref refs[2 * MS_CUSTOM_MAX] = {{.ptr = NULL}};

    lend(refs, grads_out, n_out);
    ms_status status = call_with(user, refs);

    for (int32_t i = 0; i < n_in && status == MS_OK; i++) {
        if (refs[n_out + i].ptr != NULL) {
            ms_tensor *t;

            status = handle_of(&refs[n_out + i], "backward", &t);
            grads_in[i] = status == MS_OK ? ms_tensor_retain(t) : NULL;
        }
    }
    return status;
}

static ms_status on_recompute(void *user, ms_tensor *const *grads, int32_t n_out)
{
    ms_ref refs[MS_CUSTOM_MAX];

    lend(refs, grads, n_out);
    return call_with(user, refs);
}

static ms_status on_unit(void *user, const char *unit, ms_tensor *grad, ms_tensor *out)
{
    ms_ref refs[2];

    (void)unit;
    lend(refs, (ms_tensor *[]){grad, out}, 2);
    return call_with(user, refs);
}

int lua_unit_hook(lua_State *L)
{
    ms_fsdp_unit *unit = *(ms_fsdp_unit *const *)lua_topointer(L, 1);
    hook *h = NULL;
    ms_status status = new_hook(&h, L, 3);

    if (status == MS_OK) {
        status = ms_fsdp_unit_set_hook(unit, (int32_t)lua_tointeger(L, 2), on_unit, h, on_drop);
        if (status != MS_OK) {
            on_drop(h);
        }
    }
    lua_pushinteger(L, status);
    return 1;
}

/* The tensors behind refs [0, n); NULL refs give NULL. */
static ms_status handles_of(const ms_ref *refs, int32_t n, const char *function, ms_tensor **out)
{
    ms_status status = n <= 2 * MS_CUSTOM_MAX
                           ? MS_OK
                           : ms_error_set(MS_VALUE_ERROR, "too many tensors for a custom function");

    for (int32_t i = 0; i < n && status == MS_OK; i++) {
        out[i] = NULL;
        status = refs[i].ptr != NULL ? handle_of(&refs[i], function, &out[i]) : MS_OK;
    }
    return status;
}

static ms_status give_results(ms_ref *refs, ms_tensor **out, int32_t n, ms_status status)
{
    for (int32_t i = 0; i < n && status == MS_OK; i++) {
        status = ms_ref_of(&refs[i], out[i]);
    }
    return status;
}

int lua_custom(lua_State *L)
{
    ms_ref *refs = (ms_ref *)lua_topointer(L, 1);
    const int32_t n_out = (int32_t)lua_tointeger(L, 2), n_in = (int32_t)lua_tointeger(L, 3);
    ms_tensor *tensors[2 * MS_CUSTOM_MAX], *out[MS_CUSTOM_MAX];
    hook *h = NULL;
    ms_status status = handles_of(refs, n_out + n_in, "apply", tensors);

    if (status == MS_OK) {
        status = new_hook(&h, L, 4);
    }
    if (status == MS_OK) {
        status = ms_custom(out, tensors, n_out, tensors + n_out, n_in, on_custom, h, on_drop);
    }
    lua_pushinteger(L, give_results(refs + n_out + n_in, out, n_out, status));
    return 1;
}

int lua_checkpoint(lua_State *L)
{
    ms_ref *refs = (ms_ref *)lua_topointer(L, 1);
    const int32_t n_out = (int32_t)lua_tointeger(L, 2);
    ms_tensor *tensors[2 * MS_CUSTOM_MAX], *out[MS_CUSTOM_MAX];
    hook *h = NULL;
    ms_status status = handles_of(refs, n_out, "checkpoint", tensors);

    if (status == MS_OK) {
        status = new_hook(&h, L, 4);
    }
    if (status == MS_OK) {
        status = ms_checkpoint_graph(out, tensors, n_out, (uint64_t)lua_tonumber(L, 3),
                                     on_recompute, h, on_drop);
    }
    lua_pushinteger(L, give_results(refs + n_out, out, n_out, status));
    return 1;
}

int lua_extend(lua_State *L)
{
    const ms_ref *refs = lua_topointer(L, 1);
    const int32_t n = (int32_t)lua_tointeger(L, 2);
    ms_tensor *tensors[2 * MS_CUSTOM_MAX];
    ms_status status = handles_of(refs, 2 * n, "checkpoint", tensors);

    if (status == MS_OK) {
        status = ms_backward_extend(tensors, tensors + n, n);
    }
    lua_pushinteger(L, status);
    return 1;
}

int lua_collect_hooks(lua_State *L)
{
    host_box *box = box_of(L);

    if (box->host != NULL) {
        give_back(L, box->host);
    }
    return 0;
}

int lua_replace_gradient(lua_State *L)
{
    session *s = current;
    ms_tensor *t;
    ms_status status = handle_arg(L, 1, "hook", &t);

    if (status == MS_OK && s == NULL) {
        status = ms_error_set(MS_RUNTIME_ERROR, "a gradient can be replaced only inside a hook");
    }
    if (status == MS_OK && t != NULL) {
        ms_tensor_free(s->replacement);
        s->replacement = ms_tensor_retain(t);
    }
    lua_pushinteger(L, status);
    return 1;
}
