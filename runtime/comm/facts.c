/* Queries of a group. */
#include "group.h"

#include "device_plan.h"

int32_t ms_comm_rank(const ms_comm *comm)
{
    MSI_HANDLE(comm, MSI_MAGIC_COMM);
    return comm->rank;
}

int32_t ms_comm_size(const ms_comm *comm)
{
    MSI_HANDLE(comm, MSI_MAGIC_COMM);
    return comm->size;
}

int32_t msi_comm_rank_in_job(const ms_comm *comm, int32_t q)
{
    return ms_comm_is_fake(comm) ? comm->fake_first + q * comm->fake_step : comm->in_job[q];
}

bool ms_comm_leads_host(const ms_comm *comm)
{
    return comm->rank == (comm->hosts.n > 1 ? comm->hosts.leader : 0);
}

void ms_comm_ranks(const ms_comm *comm, int32_t *ranks)
{
    for (int32_t q = 0; q < comm->size; q++) {
        ranks[q] = msi_comm_rank_in_job(comm, q);
    }
}

bool ms_comm_is_fake(const ms_comm *comm)
{
    return comm->is_fake;
}

int32_t msi_comm_count_model(ms_comm *comm)
{
    return ++comm->n_models;
}

void msi_comm_plan(const ms_comm *comm, uint32_t kind, int64_t nbytes)
{
    const ms_plan_event event = {.kind = MS_PLAN_COLLECTIVE,
                                 .slot = -1,
                                 .ranks = comm->size,
                                 .first = comm->fake_first,
                                 .step = comm->fake_step,
                                 .nbytes = (double)nbytes,
                                 .name = msi_coll_name(kind)};

    msi_plan_event(comm->dist->ctx, &event);
}

void msi_comm_count(ms_comm *comm, uint32_t kind)
{
    if (kind < MSI_COLL_KINDS) {
        comm->counts[kind]++;
    }
}

void ms_comm_counts(const ms_comm *comm, int64_t *counts5)
{
    const int64_t *n = comm->counts;

    counts5[0] = n[MSI_COLL_ALL_GATHER] + n[MSI_COLL_UNSHARD];
    counts5[1] = n[MSI_COLL_REDUCE_SCATTER] + n[MSI_COLL_REDUCE_UNIT];
    counts5[2] = n[MSI_COLL_ALL_REDUCE] + n[MSI_COLL_REDUCE_FULL];
    counts5[3] = n[MSI_COLL_BROADCAST];
    counts5[4] = n[MSI_COLL_BARRIER];
}

double ms_comm_wait_seconds(const ms_comm *comm)
{
    return (double)comm->wait_ns * 1e-9;
}
