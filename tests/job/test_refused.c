/* Calls that the system refuses where ranks are started: what cannot do without says which. */
#include "launch_test.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* From now on this call fails when its argument `at` is `value`. */
static void refuse(uint32_t call, uint32_t at, uint32_t value)
{
    const uint32_t argument = (uint32_t)offsetof(struct seccomp_data, args) + 8 * at;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog code = {.len = MSI_COUNT(filter), .filter = filter};

    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &code), 0);
}

/* Does this, in a process of its own, end with this to say? "": with success. */
static bool says(ms_status (*start)(void), const char *expected)
{
    pid_t pid = fork();

    if (pid == 0) {
        ms_status status = start();
        const char *said = status == MS_OK ? "" : ms_error_message();

        if (strcmp(said, expected) != 0) {
            fprintf(stderr, "'%s', expected '%s'\n", said, expected);
        }
        _exit(strcmp(said, expected) == 0 ? 0 : 1);
    }
    return code_of(pid) == 0;
}

static ms_status meet(void *user, int32_t rank)
{
    ms_comm *world;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&world));
    return ms_comm_barrier(world);
}

static ms_status start_without_pidfd(void)
{
    const char *cause;

    refuse(SYS_pidfd_open, 1, 0);
    assert_int_equal(run_processes(2, meet, NULL, &cause), 0);
    return MS_OK;
}

static ms_status start_deaf_to_children(void)
{
    ms_launch *launch;
    int32_t rank;

    refuse(SYS_rt_sigaction, 0, SIGCHLD);
    return ms_launch_fork(&launch, 2, &rank);
}

static ms_status start_a_program_that_inherits_nothing(void)
{
    const char *const argv[] = {"true", NULL}, *cause;
    ms_launch *launch;
    int32_t code;

    refuse(SYS_fcntl, 2, 0); /* FD_CLOEXEC is 1 */
    MS_TRY(ms_launch_exec(&launch, 1, argv, true));
    MS_TRY(ms_launch_wait(launch, &code, &cause));
    return MS_FAIL(MS_RUNTIME_ERROR, "code %d: %s", (int)code, without_pid(cause));
}

static void test_job_refused__pidfd_open_is_not_needed(void **state)
{
    (void)state;
    assert_true(says(start_without_pidfd, ""));
}

static void test_job_refused__sigaction_is_told(void **state)
{
    (void)state;
    assert_true(
        says(start_deaf_to_children, "cannot start 2 ranks: sigaction: Operation not permitted"));
}

static void test_job_refused__fcntl_of_what_ranks_inherit_is_told(void **state)
{
    (void)state;
    assert_true(says(start_a_program_that_inherits_nothing,
                     "code 126: rank 0 failed: cannot run true: Operation not permitted"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_refused__pidfd_open_is_not_needed),
        cmocka_unit_test(test_job_refused__sigaction_is_told),
        cmocka_unit_test(test_job_refused__fcntl_of_what_ranks_inherit_is_told),
    };

    return CAN_FORK ? cmocka_run_group_tests_name("job/refused", tests, NULL, NULL) : 0;
}
