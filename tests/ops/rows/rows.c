/* Rows of operators along a dimension, losses, sums and dropout. */
#include "philox_oracle.h"
#include "row.h"

/* The size of the last dimension. */
static int64_t width_of(const form *f)
{
    return f->shape[f->ndim - 1];
}

static bool has_rows(call *c)
{
    c->n_in = 1;
    return is_float(&c->in[0]) && c->in[0].ndim > 0;
}

static int32_t loss_dtype(int32_t dtype)
{
    return dtype == MS_DTYPE_F64 ? MS_DTYPE_F64 : MS_DTYPE_F32;
}

/* -- layer_norm -------------------------------------------------------------------------------- */

static bool plan_layer_norm(call *c)
{
    if (!has_rows(c)) {
        return false;
    }
    c->n_in = 1 + below(c->rng, 3);
    c->in[1] = c->in[2] =
        (form){.dtype = c->in[0].dtype, .ndim = 1, .shape = {width_of(&c->in[0])}};
    c->p[0] = 0.01;
    return true;
}

RUN(layer_norm,
    ms_op_layer_norm(out, in[0], c->n_in > 1 ? in[1] : NULL, c->n_in > 2 ? in[2] : NULL, c->p[0]))

static void oracle_layer_norm(const call *c, const array *const *in, array *out)
{
    const form *x = &in[0]->form;
    const int64_t n = width_of(x);
    const real unit = compute_unit_of(x->dtype);
    real mean = 0, variance = 0, most = 0;

    set_form(out, x->dtype, x->ndim, x->shape);
    for (int64_t i = 0; i < out->n; i++) {
        const real *row = in[0]->v + i / n * n;

        if (i % n == 0) {
            mean = variance = most = 0;
            for (int64_t j = 0; j < n; j++) {
                mean += row[j] / (real)n;
                most = fmaxl(most, fabsl(row[j]));
            }
            for (int64_t j = 0; j < n; j++) {
                variance += (row[j] - mean) * (row[j] - mean) / (real)n;
            }
        }
        const real deviation = sqrtl(variance + (real)c->p[0]);
        const real w = c->n_in > 1 ? in[1]->v[i % n] : 1, b = c->n_in > 2 ? in[2]->v[i % n] : 0;
        const real hat = (row[i % n] - mean) / deviation;

        out->v[i] = hat * w + b;
        out->slack[i] =
            unit * (fabsl(w) * (1 + fabsl(hat)) * (16 + 16 * most / deviation) + 4 * fabsl(b)) +
            0x1p-1000L;
        if (most * most * (real)n > largest_of(x->dtype) || !isfinite(most) ||
            fabsl(hat * w) > largest_of(x->dtype)) {
            out->slack[i] = INFINITY;
        }
    }
}

/* -- channel_stats, channel_norm --------------------------------------------------------------- */

/* i[0] groups, or 0; i[1] statistics of x, or given ones. */
static bool plan_channels(call *c)
{
    const form *x = &c->in[0];

    c->n_in = 1;
    if (!is_float(x) || x->ndim < 2 || numel_of(x) == 0) {
        return false;
    }
    c->i[0] = below(c->rng, 2) ? 0 : x->shape[1] % 2 == 0 && below(c->rng, 2) ? 2 : 1;
    return true;
}

RUN(channel_stats, ms_op_channel_stats(out, in[0], c->i[0]))

/* Of one set of elements. `size`: of the largest. */
typedef struct moments {
    real n, mean, variance, size;
} moments;

/* The set of element i: its channel, or its sample and group. */
static int64_t set_of(const call *c, const array *x, int64_t i)
{
    const int64_t *shape = x->form.shape, plane = x->n / (shape[0] * shape[1]), at = i / plane;

    return c->i[0] == 0 ? at % shape[1] : at / (shape[1] / c->i[0]);
}

static const moments *moments_of_sets(const call *c, const array *x)
{
    static moments sets[MAX_NUMEL];

    memset(sets, 0, sizeof(*sets) * (size_t)x->n);
    for (int32_t pass = 0; pass < 3; pass++) {
        for (int64_t i = 0; i < x->n; i++) {
            moments *set = &sets[set_of(c, x, i)];

            if (pass == 0) {
                set->n++;
                set->size = fmaxl(set->size, fabsl(x->v[i]));
            } else if (pass == 1) {
                set->mean += x->v[i] / set->n;
            } else {
                set->variance += (x->v[i] - set->mean) * (x->v[i] - set->mean) / set->n;
            }
        }
    }
    return sets;
}

