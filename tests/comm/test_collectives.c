/* runtime/comm/collectives.c, shm.c and staging.c, against plain loops over all ranks' values. */
#include "rank_test.h"

#include "bytes.h"
#include "tensor.h"
#include "typed.h"

/* Element i of what rank q brings: a float that bf16 represents, so that conversions are exact. */
static float value_of(int32_t q, int64_t i)
{
    float x = (float)filler(31 + (uint64_t)q, i) * (i % 7 == 0 ? 4096.0f : 1.0f);
    uint32_t bits;

    memcpy(&bits, &x, 4);
    bits &= 0xffff0000u;
    memcpy(&x, &bits, 4);
    return x;
}

static int64_t whole_of(int32_t q, int64_t i)
{
    return (i * 2654435761 + q * 40503) % 1000003 - 500000;
}

/* -- elements, and the tree of a reduction written out ------------------------------------------
 */

static void put(void *data, int32_t dtype, int64_t at, int32_t q, int64_t i)
{
    typed t = {.dtype = dtype, .data = data};

    switch (dtype) {
    case MS_DTYPE_I64:
        ((int64_t *)data)[at] = whole_of(q, i);
        break;
    case MS_DTYPE_I32:
        ((int32_t *)data)[at] = (int32_t)whole_of(q, i);
        break;
    case MS_DTYPE_U8:
    case MS_DTYPE_BOOL:
        ((uint8_t *)data)[at] = (uint8_t)(whole_of(q, i) & (dtype == MS_DTYPE_BOOL ? 1 : 255));
        break;
    default:
        typed_set(&t, at, dtype == MS_DTYPE_F64 ? filler(77 + (uint64_t)q, i) : value_of(q, i));
    }
}

/* f32 for all but f64; an average over three may differ from it in the last bit. */
#define REDUCE(name, type, max, min)                                                               \
    static type name(const type *x, int32_t w, int32_t reduce)                                     \
    {                                                                                              \
        type sum = w == 1 ? x[0] : x[0] + x[1], most = x[0], least = x[0];                         \
                                                                                                   \
        for (int32_t q = 1; q < w; q++) {                                                          \
            most = max(most, x[q]);                                                                \
            least = min(least, x[q]);                                                              \
        }                                                                                          \
        sum = w == 3 ? sum + x[2] : w == 4 ? sum + (x[2] + x[3]) : sum;                            \
        return reduce == MS_REDUCE_SUM   ? sum                                                     \
               : reduce == MS_REDUCE_AVG ? sum * (1 / (type)w)                                     \
               : reduce == MS_REDUCE_MAX ? most                                                    \
                                         : least;                                                  \
    }

#define GREATER(a, b) ((a) > (b) ? (a) : (b))
#define LESSER(a, b) ((a) < (b) ? (a) : (b))

REDUCE(reduce_f32, float, fmaxf, fminf)
REDUCE(reduce_f64, double, fmax, fmin)
REDUCE(reduce_i64, int64_t, GREATER, LESSER)

static void expect_reduced(void *out, int32_t dtype, int64_t at, int32_t w, int64_t i,
                           int32_t reduce)
{
    typed t = {.dtype = dtype, .data = out};
    int64_t n[4] = {0};
    double d[4] = {0};
    float f[4] = {0};

    for (int32_t q = 0; q < w; q++) {
        n[q] = whole_of(q, i);
        d[q] = filler(77 + (uint64_t)q, i);
        f[q] = value_of(q, i);
    }
    if (dtype == MS_DTYPE_I64) {
        ((int64_t *)out)[at] = reduce_i64(n, w, reduce);
    } else {
        typed_set(&t, at,
                  dtype == MS_DTYPE_F64 ? reduce_f64(d, w, reduce) : reduce_f32(f, w, reduce));
    }
}

static bool same(void *got, void *expected, int32_t dtype, int64_t n, bool exact)
{
    const typed a = {.dtype = dtype, .data = got}, b = {.dtype = dtype, .data = expected};

    if (exact) {
        return memcmp(got, expected, (size_t)(n * ms_dtype_size(dtype))) == 0;
    }
    for (int64_t i = 0; i < n; i++) {
        const double x = typed_get(&a, i), y = typed_get(&b, i);

        if (!(fabs(x - y) <= 2 * typed_epsilon(dtype) * fabs(y))) {
            return false;
        }
    }
    return true;
}

/* -- one rank's run over all collectives ------------------------------------------------------- */

