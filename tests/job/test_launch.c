/* runtime/job/launch.c, supervise.c, signals.c, join.c: starting, stopping and ending ranks. */
#include "launch_test.h"

#include "group.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

/* -- what is refused
 * --------------------------------------------------------------------------------- */

static void *wait_for_byte(void *fd)
{
    char byte;

    (void)!read(*(int *)fd, &byte, 1);
    return NULL;
}

static void test_job_launch__refuses_to_fork_with_a_reason(void **state)
{
    ms_launch *launch;
    ms_comm *world;
    pthread_t thread;
    int32_t rank;
    int pipes[2];

    (void)state;
    assert_fails(MS_VALUE_ERROR, "number of ranks is 0, expected 1 to 128",
                 ms_launch_fork(&launch, 0, &rank));
    assert_fails(MS_VALUE_ERROR, "number of ranks is 129, expected 1 to 128",
                 ms_launch_fork(&launch, 129, &rank));
    assert_null(launch);

    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_byte, &pipes[0]), 0);
    assert_fails(MS_RUNTIME_ERROR, "cannot start ranks: 2 threads are running, expected one",
                 ms_launch_fork(&launch, 2, &rank));
    assert_fails(MS_RUNTIME_ERROR, "cannot start ranks: 2 threads are running, expected one",
                 ms_launch_exec(&launch, 2, (const char *const[]){"true", NULL}, true));
    assert_int_equal(write(pipes[1], "x", 1), 1);
    pthread_join(thread, NULL);
    close(pipes[0]);
    close(pipes[1]);

    assert_ok(ms_comm_world(&world));
    assert_fails(MS_RUNTIME_ERROR,
                 "cannot start ranks: this process is rank 0 of 1 already, made so by a "
                 "collective, dist.split(), FSDP(), a checkpoint or a fake group before",
                 ms_launch_fork(&launch, 2, &rank));
    ms_close();
    assert_int_equal(rank, -1);
}

/* -- what ranks find
 * ---------------------------------------------------------------------------------- */

static ms_status look_around(void *user, int32_t rank)
{
    int32_t n = *(const int32_t *)user, cores, mine[2], all[2 * MS_MAX_RANKS];
    cpu_set_t set;
    char byte;
    ms_dist_info info;
    ms_comm *world;

    ms_dist_info_get(&info);
    EXPECT(info.initialized && info.rank == rank && info.world_size == n);
    EXPECT(info.local_rank == rank && info.local_world_size == n);
    EXPECT(strcmp(info.launcher, "fork") == 0);
    EXPECT(strcmp(info.transport, n > 1 ? "shm" : "self") == 0);
    EXPECT(ms_dist_launched());
    MS_TRY(ms_dist_join()); /* nothing to do */
    MS_TRY(ms_comm_world(&world));
    EXPECT(ms_comm_rank(world) == rank && ms_comm_size(world) == n);

    /* Ranks that fit own different cores. */
    EXPECT(sched_getaffinity(0, sizeof(set), &set) == 0);
    cores = world->job->block->cores;
    mine[0] = CPU_COUNT(&set);
    for (mine[1] = 0; !CPU_ISSET(mine[1], &set); mine[1]++) {
    }
    MS_TRY(msi_comm_gather_bytes(world, "cores", mine, sizeof(mine), all));
    EXPECT(info.cores == mine[0]);
    for (int32_t q = 0; q < n; q++) {
        EXPECT(n <= cores ? all[2 * q] >= cores / n : all[2 * q] == cores);
        EXPECT(q == rank || n > cores || all[2 * q + 1] != mine[1]);
    }
    EXPECT(rank == 0 || read(STDIN_FILENO, &byte, 1) == 0); /* stdin is rank 0's */
    return MS_OK;
}

static void test_job_launch__tells_ranks_who_they_are(void **state)
{
    const char *cause;

    (void)state;
    for (int32_t n = 1; n <= 4; n++) {
        if (run_processes(n, look_around, &n, &cause) != 0) {
            fail_msg("%d ranks: %s", (int)n, cause);
        }
    }
}

