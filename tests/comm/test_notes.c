/* What ranks say that should be the same: compared by the next collective, without traffic. */
#include "rank_test.h"

enum { RANKS = 3 };

typedef struct said {
    const char *label, *text;
    double number[3];
    int32_t n_numbers;
} said;

#define MOST_NOTES 4

/* All ranks say `most` before a barrier, but one says `odd`; the error names `told` (NULL: there is
 * none), here with the ranks of a job of two whose rank 1 is the odd one. */
typedef struct scene {
    const char *name;
    said most[MOST_NOTES], odd[MOST_NOTES];
    const char *told;
} scene;

#define STEP "group lr order#"
#define LONG "0123456789012345678901234567890123456789012345678901234567890123456789"
#define UMLAUTS "ääääääääääääääääääää"

static const scene scenes[] = {
    {"nothing", {{0}}, {{0}}, NULL},
    {"the same",
     {{"seed", "7", {0}, 0}, {"step", STEP, {1, 0.1, 9}, 3}},
     {{"seed", "7", {0}, 0}, {"step", STEP, {1, 0.1, 9}, 3}},
     NULL},
    {"another text",
     {{"seed", "7", {0}, 0}},
     {{"seed", "8", {0}, 0}},
     "seed is 7 on rank 0 and 8 on rank 1"},
    {"another number",
     {{"seed", "7", {0}, 0}, {"step", STEP, {1, 0.1, 9}, 3}},
     {{"seed", "7", {0}, 0}, {"step", STEP, {1, 0.2, 9}, 3}},
     "lr of step is 0.1 on rank 0 and 0.2 on rank 1"},
    {"the last bit",
     {{"step", STEP, {1, 0.1, 9}, 3}},
     {{"step", STEP, {1, 0.1 + 0x1p-56, 9}, 3}},
     "lr of step is 0.10000000000000001 on rank 0 and 0.10000000000000002 on rank 1"},
    {"another hash",
     {{"step", STEP, {1, 0.1, 9}, 3}},
     {{"step", STEP, {1, 0.1, 8}, 3}},
     "order of step is not the same on ranks 0 and 1"},
    {"one note more",
     {{"seed", "7", {0}, 0}},
     {{"seed", "7", {0}, 0}, {"step", STEP, {1, 0.1, 9}, 3}},
     "rank 1 has step (group 1, lr 0.1), rank 0 has not"},
    {"one note less",
     {{"seed", "7", {0}, 0}, {"step", STEP, {1, 0.1, 9}, 3}},
     {{"seed", "7", {0}, 0}},
     "rank 0 has step (group 1, lr 0.1), rank 1 has not"},
    {"another note",
     {{"clip", "max_norm", {1}, 1}},
     {{"step", STEP, {1, 0.1, 9}, 3}},
     "rank 0 has clip (max_norm 1) where rank 1 has step (group 1, lr 0.1)"},
    {"another order",
     {{"a", "1", {0}, 0}, {"b", "2", {0}, 0}},
     {{"b", "2", {0}, 0}, {"a", "1", {0}, 0}},
     "rank 0 has a 1 where rank 1 has b 2"},
    {"a long text that differs where it is cut",
     {{"files",
       "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890"
       "123456789x",
       {0},
       0}},
     {{"files",
       "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890"
       "123456789y",
       {0},
       0}},
     "files is 0123456789"},
    {"a long text that differs in what is cut out",
     {{"files", LONG "x" LONG LONG, {0}, 0}},
     {{"files", LONG "y" LONG LONG, {0}, 0}},
     "on ranks 0 and 1, and not the same where it is cut"},
    {"a long label that differs at its end",
     {{"'" LONG LONG ".weight'", "on", {0}, 0}},
     {{"'" LONG LONG ".bias'", "on", {0}, 0}},
     "rank 0 has "
     "'012345678901234567890123456...234567890123456789012345678901234567890123456789.weight' on "
     "where "
     "rank 1 has "
     "'012345678901234567890123456...01234567890123456789012345678901234567890123456789.bias' on"},
    {"a long label that differs in what is cut out",
     {{"'" LONG "x" LONG "'", "hash#", {1}, 1}},
     {{"'" LONG "y" LONG "'", "hash#", {1}, 1}},
     "9', not the same where it is cut"},
    {"a long label of characters of two bytes",
     {{"x" UMLAUTS UMLAUTS UMLAUTS ".a", "on", {0}, 0}},
     {{"x" UMLAUTS UMLAUTS UMLAUTS ".ab", "on", {0}, 0}},
     "rank 0 has xäääääääääääää...äääääääääääääääääääääääääää.a on where "
     "rank 1 has xäääääääääääää...ääääääääääääääääääääääääää.ab on"},
    {"a long label of other numbers",
     {{"'" LONG LONG ".weight'", "n", {1}, 1}},
     {{"'" LONG LONG ".weight'", "n", {2}, 1}},
     "n of '012345678901234567890123456...234567890123456789012345678901234567890123456789.weight' "
     "is 1 on rank 0 "
     "and 2 on"},
    {"more names than are kept",
     {{"step", LONG " lr " LONG, {1, 2, 3}, 3}},
     {{"step", LONG " lr " LONG, {1, 2, 4}, 3}},
     "number 3 of step is 3 on rank 0 and 4 on rank 1"},
    {"a name that is cut off",
     {{"step", LONG " lr " LONG "a", {1, 2, 3}, 3}},
     {{"step", LONG " lr " LONG "b", {1, 2, 3}, 3}},
     "(0123456789"},
};

