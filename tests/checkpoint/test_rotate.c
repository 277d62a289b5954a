/* runtime/checkpoint/store.c: what saving a step removes of the checkpoints of earlier ones. */
#include "ckpt_test.h"

static void test_checkpoint_rotate__leaves_greater_steps(void **state)
{
    const char *root = path_of("rotated");

    for (uint64_t s = 1; s <= 5; s++) {
        assert_ok(save_small(root, ms_checkpoint_step_name((int64_t)s * 10), s));
    }
    assert_ok(save_small(root, "step-00000030", 3)); /* somebody went back */
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_rotate(root, 30, 0));
    assert_int_equal(6, count_entries(root, "")); /* with latest */
    assert_ok(ms_checkpoint_rotate(root, 30, 2));
    assert_int_equal(5, count_entries(root, ""));
    assert_ok(load_small(inside(root, "step-00000020"), 2));
    assert_ok(ms_checkpoint_rotate(root, 30, 1));
    ms_warnings_capture(false);
    assert_int_equal(4, count_entries(root, ""));
    for (uint64_t s = 3; s <= 5; s++) {
        assert_ok(load_small(inside(root, ms_checkpoint_step_name((int64_t)s * 10)), s));
    }
    assert_fails(MS_VALUE_ERROR, "at least 1 checkpoint, or all (0), got -1",
                 ms_checkpoint_rotate(root, 30, -1));
}

/* One that says no step, whatever it is called, is no checkpoint of a run's. */
static void save_without_step(const char *root, const char *name)
{
    ms_checkpoint_writer *w;
    ms_comm *self;

    assert_ok(ms_comm_self(&self));
    assert_ok(ms_checkpoint_begin(&w, self, root, name));
    assert_ok(ms_checkpoint_commit(w, "{}"));
}

static void test_checkpoint_rotate__leaves_other_names(void **state)
{
    static const char *const names[] = {"best",           "step-1",
                                        "step--0000001",  "step-00000007",
                                        "step-00000010x", "step-99999999999999999999"};
    const char *root = path_of("named");
    ms_checkpoint_loader *none;
    ms_checkpoint *c;
    ms_comm *self;

    for (int i = 0; i < MSI_COUNT(names); i++) {
        save_without_step(root, names[i]);
    }
    assert_ok(ms_comm_self(&self));
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_load_latest_step(&none, self, root)); /* nor is one resumed from */
    ms_warnings_capture(false);
    assert_null(none);
    assert_ok(save_small(root, "step-00000011", 1)); /* which is step 10 */
    assert_ok(save_small(root, "step-00000020", 2));
    assert_ok(save_small(root, "step-00000030", 3));
    assert_ok(ms_checkpoint_rotate(root, 30, 1));
    assert_int_equal(MSI_COUNT(names) + 3, count_entries(root, "")); /* with latest */
    for (int i = 0; i < MSI_COUNT(names); i++) {
        assert_ok(ms_checkpoint_open(&c, inside(root, names[i])));
        ms_checkpoint_close(c);
    }
    assert_ok(load_small(inside(root, "step-00000011"), 1));
    assert_ok(load_small(inside(root, "step-00000030"), 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_rotate__leaves_greater_steps),
        cmocka_unit_test(test_checkpoint_rotate__leaves_other_names),
    };

    return cmocka_run_group_tests_name("checkpoint/rotate", tests, NULL, NULL);
}
