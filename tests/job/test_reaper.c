/* runtime/job/reaper.c: ranks and what they leave behind end with the launch, and nothing
 * else does. */
#include "launch_test.h"

/* -- what ranks leave behind ------------------------------------------------------------------- */

/* A child, a grandchild without parent, one in a session of its own that does not end when asked.
 */
static ms_status leave_children(void *user, int32_t rank)
{
    scene *x = user;
    pid_t self = getpid();

    if (rank != 0) {
        return MS_OK;
    }
    for (int32_t i = 0; i < 3; i++) {
        if (fork() == 0 && (i == 0 || fork() == 0)) {
            if (i == 2) {
                setsid();
                signal(SIGTERM, SIG_IGN);
            }
            atomic_store(&x->pid[i], getpid());
            atomic_fetch_add(&x->ready, 1);
            sleep_ms(60000);
            _exit(0);
        }
        if (getpid() != self) {
            _exit(0); /* the parent of a grandchild */
        }
    }
    wait_until_ready(x, 3);
    return MS_OK;
}

static void test_job_reaper__ends_what_ranks_left_behind(void **state)
{
    scene *x = scene_new();
    const char *cause;

    (void)state;
    assert_int_equal(run_processes(2, leave_children, x, &cause), 0);
    assert_int_equal(atomic_load(&x->ready), 3);
    for (int32_t i = 0; i < 3; i++) {
        assert_false(runs(atomic_load(&x->pid[i])));
    }
    assert_false(has_children());
    scene_free(x);
}

static ms_status leave_a_child(void *user, int32_t rank)
{
    scene *x = user;

    if (rank == 0 && fork() == 0) {
        atomic_store(&x->pid[0], getpid());
        sleep_ms(60000);
        _exit(0);
    }
    while (rank == 0 && atomic_load(&x->pid[0]) == 0) {
        sleep_ms(1);
    }
    return MS_OK;
}

/* -- deaths of launcher and reaper ------------------------------------------------------------- */

static ms_status leave_a_child_and_sleep(void *user, int32_t rank)
{
    scene *x = user;

    MS_TRY(leave_a_child(user, rank));
    atomic_store(&x->pid[1 + rank], getpid());
    atomic_fetch_add(&x->ready, 1);
    sleep_ms(60000);
    return MS_OK;
}

static pid_t start_launcher(scene *x)
{
    pid_t pid = fork();

    if (pid == 0) {
        const char *cause;
        int32_t code = run_processes(2, leave_a_child_and_sleep, x, &cause);

        _exit(strncmp(cause, "the process that keeps the ranks (", 34) == 0 ? 77 : code);
    }
    wait_until_ready(x, 2);
    return pid;
}

static pid_t reaper_of(const scene *x)
{
    pid_t reaper = 0;
    char state;

    assert_true(msi_process_look(atomic_load(&x->pid[1]), &state, &reaper));
    return reaper;
}

static void test_job_reaper__ends_all_when_its_launcher_is_killed(void **state)
{
    scene *x = scene_new();

    (void)state;
    pid_t pid = start_launcher(x), reaper = reaper_of(x);

    kill(pid, SIGKILL);
    assert_int_equal(code_of(pid), 1000 + SIGKILL);
    assert_true(ends_soon(reaper));
    for (int32_t i = 0; i < 3; i++) {
        assert_false(runs(atomic_load(&x->pid[i])));
    }
    scene_free(x);
}

static void test_job_reaper__is_missed_when_it_is_killed(void **state)
{
    scene *x = scene_new();

    (void)state;
    pid_t pid = start_launcher(x);

    kill(reaper_of(x), SIGKILL);
    assert_int_equal(code_of(pid), 77);
    assert_true(ends_soon(atomic_load(&x->pid[1])));
    assert_true(ends_soon(atomic_load(&x->pid[2])));
    kill(atomic_load(&x->pid[0]), SIGKILL); /* nobody is left to end it */
    scene_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_reaper__ends_what_ranks_left_behind),
        cmocka_unit_test(test_job_reaper__ends_all_when_its_launcher_is_killed),
        cmocka_unit_test(test_job_reaper__is_missed_when_it_is_killed),
    };

    return CAN_FORK ? cmocka_run_group_tests_name("job/reaper", tests, NULL, NULL) : 0;
}