typedef struct buffers {
    void *in, *out, *expected;
    ms_tensor *in_tensor, *out_tensor;
} buffers;

static ms_status buffers_new(buffers *b, int32_t dtype, int64_t n_in, int64_t n_out)
{
    size_t size = (size_t)ms_dtype_size(dtype);

    b->in = calloc((size_t)n_in + 1, size);
    b->out = calloc((size_t)n_out + 1, size);
    b->expected = calloc((size_t)n_out + 1, size);
    EXPECT(b->in && b->out && b->expected);
    MS_TRY(ms_tensor_full(&b->in_tensor, dtype, 1, &n_in, 0));
    return ms_tensor_full(&b->out_tensor, dtype, 1, &n_out, 0);
}

static void buffers_write(const buffers *b)
{
    write_bytes(b->in_tensor, b->in);
    write_bytes(b->out_tensor, b->out);
}

static void buffers_free(buffers *b)
{
    ms_tensor_free(b->in_tensor);
    ms_tensor_free(b->out_tensor);
    free(b->in);
    free(b->out);
    free(b->expected);
}

static ms_status try_all_gather(ms_comm *c, int32_t dtype, int64_t n)
{
    int32_t w = ms_comm_size(c), rank = ms_comm_rank(c);
    buffers b;

    MS_TRY(buffers_new(&b, dtype, n, n * w));
    for (int64_t i = 0; i < n; i++) {
        put(b.in, dtype, i, rank, i);
        for (int32_t q = 0; q < w; q++) {
            put(b.expected, dtype, q * n + i, q, i);
        }
    }
    buffers_write(&b);
    MS_TRY(ms_comm_all_gather(c, b.out_tensor, b.in_tensor));
    read_bytes(b.out_tensor, b.out);
    EXPECT(same(b.out, b.expected, dtype, n * w, true));
    buffers_free(&b);
    return MS_OK;
}

static ms_status try_broadcast(ms_comm *c, int32_t dtype, int64_t n)
{
    int32_t w = ms_comm_size(c), rank = ms_comm_rank(c);

    for (int32_t root = 0; root < w; root++) {
        buffers b;

        MS_TRY(buffers_new(&b, dtype, 0, n));
        for (int64_t i = 0; i < n; i++) {
            put(b.out, dtype, i, rank, i);
            put(b.expected, dtype, i, root, i);
        }
        buffers_write(&b);
        MS_TRY(ms_comm_broadcast(c, b.out_tensor, root));
        read_bytes(b.out_tensor, b.out);
        EXPECT(same(b.out, b.expected, dtype, n, true));
        buffers_free(&b);
    }
    return MS_OK;
}

static ms_status try_all_reduce(ms_comm *c, int32_t dtype, int64_t n, int32_t reduce)
{
    int32_t w = ms_comm_size(c), rank = ms_comm_rank(c);
    buffers b;

    MS_TRY(buffers_new(&b, dtype, 0, n));
    for (int64_t i = 0; i < n; i++) {
        put(b.out, dtype, i, rank, i);
        expect_reduced(b.expected, dtype, i, w, i, reduce);
    }
    buffers_write(&b);
    MS_TRY(ms_comm_all_reduce(c, b.out_tensor, reduce));
    read_bytes(b.out_tensor, b.out);
    EXPECT(same(b.out, b.expected, dtype, n, reduce != MS_REDUCE_AVG || w != 3));
    buffers_free(&b);
    return MS_OK;
}

static ms_status try_reduce_scatter(ms_comm *c, int32_t dtype, int64_t n, int32_t reduce)
{
    int32_t w = ms_comm_size(c), rank = ms_comm_rank(c);
    buffers b;

    MS_TRY(buffers_new(&b, dtype, n * w, n));
    for (int64_t i = 0; i < n * w; i++) {
        put(b.in, dtype, i, rank, i);
    }
    for (int64_t i = 0; i < n; i++) {
        expect_reduced(b.expected, dtype, i, w, rank * n + i, reduce);
    }
    buffers_write(&b);
    MS_TRY(ms_comm_reduce_scatter(c, b.out_tensor, b.in_tensor, reduce));
    read_bytes(b.out_tensor, b.out);
    EXPECT(same(b.out, b.expected, dtype, n, reduce != MS_REDUCE_AVG || w != 3));
    buffers_free(&b);
    return MS_OK;
}

/* MS_LENGTHS=n: only the first n. */
static const int64_t lengths[] = {0, 5, 32768, 1, 130, 1000, 70001};

