/* runtime/comm/alone.c: groups whose other members are not there. */
#include "rank_test.h"

#include "group.h"
#include "moonshard/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

enum { SIZE = 5, RANK = 3, N = 4 };

static ms_tensor *tensor_over(int32_t dtype, int64_t n, void *data)
{
    ms_tensor *t;

    assert_ok(ms_tensor_borrow(&t, dtype, 1, &n, data));
    return t;
}

/* -- who is where ------------------------------------------------------------------------------ */

static void test_comm_fake__has_any_rank_of_any_world(void **state)
{
    static const int32_t places[][2] = {{0, 1}, {1, 2}, {16383, 16384}, {INT32_MAX - 1, INT32_MAX}};
    ms_comm *c;

    (void)state;
    for (size_t i = 0; i < MSI_COUNT(places); i++) {
        const int32_t rank = places[i][0], world = places[i][1];

        assert_ok(ms_comm_fake(&c, rank, world));
        assert_int_equal(ms_comm_rank(c), rank);
        assert_int_equal(ms_comm_size(c), world);
        assert_int_equal(msi_comm_rank_in_job(c, rank), rank);
        assert_true(ms_comm_is_fake(c));
        assert_ok(ms_comm_barrier(c));
        ms_comm_free(c);
    }
    assert_ok(ms_comm_self(&c));
    assert_false(ms_comm_is_fake(c));
}

static void test_comm_fake__refuses_what_is_no_place(void **state)
{
    ms_comm *c;

    (void)state;
    assert_fails(MS_VALUE_ERROR, "a fake group of 0 ranks, expected at least 1",
                 ms_comm_fake(&c, 0, 0));
    assert_null(c);
    assert_fails(MS_VALUE_ERROR, "rank 4 of a fake group, expected 0 to 3", ms_comm_fake(&c, 4, 4));
    assert_fails(MS_VALUE_ERROR, "rank -1 of a fake group, expected 0 to 3",
                 ms_comm_fake(&c, -1, 4));
}

/* -- what collectives mean --------------------------------------------------------------------- */

/* All members hold what this rank holds: the plain sums of that. */
static void check_f32(ms_comm *c)
{
    float in[N] = {1.5F, -2, 3, 0.25F}, all[SIZE * N], part[N];
    ms_tensor *from = tensor_over(MS_DTYPE_F32, N, in);
    ms_tensor *whole = tensor_over(MS_DTYPE_F32, SIZE * N, all);
    ms_tensor *some = tensor_over(MS_DTYPE_F32, N, part);

    assert_ok(ms_comm_all_gather(c, whole, from));
    for (int32_t i = 0; i < SIZE * N; i++) {
        assert_float_equal(all[i], in[i % N], 0);
        all[i] = (float)i;
    }
    for (int32_t reduce = MS_REDUCE_SUM; reduce <= MS_REDUCE_MIN; reduce++) {
        assert_ok(ms_comm_reduce_scatter(c, some, whole, reduce));
        for (int32_t i = 0; i < N; i++) {
            assert_float_equal(part[i], (reduce == MS_REDUCE_SUM ? SIZE : 1) * (RANK * N + i), 0);
        }
    }
    assert_ok(ms_comm_all_reduce(c, from, MS_REDUCE_SUM));
    assert_float_equal(in[1], -2.0 * SIZE, 0);
    assert_ok(ms_comm_all_reduce(c, from, MS_REDUCE_AVG));
    assert_ok(ms_comm_all_reduce(c, from, MS_REDUCE_MIN));
    assert_ok(ms_comm_broadcast(c, from, 0));
    assert_float_equal(in[1], -2.0 * SIZE, 0);
    ms_tensor_free(from);
    ms_tensor_free(whole);
    ms_tensor_free(some);
}