static void test_job_launch__is_a_world_of_one_without_a_launcher(void **state)
{
    ms_dist_info info;
    ms_comm *world, *self;
    int32_t signal = -1;

    (void)state;
    ms_dist_info_get(&info);
    assert_false(info.initialized);
    assert_int_equal(info.world_size, 1);
    assert_false(ms_dist_launched());
    assert_ok(ms_comm_world(&world));
    assert_ok(ms_comm_self(&self));
    ms_dist_info_get(&info);
    assert_true(info.initialized);
    assert_string_equal(info.launcher, "none");
    assert_string_equal(info.transport, "self");
    assert_int_equal(ms_comm_size(world), 1);
    assert_ok(ms_comm_barrier(world));
    assert_ok(ms_dist_stop_agreed(&signal));
    assert_int_equal(signal, 0);
    ms_dist_abort(MS_VALUE_ERROR, "no such file");
    assert_fails(MS_COMM_ERROR, "rank 0 failed: no such file; this rank called barrier",
                 ms_comm_barrier(world));
    assert_ok(ms_comm_barrier(self)); /* needs nobody */
    ms_close();
}

/* -- stopping on purpose
 * -------------------------------------------------------------------------------- */

typedef struct stop {
    _Atomic int32_t ready; /* ranks in their loop */
    int32_t pid[4];
    int32_t step[4], signal[4];
    bool deaf;         /* ranks loop without the runtime */
    bool slow;         /* their first step takes 1.5 s */
    bool plain;        /* ranks leave signals to the system */
    _Atomic bool busy; /* the launcher has yet to come to waiting */
} stop;

static ms_status step_until_stopped(void *user, int32_t rank)
{
    stop *s = user;
    int32_t signal = 0;

    MS_TRY(s->plain ? MS_OK : ms_dist_catch_signals());
    MS_TRY(s->slow ? ms_dist_stop_agreed(&signal) : MS_OK);
    s->pid[rank] = getpid();
    atomic_fetch_add(&s->ready, 1);
    for (int32_t step = 1; signal == 0 && step < 10000; step++) {
        sleep_ms(s->slow && step == 1 ? 1500 : 1);
        if (!s->deaf && !s->plain) {
            MS_TRY(ms_dist_stop_agreed(&signal));
        }
        s->step[rank] = step;
        s->signal[rank] = signal;
    }
    sleep_ms(20 * rank); /* saving takes some ranks longer */
    ms_dist_exit(128 + signal);
    return MS_OK;
}

/* A child of the test that supervises `n` ranks, as scripts do, and leaves with their code. */
static pid_t start_supervisor(int32_t n, stop *s)
{
    pid_t pid = fork();

    if (pid == 0) {
        ms_launch *launch = launch_processes(n, step_until_stopped, s);
        const char *cause;
        int32_t code = -1;

        while (atomic_load(&s->busy)) {
            sleep_ms(1);
        }
        ms_launch_wait(launch, &code, &cause);
        _exit(code);
    }
    for (int32_t i = 0; i < 2000 && atomic_load(&s->ready) < n; i++) {
        sleep_ms(1);
    }
    assert_int_equal(atomic_load(&s->ready), n);
    return pid;
}

static stop *stop_new(void)
{
    return (stop *)(void *)reports_new(1);
}

static void test_job_launch__stops_all_ranks_after_the_same_step(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};

    (void)state;
    for (int32_t i = 0; i < 2 * MSI_COUNT(signals); i++) {
        int signal = signals[i / 2];
        bool at_launcher = i % 2 == 0; /* else at one rank */
        stop *s = stop_new();
        pid_t pid = start_supervisor(3, s);

        sleep_ms(5);
        kill(at_launcher ? pid : s->pid[1], signal);
        assert_int_equal(code_of(pid), 128 + signal);
        for (int32_t r = 0; r < 3; r++) {
            assert_int_equal(s->signal[r], signal);
            assert_int_equal(s->step[r], s->step[0]);
        }
        reports_free((report *)(void *)s, 1);
    }
}

