/* Ctrl-C at the prompt. As luajit does it, a SIGINT sets a hook, which raises wherever Lua is
 * interpreted next; but luajit lets go of the signal then, and a second one ends the process. */
#include "lua_module.h"

#include <signal.h>

static lua_State *volatile interrupted; /* the state that was told to heed the signal */

static void stop(lua_State *L, lua_Debug *where)
{
    (void)where;
    lua_sethook(L, NULL, 0, 0);
    luaL_error(L, "interrupted!");
}

static void on_sigint(int signal)
{
    (void)signal;
    lua_sethook(interrupted, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

int lua_heed_interrupts(lua_State *L)
{
    struct sigaction action = {.sa_handler = on_sigint,
                               .sa_flags = lua_toboolean(L, 1) ? 0 : SA_RESTART};

    interrupted = L;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    return 0;
}
