/* The normal form C of Unicode, by utf8proc, which is opened by the first tokenizer that needs it.
 */
#include "stages.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static __typeof__(&utf8proc_map) map;

ms_status msi_nfc_open(void)
{
    void *library = dlopen("libutf8proc.so.2", RTLD_NOW | RTLD_LOCAL), *symbol;

    if (library == NULL || (symbol = dlsym(library, "utf8proc_map")) == NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "the normalizer NFC needs utf8proc, which cannot be opened: %s; install the "
                       "package libutf8proc2",
                       dlerror());
    }
    memcpy(&map, &symbol, sizeof(symbol));
    return MS_OK;
}

/* Marks, and letters that compose, of Unicode 10 to 15. For `tokenizers`, whose tables are those of
 * Unicode 9, they are characters that compose with nothing and that marks do not move over. No
 * other character differs. */
static const uint32_t NEWER[][2] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

static bool is_newer(uint32_t c)
{
    int32_t i = 0;

    while (i < MSI_COUNT(NEWER) && c > NEWER[i][1]) {
        i++;
    }
    return i < MSI_COUNT(NEWER) && c >= NEWER[i][0];
}

/* Bytes before the first one that may change. */
static int64_t before_change(const char *text, int64_t n)
{
    int64_t at = 0;

    while (at < n && (unsigned char)text[at] < 0xCC) { /* U+0300 is the first such character */
        at++;
    }
    return at;
}

/* Bytes before the first newer character. `*length` is its size in bytes, 0 without one. */
static int64_t before_newer(const char *text, int64_t n, int32_t *length)
{
    int64_t at = 0;

    for (; at < n; at += *length) {
        if (is_newer(msi_utf8_char(text + at, length))) {
            return at;
        }
    }
    *length = 0;
    return n;
}

static ms_status add_normal(msi_bytes *out, const char *text, int64_t n)
{
    utf8proc_uint8_t *normal;

    if (n == 0) {
        return MS_OK;
    }
    const utf8proc_ssize_t length =
        map((const utf8proc_uint8_t *)text, n, &normal, UTF8PROC_STABLE | UTF8PROC_COMPOSE);

    if (length < 0) {
        return MS_FAIL(length == UTF8PROC_ERROR_NOMEM ? MS_OUT_OF_MEMORY : MS_RUNTIME_ERROR,
                       "cannot normalize %lld bytes of text: utf8proc's error %lld", (long long)n,
                       (long long)length);
    }
    const ms_status status = msi_bytes_add(out, (const char *)normal, length);

    free(normal);
    return status;
}

ms_status msi_stage_nfc(const msi_stage *s, const char *text, int64_t n, bool at_start,
                        int64_t index, msi_pieces *out)
{
    const int64_t start = out->text.n;
    int32_t length;

    (void)s, (void)index;
    if (before_change(text, n) == n) {
        return msi_pieces_add(out, text, n, -1, at_start);
    }
    for (int64_t at = 0; at < n; at += length) {
        const int64_t older = before_newer(text + at, n - at, &length);

        MS_TRY(add_normal(&out->text, text + at, older));
        at += older;
        MS_TRY(msi_bytes_add(&out->text, text + at, length));
    }
    return msi_pieces_end(out, start, -1, at_start);
}