static void test_job_launch__ends_deaf_ranks_at_the_second_request(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM};

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(signals); i++) {
        stop *s = stop_new();

        s->deaf = true;
        pid_t pid = start_supervisor(2, s);

        kill(pid, signals[i]);
        sleep_ms(5);
        kill(pid, signals[i]); /* `timeout` sends each signal twice: that is one request */
        sleep_ms(2 * MSI_AGAIN_MS);
        assert_int_equal(waitpid(pid, NULL, WNOHANG), 0); /* they might still save */
        double begin = ms_time();

        kill(pid, signals[i]);
        assert_int_equal(code_of(pid), 128 + signals[i]);
        assert_true(ms_time() - begin < 0.9); /* at once, not after a second of grace */
        assert_int_equal(kill(s->pid[0], 0), -1);
        assert_int_equal(kill(s->pid[1], 0), -1);
        reports_free((report *)(void *)s, 1);
    }
}

static void test_job_launch__takes_its_ranks_along_when_killed(void **state)
{
    stop *s = stop_new();

    (void)state;
    s->deaf = true;
    pid_t pid = start_supervisor(3, s);

    kill(pid, SIGKILL);
    assert_int_equal(code_of(pid), 1000 + SIGKILL);
    for (int32_t r = 0; r < 3; r++) {
        assert_true(ends_soon(s->pid[r]));
    }
    reports_free((report *)(void *)s, 1);
}

/* -- programs as ranks
 * ------------------------------------------------------------------------------------ */

/* What this executable does as `test rank <what>`. */
static int rank_program(const char *what)
{
    ms_dist_info info;
    ms_comm *world;
    int32_t sum = 0;

    if (strcmp(what, "stranger") == 0) { /* knows nothing of ranks */
        return 0;
    }
    if (!ms_dist_launched() || ms_comm_world(&world) != MS_OK) {
        fprintf(stderr, "%s\n", ms_error_message());
        return 9;
    }
    ms_dist_info_get(&info);
    if (strcmp(what, "print") == 0) {
        for (int32_t i = 0; i < 200; i++) { /* in pieces, so that pieces could mix */
            printf("line %d", i);
            fflush(stdout);
            printf(" of %d: %d ranks, %s, child %d\n", info.rank, info.world_size, info.launcher,
                   getenv("MOONSHARD_RANK") != NULL);
        }
        fprintf(stderr, "no end");
    }
    if (strcmp(what, "fail") == 0 && info.rank == 1) {
        ms_dist_abort(MS_RUNTIME_ERROR, "the program does not like this \x1b[2J\r\n\tat all");
        return 7;
    }
    int32_t ranks[MS_MAX_RANKS];
    msi_segment s;

    if (msi_comm_gather_bytes(world, "rank", &info.rank, sizeof(info.rank), ranks) != MS_OK ||
        msi_segment_new(&s, world, 4096) != MS_OK) {
        ms_dist_abort(MS_COMM_ERROR, ms_error_message());
        return 8;
    }
    msi_segment_free(&s);
    for (int32_t q = 0; q < info.world_size; q++) {
        sum += ranks[q];
    }
    ms_close();
    return sum == info.world_size * (info.world_size - 1) / 2 ? 0 : 6;
}

/* Run this executable as `n` ranks; what they print goes into `text`. */
static int32_t run_program(int32_t n, const char *what, bool prefix, char *text, size_t room,
                           const char **cause)
{
    const char *const argv[] = {program, "rank", what, NULL};
    const char *path = temp_path("output");
    int file = open(path, O_CREAT | O_TRUNC | O_RDWR | O_APPEND, 0600);
    int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    ms_launch *launch;
    int32_t code = -1;

    fflush(NULL);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    ms_status status = ms_launch_exec(&launch, n, argv, prefix);

    if (status == MS_OK) {
        status = ms_launch_wait(launch, &code, cause);
    }
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    assert_ok(status);
    ssize_t got = pread(file, text, room - 1, 0);

    text[got > 0 ? got : 0] = '\0';
    close(file);
    return code;
}

