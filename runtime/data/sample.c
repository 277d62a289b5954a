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

/* exp((value - top) / temperature), with limits: 0 for -inf, and for finite values if top is inf.
 */
static double weight(double value, double top, double temperature)
{
    const double distance = value - top;

    return value == top ? 1 : isinf(distance) ? 0 : exp(distance / temperature);
}

/* How many of the largest values are kept. */
static int64_t n_kept(const double *sorted, int64_t n, const ms_sampling *how)
{
    int64_t k = how->top_k > 0 && how->top_k < n ? how->top_k : n, kept = 0;
    double total = 0, sum = 0;

    if (how->top_p >= 1) {
        return k;
    }
    for (int64_t i = 0; i < k; i++) {
        total += weight(sorted[i], sorted[0], how->temperature);
    }
    do {
        sum += weight(sorted[kept++], sorted[0], how->temperature);
    } while (kept < k && sum < how->top_p * total);
    return kept;
}

/* The least value that is kept, and how many of its equals are. */
static ms_status limit(double *edge, int64_t *at_edge, const double *values, int64_t n,
                       const ms_sampling *how)
{
    double *sorted;

    *edge = -INFINITY;
    *at_edge = n;
    if ((how->top_k == 0 || how->top_k >= n) && how->top_p >= 1) {
        return MS_OK;
    }
    MS_TRY(msi_new_array(&sorted, n, "logits to rank"));
    memcpy(sorted, values, (size_t)n * sizeof(*sorted));
    qsort(sorted, (size_t)n, sizeof(*sorted), descending);
    *at_edge = n_kept(sorted, n, how);
    *edge = sorted[*at_edge - 1];
    for (int64_t i = 0; sorted[i] > *edge; i++) {
        --*at_edge;
    }
    free(sorted);
    return MS_OK;
}

static ms_status draw_from(int64_t *token, double *values, int64_t n, const ms_sampling *how,
                           double u)
{
    const double top = values[largest(values, n)];
    double edge, total = 0, sum = 0;
    int64_t at_edge;

    MS_TRY(limit(&edge, &at_edge, values, n, how));
    for (int64_t i = 0; i < n; i++) {
        const bool in = values[i] > edge || (values[i] == edge && at_edge-- > 0);
        const double w = in ? weight(values[i], top, how->temperature) : 0;

        values[i] = w >= how->min_p ? w : 0; /* the most likely one has weight 1 */
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

static ms_status penalize(double *values, int64_t n, const ms_sampling *how)
{
    bool *done;

    if (how->n_seen == 0 || how->repetition_penalty == 1) {
        return MS_OK;
    }
    MS_TRY(msi_new_array(&done, n, "marks of tokens"));
    memset(done, 0, (size_t)n * sizeof(*done));
    for (int64_t i = 0; i < how->n_seen; i++) {
        const int64_t id = how->seen[i];

        if (id < 0 || id >= n) {
            free(done);
            return MS_FAIL(MS_INDEX_ERROR, "seen token %lld is %lld, expected 0 to %lld",
                           (long long)i, (long long)id, (long long)n - 1);
        }
        if (!done[id]) {
            done[id] = true;
            values[id] = values[id] < 0 ? values[id] * how->repetition_penalty
                                        : values[id] / how->repetition_penalty;
        }
    }
    free(done);
    return MS_OK;
}

static ms_status check(const ms_sampling *how, int64_t n)
{
    if (n < 1 || !(how->temperature >= 0) || how->top_k < 0) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "sampling from %lld logits at temperature %g, top k %d; expected at least "
                       "one logit and neither below 0",
                       (long long)n, how->temperature, (int)how->top_k);
    }
    if (!(how->top_p > 0 && how->top_p <= 1) || !(how->min_p >= 0 && how->min_p <= 1) ||
        !(how->repetition_penalty > 0 && isfinite(how->repetition_penalty))) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "sampling with top p %g, min p %g, repetition penalty %g; expected top p "
                       "above 0 and at most 1, min p from 0 to 1, a finite penalty above 0",
                       how->top_p, how->min_p, how->repetition_penalty);
    }
    return MS_OK;
}

static ms_status sample(int64_t *token, double *values, int64_t n, const ms_sampling *how,
                        uint64_t seed, int64_t draw)
{
    for (int64_t i = 0; i < n; i++) {
        if (isnan(values[i])) {
            return MS_FAIL(MS_VALUE_ERROR, "logit %lld is NaN", (long long)i);
        }
    }
    MS_TRY(penalize(values, n, how));
    *token = largest(values, n);
    if (values[*token] == -INFINITY) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "all %lld logits are -inf, expected a token that can be drawn",
                       (long long)n);
    }
    if (how->temperature == 0) {
        return MS_OK;
    }
    const uint64_t bits = msi_stream(seed, (uint64_t)draw);

    return draw_from(token, values, n, how, (double)(bits >> 11) * 0x1p-53);
}

ms_status ms_data_sample(int64_t *token, const ms_tensor *logits, const ms_sampling *how,
                         uint64_t seed, int64_t draw)
{
    const int64_t n = msi_view_numel(&logits->v);
    double *values;

    *token = 0;
    MS_TRY(check(how, n));
    MS_TRY(msi_new_array(&values, n, "logits"));
    ms_status status = ms_tensor_to_doubles(logits, values, n);

    if (status == MS_OK) {
        status = sample(token, values, n, how, seed, draw);
    }
    free(values);
    return status;
}
