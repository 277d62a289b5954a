/* Regular expressions of Oniguruma (Ruby's syntax) as PCRE2 reads them. Most constructs are the
 * same in both; some escapes are replaced by what they are in Oniguruma, and constructs of another
 * meaning are refused. */
#include "translate.h"

#include <ctype.h>
#include <string.h>

#define SPACES                                                                                     \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"    \
    "\\x{205F}\\x{3000}"
#define NO_SPACES                                                                                  \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{"     \
    "1FFF}"                                                                                        \
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}"                 \
    "\\x{3001}-\\x{10FFFF}"

/* Escapes that PCRE2 reads otherwise: what they are inside a class, and outside of one. */
static const struct {
    char letter;
    const char *in_class, *outside;
} ESCAPES[] = {
    {'s', SPACES, "[" SPACES "]"},
    {'S', NO_SPACES, "[" NO_SPACES "]"},
    {'w', MSI_WORD_MEMBERS, "[" MSI_WORD_MEMBERS "]"},
    {'W', NULL, "[^" MSI_WORD_MEMBERS "]"},
    {'h', "0-9a-fA-F", "[0-9a-fA-F]"},
    {'H', NULL, "[^0-9a-fA-F]"},
    {'v', "\\x{B}", "\\x{B}"},
};

typedef struct reader {
    const char *text;
    int64_t n, at;
    msi_bytes *out;
    bool in_class;
} reader;

static ms_status refuse(const reader *r, const char *what)
{
    return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                   "the regular expression '%s' has %s at byte %lld, which is not supported",
                   r->text, what, (long long)r->at + 1);
}

static char peek(const reader *r, int64_t ahead)
{
    return r->at + ahead < r->n ? r->text[r->at + ahead] : '\0';
}

static ms_status copy(reader *r, int64_t n)
{
    n = n < r->n - r->at ? n : r->n - r->at;
    MS_TRY(msi_bytes_add(r->out, r->text + r->at, n));
    r->at += n;
    return MS_OK;
}

static ms_status put(reader *r, const char *text, int64_t skip)
{
    r->at += skip;
    return msi_bytes_add(r->out, text, (int64_t)strlen(text));
}

/* \p{Name}: of names of more than two letters only scripts are the same; there PCRE2 takes script
 * extensions, unless it is asked for the script. */
static ms_status property(reader *r)
{
    const char *close = memchr(r->text + r->at, '}', (size_t)(r->n - r->at));
    const int64_t length = close == NULL ? 0 : close - (r->text + r->at) + 1;
    const int64_t name = peek(r, 3) == '^' ? 4 : 3;

    if (peek(r, 2) != '{' || close == NULL) {
        return refuse(r, "a property without braces");
    }
    if (length - 1 - name <= 2) {
        return copy(r, length);
    }
    MS_TRY(copy(r, name));
    MS_TRY(put(r, "sc:", 0));
    return copy(r, length - name);
}

static ms_status escape(reader *r)
{
    const char letter = peek(r, 1);
    char text[] = "the escape '\\?'";

    for (int32_t i = 0; i < MSI_COUNT(ESCAPES); i++) {
        if (ESCAPES[i].letter == letter) {
            const char *as = r->in_class ? ESCAPES[i].in_class : ESCAPES[i].outside;

            return as != NULL ? put(r, as, 2) : refuse(r, "a negated escape in a class");
        }
    }
    if (letter == 'p' || letter == 'P') {
        return property(r);
    }
    if (letter == 'u') { /* \uHHHH */
        MS_TRY(put(r, "\\x{", 2));
        MS_TRY(copy(r, 4));
        return put(r, "}", 0);
    }
    if (isalnum((unsigned char)letter) && strchr("dDnrtfxAz", letter) == NULL) {
        text[sizeof(text) - 3] = letter;
        return refuse(r, text);
    }
    return copy(r, 2);
}

/* In a class Ruby's syntax has classes in classes and intersections. */
static ms_status in_class(reader *r)
{
    const char c = peek(r, 0);

    if (c == '[') {
        return refuse(r, "a class in a class");
    }
    if (c == '&' && peek(r, 1) == '&') {
        return refuse(r, "an intersection of classes");
    }
    r->in_class = c != ']';
    return copy(r, 1);
}

static ms_status class_begins(reader *r)
{
    r->in_class = true;
    MS_TRY(copy(r, peek(r, 1) == '^' ? 2 : 1));
    return peek(r, 0) == ']' ? refuse(r, "a class that begins with ']'") : MS_OK;
}

/* (?:...), (?i:...), (?=...) and the like; other letters set other options in Ruby's syntax. */
static ms_status group(reader *r)
{
    const char next = peek(r, 2);
    const bool same = strchr(":=!>", next) != NULL || (next == 'i' && strchr(":)", peek(r, 3))) ||
                      (next == '<' && strchr("=!", peek(r, 3)) != NULL);

    return same && next != '\0' ? copy(r, 3) : refuse(r, "this kind of group");
}

/* "{1,3}+" repeats greedily in Ruby's syntax, and is possessive in PCRE2's; "{,3}" is literal
 * there. */
static ms_status interval(reader *r)
{
    int64_t length = 1;

    while (isdigit((unsigned char)peek(r, length)) || peek(r, length) == ',') {
        length++;
    }
    if (peek(r, length) != '}' || length == 1) {
        return refuse(r, "a brace that begins no repetition");
    }
    if (peek(r, 1) == ',' || peek(r, length + 1) == '+') {
        return refuse(r, "a repetition like {,n} or {n,m}+");
    }
    return copy(r, length + 1);
}

ms_status msi_translate(msi_bytes *out, const char *regex, int64_t n)
{
    reader r = {.text = regex, .n = n, .out = out};

    while (r.at < n) {
        const char c = regex[r.at];

        MS_TRY(c == '\\'                        ? escape(&r)
               : r.in_class                     ? in_class(&r)
               : c == '['                       ? class_begins(&r)
               : c == '(' && peek(&r, 1) == '?' ? group(&r)
               : c == '(' && peek(&r, 1) == '*' ? refuse(&r, "a verb")
               : c == '{'                       ? interval(&r)
                                                : copy(&r, 1));
    }
    return MS_OK;
}
