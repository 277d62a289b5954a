/* runtime/backend/pressure.c: when a host's collector should run, whatever memory is left. */
#include "pressure.h"

#include "backend.h"
#include "ms_test.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t mib = 1 << 20, plenty = (int64_t)1 << 40;

static bool is_due(msi_pressure *p, int64_t held, int64_t activations, int64_t left)
{
    return !msi_pressure_is_calm(p, held) && !msi_pressure_fall(p, held, activations) &&
           msi_pressure_due(p, held, left);
}

/* Held when it is asked for, by steps of a MiB above `held`, all that comes leaked. */
static int64_t due_at(msi_pressure *p, int64_t held, int64_t left)
{
    const int64_t first = held;

    while (!is_due(p, held, held - first, left)) {
        held += mib;
        left -= mib;
    }
    return held;
}

/* How often it is asked for while `held` goes to `to` by steps of 10 MiB, all of it needed, and
 * what is above `kept` activations. */
static int32_t asked(msi_pressure *p, int64_t held, int64_t to, int64_t kept, int64_t left)
{
    int32_t n = 0;

    for (; held != to; held += held < to ? 10 * mib : -10 * mib) {
        if (is_due(p, held, held - kept, left)) {
            msi_pressure_collected(p, held, held - kept);
            n++;
        }
    }
    return n;
}

/* ... by a step that begins with `kept`, goes up to `most` and falls again. */
static int32_t asked_by_step(msi_pressure *p, int64_t kept, int64_t most, int64_t left)
{
    const int32_t n = asked(p, kept, most, kept, left);

    assert_int_equal(0, asked(p, most, kept, kept, left));
    return n;
}

static void test_backend_pressure__allows_256_mib_or_what_activations_hold(void **state)
{
    msi_pressure p;

    (void)state;
    msi_pressure_init(&p);
    assert_int_equal(257 * mib, due_at(&p, 0, plenty));
    msi_pressure_collected(&p, 1000 * mib, 255 * mib);
    assert_int_equal(1257 * mib, due_at(&p, 1000 * mib, plenty));
    msi_pressure_collected(&p, 5000 * mib, 700 * mib);
    assert_int_equal(5701 * mib, due_at(&p, 5000 * mib, plenty));
}

static void test_backend_pressure__a_step_that_holds_no_more_never_asks_once_known(void **state)
{
    const int64_t keeps[] = {0, 100 * mib, 2000 * mib};

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(keeps); i++) {
        const int64_t kept = keeps[i], most = kept + 3000 * mib;
        msi_pressure p;

        msi_pressure_init(&p);
        assert_in_range(asked(&p, 0, kept, kept, plenty), 0, 8);
        assert_in_range(asked_by_step(&p, kept, most, plenty), 1, 5);
        assert_in_range(asked_by_step(&p, kept, most, plenty), 0, 5);
        for (int32_t step = 2; step < 100; step++) {
            assert_int_equal(0, asked_by_step(&p, kept, most, step % 2 == 0 ? plenty : 0));
        }
    }
}

/* An evaluation, say, between steps that keep gradients and steps that do not. */
static void test_backend_pressure__nor_do_steps_that_fall_to_different_depths(void **state)
{
    msi_pressure p;

    (void)state;
    msi_pressure_init(&p);
    for (int32_t round = 0; round < 50; round++) {
        int32_t n = 0;

        n += asked(&p, 500 * mib, 3000 * mib, 500 * mib, plenty);
        n += asked(&p, 3000 * mib, 1000 * mib, 500 * mib, plenty);
        n += asked(&p, 1000 * mib, 2000 * mib, 500 * mib, plenty);
        n += asked(&p, 2000 * mib, 500 * mib, 500 * mib, plenty);
        assert_true(round < 2 || n == 0);
    }
}

/* What was needed once is no measure for what comes after it. */
static void test_backend_pressure__follows_what_is_held_down(void **state)
{
    msi_pressure p;

    (void)state;
    msi_pressure_init(&p);
    assert_in_range(asked(&p, 0, 3000 * mib, 0, plenty), 3, 5);
    assert_int_equal(260 * mib + mib, due_at(&p, 4 * mib, plenty)); /* and none of it remains */
    msi_pressure_collected(&p, 5 * mib, mib);
    assert_int_equal(262 * mib, due_at(&p, 5 * mib, plenty));

    msi_pressure_collected(&p, 9000 * mib, 9000 * mib);
    assert_false(is_due(&p, 1000 * mib, 700 * mib, plenty)); /* part of it remains */
    assert_false(is_due(&p, 1700 * mib, 1400 * mib, plenty));
    assert_true(is_due(&p, 1701 * mib, 1401 * mib, plenty));

    msi_pressure_collected(&p, 3000 * mib, 3000 * mib);
    assert_int_equal(57 * mib, due_at(&p, 4 * mib, 105 * mib)); /* and 52 MiB are left by then */
}

