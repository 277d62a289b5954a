/* runtime/fsdp/exchange: the slot protocol under adversarial timing. One rank sleeps at random at
 * every change of state; the parameters must not notice. And what the words of a slot say. */
#include "slot.h"
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

static void test_fsdp_slots__two_ranks_two_slots(void **state)
{
    (void)state;
    run_with_jitter(2, 2, steps_wanted());
}

static void test_fsdp_slots__two_ranks_three_slots(void **state)
{
    (void)state;
    run_with_jitter(2, 3, steps_wanted());
}

static void test_fsdp_slots__three_ranks_two_slots(void **state)
{
    (void)state;
    run_with_jitter(3, 2, steps_wanted());
}

static void test_fsdp_slots__three_ranks_three_slots(void **state)
{
    (void)state;
    run_with_jitter(3, 3, steps_wanted());
}

static void test_fsdp_slots__four_ranks_two_slots(void **state)
{
    (void)state;
    run_with_jitter(4, 2, steps_wanted());
}

static void test_fsdp_slots__four_ranks_three_slots(void **state)
{
    (void)state;
    run_with_jitter(4, 3, steps_wanted());
}

/* A rank of generation 5 that has said 11, in the words that the others read. */
static const struct {
    uint64_t filled, reduced, dropped, said;
    bool has_filled, has_reduced, drops_filling, drops_reducing;
} words[] = {
    {4, 4, 0, 11, false, false, false, false}, /* not yet */
    {5, 4, 0, 11, true, false, false, false},  {5, 5, 0, 11, true, true, false, false},
    {6, 6, 0, 11, true, true, false, false},   /* further than we are */
    {5, 5, 0, 12, false, false, false, false}, /* with another program */
    {4, 4, 5, 11, false, false, true, true},   {5, 4, 5, 11, true, false, false, true},
    {5, 5, 6, 11, true, true, false, false}, /* a later one was dropped */
    {4, 4, 4, 11, false, false, false, false},
};

static void test_fsdp_slots__words_say_what_a_rank_has_done_or_dropped(void **state)
{
    msi_slot_word rank[2] = {{.filled = 5, .reduced = 5, .schedule_hash = 11}};
    const msi_slot slot = {.words = (char *)rank, .word_bytes = sizeof(rank[0]), .generation = 5};

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(words); i++) {
        rank[1].filled = words[i].filled;
        rank[1].reduced = words[i].reduced;
        rank[1].dropped = words[i].dropped;
        rank[1].schedule_hash = words[i].said;
        assert_int_equal(words[i].has_filled, msi_slot_has(&slot, 1, MSI_SLOT_FILLED, 11));
        assert_int_equal(words[i].has_reduced, msi_slot_has(&slot, 1, MSI_SLOT_REDUCED, 11));
        assert_int_equal(words[i].drops_filling, msi_slot_has_dropped(&slot, 1, MSI_SLOT_FILLED));
        assert_int_equal(words[i].drops_filling ? 1 : -1,
                         msi_slot_dropped_by(&slot, 2, MSI_SLOT_FILLED));
        assert_int_equal(words[i].drops_reducing ? 1 : -1,
                         msi_slot_dropped_by(&slot, 2, MSI_SLOT_REDUCED));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_slots__words_say_what_a_rank_has_done_or_dropped),
        cmocka_unit_test(test_fsdp_slots__two_ranks_two_slots),
        cmocka_unit_test(test_fsdp_slots__two_ranks_three_slots),
        cmocka_unit_test(test_fsdp_slots__three_ranks_two_slots),
        cmocka_unit_test(test_fsdp_slots__three_ranks_three_slots),
        cmocka_unit_test(test_fsdp_slots__four_ranks_two_slots),
        cmocka_unit_test(test_fsdp_slots__four_ranks_three_slots),
    };
    return cmocka_run_group_tests_name("fsdp slots", tests, NULL, NULL);
}
