/* runtime/backend/pressure.c: when a host's collector should run, whatever memory is left. */
#include "pressure.h"

#include "backend.h"
#include "ms_test.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t mib = 1 << 20, plenty = (int64_t)1 << 40;

static bool is_due(msi_pressure *p, int64_t held, int64_t left)
{
    return held > p->look_at && msi_pressure_due(p, held, left);
}

/* Held when it is asked for, by steps of a MiB above `held`. */
static int64_t due_at(msi_pressure *p, int64_t held, int64_t left)
{
    while (!is_due(p, held, left)) {
        held += mib;
    }
    return held;
}

static void test_backend_pressure__allows_256_mib_or_what_activations_hold(void **state)
{
    msi_pressure p;

    (void)state;
    msi_pressure_begin(&p, 0, 0);
    assert_int_equal(257 * mib, due_at(&p, 0, plenty));
    msi_pressure_begin(&p, 1000 * mib, 255 * mib);
    assert_int_equal(1257 * mib, due_at(&p, 900 * mib, plenty));
    msi_pressure_begin(&p, 5000 * mib, 700 * mib);
    assert_int_equal(5701 * mib, due_at(&p, 0, plenty));
}

static void test_backend_pressure__a_step_that_holds_no_more_never_asks(void **state)
{
    msi_pressure p;
    int32_t n = 0;

    (void)state;
    msi_pressure_begin(&p, 0, 0);
    for (int32_t step = 0; step < 100; step++) {
        for (int64_t held = 100 * mib; held <= 3000 * mib; held += 100 * mib) {
            if (is_due(&p, held, step % 2 == 0 ? plenty : 0)) {
                msi_pressure_begin(&p, held, held - 100 * mib);
                n++;
                assert_int_equal(0, step);
            }
        }
    }
    assert_in_range(n, 1, 5);
}

/* Ranks that leak side by side, and do not know of each other. */
static void leak(int32_t n_ranks, int64_t memory)
{
    msi_pressure rank[16];
    int64_t held[16] = {0}, left = memory;
    int32_t looks = 0, collections = 0;

    for (int32_t r = 0; r < n_ranks; r++) {
        msi_pressure_begin(&rank[r], 0, 0);
    }
    for (int32_t turn = 0; turn < 10000; turn++) {
        int32_t r = turn % n_ranks;

        held[r] += mib;
        left -= mib;
        assert_true(left >= 0);
        looks += held[r] > rank[r].look_at;
        if (is_due(&rank[r], held[r], left)) {
            left += held[r];
            held[r] = 0;
            msi_pressure_begin(&rank[r], 0, 0);
            collections++;
        }
    }
    assert_true(collections >= 10000 / (memory / mib));
    assert_in_range(looks, collections, 50 * (collections + n_ranks));
}

static void test_backend_pressure__comes_before_memory_runs_out_on_many_ranks(void **state)
{
    (void)state;
    for (int32_t n_ranks = 1; n_ranks <= 16; n_ranks++) {
        leak(n_ranks, 320 * mib);
        leak(n_ranks, 1000 * mib);
    }
}

static void test_backend_pressure__counts_all_that_is_live_and_its_records(void **state)
{
    enum { SMALL = 300000 };
    ms_context *ctx = msi_context();
    static void *small[SMALL];
    void *large;

    (void)state;
    ms_memory_collected();
    assert_false(ms_memory_collect_due());
    assert_ok(msi_alloc(ctx, 300 * mib, MS_MEM_ACTIVATION, &large));
    assert_true(ms_memory_collect_due());
    ms_memory_collected();
    assert_false(ms_memory_collect_due());
    msi_release(ctx, large);
    ms_memory_collected();
    for (int32_t i = 0; i < SMALL; i++) {
        assert_ok(msi_alloc(ctx, 4, MS_MEM_ACTIVATION, &small[i]));
    }
    assert_true(ms_memory_collect_due());
    for (int32_t i = 0; i < SMALL; i++) {
        msi_release(ctx, small[i]);
    }
    assert_false(ms_memory_collect_due());
}

static bool is_due_under_a_limit(int64_t nbytes, int64_t limit)
{
    const struct rlimit data = {.rlim_cur = (rlim_t)limit, .rlim_max = RLIM_INFINITY};
    void *block;
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        ms_memory_trim();
        ms_memory_collected();
        _exit(setrlimit(RLIMIT_DATA, &data) == 0 &&
                      msi_alloc(msi_context(), nbytes, MS_MEM_ACTIVATION, &block) == MS_OK
                  ? ms_memory_collect_due()
                  : 2);
    }
    assert_int_equal(pid, waitpid(pid, &status, 0));
    assert_true(WIFEXITED(status));
    assert_in_range(WEXITSTATUS(status), 0, 1);
    return WEXITSTATUS(status) == 1;
}

static void test_backend_pressure__comes_before_a_limit_of_the_process(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* its shadow is larger than any limit */
#endif
    assert_false(is_due_under_a_limit(140 * mib, 2048 * mib));
    assert_true(is_due_under_a_limit(140 * mib, 256 * mib));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_pressure__allows_256_mib_or_what_activations_hold),
        cmocka_unit_test(test_backend_pressure__a_step_that_holds_no_more_never_asks),
        cmocka_unit_test(test_backend_pressure__comes_before_memory_runs_out_on_many_ranks),
        cmocka_unit_test(test_backend_pressure__comes_before_a_limit_of_the_process),
        cmocka_unit_test(test_backend_pressure__counts_all_that_is_live_and_its_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
