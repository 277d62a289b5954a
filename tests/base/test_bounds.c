/* runtime/base/bounds.c: what memory there is. */
#include "base.h"
#include "bounds.h"
#include "ms_test.h"

#include <errno.h>
#include <sys/stat.h>

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

static void test_base_bounds__finds_the_tightest_limit(void **state)
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

static void test_base_bounds__knows_this_machine(void **state)
{
    msi_bound here = msi_memory_left("");
    char text[128];

    (void)state;
    assert_int_not_equal(here.kind, MSI_BOUND_NONE);
    assert_true(here.left > 16 * MIB && here.left < INT64_MAX);
    assert_non_null(strstr(msi_bound_text(here, text, sizeof(text)), " bytes are "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_bounds__finds_the_tightest_limit),
        cmocka_unit_test(test_base_bounds__knows_this_machine),
    };

    return cmocka_run_group_tests_name("base/bounds", tests, NULL, NULL);
}
