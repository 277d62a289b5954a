/* runtime/comm/output.c: a rank that prints without a pause delays nobody, and what cannot be read
 * is missed. */
#include "launch_test.h"

#include <fcntl.h>
#include <sys/prctl.h>

enum { RANKS = 2 };

/* Fills its stdout with the shortest lines as fast as it can. */
static _Noreturn void flood(void)
{
    char block[4096];

    for (size_t i = 0; i < sizeof(block); i++) {
        block[i] = i % 2 == 0 ? 'y' : '\n';
    }
    for (;;) {
        (void)!write(STDOUT_FILENO, block, sizeof(block));
    }
}

/* Is the only one to say something, once. */
static _Noreturn void speak(void)
{
    printf("spoken\n");
    fflush(stdout);
    _exit(0);
}

static pid_t start(const msi_output *o, int32_t rank, void (*what)(void))
{
    pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        msi_output_enter(o, rank);
        what();
    }
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Output of ranks whose launcher prints everything to `fd`. */
static msi_output *output_to(int fd)
{
    msi_output *o;
    int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);

    fflush(stdout);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    ms_status status = msi_output_new(&o, RANKS);

    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    assert_ok(status);
    return o;
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_comm_output__takes_a_bounded_piece_of_a_rank_that_never_pauses(void **state)
{
    enum { FLOODS = 3, ROUNDS = 300 };
    int null = open("/dev/null", O_WRONLY);
    msi_output *o = output_to(null);
    pid_t pid[FLOODS];
    double longest = 0;

    (void)state;
    for (int32_t i = 0; i < FLOODS; i++) { /* so many that the pipe is never empty for long */
        pid[i] = start(o, 0, flood);
    }
    for (int32_t i = 0; i < ROUNDS; i++) {
        double begin = cpu_seconds();

        msi_output_move(o);
        double took = cpu_seconds() - begin; /* not while others ran in our place */

        longest = took > longest ? took : longest;
    }
    for (int32_t i = 0; i < FLOODS; i++) {
        end(pid[i]);
    }
    msi_output_free(o);
    close(null);
    if (longest > 0.02 * (SANITIZED ? 10 : 1)) {
        fail_msg("one round took %.3f s", longest);
    }
}

static void test_comm_output__gives_every_rank_its_turn_before_a_slow_reader(void **state)
{
    enum { PIECE = 8192, PIECES = 64 };
    char *text = calloc(1, PIECE * PIECES + 1);
    int ends[2];
    bool heard = false;
    size_t n = 0;

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    msi_output *o = output_to(ends[1]);
    pid_t loud = start(o, 0, flood);

    for (int32_t i = 0; i < 50; i++) { /* everything is full of what it prints */
        msi_output_move(o);
        sleep_ms(1);
    }
    assert_int_equal(code_of(start(o, 1, speak)), 0);
    for (int32_t i = 0; i < PIECES && !heard; i++) {
        ssize_t got = read(ends[0], text + n, PIECE);

        n += got > 0 ? (size_t)got : 0;
        heard = strstr(text, "[rank 1] spoken\n") != NULL;
        msi_output_move(o);
    }
    assert_true(heard);
    end(loud);
    msi_output_free(o);
    close(ends[0]);
    close(ends[1]);
    free(text);
}

static void test_comm_output__ends_though_what_ranks_left_goes_on_printing(void **state)
{
    enum { ROUNDS = 1000 };
    int null = open("/dev/null", O_WRONLY);
    msi_output *o = output_to(null);
    pid_t pid = start(o, 0, flood);
    int32_t rounds = 0;

    (void)state;
    msi_output_started(o);
    sleep_ms(20); /* its pipe is full; if not, it ends all the sooner */
    msi_output_end(o, 0);
    msi_output_finish(o);
    while (rounds < ROUNDS && msi_output_move(o)) {
        rounds++;
    }
    assert_in_range(rounds, 0, ROUNDS - 1); /* of a piece each: a pipe holds fewer */
    end(pid);
    msi_output_free(o);
    close(null);
}

static void test_comm_output__ends_with_all_that_ranks_had_printed(void **state)
{
    char text[64] = "";
    int ends[2];

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    msi_output *o = output_to(ends[1]);

    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(code_of(start(o, r, speak)), 0);
        msi_output_end(o, r);
    }
    msi_output_finish(o); /* we hold ends of their pipes, as somebody might */
    while (msi_output_move(o)) {
    }
    assert_int_equal(read(ends[0], text, sizeof(text) - 1), 32);
    assert_string_equal(text, "[rank 0] spoken\n[rank 1] spoken\n");
    msi_output_free(o);
    close(ends[0]);
    close(ends[1]);
}

static void test_comm_output__says_once_what_cannot_be_read(void **state)
{
    struct pollfd fds[MSI_OUTPUT_FDS];
    int ends[2], folder = open("/", O_RDONLY | O_DIRECTORY);
    char text[256] = "";

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    msi_output *o = output_to(ends[1]);

    assert_int_equal(msi_output_poll(o, fds), 2 * RANKS); /* two of each rank */
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(dup2(folder, fds[2 + i].fd), fds[2 + i].fd);
    }
    assert_int_equal(code_of(start(o, 0, speak)), 0);
    assert_false(msi_output_lost(o));
    while (msi_output_move(o)) {
    }
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    assert_string_equal(text,
                        "[rank 0] spoken\nmoonshard: lines of the ranks are lost: cannot read "
                        "what rank 1 prints: Is a directory\n");
    assert_true(msi_output_lost(o));
    assert_int_equal(msi_output_poll(o, fds), 2); /* it is not asked again */
    msi_output_free(o);
    close(folder);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_output__takes_a_bounded_piece_of_a_rank_that_never_pauses),
        cmocka_unit_test(test_comm_output__gives_every_rank_its_turn_before_a_slow_reader),
        cmocka_unit_test(test_comm_output__ends_though_what_ranks_left_goes_on_printing),
        cmocka_unit_test(test_comm_output__ends_with_all_that_ranks_had_printed),
        cmocka_unit_test(test_comm_output__says_once_what_cannot_be_read),
    };

    return cmocka_run_group_tests_name("comm/output", tests, NULL, NULL);
}
