/* runtime/comm/notes.c: what ranks note to be the same is compared by the next collective, or when
 * they have left. */
#include "rank_test.h"

enum { RANKS = 3, MOST = 3 };

typedef struct note {
    const char *label, *text;
    double number[3];
    int32_t n_numbers;
} note;

/* `most` of all ranks but one, which notes `odd`. `told`: the difference, as it reads in a job of
 * two whose rank 1 is the odd one; NULL: there is none. */
typedef struct scene {
    note most[MOST], odd[MOST];
    const char *told;
} scene;

#define SEED                                                                                       \
    {                                                                                              \
        "seed", "7", {0}, 0                                                                        \
    }
#define STEP(lr, order)                                                                            \
    {                                                                                              \
        "step", "group lr order#", {1, lr, order}, 3                                               \
    }

static const scene scenes[] = {
    {{SEED, STEP(0.1, 9)}, {SEED, STEP(0.1, 9)}, NULL},
    {{SEED}, {{"seed", "8", {0}, 0}}, "seed is 7 on rank 0 and 8 on rank 1"},
    {{SEED, STEP(0.1, 9)}, {SEED, STEP(0.2, 9)}, "lr of step is 0.1 on rank 0 and 0.2 on rank 1"},
    {{STEP(0.1, 9)}, {STEP(0.1 + 0x1p-56, 9)}, "lr of step is 0.10000000000000001 on rank 0 and"},
    {{STEP(0.1, 9)}, {STEP(0.1, 8)}, "order of step is not the same on ranks 0 and 1"},
    {{SEED}, {SEED, STEP(0.1, 9)}, "rank 1 has step, rank 0 has not"},
    {{SEED, STEP(0.1, 9)}, {SEED}, "rank 0 has step, rank 1 has not"},
    {{SEED}, {STEP(0.1, 9)}, "rank 0 has seed where rank 1 has step"},
};

typedef struct play {
    const scene *scene;
    report *reports;
    bool leaves; /* rank 0, and nobody calls a collective */
} play;

static ms_status act(void *user, int32_t rank)
{
    const play *p = user;
    const note *notes = rank == 1 ? p->scene->odd : p->scene->most;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    for (int32_t i = 0; i < MOST && notes[i].label != NULL; i++) {
        MS_TRY(ms_comm_same(world, notes[i].label, notes[i].text, notes[i].number,
                            notes[i].n_numbers));
    }
    if (p->leaves) {
        return rank == 0 ? ms_dist_leave() : MS_OK;
    }
    double begin = ms_time();
    const ms_status status = ms_comm_barrier(world);

    report_write(&p->reports[rank], status, begin);
    return status;
}

static void check(const play *p, const char *cause)
{
    const char *told = p->scene->told;

    for (int32_t r = 0; r < RANKS && !p->leaves; r++) {
        const report *got = &p->reports[r];

        if (told == NULL ? got->status != MS_OK
                         : got->status != MS_COMM_ERROR || got->seconds > SOON_S ||
                               strstr(got->message, "the ranks differ: ") == NULL) {
            fail_msg("%s: rank %d got %s after %.3f s: '%s'", told, (int)r,
                     ms_status_name(got->status), got->seconds, got->message);
        }
    }
    if (told == NULL ? cause[0] != '\0' : strstr(cause, "the ranks differ: ") == NULL) {
        fail_msg("%s: the job ends with '%s'", told, cause);
    }
}

static void test_comm_notes__end_on_all_ranks_with_the_first_difference(void **state)
{
    play p = {.reports = reports_new(RANKS)};

    (void)state;
    for (int32_t i = 0; i < 2 * MSI_COUNT(scenes); i++) {
        const char *cause = "", *told = scenes[i / 2].told;

        p.scene = &scenes[i / 2];
        p.leaves = i % 2 == 1;
        check(&p, ms_dist_threads(RANKS, act, &p) != MS_OK ? ms_error_message() : "");
        if (told != NULL) {
            assert_fails(MS_COMM_ERROR, told, ms_dist_threads(2, act, &p));
        }
        if (CAN_FORK) {
            memset(p.reports, 0, sizeof(report) * RANKS);
            assert_int_equal(run_processes(RANKS, act, &p, &cause) != 0, told != NULL);
            check(&p, cause);
        }
    }
    reports_free(p.reports, RANKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_notes__end_on_all_ranks_with_the_first_difference),
    };

    return cmocka_run_group_tests_name("comm/notes", tests, NULL, NULL);
}
