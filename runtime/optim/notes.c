/* What ranks with shared parameters compare at an optimizer's first step: kind, groups, settings.
 */
#include "optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* "step of SGD", with the group's place among those sorted. */
static msi_note note_of(const ms_optim *optim, const char *what, int32_t at)
{
    msi_note note = {.number = {at + 1}, .n_numbers = 1};
    char text[MSI_LABEL_TEXT];

    snprintf(text, sizeof(text), "%s of %s", what, optim->rule->name);
    msi_label_set(&note.label, text);
    return note;
}

static void note_group(const ms_optim *optim, const msi_param *through, int32_t at)
{
    const msi_named_group *named = &optim->named[at];
    msi_note note = note_of(optim, "parameters", at);

    msi_label_words(&note.text, "group number names#");
    note.number[note.n_numbers++] = named->n_params;
    note.number[note.n_numbers++] = msi_note_hash(named->names);
    through->ops->note(through->unit, &note);
}

static void note_settings(const ms_optim *optim, const msi_param *through, int32_t at)
{
    const ms_optim_options *o = &optim->groups[optim->named[at].group];
    const int32_t *option = optim->rule->option;
    msi_note note = note_of(optim, "step", at);
    char names[256] = "group"; /* room for the longest names */
    size_t length = strlen(names);

    for (int32_t i = 0; i < MSI_RULE_OPTIONS && option[i] != MSI_OPTION_NONE; i++) {
        length += (size_t)snprintf(names + length, sizeof(names) - length, " %s",
                                   msi_option_name(option[i]));
        note.number[note.n_numbers++] = msi_option_value(o, option[i]);
    }
    msi_label_words(&note.text, names);
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
