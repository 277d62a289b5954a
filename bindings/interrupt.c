/* Ctrl-C at the prompt. As luajit does it, a SIGINT sets a hook, which raises wherever Lua is
 * interpreted next; but luajit lets go of the signal then, and here it raises in one call only:
 * what comes while none runs is kept for the next. */
#include "lua_module.h"

#include <pthread.h>
#include <signal.h>

static lua_State *heeding; /* the state that runs the call, in this thread */
static pthread_t thread;
static volatile sig_atomic_t inside; /* the call runs */
static volatile sig_atomic_t came;   /* a SIGINT has not raised anything yet */

static char raised; /* its address: where the registry keeps what a SIGINT raises */

/* A SIGINT sets the hook too, and it must not do so halfway through. */
static void hold(bool on)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(on ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static void stop(lua_State *L, lua_Debug *where)
{
    (void)where;
    hold(true);
    lua_sethook(L, NULL, 0, 0);
    came = 0;
    hold(false);
    lua_pushlightuserdata(L, &raised);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_error(L);
}

static void set_stop(void)
{
    lua_sethook(heeding, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

static void on_sigint(int signal)
{
    if (!pthread_equal(pthread_self(), thread)) {
        pthread_kill(thread, signal);
        return;
    }
    came = 1;
    if (inside) {
        set_stop();
    }
}

/* Calls begin and end here. */
static void heed(lua_State *L, bool on)
{
    hold(true);
    inside = on;
    if (on && came) {
        set_stop();
    } else if (!on && lua_gethook(L) == stop) {
        lua_sethook(L, NULL, 0, 0);
    }
    hold(false);
}

int lua_interruptible(lua_State *L)
{
    /* without SA_RESTART, so that reads which wait end too */
    struct sigaction action = {.sa_handler = on_sigint};

    lua_pushlightuserdata(L, &raised);
    lua_pushvalue(L, 1);
    lua_rawset(L, LUA_REGISTRYINDEX);
    heeding = L;
    thread = pthread_self();
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    heed(L, true);
    lua_pushboolean(L, lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 0) == 0);
    heed(L, false);
    lua_replace(L, 1);
    return lua_gettop(L);
}

int lua_sigint_is_handled(lua_State *L)
{
    struct sigaction now;

    lua_pushboolean(L, sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler != SIG_DFL);
    return 1;
}
