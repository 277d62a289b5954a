/* How asking for more memory than there is fails, in segments and the control block. */
#include "rank_test.h"

#include "group.h"

#include <sys/resource.h>

static ms_status limit_to(int resource, rlim_t nbytes)
{
    struct rlimit limit;

    EXPECT(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = nbytes;
    EXPECT(setrlimit(resource, &limit) == 0);
    return MS_OK;
}

enum { SEGMENT = 64 << 20 };

static ms_status make_a_segment(void *user, int32_t rank)
{
    report *r = user;
    ms_comm *world;
    msi_segment s;

    MS_TRY(ms_comm_world(&world));
    if (r[rank].value != 0) { /* which limit this rank has, by MSI_BOUND_* */
        bool file = r[rank].value == MSI_BOUND_FILE_SIZE;
        int64_t used = INT64_MAX - 1;

        if (!file) { /* room for one map of two */
            MS_TRY(limit_to(RLIMIT_AS, RLIM_INFINITY - 1));
            used -= msi_address_space_left().left;
        }
        MS_TRY(limit_to(file ? RLIMIT_FSIZE : RLIMIT_AS,
                        file ? SEGMENT - 1 : (rlim_t)used + SEGMENT + SEGMENT / 2));
    }
    report_write(&r[rank], msi_segment_new(&s, world, SEGMENT), ms_time());
    EXPECT(s.rw == NULL && s.fd == -1);
    MS_TRY(msi_segment_new(&s, world, 4096)); /* the group is as good as before */
    msi_segment_free(&s);
    return ms_comm_barrier(world);
}

static void fail_by_limit(int32_t rank, int32_t bound, const char *expected)
{
    report *r = reports_new(2);
    const char *cause;

    r[rank].value = bound;
    if (run_processes(2, make_a_segment, r, &cause) != 0) {
        fail_msg("%s", cause);
    }
    for (int32_t q = 0; q < 2; q++) {
        assert_int_equal(r[q].status, MS_OUT_OF_MEMORY);
        if (strstr(r[q].message, expected) == NULL) {
            fail_msg("'%s' does not contain '%s'", r[q].message, expected);
        }
    }
    reports_free(r, 2);
}

static void test_comm_bounds__fails_where_files_may_not_be_that_large(void **state)
{
    (void)state;
    if (!CAN_FORK) {
        skip();
    }
    fail_by_limit(0, MSI_BOUND_FILE_SIZE,
                  "rank 0 cannot reserve a shared segment of 67108864 bytes: File too large (files "
                  "may have 67108863 bytes: ulimit -f)");
}

static void test_comm_bounds__fails_where_address_space_is_short(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* which maps more than any limit allows */
#endif
    if (!CAN_FORK) {
        skip();
    }
    fail_by_limit(1, MSI_BOUND_ADDRESS_SPACE,
                  "rank 1 cannot map a shared segment of 67108864 bytes: Cannot allocate memory (");
    fail_by_limit(1, MSI_BOUND_ADDRESS_SPACE, ": ulimit -v)");
}

static void
test_comm_bounds__starts_no_ranks_where_files_may_not_hold_the_control_block(void **state)
{
    struct rlimit before;
    ms_launch *launch;
    int32_t rank;

    (void)state;
    if (!CAN_FORK) {
        skip();
    }
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_ok(limit_to(RLIMIT_FSIZE, 4096));
    ms_status status = ms_launch_fork(&launch, 2, &rank);

    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, MS_OUT_OF_MEMORY);
    assert_non_null(strstr(ms_error_message(), "cannot make a control block of "));
    assert_non_null(strstr(ms_error_message(), "(files may have 4096 bytes: ulimit -f)"));
    assert_null(launch);
}

static void test_comm_bounds__lets_no_rank_join_whose_stack_is_too_small(void **state)
{
    struct rlimit before;
    ms_comm *world;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_STACK, &before), 0);
    assert_ok(limit_to(RLIMIT_STACK, 200000));
    ms_status status = ms_comm_world(&world);

    assert_int_equal(setrlimit(RLIMIT_STACK, &before), 0);
    assert_int_equal(status, MS_RUNTIME_ERROR);
    assert_string_equal(ms_error_message(), "the stack of this process may have 200000 bytes "
                                            "(ulimit -s), expected at least 262144");
    assert_ok(ms_comm_world(&world));
    ms_close();
}

static ms_status ask_alone_for_too_much(void *user, int32_t rank)
{
    ms_comm *self;
    msi_segment s;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_self(&self));
    EXPECT(msi_segment_new(&s, self, (int64_t)1 << 46) == MS_OUT_OF_MEMORY);
    EXPECT(strstr(ms_error_message(), "no memory for a segment of 70368744177664 bytes ("));
    EXPECT(strstr(ms_error_message(), " bytes are "));
    return MS_OK;
}

static void test_comm_bounds__holds_for_memory_of_one_rank_too(void **state)
{
    (void)state;
    run_ranks(1, ask_alone_for_too_much, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_bounds__fails_where_files_may_not_be_that_large),
        cmocka_unit_test(test_comm_bounds__fails_where_address_space_is_short),
        cmocka_unit_test(
            test_comm_bounds__starts_no_ranks_where_files_may_not_hold_the_control_block),
        cmocka_unit_test(test_comm_bounds__lets_no_rank_join_whose_stack_is_too_small),
        cmocka_unit_test(test_comm_bounds__holds_for_memory_of_one_rank_too),
    };

    return cmocka_run_group_tests_name("comm/bounds", tests, NULL, NULL);
}
