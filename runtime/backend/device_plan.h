/* A device that computes nothing: the memory of a run is planned by running its script. Kernels,
 * products and copies do nothing, and nobody writes its pages, so that a step takes the time of its
 * host code, and the context's heap counts what the CPU would hold. Values that the host reads are
 * arbitrary. */
#ifndef MSI_DEVICE_PLAN_H
#define MSI_DEVICE_PLAN_H

#include "device.h"

extern const msi_device_ops msi_plan_device_ops;

/* True if the context's device is this one. */
bool msi_device_plans(const ms_context *ctx);

#endif
