/* runtime/data/token_file.c: mapped files, and what becomes of them when they are cut. */
#include "token_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_data_token_file__maps_a_file_read_only(void **state)
{
    ms_tensor *t;
    double values[3];

    (void)state;
    assert_ok(ms_data_map(&t, write_file("abc.bin", "\x01\xff\x07", 3), MS_DTYPE_U8));
    assert_ok(ms_tensor_to_doubles(t, values, 3));
    assert_true(values[0] == 1 && values[1] == 255 && values[2] == 7);
    assert_fails(MS_RUNTIME_ERROR, "", ms_tensor_fill(t, 0));
    ms_tensor_free(t);
    const int64_t wide[] = {-5, INT64_C(1) << 40};

    assert_ok(ms_data_map(&t, write_file("wide.bin", wide, sizeof(wide)), MS_DTYPE_I64));
    assert_ok(ms_tensor_to_doubles(t, values, 2));
    assert_true(values[0] == -5 && values[1] == 0x1p40);
    ms_tensor_free(t);
}

static void test_data_token_file__names_what_is_wrong_with_a_file(void **state)
{
    ms_tensor *t = (ms_tensor *)state;

    (void)state;
    assert_fails(MS_IO_ERROR, "cannot open '/no/such/file': No such file or directory",
                 ms_data_map(&t, "/no/such/file", MS_DTYPE_U8));
    assert_null(t);
    const char *path = write_file("odd.bin", "123456789", 9);

    assert_fails(MS_FORMAT_ERROR, "odd.bin' has 9 bytes, expected tokens of 8 bytes each",
                 ms_data_map(&t, path, MS_DTYPE_I64));
    assert_fails(MS_FORMAT_ERROR, "0 bytes",
                 ms_data_map(&t, write_file("empty.bin", "", 0), MS_DTYPE_U8));
    assert_fails(MS_TYPE_ERROR, "tokens are u8 or i64, got f32",
                 ms_data_map(&t, path, MS_DTYPE_F32));
    assert_fails(MS_IO_ERROR, "no regular file", ms_data_map(&t, "/tmp", MS_DTYPE_U8));
}

static void test_data_token_file__takes_nothing_but_regular_files(void **state)
{
    const char *fifo = temp_path("fifo");
    ms_tensor *t;

    (void)state;
    assert_int_equal(0, mkfifo(fifo, 0666)); /* nobody writes into it: opening must not wait */
    assert_fails(MS_IO_ERROR, "fifo' is no regular file", ms_data_map(&t, fifo, MS_DTYPE_U8));
    assert_fails(MS_IO_ERROR, "'/dev/zero' is no regular file",
                 ms_data_map(&t, "/dev/zero", MS_DTYPE_U8));
    assert_null(t);
}

/* Reading what a file has lost would be SIGBUS. */
static void test_data_token_file__a_file_that_shrinks_is_an_error(void **state)
{
    enum { N = 64 << 10, LEFT = 5000, WINDOWS = (N - 1) / 16 };
    ms_tensor *tokens = token_file("shrinks.bin", N), *whole = token_file("whole.bin", N);
    ms_tensor *x = windows_tensor(4, 16), *y = windows_tensor(4, 16);
    double last;

    (void)state;
    assert_int_equal(0, truncate(temp_path("shrinks.bin"), LEFT));
    assert_fails(MS_IO_ERROR, "shrinks.bin' has 5000 bytes now, expected 65536", /* from now on */
                 ms_data_windows(x, y, tokens, 0, WINDOWS, 9, false));
    assert_fails(MS_IO_ERROR, "shrinks.bin' has 5000 bytes now, expected 65536",
                 ms_data_windows(x, y, tokens, WINDOWS - 4, WINDOWS, 9, false));
    assert_fails(MS_IO_ERROR, "5000 bytes now",
                 ms_data_windows(x, y, tokens, 0, WINDOWS, 9, false));
    assert_ok(ms_data_windows(x, y, whole, WINDOWS - 4, WINDOWS, 9, false));
    ms_tensor_free(tokens);
    tokens = token_file("shrinks.bin", N); /* written anew, mapped anew */
    assert_ok(ms_data_windows(x, y, tokens, WINDOWS - 4, WINDOWS, 9, false));

    /* an op that knows nothing of files goes on too, with zeros */
    assert_int_equal(0, truncate(temp_path("shrinks.bin"), 0));
    ms_tensor *end;

    assert_ok(ms_op_narrow(&end, tokens, 0, N - 1, 1));
    assert_ok(ms_tensor_to_doubles(end, &last, 1));
    assert_true(last == 0);
    assert_fails(MS_IO_ERROR, "0 bytes now", ms_data_windows(x, y, tokens, 0, WINDOWS, 9, false));
    ms_tensor_free(end);
    ms_tensor_free(x);
    ms_tensor_free(y);
    ms_tensor_free(tokens);
    ms_tensor_free(whole);
}