/* 64 GiB of data that are used up a batch at a time, by steps of 2 GiB. */
static void test_backend_pressure__does_not_ask_for_every_batch_that_is_used_up(void **state)
{
    msi_pressure p;
    int32_t n = 0;

    (void)state;
    msi_pressure_init(&p);
    asked(&p, 0, 65536 * mib - 6 * mib, 0, plenty);
    for (int64_t kept = 65530 * mib; kept > 0; kept -= 10 * mib) {
        n += asked(&p, kept, kept + 2000 * mib, kept, plenty);
        n += asked(&p, kept + 2000 * mib, kept - 10 * mib, kept, plenty);
    }
    assert_in_range(n, 1, 200);
}

static void test_backend_pressure__a_step_is_known_until_most_of_what_came_is_leaked(void **state)
{
    msi_pressure p;

    (void)state;
    msi_pressure_init(&p);
    for (int32_t step = 0; step < 3; step++) {
        asked_by_step(&p, 100 * mib, 3000 * mib, plenty);
    }
    assert_in_range(due_at(&p, 100 * mib, plenty) / mib, 3001, 6000);
    msi_pressure_collected(&p, 100 * mib, 0);
    assert_int_equal(357 * mib, due_at(&p, 100 * mib, plenty));
    msi_pressure_collected(&p, 100 * mib, 0);
    asked_by_step(&p, 100 * mib, 3000 * mib, plenty);
    assert_in_range(due_at(&p, 100 * mib, plenty) / mib, 357, 357 + 100 / 4);
}

/* Ranks that leak side by side, and do not know of each other. */
static void leak(int32_t n_ranks, int64_t memory)
{
    msi_pressure rank[16];
    int64_t held[16] = {0}, left = memory;
    int32_t looks = 0, collections = 0;

    for (int32_t r = 0; r < n_ranks; r++) {
        msi_pressure_init(&rank[r]);
    }
    for (int32_t turn = 0; turn < 10000; turn++) {
        int32_t r = turn % n_ranks;

        held[r] += mib;
        left -= mib;
        assert_true(left >= 0);
        looks += !msi_pressure_is_calm(&rank[r], held[r]);
        if (is_due(&rank[r], held[r], held[r], left)) {
            left += held[r];
            held[r] = 0;
            msi_pressure_collected(&rank[r], 0, 0);
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
    static msi_mem_block *small[SMALL];
    msi_mem_block *large;

    (void)state;
    ms_memory_collected();
    assert_false(ms_memory_collect_due());
    assert_ok(msi_alloc(ctx, 300 * mib, MS_MEM_ACTIVATION, &large));
    assert_true(ms_memory_collect_due());
    assert_true(ms_memory_collect_due()); /* until it has run */
    ms_memory_collected();
    assert_false(ms_memory_collect_due());
    msi_release(large);
    ms_memory_collected();
    for (int32_t i = 0; i < SMALL; i++) {
        assert_ok(msi_alloc(ctx, 4, MS_MEM_ACTIVATION, &small[i]));
    }
    assert_true(ms_memory_collect_due());
    for (int32_t i = 0; i < SMALL; i++) {
        msi_release(small[i]);
    }
    assert_false(ms_memory_collect_due());
}

static bool is_due_under_a_limit(int64_t nbytes, int64_t limit)
{
    const struct rlimit data = {.rlim_cur = (rlim_t)limit, .rlim_max = RLIM_INFINITY};
    msi_mem_block *block;
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
        cmocka_unit_test(test_backend_pressure__a_step_that_holds_no_more_never_asks_once_known),
        cmocka_unit_test(test_backend_pressure__nor_do_steps_that_fall_to_different_depths),
        cmocka_unit_test(test_backend_pressure__follows_what_is_held_down),
        cmocka_unit_test(test_backend_pressure__does_not_ask_for_every_batch_that_is_used_up),
        cmocka_unit_test(test_backend_pressure__a_step_is_known_until_most_of_what_came_is_leaked),
        cmocka_unit_test(test_backend_pressure__comes_before_memory_runs_out_on_many_ranks),
        cmocka_unit_test(test_backend_pressure__comes_before_a_limit_of_the_process),
        cmocka_unit_test(test_backend_pressure__counts_all_that_is_live_and_its_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
