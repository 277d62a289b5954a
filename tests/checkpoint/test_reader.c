/* runtime/checkpoint/reader.c: what is read is all of one checkpoint, whatever others do meanwhile.
 */
#include "ckpt_test.h"

#include <sys/prctl.h>

static void test_checkpoint_reader__goes_on_with_what_it_opened(void **state)
{
    const char *root = path_of("opened");
    ms_checkpoint *old, *next;

    assert_ok(save_small(root, "s", 1));
    assert_ok(ms_checkpoint_open(&old, inside(root, "s")));
    assert_ok(save_small(root, "s", 2));
    assert_ok(ms_checkpoint_open(&next, inside(root, "s")));
    assert_ok(save_small(root, "t", 3));
    assert_ok(ms_checkpoint_prune(root, 1));
    assert_int_equal(-1, access(inside(root, "s"), F_OK));
    assert_ok(read_small(old, 1));
    assert_ok(read_small(next, 2));
    ms_checkpoint_close(old);
    ms_checkpoint_close(next);
}

enum { N_READS = 2000 };

static void test_checkpoint_reader__finds_the_one_or_the_other_while_it_is_replaced(void **state)
{
    const char *root = path_of("while");
    int first, last = 0;

    assert_ok(save_small(root, "s", 1));
    const pid_t writer = fork();

    if (writer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        for (uint64_t seed = 2;; seed++) {
            if (save_small(root, "s", seed) != MS_OK) {
                _exit(1);
            }
        }
    }
    first = seed_in(inside(root, "s"));
    for (int i = 0; i < N_READS || last < first + 10; i++) {
        const int seed = seed_in(inside(root, "s"));

        assert_true(seed >= last);
        last = seed;
    }
    assert_int_equal(0, kill(writer, SIGKILL));
    assert_true(was_killed(writer));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_reader__goes_on_with_what_it_opened),
        cmocka_unit_test(test_checkpoint_reader__finds_the_one_or_the_other_while_it_is_replaced),
    };

    return cmocka_run_group_tests_name("checkpoint/reader", tests, NULL, NULL);
}
