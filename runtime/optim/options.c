/* Options of parameter groups: defaults and bounds, with torch.optim's names and messages.
 * (torch.optim accepts infinite ones, which lead to NaN.) */
#include "options.h"

#include <math.h>
#include <string.h>

ms_optim_options msi_optim_defaults(int32_t kind)
{
    return (ms_optim_options){
        .struct_size = sizeof(ms_optim_options),
        .lr = 1e-3,
        .weight_decay = kind == MS_OPTIM_ADAMW ? 1e-2 : 0,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
    };
}

ms_status msi_optim_check_kind(int32_t kind)
{
    if (kind < MS_OPTIM_SGD || kind > MS_OPTIM_ADAMW) {
        return MS_FAIL(MS_VALUE_ERROR, "optimizer kind %d is none, expected 0 to %d", kind,
                       MS_OPTIM_ADAMW);
    }
    return MS_OK;
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
    if (!isfinite(o->dampening)) {
        return MS_FAIL(MS_VALUE_ERROR, "Invalid dampening value: %g", o->dampening);
    }
    if (o->nesterov && (o->momentum <= 0 || o->dampening != 0)) {
        return MS_FAIL(MS_VALUE_ERROR, "Nesterov momentum requires a momentum and zero dampening");
    }
    return MS_OK;
}

static const msi_field option_fields[] = {
    MSI_FIELD(ms_optim_options, struct_size),  MSI_FIELD(ms_optim_options, lr),
    MSI_FIELD(ms_optim_options, momentum),     MSI_FIELD(ms_optim_options, dampening),
    MSI_FIELD(ms_optim_options, weight_decay), MSI_FIELD(ms_optim_options, beta1),
    MSI_FIELD(ms_optim_options, beta2),        MSI_FIELD(ms_optim_options, eps),
    MSI_FIELD(ms_optim_options, nesterov),     MSI_FIELD(ms_optim_options, maximize),
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
