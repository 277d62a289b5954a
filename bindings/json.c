/* JSON for Lua, by Jansson: tables to text and back. Called only by lua/moonshard/base/json.lua.
 * Argument 2 is the Lua value of null, argument 3 the metatable of arrays. On an error: nil, the
 * error's kind, its message. */
#include "lua_module.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE = 1, NULL_VALUE = 2, ARRAY = 3, MAX_DEPTH = 64 };
enum { FLAGS = JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17) };

typedef struct mistake {
    const char *kind;
    char text[160];
    char where[128]; /* path in the value, "['config']['sizes'][2]" */
} mistake;

static json_t *wrong(mistake *m, const char *kind, const char *format, const char *what)
{
    m->kind = kind;
    snprintf(m->text, sizeof(m->text), format, what);
    return NULL;
}

static json_t *write_value(lua_State *L, int depth, mistake *m);

enum { KEY_ROOM = 48 };

/* A key for a message, truncated to fit. The key on the stack is unchanged: lua_next() needs it. */
static const char *key_text(lua_State *L, int index, char text[KEY_ROOM])
{
    size_t n, used = 1;
    const char *key;

    switch (lua_type(L, index)) {
    case LUA_TSTRING:
        key = lua_tolstring(L, index, &n);
        text[0] = '\'';
        for (size_t i = 0; i < n && used + 4 < KEY_ROOM; i++) {
            if (key[i] == '\0') {
                text[used++] = '\\';
            }
            text[used++] = key[i] == '\0' ? '0' : key[i];
        }
        snprintf(text + used, KEY_ROOM - used, "'");
        break;
    case LUA_TNUMBER:
        snprintf(text, KEY_ROOM, "%.14g", lua_tonumber(L, index));
        break;
    case LUA_TBOOLEAN:
        snprintf(text, KEY_ROOM, "%s", lua_toboolean(L, index) ? "true" : "false");
        break;
    default:
        snprintf(text, KEY_ROOM, "(a %s)", luaL_typename(L, index));
    }
    return text;
}

static json_t *wrong_key(lua_State *L, int index, mistake *m)
{
    char text[KEY_ROOM];

    return wrong(m, "TypeError",
                 "a table with key %s has no JSON form, expected the keys 1 to n or only strings",
                 key_text(L, index, text));
}

/* The error is in the value on top, whose key is below it. */
static void note_key(lua_State *L, mistake *m)
{
    char text[KEY_ROOM], inside[64];

    snprintf(inside, sizeof(inside), "%.63s", m->where);
    snprintf(m->where, sizeof(m->where), "[%s]%s", key_text(L, -2, text), inside);
}

/* Is the table on top an array? Then its keys must be 1 to n. */
static bool is_array(lua_State *L)
{
    lua_rawgeti(L, -1, 1);
    bool has_first = !lua_isnil(L, -1);

    lua_pop(L, 1);
    if (has_first || !lua_getmetatable(L, -1)) {
        return has_first;
    }
    bool marked = lua_rawequal(L, -1, ARRAY) != 0;

    lua_pop(L, 1);
    return marked;
}

/* `*n`: the number of keys of the table on top. @return whether they are 1 to n: keys are distinct,
 * so each being an integer in that range is sufficient */
static bool check_array(lua_State *L, int *n, mistake *m)
{
    *n = 0;
    for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1)) {
        ++*n;
    }
    for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1)) {
        const double key = lua_type(L, -2) == LUA_TNUMBER ? lua_tonumber(L, -2) : 0;

        if (!(key >= 1 && key <= *n && key == floor(key))) {
            wrong_key(L, -2, m);
            lua_pop(L, 2);
            return false;
        }
    }
    return true;
}