/* Five times the largest is 5 (2^63 - 1) = 2^63 - 5, modulo 2^64; of i32 likewise. */
static void check_integers(ms_comm *c)
{
    int64_t wide[2] = {-7, INT64_MAX};
    int32_t small[2] = {-7, INT32_MAX};
    ms_tensor *of_wide = tensor_over(MS_DTYPE_I64, 2, wide);
    ms_tensor *of_small = tensor_over(MS_DTYPE_I32, 2, small);

    for (int32_t reduce = MS_REDUCE_SUM; reduce <= MS_REDUCE_MIN; reduce++) {
        if (reduce != MS_REDUCE_AVG) { /* of what the sum left */
            assert_ok(ms_comm_all_reduce(c, of_wide, reduce));
            assert_ok(ms_comm_all_reduce(c, of_small, reduce));
        }
        assert_int_equal(wide[0], -7 * SIZE);
        assert_int_equal(wide[1], INT64_MAX - (SIZE - 1));
        assert_int_equal(small[0], -7 * SIZE);
        assert_int_equal(small[1], INT32_MAX - (SIZE - 1));
    }
    ms_tensor_free(of_wide);
    ms_tensor_free(of_small);
}

static void test_comm_fake__moves_as_if_all_held_the_same(void **state)
{
    const double mine[2] = {3, 4};
    double all[2 * SIZE];
    int64_t counts[5];
    ms_comm *c;

    (void)state;
    assert_ok(ms_comm_fake(&c, RANK, SIZE));
    check_f32(c);
    check_integers(c);
    assert_ok(ms_comm_exchange(c, "a test", mine, 2, all));
    for (int32_t i = 0; i < 2 * SIZE; i++) {
        assert_float_equal(all[i], mine[i % 2], 0);
    }
    ms_comm_counts(c, counts);
    assert_int_equal(counts[0], 1);
    assert_int_equal(counts[1], 4);
    assert_int_equal(counts[2], 9);
    assert_int_equal(counts[3], 1);
    assert_float_equal(ms_comm_wait_seconds(c), 0, 0);
    ms_comm_free(c);
}

/* More members than a chunk between ranks of one host has elements. */
static void test_comm_fake__moves_in_worlds_of_any_size(void **state)
{
    const int64_t world = 16384;
    float *all = malloc(sizeof(*all) * (size_t)world), one = 3;
    ms_tensor *whole = tensor_over(MS_DTYPE_F32, world, all);
    ms_tensor *t = tensor_over(MS_DTYPE_F32, 1, &one);
    ms_comm *c;

    (void)state;
    assert_ok(ms_comm_fake(&c, 7, (int32_t)world));
    assert_ok(ms_comm_all_gather(c, whole, t));
    assert_ok(ms_comm_reduce_scatter(c, t, whole, MS_REDUCE_SUM));
    assert_float_equal(one, 3.0 * 16384, 0);
    ms_tensor_free(whole);
    ms_tensor_free(t);
    ms_comm_free(c);
    free(all);
}

static void test_comm_fake__maps_private_memory(void **state)
{
    msi_segment s;
    ms_comm *c;

    (void)state;
    assert_ok(ms_comm_fake(&c, 1, 2));
    assert_ok(msi_segment_new(&s, c, 8192));
    assert_int_equal(s.rw[8191], 0);
    s.rw[8191] = 1;
    assert_int_equal(s.ro[8191], 1);
    msi_segment_free(&s);
    ms_comm_free(c);
}

static void test_comm_fake__is_not_divided(void **state)
{
    ms_comm *c, *part;

    (void)state;
    assert_ok(ms_comm_fake(&c, 0, 4));
    assert_fails(MS_RUNTIME_ERROR, "split: the other ranks of a fake group are not there",
                 ms_comm_split(&part, c, 0, 0));
    assert_null(part);
    ms_comm_free(c);
}

