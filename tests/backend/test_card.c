/* A card on its first run: each kind of call that the runtime makes, with known results, in the
 * order in which later ones depend on earlier ones. Skipped unless MS_DEVICE is cuda; then a card
 * that does not open is a failure. */
#include "device_comm.h"
#include "ms_test.h"
#include "tensor.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N = 1024, BYTES = 4 << 20, WORD_BYTES = 4096 };

/* The device's own text is in the failure. */
#define assert_done(d, call)                                                                       \
    do {                                                                                           \
        const int32_t o_ = (call);                                                                 \
        if (o_ != MSI_DEV_OK) {                                                                    \
            fail_msg("%s -> outcome %d: %s", #call, (int)o_, (d)->text);                           \
        }                                                                                          \
    } while (0)

static msi_device *card(void)
{
    if (strcmp(ms_device_kind(), "cuda") != 0) {
        skip();
    }
    assert_ok(msi_memory_open(msi_context()));
    return msi_context()->device;
}

static void await_stream(msi_device *d, int32_t stream)
{
    assert_ok(msi_device_wait_for(d, d->ops->mark(d, stream)));
}

static void assert_all(const ms_tensor *t, double value)
{
    double found[N];

    assert_ok(ms_tensor_to_doubles(t, found, N));
    for (int32_t i = 0; i < N; i++) {
        assert_true(found[i] == value);
    }
}

static void test_backend_card__opens(void **state)
{
    msi_device *d = card();

    (void)state;
    print_message("%s\n", d->ops->library(d));
}

/* Pinned memory to the card and back, the way back in another stream behind an event. */
static void test_backend_card__copies_both_ways_behind_an_event(void **state)
{
    msi_device *d = card();
    void *from, *to, *there;

    (void)state;
    assert_done(d, d->ops->take(d, BYTES, MSI_PLACE_PINNED, &from));
    assert_done(d, d->ops->take(d, BYTES, MSI_PLACE_PINNED, &to));
    assert_done(d, d->ops->take(d, BYTES, MSI_PLACE_DEVICE, &there));
    for (int32_t i = 0; i < BYTES; i++) {
        ((uint8_t *)from)[i] = (uint8_t)(i % 251);
    }
    assert_done(d, d->ops->copy(d, MSI_STREAM_IN, there, from, BYTES));
    assert_done(d, d->ops->after(d, MSI_STREAM_OUT, d->ops->mark(d, MSI_STREAM_IN)));
    assert_done(d, d->ops->copy(d, MSI_STREAM_OUT, to, there, BYTES));
    await_stream(d, MSI_STREAM_OUT);
    assert_memory_equal(to, from, BYTES);
    d->ops->give(d, there, BYTES, MSI_PLACE_DEVICE);
    d->ops->give(d, to, BYTES, MSI_PLACE_PINNED);
    d->ops->give(d, from, BYTES, MSI_PLACE_PINNED);
}

/* 64 products of 2 and 3. */
static void test_backend_card__multiplies(void **state)
{
    const int64_t left[] = {32, 64}, right[] = {64, 32};
    const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_BF16};

    (void)state;
    (void)card();
    for (int32_t i = 0; i < MSI_COUNT(dtypes); i++) {
        ms_tensor *a, *b, *c;

        assert_ok(ms_tensor_full(&a, dtypes[i], 2, left, 2));
        assert_ok(ms_tensor_full(&b, dtypes[i], 2, right, 3));
        assert_ok(ms_op_matmul(&c, a, b));
        assert_all(c, 384);
        ms_tensor_free(c);
        ms_tensor_free(b);
        ms_tensor_free(a);
    }
}

enum { SIDE = 16, INNER = 40, PART = 8192 /* bytes of each operand */ };
enum { WITH_GELU, WITH_A_SUM, BATCHED, PRODUCTS };