static void oracle_channel_stats(const call *c, const array *const *in, array *out)
{
    const int64_t *x = in[0]->form.shape, sets = c->i[0] == 0 ? x[1] : x[0] * c->i[0];
    const real unit = compute_unit_of(in[0]->form.dtype);
    const moments *set = moments_of_sets(c, in[0]);

    set_form(out, loss_dtype(in[0]->form.dtype), 2, (const int64_t[]){2, sets});
    for (int64_t s = 0; s < sets; s++) {
        out->v[s] = set[s].mean;
        out->v[sets + s] = set[s].variance;
        out->slack[s] = 16 * unit * set[s].size;
        out->slack[sets + s] = 64 * unit * set[s].size * set[s].size;
    }
}

static bool plan_channel_norm(call *c)
{
    if (!plan_channels(c)) {
        return false;
    }
    c->n_in = 1 + below(c->rng, 3);
    c->in[1] = c->in[2] = (form){.dtype = c->in[0].dtype, .ndim = 1, .shape = {c->in[0].shape[1]}};
    c->i[1] = below(c->rng, 2);
    c->p[0] = 0.01;
    return true;
}

/* Statistics of x, without memory if an operand has none; given ones are all 0.25. */
static ms_status stats_for(ms_tensor **out, ms_tensor *const *in, const call *c)
{
    ms_tensor *x = in[0], *meta = NULL, *stats;
    ms_status status = MS_OK;

    for (int32_t k = 0; k < c->n_in && meta == NULL; k++) {
        ms_tensor_info info, first;

        ms_tensor_describe(in[k], &info);
        ms_tensor_describe(in[0], &first);
        if (info.storage_kind == MS_STORAGE_NONE) {
            assert_ok(ms_tensor_meta(&meta, first.dtype, first.ndim, first.shape));
            x = meta;
        }
    }
    status = ms_op_channel_stats(&stats, x, c->i[0]);
    if (status == MS_OK && !c->i[1]) {
        status = ms_op_affine(out, stats, 0, 0.25);
        ms_tensor_free(stats);
    } else {
        *out = stats;
    }
    ms_tensor_free(meta);
    return status;
}

static ms_status run_channel_norm(ms_tensor **out, ms_tensor *const *in, const call *c)
{
    ms_tensor *stats;
    ms_status status = stats_for(&stats, in, c);

    if (status == MS_OK) {
        status = ms_op_channel_norm(out, in[0], stats, c->n_in > 1 ? in[1] : NULL,
                                    c->n_in > 2 ? in[2] : NULL, c->i[0], c->p[0], c->i[1]);
    }
    ms_tensor_free(stats);
    return status;
}

static void oracle_channel_norm(const call *c, const array *const *in, array *out)
{
    const array *x = in[0];
    const int64_t plane = x->n / (x->form.shape[0] * x->form.shape[1]);
    const real unit = compute_unit_of(x->form.dtype);
    const moments *sets = moments_of_sets(c, x);

    set_form(out, x->form.dtype, x->form.ndim, x->form.shape);
    for (int64_t i = 0; i < out->n; i++) {
        const moments *set = &sets[set_of(c, x, i)];
        const int64_t channel = i / plane % x->form.shape[1];
        const real w = c->n_in > 1 ? in[1]->v[channel] : 1, b = c->n_in > 2 ? in[2]->v[channel] : 0;
        const real mean = c->i[1] ? set->mean : 0.25L;
        const real deviation = sqrtl((c->i[1] ? set->variance : 0.25L) + (real)c->p[0]);
        const real hat = (x->v[i] - mean) / deviation;

        out->v[i] = hat * w + b;
        out->slack[i] =
            unit * (fabsl(w) * (1 + fabsl(hat)) * (32 + 32 * set->size / deviation) + 4 * fabsl(b));
    }
}

/* -- softmax ----------------------------------------------------------------------------------- */

/* Largest of a row and log of the sum of exponentials relative to it. */
static real log_sum(const real *row, int64_t n, real *most)
{
    real sum = 0;

    *most = -INFINITY;
    for (int64_t j = 0; j < n; j++) {
        *most = fmaxl(*most, row[j]);
    }
    for (int64_t j = 0; j < n; j++) {
        sum += expl(row[j] - *most);
    }
    return logl(sum);
}

RUN(log_softmax, ms_op_log_softmax(out, in[0]))

