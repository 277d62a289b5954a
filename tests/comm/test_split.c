/* runtime/comm/group.c, state.c: groups that are split off, side by side and inside each other. */
#include "rank_test.h"

#include "group.h"
#include "tensor.h"

#include <signal.h>

enum { RANKS = 4 };

/* Ranks of one parity, in the order of the job. */
static ms_status split_by_parity(ms_comm **world, ms_comm **half, int32_t rank)
{
    MS_TRY(ms_comm_world(world));
    return ms_comm_split(half, *world, rank % 2, 0);
}

/* The sum over a group of what each rank says, in one element. */
static ms_status sum_over(ms_comm *c, float mine, float *sum)
{
    const int64_t one = 1;
    float value = mine;
    ms_tensor *t;

    MS_TRY(ms_tensor_borrow(&t, MS_DTYPE_F32, 1, &one, &value));
    ms_status status = ms_comm_all_reduce(c, t, MS_REDUCE_SUM);

    ms_tensor_free(t);
    *sum = value;
    return status;
}

/* -- who is where ------------------------------------------------------------------------------ */

static ms_status order_by_key(void *user, int32_t rank)
{
    static const int32_t key[RANKS] = {5, -1, 5, 7};
    static const int32_t place[RANKS] = {1, 0, 2, 3}; /* equal keys: as in the parent */
    ms_comm *world, *all, *same, *none;

    (void)user;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_split(&all, world, 3, key[rank]));
    EXPECT(ms_comm_size(all) == RANKS && ms_comm_rank(all) == place[rank]);
    EXPECT(msi_comm_rank_in_job(all, place[rank]) == rank);
    MS_TRY(ms_comm_split(&same, all, 0, 0)); /* places in the parent, not in the job */
    EXPECT(ms_comm_rank(same) == place[rank]);
    MS_TRY(ms_comm_split(&none, world, rank == 2 ? 0 : -1, 0));
    EXPECT((none != NULL) == (rank == 2));
    EXPECT(none == NULL || (ms_comm_size(none) == 1 && ms_comm_rank(none) == 0));
    EXPECT(none == NULL || ms_comm_barrier(none) == MS_OK);
    ms_comm_free(none != NULL ? none : world); /* which nothing happens to */
    ms_comm_free(all);
    MS_TRY(ms_comm_barrier(same)); /* needs no parent */
    ms_comm_free(same);
    return ms_comm_barrier(world);
}

static void test_comm_split__orders_by_key_then_by_place_in_the_parent(void **state)
{
    (void)state;
    run_ranks(RANKS, order_by_key, NULL);
}

/* -- collectives, side by side ----------------------------------------------------------------- */

static ms_status gather_and_scatter(ms_comm *c, int32_t rank)
{
    const int32_t first = rank % 2, size = ms_comm_size(c);
    const int64_t n = 3, all = 3 * size;
    float in[3] = {(float)rank, 1, 2}, out[6], part[3];
    ms_tensor *from, *to, *some;

    MS_TRY(ms_tensor_borrow(&from, MS_DTYPE_F32, 1, &n, in));
    MS_TRY(ms_tensor_borrow(&to, MS_DTYPE_F32, 1, &all, out));
    MS_TRY(ms_tensor_borrow(&some, MS_DTYPE_F32, 1, &n, part));
    MS_TRY(ms_comm_all_gather(c, to, from));
    EXPECT(out[0] == (float)first && out[3] == (float)(first + 2));
    MS_TRY(ms_comm_reduce_scatter(c, some, to, MS_REDUCE_SUM));
    EXPECT(part[0] == 2 * (float)rank && part[1] == 2);
    MS_TRY(ms_comm_broadcast(c, from, 1));
    EXPECT(in[0] == (float)(first + 2));
    ms_tensor_free(from);
    ms_tensor_free(to);
    ms_tensor_free(some);
    return MS_OK;
}

