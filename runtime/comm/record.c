/* Records: fingerprints that members have published. */
#include "group.h"

#include <stdio.h>

void msi_record_write(msi_member *m, uint64_t seq, uint64_t hash, const msi_fingerprint *fp)
{
    msi_record *r = &m->ring[seq % MSI_RING];

    atomic_store_explicit(&r->seq, 0, memory_order_relaxed);
    atomic_store_explicit(&r->hash, hash, memory_order_release);
    msi_words_store(r->word, fp, msi_fingerprint_words(fp));
    atomic_store_explicit(&r->seq, seq, memory_order_release);
    atomic_store_explicit(&m->schedule, hash, memory_order_release);
    atomic_store_explicit(&m->published, seq, memory_order_release);
}

bool msi_record_read(msi_member *m, uint64_t seq, msi_fingerprint *fp, uint64_t *hash)
{
    msi_record *r = &m->ring[seq % MSI_RING];

    if (seq == 0 || atomic_load_explicit(&r->seq, memory_order_acquire) != seq) {
        return false;
    }
    *hash = atomic_load_explicit(&r->hash, memory_order_acquire);
    if (fp != NULL) {
        *fp = (msi_fingerprint){.kind = MSI_COLL_NONE};
        msi_words_load(fp, r->word, 1);
        msi_words_load(fp, r->word, msi_fingerprint_words(fp));
    }
    return atomic_load_explicit(&r->seq, memory_order_relaxed) == seq;
}

const char *msi_operation_text(const ms_comm *c, uint64_t seq, char *buffer, size_t nbytes)
{
    char name[MSI_OPERATION_TEXT] = "an operation", sequence[MSI_SEQUENCE_TEXT];
    msi_fingerprint fp;
    uint64_t hash;

    if (msi_record_read(&c->members[c->own], seq, &fp, &hash)) {
        msi_fingerprint_name(&fp, name, sizeof(name));
    }
    snprintf(buffer, nbytes, "%s (%s)", name,
             msi_sequence_text(c, seq, sequence, sizeof(sequence)));
    return buffer;
}

ms_status msi_comm_fail(const ms_comm *c, const char *verb, const char *operation)
{
    int32_t subject, cause;
    ms_status kind;
    const char *text;

    if (!msi_job_aborted(c->job, &subject, &cause, &kind, &text)) {
        return MS_FAIL(MS_INTERNAL_ERROR, "a group failed without a reason");
    }
    bool at_once = cause == MSI_CAUSE_DIED || cause == MSI_CAUSE_LEFT;
    int line = (int)strcspn(text, "\n"); /* the other rank's traceback follows */

    return MS_FAIL(MS_COMM_ERROR, "%.*s%s this rank %s %s%s", line, text, at_once ? " while" : ";",
                   verb, operation, text + line);
}