static void oracle_log_softmax(const call *c, const array *const *in, array *out)
{
    const form *x = &in[0]->form;
    const int64_t n = width_of(x);
    real most = 0, log = 0;

    (void)c;
    set_form(out, x->dtype, x->ndim, x->shape);
    for (int64_t i = 0; i < out->n; i++) {
        if (i % n == 0) {
            log = log_sum(in[0]->v + i, n, &most);
        }
        const real d = in[0]->v[i] - most;

        out->v[i] = d - log;
        out->slack[i] = 16 * compute_unit_of(x->dtype) * (1 + fabsl(log));
        if (isfinite(d)) {
            out->slack[i] += 2 * compute_unit_of(x->dtype) * fabsl(d);
        }
    }
}

RUN(softmax, ms_op_softmax(out, in[0]))

static void oracle_softmax(const call *c, const array *const *in, array *out)
{
    oracle_log_softmax(c, in, out);
    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = expl(out->v[i]); /* as exact as its argument */
        out->slack[i] *= 2 * out->v[i];
        if (!isinf(in[0]->v[i])) {
            out->slack[i] += c->in[0].dtype == MS_DTYPE_F64 ? 0x1p-1060L : 0x1p-140L;
        }
    }
}

static bool plan_cross_entropy(call *c)
{
    if (!has_rows(c) || width_of(&c->in[0]) == 0) {
        return false;
    }
    c->n_in = 2;
    c->in[1] = c->in[0];
    c->in[1].ndim--;
    c->in[1].dtype = MS_DTYPE_I64;
    c->in[1].draw = DRAW_IDS;
    c->in[1].limit = width_of(&c->in[0]);
    c->i[0] = below(c->rng, 2) ? -100 : 0;
    c->i[1] = below(c->rng, 2);
    return true;
}

RUN(cross_entropy, ms_op_cross_entropy(out, in[0], in[1], c->i[0], (int32_t)c->i[1]))

static void oracle_cross_entropy(const call *c, const array *const *in, array *out)
{
    const int64_t n = width_of(&in[0]->form);
    const real unit = compute_unit_of(in[0]->form.dtype);
    real sum = 0, slack = 0, counted = 0;

    for (int64_t i = 0; i < in[1]->n; i++) {
        const int64_t target = (int64_t)in[1]->v[i];

        if (target != c->i[0]) {
            real most, log = log_sum(in[0]->v + i * n, n, &most);

            sum += most - in[0]->v[i * n + target] + log;
            slack += 16 * unit * (1 + fabsl(log));
            if (isfinite(sum)) {
                slack += 4 * unit * fabsl(sum);
            }
            counted++;
        }
    }
    const real weight = c->i[1] == MS_REDUCTION_MEAN ? 1 / counted : 1;

    set_form(out, loss_dtype(in[0]->form.dtype), 0, NULL);
    out->v[0] = counted > 0 ? sum * weight : c->i[1] == MS_REDUCTION_MEAN ? (real)NAN : 0;
    const bool too_large = isfinite(sum) && fabsl(sum) >= largest_of(MS_DTYPE_F64); /* to divide */

    out->slack[0] = counted == 0 ? 0 : too_large ? (real)INFINITY : slack * weight;
}

RUN(nll_loss, ms_op_nll_loss(out, in[0], in[1], c->i[0]))

static void oracle_nll_loss(const call *c, const array *const *in, array *out)
{
    const int64_t n = width_of(&in[0]->form);

    set_form(out, in[0]->form.dtype, in[1]->form.ndim, in[1]->form.shape);
    for (int64_t i = 0; i < out->n; i++) {
        const int64_t target = (int64_t)in[1]->v[i];

        out->v[i] = target == c->i[0] ? 0 : -in[0]->v[i * n + target];
    }
}

static bool plan_mse_loss(call *c)
{
    c->n_in = 2;
    c->in[1] = c->in[0];
    c->i[0] = below(c->rng, 2);
    return is_float(&c->in[0]);
}

RUN(mse_loss, ms_op_mse_loss(out, in[0], in[1], (int32_t)c->i[0]))

static void oracle_mse_loss(const call *c, const array *const *in, array *out)
{
    const real unit = compute_unit_of(in[0]->form.dtype);
    real sum = 0, size = 0;

    for (int64_t i = 0; i < in[0]->n; i++) {
        const real d = in[0]->v[i] - in[1]->v[i];

        sum += d * d;
        size = fmaxl(size, d * d);
    }
    const real weight = c->i[0] == MS_REDUCTION_MEAN ? 1 / (real)in[0]->n : 1;

    set_form(out, loss_dtype(in[0]->form.dtype), 0, NULL);
    out->v[0] = in[0]->n == 0 && c->i[0] == MS_REDUCTION_MEAN ? (real)NAN : sum * weight;
    out->slack[0] = sum < largest_of(out->form.dtype) ? 48 * unit * sum * weight
                    : isfinite(sum)                   ? (real)INFINITY
                                                      : 0;
}

