/* runtime/fsdp/schedule/agree.c: ranks that would compute different bits are found before they
 * train. */
#include "rank_test.h"
#include "tiny_gpt.h"

/* Plans of all ranks, in shared memory. */
typedef struct outcome {
    bool same_numerics[3];
    int32_t warnings[3];
    char warning[1024]; /* rank 0's first */
} outcome;

static ms_status look_at_plan(outcome *o, int32_t rank)
{
    tiny_config config = tiny_defaults();
    const char *kind, *text;
    ms_fsdp_plan plan;
    tiny_model m;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    ms_warnings_capture(true);
    MS_TRY(tiny_new(&m, &config, world));
    MS_TRY(ms_fsdp_tree_plan_get(m.tree, 1, &plan));
    o->same_numerics[rank] = plan.same_numerics;
    while (ms_warning_take(&kind, &text)) {
        if (rank == 0 && o->warnings[rank] == 0) {
            snprintf(o->warning, sizeof(o->warning), "%s: %s", kind, text);
        }
        o->warnings[rank]++;
    }
    tiny_free(&m);
    return MS_OK;
}

static ms_status alike(void *user, int32_t rank)
{
    return look_at_plan(user, rank);
}

static ms_status last_is_older(void *user, int32_t rank)
{
    if (rank == 2) {
        setenv("MS_CPU_ISA", "v2", 1);
    }
    return look_at_plan(user, rank);
}

static outcome run(rank_fn fn)
{
    outcome *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *cause = "";

    assert_true(shared != MAP_FAILED);
    if (run_processes(3, fn, shared, &cause) != 0) {
        fail_msg("%s", cause);
    }
    const outcome o = *shared;

    munmap(shared, sizeof(*shared));
    return o;
}

static void test_fsdp_numerics__equal_ranks_keep_the_promise(void **state)
{
    if (!CAN_FORK) {
        skip();
    }
    const outcome o = run(alike);

    for (int32_t r = 0; r < 3; r++) {
        assert_true(o.same_numerics[r]);
        assert_int_equal(0, o.warnings[r]);
    }
}

static void test_fsdp_numerics__a_rank_that_computes_differently_is_named_once(void **state)
{
    if (!CAN_FORK || msi_kernels_of(2) == NULL) {
        skip();
    }
    if (msi_kernels_of(3) == NULL) {
        print_message("SKIPPED: this machine runs x86-64-v2 only\n");
        skip();
    }
    const outcome o = run(last_is_older);

    for (int32_t r = 0; r < 3; r++) {
        assert_false(o.same_numerics[r]);
        assert_int_equal(r == 0 ? 1 : 0, o.warnings[r]);
    }
    assert_non_null(strstr(o.warning, "UserWarning: the ranks compute differently"));
    assert_non_null(strstr(o.warning, "rank 2 has x86-64-v2"));
}

/* The parent runs no kernel: its children choose theirs on their own. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_numerics__equal_ranks_keep_the_promise),
        cmocka_unit_test(test_fsdp_numerics__a_rank_that_computes_differently_is_named_once),
    };
    return cmocka_run_group_tests_name("fsdp/numerics", tests, NULL, NULL);
}
