/* The optimizers, a row each: defaults, options and states with torch.optim's names, and the
 * arguments of the kernel that updates a parameter. */
#include "optim.h"

static void sgd_arguments(msi_update_args *args, const msi_update *u)
{
    const ms_optim_options *o = u->options;

    args->sgd = (msi_sgd_args){.n = u->n,
                               .p = u->values,
                               .g = u->gradient,
                               .buf = u->state[0],
                               .lr = o->lr,
                               .momentum = o->momentum,
                               .dampening = o->dampening,
                               .weight_decay = o->weight_decay,
                               .nesterov = o->nesterov,
                               .maximize = o->maximize,
                               .first_step = u->fresh};
}

static void adam_arguments(msi_update_args *args, const msi_update *u)
{
    const ms_optim_options *o = u->options;

    args->adam = (msi_adam_args){.n = u->n,
                                 .p = u->values,
                                 .g = u->gradient,
                                 .m = u->state[0],
                                 .v = u->state[1],
                                 .lr = o->lr,
                                 .beta1 = o->beta1,
                                 .beta2 = o->beta2,
                                 .eps = o->eps,
                                 .weight_decay = o->weight_decay,
                                 .correction1 = u->correction1,
                                 .correction2 = u->correction2,
                                 .maximize = o->maximize,
                                 .most = u->state[2]};
}

static void adamw_arguments(msi_update_args *args, const msi_update *u)
{
    adam_arguments(args, u);
    args->adam.decoupled = true;
}

/* The largest gradient takes the place of the average of squares. */
static void adamax_arguments(msi_update_args *args, const msi_update *u)
{
    adam_arguments(args, u);
    args->adam.v = NULL;
    args->adam.most = u->state[1];
}

static void rmsprop_arguments(msi_update_args *args, const msi_update *u)
{
    const ms_optim_options *o = u->options;

    args->rmsprop = (msi_rmsprop_args){.n = u->n,
                                       .p = u->values,
                                       .g = u->gradient,
                                       .v = u->state[0],
                                       .buf = u->state[1],
                                       .mean = u->state[2],
                                       .lr = o->lr,
                                       .alpha = o->alpha,
                                       .eps = o->eps,
                                       .weight_decay = o->weight_decay,
                                       .momentum = o->momentum,
                                       .maximize = o->maximize};
}

static void adagrad_arguments(msi_update_args *args, const msi_update *u)
{
    const ms_optim_options *o = u->options;

    args->adagrad = (msi_adagrad_args){.n = u->n,
                                       .p = u->values,
                                       .g = u->gradient,
                                       .sum = u->state[0],
                                       .lr = o->lr / (1 + (double)(u->step - 1) * o->lr_decay),
                                       .eps = o->eps,
                                       .weight_decay = o->weight_decay,
                                       .maximize = o->maximize};
}

static void lion_arguments(msi_update_args *args, const msi_update *u)
{
    const ms_optim_options *o = u->options;

    args->lion = (msi_lion_args){.n = u->n,
                                 .p = u->values,
                                 .g = u->gradient,
                                 .m = u->state[0],
                                 .lr = o->lr,
                                 .beta1 = o->beta1,
                                 .beta2 = o->beta2,
                                 .weight_decay = o->weight_decay,
                                 .maximize = o->maximize};
}

#define OPTION(field) MSI_OPTION_##field
#define KERNEL(name) .op = #name, .kernel = MSI_K_##name
/* Of options that a row does not name, which every kind accepts. */
#define DEFAULTS(...)                                                                              \
    .defaults = {.struct_size = sizeof(ms_optim_options), .beta1 = 0.9, .alpha = 0.99, __VA_ARGS__}

