/* Models in sub-groups: two groups of ranks train two models at once, each as if it were alone. */
#include "rank_test.h"

#include "tiny_gpt.h"

enum { RANKS = 4, EVERY = 2 }; /* world collectives: after so many steps of the longer training */

typedef struct job {
    tiny_config config[2]; /* by group: ranks 0 and 2, ranks 1 and 3 */
    tiny_result *result;   /* (RANKS) */
} job;

static job make_job(void)
{
    job j = {.config = {tiny_defaults(), tiny_defaults()}};

    for (int32_t g = 0; g < 2; g++) {
        j.config[g].world = 2;
        j.config[g].micro_batches = 4;
        j.config[g].dropout = 0.1;
        j.config[g].max_norm = 0.5;
    }
    j.config[0].steps = 3 * EVERY;
    j.config[1].steps = 3;
    j.config[1].strategy = MS_FSDP_SHARD_GRAD_OP;
    j.config[1].param_dtype = MS_DTYPE_BF16;
    return j;
}

/* What all ranks do together now and then. */
typedef struct meeting {
    ms_comm *world;
    int32_t every, rank;
} meeting;

static ms_status meet(void *user, int32_t step)
{
    const meeting *m = user;
    int32_t all[RANKS];

    if ((step + 1) % m->every != 0) {
        return MS_OK;
    }
    MS_TRY(msi_comm_gather_bytes(m->world, "meeting", &m->rank, sizeof(m->rank), all));
    for (int32_t r = 0; r < RANKS; r++) {
        EXPECT(all[r] == r);
    }
    return MS_OK;
}

static ms_status train_half(void *user, int32_t rank)
{
    const job *j = user;
    const int32_t g = rank % 2;
    meeting m = {.every = g == 0 ? EVERY : 1, .rank = rank};
    ms_comm *half;

    MS_TRY(ms_comm_world(&m.world));
    MS_TRY(ms_comm_split(&half, m.world, g, 0));
    MS_TRY(tiny_train_in(half, &j->config[g], &j->result[rank], meet, &m));
    ms_comm_free(half);
    return ms_comm_barrier(m.world);
}

static void assert_as_alone(const job *j, const tiny_result *alone)
{
    for (int32_t r = 0; r < RANKS; r++) {
        const tiny_result *want = &alone[r % 2], *got = &j->result[r];

        assert_int_equal(got->hash, want->hash);
        assert_true(got->norm == want->norm);
        assert_memory_equal(got->counts, want->counts, sizeof(got->counts));
        assert_true(r >= 2 || got->loss == want->loss);
    }
    assert_int_not_equal(alone[0].hash, alone[1].hash);
}

static void test_fsdp_groups__train_two_models_as_if_each_were_alone(void **state)
{
    const size_t nbytes = RANKS * sizeof(tiny_result);
    job j = make_job();
    tiny_result alone[2];
    const char *cause = "";

    j.result = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j.result != MAP_FAILED);
    for (int32_t g = 0; g < 2; g++) {
        assert_ok(tiny_train(&j.config[g], &alone[g]));
    }
    assert_ok(ms_dist_threads(RANKS, train_half, &j));
    assert_as_alone(&j, alone);
    if (CAN_FORK) {
        memset(j.result, 0, nbytes);
        if (run_processes(RANKS, train_half, &j, &cause) != 0) {
            fail_msg("processes: %s", cause);
        }
        assert_as_alone(&j, alone);
    }
    munmap(j.result, nbytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_groups__train_two_models_as_if_each_were_alone),
    };

    return cmocka_run_group_tests_name("fsdp/groups", tests, NULL, NULL);
}
