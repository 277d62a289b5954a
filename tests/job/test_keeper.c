/* runtime/job/keeper.c, calls.c: ranks and what they leave behind end with the launch, and nothing
 * else does. */
#include "launch_test.h"

#include <sys/resource.h>

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

static void test_job_keeper__ends_what_ranks_left_behind(void **state)
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

/* A process of the host's own. */
static pid_t start_own(void)
{
    pid_t own = fork();

    if (own == 0) {
        sleep_ms(60000);
        _exit(0);
    }
    return own;
}

static void end_own(pid_t own)
{
    assert_true(runs(own));
    kill(own, SIGKILL);
    assert_int_equal(code_of(own), 1000 + SIGKILL);
}

static void test_job_keeper__leaves_children_of_its_host_alone(void **state)
{
    scene *x = scene_new();
    const char *cause;
    int32_t code;
    pid_t before = start_own();
    ms_launch *launch = launch_processes(2, leave_a_child, x);
    pid_t after = start_own(), ended = fork();

    (void)state;
    if (ended == 0) {
        _exit(3);
    }
    assert_ok(ms_launch_wait(launch, &code, &cause));
    assert_int_equal(code, 0);
    assert_false(runs(atomic_load(&x->pid[0]))); /* a rank's child */
    assert_int_equal(code_of(ended), 3);         /* the host's to reap */
    end_own(before);
    end_own(after);
    assert_false(has_children());
    scene_free(x);
}

/* -- deaths of launcher and keeper ------------------------------------------------------------- */

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

static pid_t keeper_of(const scene *x)
{
    pid_t keeper = 0;
    char state;

    assert_true(msi_process_look(atomic_load(&x->pid[1]), &state, &keeper));
    return keeper;
}

static void test_job_keeper__ends_all_when_its_launcher_is_killed(void **state)
{
    scene *x = scene_new();

    (void)state;
    pid_t pid = start_launcher(x), keeper = keeper_of(x);

    kill(pid, SIGKILL);
    assert_int_equal(code_of(pid), 1000 + SIGKILL);
    assert_true(ends_soon(keeper));
    for (int32_t i = 0; i < 3; i++) {
        assert_false(runs(atomic_load(&x->pid[i])));
    }
    scene_free(x);
}

static void test_job_keeper__is_missed_when_it_is_killed(void **state)
{
    scene *x = scene_new();

    (void)state;
    pid_t pid = start_launcher(x);

    kill(keeper_of(x), SIGKILL);
    assert_int_equal(code_of(pid), 77);
    assert_true(ends_soon(atomic_load(&x->pid[1])));
    assert_true(ends_soon(atomic_load(&x->pid[2])));
    kill(atomic_load(&x->pid[0]), SIGKILL); /* nobody is left to end it */
    scene_free(x);
}

static void test_job_keeper__obeys_though_it_was_stopped(void **state)
{
    scene *x = scene_new();

    (void)state;
    pid_t pid = start_launcher(x);

    kill(keeper_of(x), SIGSTOP);
    kill(pid, SIGTERM);
    assert_int_equal(code_of(pid), 128 + SIGTERM);
    assert_false(runs(atomic_load(&x->pid[1])));
    scene_free(x);
}

static void test_job_keeper__tells_of_deaths_though_it_was_stopped(void **state)
{
    scene *x = scene_new();

    (void)state;
    pid_t pid = start_launcher(x);

    kill(keeper_of(x), SIGSTOP);
    kill(atomic_load(&x->pid[1]), SIGKILL);
    assert_int_equal(code_of(pid), 128 + SIGKILL);
    assert_false(runs(atomic_load(&x->pid[2])));
    scene_free(x);
}

static ms_status stop_the_keeper(void *user, int32_t rank)
{
    (void)user;
    if (rank == 0) {
        kill(getppid(), SIGSTOP);
    }
    return MS_OK;
}

static void test_job_keeper__starts_all_ranks_though_the_first_stops_it(void **state)
{
    pid_t pid = fork();

    (void)state;
    if (pid == 0) {
        const char *cause;

        _exit(run_processes(20, stop_the_keeper, NULL, &cause));
    }
    assert_int_equal(code_of(pid), 0);
}

/* -- limits ------------------------------------------------------------------------------------ */