/* -- embedding --------------------------------------------------------------------------------- */

static bool plan_embedding(call *c)
{
    c->n_in = 2;
    c->in[1] = (form){.dtype = MS_DTYPE_I64,
                      .ndim = below(c->rng, 3),
                      .shape = {below(c->rng, c->size ? 20 : 3), 1 + below(c->rng, 2)},
                      .draw = DRAW_IDS,
                      .limit = c->in[0].shape[0]};
    return is_float(&c->in[0]) && c->in[0].ndim == 2 && c->in[0].shape[0] > 0;
}

RUN(embedding, ms_op_embedding(out, in[0], in[1]))

static void oracle_embedding(const call *c, const array *const *in, array *out)
{
    const int64_t n = width_of(&in[0]->form);
    form y = in[1]->form;

    (void)c;
    y.shape[y.ndim++] = n;
    set_form(out, in[0]->form.dtype, y.ndim, y.shape);
    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = in[0]->v[(int64_t)in[1]->v[i / n] * n + i % n];
    }
}

static void begin_embedding(call *c)
{
    c->in[0].ndim = 2;
    c->in[0].shape[0] = 1 + below(c->rng, c->size ? 40 : 6);
    c->in[0].shape[1] = below(c->rng, c->size ? 131 : 6);
}

/* -- dropout ----------------------------------------------------------------------------------- */

static bool plan_dropout(call *c)
{
    static const double rates[] = {0, 0.25, 0.5, 1};

    c->p[0] = rates[below(c->rng, 4)];
    c->i[0] = below(c->rng, 100);
    c->i[1] = below(c->rng, 5);
    return has_rows(c);
}

enum { SEED = 11 };

static ms_status run_dropout(ms_tensor **out, ms_tensor *const *in, const call *c)
{
    ms_seed(SEED);
    return ms_op_dropout(out, in[0], c->p[0], (uint64_t)c->i[0], c->i[1]);
}

static void oracle_dropout(const call *c, const array *const *in, array *out)
{
    const form *x = &in[0]->form;
    const uint64_t key = oracle_key(SEED, (uint64_t)c->i[0], (uint64_t)c->i[1]);

    set_form(out, x->dtype, x->ndim, x->shape);
    const int64_t each = out->n > 0 ? out->n / x->shape[0] : 0;

    for (int64_t i = 0; i < out->n; i++) {
        const uint64_t sample = (uint64_t)(i / each), e = (uint64_t)(i % each);
        const uint32_t word = oracle_word(e / 4, sample, key, (int)(e % 4));

        out->v[i] = word < c->p[0] * 0x1p32 || c->p[0] == 1 ? 0 : in[0]->v[i] / (1 - (real)c->p[0]);
        out->slack[i] = 2 * compute_unit_of(x->dtype) * fabsl(out->v[i]) + 0x1p-1000L;
    }
}

/* -- sum, mean --------------------------------------------------------------------------------- */

static bool plan_sum(call *c)
{
    c->n_in = 1;
    c->i[0] = c->in[0].ndim > 0 ? below(c->rng, 1 << c->in[0].ndim) : 0;
    c->i[1] = below(c->rng, 2);
    return true;
}

static bool plan_mean(call *c)
{
    return plan_sum(c) && is_float(&c->in[0]);
}

RUN(sum, ms_op_sum(out, in[0], (uint32_t)c->i[0], c->i[1]))

RUN(mean, ms_op_mean(out, in[0], (uint32_t)c->i[0], c->i[1]))

/* The result's form. @return x's, with reduced sizes of 1 */
static form reduced_form(const call *c, const array *x, array *out, int32_t dtype)
{
    const uint32_t dims = c->i[0] != 0 ? (uint32_t)c->i[0] : ~0u;
    form kept = x->form, shown = {0};

    for (int32_t d = 0; d < kept.ndim; d++) {
        kept.shape[d] = dims >> d & 1 ? 1 : kept.shape[d];
        if (c->i[1] || !(dims >> d & 1)) {
            shown.shape[shown.ndim++] = kept.shape[d];
        }
    }
    set_form(out, dtype, shown.ndim, shown.shape);
    return kept;
}