/* Nobody writes or checks what the other ranks would. */
static void test_comm_fake__keeps_no_checkpoints(void **state)
{
    static const char *const why = "the other ranks of a fake group are not there";
    ms_checkpoint_writer *w;
    ms_checkpoint_loader *l;
    ms_comm *c;

    (void)state;
    assert_ok(ms_comm_fake(&c, 0, INT32_MAX));
    assert_fails(MS_RUNTIME_ERROR, why, ms_checkpoint_begin(&w, c, "/nowhere", "a"));
    assert_fails(MS_RUNTIME_ERROR, why, ms_checkpoint_load_begin(&l, c, "/nowhere/a"));
    assert_fails(MS_RUNTIME_ERROR, why, ms_checkpoint_load_latest(&l, c, "/nowhere"));
    assert_fails(MS_RUNTIME_ERROR, why, ms_safetensors_export(c, "/nowhere/a", NULL, 0, NULL));
    ms_comm_free(c);
}

/* -- in a job ---------------------------------------------------------------------------------- */

/* A rank of a job fails; the other one's fake group goes on. */
static ms_status outlive(void *user, int32_t rank)
{
    ms_comm *world, *c;

    (void)user;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_fake(&c, 100 + rank, 1000)); /* no rank of the job has that number */
    MS_TRY(ms_comm_same(c, "what only one rank says", rank == 0 ? "a" : "b", NULL, 0));
    MS_TRY(ms_comm_barrier(c));
    MS_TRY(ms_comm_barrier(world));
    if (rank == 1) {
        ms_dist_abort(MS_RUNTIME_ERROR, "on purpose");
    } else {
        EXPECT(ms_comm_barrier(world) == MS_COMM_ERROR);
    }
    MS_TRY(ms_comm_barrier(c));
    ms_dist_leave();
    EXPECT(ms_comm_barrier(c) == MS_RUNTIME_ERROR);
    ms_comm_free(c);
    return ms_comm_fake(&c, 0, 2) == MS_RUNTIME_ERROR
               ? MS_OK
               : msi_fail(MS_ASSERTION_ERROR, "a rank that has left its job makes groups");
}

static void test_comm_fake__needs_no_rank_of_the_job(void **state)
{
    (void)state;
    assert_fails(MS_RUNTIME_ERROR, "rank 1 failed: on purpose", ms_dist_threads(2, outlive, NULL));
}

/* A group without memory of its own has no descriptor: number 0 is another's. */
static void test_comm_fake__leaves_descriptors_alone(void **state)
{
    ms_comm *c;

    (void)state;
    if (fcntl(STDIN_FILENO, F_GETFD) < 0) {
        assert_int_equal(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    }
    assert_ok(ms_comm_fake(&c, RANK, SIZE));
    ms_comm_free(c);
    assert_true(fcntl(STDIN_FILENO, F_GETFD) >= 0);
}

static void test_comm_fake__is_let_go_no_more_than_it_is_held(void **state)
{
    ms_comm *c;

    (void)state;
    assert_ok(ms_comm_fake(&c, RANK, SIZE));
    ms_comm_release(c);
    ms_comm_retain(c);
    ms_comm_free(c);
    assert_int_equal(ms_comm_size(c), SIZE);
    ms_comm_release(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_fake__has_any_rank_of_any_world),
        cmocka_unit_test(test_comm_fake__refuses_what_is_no_place),
        cmocka_unit_test(test_comm_fake__moves_as_if_all_held_the_same),
        cmocka_unit_test(test_comm_fake__moves_in_worlds_of_any_size),
        cmocka_unit_test(test_comm_fake__maps_private_memory),
        cmocka_unit_test(test_comm_fake__is_not_divided),
        cmocka_unit_test(test_comm_fake__keeps_no_checkpoints),
        cmocka_unit_test(test_comm_fake__needs_no_rank_of_the_job),
        cmocka_unit_test(test_comm_fake__leaves_descriptors_alone),
        cmocka_unit_test(test_comm_fake__is_let_go_no_more_than_it_is_held),
    };

    return cmocka_run_group_tests_name("comm/fake", tests, NULL, NULL);
}
