/* Growing text, lists of pieces of it, UTF-8. */
#include "text.h"

#include <stdlib.h>
#include <string.h>

ms_status msi_bytes_reserve(msi_bytes *b, int64_t more)
{
    if (MSI_LIKELY(more <= b->capacity - b->n)) {
        return MS_OK;
    }
    const int64_t capacity = b->n + more < 2 * b->capacity ? 2 * b->capacity : b->n + more + 64;
    char *data = realloc(b->data, (size_t)capacity);

    if (data == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for %lld bytes of text", (long long)capacity);
    }
    b->data = data;
    b->capacity = capacity;
    return MS_OK;
}

ms_status msi_bytes_add(msi_bytes *b, const char *data, int64_t n)
{
    MS_TRY(msi_bytes_reserve(b, n));
    if (n > 0) {
        memcpy(b->data + b->n, data, (size_t)n);
        b->n += n;
    }
    return MS_OK;
}

ms_status msi_pieces_end(msi_pieces *p, int64_t start, int32_t id, bool at_start)
{
    if (MSI_UNLIKELY(p->n == p->capacity)) {
        const int64_t capacity = p->capacity > 0 ? 2 * p->capacity : 64;
        msi_piece *list = realloc(p->list, sizeof(*list) * (size_t)capacity);

        if (list == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for %lld pieces of text",
                           (long long)capacity);
        }
        p->list = list;
        p->capacity = capacity;
    }
    p->list[p->n++] = (msi_piece){.start = start, .end = p->text.n, .id = id, .at_start = at_start};
    return MS_OK;
}

ms_status msi_pieces_add(msi_pieces *p, const char *text, int64_t n, int32_t id, bool at_start)
{
    const int64_t start = p->text.n;

    MS_TRY(msi_bytes_add(&p->text, text, n));
    return msi_pieces_end(p, start, id, at_start);
}

void msi_pieces_clear(msi_pieces *p)
{
    p->n = p->text.n = 0;
}

void msi_pieces_dispose(msi_pieces *p)
{
    free(p->text.data);
    free(p->list);
}

/* -- UTF-8 ------------------------------------------------------------------------------------- */

int32_t msi_utf8_step(const char *s, int64_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    const unsigned char lead = u[0];
    const int32_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    unsigned char low = 0x80, high = 0xBF; /* of the second byte */

    if (lead < 0x80) {
        return 1;
    }
    if (lead < 0xC2 || lead > 0xF4) {
        return -1;
    }
    low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : low;
    high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : high;
    for (int32_t i = 1; i < length; i++, low = 0x80, high = 0xBF) {
        if (i >= n || u[i] < low || u[i] > high) {
            return -i;
        }
    }
    return length;
}

uint32_t msi_utf8_char(const char *s, int32_t *length)
{
    const unsigned char *u = (const unsigned char *)s;

    *length = u[0] < 0x80 ? 1 : u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    switch (*length) {
    case 1:
        return u[0];
    case 2:
        return (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    case 3:
        return (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
    default:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
    }
}

int32_t msi_utf8_write(char *to, uint32_t c)
{
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    const int32_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (int32_t i = length - 1; i > 0; i--, c >>= 6) {
        to[i] = (char)(0x80 | (c & 0x3F));
    }
    to[0] = (char)((0xF00 >> length & 0xFF) | c);
    return length;
}

int64_t ms_utf8_valid(const char *s, int64_t n)
{
    int64_t at = 0;

    while (at < n) {
        uint64_t eight;

        if (n - at >= 8 && (memcpy(&eight, s + at, 8), (eight & 0x8080808080808080u) == 0)) {
            at += 8;
            continue;
        }
        const int32_t step = msi_utf8_step(s + at, n - at);

        if (step < 0) {
            break;
        }
        at += step;
    }
    return at;
}

int64_t ms_utf8_replace(char *out, const char *s, int64_t n, int64_t *n_invalid)
{
    int64_t at = 0, written = 0;

    *n_invalid = 0;
    while (at < n) {
        const int64_t valid = ms_utf8_valid(s + at, n - at);

        memcpy(out + written, s + at, (size_t)valid);
        at += valid;
        written += valid;
        if (at < n) {
            memcpy(out + written, MSI_REPLACEMENT, 3);
            at -= msi_utf8_step(s + at, n - at);
            written += 3;
            ++*n_invalid;
        }
    }
    return written;
}

ms_status msi_utf8_add_lossy(msi_bytes *out, const char *s, int64_t n, int64_t *n_invalid)
{
    MS_TRY(msi_bytes_reserve(out, 3 * n));
    out->n += n == 0 ? 0 : ms_utf8_replace(out->data + out->n, s, n, n_invalid);
    return MS_OK;
}

bool msi_is_white_space(uint32_t c)
{
    return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

int64_t msi_white_space_at_start(const char *s, int64_t n)
{
    int64_t at = 0;
    int32_t length;

    while (at < n && msi_is_white_space(msi_utf8_char(s + at, &length))) {
        at += length;
    }
    return at;
}

int64_t msi_white_space_at_end(const char *s, int64_t n)
{
    int64_t from = n;

    while (from > 0) {
        int64_t at = from - 1;
        int32_t length;

        while (((unsigned char)s[at] & 0xC0) == 0x80) {
            at--;
        }
        if (!msi_is_white_space(msi_utf8_char(s + at, &length))) {
            break;
        }
        from = at;
    }
    return n - from;
}
