/* Publishing an operation: comparing with peers, waking them. */
#include "group.h"

#include <stddef.h>

bool msi_comm_broken(ms_comm *c)
{
    return !c->is_alone && atomic_load_explicit(&c->job->block->abort, memory_order_acquire) != 0;
}

void msi_comm_ring(ms_comm *c)
{
    for (int32_t q = 0; q < c->n_members; q++) {
        msi_job_rank *its = &c->job->block->rank[c->in_job[q]];

        if (q != c->own && atomic_load(&its->waiting) != 0) {
            msi_wake(its); /* of another host: never, since its `waiting` is not sent */
        }
    }
    if (MSI_UNLIKELY(c->hosts.n > 1)) {
        msi_comm_push(c);
    }
}

ms_status msi_comm_publish(ms_comm *c, const msi_fingerprint *fp, uint64_t *seq)
{
    const size_t nbytes = 8 * (size_t)msi_fingerprint_words(fp);
    msi_fingerprint own;

    *seq = 0;
    memcpy(&own, fp, nbytes);
    own.noted = msi_noted(c, c->own);
    if (MSI_UNLIKELY(c->dist->gone != MSI_GONE_NOT)) {
        return msi_gone_error(c->dist);
    }
    c->seq++;
    c->hash = msi_mix64(c->hash ^ ms_hash_bytes(&own, (int64_t)nbytes));
    msi_record_write(&c->members[c->own], c->seq, c->hash, &own);
    msi_comm_put(c, MSI_MIRROR_RECORD, &c->members[c->own].ring[c->seq % MSI_RING],
                 (int64_t)offsetof(msi_record, word) + (int64_t)nbytes);
    msi_comm_put(c, MSI_MIRROR_WORDS, (const void *)&c->members[c->own].published, 16);
    if (MSI_UNLIKELY(msi_comm_broken(c))) {
        char operation[MSI_OPERATION_TEXT];

        return msi_comm_fail(c, "called",
                             msi_operation_text(c, c->seq, operation, sizeof(operation)));
    }
    *seq = c->seq;
    return MS_OK;
}

uint64_t msi_comm_next(const ms_comm *c)
{
    return c->seq + 1;
}

uint64_t msi_comm_schedule_hash(const ms_comm *c)
{
    return c->hash;
}
