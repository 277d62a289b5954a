/* What ranks with shared parameters compare at an optimizer's first step: kind, groups, settings.
 */
#include "optim.h"

#define ADAM_SETTINGS                                                                              \
    {                                                                                              \
        .text = "group lr betas[1] betas[2] eps weight_decay maximize"                             \
    }

static const msi_note GROUPS[] = {
    [MS_OPTIM_SGD] = {{.text = "parameters of SGD"},
                      {.text = "group number names#"},
                      {0},
                      .n_numbers = 3},
    [MS_OPTIM_ADAM] = {{.text = "parameters of Adam"},
                       {.text = "group number names#"},
                       {0},
                       .n_numbers = 3},
    [MS_OPTIM_ADAMW] = {{.text = "parameters of AdamW"},
                        {.text = "group number names#"},
                        {0},
                        .n_numbers = 3},
};

static const msi_note STEPS[] = {
    [MS_OPTIM_SGD] = {{.text = "step of SGD"},
                      {.text = "group lr momentum dampening weight_decay nesterov maximize"},
                      {0},
                      .n_numbers = 7},
    [MS_OPTIM_ADAM] = {{.text = "step of Adam"}, ADAM_SETTINGS, {0}, .n_numbers = 7},
    [MS_OPTIM_ADAMW] = {{.text = "step of AdamW"}, ADAM_SETTINGS, {0}, .n_numbers = 7},
};

static bool is_shared(const msi_param *p)
{
    return p != NULL && p->ops != NULL && p->ops->note != NULL;
}

/* The first parameter of a unit, or NULL. */
static const msi_param *shared_param(const ms_optim *optim)
{
    for (int32_t i = 0; i < optim->n_params; i++) {
        const msi_param *p = optim->params[i].tensor->param;

        if (is_shared(p)) {
            return p;
        }
    }
    return NULL;
}

/* Names of the units' parameters in a group, in any order. Parameters outside units are local to a
 * rank. */
static void note_group(const ms_optim *optim, const msi_param *through, int32_t group)
{
    msi_note note = GROUPS[optim->kind];
    uint64_t names = 0;
    int32_t n = 0;

    for (int32_t i = 0; i < optim->n_params; i++) {
        if (optim->params[i].group == group && is_shared(optim->params[i].tensor->param)) {
            names += msi_mix64(ms_name_key(msi_tensor_label(optim->params[i].tensor)));
            n++;
        }
    }
    note.number[0] = group + 1;
    note.number[1] = n;
    note.number[2] = msi_note_hash(names);
    through->ops->note(through->unit, &note);
}

static void note_settings(const ms_optim *optim, const msi_param *through, int32_t group)
{
    const ms_optim_options *o = &optim->groups[group];
    msi_note note = STEPS[optim->kind];
    double *number = note.number;

    *number++ = group + 1;
    *number++ = o->lr;
    if (optim->kind == MS_OPTIM_SGD) {
        *number++ = o->momentum;
        *number++ = o->dampening;
        *number++ = o->weight_decay;
        *number++ = o->nesterov;
    } else {
        *number++ = o->beta1;
        *number++ = o->beta2;
        *number++ = o->eps;
        *number++ = o->weight_decay;
    }
    *number = o->maximize;
    through->ops->note(through->unit, &note);
}

void msi_optim_note_first_step(ms_optim *optim)
{
    const msi_param *through = optim->n_noted < optim->n_params ? shared_param(optim) : NULL;

    for (int32_t g = 0; through != NULL && g < optim->n_groups; g++) {
        note_group(optim, through, g);
        note_settings(optim, through, g);
    }
    optim->n_noted = optim->n_params;
}
