/* What an optimizer holds: groups of options, and per parameter its step count and state buffers.
 *
 * Everything is per local shard: the update rule never learns that a parameter is cut. State is
 * made at the first step (or when asked for), with the dtype of the master copy. */
#ifndef MSI_OPTIM_H
#define MSI_OPTIM_H

#include "base.h"
#include "moonshard/optim.h"
#include "tensor.h"

enum { MSI_OPTIM_MAX_STATES = 2 };

typedef struct msi_optim_param {
    ms_tensor *tensor; /* retained */
    int32_t group;
    int64_t steps;
    int64_t primed; /* SGD: steps since the momentum has a history, the first included; 0: none */
    msi_view state[MSI_OPTIM_MAX_STATES]; /* 1-D over the local shard; storage NULL: not made yet */
} msi_optim_param;

struct ms_optim {
    uint32_t magic;
    int32_t kind;
    ms_context *ctx;
    /* An empty tensor of ours. Closing the context destroys it, which its generation tells: then
     * nothing this optimizer points at exists any more. */
    ms_tensor *witness;
    uint64_t witness_generation;
    ms_optim_options *groups;
    int32_t n_groups;
    msi_optim_param *params;
    int32_t n_params;
    int32_t n_noted; /* parameters whose groups have been compared with other ranks */
    int32_t n_taken; /* parameters that took a step which failed then; 0: none did */
};

/* MS_RUNTIME_ERROR when the context the optimizer was made in is closed. */
ms_status msi_optim_alive(const ms_optim *optim);
/* The elements of a parameter this rank updates, 1-D; a declared parameter gets its memory. May be
 * empty, then without storage. */
ms_status msi_optim_local(ms_tensor *t, msi_view *local);
/* Make state buffer `state` of `p` (zeros) unless it exists; it must match `local`. */
ms_status msi_optim_ensure_state(ms_optim *optim, msi_optim_param *p, int32_t state,
                                 const msi_view *local);
/* notes.c: compare kind, groups and settings with the ranks that share parameters, at the first
 * step and at the first after a group was added. */
void msi_optim_note_first_step(ms_optim *optim);

#endif
