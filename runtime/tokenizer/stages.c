/* Steps that text passes, and the driver that runs a list of them. */
#include "stages.h"

#include "array.h"

#include <stdlib.h>
#include <string.h>

/* -- splitting --------------------------------------------------------------------------------- */

/* Emits the parts of a text in order; [start, end) is the one that is not emitted yet. */
typedef struct splitter {
    const msi_stage *s;
    const char *text;
    bool at_start;
    msi_pieces *out;
    int64_t start, end;
    bool pending, was_match; /* was_match: of the part before */
} splitter;

static ms_status flush(splitter *p)
{
    const bool empty = !p->pending || p->start == p->end;

    p->pending = false;
    return empty ? MS_OK
                 : msi_pieces_add(p->out, p->text + p->start, p->end - p->start, -1,
                                  p->at_start && p->start == 0);
}

/* The next part of the text, a match or what lies between two. The behavior decides
 * whether it joins the one before it. */
static ms_status part(splitter *p, int64_t start, int64_t end, bool is_match)
{
    bool joins = false;

    switch (p->s->behavior) {
    case MSI_SPLIT_MERGED_WITH_PREVIOUS:
        joins = p->pending && is_match && !p->was_match;
        break;
    case MSI_SPLIT_MERGED_WITH_NEXT:
        joins = p->pending && !is_match && p->was_match;
        break;
    case MSI_SPLIT_CONTIGUOUS:
        joins = p->pending && is_match == p->was_match;
        break;
    default:
        break;
    }
    p->was_match = is_match;
    if (joins) {
        p->end = end;
        return MS_OK;
    }
    MS_TRY(flush(p));
    p->pending = p->s->behavior != MSI_SPLIT_REMOVED || !is_match;
    p->start = start;
    p->end = end;
    return MS_OK;
}

ms_status msi_stage_split(const msi_stage *s, const char *text, int64_t n, bool at_start,
                          int64_t index, msi_pieces *out)
{
    splitter p = {.s = s, .text = text, .at_start = at_start, .out = out};
    msi_match m = {0};
    int64_t done = 0;

    (void)index;
    MS_TRY(msi_bytes_reserve(&out->text, n));
    for (;;) {
        MS_TRY(msi_pattern_next(s->pattern, text, n, &m));
        if (m.start < 0) {
            break;
        }
        if (done < m.start) {
            MS_TRY(part(&p, done, m.start, s->invert));
        }
        MS_TRY(part(&p, m.start, m.end, !s->invert));
        done = m.end;
    }
    if (done < n) {
        MS_TRY(part(&p, done, n, s->invert));
    }
    return flush(&p);
}

/* -- other steps over single pieces ------------------------------------------------------------ */

ms_status msi_stage_replace(const msi_stage *s, const char *text, int64_t n, bool at_start,
                            int64_t index, msi_pieces *out)
{
    const int64_t start = out->text.n;
    msi_match m = {0};
    int64_t done = 0;

    (void)index;
    for (;;) {
        MS_TRY(msi_pattern_next(s->pattern, text, n, &m));
        if (m.start < 0) {
            break;
        }
        MS_TRY(msi_bytes_add(&out->text, text + done, m.start - done));
        MS_TRY(msi_bytes_add(&out->text, s->text.data, s->text.n));
        done = m.end;
    }
    MS_TRY(msi_bytes_add(&out->text, text + done, n - done));
    return msi_pieces_end(out, start, -1, at_start);
}

static bool begins_with(const char *text, int64_t n, const msi_bytes *with)
{
    return n >= with->n && memcmp(text, with->data, (size_t)with->n) == 0;
}

ms_status msi_stage_prepend(const msi_stage *s, const char *text, int64_t n, bool at_start,
                            int64_t index, msi_pieces *out)
{
    const int64_t start = out->text.n;

    (void)index;
    if (n > 0 && (at_start || !s->only_at_start) &&
        !(s->unless_there && begins_with(text, n, &s->text))) {
        MS_TRY(msi_bytes_add(&out->text, s->text.data, s->text.n));
    }
    MS_TRY(msi_bytes_add(&out->text, text, n));
    return msi_pieces_end(out, start, -1, at_start);
}

