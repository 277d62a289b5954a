/* A device that computes nothing: the memory of a run is planned by running its script. Kernels,
 * products and copies do nothing, and nobody writes its pages, so that a step takes the time of its
 * host code, and the context's heap counts what the CPU would hold. Values that the host reads are
 * arbitrary. */
#ifndef MSI_DEVICE_PLAN_H
#define MSI_DEVICE_PLAN_H

#include "device.h"

#include "moonshard/plan.h"

extern const msi_device_ops msi_plan_device_ops;

/* True if the context's device is this one. */
bool msi_device_plans(const ms_context *ctx);

/* Add an event to the device's trace, if the context has this device and ms_plan_start() was
 * called. The name is copied; the live bytes are set here. */
void msi_plan_event(const ms_context *ctx, const ms_plan_event *event);

#endif
