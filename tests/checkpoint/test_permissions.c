/* runtime/checkpoint: what may not be opened is not taken for absent. */
#include "ckpt_test.h"

#include <linux/capability.h>
#include <sys/syscall.h>

/* Do permissions count for this thread, also where root runs the tests? */
static void obey_permissions(bool on)
{
    struct __user_cap_header_struct self = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
    const uint32_t past = 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH;

    assert_int_equal(0, syscall(SYS_capget, &self, sets));
    sets[0].effective = on ? sets[0].effective & ~past : sets[0].permitted;
    assert_int_equal(0, syscall(SYS_capset, &self, sets));
}

/* To go back to an older one, or begin anew, would lose it. */
static void test_checkpoint_permissions__a_step_that_may_not_be_opened_is_told(void **state)
{
    static const char *const closed[] = {"step-00000020", "step-00000020/manifest.json"};
    const char *latest, *kind, *message;

    for (int i = 0; i < 8; i++) {
        const bool linked = i / 2 % 2 == 0, others = i / 4 == 0;
        char name[32];

        snprintf(name, sizeof(name), "closed-%d", i);
        const char *root = path_of(name);

        if (others) {
            assert_ok(save_small(root, "step-00000010", 1));
        }
        assert_ok(save_small(root, "step-00000020", 2));
        if (!linked) {
            assert_int_equal(0, unlink(inside(root, "latest")));
        }
        assert_int_equal(0, chmod(inside(root, closed[i % 2]), 0));
        obey_permissions(true);
        ms_warnings_capture(true);
        assert_fails(MS_IO_ERROR, "step-00000020/manifest.json: Permission denied",
                     ms_checkpoint_latest(&latest, root));
        assert_null(latest);
        assert_ok(ms_checkpoint_prune(root, 1)); /* it counts for none, and stays */
        assert_int_equal(1 + linked + others, count_entries(root, ""));
        if (i % 2 == 0) {
            assert_fails(MS_IO_ERROR, "step-00000020: Permission denied",
                         save_small(root, "step-00000020", 3));
        }
        assert_ok(save_small(root, "step-00000030", 3));
        assert_ok(ms_checkpoint_latest(&latest, root)); /* older ones do not matter */
        assert_string_equal(inside(root, "step-00000030"), latest);
        assert_ok(ms_checkpoint_prune(root, 1));
        assert_int_equal(3, count_entries(root, "")); /* steps 20 and 30, latest */
        assert_false(ms_warning_take(&kind, &message));
        ms_warnings_capture(false);
        obey_permissions(false);
        assert_int_equal(0, chmod(inside(root, closed[i % 2]), 0700));
        assert_ok(load_small(inside(root, "step-00000020"), 2));
    }
}

/* Of any name, where the link leads. */
static void test_checkpoint_permissions__what_was_saved_last_is_told(void **state)
{
    const char *root = path_of("last"), *best = inside(root, "best"), *latest;

    assert_ok(save_small(root, "step-00000010", 1));
    assert_ok(save_small(root, "best", 2));
    assert_int_equal(0, chmod(best, 0));
    obey_permissions(true);
    assert_fails(MS_IO_ERROR, "last/best: Permission denied", ms_checkpoint_latest(&latest, root));
    assert_fails(MS_IO_ERROR, "last/best: Permission denied", ms_checkpoint_prune(root, 1));
    assert_fails(MS_IO_ERROR, "last/best: Permission denied", save_small(root, "best", 3));
    obey_permissions(false);
    assert_int_equal(0, chmod(best, 0700));
    assert_ok(load_small(best, 2));
    assert_int_equal(3, count_entries(root, ""));
}

/* Only its name tells what is in it. */
static void
test_checkpoint_permissions__another_folder_that_may_not_be_opened_is_noted(void **state)
{
    const char *root = path_of("private"), *latest, *kind, *message;

    assert_ok(save_small(root, "s1", 1));
    assert_int_equal(0, mkdir(inside(root, "theirs"), 0));
    assert_int_equal(0, mkdir(inside(root, "lost+found"), 0)); /* the root is a volume */
    obey_permissions(true);
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_string_equal(inside(root, "s1"), latest);
    assert_true(ms_warning_take(&kind, &message));
    assert_non_null(strstr(message, "is passed over: open "));
    assert_non_null(strstr(message, "private/theirs: Permission denied"));
    assert_false(ms_warning_take(&kind, &message));
    assert_ok(ms_checkpoint_prune(root, 1));
    assert_ok(save_small(root, "s2", 2));
    assert_false(ms_warning_take(&kind, &message));
    ms_warnings_capture(false);
    obey_permissions(false);
    assert_ok(load_small(inside(root, "latest"), 2));
}

/* The link leads into the root by another way, which is closed now. */
static void test_checkpoint_permissions__a_link_that_may_not_be_followed_is_told(void **state)
{
    const char *root = path_of("followed-to"), *way = path_of("way"), *latest;
    const char *leftover = inside(root, "latest.tmp-0123456789abcdef");

    assert_ok(save_small(root, "s1", 1));
    assert_ok(save_small(root, "s2", 2));
    assert_int_equal(0, unlink(inside(root, "latest")));
    assert_int_equal(0, mkdir(way, 0777));
    assert_int_equal(0, symlink("../followed-to", inside(way, "in")));
    assert_int_equal(0, symlink("../way/in/s1", inside(root, "latest")));
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_string_equal(inside(root, "s1"), latest);
    assert_int_equal(0, symlink("../way/in/s1", leftover)); /* a writer may hold where it leads */
    assert_int_equal(0, chmod(way, 0));
    obey_permissions(true);
    assert_fails(MS_IO_ERROR, "latest: Permission denied", ms_checkpoint_latest(&latest, root));
    ms_warnings_capture(true);
    assert_ok(save_small(root, "s2", 2));
    ms_warnings_capture(false);
    obey_permissions(false);
    assert_int_equal(0, chmod(way, 0700));
    assert_int_equal(1, count_entries(root, ".tmp-"));
    assert_ok(ms_checkpoint_prune(root, 2));
    assert_int_equal(0, count_entries(root, ".tmp-"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_permissions__a_step_that_may_not_be_opened_is_told),
        cmocka_unit_test(test_checkpoint_permissions__what_was_saved_last_is_told),
        cmocka_unit_test(
            test_checkpoint_permissions__another_folder_that_may_not_be_opened_is_noted),
        cmocka_unit_test(test_checkpoint_permissions__a_link_that_may_not_be_followed_is_told),
    };

    return cmocka_run_group_tests_name("checkpoint/permissions", tests, NULL, NULL);
}