static json_t *write_array(lua_State *L, int depth, mistake *m)
{
    int n;

    if (!check_array(L, &n, m)) {
        return NULL;
    }
    json_t *out = json_array();

    for (int i = 1; i <= n; i++) {
        lua_pushinteger(L, i);
        lua_rawgeti(L, -2, i);
        json_t *entry = write_value(L, depth + 1, m);

        if (entry == NULL) {
            note_key(L, m);
        }
        lua_pop(L, 2);
        if (entry == NULL || json_array_append_new(out, entry) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* Is the key below the top valid in an object? Jansson does not accept keys with NUL bytes. */
static bool check_key(lua_State *L, mistake *m)
{
    char text[KEY_ROOM];

    if (lua_type(L, -2) != LUA_TSTRING) {
        wrong_key(L, -2, m);
    } else if (strlen(lua_tostring(L, -2)) != lua_objlen(L, -2)) {
        wrong(m, "ValueError", "the key %s holds a NUL byte and has no JSON form",
              key_text(L, -2, text));
    }
    return m->kind == NULL;
}

static json_t *write_object(lua_State *L, int depth, mistake *m)
{
    json_t *out = json_object();

    lua_pushnil(L);
    while (lua_next(L, -2) != 0) {
        const bool known = check_key(L, m);
        json_t *entry = known ? write_value(L, depth + 1, m) : NULL;

        if (known && entry == NULL) {
            note_key(L, m);
        }
        if (entry != NULL && json_object_set_new(out, lua_tostring(L, -2), entry) != 0) {
            entry = wrong(m, "ValueError", "%s is no UTF-8", "a key");
        }
        lua_pop(L, 1);
        if (entry == NULL) {
            lua_pop(L, 1);
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* Encode the value on top. */
static json_t *write_value(lua_State *L, int depth, mistake *m)
{
    double number;
    size_t n;
    const char *text;
    json_t *out;

    if (lua_rawequal(L, -1, NULL_VALUE)) {
        return json_null();
    }
    switch (lua_type(L, -1)) {
    case LUA_TBOOLEAN:
        return json_boolean(lua_toboolean(L, -1));
    case LUA_TNUMBER:
        number = lua_tonumber(L, -1);
        if (!isfinite(number)) {
            return wrong(m, "ValueError", "JSON has no number for %s", lua_tostring(L, -1));
        }
        return number == floor(number) && fabs(number) <= 0x1p53 ? json_integer((json_int_t)number)
                                                                 : json_real(number);
    case LUA_TSTRING:
        text = lua_tolstring(L, -1, &n);
        out = json_stringn(text, n);
        return out != NULL ? out : wrong(m, "ValueError", "%s is no UTF-8", "a string");
    case LUA_TTABLE:
        if (depth >= MAX_DEPTH || !lua_checkstack(L, 8)) {
            return wrong(m, "ValueError", "a table nested more than %s deep is no JSON", "64");
        }
        return is_array(L) ? write_array(L, depth, m) : write_object(L, depth, m);
    default:
        text = luaL_typename(L, -1);
        return wrong(m, "TypeError", "a %s has no JSON form",
                     strcmp(text, "cdata") == 0 ? "tensor (or another cdata)" : text);
    }
}

static int failed(lua_State *L, const mistake *m, bool no_memory)
{
    lua_pushnil(L);
    lua_pushstring(L, no_memory ? "OutOfMemory" : m->kind);
    lua_pushfstring(L, no_memory || m->where[0] == '\0' ? "%s" : "%s (at %s)",
                    no_memory ? "no memory for JSON" : m->text, m->where);
    return 3;
}

int lua_json_encode(lua_State *L)
{
    mistake m = {.kind = NULL};

    lua_settop(L, 3);
    lua_pushvalue(L, VALUE);
    errno = 0;
    json_t *value = write_value(L, 0, &m);
    const int error = errno;
    char *text = json_dumps(value, FLAGS);

    json_decref(value);
    if (text == NULL) {
        return failed(L, &m, error == ENOMEM || m.kind == NULL);
    }
    lua_pushstring(L, text);
    free(text);
    return 1;
}

static void read_value(lua_State *L, const json_t *value)
{
    const char *key;
    json_t *entry;

    luaL_checkstack(L, 8, "JSON nested too deep");
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        lua_newtable(L);
        json_object_foreach((json_t *)(uintptr_t)value, key, entry)
        {
            read_value(L, entry);
            lua_setfield(L, -2, key);
        }
        break;
    case JSON_ARRAY:
        lua_createtable(L, (int)json_array_size(value), 0);
        for (size_t i = 0; i < json_array_size(value); i++) {
            read_value(L, json_array_get(value, i));
            lua_rawseti(L, -2, (int)i + 1);
        }
        lua_pushvalue(L, ARRAY);
        lua_setmetatable(L, -2);
        break;
    case JSON_STRING:
        lua_pushlstring(L, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        lua_pushnumber(L, json_number_value(value));
        break;
    case JSON_NULL:
        lua_pushvalue(L, NULL_VALUE);
        break;
    default:
        lua_pushboolean(L, json_is_true(value));
    }
}

/* Argument 1 is the tree. A function of its own, because Lua may run out of memory in it. */
static int read_root(lua_State *L)
{
    read_value(L, lua_touserdata(L, VALUE));
    return 1;
}

int lua_json_decode(lua_State *L)
{
    mistake m = {.kind = "FormatError"};
    json_error_t error;
    size_t n;

    lua_settop(L, 3);
    const char *text = luaL_checklstring(L, VALUE, &n);
    json_t *tree =
        json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);

    if (tree == NULL) {
        snprintf(m.text, sizeof(m.text), "malformed JSON at line %d, byte %d: %.80s", error.line,
                 error.position, error.text);
        return failed(L, &m, json_error_code(&error) == json_error_out_of_memory);
    }
    lua_pushcfunction(L, read_root);
    lua_pushlightuserdata(L, tree);
    lua_pushvalue(L, NULL_VALUE);
    lua_pushvalue(L, ARRAY);
    const int raised = lua_pcall(L, 3, 1, 0);

    json_decref(tree);
    return raised != 0 ? lua_error(L) : 1;
}