/* Operands from `room` on, of which `off`, or of 6 all, begin one element later; results: `out`. */
static void multiply_at(msi_device *d, char *room, int32_t product, int32_t off, char *out)
{
    const int32_t dtype = product == WITH_GELU ? MS_DTYPE_BF16 : MS_DTYPE_F32;
    const int64_t each = ms_dtype_size(dtype);
    char *at[6];

    for (int32_t k = 0; k < 6; k++) {
        at[k] = room + k * PART + (off == k || off == 6 ? each : 0);
        for (int32_t i = 0; i < 2 * SIDE * INNER; i++) {
            const float x = 1.0f / (float)(1 + (i + k) * 7919 % 10007);

            memcpy(at[k] + i * each, (const char *)&x + sizeof(x) - each, (size_t)each);
        }
    }
    const msi_gemm_args g = {.m = SIDE,
                             .n = SIDE,
                             .k = INNER,
                             .a = at[0],
                             .b = at[1],
                             .c = at[2],
                             .a_row = INNER,
                             .a_col = 1,
                             .b_row = SIDE,
                             .b_col = 1,
                             .c_row = SIDE,
                             .batch = product == BATCHED ? 2 : 1,
                             .a_batch = SIDE * INNER,
                             .b_batch = 0,
                             .c_batch = SIDE * SIDE,
                             .dtype = dtype,
                             .c_dtype = dtype,
                             .bias = product != WITH_A_SUM ? at[5] : NULL,
                             .accumulate = product != WITH_GELU,
                             .gelu = product == WITH_GELU,
                             .before = product == WITH_GELU ? at[3] : NULL,
                             .a_sum = product == WITH_A_SUM ? at[4] : NULL};

    assert_ok(msi_gemm(msi_context(), &g));
    await_stream(d, MSI_STREAM_COMPUTE);
    for (int32_t k = 0; k < 3; k++) {
        memcpy(out + k * PART, at[2 + k], (size_t)(2 * SIDE * INNER * each));
    }
}

/* Each operand in turn lies off 16 bytes, then all do. */
static void test_backend_card__multiplies_with_the_same_bits_at_any_address(void **state)
{
    static char want[3 * PART], found[3 * PART];
    msi_device *d = card();
    void *room;

    (void)state;
    assert_done(d, d->ops->take(d, 6 * PART, MSI_PLACE_PINNED, &room));
    for (int32_t product = 0; product < PRODUCTS; product++) {
        multiply_at(d, room, product, -1, want);
        for (int32_t off = 0; off <= 6; off++) {
            multiply_at(d, room, product, off, found);
            assert_memory_equal(found, want, sizeof(want));
        }
    }
    d->ops->give(d, room, 6 * PART, MSI_PLACE_PINNED);
}

/* Queries of zeros weigh all keys alike: row t is the mean of values 0 to t, which is t / 2. */
static void test_backend_card__attends(void **state)
{
    enum { T = 16, D = 64 };
    const int64_t shape[] = {1, 1, T, D};
    double values[T * D];
    ms_tensor *q, *v, *y;

    (void)state;
    (void)card();
    for (int32_t i = 0; i < T * D; i++) {
        values[i] = i / D;
    }
    assert_ok(ms_tensor_full(&q, MS_DTYPE_BF16, 4, shape, 0));
    assert_ok(ms_tensor_from_doubles(&v, MS_DTYPE_BF16, 4, shape, values, MSI_COUNT(values)));
    assert_ok(ms_op_attention(&y, q, q, v, true, 0));
    assert_ok(ms_tensor_to_doubles(y, values, MSI_COUNT(values)));
    for (int32_t i = 0; i < T * D; i++) {
        assert_float_equal(values[i], (i / D) / 2.0, 0.05); /* weights may be rounded to bf16 */
    }
    ms_tensor_free(y);
    ms_tensor_free(v);
    ms_tensor_free(q);
}