static int32_t n_lengths(void)
{
    return (int32_t)msi_switch_int("MS_LENGTHS", MSI_COUNT(lengths));
}

static ms_status try_moves(void *user, int32_t rank)
{
    ms_comm *world;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&world));
    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        for (int32_t i = 0; i < n_lengths(); i++) {
            MS_TRY(try_all_gather(world, dtype, lengths[i]));
            MS_TRY(try_broadcast(world, dtype, lengths[i]));
        }
    }
    return MS_OK;
}

static ms_status try_reductions(void *user, int32_t rank)
{
    static const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_I64};
    ms_comm *world;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&world));
    for (int32_t k = 0; k < MSI_COUNT(dtypes); k++) {
        for (int32_t reduce = MS_REDUCE_SUM; reduce <= MS_REDUCE_MIN; reduce++) {
            for (int32_t i = 0; i < n_lengths(); i++) {
                if (dtypes[k] == MS_DTYPE_I64 && reduce == MS_REDUCE_AVG) {
                    continue;
                }
                MS_TRY(try_all_reduce(world, dtypes[k], lengths[i], reduce));
                MS_TRY(try_reduce_scatter(world, dtypes[k], lengths[i], reduce));
            }
        }
    }
    return MS_OK;
}

static void test_comm_collectives__move_every_dtype(void **state)
{
    (void)state;
    for (int32_t w = 1; w <= 4; w++) {
        run_ranks(w, try_moves, NULL);
    }
}

static void test_comm_collectives__reduce_by_the_fixed_tree(void **state)
{
    (void)state;
    for (int32_t w = 1; w <= 4; w++) {
        run_ranks(w, try_reductions, NULL);
    }
}

/* -- in place, self, bytes, counts ------------------------------------------------------------- */

static ms_status gather_in_place(void *user, int32_t rank)
{
    enum { N = 1000 };
    int64_t n = N, all = 3 * N;
    float data[3 * N] = {0};
    ms_tensor *whole, *part;
    ms_comm *world;

    (void)user;
    MS_TRY(ms_comm_world(&world));
    for (int64_t i = 0; i < N; i++) {
        data[rank * N + i] = value_of(rank, i);
    }
    MS_TRY(ms_tensor_borrow(&whole, MS_DTYPE_F32, 1, &all, data));
    MS_TRY(ms_tensor_borrow(&part, MS_DTYPE_F32, 1, &n, data + rank * N));
    MS_TRY(ms_comm_all_gather(world, whole, part));
    for (int64_t i = 0; i < all; i++) {
        EXPECT(data[i] == value_of((int32_t)(i / N), i % N));
    }
    for (int64_t i = 0; i < all; i++) {
        data[i] = (float)(rank + 1); /* 1 + 2 + 3 = 6 */
    }
    MS_TRY(ms_comm_reduce_scatter(world, part, whole, MS_REDUCE_SUM));
    for (int64_t i = 0; i < all; i++) {
        EXPECT(data[i] == (i / N == rank ? 6 : (float)(rank + 1)));
    }
    ms_tensor_free(part);
    ms_tensor_free(whole);
    return MS_OK;
}

static void test_comm_collectives__work_on_a_part_of_their_own_output(void **state)
{
    (void)state;
    run_ranks(3, gather_in_place, NULL);
}

static ms_status gather_bytes(void *user, int32_t rank)
{
    char mine[4096 + 1], all[4 * sizeof(mine)];
    ms_comm *world, *self;

    (void)user;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_self(&self));
    int32_t w = ms_comm_size(world);

    EXPECT(ms_comm_size(self) == 1 && ms_comm_rank(self) == 0);
    for (int64_t n = 0; n <= (int64_t)sizeof(mine); n += 1365) {
        memset(mine, 'a' + rank, sizeof(mine));
        memset(all, 0, sizeof(all));
        MS_TRY(msi_comm_gather_bytes(world, "names", mine, n, all));
        for (int64_t i = 0; i < n * w; i++) {
            EXPECT(all[i] == 'a' + (char)(i / n));
        }
        EXPECT(all[n * w] == 0);
        MS_TRY(msi_comm_gather_bytes(self, "names", mine, n, all));
        for (int64_t i = 0; i < n; i++) {
            EXPECT(all[i] == 'a' + rank);
        }
    }
    return MS_OK;
}

static void test_comm_collectives__gather_host_bytes(void **state)
{
    (void)state;
    run_ranks(1, gather_bytes, NULL);
    run_ranks(4, gather_bytes, NULL);
}