/* A page of which a part is left reads as zeros after it, and is no fault. */
static void test_data_token_file__a_file_cut_within_a_page_is_an_error(void **state)
{
    const int64_t page = sysconf(_SC_PAGESIZE);
    const struct {
        int64_t nbytes, left;
    } cuts[] = {
        {3000, 50},              /* the only page */
        {2 * page, page + 4},    /* a last page that was full */
        {2 * page + 9, page},    /* a last page that was not */
        {4 * page, page + 4},    /* one before it */
        {4 * page, 4 * page - 1} /* a single byte, which is 255 */
    };
    ms_tensor *x = windows_tensor(1, 16), *y = windows_tensor(1, 16);

    (void)state;
    for (int i = 0; i < (int)(sizeof(cuts) / sizeof(cuts[0])); i++) {
        ms_tensor *tokens = token_file("cut.bin", cuts[i].nbytes);
        const int64_t windows = (cuts[i].nbytes - 1) / 16;
        uint64_t digest;

        assert_ok(ms_data_windows(x, y, tokens, 0, windows, 9, false));
        assert_int_equal(0, truncate(temp_path("cut.bin"), cuts[i].left));
        assert_fails(MS_IO_ERROR, "cut.bin' has ",
                     ms_data_windows(x, y, tokens, 0, windows, 9, false));
        assert_fails(MS_IO_ERROR, "cut.bin' has ",
                     ms_data_windows(x, y, tokens, windows - 1, windows, 9, false));
        assert_fails(MS_IO_ERROR, "cut.bin' has ", ms_data_digest(tokens, &digest));
        ms_tensor_free(tokens);
    }
    ms_tensor_free(x);
    ms_tensor_free(y);
}

/* Zeros read the same whether they are there or not; more than a page of them is missed. */
static void test_data_token_file__zeros_at_the_end_of_a_file_are_tokens_too(void **state)
{
    const int64_t page = sysconf(_SC_PAGESIZE);
    uint8_t *bytes = calloc(1, (size_t)(3 * page));
    ms_tensor *x = windows_tensor(1, 1), *y = windows_tensor(1, 1), *tokens;

    (void)state;
    memset(bytes, 7, (size_t)page);
    assert_ok(
        ms_data_map(&tokens, write_file("zeros.bin", bytes, (size_t)(3 * page)), MS_DTYPE_U8));
    assert_ok(ms_data_windows(x, y, tokens, 0, 3 * page - 1, 9, false));
    assert_int_equal(0, truncate(temp_path("zeros.bin"), 3 * page - 5));
    assert_ok(ms_data_windows(x, y, tokens, 0, 3 * page - 1, 9, false));
    assert_int_equal(0, truncate(temp_path("zeros.bin"), page));
    assert_fails(MS_IO_ERROR, "zeros.bin' has ",
                 ms_data_windows(x, y, tokens, 0, 3 * page - 1, 9, false));
    ms_tensor_free(tokens);
    ms_tensor_free(x);
    ms_tensor_free(y);
    free(bytes);
}

/* Other people's faults are not ours to hide. */
static void test_data_token_file__a_fault_elsewhere_still_ends_the_process(void **state)
{
    const char *path = temp_path("theirs.bin");
    int status;

    (void)state;
    write_file("theirs.bin", "x", 1);
    pid_t child = fork();

    if (child == 0) {
        int fd = open(path, O_RDWR);
        volatile char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

        signal(SIGBUS, SIG_DFL); /* the test runner's own handler would go on with the tests */
        ms_tensor_free(token_file("mine.bin", 8192));
        _exit(ftruncate(fd, 0) == 0 && map[0] == 'x' ? 0 : 1);
    }
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(SIGBUS, WTERMSIG(status));
}

