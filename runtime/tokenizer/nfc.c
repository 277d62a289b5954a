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

ms_status msi_stage_nfc(const msi_stage *s, const char *text, int64_t n, bool at_start,
                        int64_t index, msi_pieces *out)
{
    utf8proc_uint8_t *normal;
    bool changes = false;

    (void)s, (void)index;
    for (int64_t i = 0; i < n && !changes; i++) {
        changes = (unsigned char)text[i] >= 0xCC; /* U+0300, the first character that may change */
    }
    if (!changes) {
        return msi_pieces_add(out, text, n, -1, at_start);
    }
    const utf8proc_ssize_t length =
        map((const utf8proc_uint8_t *)text, n, &normal, UTF8PROC_STABLE | UTF8PROC_COMPOSE);

    if (length < 0) {
        return MS_FAIL(length == UTF8PROC_ERROR_NOMEM ? MS_OUT_OF_MEMORY : MS_RUNTIME_ERROR,
                       "cannot normalize %lld bytes of text: utf8proc's error %lld", (long long)n,
                       (long long)length);
    }
    const ms_status status = msi_pieces_add(out, (const char *)normal, length, -1, at_start);

    free(normal);
    return status;
}
