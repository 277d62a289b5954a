/* What ranks with shared parameters compare at an optimizer's first step: kind, groups, settings.
 */
#include "optim.h"

#include <stdlib.h>

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

static int64_t model_of(const msi_param *p)
{
    return p->ops->model(p->unit);
}

/* A parameter of a unit, of the model with the lowest number, or NULL. Ranks may list models in
 * different orders. */
static const msi_param *shared_param(const ms_optim *optim)
{
    const msi_param *first = NULL;

    for (int32_t i = 0; i < optim->n_params; i++) {
        const msi_param *p = optim->params[i].tensor->param;

        if (is_shared(p) && (first == NULL || model_of(p) < model_of(first))) {
            first = p;
        }
    }
    return first;
}

/* Parameters outside units are local to a rank and not compared. */
static msi_named_group name_group(const ms_optim *optim, int32_t group)
{
    msi_named_group named = {.group = group};

    for (int32_t i = 0; i < optim->n_params; i++) {
        const ms_tensor *t = optim->params[i].tensor;

        if (optim->params[i].group == group && is_shared(t->param)) {
            named.names += msi_mix64(ms_name_key(msi_tensor_label(t)) ^
                                     msi_mix64((uint64_t)model_of(t->param)));
            named.n_params++;
        }
    }
    return named;
}

static int compare_names(const void *a, const void *b)
{
    const msi_named_group *x = a, *y = b;

    if (x->names != y->names) {
        return x->names < y->names ? -1 : 1;
    }
    return x->group < y->group ? -1 : 1;
}

static void note_group(const ms_optim *optim, const msi_param *through, int32_t at)
{
    const msi_named_group *named = &optim->named[at];
    msi_note note = GROUP;

    note.label = TEXTS[optim->kind].group;
    note.number[0] = at + 1;
    note.number[1] = named->n_params;
    note.number[2] = msi_note_hash(named->names);
    through->ops->note(through->unit, &note);
}

static void note_settings(const ms_optim *optim, const msi_param *through, int32_t at)
{
    const ms_optim_options *o = &optim->groups[optim->named[at].group];
    msi_note note = {.label = TEXTS[optim->kind].step, .text = TEXTS[optim->kind].names};
    double *number = note.number;

    *number++ = at + 1;
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

    optim->n_noted = optim->n_params;
    if (through == NULL) {
        return;
    }
    for (int32_t g = 0; g < optim->n_groups; g++) {
        optim->named[g] = name_group(optim, g);
    }
    /* by names: ranks may list groups in different orders */
    qsort(optim->named, (size_t)optim->n_groups, sizeof(*optim->named), compare_names);
    for (int32_t at = 0; at < optim->n_groups; at++) {
        note_group(optim, through, at);
        note_settings(optim, through, at);
    }
}
