/* Comparison of the members' schedules. While they run: at the latest call that two have made,
 * whose hash covers everything before. When all have left: also notes after the last call. */
#include "group.h"

#include <stdio.h>
#include <string.h>

/* -- while they run ---------------------------------------------------------------------------- */

/* If exactly one of two members published a reset here, report its failure as the cause: true. */
static bool report_failure(ms_comm *c, int32_t a, const msi_fingerprint *fa, int32_t b,
                           const msi_fingerprint *fb, uint64_t s)
{
    int32_t failed = fa->kind == MSI_COLL_RESET ? a : b;
    char text[MSI_TEXT - 128];

    if ((fa->kind == MSI_COLL_RESET) == (fb->kind == MSI_COLL_RESET) ||
        msi_failure_read(c, failed, text, sizeof(text)) != s) {
        return false;
    }
    msi_job_abort(c->job, c->in_job[c->own], c->in_job[failed], MSI_CAUSE_FAILED, MS_COMM_ERROR,
                  "rank %d failed: %s", (int)c->in_job[failed], text);
    return true;
}

/* "rank 1 calls barrier()", "rank 1 has left" */
static const char *side_text(const ms_comm *c, int32_t q, const msi_fingerprint *fp, char *buffer,
                             size_t nbytes)
{
    char call[MSI_CALL_TEXT];

    snprintf(buffer, nbytes, fp != NULL ? "rank %d calls %s" : "rank %d has left",
             (int)c->in_job[q], fp != NULL ? msi_fingerprint_text(fp, call, sizeof(call)) : "");
    return buffer;
}

static uint64_t noted_by(const ms_comm *c, int32_t q, const msi_fingerprint *fp)
{
    return fp != NULL ? fp->noted : msi_noted(c, q);
}

/* Members a and b published fa and fb at sequence `s`; NULL: left before. Differing values were
 * recorded earlier. */
static void report_difference(ms_comm *c, int32_t a, const msi_fingerprint *fa, int32_t b,
                              const msi_fingerprint *fb, uint64_t s)
{
    const int32_t other = c->own == a || fb == NULL ? b : a;
    const uint64_t noted_a = noted_by(c, a, fa), noted_b = noted_by(c, b, fb);
    const bool same = fa != NULL && fb != NULL ? msi_fingerprint_same_call(fa, fb) : fa == fb;
    char ta[MSI_CALL_TEXT + 32], tb[MSI_CALL_TEXT + MSI_SEQUENCE_TEXT], notes[MSI_NOTED_TEXT] = "";
    char failure[MSI_FAILURE_TEXT], sequence[MSI_SEQUENCE_TEXT];

    if (fa != NULL && fb != NULL && report_failure(c, a, fa, b, fb, s)) {
        return;
    }
    if (noted_a != noted_b) {
        msi_notes_text(c, a, noted_a, b, noted_b, notes, sizeof(notes));
    }
    msi_failure_text(c, a, b, failure, sizeof(failure));
    msi_sequence_text(c, s, sequence, sizeof(sequence));
    if (same) {
        snprintf(tb, sizeof(tb), fa != NULL ? "at %s, %s" : "when they had left",
                 fa != NULL ? msi_fingerprint_text(fa, ta, sizeof(ta)) : "", sequence);
        msi_job_abort(c->job, c->in_job[c->own], c->in_job[other], MSI_CAUSE_MISMATCH,
                      MS_COMM_ERROR, "the ranks differ: %s (found %s)%s", notes, tb, failure);
        return;
    }
    msi_job_abort(c->job, c->in_job[c->own], c->in_job[other], MSI_CAUSE_MISMATCH, MS_COMM_ERROR,
                  "collective mismatch at %s: %s, %s%s%s%s", sequence,
                  side_text(c, a, fa, ta, sizeof(ta)), side_text(c, b, fb, tb, sizeof(tb)),
                  notes[0] != '\0' ? "; before that they differ: " : "", notes, failure);
}