/* Sums of as many sources as a job has ranks, with the CPU's bits. */
static void test_backend_card__sums_sources_as_the_cpu_does(void **state)
{
    const int32_t n_sources[] = {8, 9, 65, MS_MAX_RANKS};
    msi_tree_source src[MS_MAX_RANKS];
    msi_device *d = card();
    float want[N];
    void *data, *out;

    (void)state;
    assert_done(d, d->ops->take(d, sizeof(want) * MS_MAX_RANKS, MSI_PLACE_PINNED, &data));
    assert_done(d, d->ops->take(d, sizeof(want), MSI_PLACE_PINNED, &out));
    for (int32_t i = 0; i < N * MS_MAX_RANKS; i++) {
        ((float *)data)[i] = 1.0f / (float)(1 + i * 7919 % 10007);
        src[i / N] = (msi_tree_source){(float *)data + i / N * N, MS_DTYPE_F32};
    }
    for (int32_t i = 0; i < 2 * MSI_COUNT(n_sources); i++) {
        msi_tree_args args = {.n = N - i % 2, /* by four, and one by one */
                              .n_src = n_sources[i / 2],
                              .src = src,
                              .out = out,
                              .round_dtype = MS_DTYPE_F32,
                              .factor = 1.0 / 3};

        assert_done(d, d->ops->run(d, MSI_STREAM_REDUCE, MSI_K_tree, MS_DTYPE_F32, &args));
        await_stream(d, MSI_STREAM_REDUCE);
        args.out = want;
        msi_kernels()->fn[MSI_K_tree][MS_DTYPE_F32](&args);
        assert_memory_equal(out, want, args.n * (int64_t)sizeof(float));
    }
    d->ops->give(d, out, sizeof(want), MSI_PLACE_PINNED);
    d->ops->give(d, data, sizeof(want) * MS_MAX_RANKS, MSI_PLACE_PINNED);
}

