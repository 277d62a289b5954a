/* Normalisation of channels by the statistics of sets of planes, and its gradient. With xhat =
 * (x - mean) rstd and g = w dy:
 *   y = xhat w + b;  dw = sum of dy xhat;  db = sum of dy
 *   dx = rstd (g - mean(g) - xhat mean(g xhat)), the means over the set
 *   dx = rstd g for given statistics
 * Sums over a plane are REAL, in lanes; sums over planes are f64, in the order of samples and
 * channels. */
#include "lanes.h"
#include "table.h"

static int64_t n_sets(const msi_channel_norm_args *a)
{
    return a->groups == 0 ? a->channels : a->batch * a->groups;
}

static int64_t set_of(const msi_channel_norm_args *a, int64_t n, int64_t c)
{
    return a->groups == 0 ? c : n * a->groups + c / (a->channels / a->groups);
}

/* The planes of a set: `planes` of them, `step` apart from `first`. */
typedef struct plane_set {
    int64_t first, step, planes;
} plane_set;

static plane_set planes_of(const msi_channel_norm_args *a, int64_t set)
{
    const int64_t of_group = a->groups == 0 ? 0 : a->channels / a->groups;

    return a->groups == 0 ? (plane_set){set, a->channels, a->batch}
                          : (plane_set){set * of_group, 1, of_group};
}

#define BODY "channel_norm_body.h"
#include "each_register.h"