/* The two halves call different things, and differently often; world collectives in between. */
static ms_status work_side_by_side(void *user, int32_t rank)
{
    ms_comm *world, *half;
    float sum;

    (void)user;
    MS_TRY(split_by_parity(&world, &half, rank));
    for (int32_t round = 0; round < 20; round++) {
        for (int32_t k = 0; k < (rank % 2 == 0 ? 3 : 200); k++) {
            MS_TRY(sum_over(half, (float)(rank + k), &sum));
            EXPECT(sum == (float)(2 * (rank % 2) + 2 + 2 * k));
        }
        if (rank % 2 == 1) {
            MS_TRY(gather_and_scatter(half, rank));
        }
        MS_TRY(sum_over(world, (float)rank, &sum));
        EXPECT(sum == 6);
    }
    ms_comm_free(half);
    return ms_comm_barrier(world);
}

static void test_comm_split__lets_groups_work_side_by_side(void **state)
{
    (void)state;
    run_ranks(RANKS, work_side_by_side, NULL);
}

/* -- segments of groups that share a rank ------------------------------------------------------ */

static ms_status fill_segment(ms_comm *c, msi_segment *s)
{
    const int32_t size = ms_comm_size(c);

    MS_TRY(msi_segment_new(s, c, size));
    s->rw[ms_comm_rank(c)] = (char)(1 + ms_comm_rank(c));
    MS_TRY(ms_comm_barrier(c));
    for (int32_t q = 0; q < size; q++) {
        EXPECT(s->ro[q] == (char)(1 + q));
    }
    return MS_OK;
}

/* Rank 2 is in both groups, and comes to rank 1's segment first, though rank 0 has sent already. */
static ms_status make_overlapping(void *user, int32_t rank)
{
    ms_comm *world, *with_0, *with_1;
    msi_segment a = {.fd = -1}, b = {.fd = -1};

    (void)user;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_split(&with_0, world, rank == 1 ? -1 : 0, 0));
    MS_TRY(ms_comm_split(&with_1, world, rank == 0 ? -1 : 0, 0));
    for (int32_t k = 0; k < 20; k++) {
        if (rank == 0) {
            MS_TRY(fill_segment(with_0, &a));
        } else {
            usleep(rank == 1 ? 2000 : 0);
            MS_TRY(fill_segment(with_1, &b));
            MS_TRY(rank == 2 ? fill_segment(with_0, &a) : MS_OK);
        }
        msi_segment_free(&a);
        msi_segment_free(&b);
    }
    return ms_comm_barrier(world);
}

static void test_comm_split__keeps_descriptors_of_groups_apart(void **state)
{
    (void)state;
    run_ranks(3, make_overlapping, NULL);
}

/* -- what goes wrong --------------------------------------------------------------------------- */

typedef struct scene {
    const char *name;
    ms_status (*odd)(ms_comm *half), (*other)(ms_comm *half); /* rank 3's, and rank 1's */
    const char *told;                                         /* to all ranks */
    report *reports;
} scene;

static ms_status barrier(ms_comm *half)
{
    return ms_comm_barrier(half);
}

static ms_status broadcast(ms_comm *half)
{
    const int64_t one = 1;
    float x = 0;
    ms_tensor *t;

    MS_TRY(ms_tensor_borrow(&t, MS_DTYPE_F32, 1, &one, &x));
    ms_status status = ms_comm_broadcast(half, t, 1);

    ms_tensor_free(t);
    return status;
}

static ms_status note_one(ms_comm *half)
{
    const double lr = 0.1;

    MS_TRY(ms_comm_same(half, "step of SGD", "lr", &lr, 1));
    return ms_comm_barrier(half);
}

static ms_status note_two(ms_comm *half)
{
    const double lr = 0.2;

    MS_TRY(ms_comm_same(half, "step of SGD", "lr", &lr, 1));
    return ms_comm_barrier(half);
}

static ms_status leave_it(ms_comm *half)
{
    ms_comm_free(half);
    return MS_OK;
}

static ms_status leave_job(ms_comm *half)
{
    (void)half;
    ms_dist_leave();
    return MS_OK;
}

static ms_status die(ms_comm *half)
{
    (void)half;
    raise(SIGKILL);
    return MS_OK;
}

