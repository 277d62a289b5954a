/* runtime/comm/bounds.c: what memory there is, and how asking for more than that fails. */
#include "rank_test.h"

#include "control.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* -- made-up machines -------------------------------------------------------------------------- */

enum { KIB = 1024, MIB = 1024 * 1024 };

typedef struct made_file {
    const char *path, *text;
} made_file;

/* Folder `root` with these files, until one without a path. */
static void make_machine(const char *root, const made_file *files)
{
    char path[512];

    for (; files->path != NULL; files++) {
        snprintf(path, sizeof(path), "%s%s", root, files->path);
        for (char *at = strchr(path + strlen(root) + 1, '/'); at != NULL;
             at = strchr(at + 1, '/')) {
            *at = '\0';
            assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
            *at = '/';
        }
        FILE *file = fopen(path, "w");

        assert_non_null(file);
        fputs(files->text, file);
        fclose(file);
    }
}

#define MEMINFO(available, swap)                                                                   \
    {                                                                                              \
        "/proc/meminfo", "MemTotal:       99999999 kB\nMemFree:  1 kB\nMemAvailable:   " available \
                         " kB\nSwapCached: 5 kB\nSwapFree: " swap " kB\n"                          \
    }

static void test_comm_bounds__finds_the_tightest_limit(void **state)
{
    static const struct {
        const char *what;
        made_file files[12];
        msi_bound expected;
    } cases[] = {
        {"a host", {MEMINFO("1000", "24")}, {MSI_BOUND_HOST, 0, 1024 * KIB, 0}},
        {"a machine without /proc", {{"/etc/none", ""}}, {MSI_BOUND_NONE, 0, INT64_MAX, 0}},
        {"groups without limits",
         {MEMINFO("1000", "0"),
          {"/proc/self/cgroup", "0::/user/job\n"},
          {"/sys/fs/cgroup/user/job/memory.max", "max\n"},
          {"/sys/fs/cgroup/user/job/memory.current", "4096\n"}},
         {MSI_BOUND_HOST, 0, 1000 * KIB, 0}},
        {"a limit, of which a cache is given back",
         {MEMINFO("1000000", "0"),
          {"/proc/self/cgroup", "0::/job\n"},
          {"/sys/fs/cgroup/job/memory.max", "104857600\n"},
          {"/sys/fs/cgroup/job/memory.current", "94371840\n"},
          {"/sys/fs/cgroup/job/memory.stat", "anon 83886080\ninactive_file_x 7\n"
                                             "inactive_file 1048576\n"}},
         {MSI_BOUND_CGROUP, 0, 11 * MIB, 100 * MIB}},
        {"a limit of a group above, tighter than its own",
         {MEMINFO("1000000", "0"),
          {"/proc/self/cgroup", "0::/user/job\n"},
          {"/sys/fs/cgroup/user/job/memory.max", "104857600\n"},
          {"/sys/fs/cgroup/user/job/memory.current", "0\n"},
          {"/sys/fs/cgroup/user/memory.max", "10485760\n"},
          {"/sys/fs/cgroup/user/memory.current", "1048576\n"}},
         {MSI_BOUND_CGROUP, 0, 9 * MIB, 10 * MIB}},
        {"a container, whose group is the mount",
         {MEMINFO("1000000", "0"),
          {"/proc/self/cgroup", "0::/docker/abc\n"},
          {"/sys/fs/cgroup/memory.max", "10485760\n"},
          {"/sys/fs/cgroup/memory.current", "10485761\n"}},
         {MSI_BOUND_CGROUP, 0, 0, 10 * MIB}},
        {"swap without and with a limit of its own",
         {MEMINFO("1000000", "2048"),
          {"/proc/self/cgroup", "0::/user/job\n"},
          {"/sys/fs/cgroup/user/job/memory.max", "10485760\n"},
          {"/sys/fs/cgroup/user/job/memory.current", "0\n"},
          {"/sys/fs/cgroup/user/memory.max", "10485760\n"},
          {"/sys/fs/cgroup/user/memory.current", "0\n"},
          {"/sys/fs/cgroup/user/memory.swap.max", "1048576\n"},
          {"/sys/fs/cgroup/user/memory.swap.current", "1024\n"}},
         {MSI_BOUND_CGROUP, 0, 11 * MIB - 1024, 10 * MIB}},
        {"version 1, and a limit that means none",
         {MEMINFO("1000000", "2048"),
          {"/proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/job/part\n0::/\n"},
          {"/sys/fs/cgroup/memory/job/part/memory.limit_in_bytes", "9223372036854771712\n"},
          {"/sys/fs/cgroup/memory/job/part/memory.usage_in_bytes", "1048576\n"},
          {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "10485760\n"},
          {"/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3145728\n"},
          {"/sys/fs/cgroup/memory/job/memory.stat", "cache 9\ntotal_inactive_file 1048576\n"},
          {"/sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes", "11534336\n"},
          {"/sys/fs/cgroup/memory/job/memory.memsw.usage_in_bytes", "3145728\n"}},
         {MSI_BOUND_CGROUP, 0, 9 * MIB, 10 * MIB}},
    };

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(cases); i++) {
        char name[32], root[400];

        snprintf(name, sizeof(name), "machine-%d", (int)i);
        snprintf(root, sizeof(root), "%s", temp_path(name));
        assert_true(mkdir(root, 0700) == 0 || errno == EEXIST);
        make_machine(root, cases[i].files);
        msi_bound found = msi_memory_left(root);

        if (found.kind != cases[i].expected.kind || found.left != cases[i].expected.left ||
            (found.kind == MSI_BOUND_CGROUP && found.limit != cases[i].expected.limit)) {
            fail_msg("%s: kind %d, %lld left of %lld", cases[i].what, (int)found.kind,
                     (long long)found.left, (long long)found.limit);
        }
    }
}

static void test_comm_bounds__knows_this_machine(void **state)
{
    msi_bound here = msi_memory_left("");
    char text[128];

    (void)state;
    assert_int_not_equal(here.kind, MSI_BOUND_NONE);
    assert_true(here.left > 16 * MIB && here.left < INT64_MAX);
    assert_non_null(strstr(msi_bound_text(here, text, sizeof(text)), " bytes are "));
}

/* -- limits of a process ----------------------------------------------------------------------- */

static ms_status limit_to(int resource, rlim_t nbytes)
{
    struct rlimit limit;

    EXPECT(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = nbytes;
    EXPECT(setrlimit(resource, &limit) == 0);
    return MS_OK;
}

enum { SEGMENT = 64 * MIB };

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
        cmocka_unit_test(test_comm_bounds__finds_the_tightest_limit),
        cmocka_unit_test(test_comm_bounds__knows_this_machine),
        cmocka_unit_test(test_comm_bounds__fails_where_files_may_not_be_that_large),
        cmocka_unit_test(test_comm_bounds__fails_where_address_space_is_short),
        cmocka_unit_test(
            test_comm_bounds__starts_no_ranks_where_files_may_not_hold_the_control_block),
        cmocka_unit_test(test_comm_bounds__holds_for_memory_of_one_rank_too),
    };

    return cmocka_run_group_tests_name("comm/bounds", tests, NULL, NULL);
}