/* `s->text` is one character. */
ms_status msi_stage_strip(const msi_stage *s, const char *text, int64_t n, bool at_start,
                          int64_t index, msi_pieces *out)
{
    (void)index;
    for (int64_t i = 0; i < s->first && begins_with(text, n, &s->text); i++) {
        text += s->text.n;
        n -= s->text.n;
    }
    for (int64_t i = 0;
         i < s->last && n >= s->text.n && begins_with(text + n - s->text.n, s->text.n, &s->text);
         i++) {
        n -= s->text.n;
    }
    return msi_pieces_add(out, text, n, -1, at_start);
}

ms_status msi_stage_metaspace_decode(const msi_stage *s, const char *text, int64_t n, bool at_start,
                                     int64_t index, msi_pieces *out)
{
    msi_stage all = *s;

    if (index == 0 && s->only_at_start) {
        all.text.n = 0;
    }
    return msi_stage_replace(&all, text, n, at_start, index, out);
}

/* -- bytes as characters: printable ones stand for themselves, the others follow U+0100 -------- */

static uint32_t char_of_byte(uint32_t b)
{
    if (b <= ' ') {
        return 0x100 + b;
    }
    if (b >= 0x7F && b <= 0xA0) {
        return 0x100 + 33 + (b - 0x7F);
    }
    return b == 0xAD ? 0x100 + 67 : b;
}

/* -1: none. */
static int32_t byte_of_char(uint32_t c)
{
    if (c < 0x100) {
        return char_of_byte(c) == c ? (int32_t)c : -1;
    }
    c -= 0x100;
    return c <= ' ' ? (int32_t)c : c < 67 ? (int32_t)(c - 33 + 0x7F) : c == 67 ? 0xAD : -1;
}

ms_status msi_stage_bytes(const msi_stage *s, const char *text, int64_t n, bool at_start,
                          int64_t index, msi_pieces *out)
{
    const int64_t start = out->text.n;

    (void)s, (void)index;
    MS_TRY(msi_bytes_reserve(&out->text, 2 * n));
    for (int64_t i = 0; i < n; i++) {
        out->text.n +=
            msi_utf8_write(out->text.data + out->text.n, char_of_byte((unsigned char)text[i]));
    }
    return msi_pieces_end(out, start, -1, at_start);
}

/* The bytes of a token; a token with another character stays as it is. */
static ms_status add_bytes_of(msi_bytes *out, const char *text, int64_t n)
{
    const int64_t before = out->n;
    int32_t length;

    MS_TRY(msi_bytes_reserve(out, n));
    for (int64_t at = 0; at < n; at += length) {
        const int32_t b = byte_of_char(msi_utf8_char(text + at, &length));

        if (b < 0) {
            out->n = before;
            return msi_bytes_add(out, text, n);
        }
        out->data[out->n++] = (char)b;
    }
    return MS_OK;
}

ms_status msi_stage_bytes_decode(const msi_stage *s, const msi_pieces *in, msi_pieces *out)
{
    msi_bytes bytes = {0};
    int64_t n_invalid = 0;
    ms_status status = MS_OK;

    (void)s;
    for (int64_t i = 0; i < in->n; i++) {
        const msi_piece p = in->list[i];

        MS_TRY_GOTO(add_bytes_of(&bytes, in->text.data + p.start, p.end - p.start), done);
    }
    MS_TRY_GOTO(msi_utf8_add_lossy(&out->text, bytes.data, bytes.n, &n_invalid), done);
    status = msi_pieces_end(out, 0, -1, true);
done:
    free(bytes.data);
    return status;
}

/* -- other steps over the whole list ----------------------------------------------------------- */

ms_status msi_stage_fuse(const msi_stage *s, const msi_pieces *in, msi_pieces *out)
{
    (void)s;
    for (int64_t i = 0; i < in->n; i++) {
        const msi_piece p = in->list[i];

        MS_TRY(msi_bytes_add(&out->text, in->text.data + p.start, p.end - p.start));
    }
    return msi_pieces_end(out, 0, -1, true);
}

