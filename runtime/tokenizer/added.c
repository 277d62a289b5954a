/* Added tokens: found by their lengths and first bytes, then by hash. */
#include "added.h"

#include "array.h"
#include "translate.h"

#include <stdlib.h>
#include <string.h>

/* \w of Rust's regular expressions, which joiners belong to. */
static const char WORD[] = "[" MSI_WORD_MEMBERS "\\x{200C}\\x{200D}]";

static ms_status add_length(msi_added *a, const char *text, int64_t n)
{
    const unsigned char first = (unsigned char)text[0];
    int32_t at = 0;

    while (at < a->n_lengths && a->lengths[at].n > n) {
        at++;
    }
    if (at == a->n_lengths || a->lengths[at].n < n) {
        MS_TRY(msi_grow(&a->lengths, a->n_lengths, &a->length_capacity, sizeof(*a->lengths)));
        memmove(a->lengths + at + 1, a->lengths + at,
                sizeof(*a->lengths) * (size_t)(a->n_lengths - at));
        a->lengths[at] = (msi_lengths){.n = (int32_t)n};
        a->n_lengths++;
    }
    a->begins[first] = true;
    a->lengths[at].first[first / 64] |= UINT64_C(1) << first % 64;
    return MS_OK;
}

ms_status msi_added_add(msi_added *a, const char *text, int64_t n, const msi_added_token *token)
{
    if (n == 0 || msi_vocabulary_find(&a->texts, text, n) >= 0) {
        return MS_OK;
    }
    if (token->single_word && a->word == NULL) {
        MS_TRY(msi_pattern_regex(&a->word, WORD, sizeof(WORD) - 1));
    }
    MS_TRY(msi_grow(&a->tokens, a->texts.n, &a->capacity, sizeof(*a->tokens)));
    MS_TRY(add_length(a, text, n));
    a->tokens[a->texts.n] = *token;
    return msi_vocabulary_add(&a->texts, text, n, a->texts.n);
}

void msi_added_dispose(msi_added *a)
{
    msi_vocabulary_dispose(&a->texts);
    free(a->tokens);
    free(a->lengths);
    msi_pattern_free(a->word);
}

/* The longest token that begins at `text`, with its length; -1: none. */
static int32_t token_at(const msi_added *a, const char *text, int64_t n, int64_t *length)
{
    const unsigned char first = (unsigned char)text[0];

    for (int32_t i = 0; i < a->n_lengths; i++) {
        const msi_lengths *l = &a->lengths[i];

        if (l->n <= n && (l->first[first / 64] >> first % 64 & 1) != 0) {
            const int32_t found = msi_vocabulary_find(&a->texts, text, l->n);

            if (found >= 0) {
                *length = l->n;
                return found;
            }
        }
    }
    return -1;
}

/* Is there no character of a word beside [start, end)? */
static ms_status is_single(const msi_added *a, const char *text, int64_t n, int64_t start,
                           int64_t end, bool *single)
{
    int64_t before = start - 1;
    bool word = false;

    while (before > 0 && ((unsigned char)text[before] & 0xC0) == 0x80) {
        before--;
    }
    if (start > 0) {
        MS_TRY(msi_pattern_at(a->word, text, n, before, &word));
    }
    *single = !word;
    if (*single && end < n) {
        MS_TRY(msi_pattern_at(a->word, text, n, end, &word));
        *single = !word;
    }
    return MS_OK;
}

ms_status msi_added_cut(const msi_added *a, msi_pieces *out, const char *text, int64_t n,
                        bool at_start, bool parse_special)
{
    int64_t done = 0, length = 0;

    for (int64_t at = 0; at < n; at += length) {
        const int32_t found =
            a->begins[(unsigned char)text[at]] ? token_at(a, text + at, n - at, &length) : -1;

        if (found < 0) {
            length = 1;
            continue;
        }
        const msi_added_token *t = &a->tokens[found];
        int64_t start = at, end = at + length;
        bool single = true;

        if (t->special && !parse_special) {
            continue;
        }
        if (t->single_word) {
            MS_TRY(is_single(a, text, n, start, end, &single));
        }
        if (!single) {
            continue;
        }
        if (t->lstrip) {
            start -= msi_white_space_at_end(text, start);
        }
        if (t->rstrip) {
            end += msi_white_space_at_start(text + end, n - end);
        }
        if (done < start) {
            MS_TRY(msi_pieces_add(out, text + done, start - done, -1, at_start && done == 0));
        }
        MS_TRY(msi_pieces_add(out, NULL, 0, t->id, false));
        done = end;
    }
    return done < n ? msi_pieces_add(out, text + done, n - done, -1, at_start && done == 0) : MS_OK;
}

bool msi_added_within_lines(const msi_added *a)
{
    const msi_bytes *all = &a->texts.text;

    for (int32_t i = 0; i < a->texts.n; i++) {
        if (a->tokens[i].rstrip) {
            return false;
        }
    }
    return all->n == 0 || (memchr(all->data, '\n', (size_t)all->n) == NULL &&
                           memchr(all->data, '\r', (size_t)all->n) == NULL);
}
