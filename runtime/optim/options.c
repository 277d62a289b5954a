/* Options of parameter groups: defaults and bounds, with torch.optim's names and messages.
 * (torch.optim accepts infinite ones, which lead to NaN.) */
#include "options.h"

#include "optim.h"

#include <math.h>
#include <string.h>

/* By kind. States from `first_optional` on depend on options. */
static const struct {
    const char *name;
    double lr, beta2, eps, weight_decay;
    int32_t n_states, first_optional;
    const char *state[MSI_OPTIM_MAX_STATES];
} KINDS[] = {
    [MS_OPTIM_SGD] = {"SGD", 1e-3, 0.999, 1e-8, 0, 1, 0, {"momentum_buffer"}},
    [MS_OPTIM_ADAM] =
        {"Adam", 1e-3, 0.999, 1e-8, 0, 3, 2, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
    [MS_OPTIM_ADAMW] =
        {"AdamW", 1e-3, 0.999, 1e-8, 1e-2, 3, 2, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
    [MS_OPTIM_RMSPROP] =
        {"RMSprop", 1e-2, 0.999, 1e-8, 0, 3, 1, {"square_avg", "momentum_buffer", "grad_avg"}},
    [MS_OPTIM_ADAGRAD] = {"Adagrad", 1e-2, 0.999, 1e-10, 0, 1, 1, {"sum"}},
    [MS_OPTIM_LION] = {"Lion", 1e-4, 0.99, 1e-8, 0, 1, 1, {"exp_avg"}},
};

ms_optim_options msi_optim_defaults(int32_t kind)
{
    const bool known = kind >= 0 && kind < (int32_t)MSI_COUNT(KINDS);
    const int32_t row = known ? kind : MS_OPTIM_SGD;

    return (ms_optim_options){
        .struct_size = sizeof(ms_optim_options),
        .lr = KINDS[row].lr,
        .weight_decay = KINDS[row].weight_decay,
        .beta1 = 0.9,
        .beta2 = KINDS[row].beta2,
        .eps = KINDS[row].eps,
        .alpha = 0.99,
    };
}

ms_status msi_optim_check_kind(int32_t kind)
{
    if (kind < 0 || kind >= (int32_t)MSI_COUNT(KINDS)) {
        return MS_FAIL(MS_VALUE_ERROR, "optimizer kind %d is none, expected 0 to %d", kind,
                       (int)MSI_COUNT(KINDS) - 1);
    }
    return MS_OK;
}

const char *msi_optim_kind_name(int32_t kind)
{
    return KINDS[kind].name;
}

int32_t msi_optim_kind_states(int32_t kind)
{
    return KINDS[kind].n_states;
}

const char *msi_optim_kind_state(int32_t kind, int32_t state)
{
    return KINDS[kind].state[state];
}

bool msi_optim_state_is_optional(int32_t kind, int32_t state)
{
    return state >= KINDS[kind].first_optional;
}

bool msi_optim_uses_state(int32_t kind, const ms_optim_options *o, int32_t state)
{
    if (!msi_optim_state_is_optional(kind, state)) {
        return true;
    }
    if (kind == MS_OPTIM_ADAM || kind == MS_OPTIM_ADAMW) {
        return o->amsgrad;
    }
    return kind == MS_OPTIM_RMSPROP && state == 2 ? o->centered : o->momentum != 0;
}

ms_status ms_optim_options_init(ms_optim_options *o, uint32_t struct_size, int32_t kind)
{
    const ms_optim_options whole = msi_optim_defaults(kind);

    MS_TRY(msi_optim_check_kind(kind));
    msi_struct_give(o, struct_size, &whole, sizeof(whole));
    return MS_OK;
}

static ms_status check_not_negative(const char *what, double value)
{
    return value >= 0 && isfinite(value) ? MS_OK
                                         : MS_FAIL(MS_VALUE_ERROR, "Invalid %s: %g", what, value);
}

static ms_status check_beta(int index, double beta)
{
    return beta >= 0 && beta < 1
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "Invalid beta parameter at index %d: %g", index, beta);
}

/* Also checks options this kind does not use. */
static ms_status check_values(const ms_optim_options *o)
{
    MS_TRY(check_not_negative("learning rate", o->lr));
    MS_TRY(check_not_negative("momentum value", o->momentum));
    MS_TRY(check_not_negative("epsilon value", o->eps));
    MS_TRY(check_beta(0, o->beta1));
    MS_TRY(check_beta(1, o->beta2));
    MS_TRY(check_not_negative("weight_decay value", o->weight_decay));
    MS_TRY(check_not_negative("alpha value", o->alpha));
    MS_TRY(check_not_negative("lr_decay value", o->lr_decay));
    MS_TRY(check_not_negative("initial_accumulator_value value", o->initial_accumulator_value));
    if (!isfinite(o->dampening)) {
        return MS_FAIL(MS_VALUE_ERROR, "Invalid dampening value: %g", o->dampening);
    }
    if (o->nesterov && (o->momentum <= 0 || o->dampening != 0)) {
        return MS_FAIL(MS_VALUE_ERROR, "Nesterov momentum requires a momentum and zero dampening");
    }
    return MS_OK;
}

static const msi_field option_fields[] = {
    MSI_FIELD(ms_optim_options, struct_size),
    MSI_FIELD(ms_optim_options, lr),
    MSI_FIELD(ms_optim_options, momentum),
    MSI_FIELD(ms_optim_options, dampening),
    MSI_FIELD(ms_optim_options, weight_decay),
    MSI_FIELD(ms_optim_options, beta1),
    MSI_FIELD(ms_optim_options, beta2),
    MSI_FIELD(ms_optim_options, eps),
    MSI_FIELD(ms_optim_options, nesterov),
    MSI_FIELD(ms_optim_options, maximize),
    MSI_FIELD(ms_optim_options, amsgrad),
    MSI_FIELD(ms_optim_options, centered),
    MSI_FIELD(ms_optim_options, alpha),
    MSI_FIELD(ms_optim_options, lr_decay),
    MSI_FIELD(ms_optim_options, initial_accumulator_value),
};

ms_status msi_optim_options_take(ms_optim_options *options, const ms_optim_options *o)
{
    ms_optim_options taken = *options;

    MS_TRY(msi_struct_take(&taken, o, "ms_optim_options", option_fields, MSI_COUNT(option_fields)));
    MS_TRY(check_values(&taken));
    *options = taken;
    return MS_OK;
}

ms_status msi_optim_options_give(ms_optim_options *out, const ms_optim_options *o)
{
    return msi_struct_fill(out, o, "ms_optim_options", option_fields, MSI_COUNT(option_fields));
}
