/* runtime/comm/positions.c, wait.c: a long wait is announced once, with the call of every rank and
 * whether the late one is stopped. */
#include "rank_test.h"

#include <signal.h>
#include <time.h>

typedef struct scene {
    _Atomic int32_t warnings, pid; /* of all ranks; of rank 1 */
    char warning[1536];
} scene;

static void sleep_ms(int64_t ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static ms_status wait_for_the_late_rank(void *user, int32_t rank)
{
    scene *x = user;
    const char *kind, *text;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_barrier(world));
    ms_warnings_capture(true);
    if (rank == 1) {
        atomic_store(&x->pid, getpid());
        sleep_ms(1700);
    }
    const ms_status status = ms_comm_barrier(world);

    while (ms_warning_take(&kind, &text)) {
        snprintf(x->warning, sizeof(x->warning), "%s", text);
        atomic_fetch_add(&x->warnings, 1);
    }
    ms_warnings_capture(false);
    return status;
}

static void check_warning(const scene *x, const char *late)
{
    char last_call[96];

    assert_int_equal(atomic_load(&x->warnings), 1);
    snprintf(last_call, sizeof(last_call), "last calls: rank 1%s: barrier() (sequence 1), ", late);
    if (strstr(x->warning, "1 s in barrier (sequence 2) for rank 1; last calls: ") == NULL ||
        strstr(x->warning, last_call) == NULL) {
        fail_msg("'%s' does not contain '%s'", x->warning, last_call);
    }
}

static void test_comm_positions__name_the_late_rank_and_its_call(void **state)
{
    scene *x =
        mmap(NULL, 2 * sizeof(scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char late[64];
    int status = 0;

    (void)state;
    assert_true(x != MAP_FAILED);
    setenv("MS_COMM_ANNOUNCE", "1", 1);
    const pid_t job = CAN_FORK ? fork() : -1;

    if (job == 0) {
        const char *cause;

        _exit(run_processes(3, wait_for_the_late_rank, &x[0], &cause));
    }
    for (int32_t i = 0; job > 0 && i < 10000 && atomic_load(&x[0].pid) == 0; i++) {
        sleep_ms(1);
    }
    if (job > 0) {
        kill(atomic_load(&x[0].pid), SIGSTOP);
    }
    assert_ok(ms_dist_threads(3, wait_for_the_late_rank, &x[1]));
    unsetenv("MS_COMM_ANNOUNCE");
    if (job > 0) {
        kill(atomic_load(&x[0].pid), SIGCONT);
        assert_int_equal(waitpid(job, &status, 0), job);
        assert_int_equal(status, 0); /* a warning, no error */
        snprintf(late, sizeof(late), " (pid %d, stopped)", (int)atomic_load(&x[0].pid));
        check_warning(&x[0], late);
    }
    check_warning(&x[1], "");
    munmap(x, 2 * sizeof(scene));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_positions__name_the_late_rank_and_its_call),
    };

    return cmocka_run_group_tests_name("comm/positions", tests, NULL, NULL);
}