static void test_job_launch__prefixes_whole_lines_of_programs(void **state)
{
    static char text[1 << 17];
    int32_t next[3] = {0}, ends = 0, fds = count_entries("/proc/self/fd");
    const char *cause;

    (void)state;
    assert_int_equal(run_program(3, "print", true, text, sizeof(text), &cause), 0);
    assert_string_equal(cause, "");
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char expected[96];
        int32_t rank = -1;

        assert_int_equal(sscanf(line, "[rank %d] ", &rank), 1);
        assert_in_range(rank, 0, 2);
        if (strstr(line, "] no end") != NULL) {
            ends++;
            continue;
        }
        snprintf(expected, sizeof(expected), "[rank %d] line %d of %d: 3 ranks, run, child 0",
                 (int)rank, (int)next[rank], (int)rank);
        assert_string_equal(line, expected);
        next[rank]++;
    }
    assert_int_equal(ends, 3);
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(next[r], 200);
    }
    assert_int_equal(count_entries("/proc/self/fd"), fds);
    assert_false(has_children());
}

static void test_job_launch__names_what_ended_a_program(void **state)
{
    char text[4096];
    const char *cause;
    ms_launch *launch;
    int32_t code;

    (void)state;
    assert_int_equal(run_program(3, "fail", false, text, sizeof(text), &cause), 7);
    assert_string_equal(without_pid(cause), "rank 1 failed: the program does not like this "
                                            "\\x1b[2J\\x0d\n\tat all");
    assert_int_equal(run_program(2, "stranger", false, text, sizeof(text), &cause), 0);

    const char *const missing[] = {"/nowhere/moonshard-test", NULL};

    assert_ok(ms_launch_exec(&launch, 2, missing, false));
    assert_ok(ms_launch_wait(launch, &code, &cause));
    assert_int_equal(code, 127);
    assert_non_null(strstr(cause, "cannot run /nowhere/moonshard-test: No such file or directory"));
    const char *const nowhere[] = {"moonshard-test-that-is-nowhere", NULL};
    char before[512];

    assert_non_null(getcwd(before, sizeof(before))); /* what lies in this folder is no command */
    assert_int_equal(chdir(temp_path("")), 0);
    assert_int_equal(symlink("/bin/true", nowhere[0]), 0);
    assert_ok(ms_launch_exec(&launch, 1, nowhere, false));
    assert_ok(ms_launch_wait(launch, &code, &cause));
    assert_int_equal(chdir(before), 0);
    assert_int_equal(code, 127);
    assert_non_null(strstr(cause, "cannot run moonshard-test-that-is-nowhere: No such file"));
    assert_fails(MS_VALUE_ERROR, "no program to run",
                 ms_launch_exec(&launch, 2, (const char *const[]){NULL}, false));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_launch__refuses_to_fork_with_a_reason),
        cmocka_unit_test(test_job_launch__tells_ranks_who_they_are),
        cmocka_unit_test(test_job_launch__is_a_world_of_one_without_a_launcher),
        cmocka_unit_test(test_job_launch__stops_all_ranks_after_the_same_step),
        cmocka_unit_test(test_job_launch__ends_deaf_ranks_at_the_second_request),
        cmocka_unit_test(test_job_launch__takes_its_ranks_along_when_killed),
        cmocka_unit_test(test_job_launch__prefixes_whole_lines_of_programs),
        cmocka_unit_test(test_job_launch__names_what_ended_a_program),
    };

    int code;

    if (is_no_test(argc, argv, rank_program, &code)) {
        return code;
    }
    return cmocka_run_group_tests_name("job/launch", tests, NULL, NULL);
}
