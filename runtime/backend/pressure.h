/* When a host's garbage collector should run: what it will let go of still holds memory.
 *
 * A collector sees a ref of a few bytes, and not the megabytes behind it: a tensor, or the graph of
 * a forward that nobody differentiated. So what is held is compared with what was held when it ran
 * last, all of which was needed. It runs again when as much has come as the larger of 256 MiB and
 * the activations it left; when less memory than that is left, before what came exceeds what is
 * left, however many ranks share it. A step that holds the same again therefore never asks for it,
 * whatever its size, and what is leaked is no more than what is needed. */
#ifndef MSI_PRESSURE_H
#define MSI_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct msi_pressure {
    int64_t base;      /* bytes held when the collector had run; at first 0 */
    int64_t allowance; /* it runs again when more than that has come */
    int64_t look_at;   /* bytes held below which nothing needs to be looked at */
} msi_pressure;

/* The collector has left `held` bytes, `activations` of them in activations. */
void msi_pressure_begin(msi_pressure *p, int64_t held, int64_t activations);
/* Should it run, now that `held` bytes are held (more than look_at) and `left` can still be taken?
 * Where not, sets look_at on. */
bool msi_pressure_due(msi_pressure *p, int64_t held, int64_t left);

#endif
