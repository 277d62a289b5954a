/* runtime/comm/positions.c, wait.c: waits that last long are announced, with where everybody is. */
#include "rank_test.h"

#include "group.h"

#include <signal.h>
#include <time.h>

static void sleep_ms(int64_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

typedef struct scene {
    _Atomic int32_t pid[3];
    _Atomic int32_t go_on; /* for rank 1 */
    _Atomic int32_t warnings;
    int32_t nap_ms; /* how long rank 1 sleeps; 0: until it may go on */
    bool spins;     /* it does not sleep meanwhile */
    int wake[2];    /* pipe it reads from to sleep */
    char warning[1536];
} scene;

static scene *scene_new(void)
{
    scene *x = (scene *)(void *)reports_new(2);

    assert_int_equal(pipe(x->wake), 0);
    return x;
}

static void scene_free(scene *x)
{
    close(x->wake[0]);
    close(x->wake[1]);
    reports_free((report *)(void *)x, 2);
}

static void keep_warnings(scene *x)
{
    const char *kind, *text;

    while (ms_warning_take(&kind, &text)) {
        snprintf(x->warning, sizeof(x->warning), "%s", text);
        atomic_fetch_add(&x->warnings, 1);
    }
    ms_warnings_capture(false);
}

/* All ranks keep the warnings they give. */
static ms_status wait_for_the_late_rank(void *user, int32_t rank)
{
    scene *x = user;
    ms_comm *world;
    char byte;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    ms_warnings_capture(true);
    atomic_store(&x->pid[rank], getpid());
    if (rank == 1 && x->nap_ms > 0) {
        sleep_ms(x->nap_ms);
    } else if (rank == 1 && x->spins) {
        while (atomic_load(&x->go_on) == 0) {
        }
    } else if (rank == 1) {
        (void)!read(x->wake[0], &byte, 1);
    }
    ms_status status = ms_comm_barrier(world);

    keep_warnings(x);
    return status;
}

static void go_on(scene *x)
{
    atomic_store(&x->go_on, 1);
    assert_int_equal(write(x->wake[1], "x", 1), 1);
}

static void assert_says(const char *text, const char *expected)
{
    if (strstr(text, expected) == NULL) {
        fail_msg("'%s' does not contain '%s'", text, expected);
    }
}

/* Three ranks in a job of their own; comes back when all are at work. */
static pid_t start_job(scene *x)
{
    pid_t pid = fork();

    if (pid == 0) {
        const char *cause;

        _exit(run_processes(3, wait_for_the_late_rank, x, &cause));
    }
    for (int32_t r = 0; r < 3; r++) {
        for (int32_t i = 0; i < 10000 && atomic_load(&x->pid[r]) == 0; i++) {
            sleep_ms(1);
        }
    }
    return pid;
}

static int32_t code_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void test_comm_positions__tell_who_lets_others_wait_and_what_it_does(void **state)
{
    static const char *const states[] = {"S asleep", "R running", "T stopped"};
    enum { JOBS = MSI_COUNT(states) };
    scene *x[JOBS];
    pid_t job[JOBS];

    (void)state;
    if (!CAN_FORK) {
        skip();
    }
    setenv("MS_COMM_ANNOUNCE", "1", 1);
    for (int32_t i = 0; i < JOBS; i++) {
        x[i] = scene_new();
        x[i]->spins = i == 1;
        job[i] = start_job(x[i]);
        if (i == 2) {
            kill(atomic_load(&x[i]->pid[1]), SIGSTOP);
        }
    }
    unsetenv("MS_COMM_ANNOUNCE");
    sleep_ms(2000);
    for (int32_t i = 0; i < JOBS; i++) {
        char position[96];

        go_on(x[i]);
        kill(atomic_load(&x[i]->pid[1]), SIGCONT);
        assert_int_equal(code_of(job[i]), 0);              /* it was only a warning */
        assert_int_equal(atomic_load(&x[i]->warnings), 1); /* one for all */
        assert_says(x[i]->warning, "has waited 1 s in barrier (sequence 2) for rank 1; last ");
        snprintf(position, sizeof(position), "calls: rank 1 (pid %d, %s): barrier() (sequence 1), ",
                 (int)atomic_load(&x[i]->pid[1]), states[i]);
        assert_says(x[i]->warning, position);
        snprintf(position, sizeof(position), "rank 0 (pid %d): barrier() (sequence 2)",
                 (int)atomic_load(&x[i]->pid[0]));
        assert_says(x[i]->warning, position);
        scene_free(x[i]);
    }
}

static void test_comm_positions__are_told_of_threads_too(void **state)
{
    scene *x = scene_new();

    (void)state;
    x->nap_ms = 1700;
    setenv("MS_COMM_ANNOUNCE", "1", 1);
    assert_ok(ms_dist_threads(3, wait_for_the_late_rank, x));
    unsetenv("MS_COMM_ANNOUNCE");
    assert_int_equal(atomic_load(&x->warnings), 1);
    assert_string_equal(
        x->warning, "rank 0 has waited 1 s in barrier (sequence 2) for rank 1; last calls: rank "
                    "1: barrier() (sequence 1), rank 0: barrier() (sequence 2), rank 2: "
                    "barrier() (sequence 2)");
    scene_free(x);
}

/* Rank 1 lets the others wait for the first thing they call. */
static ms_status begin_late(void *user, int32_t rank)
{
    scene *x = user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    ms_warnings_capture(true);
    if (rank == 1) {
        sleep_ms(x->nap_ms);
    }
    ms_status status = ms_comm_barrier(world);

    keep_warnings(x);
    return status;
}

static void test_comm_positions__are_told_sooner_while_somebody_has_not_begun(void **state)
{
    scene *x = scene_new();

    (void)state;
    x->nap_ms = 1700;
    setenv("MS_COMM_ANNOUNCE", "3", 1);
    assert_ok(ms_dist_threads(2, begin_late, x));
    unsetenv("MS_COMM_ANNOUNCE");
    assert_int_equal(atomic_load(&x->warnings), 1);
    assert_string_equal(x->warning,
                        "rank 0 has waited 1 s in barrier (sequence 1) for rank 1; last calls: "
                        "rank 1: nothing (sequence 0), rank 0: barrier() (sequence 1)");
    scene_free(x);
}

/* All ranks but the first let it wait. */
static ms_status come_late(void *user, int32_t rank)
{
    scene *x = user;
    const char *kind, *text;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    ms_warnings_capture(true);
    if (rank > 0) {
        sleep_ms(1500);
    }
    ms_status status = ms_comm_barrier(world);

    if (rank == 0 && ms_warning_take(&kind, &text)) {
        snprintf(x->warning, sizeof(x->warning), "%s", text);
    }
    ms_warnings_capture(false);
    return status;
}

/* Ranks named in text[begin, end): "rank 3" or, in lists, a number. */
static int32_t count_named(const char *begin, const char *end, const char *before)
{
    int32_t n = 0;

    for (const char *at = begin; (at = strstr(at, before)) != NULL && at < end; at++) {
        n++;
    }
    return n;
}

static void test_comm_positions__say_how_many_are_not_told(void **state)
{
    enum { MANY = 60 };
    scene *x = scene_new();
    int32_t more = 0;

    (void)state;
    setenv("MS_COMM_ANNOUNCE", "1", 1);
    assert_ok(ms_dist_threads(MANY, come_late, x));
    unsetenv("MS_COMM_ANNOUNCE");
    const char *calls = strstr(x->warning, " more; last calls: ");
    const char *list = strstr(x->warning, "for ranks 1, 2, 3,");

    assert_non_null(calls);
    assert_non_null(list);
    const char *last = strstr(list, " and ");

    assert_int_equal(sscanf(last, " and %d more", &more), 1);
    assert_int_equal(1 + count_named(list, last, ", ") + more, MANY - 1);
    last = strstr(calls, " and ");
    assert_non_null(last);
    assert_int_equal(sscanf(last, " and %d more", &more), 1);
    assert_int_equal(count_named(calls, last, "rank ") + more, MANY);
    scene_free(x);
}

static void test_comm_positions__are_not_asked_for_while_a_whole_job_is_stopped(void **state)
{
    scene *x = scene_new();

    (void)state;
    if (!CAN_FORK) {
        skip();
    }
    setenv("MS_COMM_TIMEOUT", "2", 1);
    pid_t job = start_job(x);

    unsetenv("MS_COMM_TIMEOUT");
    sleep_ms(200); /* ranks 0 and 2 wait by now; if not, this tests nothing */
    for (int32_t r = 0; r < 3; r++) {
        kill(atomic_load(&x->pid[r]), SIGSTOP);
    }
    sleep_ms(2200);
    kill(atomic_load(&x->pid[0]), SIGCONT);
    sleep_ms(200); /* it looks, and rank 1 is still not there */
    go_on(x);
    kill(atomic_load(&x->pid[1]), SIGCONT);
    kill(atomic_load(&x->pid[2]), SIGCONT);
    assert_int_equal(code_of(job), 0);
    scene_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_positions__tell_who_lets_others_wait_and_what_it_does),
        cmocka_unit_test(test_comm_positions__are_told_of_threads_too),
        cmocka_unit_test(test_comm_positions__are_told_sooner_while_somebody_has_not_begun),
        cmocka_unit_test(test_comm_positions__say_how_many_are_not_told),
        cmocka_unit_test(test_comm_positions__are_not_asked_for_while_a_whole_job_is_stopped),
    };

    return cmocka_run_group_tests_name("comm/positions", tests, NULL, NULL);
}
