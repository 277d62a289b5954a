/* All-gathers of bytes. */
#include "group.h"

ms_status msi_comm_gather_via(ms_comm *c, const msi_transport *via, const msi_label *what,
                              int32_t model, const void *in, int64_t nbytes, void *out)
{
    const msi_fingerprint fp = {.kind = MSI_COLL_ALL_GATHER,
                                .dtype = MS_DTYPE_NONE,
                                .ndim = -1,
                                .count = nbytes,
                                .slot = msi_slot_of(via),
                                .model = model,
                                .name = *what};
    uint64_t seq;

    MS_TRY(msi_comm_publish(c, &fp, &seq));
    msi_comm_plan(c, MSI_COLL_ALL_GATHER, nbytes);
    return via->all_gather(c, seq, in, nbytes, out);
}

ms_status msi_comm_gather_named(ms_comm *c, const msi_label *what, int32_t model, const void *in,
                                int64_t nbytes, void *out)
{
    return msi_comm_gather_via(c, c->via, what, model, in, nbytes, out);
}

ms_status msi_comm_gather_bytes(ms_comm *c, const char *what, const void *in, int64_t nbytes,
                                void *out)
{
    msi_label name;

    msi_label_set(&name, what);
    return msi_comm_gather_named(c, &name, 0, in, nbytes, out);
}

ms_status ms_comm_exchange(ms_comm *c, const char *what, const double *numbers, int32_t n_numbers,
                           double *all)
{
    return msi_comm_gather_bytes(c, what, numbers, (int64_t)sizeof(*numbers) * n_numbers, all);
}