/* An op knows nothing of files and cannot fail for one: who reads zeros for tokens is told. */
static void test_data_token_file__a_file_that_shrinks_is_said_once(void **state)
{
    enum { N = 64 << 10 };
    char said_at[256], said[1000] = "";
    int status;

    (void)state;
    snprintf(said_at, sizeof(said_at), "%s", temp_path("said.txt")); /* temp_path's is reused */
    pid_t child = fork();

    if (child == 0) {
        ms_close(); /* a device that was opened is the parent's */
        ms_tensor *tokens = token_file("shorter.bin", N), *other = token_file("also.bin", N);
        double values[N], more[N];

        if (freopen(said_at, "w", stderr) == NULL ||
            truncate(temp_path("shorter.bin"), 4096) != 0 ||
            truncate(temp_path("also.bin"), 0) != 0) {
            _exit(1);
        }
        for (int i = 0; i < 2; i++) {
            if (ms_tensor_to_doubles(tokens, values, N) != MS_OK ||
                ms_tensor_to_doubles(other, more, N) != MS_OK) {
                _exit(2);
            }
        }
        _exit(values[4095] == 255 && values[N - 1] == 0 && more[1] == 0 ? 0 : 3);
    }
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFEXITED(status));
    assert_int_equal(0, WEXITSTATUS(status));
    FILE *f = fopen(said_at, "r");

    assert_non_null(f);
    said[fread(said, 1, sizeof(said) - 1, f)] = '\0';
    fclose(f);
    const char *first = strstr(said, "shorter.bin' is shorter than when it was mapped");
    const char *second = strstr(said, "also.bin' is shorter than when it was mapped");

    assert_memory_equal(said, "moonshard: UserWarning: '", 25);
    assert_true(first != NULL && second > first);
    assert_null(strstr(first + 1, "shorter.bin'"));
    assert_null(strstr(second + 1, "also.bin'"));
    assert_int_equal('\n', said[strlen(said) - 1]);
}

/* Another library's handler, which asks the one it found when it does not know a fault. */
static struct sigaction found;
static pthread_barrier_t both_fault;
static _Thread_local int times_asked;
static atomic_int n_asked;

static void ask_on(int number, siginfo_t *info, void *context)
{
    if (times_asked++ > 0) {
        _exit(9); /* the same fault has come round */
    }
    const bool first = atomic_fetch_add(&n_asked, 1) == 0;

    pthread_barrier_wait(&both_fault);
    while (!first) {
        pause();
    }
    found.sa_sigaction(number, info, context);
}

static void *fault(void *page)
{
    return (void *)(uintptr_t) * (volatile char *)page;
}

/* Two threads fault at once, elsewhere: neither takes the other's question for its own. */
static void test_data_token_file__faults_of_two_threads_are_passed_on_once_each(void **state)
{
    struct rlimit no_core = {0, 0};
    int status;

    (void)state;
    pid_t child = fork();

    if (child == 0) {
        const int fd = open(temp_path("both.bin"), O_RDWR | O_CREAT, 0600);
        void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        struct sigaction theirs = {.sa_sigaction = ask_on, .sa_flags = SA_SIGINFO};
        pthread_t other;

        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGBUS, SIG_DFL);
        pthread_barrier_init(&both_fault, NULL, 2);
        ms_tensor_free(token_file("mine.bin", 8192));
        sigaction(SIGBUS, &theirs, &found);           /* behind: ours */
        ms_tensor_free(token_file("mine.bin", 8192)); /* in front: ours again */
        pthread_create(&other, NULL, fault, page);
        fault(page);
        _exit(1);
    }
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(SIGBUS, WTERMSIG(status));
}

static void test_data_token_file__a_signal_that_is_ignored_stays_so(void **state)
{
    int status;

    (void)state;
    pid_t child = fork();

    if (child == 0) {
        signal(SIGBUS, SIG_IGN);
        ms_tensor_free(token_file("mine.bin", 8192));
        _exit(kill(getpid(), SIGBUS) == 0 ? 0 : 1);
    }
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFEXITED(status));
    assert_int_equal(0, WEXITSTATUS(status));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_token_file__maps_a_file_read_only),
        cmocka_unit_test(test_data_token_file__names_what_is_wrong_with_a_file),
        cmocka_unit_test(test_data_token_file__takes_nothing_but_regular_files),
        cmocka_unit_test(test_data_token_file__a_file_that_shrinks_is_an_error),
        cmocka_unit_test(test_data_token_file__a_file_that_shrinks_is_said_once),
        cmocka_unit_test(test_data_token_file__a_file_cut_within_a_page_is_an_error),
        cmocka_unit_test(test_data_token_file__zeros_at_the_end_of_a_file_are_tokens_too),
        cmocka_unit_test(test_data_token_file__a_fault_elsewhere_still_ends_the_process),
        cmocka_unit_test(test_data_token_file__faults_of_two_threads_are_passed_on_once_each),
        cmocka_unit_test(test_data_token_file__a_signal_that_is_ignored_stays_so),
    };
    return cmocka_run_group_tests_name("data/token_file", tests, NULL, NULL);
}