typedef struct play {
    const scene *scene;
    int32_t odd_rank;
    report *reports;
} play;

static ms_status say(ms_comm *c, const said *s)
{
    return ms_comm_same(c, s->label, s->text, s->number, s->n_numbers);
}

static ms_status act(void *user, int32_t rank)
{
    const play *p = user;
    const said *lines = rank == p->odd_rank ? p->scene->odd : p->scene->most;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    for (int32_t i = 0; i < MOST_NOTES && lines[i].label != NULL; i++) {
        MS_TRY(say(world, &lines[i]));
    }
    double begin = ms_time();

    ms_status status = ms_comm_barrier(world);

    report_write(&p->reports[rank], status, begin);
    return status;
}

static void check_scene(const play *p)
{
    for (int32_t r = 0; r < RANKS; r++) {
        const report *told = &p->reports[r];
        bool as_told = p->scene->told == NULL
                           ? told->status == MS_OK
                           : told->status == MS_COMM_ERROR && told->seconds < SOON_S &&
                                 strstr(told->message, "the ranks differ: ") != NULL &&
                                 strstr(told->message, " (found at barrier(), sequence 2)") != NULL;

        if (!as_told) {
            fail_msg("%s: rank %d got %s after %.3f s: '%s'", p->scene->name, (int)r,
                     ms_status_name(told->status), told->seconds, told->message);
        }
    }
}

static void test_comm_notes__name_the_first_difference_on_all_ranks(void **state)
{
    play p = {.reports = reports_new(RANKS)};

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(scenes); i++) {
        for (int32_t way = 0; way < (CAN_FORK ? 2 : 1); way++) {
            const char *cause;

            p.scene = &scenes[i];
            p.odd_rank = (i + way) % RANKS;
            memset(p.reports, 0, sizeof(report) * RANKS);
            bool failed = way == 0 ? ms_dist_threads(RANKS, act, &p) != MS_OK
                                   : run_processes(RANKS, act, &p, &cause) != 0;

            check_scene(&p);
            assert_int_equal(failed, p.scene->told != NULL);
        }
    }
    reports_free(p.reports, RANKS);
}

/* -- two ranks, whose pair is the only one ----------------------------------------------------- */

static void test_comm_notes__say_both_values_and_ranks(void **state)
{
    play p = {.odd_rank = 1, .reports = reports_new(RANKS)};

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(scenes); i++) {
        p.scene = &scenes[i];
        if (p.scene->told != NULL) {
            assert_fails(MS_COMM_ERROR, p.scene->told, ms_dist_threads(2, act, &p));
        }
    }
    reports_free(p.reports, RANKS);
}

/* -- and leave --------------------------------------------------------------------------------- */

static ms_status say_and_leave(void *user, int32_t rank)
{
    const play *p = user;
    const said *lines = rank == p->odd_rank ? p->scene->odd : p->scene->most;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    for (int32_t i = 0; i < MOST_NOTES && lines[i].label != NULL; i++) {
        MS_TRY(say(world, &lines[i]));
    }
    if (rank == 0) {
        ms_dist_leave();
        MS_TRY(say(world, &(said){"sampling", "on", {0}, 0})); /* its own business now */
    }
    return MS_OK;
}

static void test_comm_notes__are_compared_when_ranks_have_left(void **state)
{
    play p = {.odd_rank = 1};

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(scenes); i++) {
        const char *told = scenes[i].told, *cause = "";

        p.scene = &scenes[i];
        if (told == NULL) {
            run_ranks(2, say_and_leave, &p);
            continue;
        }
        assert_fails(MS_COMM_ERROR, told, ms_dist_threads(2, say_and_leave, &p));
        assert_fails(MS_COMM_ERROR, " (found when they had left)",
                     ms_dist_threads(RANKS, say_and_leave, &p));
        if (CAN_FORK) {
            assert_int_equal(run_processes(2, say_and_leave, &p, &cause), 1);
            assert_non_null(strstr(cause, "the ranks differ: "));
            assert_non_null(strstr(cause, told));
        }
    }
}

