/* Options of parameter groups. */
#ifndef MSI_OPTIM_OPTIONS_H
#define MSI_OPTIM_OPTIONS_H

#include "base.h"
#include "moonshard/optim.h"

/* Copy a caller's options (NULL: defaults) after checking them; `*out` is untouched on failure. */
ms_status msi_optim_options_take(ms_optim_options *out, int32_t kind, const ms_optim_options *o);
/* Write `o` over as much as the caller's struct says it has. */
ms_status msi_optim_options_give(ms_optim_options *out, const ms_optim_options *o);

#endif
