/* Version, hashes, time, printable text. */
#include "base.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "moonshard.h"

const char *ms_version(void)
{
    static _Thread_local char text[24];

    snprintf(text, sizeof(text), "%d.%d.%d", MS_VERSION_MAJOR, MS_VERSION_MINOR, MS_VERSION_PATCH);
    return text;
}

uint64_t ms_name_key(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a, 64 bit */

    for (; *name != '\0'; name++) {
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    }
    return hash;
}

uint64_t ms_stream_key(const char *name, int64_t stream)
{
    uint64_t key = ms_name_key(name);

    return stream == 0 ? key : msi_mix64(key + msi_mix64((uint64_t)stream));
}

uint64_t ms_hash_bytes(const void *data, int64_t n)
{
    return n > 0 ? XXH3_64bits(data, (size_t)n) : XXH3_64bits("", 0);
}

/* The finalizer of splitmix64: a bijection that spreads every input bit. */
uint64_t msi_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int64_t msi_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double ms_time(void)
{
    return (double)msi_now_ns() * 1e-9;
}

bool ms_is_terminal(int32_t fd)
{
    return isatty(fd) == 1;
}

/* Bytes of the printable UTF-8 character at `text`; 0: not printable. */
static size_t printable_bytes(const unsigned char *text)
{
    const size_t n = text[0] < 0x80 ? 1 : text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;

    if (text[0] < 0x80) {
        return text[0] >= ' ' && text[0] != 0x7f;
    }
    if (text[0] < 0xc2 || text[0] > 0xf4 || (text[0] == 0xc2 && text[1] < 0xa0)) {
        return 0; /* not a first byte, or a control character */
    }
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return n;
}

/* msi_printable() that keeps the control characters in `kept`. */
static size_t escape(char *to, size_t room, const char *from, const char *kept)
{
    size_t used = 0;

    while (*from != '\0') {
        size_t n = strchr(kept, *from) != NULL ? 1 : printable_bytes((const unsigned char *)from);

        if (used + (n > 0 ? n : 4) >= room) {
            break;
        }
        if (n > 0) {
            memcpy(to + used, from, n);
        } else {
            snprintf(to + used, 5, "\\x%02x", (unsigned char)*from);
        }
        used += n > 0 ? n : 4;
        from += n > 0 ? n : 1;
    }
    to[used] = '\0';
    return used;
}

size_t msi_printable(char *to, size_t room, const char *from)
{
    return escape(to, room, from, "\n\t");
}

bool msi_is_printable(const char *text)
{
    while (*text != '\0') {
        const size_t n = printable_bytes((const unsigned char *)text);

        if (n == 0) {
            return false;
        }
        text += n;
    }
    return true;
}

void msi_text_write(char *text, size_t size, const char *format, va_list args)
{
    vsnprintf(text, size, format, args);
    for (char *at = strstr(text, "-nan"); at != NULL; at = strstr(at + 1, "-nan")) {
        bool begins = at == text || (!isalnum((unsigned char)at[-1]) && at[-1] != '-');

        if (begins && !isalnum((unsigned char)at[4])) {
            memmove(at, at + 1, strlen(at));
        }
    }
}

char *msi_part_text(void)
{
    static _Thread_local char parts[4][MSI_PART_TEXT];
    static _Thread_local uint32_t turn;

    return parts[turn++ % 4];
}

const char *msi_foreign_name(const char *name)
{
    char *text = msi_part_text();

    escape(text, MSI_PART_TEXT, name, "");
    return text;
}
