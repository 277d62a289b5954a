/* The norm of gradients of which ranks have parts. */
#ifndef MSI_FSDP_NORM_MESSAGES_H
#define MSI_FSDP_NORM_MESSAGES_H

#include "norm.h"
#include "schedule.h"

/* True if any of it is sent. */
bool msi_norm_is_sent(const ms_fsdp_tree *tree, const msi_listed_param *at);
/* Blocks of a parameter, on whatever rank; of one that is not sent 0 without a gradient. */
int64_t msi_norm_blocks_of(const ms_fsdp_tree *tree, const msi_listed_param *at);
/* The total over all ranks' gradients of the listed parameters, by the host. Collective. */
ms_status msi_norm_of_ranks(ms_fsdp_tree *tree, const msi_param_list *o, double order,
                            double *total);
/* True if the devices can exchange and fold the blocks. */
bool msi_norm_on_devices(const ms_fsdp_tree *tree, const msi_param_list *o, double order);
/* The same into `norm`, which has room for all blocks. Nothing waits for data. Collective. */
ms_status msi_norm_of_devices(ms_fsdp_tree *tree, const msi_param_list *o, double max_norm,
                              msi_norm *norm);

#endif
