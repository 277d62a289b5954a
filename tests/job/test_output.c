/* runtime/job/output.c: a rank that prints without a pause delays nobody, and what cannot be read
 * is missed. */
#include "launch_test.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <termios.h>

enum { RANKS = 2, FDS = 2 * RANKS + 2 };

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

static int32_t long_line; /* bytes without its end */

static void print_long_line(char of)
{
    for (int32_t i = 0; i < long_line; i++) {
        putchar(of);
    }
    putchar('\n');
    fflush(stdout);
    _exit(0);
}

static void print_long_a(void)
{
    print_long_line('a');
}

static void print_long_b(void)
{
    print_long_line('b');
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

/* The end into which rank 0 prints. */
static int end_of_rank_0(const msi_output *o)
{
    int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);

    fflush(stdout);
    msi_output_enter(o, 0);
    int end = dup(STDOUT_FILENO);

    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    return end;
}

/* Lines that find room in a pipe. */
static int32_t fill(int fd)
{
    int32_t lines = 0;

    while (write(fd, "y\n", 2) == 2) {
        lines++;
    }
    return lines;
}

static void test_job_output__takes_a_bounded_piece_of_a_rank_that_never_pauses(void **state)
{
    int null = open("/dev/null", O_WRONLY);
    msi_output *o = output_to(null);
    int end = end_of_rank_0(o);

    (void)state;
    fcntl(end, F_SETFL, O_NONBLOCK);
    int32_t lines = fill(end);

    assert_true(msi_output_move(o)); /* there is more */
    assert_in_range(fill(end), 1, lines / 4);
    close(end);
    msi_output_free(o);
    close(null);
}

static void test_job_output__gives_every_rank_its_turn_before_a_slow_reader(void **state)
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

static void test_job_output__ends_with_what_ranks_had_printed_though_others_go_on(void **state)
{
    enum { ROUNDS = 100 };
    char text[256] = "";
    int ends[2], rounds = 0;

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    msi_output *o = output_to(ends[1]);
    int end = end_of_rank_0(o);

    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(code_of(start(o, r, speak)), 0);
        msi_output_end(o, r);
    }
    msi_output_started(o);
    msi_output_finish(o);
    signal(SIGPIPE, SIG_IGN);
    do {
        (void)!write(end, "left\n", 5);
    } while (msi_output_move(o) && ++rounds < ROUNDS);
    signal(SIGPIPE, SIG_DFL);
    assert_in_range(rounds, 0, ROUNDS - 1);
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    assert_string_equal(text, "[rank 0] spoken\n[rank 1] spoken\n");
    msi_output_free(o);
    close(end);
    close(ends[0]);
    close(ends[1]);
}

static void test_job_output__says_once_what_cannot_be_read(void **state)
{
    struct pollfd fds[FDS];
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

static void read_on(int fd, char *text, size_t *n)
{
    ssize_t got;

    while ((got = read(fd, text + *n, 65536)) > 0) {
        *n += (size_t)got;
    }
}

/* What two ranks print at once, a long line each: "a20000\n" for 20000 times an a, and what follows
 * it. */
static void print_long_lines(int32_t length, char *seen, size_t room)
{
    char *text = calloc(1, 2 * (size_t)length + 2 * 65536), *rest = NULL;
    int ends[2];
    size_t n = 0, at = 0;

    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    msi_output *o = output_to(ends[1]);

    long_line = length;
    pid_t pid[RANKS] = {start(o, 0, print_long_a), start(o, 1, print_long_b)};

    msi_output_started(o);
    for (int32_t r = 0; r < RANKS; r++) {
        while (waitpid(pid[r], NULL, WNOHANG) == 0) {
            msi_output_move(o);
            read_on(ends[0], text, &n);
        }
        msi_output_end(o, r);
    }
    while (msi_output_move(o)) {
        read_on(ends[0], text, &n);
    }
    read_on(ends[0], text, &n);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        bool first = line[6] == '0';
        size_t same = strspn(line + 9, first ? "a" : "b");

        assert_memory_equal(line, first ? "[rank 0] " : "[rank 1] ", 9);
        at += (size_t)snprintf(seen + at, room - at, "%c%zu%s\n", line[9], same, line + 9 + same);
    }
    free(text);
    msi_output_free(o);
    close(ends[0]);
    close(ends[1]);
}

