/* A save that is cut short: the process is killed at each step on disk, each step fails, each
 * allocation fails. The earlier checkpoint still loads, and the new one is whole or not there. */
#include "ckpt_test.h"
#include "oom.h"

#include <errno.h>
#include <stdlib.h>

static int countdown; /* of steps on disk, to the one that is hit */

static int die_at(const char *step, const char *path)
{
    (void)step;
    (void)path;
    return countdown-- == 0 ? kill(getpid(), SIGKILL) : 0;
}

static int fail_at(const char *step, const char *path)
{
    (void)step;
    (void)path;
    return countdown >= 0 && countdown-- == 0 ? ENOSPC : 0;
}

static void test_checkpoint_faults__a_kill_at_each_step_leaves_a_whole_checkpoint(void **state)
{
    int k = 0, n_old = 0, n_new = 0;

    (void)state;
    for (bool died = true; died; k++) {
        const char *root = path_of("killed"), *latest;

        assert_ok(save_small(root, "best", 1));
        const pid_t child = fork();

        if (child == 0) {
            countdown = k;
            msi_io_hook = die_at;
            _exit(save_small(root, "best", 2) == MS_OK ? 0 : 1);
        }
        died = was_killed(child);
        const int seed = seed_in(inside(root, "best"));

        n_old += seed == 1;
        n_new += seed == 2;
        assert_true(seed == 2 || died);
        assert_ok(ms_checkpoint_latest(&latest, root));
        assert_non_null(latest);
        assert_int_equal(seed, seed_in(latest));
        assert_ok(ms_checkpoint_prune(root, 1)); /* removes what the dead process left */
        assert_int_equal(0, count_entries(root, ".tmp-"));
    }
    assert_true(n_old >= 8 && n_new >= 3);
}

/* Hit the first, second, ... of what `*hit` counts down to, until a save meets none of it. After
 * the rename the checkpoint is saved, and a failure is a warning. */
static void fail_each(const char *root, int *hit, ms_status kind)
{
    bool met = true;

    ms_warnings_capture(true);
    for (int k = 0; met; k++) {
        assert_true(k < 2000);
        assert_ok(save_small(root, "best", 1));
        *hit = k;
        const ms_status status = save_small(root, "best", 2);

        met = *hit < 0;
        *hit = -1;
        assert_true(status == MS_OK || (met && status == kind));
        assert_int_equal(status == MS_OK ? 2 : 1, seed_in(inside(root, "best")));
        if (status != MS_OK) {
            assert_int_equal(2, count_entries(root, "")); /* best, latest */
        }
    }
    ms_warnings_capture(false);
}

static void test_checkpoint_faults__each_failed_step_on_disk_leaves_the_one_before(void **state)
{
    (void)state;
    countdown = -1;
    msi_io_hook = fail_at;
    fail_each(path_of("full"), &countdown, MS_IO_ERROR);
    msi_io_hook = NULL;
}

static void test_checkpoint_faults__each_failed_allocation_leaves_the_one_before(void **state)
{
    (void)state;
    fail_each(path_of("memory"), &n_before, MS_OUT_OF_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_faults__a_kill_at_each_step_leaves_a_whole_checkpoint),
        cmocka_unit_test(test_checkpoint_faults__each_failed_step_on_disk_leaves_the_one_before),
        cmocka_unit_test(test_checkpoint_faults__each_failed_allocation_leaves_the_one_before),
    };

    return cmocka_run_group_tests_name("checkpoint/faults", tests, NULL, NULL);
}
