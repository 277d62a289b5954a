/* Layout of the members' shared memory, and their names. */
#include "group.h"

#include <stdio.h>

typedef struct places {
    int64_t notes, staging, channel, channel_bytes, nbytes;
} places;

static places places_of(int32_t size)
{
    places p = {.notes = (int64_t)sizeof(msi_member) * size};

    p.staging = msi_round_up(p.notes, 4096);
    p.nbytes = p.staging;
    if (size > 1) {
        p.staging += (int64_t)sizeof(msi_note_record) * MSI_NOTES * size;
        p.channel = p.staging + (int64_t)size * 2 * MSI_CHUNK;
        p.channel_bytes = p.channel + (int64_t)sizeof(msi_channel) * size * size;
        p.nbytes = p.channel_bytes + (int64_t)size * MSI_CHANNEL;
    }
    return p;
}

int64_t msi_members_bytes(int32_t size)
{
    return places_of(size).nbytes;
}

uint32_t msi_members_layout(void)
{
    return (uint32_t)msi_mix64(sizeof(msi_member) + 1000037 * sizeof(msi_note_record) * MSI_NOTES +
                               MSI_CHUNK + 7919 * (sizeof(msi_channel) + MSI_CHANNEL));
}

void msi_members_place(ms_comm *c, void *memory)
{
    const places p = places_of(c->n_members);

    c->members = memory;
    if (c->n_members > 1) {
        c->notes = (void *)((char *)memory + p.notes);
        c->staging = (char *)memory + p.staging;
        c->channel = (void *)((char *)memory + p.channel);
        c->channel_bytes = (char *)memory + p.channel_bytes;
    }
}

void msi_members_of_job(ms_comm *out, msi_job *job, int32_t rank, int32_t *in_job,
                        uint64_t *checked)
{
    for (int32_t q = 0; q < job->world; q++) {
        in_job[q] = q;
        checked[q] = 0;
    }
    out->job = job;
    out->rank = out->own = rank;
    out->size = out->n_members = job->world;
    out->in_job = in_job;
    out->checked = checked;
    msi_members_place(out, msi_job_guest_memory(job));
}

const char *msi_ranks_text(const ms_comm *c, const bool *marked, char *buffer, size_t nbytes)
{
    int32_t ranks[c->n_members], n = 0;

    for (int32_t q = 0; q < c->n_members; q++) {
        if (marked == NULL || marked[q]) {
            ranks[n++] = c->in_job[q];
        }
    }
    return msi_ranks_list(ranks, n, buffer, nbytes);
}

const char *msi_sequence_text(const ms_comm *c, uint64_t seq, char *buffer, size_t nbytes)
{
    char ranks[MSI_RANKS_TEXT];
    const bool is_of_some = c->n_members > 1 && c->n_members < c->job->world;

    snprintf(buffer, nbytes, "sequence %llu%s%s", (unsigned long long)seq, is_of_some ? " of " : "",
             is_of_some ? msi_ranks_text(c, NULL, ranks, sizeof(ranks)) : "");
    return buffer;
}
