/* runtime/comm/segment.c, shm_segment.c: memory that all ranks of a group map. */
#include "rank_test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

static ms_status fill_and_read(void *user, int32_t rank)
{
    int64_t nbytes = *(const int64_t *)user;
    ms_comm *world;
    msi_segment s;

    MS_TRY(ms_comm_world(&world));
    int32_t size = ms_comm_size(world);

    MS_TRY(msi_segment_new(&s, world, nbytes));
    EXPECT(s.nbytes == nbytes && s.comm == world);
    EXPECT(size > 1 || (s.fd == -1 && s.rw == s.ro));
    for (int64_t i = 0; i < nbytes; i++) {
        EXPECT(s.ro[i] == 0);
    }
    MS_TRY(ms_comm_barrier(world)); /* everybody has seen the zeros */
    for (int64_t i = rank; i < nbytes; i += size) {
        s.rw[i] = (char)(rank + 1);
    }
    MS_TRY(ms_comm_barrier(world));
    for (int64_t i = 0; i < nbytes; i++) {
        EXPECT(s.ro[i] == (char)(i % size + 1));
    }
    msi_segment_free(&s);
    EXPECT(s.rw == NULL && s.ro == NULL && s.fd == -1);
    msi_segment_free(&s); /* twice is nothing */
    return MS_OK;
}

static void test_comm_segment__shows_every_rank_the_same_bytes(void **state)
{
    static const int64_t sizes[] = {0, 1, 4096, 100003};

    (void)state;
    for (int32_t n = 1; n <= 4; n++) {
        for (int32_t i = 0; i < MSI_COUNT(sizes); i++) {
            run_ranks(n, fill_and_read, (void *)(uintptr_t)&sizes[i]);
        }
    }
}

/* -- the read-only map ------------------------------------------------------------------------- */

static ms_status write_read_only(void *user, int32_t rank)
{
    ms_comm *world;
    msi_segment s;

    (void)user;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(msi_segment_new(&s, world, 4096));
    s.rw[rank] = 1;
    /* The kernel reads from where we may not write: no need to die for the answer. */
    int zero = open("/dev/zero", O_RDONLY);
    ssize_t into_rw = read(zero, s.rw + 64 + rank, 1), into_ro = read(zero, s.ro + 128 + rank, 1);
    int error = errno;

    close(zero);
    EXPECT(into_rw == 1);
    EXPECT(into_ro == -1 && error == EFAULT);
    MS_TRY(ms_comm_barrier(world));
    msi_segment_free(&s);
    return MS_OK;
}

static void test_comm_segment__has_a_map_nobody_can_write(void **state)
{
    const char *cause;

    (void)state;
    if (CAN_FORK && run_processes(2, write_read_only, NULL, &cause) != 0) {
        fail_msg("%s", cause);
    }
}

/* -- memory runs short ------------------------------------------------------------------------- */

static ms_status ask_for_too_much(void *user, int32_t rank)
{
    report *r = user;
    ms_comm *world;
    msi_segment s;
    double begin = ms_time();

    MS_TRY(ms_comm_world(&world));
    report_write(&r[rank], msi_segment_new(&s, world, (int64_t)1 << 50), begin);
    EXPECT(s.rw == NULL && s.fd == -1);
    MS_TRY(msi_segment_new(&s, world, 4096)); /* the group is as good as before */
    s.rw[rank] = 1;
    MS_TRY(ms_comm_barrier(world));
    EXPECT(s.ro[0] == 1 && s.ro[1] == 1);
    msi_segment_free(&s);
    return MS_OK;
}

static void test_comm_segment__is_out_of_memory_on_every_rank(void **state)
{
    report *r = reports_new(2);

    (void)state;
    run_ranks(2, ask_for_too_much, r);
    for (int32_t q = 0; q < 2; q++) {
        assert_int_equal(r[q].status, MS_OUT_OF_MEMORY);
        assert_non_null(strstr(r[q].message, "rank 0 cannot reserve a shared segment of "
                                             "1125899906842624 bytes: Cannot allocate memory ("));
        assert_non_null(strstr(r[q].message, " bytes are "));
    }
    reports_free(r, 2);
}