static ms_status count_calls(void *user, int32_t rank)
{
    int64_t n = 2, counts[5];
    ms_tensor *t, *all;
    ms_comm *world;
    int32_t signal;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_tensor_full(&t, MS_DTYPE_F32, 1, &n, 1));
    n *= ms_comm_size(world);
    MS_TRY(ms_tensor_full(&all, MS_DTYPE_F32, 1, &n, 1));
    for (int32_t i = 0; i < 5; i++) {
        MS_TRY(i < 1 ? ms_comm_all_gather(world, all, t) : MS_OK);
        MS_TRY(i < 2 ? ms_comm_reduce_scatter(world, t, all, MS_REDUCE_SUM) : MS_OK);
        MS_TRY(i < 3 ? ms_comm_all_reduce(world, t, MS_REDUCE_SUM) : MS_OK);
        MS_TRY(i < 4 ? ms_comm_broadcast(world, t, 0) : MS_OK);
        MS_TRY(ms_comm_barrier(world));
        MS_TRY(ms_dist_stop_agreed(&signal)); /* the runtime's own talk is not counted */
        EXPECT(signal == 0);
    }
    ms_comm_counts(world, counts);
    for (int32_t i = 0; i < 5; i++) {
        EXPECT(counts[i] == i + 1);
    }
    EXPECT(ms_comm_wait_seconds(world) >= 0 && ms_comm_wait_seconds(world) < 60);
    ms_tensor_free(t);
    ms_tensor_free(all);
    return MS_OK;
}

static void test_comm_collectives__count_what_was_called(void **state)
{
    (void)state;
    run_ranks(1, count_calls, NULL);
    run_ranks(2, count_calls, NULL);
}

/* -- operands that do not fit ------------------------------------------------------------------ */

static void test_comm_collectives__refuse_what_does_not_fit(void **state)
{
    float data[6] = {1, 2, 3, 4, 5, 6};
    const int64_t three = 3, six = 6;
    ms_tensor *f3, *g3, *f6, *d3, gaps;
    ms_comm *self;

    (void)state;
    assert_ok(ms_comm_self(&self));
    assert_ok(ms_tensor_borrow(&f3, MS_DTYPE_F32, 1, &three, data));
    assert_ok(ms_tensor_borrow(&g3, MS_DTYPE_F32, 1, &three, data + 1));
    assert_ok(ms_tensor_borrow(&f6, MS_DTYPE_F32, 1, &six, data));
    assert_ok(ms_tensor_full(&d3, MS_DTYPE_F64, 1, &three, 1));
    gaps = *f6;
    gaps.v.shape[0] = 3;
    gaps.v.stride[0] = 2;
    assert_fails(MS_TYPE_ERROR, "f64 and f32", ms_comm_all_gather(self, d3, f3));
    assert_fails(MS_VALUE_ERROR, "6 elements, expected 3", ms_comm_all_gather(self, f6, f3));
    assert_fails(MS_VALUE_ERROR, "with gaps", ms_comm_all_reduce(self, &gaps, MS_REDUCE_SUM));
    assert_fails(MS_VALUE_ERROR, "root is 1, expected 0 to 0", ms_comm_broadcast(self, f3, 1));
    /* a rank's own part of the whole may be the other operand, any other overlap is an error */
    assert_fails(MS_RUNTIME_ERROR, "overlap", ms_comm_all_gather(self, f3, g3));
    assert_fails(MS_RUNTIME_ERROR, "overlap", ms_comm_reduce_scatter(self, f3, g3, MS_REDUCE_SUM));
    assert_ok(ms_comm_all_gather(self, f3, f3));
    assert_true(data[0] == 1 && data[3] == 4);
    ms_tensor *all[] = {f3, g3, f6, d3};

    for (int32_t i = 0; i < MSI_COUNT(all); i++) {
        ms_tensor_free(all[i]);
    }
    ms_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_collectives__move_every_dtype),
        cmocka_unit_test(test_comm_collectives__reduce_by_the_fixed_tree),
        cmocka_unit_test(test_comm_collectives__work_on_a_part_of_their_own_output),
        cmocka_unit_test(test_comm_collectives__gather_host_bytes),
        cmocka_unit_test(test_comm_collectives__count_what_was_called),
        cmocka_unit_test(test_comm_collectives__refuse_what_does_not_fit),
    };

    return cmocka_run_group_tests_name("comm/collectives", tests, NULL, NULL);
}
