/* runtime/comm/supervise.c, output.c, strays.c: nobody stops the launcher, and nothing outlives it.
 */
#include "rank_test.h"

#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

static char *program; /* this executable, which is also the ranks' program */

static void sleep_ms(int64_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

/* Words the launchers and ranks of a test share with it. */
typedef struct scene {
    _Atomic int32_t ready;
    _Atomic int32_t pid[3]; /* of what ranks started */
} scene;

static scene *scene_new(void)
{
    return (scene *)(void *)reports_new(1);
}

static void scene_free(scene *x)
{
    reports_free((report *)(void *)x, 1);
}

static void wait_until_ready(scene *x, int32_t n)
{
    for (int32_t i = 0; i < 10000 && atomic_load(&x->ready) < n; i++) {
        sleep_ms(1);
    }
    assert_int_equal(atomic_load(&x->ready), n);
}

/* Exit code, 1000 + signal, or -1 when it still runs after 20 s. */
static int32_t code_of(pid_t pid)
{
    int status = 0;

    for (int32_t i = 0; i < 20000; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        }
        sleep_ms(1);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return -1;
}

static bool runs(pid_t pid)
{
    pid_t parent;
    char state = 'X';

    return msi_process_look(pid, &state, &parent) && state != 'Z' && state != 'X';
}

/* -- programs as ranks ------------------------------------------------------------------------- */

enum { LINES = 20000 };

/* What this executable does as `test rank <what>`. */
static int rank_program(const char *what)
{
    ms_dist_info info;
    ms_comm *world;

    if (ms_comm_world(&world) != MS_OK) {
        return 9;
    }
    ms_dist_info_get(&info);
    if (strcmp(what, "lines") == 0 || info.rank == 0) {
        for (int32_t i = 0; i < LINES; i++) {
            printf("line %05d of %d %60s\n", i, info.rank, "");
        }
    } else { /* "die": of the others the last dies, while the first prints */
        sleep_ms(300);
        if (info.rank == info.world_size - 1) {
            raise(SIGKILL);
        }
    }
    ms_comm_barrier(world);
    if (strcmp(what, "lines") != 0) {
        fprintf(stderr, "%s", ms_error_message());
    }
    fflush(NULL);
    return strcmp(what, "lines") == 0 ? 0 : 3;
}

/* A launcher in a process of its own, with prefixes; `ends` gets what reads its stdout and stderr.
 */
static pid_t start_launcher(int32_t n, const char *what, int *ends)
{
    int out[2], err[2];

    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(err), 0);
    pid_t pid = fork();

    if (pid == 0) {
        const char *const argv[] = {program, "rank", what, NULL};
        ms_launch *launch;
        const char *cause;
        int32_t code = 99;

        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        for (int32_t i = 0; i < 2; i++) {
            close(out[i]);
            close(err[i]);
        }
        if (ms_launch_exec(&launch, n, argv, true) == MS_OK) {
            ms_launch_wait(launch, &code, &cause);
            (void)!write(STDERR_FILENO, cause, strlen(cause));
        }
        _exit(code);
    }
    close(out[1]);
    close(err[1]);
    ends[0] = out[0];
    ends[1] = err[0];
    return pid;
}

/* All that comes until the end, or until nothing has come for `patience_ms`. */
static size_t read_all(int fd, char *text, size_t room, int patience_ms)
{
    size_t n = 0;

    while (n < room - 1) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};

        if (poll(&ready, 1, patience_ms) <= 0) {
            break;
        }
        ssize_t got = read(fd, text + n, room - 1 - n);

        if (got <= 0) {
            break;
        }
        n += (size_t)got;
    }
    text[n] = '\0';
    return n;
}

enum { ROOM = 1 << 22 };

static void test_comm_supervise__hears_a_death_though_nobody_reads_its_output(void **state)
{
    char *text = calloc(1, ROOM);
    int ends[2];

    (void)state;
    pid_t pid = start_launcher(3, "die", ends);

    /* Rank 1 is told, and says so, while nobody has read a byte of what rank 0 prints. */
    size_t n = 0;

    for (int32_t i = 0; i < 100 && strstr(text, "while this rank") == NULL; i++) {
        n += read_all(ends[1], text + n, ROOM - n, 100);
    }
    assert_non_null(strstr(text, "[rank 1] rank 2 died (signal 9, Killed) (pid "));
    assert_non_null(strstr(text, " while this rank "));
    /* Nothing of what was printed is lost, and the launcher leaves when it is read. */
    n = read_all(ends[0], text, ROOM, 20000);
    assert_true(n > 64 * 1024);
    int32_t next = 0;

    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char expected[64];

        snprintf(expected, sizeof(expected), "[rank 0] line %05d of 0 ", next++);
        if (strncmp(line, expected, strlen(expected)) != 0) {
            assert_true(strlen(line) < 80); /* the line in which rank 0 was killed */
            assert_null(strtok(NULL, "\n"));
            break;
        }
    }
    assert_int_equal(code_of(pid), 128 + SIGKILL);
    close(ends[0]);
    close(ends[1]);
    free(text);
}

