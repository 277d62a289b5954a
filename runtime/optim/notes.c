/* What ranks with shared parameters compare at an optimizer's first step: kind, groups, settings.
 */
#include "optim.h"

static const msi_note GROUP = {.text = {.text = "group number names#"}, .n_numbers = 3};

#define SETTINGS(names)                                                                            \
    {                                                                                              \
        .text = "group lr weight_decay maximize " names                                            \
    }

static const struct {
    msi_label group, step, names;
} TEXTS[] = {
    [MS_OPTIM_SGD] = {{.text = "parameters of SGD"},
                      {.text = "step of SGD"},
                      SETTINGS("momentum dampening nesterov")},
    [MS_OPTIM_ADAM] = {{.text = "parameters of Adam"},
                       {.text = "step of Adam"},
                       SETTINGS("betas[1] betas[2] eps amsgrad")},
    [MS_OPTIM_ADAMW] = {{.text = "parameters of AdamW"},
                        {.text = "step of AdamW"},
                        SETTINGS("betas[1] betas[2] eps amsgrad")},
    [MS_OPTIM_RMSPROP] = {{.text = "parameters of RMSprop"},
                          {.text = "step of RMSprop"},
                          SETTINGS("momentum alpha eps centered")},
    [MS_OPTIM_ADAGRAD] = {{.text = "parameters of Adagrad"},
                          {.text = "step of Adagrad"},
                          SETTINGS("lr_decay eps initial_accumulator_value")},
    [MS_OPTIM_LION] = {{.text = "parameters of Lion"},
                       {.text = "step of Lion"},
                       SETTINGS("betas[1] betas[2]")},
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
    msi_note note = GROUP;
    uint64_t names = 0;
    int32_t n = 0;

    for (int32_t i = 0; i < optim->n_params; i++) {
        if (optim->params[i].group == group && is_shared(optim->params[i].tensor->param)) {
            names += msi_mix64(ms_name_key(msi_tensor_label(optim->params[i].tensor)));
            n++;
        }
    }
    note.label = TEXTS[optim->kind].group;
    note.number[0] = group + 1;
    note.number[1] = n;
    note.number[2] = msi_note_hash(names);
    through->ops->note(through->unit, &note);
}

static void note_settings(const ms_optim *optim, const msi_param *through, int32_t group)
{
    const ms_optim_options *o = &optim->groups[group];
    msi_note note = {.label = TEXTS[optim->kind].step, .text = TEXTS[optim->kind].names};
    double *number = note.number;

    *number++ = group + 1;
    *number++ = o->lr;
    *number++ = o->weight_decay;
    *number++ = o->maximize;
    switch (optim->kind) {
    case MS_OPTIM_SGD:
        *number++ = o->momentum;
        *number++ = o->dampening;
        *number++ = o->nesterov;
        break;
    case MS_OPTIM_RMSPROP:
        *number++ = o->momentum;
        *number++ = o->alpha;
        *number++ = o->eps;
        *number++ = o->centered;
        break;
    case MS_OPTIM_ADAGRAD:
        *number++ = o->lr_decay;
        *number++ = o->eps;
        *number++ = o->initial_accumulator_value;
        break;
    default:
        *number++ = o->beta1;
        *number++ = o->beta2;
        if (optim->kind != MS_OPTIM_LION) {
            *number++ = o->eps;
            *number++ = o->amsgrad;
        }
    }
    note.n_numbers = (int32_t)(number - note.number);
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
