/* A rank's own failures. Peers that continue detect a rank that failed alone by its next call, or
 * by its leaving; the text here gives them the reason. */
#include "group.h"

#include <stdio.h>

enum { LINE_ROOM = MSI_FAILURE_TEXT - 64 };

/* True if this rank's latest call was a reset for its failure. */
static bool has_given_up(const ms_comm *c)
{
    msi_member *m = &c->members[c->own];
    msi_fingerprint fp;
    uint64_t hash;

    return atomic_load(&m->failed_before) == c->seq && msi_record_read(m, c->seq, &fp, &hash) &&
           fp.kind == MSI_COLL_RESET;
}

void ms_comm_failed(ms_comm *c, const char *message)
{
    msi_member *m = &c->members[c->own];
    size_t n = strnlen(message, MSI_TEXT - 1);
    char text[MSI_TEXT] = "";

    if (c->n_members == 1 || c->dist->gone != MSI_GONE_NOT || msi_comm_broken(c) ||
        has_given_up(c)) {
        return; /* no peer waits, or another failure was first */
    }
    memcpy(text, message, n);
    atomic_store_explicit(&m->failed_before, 0, memory_order_relaxed);
    msi_comm_put(c, MSI_MIRROR_WORDS, (const void *)&m->failed_before, 8);
    atomic_fetch_add_explicit(&m->failures, 1, memory_order_release);
    msi_words_store(m->failure, text, (int32_t)(n / 8) + 1);
    atomic_store_explicit(&m->failed_before, c->seq + 1, memory_order_release);
    msi_comm_put(c, MSI_MIRROR_WORDS, (const void *)&m->failures, 8);
    msi_comm_put(c, MSI_MIRROR_WORDS, (const void *)m->failure, 8 * ((int64_t)(n / 8) + 1));
    msi_comm_put(c, MSI_MIRROR_WORDS, (const void *)&m->failed_before, 8);
}

static void report_to_group(ms_comm *c, const char *message)
{
    msi_note note = {.n_numbers = 0};

    if (c != NULL && c->size > 1) {
        msi_label_set(&note.label, "an error of its device");
        ms_comm_failed(c, message);
        msi_comm_note(c, &note);
    }
}

void msi_groups_failed(ms_context *ctx)
{
    const msi_groups *g = ctx->room[MSI_ROOM_COMM];

    if (g == NULL) {
        return;
    }
    report_to_group(g->world, ms_error_message());
    for (ms_comm *c = g->others; c != NULL; c = c->next) {
        report_to_group(c, ms_error_message());
    }
}

uint64_t msi_failure_read(const ms_comm *c, int32_t q, char *text, size_t nbytes)
{
    msi_member *m = &c->members[q];
    uint64_t failures = atomic_load_explicit(&m->failures, memory_order_acquire);
    uint64_t before = atomic_load_explicit(&m->failed_before, memory_order_acquire);
    char all[MSI_TEXT];

    msi_words_load(all, m->failure, MSI_COUNT(m->failure));
    if (before == 0 || atomic_load_explicit(&m->failures, memory_order_relaxed) != failures ||
        atomic_load_explicit(&m->failed_before, memory_order_relaxed) != before) {
        return 0;
    }
    snprintf(text, nbytes, "%s", all);
    return before;
}

const char *msi_failure_text(const ms_comm *c, int32_t a, int32_t b, char *buffer, size_t nbytes)
{
    char text[LINE_ROOM], other[LINE_ROOM];
    uint64_t before_a = msi_failure_read(c, a, text, sizeof(text));
    uint64_t before_b = msi_failure_read(c, b, other, sizeof(other));
    bool is_a = before_a > before_b; /* the later one, if both failed */
    const char *why = is_a ? text : other;
    int line = (int)strcspn(why, "\n");

    buffer[0] = '\0';
    if (before_a != before_b) {
        snprintf(buffer, nbytes, "; rank %d had failed before its call %llu: %.*s%s",
                 (int)c->in_job[is_a ? a : b], (unsigned long long)(is_a ? before_a : before_b),
                 line, why, line == LINE_ROOM - 1 ? "..." : "");
    }
    return buffer;
}

int32_t msi_failure_owner(const ms_comm *c)
{
    uint64_t own, theirs;

    if (!msi_record_read(&c->members[c->own], c->seq, NULL, &own) ||
        atomic_load(&c->members[c->own].failed_before) == c->seq) {
        return c->own;
    }
    for (int32_t q = 0; q < c->n_members; q++) {
        if (atomic_load(&c->members[q].failed_before) == c->seq &&
            msi_record_read(&c->members[q], c->seq, NULL, &theirs) && theirs == own) {
            return q;
        }
    }
    return c->own;
}