static void test_comm_supervise__hears_signals_though_nobody_reads_its_output(void **state)
{
    int ends[2];

    (void)state;
    pid_t pid = start_launcher(2, "lines", ends);

    sleep_ms(500); /* they have filled all pipes by now; if not, nothing is tested, nothing fails */
    kill(pid, SIGTERM);
    assert_int_equal(code_of(pid), 128 + SIGTERM);
    close(ends[0]);
    close(ends[1]);
}

static void test_comm_supervise__loses_no_line_of_a_slow_reader(void **state)
{
    char *text = calloc(1, ROOM);
    int32_t next[2] = {0};
    int ends[2];

    (void)state;
    pid_t pid = start_launcher(2, "lines", ends);

    sleep_ms(200);
    read_all(ends[0], text, ROOM, 20000);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        int rank = -1, i = -1, of = -1;

        assert_int_equal(sscanf(line, "[rank %d] line %d of %d", &rank, &i, &of), 3);
        assert_in_range(rank, 0, 1);
        assert_int_equal(of, rank);
        assert_int_equal(i, next[rank]);
        assert_int_equal(strlen(line), strlen("[rank 0] line 00000 of 0 ") + 60);
        next[rank]++;
    }
    assert_int_equal(next[0], LINES);
    assert_int_equal(next[1], LINES);
    assert_int_equal(code_of(pid), 0);
    close(ends[0]);
    close(ends[1]);
    free(text);
}

static void test_comm_supervise__ends_ranks_whose_reader_has_gone(void **state)
{
    char text[1024];
    int ends[2];

    (void)state;
    pid_t pid = start_launcher(1, "lines", ends);

    close(ends[0]);
    assert_int_equal(code_of(pid), 128 + SIGPIPE); /* as a program without a launcher would */
    read_all(ends[1], text, sizeof(text), 1000);
    assert_non_null(strstr(text, "rank 0 died (signal 13, Broken pipe)"));
    close(ends[1]);
}

/* -- what is closed, refused, ignored ---------------------------------------------------------- */

static ms_status meet(void *user, int32_t rank)
{
    ms_comm *world;
    msi_segment s;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(msi_segment_new(&s, world, 4096));
    msi_segment_free(&s);
    return ms_comm_barrier(world);
}

static ms_status print_and_meet(void *user, int32_t rank)
{
    printf("into a stream that was closed\n");
    return meet(user, rank);
}

/* Exit code of a launcher that is prepared by `prepare`, with forked ranks. */
static int32_t launch_after(void (*prepare)(void), rank_fn fn, void *user, int32_t n)
{
    pid_t pid = fork();

    if (pid == 0) {
        const char *cause = "";

        prepare();
        int32_t code = run_processes(n, fn, user, &cause);

        if (code == 1) {
            fprintf(stderr, "%s\n", cause);
        }
        _exit(code);
    }
    return code_of(pid);
}

static void close_standard_streams(void)
{
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
}

static void refuse_pidfd(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog code = {.len = MSI_COUNT(filter), .filter = filter};

    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &code), 0);
}

static void ignore_children(void)
{
    signal(SIGCHLD, SIG_IGN);
}

static ms_status leave_with_five(void *user, int32_t rank)
{
    struct sigaction heard;

    MS_TRY(meet(user, rank));
    EXPECT(sigaction(SIGCHLD, NULL, &heard) == 0 && heard.sa_handler == SIG_IGN);
    if (rank == 1) {
        _exit(5);
    }
    return MS_OK;
}

static void test_comm_supervise__starts_ranks_without_standard_streams(void **state)
{
    (void)state;
    assert_int_equal(launch_after(close_standard_streams, print_and_meet, NULL, 2), 0);
}

static void test_comm_supervise__starts_ranks_where_pidfd_open_is_refused(void **state)
{
    (void)state;
    assert_int_equal(launch_after(refuse_pidfd, meet, NULL, 2), 0);
}

static void test_comm_supervise__learns_exit_codes_though_its_host_ignores_children(void **state)
{
    (void)state;
    assert_int_equal(launch_after(ignore_children, leave_with_five, NULL, 2), 5);
}

static void nothing(void)
{
}

static void test_comm_supervise__starts_127_ranks(void **state)
{
    (void)state;
    assert_int_equal(launch_after(nothing, meet, NULL, 127), 0);
}