static void test_job_output__prints_lines_whole_up_to_a_mebibyte_and_marks_pieces(void **state)
{
    char seen[256];

    (void)state;
    print_long_lines(20000, seen, sizeof(seen));
    assert_true(strcmp(seen, "a20000\nb20000\n") == 0 || strcmp(seen, "b20000\na20000\n") == 0);
    print_long_lines(1048575, seen, sizeof(seen));
    assert_true(strcmp(seen, "a1048575\nb1048575\n") == 0 ||
                strcmp(seen, "b1048575\na1048575\n") == 0);
    print_long_lines(1048579, seen, sizeof(seen));
    for (int32_t r = 0; r < RANKS; r++) { /* in order, whatever the other one printed between */
        const char *longest = strstr(seen, r == 0 ? "a1048576 ...\n" : "b1048576 ...\n");
        assert_non_null(longest);
        assert_non_null(strstr(longest, r == 0 ? "a3\n" : "b3\n"));
    }
}

/* What has been printed since the last look. */
static const char *news(msi_output *o, int fd)
{
    static char text[256];

    while (msi_output_move(o)) {
    }
    ssize_t got = read(fd, text, sizeof(text) - 1);

    text[got > 0 ? got : 0] = '\0';
    return text;
}

/* ... and what goes out though it has no end. */
static const char *late_news(msi_output *o, int fd)
{
    while (msi_output_move(o)) {
    }
    sleep_ms(60);
    return news(o, fd);
}