/* One rank has a limit that the segment exceeds. */
typedef struct limit_test {
    int32_t rank, resource;
    rlim_t limit;
    const char *told;
    report *reports;
} limit_test;

enum { SEGMENT = 1 << 20 };

static ms_status have_a_limit(void *user, int32_t rank)
{
    const limit_test *t = user;
    struct rlimit before, limit;
    ms_comm *world;
    msi_segment s;
    double begin = ms_time();

    MS_TRY(ms_comm_world(&world));
    const int32_t n_open = count_entries("/proc/self/fd");

    EXPECT(getrlimit((__rlimit_resource_t)t->resource, &before) == 0);
    if (rank == t->rank) {
        limit = before;
        limit.rlim_cur = t->limit;
        EXPECT(setrlimit((__rlimit_resource_t)t->resource, &limit) == 0);
    }
    report_write(&t->reports[rank], msi_segment_new(&s, world, SEGMENT), begin);
    EXPECT(setrlimit((__rlimit_resource_t)t->resource, &before) == 0);
    EXPECT(s.rw == NULL && s.fd == -1);
    MS_TRY(ms_comm_barrier(world));
    EXPECT(count_entries("/proc/self/fd") == n_open);
    MS_TRY(msi_segment_new(&s, world, 4096)); /* the group works on */
    msi_segment_free(&s);
    return ms_comm_barrier(world);
}

static void test_comm_segment__fails_everywhere_when_one_rank_has_a_limit(void **state)
{
    limit_test tests[] = {
        {1, RLIMIT_NOFILE, 3, "rank 1 cannot map a shared segment of 1048576 bytes", NULL},
        {0, RLIMIT_FSIZE, SEGMENT - 1, "rank 0 cannot reserve a shared segment of 1048576 bytes",
         NULL},
    };
    const char *cause;

    (void)state;
    for (int32_t i = 0; CAN_FORK && i < MSI_COUNT(tests); i++) {
        tests[i].reports = reports_new(3);
        if (run_processes(3, have_a_limit, &tests[i], &cause) != 0) {
            fail_msg("%s", cause);
        }
        for (int32_t q = 0; q < 3; q++) {
            assert_int_not_equal(tests[i].reports[q].status, MS_OK);
            assert_non_null(strstr(tests[i].reports[q].message, tests[i].told));
            assert_true(i == 0 || strstr(tests[i].reports[q].message, "ulimit -f") != NULL);
        }
        reports_free(tests[i].reports, 3);
    }
}

static void test_comm_segment__no_rank_joins_whose_stack_is_too_small(void **state)
{
    struct rlimit before, limit;
    ms_comm *world;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_STACK, &before), 0);
    limit = before;
    limit.rlim_cur = 200000;
    assert_int_equal(setrlimit(RLIMIT_STACK, &limit), 0);
    const ms_status status = ms_comm_world(&world);

    assert_int_equal(setrlimit(RLIMIT_STACK, &before), 0);
    assert_int_equal(status, MS_RUNTIME_ERROR);
    assert_non_null(strstr(ms_error_message(), "(ulimit -s)"));
    assert_ok(ms_comm_world(&world));
    ms_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_segment__shows_every_rank_the_same_bytes),
        cmocka_unit_test(test_comm_segment__has_a_map_nobody_can_write),
        cmocka_unit_test(test_comm_segment__is_out_of_memory_on_every_rank),
        cmocka_unit_test(test_comm_segment__fails_everywhere_when_one_rank_has_a_limit),
        cmocka_unit_test(test_comm_segment__no_rank_joins_whose_stack_is_too_small),
    };

    return cmocka_run_group_tests_name("comm/segment", tests, NULL, NULL);
}
