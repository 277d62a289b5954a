/* Drawing a token from logits. */
#include "array.h"
#include "moonshard/data.h"
#include "random_stream.h"
#include "tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x < y) - (x > y);
}

static int64_t largest(const double *values, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++) {
        best = values[i] > values[best] ? i : best;
    }
    return best;
}

/* The k-th largest value (from 1), by sorting a copy. */
static ms_status kth_largest(double *value, const double *values, int64_t n, int64_t k)
{
    double *sorted;

    MS_TRY(msi_new_array(&sorted, n, "logits to rank"));
    memcpy(sorted, values, (size_t)n * sizeof(*sorted));
    qsort(sorted, (size_t)n, sizeof(*sorted), descending);
    *value = sorted[k - 1];
    free(sorted);
    return MS_OK;
}

/* exp((value - top) / temperature), with limits: 0 for -inf, and for finite values if top is inf.
 */
static double weight(double value, double top, double temperature)
{
    const double distance = value - top;

    return value == top ? 1 : isinf(distance) ? 0 : exp(distance / temperature);
}

/* Of equal values at the limit of the top k, the first ones count. */
static ms_status draw_from(int64_t *token, double *values, int64_t n, double temperature,
                           int64_t top_k, double u)
{
    double top = values[largest(values, n)], edge = -INFINITY, total = 0, sum = 0;
    int64_t at_edge = n;

    if (top_k > 0 && top_k < n) {
        MS_TRY(kth_largest(&edge, values, n, top_k));
        at_edge = top_k;
        for (int64_t i = 0; i < n; i++) {
            at_edge -= values[i] > edge;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        bool in = values[i] > edge || (values[i] == edge && at_edge-- > 0);

        values[i] = in ? weight(values[i], top, temperature) : 0;
        total += values[i];
    }
    for (int64_t i = 0; i < n; i++) {
        sum += values[i];
        if (values[i] > 0) {
            *token = i; /* the last possible one, if rounding puts u * total above the sum */
        }
        if (sum > u * total) {
            break;
        }
    }
    return MS_OK;
}

ms_status ms_data_sample(int64_t *token, const ms_tensor *logits, double temperature, int32_t top_k,
                         uint64_t seed, int64_t draw)
{
    int64_t n = msi_view_numel(&logits->v);
    double *values;
    ms_status status = MS_OK;

    *token = 0;
    if (n < 1 || !(temperature >= 0) || top_k < 0) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "sampling from %lld logits at temperature %g, top k %d; expected at least "
                       "one logit and neither below 0",
                       (long long)n, temperature, (int)top_k);
    }
    MS_TRY(msi_new_array(&values, n, "logits"));
    MS_TRY_GOTO(ms_tensor_to_doubles(logits, values, n), done);
    for (int64_t i = 0; i < n; i++) {
        if (isnan(values[i])) {
            status = MS_FAIL(MS_VALUE_ERROR, "logit %lld is NaN", (long long)i);
            goto done;
        }
    }
    *token = largest(values, n);
    if (values[*token] == -INFINITY) {
        status = MS_FAIL(MS_VALUE_ERROR,
                         "all %lld logits are -inf, expected a token that can be "
                         "drawn",
                         (long long)n);
        goto done;
    }
    if (temperature == 0) {
        goto done;
    }
    const uint64_t bits = msi_stream(seed, (uint64_t)draw);

    status = draw_from(token, values, n, temperature, top_k, (double)(bits >> 11) * 0x1p-53);
done:
    free(values);
    return status;
}