/* A stream waits for a word that another one stores. */
static void test_backend_card__posts_and_awaits_a_word(void **state)
{
    msi_device *d = card();
    void *page = mmap(NULL, WORD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    _Atomic uint64_t *word = page;

    (void)state;
    assert_true(page != MAP_FAILED);
    assert_done(d, d->ops->pin(d, page, WORD_BYTES));
    assert_done(d, d->ops->await(d, MSI_STREAM_GATHER, &word, 1, 7));
    const msi_mark behind = d->ops->mark(d, MSI_STREAM_GATHER);

    assert_int_equal(d->ops->done(d, behind), MSI_DEV_NOT_YET);
    assert_done(d, d->ops->post(d, MSI_STREAM_REDUCE, word, 7));
    assert_ok(msi_device_wait_for(d, behind));
    assert_int_equal(*word, 7);
    await_stream(d, MSI_STREAM_REDUCE);
    d->ops->unpin(d, page);
    (void)munmap(page, WORD_BYTES);
}

/* Memory that is exported as a descriptor, and mapped again from it. */
static void test_backend_card__shares_memory(void **state)
{
    msi_device *d = card();
    void *first, *second, *back;
    int32_t fd;

    (void)state;
    assert_done(d, d->ops->share(d, BYTES, &first, &fd));
    assert_done(d, d->ops->attach(d, fd, BYTES, true, &second));
    (void)close(fd);
    assert_done(d, d->ops->take(d, BYTES, MSI_PLACE_PINNED, &back));
    assert_done(d, d->ops->set(d, MSI_STREAM_COMPUTE, first, 5, BYTES));
    assert_done(d, d->ops->copy(d, MSI_STREAM_COMPUTE, back, second, BYTES));
    await_stream(d, MSI_STREAM_COMPUTE);
    for (int32_t i = 0; i < BYTES; i++) {
        assert_int_equal(((uint8_t *)back)[i], 5);
    }
    d->ops->give(d, back, BYTES, MSI_PLACE_PINNED);
    d->ops->detach(d, second, BYTES);
    d->ops->detach(d, first, BYTES);
}

/* -- a communicator ---------------------------------------------------------------------------- */

static bool is_complete(msi_device_comm *c)
{
    while (!msi_device_comm_is_complete(c)) {
    }
    return msi_device_comm_check(c) == MS_OK;
}

/* All members of a communicator. */
static void open_comm(msi_device_comm **members, int32_t size)
{
    const msi_device_comm_ops *ops;
    ms_context *ctx = msi_context();
    char id[MSI_DEVICE_COMM_ID], error[MSI_DEVICE_ERROR] = "";

    assert_ok(msi_device_comm_load(ctx, &ops));
    if (ops->id(id, error) != MSI_DEV_OK) {
        fail_msg("no id of a communicator: %s", error);
    }
    for (int32_t i = 0; i < size; i++) {
        assert_ok(msi_device_comm_new(&members[i], ctx->device, ops, id, i, size));
    }
    for (int32_t i = 0; i < size; i++) {
        assert_true(is_complete(members[i]));
    }
}

static void test_backend_card__a_group_of_one(void **state)
{
    const int64_t shape[] = {N};
    msi_device_comm *c;
    ms_tensor *in, *out;

    (void)state;
    (void)card();
    open_comm(&c, 1);
    assert_ok(ms_tensor_full(&in, MS_DTYPE_F32, 1, shape, 3));
    assert_ok(ms_tensor_full(&out, MS_DTYPE_F32, 1, shape, 0));
    void *from = msi_view_ptr(&in->v);
    float *at = msi_view_ptr(&out->v);

    assert_ok(msi_device_comm_all_gather(c, MSI_STREAM_COMPUTE, from, at, N / 2, MS_DTYPE_F32));
    assert_true(is_complete(c));
    assert_ok(msi_device_comm_reduce_scatter(c, MSI_STREAM_COMPUTE, from, at + N / 2, N / 2,
                                             MS_DTYPE_F32));
    assert_true(is_complete(c));
    assert_ok(msi_device_comm_broadcast(c, MSI_STREAM_COMPUTE, at, N, MS_DTYPE_F32, 0));
    assert_true(is_complete(c));
    assert_all(out, 3);
    msi_device_comm_free(c);
    ms_tensor_free(out);
    ms_tensor_free(in);
}

/* Two communicators whose peers make no call, in two streams: aborting one after the other would
 * wait for the other. Over the simulation, since NCCL refuses two members on one card. */
static void test_backend_card__aborts_communicators_together(void **state)
{
    enum { COMMS = 2, MEMBERS = 2 };
    const int32_t streams[COMMS] = {MSI_STREAM_GATHER, MSI_STREAM_REDUCE};
    const char *const versions[] = {"22800", "21900"};
    const int64_t shape[] = {N};
    msi_device *d = card();
    msi_device_comm *c[COMMS][MEMBERS];
    ms_tensor *t;

    (void)state;
    if (strstr(d->ops->library(d), "cudasim") == NULL) {
        skip();
    }
    assert_ok(ms_tensor_full(&t, MS_DTYPE_F32, 1, shape, 3));
    (void)alarm(60);
    for (int32_t v = 0; v < MSI_COUNT(versions); v++) {
        (void)setenv("MS_CUDASIM_NCCL", versions[v], 1);
        for (int32_t i = 0; i < COMMS; i++) {
            open_comm(c[i], MEMBERS);
            assert_ok(msi_device_comm_broadcast(c[i][0], streams[i], msi_view_ptr(&t->v), N,
                                                MS_DTYPE_F32, 0));
            assert_true(is_complete(c[i][0]));
        }
        msi_device_comms_abort(d);
        for (int32_t i = 0; i < COMMS; i++) {
            await_stream(d, streams[i]);
            assert_fails(MS_DEVICE_ERROR, "aborted", msi_device_comm_check(c[i][0]));
            msi_device_comm_free(c[i][0]);
            msi_device_comm_free(c[i][1]);
        }
    }
    (void)alarm(0);
    ms_tensor_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_card__opens),
        cmocka_unit_test(test_backend_card__copies_both_ways_behind_an_event),
        cmocka_unit_test(test_backend_card__multiplies),
        cmocka_unit_test(test_backend_card__multiplies_with_the_same_bits_at_any_address),
        cmocka_unit_test(test_backend_card__attends),
        cmocka_unit_test(test_backend_card__sums_sources_as_the_cpu_does),
        cmocka_unit_test(test_backend_card__posts_and_awaits_a_word),
        cmocka_unit_test(test_backend_card__shares_memory),
        cmocka_unit_test(test_backend_card__a_group_of_one),
        cmocka_unit_test(test_backend_card__aborts_communicators_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