static void say(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void test_job_output__shows_a_line_that_is_written_over_as_it_goes(void **state)
{
    int ends[2];

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    msi_output *o = output_to(ends[1]);
    int end = end_of_rank_0(o);

    say(end, "\rstep 1");
    assert_string_equal(late_news(o, ends[0]), "\r[rank 0] step 1");
    say(end, " of 9");
    assert_string_equal(late_news(o, ends[0]), " of 9");
    say(end, "\rstep 2\rstep 3\r");
    assert_string_equal(news(o, ends[0]), "\r[rank 0] step 2\r[rank 0] step 3\r");
    assert_int_equal(code_of(start(o, 1, speak)), 0);
    assert_string_equal(news(o, ends[0]), "\n[rank 1] spoken\n");
    say(end, "step 4\r\n");
    assert_string_equal(news(o, ends[0]), "[rank 0] step 4\r\n");
    say(end, "step 5\r");
    say(end, "\n\nstep 6\rend");
    close(end);
    msi_output_started(o);
    assert_string_equal(news(o, ends[0]),
                        "[rank 0] step 5\r\n[rank 0] \n[rank 0] step 6\r[rank 0] end\n");
    msi_output_free(o);
    close(ends[0]);
    close(ends[1]);
}

static void test_job_output__ends_the_open_line_of_a_rank_that_has_ended(void **state)
{
    int ends[2];

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    msi_output *o = output_to(ends[1]);
    int end = end_of_rank_0(o);

    say(end, "step 1\r");
    assert_string_equal(news(o, ends[0]), "[rank 0] step 1\r");
    msi_output_end(o, 0);
    assert_string_equal(news(o, ends[0]), "\n");
    assert_string_equal(news(o, ends[0]), "");
    close(end);
    msi_output_free(o);
    close(ends[0]);
    close(ends[1]);
}

static void test_job_output__lets_a_line_wait_for_its_end_but_on_a_terminal(void **state)
{
    int ends[2], terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    struct termios modes;

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    assert_int_equal(grantpt(terminal), 0);
    assert_int_equal(unlockpt(terminal), 0);
    int shown = open(ptsname(terminal), O_RDWR | O_NOCTTY);

    assert_int_equal(tcgetattr(shown, &modes), 0);
    modes.c_oflag &= ~(tcflag_t)OPOST; /* a newline stays one */
    assert_int_equal(tcsetattr(shown, TCSANOW, &modes), 0);
    for (int32_t i = 0; i < 2; i++) {
        int to = i == 0 ? ends[1] : shown, from = i == 0 ? ends[0] : terminal;
        msi_output *o = output_to(to);
        int end = end_of_rank_0(o);

        say(end, "loading ...");
        assert_string_equal(late_news(o, from), i == 0 ? "" : "[rank 0] loading ...");
        say(end, " done\n");
        assert_string_equal(news(o, from), i == 0 ? "[rank 0] loading ... done\n" : " done\n");
        close(end);
        msi_output_free(o);
        close(to);
        close(from);
    }
}

/* Print until nothing more finds room, so that bytes wait in the queue. */
static void fill_all(msi_output *o, int end)
{
    while (fill(end) > 0 || msi_output_unread_ns(o) == 0) {
        msi_output_move(o);
    }
}

/* The time for which nobody has read, once it has grown. */
static int64_t unread_later(msi_output *o)
{
    sleep_ms(2);
    msi_output_move(o);
    return msi_output_unread_ns(o);
}

static void test_job_output__hears_a_reader_who_takes_a_few_bytes(void **state)
{
    int ends[2];
    char text[3];

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    msi_output *o = output_to(ends[1]);
    int end = end_of_rank_0(o);

    fcntl(end, F_SETFL, O_NONBLOCK);
    assert_int_equal(unread_later(o), 0); /* nothing waits */
    fill_all(o, end);
    for (int32_t i = 0; i < 3; i++) {
        assert_true(unread_later(o) > 0);
        assert_int_equal(read(ends[0], text, sizeof(text)), sizeof(text));
        msi_output_move(o);
        assert_int_equal(msi_output_unread_ns(o), 0);
    }
    const int64_t unread = unread_later(o);

    assert_true(unread > 0);
    assert_true(unread_later(o) > unread);
    close(end);
    msi_output_free(o);
    close(ends[0]);
    close(ends[1]);
}

/* Its reader may have been stopped with it, as when a terminal's Ctrl-Z stops a pipeline. */
static void test_job_output__counts_no_time_in_which_the_launcher_was_stopped(void **state)
{
    int ends[2];

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    msi_output *o = output_to(ends[1]);
    int end = end_of_rank_0(o);

    fcntl(end, F_SETFL, O_NONBLOCK);
    fill_all(o, end);
    const int64_t before = msi_output_unread_ns(o);

    sleep_ms(1200); /* looks are closer to each other */
    msi_output_move(o);
    assert_in_range(msi_output_unread_ns(o) - before, 1, 1000000000);
    close(end);
    msi_output_free(o);
    close(ends[0]);
    close(ends[1]);
}

static void test_job_output__says_what_cannot_be_counted_at_the_end(void **state)
{
    struct pollfd fds[FDS];
    int null = open("/dev/null", O_RDWR);
    msi_output *o = output_to(null);

    (void)state;
    msi_output_poll(o, fds);
    assert_int_equal(dup2(null, fds[2].fd), fds[2].fd); /* does not say what it holds */
    assert_false(msi_output_lost(o));
    msi_output_finish(o);
    assert_true(msi_output_lost(o));
    msi_output_free(o);
    close(null);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_output__takes_a_bounded_piece_of_a_rank_that_never_pauses),
        cmocka_unit_test(test_job_output__gives_every_rank_its_turn_before_a_slow_reader),
        cmocka_unit_test(test_job_output__ends_with_what_ranks_had_printed_though_others_go_on),
        cmocka_unit_test(test_job_output__says_once_what_cannot_be_read),
        cmocka_unit_test(test_job_output__says_what_cannot_be_counted_at_the_end),
        cmocka_unit_test(test_job_output__hears_a_reader_who_takes_a_few_bytes),
        cmocka_unit_test(test_job_output__counts_no_time_in_which_the_launcher_was_stopped),
        cmocka_unit_test(test_job_output__shows_a_line_that_is_written_over_as_it_goes),
        cmocka_unit_test(test_job_output__ends_the_open_line_of_a_rank_that_has_ended),
        cmocka_unit_test(test_job_output__lets_a_line_wait_for_its_end_but_on_a_terminal),
        cmocka_unit_test(test_job_output__prints_lines_whole_up_to_a_mebibyte_and_marks_pieces),
    };

    return cmocka_run_group_tests_name("job/output", tests, NULL, NULL);
}