static int32_t sum_dtype(const array *x)
{
    return is_float(&x->form) ? x->form.dtype : MS_DTYPE_I64;
}

static void reduce(const call *c, const array *x, array *out, bool mean)
{
    const form kept = reduced_form(c, x, out, sum_dtype(x));
    real size[MAX_NUMEL] = {0};

    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = 0;
    }
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t at = broadcast_at(&kept, x->form.ndim, x->form.shape, i);

        out->v[at] += x->v[i];
        size[at] += isfinite(x->v[i]) ? fabsl(x->v[i]) : 0;
    }
    const real count = out->n > 0 ? (real)x->n / (real)out->n : 1;

    for (int64_t i = 0; i < out->n; i++) {
        out->slack[i] = size[i] < largest_of(x->form.dtype)
                            ? 48 * compute_unit_of(x->form.dtype) * size[i] + 0x1p-1000L
                            : INFINITY;
        if (mean) {
            out->v[i] /= count;
            out->slack[i] /= count;
        }
    }
}

static void oracle_sum(const call *c, const array *const *in, array *out)
{
    reduce(c, in[0], out, false);
}

static void oracle_mean(const call *c, const array *const *in, array *out)
{
    reduce(c, in[0], out, true);
}

/* -- amax, amin, argmax, argmin, prod ---------------------------------------------------------- */

static bool plan_amax(call *c)
{
    return plan_sum(c) && numel_of(&c->in[0]) > 0;
}

static bool plan_argmax(call *c)
{
    c->i[1] = below(c->rng, 2);
    c->i[0] = below(c->rng, 3) == 0 || c->in[0].ndim == 0 ? 0 : 1 << below(c->rng, c->in[0].ndim);
    c->n_in = 1;
    return numel_of(&c->in[0]) > 0;
}

RUN(amax, ms_op_amax(out, in[0], (uint32_t)c->i[0], c->i[1]))
RUN(amin, ms_op_amin(out, in[0], (uint32_t)c->i[0], c->i[1]))
RUN(argmax, ms_op_argmax(out, in[0], (uint32_t)c->i[0], c->i[1]))
RUN(argmin, ms_op_argmin(out, in[0], (uint32_t)c->i[0], c->i[1]))
RUN(prod, ms_op_prod(out, in[0], (uint32_t)c->i[0], c->i[1]))

/* The extreme elements and the number of elements before each along the reduced dimensions. */
static void extremes(const call *c, const array *x, array *out, real sign, bool positions)
{
    static int64_t seen[MAX_NUMEL], where[MAX_NUMEL];
    static real best[MAX_NUMEL];
    const form kept = reduced_form(c, x, out, positions ? MS_DTYPE_I64 : x->form.dtype);

    memset(seen, 0, sizeof(seen));
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t at = broadcast_at(&kept, x->form.ndim, x->form.shape, i);
        const real v = sign * x->v[i];

        if (seen[at] == 0 || v > best[at] || (isnan(v) && !isnan(best[at]))) {
            best[at] = v;
            where[at] = seen[at];
        }
        seen[at]++;
    }
    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = positions ? (real)(where[i] + 1) : sign * best[i];
        out->slack[i] = out->v[i] == 0 ? 0x1p-1000L : 0; /* either zero */
    }
}

#define EXTREMES(name, sign, positions)                                                            \
    static void oracle_##name(const call *c, const array *const *in, array *out)                   \
    {                                                                                              \
        extremes(c, in[0], out, sign, positions);                                                  \
    }
EXTREMES(amax, 1, false)
EXTREMES(amin, -1, false)
EXTREMES(argmax, 1, true)
EXTREMES(argmin, -1, true)

/* Without elements that are nearly equal. */
static bool smooth_amax(const call *c, const array *const *in)
{
    const array *x = in[0];

    (void)c;
    for (int64_t i = 0; i < x->n; i++) {
        for (int64_t j = 0; j < i; j++) {
            if (fabsl(x->v[i] - x->v[j]) < 0.01L) {
                return false;
            }
        }
    }
    return true;
}

