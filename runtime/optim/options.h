/* Options of parameter groups. */
#ifndef MSI_OPTIM_OPTIONS_H
#define MSI_OPTIM_OPTIONS_H

#include "base.h"
#include "moonshard/optim.h"

/* MS_VALUE_ERROR for an unknown kind. */
ms_status msi_optim_check_kind(int32_t kind);
ms_optim_options msi_optim_defaults(int32_t kind);
/* "Adam"; number and names of states, as in torch.optim's state dicts. */
const char *msi_optim_kind_name(int32_t kind);
int32_t msi_optim_kind_states(int32_t kind);
const char *msi_optim_kind_state(int32_t kind, int32_t state);
/* A state that only some options need. */
bool msi_optim_state_is_optional(int32_t kind, int32_t state);
/* Does a step with these options need the state? */
bool msi_optim_uses_state(int32_t kind, const ms_optim_options *o, int32_t state);
/* Write a caller's options over `*options`. Fields missing in an older caller's struct are kept; on
 * failure all are. */
ms_status msi_optim_options_take(ms_optim_options *options, const ms_optim_options *o);
/* Write `o`, as much as the caller's struct_size allows. */
ms_status msi_optim_options_give(ms_optim_options *out, const ms_optim_options *o);

#endif
