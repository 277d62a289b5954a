/* State of an optimizer: groups of options; per parameter the step count and state buffers.
 *
 * All state is per local shard: update rules know no sharding. It is made at the first step (or on
 * request), in the master's dtype. */
#ifndef MSI_OPTIM_H
#define MSI_OPTIM_H

#include "base.h"
#include "moonshard/optim.h"
#include "tensor.h"

#include "options.h"

enum { MSI_OPTIM_MAX_STATES = 3 };

/* One parameter's update, for the arguments of its kernel. */
typedef struct msi_update {
    const ms_optim_options *options;
    int64_t n;
    void *values;
    const void *gradient;
    void *state[MSI_OPTIM_MAX_STATES]; /* NULL: the options do not need it */
    int64_t step;                      /* its number, from 1 */
    double correction1, correction2;   /* 1 - beta^step */
    bool fresh;                        /* the state that the first gradient initialises is new */
} msi_update;

/* Arguments of any rule's kernel. */
typedef union msi_update_args {
    msi_sgd_args sgd;
    msi_adam_args adam;
    msi_rmsprop_args rmsprop;
    msi_adagrad_args adagrad;
    msi_lion_args lion;
} msi_update_args;

/* An optimizer: a row in rules.c. */
typedef struct msi_rule {
    const char *name;
    ms_optim_options defaults;
    int32_t option[MSI_RULE_OPTIONS]; /* MSI_OPTION_*, as they are shown; then 0 */
    struct {
        const char *name;
        int32_t needs;         /* the option that enables it; 0: it always exists */
        int32_t first;         /* the option that is its first value; 0: zeros */
        bool is_from_gradient; /* does not exist before the first step that needs it */
    } state[MSI_OPTIM_MAX_STATES];
    const char *op; /* the kernel's name */
    int32_t kernel;
    void (*arguments)(msi_update_args *args, const msi_update *u);
} msi_rule;

/* MS_VALUE_ERROR for an unknown kind. */
ms_status msi_rule_find(const msi_rule **rule, int32_t kind);
int32_t msi_rule_n_states(const msi_rule *rule);
/* Does a step with these options need the state? */
bool msi_rule_uses_state(const msi_rule *rule, const ms_optim_options *o, int32_t state);

typedef struct msi_optim_param {
    ms_tensor *tensor; /* retained */
    int32_t group;
    int64_t steps;
    int64_t primed; /* steps since the first with momentum, inclusive; 0: none */
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
    const msi_rule *rule;
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
/* notes.c: compare rule, groups and settings with other ranks, at the first step and after a group
 * was added. */
void msi_optim_note_first_step(ms_optim *optim);

#endif
