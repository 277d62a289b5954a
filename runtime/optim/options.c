/* Options of parameter groups: names and bounds, with torch.optim's names and messages.
 * (torch.optim accepts infinite ones, which lead to NaN.) */
#include "options.h"

#include <math.h>

enum { FLAG, FINITE, NOT_NEGATIVE, BELOW_1 };

/* By MSI_OPTION_*, the first for struct_size. */
static const msi_field FIELDS[] = {MSI_FIELD(ms_optim_options, struct_size),
#define OPTION_FIELD(field, name, torch, values) MSI_FIELD(ms_optim_options, field),
                                   MSI_OPTIM_OPTIONS(OPTION_FIELD)
#undef OPTION_FIELD
};

static const struct {
    const char *name, *torch;
    int32_t values;
} OPTIONS[] = {{NULL, NULL, FLAG},
#define OPTION_ROW(field, name, torch, values) {name, torch, values},
               MSI_OPTIM_OPTIONS(OPTION_ROW)
#undef OPTION_ROW
};

const char *msi_option_name(int32_t option)
{
    return OPTIONS[option].name;
}

double msi_option_value(const ms_optim_options *o, int32_t option)
{
    const char *field = (const char *)o + FIELDS[option].begin;

    return OPTIONS[option].values == FLAG ? *(const bool *)field : *(const double *)field;
}

/* Also checks options this kind does not use. */
static ms_status check_values(const ms_optim_options *o)
{
    for (int32_t i = 1; i < MSI_COUNT(OPTIONS); i++) {
        const double value = msi_option_value(o, i);

        if (!isfinite(value) || (OPTIONS[i].values != FINITE && value < 0) ||
            (OPTIONS[i].values == BELOW_1 && value >= 1)) {
            return MS_FAIL(MS_VALUE_ERROR, "Invalid %s: %g", OPTIONS[i].torch, value);
        }
    }
    if (o->nesterov && (o->momentum <= 0 || o->dampening != 0)) {
        return MS_FAIL(MS_VALUE_ERROR, "Nesterov momentum requires a momentum and zero dampening");
    }
    return MS_OK;
}

ms_status msi_optim_options_take(ms_optim_options *options, const ms_optim_options *o)
{
    ms_optim_options taken = *options;

    MS_TRY(msi_struct_take(&taken, o, "ms_optim_options", FIELDS, MSI_COUNT(FIELDS)));
    MS_TRY(check_values(&taken));
    *options = taken;
    return MS_OK;
}

ms_status msi_optim_options_give(ms_optim_options *out, const ms_optim_options *o)
{
    return msi_struct_fill(out, o, "ms_optim_options", FIELDS, MSI_COUNT(FIELDS));
}
