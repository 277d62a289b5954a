/* Indices that sort lines: stable, NaN is the largest number, 0 and -0 are equal. Keys (order.h)
 * are converted to unsigned integers and radix-sorted from the lowest byte; short lines use
 * insertion sort. For the first `take` elements of a longer line, the key of the last one is found
 * first, from the highest byte down, and only these elements are sorted. */
#include "loop.h"
#include "order.h"
#include "table.h"

enum { SORT_INSERTION = 32, SORT_BYTES = 256 };

typedef struct sort_pair {
    uint64_t key;
    int64_t place; /* from 1 */
} sort_pair;

_Static_assert(sizeof(sort_pair) == 16, "work holds two pairs an element");

static void sort_by_insertion(sort_pair *p, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        const sort_pair x = p[i];
        int64_t j = i;

        for (; j > 0 && p[j - 1].key > x.key; j--) {
            p[j] = p[j - 1];
        }
        p[j] = x;
    }
}

/* Sort by the lowest `bytes` bytes. @return the sorted pairs: `p` or `other` */
static sort_pair *sort_by_bytes(sort_pair *p, sort_pair *other, int64_t n, int32_t bytes)
{
    if (n <= SORT_INSERTION) {
        sort_by_insertion(p, n);
        return p;
    }
    for (int32_t b = 0; b < bytes; b++) {
        int64_t start[SORT_BYTES] = {0}, sum = 0;
        sort_pair *swap = p;

        for (int64_t i = 0; i < n; i++) {
            start[p[i].key >> (8 * b) & 0xff]++;
        }
        if (start[p[0].key >> (8 * b) & 0xff] == n) {
            continue; /* all equal */
        }
        for (int32_t v = 0; v < SORT_BYTES; v++) {
            const int64_t count = start[v];

            start[v] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; i++) {
            other[start[p[i].key >> (8 * b) & 0xff]++] = p[i];
        }
        p = other;
        other = swap;
    }
    return p;
}

/* Move the `take` lowest of n pairs to the front, keeping their order; among equal ones the first.
 */
static void sort_select(sort_pair *p, int64_t n, int64_t take, int32_t bytes)
{
    uint64_t last = 0, mask = 0; /* known upper bits of the last taken key */
    int64_t rest = take, kept = 0;

    for (int32_t b = bytes - 1; b >= 0; b--) {
        int64_t count[SORT_BYTES] = {0};
        uint64_t v = 0;

        for (int64_t i = 0; i < n; i++) {
            count[p[i].key >> (8 * b) & 0xff] += (p[i].key & mask) == last;
        }
        for (; rest > count[v]; v++) {
            rest -= count[v];
        }
        last |= v << (8 * b);
        mask |= (uint64_t)0xff << (8 * b);
    }
    for (int64_t i = 0; i < n; i++) {
        if (p[i].key < last || (p[i].key == last && rest > 0)) {
            rest -= p[i].key == last;
            p[kept++] = p[i];
        }
    }
}

#define ARGSORT(dtype, name)                                                                       \
    void MSI_NAME(argsort_##name)(const void *args)                                                \
    {                                                                                              \
        const msi_argsort_args *a = args;                                                          \
        const int64_t lines = loop_count(&a->lines, a->lines.ndim);                                \
        const int32_t bytes = sizeof(c_##dtype);                                                   \
        const uint64_t sign = (uint64_t)1 << (8 * bytes - 1);                                      \
        const uint64_t mask = sign | (sign - 1), turn = a->descending ? mask : 0;                  \
                                                                                                   \
        for (int64_t line = 0; line < lines; line++) {                                             \
            const c_##dtype *in =                                                                  \
                (const c_##dtype *)a->in + loop_offset(&a->lines, 1, a->lines.ndim, line);         \
            int64_t *out = a->out + loop_offset(&a->lines, 0, a->lines.ndim, line);                \
            sort_pair *pairs = a->work;                                                            \
                                                                                                   \
            for (int64_t i = 0; i < a->n; i++) {                                                   \
                pairs[i].key = ((SORT_KEY_##dtype(in[i * a->in_step]) ^ sign) & mask) ^ turn;      \
                pairs[i].place = i + 1;                                                            \
            }                                                                                      \
            if (a->take > 0 && a->take < a->n) {                                                   \
                sort_select(pairs, a->n, a->take, bytes);                                          \
            }                                                                                      \
            pairs = sort_by_bytes(pairs, pairs + a->n, a->take, bytes);                            \
            for (int64_t i = 0; i < a->take; i++) {                                                \
                out[i * a->out_step] = pairs[i].place;                                             \
            }                                                                                      \
        }                                                                                          \
    }

/* As wide as the element: an f32's upper half is ordered like a bf16. */
#define SORT_KEY_f32(x) ((uint64_t)ORDER_SAME_f32(x, 0))
#define SORT_KEY_f64(x) ((uint64_t)ORDER_SAME_f64(x, 0))
#define SORT_KEY_bf16(x) ((uint64_t)(ORDER_SAME_bf16(x, 0) >> 16))
#define SORT_KEY_f16(x) ((uint64_t)order_16(x))
#define SORT_KEY_i64(x) ((uint64_t)(x))
#define SORT_KEY_i32(x) ((uint64_t)(x))
#define SORT_KEY_u8(x) ((uint64_t)(x) ^ 0x80)
#define SORT_KEY_truth(x) ((uint64_t)((x) != 0))

/* ORDER_SAME_f16() in 16 bits. */
static inline int16_t order_16(uint16_t h)
{
    const int16_t bits = (int16_t)(h == 0x8000 ? 0 : h);

    return (int16_t)((h & 0x7fff) > 0x7c00 ? 0x7fff : bits ^ ((bits >> 15) & 0x7fff));
}

ARGSORT(f32, f32)
ARGSORT(f64, f64)
ARGSORT(bf16, bf16)
ARGSORT(f16, f16)
ARGSORT(i64, i64)
ARGSORT(i32, i32)
ARGSORT(u8, u8)
ARGSORT(truth, bool)