static void oracle_prod(const call *c, const array *const *in, array *out)
{
    static real least[MAX_NUMEL], most[MAX_NUMEL], count[MAX_NUMEL];
    static uint64_t whole[MAX_NUMEL];
    const array *x = in[0];
    const form kept = reduced_form(c, x, out, sum_dtype(x));

    for (int64_t i = 0; i < out->n; i++) {
        out->v[i] = least[i] = most[i] = 1;
        whole[i] = 1;
        count[i] = 0;
    }
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t at = broadcast_at(&kept, x->form.ndim, x->form.shape, i);

        out->v[at] *= x->v[i];
        whole[at] *= is_float(&x->form) ? 0 : (uint64_t)(int64_t)x->v[i];
        least[at] = out->v[at] != 0 ? fminl(least[at], fabsl(out->v[at])) : least[at];
        most[at] = isfinite(out->v[at]) ? fmaxl(most[at], fabsl(out->v[at])) : most[at];
        count[at]++;
    }
    for (int64_t i = 0; i < out->n; i++) {
        const bool fits = least[i] > 0x1p-1000L && most[i] < 0x1p1000L; /* also on the way */

        out->v[i] = is_float(&x->form) ? out->v[i] : (real)(int64_t)whole[i];
        out->slack[i] = fits ? 0x1p-52L * count[i] * fabsl(out->v[i]) : (real)INFINITY;
        out->slack[i] = isnan(out->slack[i]) ? 0 : out->slack[i];
        if (!is_float(&x->form)) {
            out->slack[i] = 0;
        }
    }
}

/* Products of more numbers of up to 2 may overflow on the way. */
static bool smooth_prod(const call *c, const array *const *in)
{
    (void)c;
    return in[0]->n <= 400;
}

/* -- cumsum ------------------------------------------------------------------------------------ */

static bool plan_cumsum(call *c)
{
    c->n_in = 1;
    c->i[0] = c->in[0].ndim > 0 ? below(c->rng, c->in[0].ndim) : 0;
    return c->in[0].ndim > 0;
}

RUN(cumsum, ms_op_cumsum(out, in[0], (int32_t)c->i[0]))

static void oracle_cumsum(const call *c, const array *const *in, array *out)
{
    const form *x = &in[0]->form;
    static real size[MAX_NUMEL];
    int64_t inner = 1;

    for (int32_t d = (int32_t)c->i[0] + 1; d < x->ndim; d++) {
        inner *= x->shape[d];
    }
    set_form(out, is_float(x) ? x->dtype : MS_DTYPE_I64, x->ndim, x->shape);
    for (int64_t i = 0; i < out->n; i++) {
        const bool first = i / inner % x->shape[c->i[0]] == 0;
        const real before = first ? 0 : size[i - inner];

        out->v[i] = (first ? 0 : out->v[i - inner]) + in[0]->v[i];
        size[i] = before + (isfinite(in[0]->v[i]) ? fabsl(in[0]->v[i]) : 0);
        out->slack[i] = size[i] < largest_of(MS_DTYPE_F64)
                            ? 0x1p-50L * (real)x->shape[c->i[0]] * size[i] + 0x1p-1000L
                            : INFINITY;
    }
}

/* Rows of nearly one value have no slope that differences see. */
static bool smooth_layer_norm(const call *c, const array *const *in)
{
    const int64_t n = width_of(&in[0]->form);

    for (int64_t i = 0; i < in[0]->n; i += n) {
        real low = INFINITY, high = -INFINITY;

        for (int64_t j = 0; j < n; j++) {
            low = fminl(low, in[0]->v[i + j]);
            high = fmaxl(high, in[0]->v[i + j]);
        }
        if (high - low < 0.1L) {
            return false;
        }
    }
    return true;
}

const op_row reduction_rows[] = {
    OP(layer_norm, plan_layer_norm, .smooth = smooth_layer_norm),
    OP(channel_stats, plan_channels, .flags = ROW_FINITE | ROW_CONSTANT),
    OP(channel_norm, plan_channel_norm, .flags = ROW_FINITE, .grad_error = 64),
    OP(log_softmax, has_rows),
    OP(softmax, has_rows),
    OP(cross_entropy, plan_cross_entropy),
    OP(mse_loss, plan_mse_loss),
    OP(nll_loss, plan_cross_entropy),
    OP(embedding, plan_embedding, .begin = begin_embedding),
    OP(dropout, plan_dropout),
    OP(sum, plan_sum),
    OP(mean, plan_mean),
    OP(amax, plan_amax, .smooth = smooth_amax),
    OP(amin, plan_amax, .smooth = smooth_amax),
    OP(argmax, plan_argmax),
    OP(argmin, plan_argmax),
    OP(prod, plan_sum, .smooth = smooth_prod),
    OP(cumsum, plan_cumsum),
    {0},
};
