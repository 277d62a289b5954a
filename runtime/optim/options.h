/* Options of parameter groups. */
#ifndef MSI_OPTIM_OPTIONS_H
#define MSI_OPTIM_OPTIONS_H

#include "base.h"
#include "moonshard/optim.h"

/* MS_VALUE_ERROR when there is no such optimizer. */
ms_status msi_optim_check_kind(int32_t kind);
ms_optim_options msi_optim_defaults(int32_t kind);
/* Write a caller's options over those in `*options`, which keep what an older caller's struct does
 * not have, and all of it on failure. */
ms_status msi_optim_options_take(ms_optim_options *options, const ms_optim_options *o);
/* Write `o` over as much as the caller's struct says it has. */
ms_status msi_optim_options_give(ms_optim_options *out, const ms_optim_options *o);

#endif
