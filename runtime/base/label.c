#include "label.h"

#include "base.h"

#include <stdio.h>
#include <string.h>

/* True if a UTF-8 character ends before this byte. */
static bool begins_character(char byte)
{
    return ((unsigned char)byte & 0xc0) != 0x80;
}

/* Write `text` with its zero to the `room` bytes at `at`. */
static void put(msi_label *l, size_t at, size_t room, const char *text)
{
    size_t n = strlen(text), head = (room - 4) / 3, tail = room - 4 - head;

    if (n < room) {
        memcpy(l->text + at, text, n);
        return;
    }
    while (head > 0 && !begins_character(text[head])) {
        head--;
    }
    while (tail > 0 && !begins_character(text[n - tail])) {
        tail--;
    }
    snprintf(l->text + at, room, "%.*s...%s", (int)head, text, text + n - tail);
    l->cut = ms_hash_bytes(text, (int64_t)n);
}

void msi_label_set(msi_label *l, const char *text)
{
    *l = (msi_label){.cut = 0};
    put(l, 0, sizeof(l->text), text);
}

void msi_label_about(msi_label *l, const char *what, const char *name)
{
    *l = (msi_label){.cut = 0};
    size_t at = (size_t)snprintf(l->text, sizeof(l->text), "%s '", what);

    put(l, at, sizeof(l->text) - at - 1, name);
    l->text[strlen(l->text)] = '\'';
}

void msi_label_words(msi_label *l, const char *words)
{
    size_t n = strlen(words), kept = sizeof(l->text) - 1;

    *l = (msi_label){.cut = 0};
    if (n > kept) {
        l->cut = ms_hash_bytes(words, (int64_t)n);
        while (kept > 0 && words[kept] != ' ') {
            kept--;
        }
        n = kept;
    }
    memcpy(l->text, words, n);
}