static const scene scenes[] = {
    {"another call", broadcast, barrier,
     "collective mismatch at sequence 2 of ranks 1, 3: rank 1 calls barrier(), rank 3 calls "
     "broadcast(f32 (1), root 3)",
     NULL},
    {"another note", note_two, note_one,
     "the ranks differ: lr of step of SGD is 0.1 on rank 1 and 0.2 on rank 3 (found at barrier(), "
     "sequence 2 of ranks 1, 3)",
     NULL},
    {"a group that is freed", leave_it, barrier, "rank 3 freed the group", NULL},
    {"a rank that has left", leave_job, barrier, "rank 3 left the job", NULL},
    {"a rank that dies", die, barrier, "rank 3 died (signal 9, Killed)", NULL},
};

/* Ranks 0 and 2 are in collectives of their own when it happens. */
static ms_status differ(void *user, int32_t rank)
{
    const scene *s = user;
    ms_comm *world, *half;
    ms_status status = MS_OK;

    MS_TRY(split_by_parity(&world, &half, rank));
    MS_TRY(ms_comm_barrier(half));
    MS_TRY(ms_comm_barrier(world));
    double begin = ms_time();

    if (rank % 2 == 0) {
        while (status == MS_OK && ms_time() - begin < 2 * SOON_S) {
            status = ms_comm_barrier(half);
        }
    } else {
        status = (rank == 3 ? s->odd : s->other)(half);
    }
    if (rank == 3 && status == MS_OK) { /* it did what it wanted: the next call is told */
        status = ms_comm_barrier(world);
    }
    report_write(&s->reports[rank], status, begin);
    return MS_OK;
}

static void assert_told(const scene *s)
{
    const bool is_gone = s->odd == leave_job || s->odd == die;

    for (int32_t r = 0; r < RANKS - is_gone; r++) {
        const report *told = &s->reports[r];

        if (told->status == MS_OK || told->seconds > SOON_S ||
            strstr(told->message, s->told) == NULL) {
            fail_msg("%s: rank %d got %s after %.3f s: '%s'", s->name, (int)r,
                     ms_status_name(told->status), told->seconds, told->message);
        }
    }
}

static void test_comm_split__tells_all_groups_what_went_wrong_in_one(void **state)
{
    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(scenes); i++) {
        scene s = scenes[i];
        const char *cause;

        s.reports = reports_new(RANKS);
        if (s.odd != die) {
            assert_int_not_equal(ms_dist_threads(RANKS, differ, &s), MS_OK);
            assert_told(&s);
        }
        if (CAN_FORK) {
            memset(s.reports, 0, sizeof(report) * RANKS);
            assert_int_not_equal(run_processes(RANKS, differ, &s, &cause), 0);
            assert_told(&s);
            assert_non_null(strstr(cause, s.told));
        }
        reports_free(s.reports, RANKS);
    }
}

/* Rank 1 waits for rank 3, which waits with all others for rank 1. */
static ms_status wait_across(void *user, int32_t rank)
{
    report *reports = user;
    ms_comm *world, *half;
    double begin = ms_time();

    MS_TRY(split_by_parity(&world, &half, rank));
    report_write(&reports[rank], ms_comm_barrier(rank == 1 ? half : world), begin);
    return MS_OK;
}

static void test_comm_split__finds_ranks_that_wait_in_different_groups(void **state)
{
    report *reports = reports_new(RANKS);

    (void)state;
    assert_int_equal(ms_dist_threads(RANKS, wait_across, reports), MS_COMM_ERROR);
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(reports[r].status, MS_COMM_ERROR);
        assert_true(reports[r].seconds <= SOON_S);
        assert_non_null(strstr(reports[r].message, "every rank waits for another"));
    }
    reports_free(reports, RANKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_split__orders_by_key_then_by_place_in_the_parent),
        cmocka_unit_test(test_comm_split__lets_groups_work_side_by_side),
        cmocka_unit_test(test_comm_split__keeps_descriptors_of_groups_apart),
        cmocka_unit_test(test_comm_split__tells_all_groups_what_went_wrong_in_one),
        cmocka_unit_test(test_comm_split__finds_ranks_that_wait_in_different_groups),
    };

    return cmocka_run_group_tests_name("comm/split", tests, NULL, NULL);
}
