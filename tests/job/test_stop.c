/* runtime/job/supervise.c, signals.c, launch.c: who is told to stop, and what a host is told. */
#include "launch_test.h"

static scene *x;

/* Ranks that do not end by SIGUSR1, and by SIGTERM as the system will. */
static void heard(int signal)
{
    (void)signal;
    atomic_fetch_add(&x->pid[0], 1);
}

static ms_status count_usr1(void *user, int32_t rank)
{
    (void)user;
    (void)rank;
    signal(SIGUSR1, heard);
    atomic_fetch_add(&x->ready, 1);
    for (;;) {
        sleep_ms(10);
    }
    return MS_OK;
}

static ms_status agree_until_term(void *user, int32_t rank)
{
    int32_t by = 0;

    (void)user;
    (void)rank;
    MS_TRY(ms_dist_catch_signals());
    atomic_fetch_add(&x->ready, 1);
    while (by != SIGTERM && by != SIGINT) {
        MS_TRY(ms_dist_stop_agreed(&by));
        atomic_store(&x->pid[0], by == SIGUSR1 ? 2 : atomic_load(&x->pid[0]));
        sleep_ms(1);
    }
    ms_dist_exit(128 + by);
    return MS_OK;
}

static ms_status leave_when_asked(void *user, int32_t rank)
{
    int32_t by = 0;

    (void)user;
    (void)rank;
    MS_TRY(ms_dist_catch_signals());
    atomic_fetch_add(&x->ready, 1);
    while (by == 0) {
        MS_TRY(ms_dist_stop_agreed(&by));
        sleep_ms(1);
    }
    return MS_OK;
}

/* A host of two ranks; its code is the job's, `pass` first passes on what it was asked. */
static pid_t start_host(rank_fn fn, bool pass)
{
    pid_t pid = fork();

    if (pid == 0) {
        const char *cause;
        int32_t code = run_processes(2, fn, NULL, &cause);

        if (pass) {
            ms_dist_pass_on_stop();
        }
        _exit(code);
    }
    wait_until_ready(x, 2);
    return pid;
}

static void check_term_counts_after_usr1(rank_fn fn, int later)
{
    x = scene_new();
    pid_t pid = start_host(fn, false);

    kill(pid, SIGUSR1);
    for (int32_t i = 0; i < 5000 && atomic_load(&x->pid[0]) < 2; i++) {
        sleep_ms(1);
    }
    assert_true(atomic_load(&x->pid[0]) >= 2);
    kill(pid, later);
    assert_int_equal(code_of(pid), 128 + later);
    scene_free(x);
}

static void test_job_stop__counts_a_request_over_an_earlier_usr1(void **state)
{
    (void)state;
    check_term_counts_after_usr1(count_usr1, SIGTERM);
    check_term_counts_after_usr1(agree_until_term, SIGTERM);
    check_term_counts_after_usr1(agree_until_term, SIGINT);
}

static void leave_with_77(int signal)
{
    (void)signal;
    _exit(77);
}

static void test_job_stop__is_passed_on_to_a_host_that_goes_on(void **state)
{
    static const struct {
        int signal;
        void (*handler)(int);
        int32_t code;
    } hosts[] = {
        {SIGTERM, SIG_DFL, 1000 + SIGTERM},
        {SIGINT, SIG_DFL, 1000 + SIGINT},
        {SIGHUP, SIG_DFL, 1000 + SIGHUP},
        {SIGTERM, leave_with_77, 77},
        {SIGUSR1, SIG_DFL, 0}, /* for the ranks alone */
    };

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(hosts); i++) {
        x = scene_new();
        signal(hosts[i].signal, hosts[i].handler);
        pid_t pid = start_host(leave_when_asked, true);

        signal(hosts[i].signal, SIG_DFL);
        kill(pid, hosts[i].signal);
        assert_int_equal(code_of(pid), hosts[i].code);
        scene_free(x);
    }
}

static ms_status rest(void *user, int32_t rank)
{
    (void)user;
    (void)rank;
    sleep_ms(300);
    return MS_OK;
}

static void test_job_stop__a_copy_of_the_host_cannot_wait(void **state)
{
    ms_launch *launch = launch_processes(2, rest, NULL);
    const char *cause;
    int32_t code = -1;

    (void)state;
    pid_t pid = fork();

    if (pid == 0) {
        ms_status status = ms_launch_wait(launch, &code, &cause);

        _exit(status == MS_RUNTIME_ERROR && strstr(ms_error_message(), "in a copy (fork)") ? 0 : 1);
    }
    assert_int_equal(code_of(pid), 0);
    assert_ok(ms_launch_wait(launch, &code, &cause));
    assert_string_equal(cause, "");
    assert_int_equal(code, 0);
}

static void test_job_stop__names_why_a_program_of_a_long_path_cannot_run(void **state)
{
    char path[512], *end = path + snprintf(path, sizeof(path), "/tmp/moonshard-stop-%d", getpid());
    const char *cause;
    ms_launch *launch;
    int32_t code;

    (void)state;
    memset(end, 'd', 200);
    end[200] = '\0';
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fclose(f);
    assert_ok(ms_launch_exec(&launch, 1, (const char *const[]){path, NULL}, false));
    assert_ok(ms_launch_wait(launch, &code, &cause));
    remove(path);
    assert_int_equal(code, 126);
    assert_non_null(strstr(cause, "it is not executable (chmod +x)"));
    assert_non_null(strstr(cause, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_stop__counts_a_request_over_an_earlier_usr1),
        cmocka_unit_test(test_job_stop__is_passed_on_to_a_host_that_goes_on),
        cmocka_unit_test(test_job_stop__a_copy_of_the_host_cannot_wait),
        cmocka_unit_test(test_job_stop__names_why_a_program_of_a_long_path_cannot_run),
    };

    return CAN_FORK ? cmocka_run_group_tests_name("job/stop", tests, NULL, NULL) : 0;
}