/* -- signals while ranks start ----------------------------------------------------------------- */

static ms_status work_until_stopped(void *user, int32_t rank)
{
    int32_t signal = 0;

    (void)user;
    (void)rank;
    MS_TRY(ms_dist_catch_signals());
    while (signal == 0) {
        MS_TRY(ms_dist_stop_agreed(&signal));
    }
    ms_dist_exit(128 + signal);
    return MS_OK;
}

static void test_comm_supervise__stops_in_every_phase_of_the_start(void **state)
{
    enum { ROUNDS = 30 };

    (void)state;
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* what would be left behind comes to us */
    for (int32_t i = 0; i < ROUNDS; i++) {
        const struct timespec moment = {.tv_nsec = i * 300000};
        pid_t pid = fork();

        if (pid == 0) {
            const char *cause;

            _exit(run_processes(3, work_until_stopped, NULL, &cause));
        }
        nanosleep(&moment, NULL);
        kill(pid, SIGTERM);
        int32_t code = code_of(pid);

        if (code != 128 + SIGTERM && code != 1000 + SIGTERM) { /* before it was a launcher */
            fail_msg("code %d after %d us", (int)code, (int)i * 300);
        }
        for (int32_t k = 0; k < 5000 && has_children(); k++) {
            sleep_ms(1);
        }
        assert_false(has_children());
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

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

static void test_comm_supervise__ends_what_ranks_left_behind(void **state)
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
    int adopts = -1;

    prctl(PR_GET_CHILD_SUBREAPER, &adopts);
    assert_int_equal(adopts, 0);
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

/* With ever more file descriptors: as soon as ranks start, signals reach them; before, the error
 * leaves signals as they were. */
static int32_t launch_with_few_files(scene *x)
{
    for (rlim_t files = 4; files < 64; files++) {
        ms_launch *launch;
        const char *cause;
        sigset_t blocked;
        int32_t rank, code;

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
        atomic_fetch_add(&x->pid[0], strstr(ms_error_message(), "for signals: ") != NULL);
    }
    return 97;
}

static void test_comm_supervise__needs_a_file_descriptor_to_hear_signals(void **state)
{
    scene *x = scene_new();
    pid_t pid = fork();

    (void)state;
    if (pid == 0) {
        _exit(launch_with_few_files(x));
    }
    assert_int_equal(code_of(pid), 128 + SIGTERM);
    assert_int_equal(atomic_load(&x->pid[0]), 1);
    scene_free(x);
}

static void test_comm_supervise__leaves_its_own_children_alone(void **state)
{
    scene *x = scene_new();
    const char *cause;
    pid_t own = fork();

    (void)state;
    if (own == 0) {
        sleep_ms(60000);
        _exit(0);
    }
    assert_int_equal(run_processes(2, leave_a_child, x, &cause), 0);
    assert_true(runs(own)); /* and as ranks' children cannot be told apart from its, ... */
    assert_true(runs(atomic_load(&x->pid[0])));
    kill(atomic_load(&x->pid[0]), SIGKILL);
    kill(own, SIGKILL);
    assert_int_equal(code_of(own), 1000 + SIGKILL);
    scene_free(x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_supervise__hears_a_death_though_nobody_reads_its_output),
        cmocka_unit_test(test_comm_supervise__hears_signals_though_nobody_reads_its_output),
        cmocka_unit_test(test_comm_supervise__loses_no_line_of_a_slow_reader),
        cmocka_unit_test(test_comm_supervise__ends_ranks_whose_reader_has_gone),
        cmocka_unit_test(test_comm_supervise__starts_ranks_without_standard_streams),
        cmocka_unit_test(test_comm_supervise__starts_ranks_where_pidfd_open_is_refused),
        cmocka_unit_test(test_comm_supervise__learns_exit_codes_though_its_host_ignores_children),
        cmocka_unit_test(test_comm_supervise__starts_127_ranks),
        cmocka_unit_test(test_comm_supervise__stops_in_every_phase_of_the_start),
        cmocka_unit_test(test_comm_supervise__ends_what_ranks_left_behind),
        cmocka_unit_test(test_comm_supervise__needs_a_file_descriptor_to_hear_signals),
        cmocka_unit_test(test_comm_supervise__leaves_its_own_children_alone),
    };

    program = argv[0];
    if (argc == 3 && strcmp(argv[1], "rank") == 0) {
        return rank_program(argv[2]);
    }
    if (!CAN_FORK) {
        print_message("no ranks as processes under ThreadSanitizer\n");
        return 0;
    }
    return cmocka_run_group_tests_name("comm/supervise", tests, NULL, NULL);
}
