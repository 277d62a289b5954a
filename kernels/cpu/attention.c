/* Scaled dot-product attention and its gradient, in tiles: the (T, S) scores are never stored.
 *
 * Between the products every score is exponentiated and rounded, so both functions are specialised:
 * arguments are at most 0 (slightly above, by rounding), and NaN is the machine's own. */
#include "lanes.h"
#include "philox.h"
#include "table.h"

#include "backend.h"

#include <float.h>
#include <math.h>

/* exp(x) for x <= about 0. NaN is unchanged. Below about half of 2^-126 the result is 0: n is -127
 * there, whose bits are 0. */
LANES_INLINE f32_part exp_neg_f32w(f32_part x)
{
    const float round = 0x1.8p23f; /* as in exp_f32w(), with the whole exponent in one factor */
    f32_part p;

    x = max_f32w(splat_f32w(-88), x);
    f32_part shifted = x * 0x1.715476p0f + round;
    f32_part n = shifted - round;
    f32_part r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;

    LANES_POLY(p, r, 0x1.6d1606p-10f, 0x1.12106cp-7f, 0x1.555516p-5f, 0x1.5554d8p-3f, 0.5f);
    p = (p * r * r + r) + 1.0f;
    return p * (f32_part)(((u32_part)shifted + 127) << 23); /* n is in the low bits of shifted */
}

static const float lowest_f32 = -FLT_MAX;
static const double lowest_f64 = -DBL_MAX;

LANES_INLINE f64_part exp_neg_f64w(f64_part x)
{
    return exp_f64w(x);
}

/* Round to nearest even. The low 16 bits of a NaN from arithmetic are 0, so rounding keeps it NaN.
 */
LANES_INLINE u16_part narrow_score(f32_part v)
{
    u32_part bits = (u32_part)v;

    return narrow_u32((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

LANES_INLINE void store_score_bf16(uint16_t *p, f32_part v)
{
    u16_part h = narrow_score(v);

    memcpy(p, &h, sizeof(h));
}

LANES_INLINE void store_score_f16(uint16_t *p, f32_part v)
{
    store_f16w(p, v);
}

LANES_INLINE void store_score_f32(float *p, f32_part v)
{
    store_f32w(p, v);
}

LANES_INLINE void store_score_f64(double *p, f64_part v)
{
    store_f64w(p, v);
}

/* Padded length of a row of n scores: whole vectors, so that loops need no tail. */
static int64_t padded(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* Allocate n elements from `work`, on a cache line. */
static void *next_part(char **work, int64_t n, int64_t size)
{
    char *at = *work;

    *work += (n * size + 63) & ~(int64_t)63;
    return at;
}

/* Buffers in `work`, and the dense operands of the current head. TILE is the dtype of products
 * (a->tile_dtype), REAL that of sums. */
typedef struct tiles {
    const void *q, *k, *v, *dout; /* TILE (T, D), (S, D), (S, D), (T, D) */
    void *scores, *dp;            /* REAL (nq, padded(nk)) */
    void *p, *ds;                 /* TILE (nq, padded(nk)) */
    void *acc;                    /* forward: REAL (nq, D) */
    void *dq, *dk, *dv, *delta;   /* REAL (T, D), (nk, D), (nk, D), (T) */
    void *dk_sum, *dv_sum;        /* query heads that share a key head: REAL (S, D) */
    void *max, *rsum;             /* REAL (T) of the current head */
    const void *mask;             /* of the current head; may be NULL */
    void *dmask;
    uint64_t key, sample; /* of dropout */
    int64_t element;      /* index in the sample of the current head's first probability */
} tiles;

static tiles lay_out(const msi_attention_args *a, int64_t tile, int64_t real, bool gradient)
{
    const int64_t rows = a->q_len < MSI_ATTENTION_ROWS ? a->q_len : MSI_ATTENTION_ROWS;
    const int64_t cols = a->kv_len < MSI_ATTENTION_COLS ? a->kv_len : MSI_ATTENTION_COLS;
    const int64_t depth = a->head_dim;
    char *work = a->work;
    tiles w = {0};

    w.q = next_part(&work, a->q_len * depth, tile);
    w.k = next_part(&work, a->kv_len * depth, tile);
    w.v = next_part(&work, a->kv_len * depth, tile);
    w.scores = next_part(&work, rows * padded(cols), real);
    w.p = next_part(&work, rows * padded(cols), tile);
    if (gradient) {
        w.dout = next_part(&work, a->q_len * depth, tile);
        w.dp = next_part(&work, rows * padded(cols), real);
        w.ds = next_part(&work, rows * padded(cols), tile);
        w.dq = next_part(&work, a->q_len * depth, real);
        w.dk = next_part(&work, cols * depth, real);
        w.dv = next_part(&work, cols * depth, real);
        w.delta = next_part(&work, a->q_len, real);
        if (a->kv_heads < a->heads) {
            w.dk_sum = next_part(&work, a->kv_len * depth, real);
            w.dv_sum = next_part(&work, a->kv_len * depth, real);
        }
    } else {
        w.acc = next_part(&work, rows * depth, real);
    }
    return w;
}

/* Number of keys in [k0, k0 + nk) that query t attends to. */
static int64_t visible(const msi_attention_args *a, int64_t t, int64_t k0, int64_t nk)
{
    int64_t n = a->causal ? t + 1 - k0 : nk;

    return n < 0 ? 0 : n < nk ? n : nk;
}

/* -- dropout ----------------------------------------------------------------------------------- */

/* Words for the keys of a tile, starting at a multiple of 4. */
enum { DROP_WORDS = MSI_ATTENTION_COLS + PHILOX_WORDS };

/* A probability is kept if its word is at least this; as in dropout_body.h. */
static uint64_t drop_threshold(const msi_attention_args *a)
{
    return (uint64_t)ceil(a->dropout_p * 0x1p32);
}

/* Factor of the kept probabilities. */
static double drop_factor(const msi_attention_args *a)
{
    return a->dropout_p < 1 ? 1 / (1 - a->dropout_p) : 0;
}

/* Words for the probabilities of query t and n keys from k0. @return the first */
static const uint32_t *drop_words(const msi_attention_args *a, const tiles *w,
                                  uint32_t words[DROP_WORDS], int64_t t, int64_t k0, int64_t n)
{
    const int64_t first = w->element + t * a->kv_len + k0, skipped = first % 4;

    for (int64_t i = 0; i < skipped + n; i += PHILOX_WORDS) {
        philox(words + i, (uint64_t)((first + i) / 4), w->sample, w->key);
    }
    return words + skipped;
}

/* The rows of a head are far apart in memory, and hardware prefetchers do not detect them: prefetch
 * a row this many rows ahead. */
enum { ROWS_AHEAD = 8 };

LANES_INLINE void expect_read(const void *row, int64_t nbytes)
{
    for (int64_t i = 0; i < nbytes; i += 64) {
        __builtin_prefetch((const char *)row + i, 0);
    }
}

LANES_INLINE void expect_write(const void *row, int64_t nbytes)
{
    for (int64_t i = 0; i < nbytes; i += 64) {
        __builtin_prefetch((const char *)row + i, 1);
    }
}

#define BODY "attention_body.h"
#define OF_REAL(name) LANES_CAT(name, REAL_NAME)
#include "each_register.h"