static void report_mismatch(ms_comm *c, int32_t q, uint64_t last)
{
    int32_t a = q < c->own ? q : c->own, b = q < c->own ? c->own : q;
    uint64_t first = last > MSI_RING ? last - MSI_RING + 1 : 1, hash;
    char sequence[MSI_SEQUENCE_TEXT];
    msi_fingerprint fa, fb;

    if (first <= c->checked[q]) {
        first = c->checked[q] + 1;
    }
    for (uint64_t s = first; s <= last; s++) {
        if (msi_record_read(&c->members[a], s, &fa, &hash) &&
            msi_record_read(&c->members[b], s, &fb, &hash) && memcmp(&fa, &fb, sizeof(fa)) != 0) {
            report_difference(c, a, &fa, b, &fb, s);
            return;
        }
    }
    msi_job_abort(c->job, c->in_job[c->own], c->in_job[q], MSI_CAUSE_MISMATCH, MS_COMM_ERROR,
                  "collective mismatch: ranks %d and %d called different collectives before "
                  "%s",
                  (int)c->in_job[a], (int)c->in_job[b],
                  msi_sequence_text(c, first, sequence, sizeof(sequence)));
}

/* True if the member is at this rank's call with an equal hash. Does not read its records, which
 * are in its core's cache. */
static bool is_alongside(const ms_comm *c, int32_t q, uint64_t theirs)
{
    return theirs == c->seq &&
           atomic_load_explicit(&c->members[q].schedule, memory_order_acquire) == c->hash;
}

/* Compare the latest common record of each peer: its hash covers everything before. */
bool msi_members_agree(ms_comm *c)
{
    for (int32_t q = 0; q < c->n_members; q++) {
        uint64_t theirs, last, hash, own;

        if (q == c->own) {
            continue;
        }
        theirs = atomic_load_explicit(&c->members[q].published, memory_order_acquire);
        last = theirs < c->seq ? theirs : c->seq;
        if (last <= c->checked[q]) {
            continue; /* nothing new */
        }
        if (!is_alongside(c, q, theirs)) {
            if (!msi_record_read(&c->members[q], last, NULL, &hash) ||
                !msi_record_read(&c->members[c->own], last, NULL, &own)) {
                continue; /* overwritten; a later hash covers it */
            }
            if (hash != own) {
                report_mismatch(c, q, last);
                return false;
            }
        }
        c->checked[q] = last;
    }
    return true;
}

/* -- when they have left ----------------------------------------------------------------------- */

static uint64_t published(const ms_comm *c, int32_t q)
{
    return atomic_load_explicit(&c->members[q].published, memory_order_acquire);
}

/* Compare member q's end with this one's. */
static bool left_alike(ms_comm *c, int32_t q)
{
    const uint64_t mine = published(c, c->own), theirs = published(c, q);
    const uint64_t last = mine < theirs ? mine : theirs;
    const int32_t a = mine >= theirs ? c->own : q, b = mine >= theirs ? q : c->own;
    uint64_t hash, own;
    msi_fingerprint more;

    if (msi_record_read(&c->members[q], last, NULL, &hash) &&
        msi_record_read(&c->members[c->own], last, NULL, &own) && hash != own) {
        report_mismatch(c, q, last);
        return false;
    }
    if (mine == theirs && msi_noted(c, q) == msi_noted(c, c->own)) {
        return true;
    }
    const bool read = mine != theirs && msi_record_read(&c->members[a], last + 1, &more, &hash);

    if (mine != theirs && !read) { /* overwritten */
        more = (msi_fingerprint){.kind = MSI_COLL_NONE, .ndim = -1, .noted = msi_noted(c, a)};
    }
    report_difference(c, a, mine != theirs ? &more : NULL, b, NULL, last + 1);
    return false;
}

bool msi_members_left_alike(ms_comm *c)
{
    for (int32_t q = 0; q < c->n_members; q++) {
        if (q != c->own && !left_alike(c, q)) {
            return false;
        }
    }
    return true;
}
