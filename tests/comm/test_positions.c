/* runtime/comm/positions.c, wait.c: a long wait is announced once, with the call of every rank and
 * the state of a process that is late. */
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
    _Atomic int32_t warnings; /* of all ranks */
    _Atomic bool go_on;       /* for rank 1, unless it sleeps */
    int32_t nap_ms;           /* 0: rank 1 spins */
    char warning[1536];
} scene;

static ms_status wait_for_the_late_rank(void *user, int32_t rank)
{
    scene *x = user;
    const char *kind, *text;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    ms_warnings_capture(true);
    atomic_store(&x->pid[rank], getpid());
    if (rank == 1) {
        sleep_ms(x->nap_ms);
        while (x->nap_ms == 0 && !atomic_load(&x->go_on)) {
        }
    }
    const ms_status status = ms_comm_barrier(world);

    while (ms_warning_take(&kind, &text)) {
        snprintf(x->warning, sizeof(x->warning), "%s", text);
        atomic_fetch_add(&x->warnings, 1);
    }
    ms_warnings_capture(false);
    return status;
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

static void check_warning(const scene *x, const char *late)
{
    char last_call[96];

    assert_int_equal(atomic_load(&x->warnings), 1);
    snprintf(last_call, sizeof(last_call), "last calls: rank 1%s: barrier() (sequence 1), ", late);
    if (strstr(x->warning, "1 s in barrier (sequence 2) for rank 1; ") == NULL ||
        strstr(x->warning, last_call) == NULL) {
        fail_msg("'%s' does not contain '%s'", x->warning, last_call);
    }
}

static void test_comm_positions__tell_which_rank_is_late_and_what_it_does(void **state)
{
    enum { JOBS = 3, NAP_MS = 1700 };
    static const char *const states[JOBS] = {"S asleep", "R running", "T stopped"};
    scene *x = mmap(NULL, (JOBS + 1) * sizeof(scene), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const int32_t n = CAN_FORK ? JOBS : 0;
    pid_t job[JOBS];

    (void)state;
    assert_true(x != MAP_FAILED);
    setenv("MS_COMM_ANNOUNCE", "1", 1);
    for (int32_t i = 0; i < n; i++) {
        x[i].nap_ms = i == 0 ? NAP_MS : 0;
        job[i] = start_job(&x[i]);
        if (i == 2) {
            kill(atomic_load(&x[i].pid[1]), SIGSTOP);
        }
    }
    x[JOBS].nap_ms = NAP_MS;
    assert_ok(ms_dist_threads(3, wait_for_the_late_rank, &x[JOBS]));
    check_warning(&x[JOBS], "");
    unsetenv("MS_COMM_ANNOUNCE");
    for (int32_t i = 0; i < n; i++) {
        char late[64];
        int status;

        atomic_store(&x[i].go_on, true);
        kill(atomic_load(&x[i].pid[1]), SIGCONT);
        assert_int_equal(waitpid(job[i], &status, 0), job[i]);
        assert_int_equal(status, 0); /* a warning, no error */
        snprintf(late, sizeof(late), " (pid %d, %s)", (int)atomic_load(&x[i].pid[1]), states[i]);
        check_warning(&x[i], late);
    }
    munmap(x, (JOBS + 1) * sizeof(scene));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_positions__tell_which_rank_is_late_and_what_it_does),
    };

    return cmocka_run_group_tests_name("comm/positions", tests, NULL, NULL);
}
