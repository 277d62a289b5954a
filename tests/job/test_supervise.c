/* runtime/job/supervise.c, output.c: nobody stops the launcher, and it says who keeps it waiting.
 */
#include "launch_test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>

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

static void test_job_supervise__hears_a_death_though_nobody_reads_its_output(void **state)
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

static void test_job_supervise__loses_no_line_of_a_slow_reader(void **state)
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

static void test_job_supervise__ends_ranks_whose_reader_has_gone(void **state)
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

/* -- ranks that do not end --------------------------------------------------------------------- */

static bool is_stopped(pid_t pid)
{
    pid_t parent;
    char state = 'X';

    return msi_process_look(pid, &state, &parent) && state == 'T';
}

static ms_status stop_after_the_last_call(void *user, int32_t rank)
{
    scene *x = user;
    int32_t ends = atomic_load(&x->ready); /* -1: nobody does */

    MS_TRY(meet(NULL, rank));
    atomic_store(&x->pid[rank], getpid());
    if (rank != ends) {
        raise(SIGSTOP);
        return MS_OK;
    }
    for (int32_t q = 0; q < 3; q++) {
        for (int32_t i = 0; q != ends && i < 10000 && !is_stopped(atomic_load(&x->pid[q])); i++) {
            sleep_ms(1);
        }
    }
    return MS_OK;
}

/* What a launcher says whose ranks but `ends` stop themselves; they go on when it has said it, and
 * it says nothing else. */
static void warn_of_stopped_ranks(scene *x, int32_t ends, char *said, size_t room)
{
    char more[64];
    int err[2];
    size_t n = 0;

    atomic_store(&x->ready, ends);
    assert_int_equal(pipe(err), 0);
    pid_t pid = fork();

    if (pid == 0) {
        const char *cause;

        dup2(err[1], STDERR_FILENO);
        close(err[0]);
        close(err[1]);
        setenv("MS_COMM_ANNOUNCE", "1", 1);
        _exit(run_processes(3, stop_after_the_last_call, x, &cause));
    }
    close(err[1]);
    said[0] = '\0';
    for (int32_t i = 0; i < 200 && strchr(said, '\n') == NULL; i++) {
        n += read_all(err[0], said + n, room - n, 100);
    }
    for (int32_t r = 0; r < 3; r++) {
        kill(atomic_load(&x->pid[r]), SIGCONT);
    }
    assert_int_equal(read_all(err[0], more, sizeof(more), 20000), 0);
    assert_int_equal(code_of(pid), 0);
    close(err[0]);
}

/* "moonshard: UserWarning: the launcher has waited 1 s", where others may count more seconds. */
static const char *behind_the_time(const char *said)
{
    static const char begin[] = "moonshard: UserWarning: the launcher has waited ";

    assert_int_equal(strncmp(said, begin, sizeof(begin) - 1), 0);
    return said + sizeof(begin) - 1 + strspn(said + sizeof(begin) - 1, "0123456789");
}

static void test_job_supervise__says_who_has_not_ended(void **state)
{
    char expected[256], said[1024];
    scene *x = scene_new();

    (void)state;
    warn_of_stopped_ranks(x, 1, said, sizeof(said));
    snprintf(expected, sizeof(expected),
             " s for ranks 0, 2 to end; last calls: rank 0 (pid %d, stopped): barrier() "
             "(sequence 2), rank 2 (pid %d, stopped): barrier() (sequence 2), rank 1 left after "
             "barrier() (sequence 2)\n",
             (int)atomic_load(&x->pid[0]), (int)atomic_load(&x->pid[2]));
    assert_string_equal(behind_the_time(said), expected);
    scene_free(x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_supervise__hears_a_death_though_nobody_reads_its_output),
        cmocka_unit_test(test_job_supervise__loses_no_line_of_a_slow_reader),
        cmocka_unit_test(test_job_supervise__ends_ranks_whose_reader_has_gone),
        cmocka_unit_test(test_job_supervise__says_who_has_not_ended),
    };

    int code;

    if (is_no_test(argc, argv, rank_program, &code)) {
        return code;
    }
    return cmocka_run_group_tests_name("job/supervise", tests, NULL, NULL);
}
