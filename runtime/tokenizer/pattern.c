/* Patterns: literal texts, and regular expressions by PCRE2, which is opened at the first one. */
#include "pattern.h"

#include "array.h"
#include "translate.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* -- the library ------------------------------------------------------------------------------- */

#define CALLS(call)                                                                                \
    call(pcre2_compile_8) call(pcre2_code_free_8) call(pcre2_jit_compile_8)                        \
        call(pcre2_match_data_create_8) call(pcre2_match_data_free_8)                              \
            call(pcre2_get_ovector_pointer_8) call(pcre2_match_context_create_8)                   \
                call(pcre2_match_context_free_8) call(pcre2_jit_stack_create_8)                    \
                    call(pcre2_jit_stack_free_8) call(pcre2_jit_stack_assign_8)                    \
                        call(pcre2_match_8) call(pcre2_get_error_message_8)

static struct {
#define MEMBER(name) __typeof__(&(name)) name;
    CALLS(MEMBER)
} pcre;

/* Stateless but for the addresses, which are the same for every thread that finds them. */
static ms_status open_pcre(void)
{
    void *library = dlopen("libpcre2-8.so.0", RTLD_NOW | RTLD_LOCAL), *symbol;

    if (library == NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "regular expressions of tokenizers need PCRE2, which cannot be opened: %s; "
                       "install the package libpcre2-8-0",
                       dlerror());
    }
#define FIND(name)                                                                                 \
    if ((symbol = dlsym(library, #name)) == NULL) {                                                \
        return MS_FAIL(MS_RUNTIME_ERROR, "libpcre2-8.so.0 has no function " #name);                \
    }                                                                                              \
    memcpy(&pcre.name, &symbol, sizeof(symbol));
    CALLS(FIND)
    return MS_OK;
}

/* -- patterns ---------------------------------------------------------------------------------- */

struct msi_pattern {
    char *literal; /* NULL: a regular expression */
    int64_t n;
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

void msi_pattern_free(msi_pattern *p)
{
    if (p == NULL) {
        return;
    }
    if (p->literal == NULL && p->code != NULL) {
        pcre.pcre2_jit_stack_free_8(p->stack);
        pcre.pcre2_match_context_free_8(p->context);
        pcre.pcre2_match_data_free_8(p->data);
        pcre.pcre2_code_free_8(p->code);
    }
    free(p->literal);
    free(p);
}

ms_status msi_pattern_literal(msi_pattern **out, const char *text, int64_t n)
{
    msi_pattern *p;

    *out = NULL;
    if (n == 0) {
        return MS_FAIL(MS_FORMAT_ERROR, "a pattern is the empty string, expected a text");
    }
    MS_TRY(msi_new_array(&p, 1, "pattern"));
    p->n = n;
    p->literal = malloc((size_t)n);
    if (p->literal == NULL) {
        free(p);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a pattern");
    }
    memcpy(p->literal, text, (size_t)n);
    *out = p;
    return MS_OK;
}

/* Ruby's ^ and $ match at every line. */
enum { OPTIONS = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE };
enum { FIRST_STACK = 32 << 10, LARGEST_STACK = 16 << 20 };

static ms_status compile(msi_pattern *p, const char *regex, int64_t n)
{
    msi_bytes translated = {0};
    int error;
    PCRE2_SIZE place;
    ms_status status;

    MS_TRY_GOTO(msi_translate(&translated, regex, n), done);
    p->code = pcre.pcre2_compile_8((PCRE2_SPTR)translated.data, (PCRE2_SIZE)translated.n, OPTIONS,
                                   &error, &place, NULL);
    if (p->code == NULL) {
        char why[160];

        pcre.pcre2_get_error_message_8(error, (PCRE2_UCHAR *)why, sizeof(why));
        status = MS_FAIL(error == PCRE2_ERROR_HEAP_FAILED ? MS_OUT_OF_MEMORY : MS_FORMAT_ERROR,
                         "the regular expression '%s' does not compile: %s", regex, why);
        goto done;
    }
    p->data = pcre.pcre2_match_data_create_8(1, NULL);
    p->context = pcre.pcre2_match_context_create_8(NULL);
    p->stack = pcre.pcre2_jit_stack_create_8(FIRST_STACK, LARGEST_STACK, NULL);
    if (p->data == NULL || p->context == NULL || p->stack == NULL) {
        status = MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a regular expression");
        goto done;
    }
    /* without it (no executable memory) matching is slower, with the same results */
    if (pcre.pcre2_jit_compile_8(p->code, PCRE2_JIT_COMPLETE) == 0) {
        pcre.pcre2_jit_stack_assign_8(p->context, NULL, p->stack);
    }
done:
    free(translated.data);
    return status;
}

ms_status msi_pattern_regex(msi_pattern **out, const char *text, int64_t n)
{
    msi_pattern *p;

    *out = NULL;
    MS_TRY(open_pcre());
    MS_TRY(msi_new_array(&p, 1, "pattern"));
    const ms_status status = compile(p, text, n);

    if (status != MS_OK) {
        msi_pattern_free(p);
        return status;
    }
    *out = p;
    return MS_OK;
}

/* The first match at or behind `from`; start -1: none. */
static ms_status match(const msi_pattern *p, const char *text, int64_t n, int64_t from,
                       uint32_t options, int64_t *start, int64_t *end)
{
    *start = *end = -1;
    if (p->literal != NULL) {
        const char *found = memmem(text + from, (size_t)(n - from), p->literal, (size_t)p->n);

        if (found != NULL) {
            *start = found - text;
            *end = *start + p->n;
        }
        return MS_OK;
    }
    const int result =
        pcre.pcre2_match_8(p->code, (PCRE2_SPTR)text, (PCRE2_SIZE)n, (PCRE2_SIZE)from,
                           PCRE2_NO_UTF_CHECK | options, p->data, p->context);

    if (result == PCRE2_ERROR_NOMATCH) {
        return MS_OK;
    }
    if (result < 0) {
        char why[160];

        pcre.pcre2_get_error_message_8(result, (PCRE2_UCHAR *)why, sizeof(why));
        return MS_FAIL(MS_RUNTIME_ERROR, "a regular expression of the tokenizer failed: %s", why);
    }
    const PCRE2_SIZE *ends = pcre.pcre2_get_ovector_pointer_8(p->data);

    *start = (int64_t)ends[0];
    *end = (int64_t)ends[1];
    return MS_OK;
}

ms_status msi_pattern_next(const msi_pattern *p, const char *text, int64_t n, msi_match *m)
{
    const int64_t last = m->found ? m->end : -1;
    int64_t from = m->end;

    do {
        if (from > n) {
            m->start = -1;
            return MS_OK;
        }
        int64_t start, end;
        int32_t length = 1;

        MS_TRY(match(p, text, n, from, 0, &start, &end));
        *m = (msi_match){.start = start, .end = end, .found = true};
        if (end >= 0 && end < n) {
            (void)msi_utf8_char(text + end, &length);
        }
        from = end + length;
    } while (m->start == m->end && m->start >= 0 && m->end == last);
    return MS_OK;
}

ms_status msi_pattern_at(const msi_pattern *p, const char *text, int64_t n, int64_t at, bool *yes)
{
    int64_t start, end;

    MS_TRY(match(p, text, n, at, PCRE2_ANCHORED, &start, &end));
    *yes = start == at;
    return MS_OK;
}
