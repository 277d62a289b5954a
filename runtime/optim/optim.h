/* State of an optimizer: groups of options; per parameter the step count and state buffers.
 *
 * All state is per local shard: update rules know no sharding. It is made at the first step (or on
 * request), in the master's dtype. */
#ifndef MSI_OPTIM_H
#define MSI_OPTIM_H

#include "base.h"
#include "moonshard/optim.h"
#include "tensor.h"

enum { MSI_OPTIM_MAX_STATES = 3 };

typedef struct msi_optim_param {
    ms_tensor *tensor; /* retained */
    int32_t group;
    int64_t steps;
    int64_t primed; /* SGD: steps since the momentum buffer began, inclusive; 0: none */
    msi_view state[MSI_OPTIM_MAX_STATES]; /* 1-D over the local shard; storage NULL: none */
} msi_optim_param;

/* A group as other ranks know it. */
typedef struct msi_named_group {
    uint64_t names; /* of its shared parameters, in any order */
    int32_t n_params;
    int32_t group;
} msi_named_group;

struct ms_optim {
    uint32_t magic;
    int32_t kind;
    ms_context *ctx;
    /* An empty tensor of ours. Closing the context destroys it and changes its generation: then all
     * pointers of this optimizer are invalid. */
    ms_tensor *witness;
    uint64_t witness_generation;
    ms_optim_options *groups;
    msi_named_group *named; /* room to sort the groups */
    int32_t n_groups;
    msi_optim_param *params;
    int32_t n_params;
    int32_t n_noted; /* parameters in groups already compared */
    int32_t n_taken; /* parameters updated by a failed step */
};

/* MS_RUNTIME_ERROR if the optimizer's context is closed. */
ms_status msi_optim_alive(const ms_optim *optim);
/* This rank's elements of a parameter, 1-D; allocates a declared one. If empty, without storage. */
ms_status msi_optim_local(ms_tensor *t, msi_view *local);
/* Make state buffer `state` of `p`, with its first value, if missing; it must match `local`. */
ms_status msi_optim_ensure_state(ms_optim *optim, msi_optim_param *p, int32_t state,
                                 const msi_view *local);
/* notes.c: compare kind, groups and settings with other ranks, at the first step and after a group
 * was added. */
void msi_optim_note_first_step(ms_optim *optim);

#endif
