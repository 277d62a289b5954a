/* runtime/fsdp/exchange: the slot protocol under adversarial timing. One rank sleeps at random at
 * every change of state; the parameters must not notice. */
#include "tiny_gpt.h"

#include <unistd.h>

static _Thread_local uint64_t dice;
static _Atomic int32_t sleeper; /* rank that sleeps; -1: each sometimes */

static void sleep_at_random(const ms_fsdp_unit *u)
{
    if (dice == 0) {
        dice = 0x9e3779b97f4a7c15u * (uint64_t)(u->rank + 1);
    }
    dice = msi_mix64(dice + 1);
    if ((sleeper < 0 || sleeper == u->rank) && dice % 4 == 0) {
        usleep((useconds_t)(dice >> 32) % 200);
    }
}

static void run_with_jitter(int32_t world, int32_t n_slots, int32_t steps)
{
    tiny_config config = tiny_defaults();
    tiny_result calm, shaken;

    config.world = world;
    config.n_slots = n_slots;
    config.micro_batches = world == 3 ? 3 : 4;
    config.steps = steps;
    config.forward_prefetch = true;
    assert_ok(tiny_train(&config, &calm));
    for (int32_t s = -1; s < 1; s++) {
        sleeper = s;
        msi_fsdp_state_changed = sleep_at_random;
        ms_status status = tiny_train(&config, &shaken);

        msi_fsdp_state_changed = NULL;
        assert_ok(status);
        assert_true(calm.hash == shaken.hash);
    }
}

/* MS_SLOT_STEPS=1000 for the long run. */
static int32_t steps_wanted(void)
{
    return (int32_t)msi_switch_int("MS_SLOT_STEPS", 60);
}

static void test_fsdp_slots__every_step_is_right_whichever_rank_sleeps(void **state)
{
    for (int32_t world = 2; world <= 4; world++) {
        for (int32_t slots = 2; slots <= 3; slots++) {
            run_with_jitter(world, slots, steps_wanted());
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_slots__every_step_is_right_whichever_rank_sleeps),
    };
    return cmocka_run_group_tests_name("fsdp slots", tests, NULL, NULL);
}
