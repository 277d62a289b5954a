/* Options of parameter groups. */
#ifndef MSI_OPTIM_OPTIONS_H
#define MSI_OPTIM_OPTIONS_H

#include "base.h"
#include "moonshard/optim.h"

enum { MSI_RULE_OPTIONS = 7 }; /* the most that one rule has */

/* Every option, in the struct's order: field, name, torch.optim's name in errors, values. */
#define MSI_OPTIM_OPTIONS(X)                                                                       \
    X(lr, "lr", "learning rate", NOT_NEGATIVE)                                                     \
    X(momentum, "momentum", "momentum value", NOT_NEGATIVE)                                        \
    X(dampening, "dampening", "dampening value", FINITE)                                           \
    X(weight_decay, "weight_decay", "weight_decay value", NOT_NEGATIVE)                            \
    X(beta1, "betas[1]", "beta parameter at index 0", BELOW_1)                                     \
    X(beta2, "betas[2]", "beta parameter at index 1", BELOW_1)                                     \
    X(eps, "eps", "epsilon value", NOT_NEGATIVE)                                                   \
    X(nesterov, "nesterov", NULL, FLAG)                                                            \
    X(maximize, "maximize", NULL, FLAG)                                                            \
    X(amsgrad, "amsgrad", NULL, FLAG)                                                              \
    X(centered, "centered", NULL, FLAG)                                                            \
    X(alpha, "alpha", "alpha value", NOT_NEGATIVE)                                                 \
    X(lr_decay, "lr_decay", "lr_decay value", NOT_NEGATIVE)                                        \
    X(initial_accumulator_value, "initial_accumulator_value", "initial_accumulator_value value",   \
      NOT_NEGATIVE)

enum {
    MSI_OPTION_NONE,
#define MSI_OPTION_ENUM(field, name, torch, values) MSI_OPTION_##field,
    MSI_OPTIM_OPTIONS(MSI_OPTION_ENUM)
#undef MSI_OPTION_ENUM
};

/* "lr"; NULL for MSI_OPTION_NONE. */
const char *msi_option_name(int32_t option);
/* Its value; of a flag 0 or 1. */
double msi_option_value(const ms_optim_options *o, int32_t option);
/* Write a caller's options over `*options`. Fields missing in an older caller's struct are kept; on
 * failure all are. */
ms_status msi_optim_options_take(ms_optim_options *options, const ms_optim_options *o);
/* Write `o`, as much as the caller's struct_size allows. */
ms_status msi_optim_options_give(ms_optim_options *out, const ms_optim_options *o);

#endif