static int32_t hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte of "<0xHH>"; -1: another token. */
static int32_t fallback_byte(const char *text, int64_t n)
{
    const bool is_byte = n == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>' &&
                         hex(text[3]) >= 0 && hex(text[4]) >= 0;

    return is_byte ? 16 * hex(text[3]) + hex(text[4]) : -1;
}

/* The bytes of a run become its text, or one U+FFFD each if they are no UTF-8. */
static ms_status end_run(msi_pieces *out, msi_bytes *run)
{
    const int64_t start = out->text.n;

    if (run->n == 0) {
        return MS_OK;
    }
    if (ms_utf8_valid(run->data, run->n) == run->n) {
        MS_TRY(msi_bytes_add(&out->text, run->data, run->n));
    } else {
        for (int64_t i = 0; i < run->n; i++) {
            MS_TRY(msi_bytes_add(&out->text, MSI_REPLACEMENT, 3));
        }
    }
    run->n = 0;
    return msi_pieces_end(out, start, -1, out->n == 0);
}

ms_status msi_stage_byte_fallback(const msi_stage *s, const msi_pieces *in, msi_pieces *out)
{
    msi_bytes run = {0};
    ms_status status = MS_OK;

    (void)s;
    for (int64_t i = 0; i < in->n; i++) {
        const char *text = in->text.data + in->list[i].start;
        const int64_t n = in->list[i].end - in->list[i].start;
        const int32_t b = fallback_byte(text, n);

        if (b >= 0) {
            MS_TRY_GOTO(msi_bytes_add(&run, &(char){(char)b}, 1), done);
        } else {
            MS_TRY_GOTO(end_run(out, &run), done);
            MS_TRY_GOTO(msi_pieces_add(out, text, n, -1, i == 0), done);
        }
    }
    status = end_run(out, &run);
done:
    free(run.data);
    return status;
}

/* -- lists of stages --------------------------------------------------------------------------- */

ms_status msi_stages_add(msi_stages *stages, msi_stage **stage, msi_each *each, msi_whole *whole)
{
    MS_TRY(msi_grow(&stages->list, stages->n, &stages->capacity, sizeof(*stages->list)));
    *stage = &stages->list[stages->n++];
    **stage = (msi_stage){.each = each, .whole = whole};
    return MS_OK;
}

void msi_stages_dispose(msi_stages *stages)
{
    for (int32_t i = 0; i < stages->n; i++) {
        msi_pattern_free(stages->list[i].pattern);
        free(stages->list[i].text.data);
    }
    free(stages->list);
}

static ms_status run_each(const msi_stage *s, const msi_pieces *in, msi_pieces *out)
{
    for (int64_t i = 0; i < in->n; i++) {
        const msi_piece p = in->list[i];
        const char *text = in->text.data + p.start;

        MS_TRY(p.id >= 0 ? msi_pieces_add(out, text, p.end - p.start, p.id, p.at_start)
                         : s->each(s, text, p.end - p.start, p.at_start, i, out));
    }
    return MS_OK;
}

ms_status msi_stages_run(const msi_stages *stages, msi_pieces *p, msi_pieces *scratch)
{
    for (int32_t i = 0; i < stages->n; i++) {
        const msi_stage *s = &stages->list[i];
        const msi_pieces in = *p;

        msi_pieces_clear(scratch);
        MS_TRY(s->each != NULL ? run_each(s, p, scratch) : s->whole(s, p, scratch));
        *p = *scratch;
        *scratch = in;
    }
    return MS_OK;
}

bool msi_stages_cut_lines(const msi_stages *normalizer, const msi_stages *pre_tokenizer)
{
    bool cut = false;

    for (int32_t i = 0; i < normalizer->n; i++) {
        if (normalizer->list[i].lines != MSI_LINES_KEPT) {
            return false;
        }
    }
    for (int32_t i = 0; i < pre_tokenizer->n; i++) {
        const msi_stage *s = &pre_tokenizer->list[i];

        /* pieces that end there are independent but for what is put before the first one */
        if (cut ? s->each == msi_stage_prepend : s->lines == MSI_LINES_UNKNOWN) {
            return false;
        }
        cut = cut || s->lines == MSI_LINES_CUT;
    }
    return cut;
}