static const char *const places[] = {"cannot make a control block of ",
                                     ": socketpair: ", ": signalfd: "};

/* With ever more file descriptors: as soon as ranks start, signals reach them; before, the error
 * names the place and the limit, and leaves signals as they were. */
static int32_t launch_with_few_files(scene *x)
{
    for (rlim_t files = 3; files < 64; files++) {
        ms_launch *launch;
        const char *cause;
        sigset_t blocked;
        int32_t rank, code;
        char limit[64];

        snprintf(limit, sizeof(limit), "Too many open files (%d files may be open: ulimit -n)",
                 (int)files);
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){files, 1024});
        ms_status status = ms_launch_fork(&launch, 1, &rank);

        if (rank == 0) {
            sleep_ms(5000);
            _exit(0);
        }
        if (status == MS_OK) {
            kill(getpid(), SIGTERM);
            return ms_launch_wait(launch, &code, &cause) == MS_OK ? code : 99;
        }
        sigprocmask(SIG_SETMASK, NULL, &blocked);
        if (sigismember(&blocked, SIGTERM)) {
            return 98;
        }
        if (status != MS_RUNTIME_ERROR || strstr(ms_error_message(), limit) == NULL) {
            return 99;
        }
        for (int32_t i = 0; i < MSI_COUNT(places); i++) {
            atomic_fetch_add(&x->pid[i], strstr(ms_error_message(), places[i]) != NULL);
        }
    }
    return 97;
}

static void test_job_keeper__names_the_limit_of_open_files(void **state)
{
    scene *x = scene_new();
    pid_t pid = fork();

    (void)state;
    if (pid == 0) {
        _exit(launch_with_few_files(x));
    }
    assert_int_equal(code_of(pid), 128 + SIGTERM);
    for (int32_t i = 0; i < MSI_COUNT(places); i++) {
        assert_true(atomic_load(&x->pid[i]) > 0);
    }
    scene_free(x);
}

/* As a user of its own who may have `processes`: the launcher, the keeper, ranks. */
static int32_t launch_with_few_processes(rlim_t processes)
{
    char expected[160];
    ms_launch *launch;
    int32_t rank;

    snprintf(expected, sizeof(expected),
             "cannot start %s: fork: Resource temporarily unavailable (this user may have %d "
             "processes: ulimit -u; a cgroup may allow less)",
             processes == 1 ? "2 ranks" : "rank 1", (int)processes);
    if (setrlimit(RLIMIT_NPROC, &(struct rlimit){processes, processes}) != 0 ||
        setresuid(100000 + (uid_t)getpid(), 100000 + (uid_t)getpid(), (uid_t)-1) != 0) {
        return 98;
    }
    ms_status status = ms_launch_fork(&launch, 2, &rank);

    if (rank >= 0) {
        sleep_ms(60000); /* ends when the other cannot be started */
    }
    return status == MS_RUNTIME_ERROR && strcmp(ms_error_message(), expected) == 0 &&
                   !has_children()
               ? 0
               : 99;
}

static void test_job_keeper__names_the_limit_of_processes(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        skip(); /* who is not may not become somebody who has no processes yet */
    }
    for (rlim_t processes = 1; processes <= 3; processes += 2) {
        pid_t pid = fork();

        if (pid == 0) {
            _exit(launch_with_few_processes(processes));
        }
        int32_t code = code_of(pid);

        if (code == 98) {
            skip(); /* nor may this root */
        }
        assert_int_equal(code, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_keeper__ends_what_ranks_left_behind),
        cmocka_unit_test(test_job_keeper__leaves_children_of_its_host_alone),
        cmocka_unit_test(test_job_keeper__ends_all_when_its_launcher_is_killed),
        cmocka_unit_test(test_job_keeper__is_missed_when_it_is_killed),
        cmocka_unit_test(test_job_keeper__obeys_though_it_was_stopped),
        cmocka_unit_test(test_job_keeper__tells_of_deaths_though_it_was_stopped),
        cmocka_unit_test(test_job_keeper__starts_all_ranks_though_the_first_stops_it),
        cmocka_unit_test(test_job_keeper__names_the_limit_of_open_files),
        cmocka_unit_test(test_job_keeper__names_the_limit_of_processes),
    };

    return CAN_FORK ? cmocka_run_group_tests_name("job/keeper", tests, NULL, NULL) : 0;
}
