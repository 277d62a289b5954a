/* Modules of the library loaded from bytecode that the build made, in a third of the time that
 * their text takes. The text stays the truth: bytecode is used only for the very text it was made
 * from, under the name it is found by now. The archive is read once, so that a build, or a copy
 * over it, beside a program that runs is nothing to the program. */
#include "lua_module.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What bindings/precompile.lua wrote: per module its sizes, then name, text and bytecode. */
typedef struct archive {
    char *data; /* not of Lua's heap, whose size paces its collector */
    size_t size;
} archive;

typedef struct record {
    uint32_t name_bytes, text_bytes, code_bytes;
} record;

typedef struct module {
    const char *text, *code;
    size_t text_bytes, code_bytes;
} module;

static bool find(const archive *a, const char *name, size_t name_bytes, module *found)
{
    size_t at = 0;
    record r;

    while (a->size - at >= sizeof(r)) {
        memcpy(&r, a->data + at, sizeof(r));
        at += sizeof(r);
        const char *data = a->data + at;
        const size_t nbytes = (size_t)r.name_bytes + r.text_bytes + r.code_bytes;

        if (nbytes > a->size - at) {
            return false;
        }
        if (r.name_bytes == name_bytes && memcmp(data, name, name_bytes) == 0) {
            *found = (module){.text = data + name_bytes,
                              .text_bytes = r.text_bytes,
                              .code = data + name_bytes + r.text_bytes,
                              .code_bytes = r.code_bytes};
            return true;
        }
        at += nbytes;
    }
    return false;
}

static bool file_holds(const char *path, const char *text, size_t nbytes)
{
    char piece[16384];
    size_t at = 0;
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && (n = read(fd, piece, sizeof(piece))) > 0 && (size_t)n <= nbytes - at &&
           memcmp(piece, text + at, (size_t)n) == 0) {
        at += (size_t)n;
    }
    if (fd >= 0) {
        close(fd);
    }
    return n == 0 && at == nbytes;
}

/* Bytecode in pieces. It begins with "\x1bLJ", a version, flags, and the length and text of the
 * name that messages have; the numbers are LEB128, of one byte here. In place of that name, which
 * is short, goes the path of now. */
typedef struct pieces {
    char head[1024];
    const char *next[2];
    size_t nbytes[2];
    int at;
} pieces;

enum { FLAGS_AT = 4, NAME_AT = 5, STRIPPED = 2, LONGEST = 0x7f };

static bool begin(pieces *p, const module *m, const char *path)
{
    const size_t length = strlen(path) + 1; /* with the '@' of files */
    const size_t old = m->code_bytes > NAME_AT ? (unsigned char)m->code[NAME_AT] : LONGEST + 1;

    if (old > LONGEST || m->code[FLAGS_AT] & (STRIPPED | ~LONGEST) ||
        m->code_bytes < NAME_AT + 1 + old || length > sizeof(p->head) - 16) {
        return false;
    }
    memcpy(p->head, m->code, NAME_AT);
    size_t n = NAME_AT;

    if (length > LONGEST) {
        p->head[n++] = (char)(length % (LONGEST + 1) + LONGEST + 1);
    }
    p->head[n++] = (char)(length > LONGEST ? length / (LONGEST + 1) : length);
    p->head[n++] = '@';
    memcpy(p->head + n, path, length - 1);
    p->next[0] = p->head;
    p->nbytes[0] = n + length - 1;
    p->next[1] = m->code + NAME_AT + 1 + old;
    p->nbytes[1] = m->code_bytes - NAME_AT - 1 - old;
    p->at = 0;
    return true;
}

static const char *next_piece(lua_State *L, void *data, size_t *nbytes)
{
    pieces *p = data;

    (void)L;
    if (p->at == 2) {
        *nbytes = 0;
        return NULL;
    }
    *nbytes = p->nbytes[p->at];
    return p->next[p->at++];
}

/* loader(name, path) -> the module's chunk; nil: load its text. */
static int load_module(lua_State *L)
{
    const archive *a = lua_touserdata(L, lua_upvalueindex(1));
    size_t name_bytes;
    const char *name = luaL_checklstring(L, 1, &name_bytes), *path = luaL_checkstring(L, 2);
    module m;
    pieces p;

    if (!find(a, name, name_bytes, &m) || !file_holds(path, m.text, m.text_bytes) ||
        !begin(&p, &m, path) || lua_load(L, next_piece, &p, path) != 0) {
        lua_pushnil(L); /* another LuaJIT refuses bytecode that is not its own */
    }
    return 1;
}

static int free_archive(lua_State *L)
{
    archive *a = lua_touserdata(L, 1);

    free(a->data);
    *a = (archive){.size = 0};
    return 0;
}

/* Read up to `nbytes` of a file. @return bytes read */
static size_t read_file(char *to, size_t nbytes, const char *path)
{
    size_t at = 0;
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && at < nbytes && (n = read(fd, to + at, nbytes - at)) > 0) {
        at += (size_t)n;
    }
    if (fd >= 0) {
        close(fd);
    }
    return at;
}

int lua_bytecode(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    struct stat st;

    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
        return 0;
    }
    archive *a = lua_newuserdata(L, sizeof(*a));

    *a = (archive){.size = 0};
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, free_archive);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    a->data = malloc((size_t)st.st_size);
    a->size = a->data != NULL ? read_file(a->data, (size_t)st.st_size, path) : 0;
    lua_pushcclosure(L, load_module, 1);
    return 1;
}
