/* Body of channel_norm.c for one dtype. */

#include "row_lanes.h"

/* Mean of x over a set, or of its squared distances from `mean`. */
static REAL LOCAL(set_mean)(const msi_channel_norm_args *a, plane_set s, REAL mean, bool squares)
{
    double sum = 0;

    for (int64_t p = 0; p < s.planes; p++) {
        const T *x = (const T *)a->x + (s.first + p * s.step) * a->plane;

        sum += (double)(squares ? LOCAL(squares64)(x, a->plane, mean) : LOCAL(sum64)(x, a->plane));
    }
    return (REAL)(sum / (double)(s.planes * a->plane));
}

void MSI_NAME(LOCAL(channel_stats))(const void *args)
{
    const msi_channel_norm_args *a = args;
    const int64_t sets = n_sets(a);
    REAL *mean = a->y, *variance = mean + sets;

    for (int64_t i = 0; i < sets; i++) {
        mean[i] = LOCAL(set_mean)(a, planes_of(a, i), 0, false);
        variance[i] = LOCAL(set_mean)(a, planes_of(a, i), mean[i], true);
    }
}

/* Mean of plane (n, c) and the reciprocal of its deviation. */
static REAL LOCAL(deviation)(const msi_channel_norm_args *a, int64_t n, int64_t c, REAL *mean)
{
    const int64_t set = set_of(a, n, c);
    const REAL *stats = a->stats;

    *mean = stats[set];
    return 1 / SQRT1(stats[n_sets(a) + set] + (REAL)a->eps);
}

static REAL LOCAL(factor)(const void *w, int64_t c, REAL otherwise)
{
    return w != NULL ? LOCAL(get)((const T *)w + c) : otherwise;
}

void MSI_NAME(LOCAL(channel_norm))(const void *args)
{
    const msi_channel_norm_args *a = args;

    for (int64_t i = 0; i < a->batch * a->channels; i++) {
        const int64_t c = i % a->channels;
        const T *x = (const T *)a->x + i * a->plane;
        T *y = (T *)a->y + i * a->plane;
        REAL mean;
        const REAL rstd = LOCAL(deviation)(a, i / a->channels, c, &mean);
        const REAL w = LOCAL(factor)(a->w, c, 1), b = LOCAL(factor)(a->b, c, 0);

        for (int64_t j = 0; j < a->plane; j += WIDTH) {
            const int64_t left = a->plane - j;

            STORE_N(y + j, (LOAD_N(x + j, left) - mean) * rstd * w + b, left);
        }
    }
}

/* For each plane the sums of dy and of dy xhat. */
static void LOCAL(plane_gradients)(const msi_channel_norm_args *a)
{
    for (int64_t i = 0; i < a->batch * a->channels; i++) {
        const T *x = (const T *)a->x + i * a->plane, *dy = (const T *)a->dy + i * a->plane;
        REAL mean;
        const REAL rstd = LOCAL(deviation)(a, i / a->channels, i % a->channels, &mean);
        V sum[2 * LOCAL(PARTS)] = {SPLAT(0)}, dot[2 * LOCAL(PARTS)] = {SPLAT(0)};

        for (int64_t j = 0; j < a->plane; j += 2 * LANES) {
#pragma GCC unroll 16
            for (int u = 0; u < 2 * LOCAL(PARTS); u++) {
                const int64_t at = j + WIDTH * u, left = a->plane - at;

                if (left > 0) {
                    const V g = LOAD_N(dy + at, left);
                    const V xhat = (LOAD_N(x + at, left) - mean) * rstd;

                    sum[u] += g;
                    dot[u] += LOCAL(keep)(g * xhat, left, 0);
                }
            }
        }
        a->work[2 * i] = (double)LOCAL(fold2)(sum);
        a->work[2 * i + 1] = (double)LOCAL(fold2)(dot);
    }
}

/* dw (k = 1) or db (k = 0): sums over the samples. */
static void LOCAL(over_samples)(const msi_channel_norm_args *a, REAL *to, int k, bool accumulate)
{
    for (int64_t c = 0; to != NULL && c < a->channels; c++) {
        double sum = 0;

        for (int64_t n = 0; n < a->batch; n++) {
            sum += a->work[2 * (n * a->channels + c) + k];
        }
        to[c] = (REAL)(sum + (accumulate ? (double)to[c] : 0));
    }
}

static void LOCAL(plane_dx)(const msi_channel_norm_args *a, int64_t i, REAL mean_g, REAL mean_gx)
{
    const T *x = (const T *)a->x + i * a->plane, *dy = (const T *)a->dy + i * a->plane;
    T *dx = (T *)a->dx + i * a->plane;
    REAL mean;
    const REAL rstd = LOCAL(deviation)(a, i / a->channels, i % a->channels, &mean);
    const REAL w = LOCAL(factor)(a->w, i % a->channels, 1);

    for (int64_t j = 0; j < a->plane; j += WIDTH) {
        const int64_t left = a->plane - j;
        const V xhat = (LOAD_N(x + j, left) - mean) * rstd;
        const V v = (LOAD_N(dy + j, left) * w - mean_g - xhat * mean_gx) * rstd;

        STORE_N(dx + j, a->dx_accumulate ? v + LOAD_N(dx + j, left) : v, left);
    }
}

void MSI_NAME(LOCAL(channel_norm_grad))(const void *args)
{
    const msi_channel_norm_args *a = args;

    LOCAL(plane_gradients)(a);
    LOCAL(over_samples)(a, a->dw, 1, a->dw_accumulate);
    LOCAL(over_samples)(a, a->db, 0, a->db_accumulate);
    for (int64_t set = 0; a->dx != NULL && set < n_sets(a); set++) {
        const plane_set s = planes_of(a, set);
        const double n = (double)(s.planes * a->plane);
        double g = 0, gx = 0;

        for (int64_t p = 0; a->of_input && p < s.planes; p++) {
            const int64_t i = s.first + p * s.step;
            const double w = (double)LOCAL(factor)(a->w, i % a->channels, 1);

            g += w * a->work[2 * i];
            gx += w * a->work[2 * i + 1];
        }
        for (int64_t p = 0; p < s.planes; p++) {
            LOCAL(plane_dx)(a, s.first + p * s.step, (REAL)(g / n), (REAL)(gx / n));
        }
    }
}
