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

/* Members a < b published fa and fb at sequence `s`. Differing notes came earlier. */
static void report_difference(ms_comm *c, int32_t a, const msi_fingerprint *fa, int32_t b,
                              const msi_fingerprint *fb, uint64_t s)
{
    int32_t other = c->own == a ? b : a;
    char ta[MSI_CALL_TEXT], tb[MSI_CALL_TEXT], notes[MSI_NOTED_TEXT] = "";
    char failure[MSI_FAILURE_TEXT], sequence[MSI_SEQUENCE_TEXT];

    if (report_failure(c, a, fa, b, fb, s)) {
        return;
    }
    msi_failure_text(c, a, b, failure, sizeof(failure));
    msi_fingerprint_text(fa, ta, sizeof(ta));
    msi_fingerprint_text(fb, tb, sizeof(tb));
    msi_sequence_text(c, s, sequence, sizeof(sequence));
    if (fa->noted != fb->noted) {
        msi_notes_text(c, a, fa->noted, b, fb->noted, notes, sizeof(notes));
    }
    if (msi_fingerprint_same_call(fa, fb)) {
        msi_job_abort(c->job, c->in_job[c->own], c->in_job[other], MSI_CAUSE_MISMATCH,
                      MS_COMM_ERROR, "the ranks differ: %s (found at %s, %s)%s", notes, ta,
                      sequence, failure);
        return;
    }
    msi_job_abort(c->job, c->in_job[c->own], c->in_job[other], MSI_CAUSE_MISMATCH, MS_COMM_ERROR,
                  "collective mismatch at %s: rank %d calls %s, rank %d calls %s%s%s%s", sequence,
                  (int)c->in_job[a], ta, (int)c->in_job[b], tb,
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

/* Member b left without a call that member a made. */
static void report_call_more(ms_comm *c, int32_t a, int32_t b)
{
    uint64_t s = published(c, b) + 1, hash;
    char call[MSI_CALL_TEXT] = "another collective", notes[MSI_NOTED_TEXT] = "";
    char failure[MSI_FAILURE_TEXT], sequence[MSI_SEQUENCE_TEXT];
    msi_fingerprint fp;

    if (msi_record_read(&c->members[a], s, &fp, &hash)) {
        msi_fingerprint_text(&fp, call, sizeof(call));
        if (fp.noted != msi_noted(c, b)) {
            msi_notes_text(c, a, fp.noted, b, msi_noted(c, b), notes, sizeof(notes));
        }
    }
    msi_job_abort(c->job, c->in_job[c->own], c->in_job[b], MSI_CAUSE_MISMATCH, MS_COMM_ERROR,
                  "collective mismatch at %s: rank %d calls %s, rank %d has left%s%s%s",
                  msi_sequence_text(c, s, sequence, sizeof(sequence)), (int)c->in_job[a], call,
                  (int)c->in_job[b], notes[0] != '\0' ? "; before that they differ: " : "", notes,
                  msi_failure_text(c, a, b, failure, sizeof(failure)));
}

/* Compare member q's end with this one's. */
static bool left_alike(ms_comm *c, int32_t q)
{
    uint64_t mine = published(c, c->own), theirs = published(c, q), hash, own;
    uint64_t last = mine < theirs ? mine : theirs;
    char notes[MSI_NOTED_TEXT], failure[MSI_FAILURE_TEXT];

    if (msi_record_read(&c->members[q], last, NULL, &hash) &&
        msi_record_read(&c->members[c->own], last, NULL, &own) && hash != own) {
        report_mismatch(c, q, last);
        return false;
    }
    if (mine != theirs) {
        report_call_more(c, mine > theirs ? c->own : q, mine > theirs ? q : c->own);
        return false;
    }
    if (msi_noted(c, q) != msi_noted(c, c->own)) {
        msi_notes_text(c, c->own, msi_noted(c, c->own), q, msi_noted(c, q), notes, sizeof(notes));
        msi_job_abort(c->job, c->in_job[c->own], c->in_job[q], MSI_CAUSE_MISMATCH, MS_COMM_ERROR,
                      "the ranks differ: %s (found when they had left)%s", notes,
                      msi_failure_text(c, c->own, q, failure, sizeof(failure)));
        return false;
    }
    return true;
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