static const msi_rule RULES[MS_OPTIM_COUNT] = {
    [MS_OPTIM_SGD] = {.name = "SGD",
                      DEFAULTS(.lr = 1e-3, .beta2 = 0.999, .eps = 1e-8),
                      .option = {OPTION(lr), OPTION(momentum), OPTION(dampening),
                                 OPTION(weight_decay), OPTION(nesterov), OPTION(maximize)},
                      .state = {{.name = "momentum_buffer",
                                 .needs = OPTION(momentum),
                                 .is_from_gradient = true}},
                      KERNEL(sgd),
                      .arguments = sgd_arguments},
    [MS_OPTIM_ADAM] = {.name = "Adam",
                       DEFAULTS(.lr = 1e-3, .beta2 = 0.999, .eps = 1e-8),
                       .option = {OPTION(lr), OPTION(beta1), OPTION(beta2), OPTION(eps),
                                  OPTION(weight_decay), OPTION(amsgrad), OPTION(maximize)},
                       .state = {{.name = "exp_avg"},
                                 {.name = "exp_avg_sq"},
                                 {.name = "max_exp_avg_sq", .needs = OPTION(amsgrad)}},
                       KERNEL(adam),
                       .arguments = adam_arguments},
    [MS_OPTIM_ADAMW] = {.name = "AdamW",
                        DEFAULTS(.lr = 1e-3, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2),
                        .option = {OPTION(lr), OPTION(beta1), OPTION(beta2), OPTION(eps),
                                   OPTION(weight_decay), OPTION(amsgrad), OPTION(maximize)},
                        .state = {{.name = "exp_avg"},
                                  {.name = "exp_avg_sq"},
                                  {.name = "max_exp_avg_sq", .needs = OPTION(amsgrad)}},
                        KERNEL(adam),
                        .arguments = adamw_arguments},
    [MS_OPTIM_RMSPROP] = {.name = "RMSprop",
                          DEFAULTS(.lr = 1e-2, .beta2 = 0.999, .eps = 1e-8),
                          .option = {OPTION(lr), OPTION(alpha), OPTION(eps), OPTION(weight_decay),
                                     OPTION(momentum), OPTION(centered), OPTION(maximize)},
                          .state = {{.name = "square_avg"},
                                    {.name = "momentum_buffer", .needs = OPTION(momentum)},
                                    {.name = "grad_avg", .needs = OPTION(centered)}},
                          KERNEL(rmsprop),
                          .arguments = rmsprop_arguments},
    [MS_OPTIM_ADAGRAD] = {.name = "Adagrad",
                          DEFAULTS(.lr = 1e-2, .beta2 = 0.999, .eps = 1e-10),
                          .option = {OPTION(lr), OPTION(lr_decay), OPTION(weight_decay),
                                     OPTION(initial_accumulator_value), OPTION(eps),
                                     OPTION(maximize)},
                          .state = {{.name = "sum", .first = OPTION(initial_accumulator_value)}},
                          KERNEL(adagrad),
                          .arguments = adagrad_arguments},
    [MS_OPTIM_LION] = {.name = "Lion",
                       DEFAULTS(.lr = 1e-4, .beta2 = 0.99, .eps = 1e-8),
                       .option = {OPTION(lr), OPTION(beta1), OPTION(beta2), OPTION(weight_decay),
                                  OPTION(maximize)},
                       .state = {{.name = "exp_avg"}},
                       KERNEL(lion),
                       .arguments = lion_arguments},
    [MS_OPTIM_ADAMAX] = {.name = "Adamax",
                         DEFAULTS(.lr = 2e-3, .beta2 = 0.999, .eps = 1e-8),
                         .option = {OPTION(lr), OPTION(beta1), OPTION(beta2), OPTION(eps),
                                    OPTION(weight_decay), OPTION(maximize)},
                         .state = {{.name = "exp_avg"}, {.name = "exp_inf"}},
                         KERNEL(adam),
                         .arguments = adamax_arguments},
};

ms_status msi_rule_find(const msi_rule **rule, int32_t kind)
{
    if (kind < 0 || kind >= MS_OPTIM_COUNT) {
        return MS_FAIL(MS_VALUE_ERROR, "unknown optimizer kind %d, expected 0 to %d", (int)kind,
                       MS_OPTIM_COUNT - 1);
    }
    *rule = &RULES[kind];
    return MS_OK;
}

int32_t msi_rule_n_states(const msi_rule *rule)
{
    int32_t n = 0;

    while (n < MSI_OPTIM_MAX_STATES && rule->state[n].name != NULL) {
        n++;
    }
    return n;
}

bool msi_rule_uses_state(const msi_rule *rule, const ms_optim_options *o, int32_t state)
{
    const int32_t needs = rule->state[state].needs;

    return needs == MSI_OPTION_NONE || msi_option_value(o, needs) != 0;
}

ms_status ms_optim_rule_get(ms_optim_rule *out, int32_t kind)
{
    const msi_rule *rule = NULL;

    MS_TRY(msi_rule_find(&rule, kind));
    *out = (ms_optim_rule){.name = rule->name};
    _Static_assert(sizeof(out->option) / sizeof(out->option[0]) == MSI_RULE_OPTIONS &&
                       sizeof(out->state) / sizeof(out->state[0]) == MSI_OPTIM_MAX_STATES,
                   "a rule's names have room");
    for (int32_t i = 0; i < MSI_RULE_OPTIONS; i++) {
        out->option[i] = msi_option_name(rule->option[i]);
    }
    for (int32_t s = 0; s < MSI_OPTIM_MAX_STATES; s++) {
        out->state[s] = rule->state[s].name;
        out->needs[s] = msi_option_name(rule->state[s].needs);
        out->first[s] = msi_option_name(rule->state[s].first);
    }
    return MS_OK;
}

ms_status ms_optim_options_init(ms_optim_options *o, uint32_t struct_size, int32_t kind)
{
    const msi_rule *rule = NULL;

    MS_TRY(msi_rule_find(&rule, kind));
    msi_struct_give(o, struct_size, &rule->defaults, sizeof(rule->defaults));
    return MS_OK;
}