/* A call that names what nobody waits for. */
static ms_status call_and_leave(void *user, int32_t rank)
{
    const int32_t *calls = user; /* of each rank */
    ms_comm *world;
    uint64_t seq;

    MS_TRY(ms_comm_world(&world));
    for (int32_t i = 0; i < calls[rank]; i++) {
        const msi_fingerprint fp = {.kind = MSI_COLL_UNSHARD,
                                    .dtype = MS_DTYPE_F32,
                                    .ndim = -1,
                                    .count = rank + 1,
                                    .slot = i};

        MS_TRY(ms_comm_same(world, "step", rank == 0 ? "a" : "b", NULL, 0));
        MS_TRY(msi_comm_publish(world, &fp, &seq));
    }
    return MS_OK;
}

static void test_comm_notes__and_calls_are_compared_when_ranks_have_left(void **state)
{
    (void)state;
    assert_fails(MS_COMM_ERROR,
                 "collective mismatch at sequence 1: rank 1 calls unshard(f32, 2 elements, slot 0, "
                 "generation 0), rank 0 has left; before that they differ: rank 1 has step b, rank "
                 "0 has not",
                 ms_dist_threads(2, call_and_leave, (int32_t[]){0, 2}));
    assert_fails(MS_COMM_ERROR,
                 "collective mismatch at sequence 1: rank 0 calls unshard(f32, 1 elements, slot 0, "
                 "generation 0), rank 1 calls unshard(f32, 2 elements, slot 0, generation 0); "
                 "before that they differ: step is a "
                 "on rank 0 and b on rank 1",
                 ms_dist_threads(2, call_and_leave, (int32_t[]){1, 2}));
}

/* -- many notes -------------------------------------------------------------------------------- */

static ms_status say_many(void *user, int32_t rank)
{
    const int32_t *n = user; /* notes, the place of the odd one, whether a barrier follows each */
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    for (int32_t i = 0; i < n[0]; i++) {
        const double number = rank == 1 && i == n[1] ? -1 : i;

        MS_TRY(ms_comm_same(world, "batch", "samples", &number, 1));
        if (n[2] != 0) {
            MS_TRY(ms_comm_barrier(world));
        }
    }
    return ms_comm_barrier(world);
}

static void test_comm_notes__are_found_as_long_as_they_are_kept(void **state)
{
    (void)state;
    assert_ok(ms_dist_threads(2, say_many, (int32_t[]){1000, -1, 0}));
    assert_fails(MS_COMM_ERROR, "samples of batch is 990 on rank 0 and -1 on rank 1",
                 ms_dist_threads(2, say_many, (int32_t[]){1000, 990, 0}));
    assert_fails(MS_COMM_ERROR, "noted different things, too long ago to name them",
                 ms_dist_threads(2, say_many, (int32_t[]){1000, 10, 0}));
    assert_fails(MS_COMM_ERROR, "samples of batch is 700 on rank 0 and -1 on rank 1",
                 ms_dist_threads(2, say_many, (int32_t[]){1000, 700, 1}));
}

/* -- before another difference, and alone ------------------------------------------------------ */

static ms_status say_and_call_differently(void *user, int32_t rank)
{
    ms_comm *world;
    char mine[16] = {0}, all[32];

    (void)user;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_same(world, "prefetch", rank == 0 ? "on" : "off", NULL, 0));
    return rank == 0 ? ms_comm_barrier(world)
                     : msi_comm_gather_bytes(world, "plan", mine, sizeof(mine), all);
}

static void test_comm_notes__are_told_beside_other_calls(void **state)
{
    (void)state;
    assert_fails(MS_COMM_ERROR,
                 "rank 0 calls barrier(), rank 1 calls all_gather(16 bytes, in plan); before "
                 "that they differ: prefetch is on on rank 0 and off on rank 1",
                 ms_dist_threads(2, say_and_call_differently, NULL));
}

static ms_status say_wrongly(void *user, int32_t rank)
{
    const double numbers[9] = {0};
    ms_comm *self;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_self(&self));
    EXPECT(ms_comm_same(self, "alone", "1", NULL, 0) == MS_OK);
    EXPECT(ms_comm_barrier(self) == MS_OK);
    EXPECT(ms_comm_same(self, "a", "x", numbers, 9) == MS_VALUE_ERROR);
    return MS_OK;
}

static void test_comm_notes__need_peers_and_arguments(void **state)
{
    (void)state;
    run_ranks(2, say_wrongly, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_notes__name_the_first_difference_on_all_ranks),
        cmocka_unit_test(test_comm_notes__say_both_values_and_ranks),
        cmocka_unit_test(test_comm_notes__are_compared_when_ranks_have_left),
        cmocka_unit_test(test_comm_notes__and_calls_are_compared_when_ranks_have_left),
        cmocka_unit_test(test_comm_notes__are_found_as_long_as_they_are_kept),
        cmocka_unit_test(test_comm_notes__are_told_beside_other_calls),
        cmocka_unit_test(test_comm_notes__need_peers_and_arguments),
    };

    return cmocka_run_group_tests_name("comm/notes", tests, NULL, NULL);
}
