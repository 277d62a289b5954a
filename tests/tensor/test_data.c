/* runtime/tensor/data.c: mapped token files, shuffled windows, drawing tokens. */
#include "moonshard/data.h"
#include "ms_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *write_file(const char *name, const void *bytes, size_t n)
{
    const char *path = temp_path(name);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(n, fwrite(bytes, 1, n, f));
    assert_int_equal(0, fclose(f));
    return path;
}

static ms_tensor *token_file(const char *name, int64_t n)
{
    uint8_t *bytes = malloc((size_t)n);
    ms_tensor *tokens;

    for (int64_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)i;
    }
    assert_ok(ms_data_map(&tokens, write_file(name, bytes, (size_t)n), MS_DTYPE_U8));
    free(bytes);
    return tokens;
}

static ms_tensor *windows_tensor(int64_t rows, int64_t context)
{
    ms_tensor *t;

    assert_ok(ms_tensor_empty(&t, MS_DTYPE_I64, 2, (int64_t[]){rows, context}));
    return t;
}

static void test_tensor_data__maps_a_file_read_only(void **state)
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

static void test_tensor_data__names_what_is_wrong_with_a_file(void **state)
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

static void test_tensor_data__takes_nothing_but_regular_files(void **state)
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
static void test_tensor_data__a_file_that_shrinks_is_an_error(void **state)
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
static void test_tensor_data__a_file_cut_within_a_page_is_an_error(void **state)
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
static void test_tensor_data__zeros_at_the_end_of_a_file_are_tokens_too(void **state)
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
static void test_tensor_data__a_fault_elsewhere_still_ends_the_process(void **state)
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
static void test_tensor_data__a_file_that_shrinks_is_said_once(void **state)
{
    enum { N = 64 << 10 };
    char said_at[256], said[1000] = "";
    int status;

    (void)state;
    snprintf(said_at, sizeof(said_at), "%s", temp_path("said.txt")); /* temp_path's is reused */
    pid_t child = fork();

    if (child == 0) {
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
static void test_tensor_data__faults_of_two_threads_are_passed_on_once_each(void **state)
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

static void test_tensor_data__a_signal_that_is_ignored_stays_so(void **state)
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

static void test_tensor_data__in_order_windows_follow_each_other(void **state)
{
    /* 11 tokens, windows of 3: 0..2, 3..5, 6..8; 9 is the last target, 10 is left over */
    ms_tensor *tokens = token_file("order.bin", 11);
    ms_tensor *x = windows_tensor(2, 3), *y = windows_tensor(2, 3);
    double got[6];
    int64_t n;

    (void)state;
    assert_ok(ms_data_n_windows(tokens, 3, &n));
    assert_int_equal(3, n);
    assert_ok(ms_data_windows(x, y, tokens, 1, 3, 9, false));
    assert_ok(ms_tensor_to_doubles(x, got, 6));
    for (int i = 0; i < 6; i++) {
        assert_true(got[i] == 3 + i);
    }
    assert_ok(ms_tensor_to_doubles(y, got, 6));
    for (int i = 0; i < 6; i++) {
        assert_true(got[i] == 4 + i);
    }
    assert_fails(MS_INDEX_ERROR, "samples 2 to 3 are asked for, 3 exist",
                 ms_data_windows(x, y, tokens, 2, 3, 9, false));
    assert_fails(MS_INDEX_ERROR, "samples -1 to 0", ms_data_windows(x, y, tokens, -1, 3, 9, false));
    assert_fails(MS_VALUE_ERROR, "an epoch has 4 samples, expected 1 to 3",
                 ms_data_windows(x, y, tokens, 0, 4, 9, false));
    assert_fails(MS_VALUE_ERROR, "an epoch has 0 samples, expected 1 to 3",
                 ms_data_windows(x, y, tokens, 0, 0, 9, false));
    assert_ok(ms_data_windows(x, y, tokens, 7, 3, 9, false)); /* the third epoch's second */
    assert_ok(ms_tensor_to_doubles(x, got, 6));
    assert_true(got[0] == 3);
    ms_tensor_free(x);
    ms_tensor_free(y);
    ms_tensor_free(tokens);
}

/* Window numbers of all samples of an epoch; windows of one token, so that the token is it. */
static void order_of_epoch(int64_t n, uint64_t seed, int64_t epoch, double *order)
{
    ms_tensor *tokens, *x = windows_tensor(n, 1), *y = windows_tensor(n, 1);

    assert_ok(ms_tensor_arange(&tokens, MS_DTYPE_I64, 0, 1, n + 1));
    assert_ok(ms_data_windows(x, y, tokens, epoch * n, n, seed, true));
    assert_ok(ms_tensor_to_doubles(x, order, n));
    ms_tensor_free(x);
    ms_tensor_free(y);
    ms_tensor_free(tokens);
}

static void test_tensor_data__every_epoch_is_a_permutation(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 1000, 4097};
    static double order[4097];
    static bool seen[4097];

    (void)state;
    for (int i = 0; i < (int)(sizeof(sizes) / sizeof(sizes[0])); i++) {
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof(seen));
            order_of_epoch(sizes[i], 7, epoch, order);
            for (int64_t s = 0; s < sizes[i]; s++) {
                int64_t w = (int64_t)order[s];

                assert_true(w >= 0 && w < sizes[i] && !seen[w]);
                seen[w] = true;
            }
        }
    }
}

static void test_tensor_data__the_order_depends_on_seed_and_epoch_alone(void **state)
{
    static double a[1000], b[1000];

    (void)state;
    order_of_epoch(1000, 1, 0, a);
    order_of_epoch(1000, 1, 0, b);
    assert_memory_equal(a, b, sizeof(a));
    order_of_epoch(1000, 1, 1, b);
    assert_memory_not_equal(a, b, sizeof(a));
    order_of_epoch(1000, 2, 0, b);
    assert_memory_not_equal(a, b, sizeof(a));
}

static void test_tensor_data__a_digest_tells_streams_apart(void **state)
{
    enum { N = 300000 };
    static uint8_t bytes[N];
    static const int32_t places[] = {0, 65535, N - 65536, N - 1};
    uint64_t first, again;
    ms_tensor *t;

    (void)state;
    for (int32_t i = -2; i < (int32_t)(sizeof(places) / sizeof(places[0])); i++) {
        int64_t n = i == -1 ? N - 1 : N;

        memset(bytes, 7, sizeof(bytes));
        if (i >= 0) {
            bytes[places[i]] = 8;
        }
        assert_ok(ms_data_map(&t, write_file("digest.bin", bytes, (size_t)n), MS_DTYPE_U8));
        assert_ok(ms_data_digest(t, i == -2 ? &first : &again));
        assert_true(i == -2 || again != first);
        ms_tensor_free(t);
    }
    assert_ok(ms_tensor_arange(&t, MS_DTYPE_I64, 0, 1, 3));
    assert_ok(ms_data_digest(t, &again));
    ms_tensor_free(t);
    assert_ok(ms_tensor_empty(&t, MS_DTYPE_F32, 1, (int64_t[]){3}));
    assert_fails(MS_TYPE_ERROR, "tokens are u8 or i64, got f32", ms_data_digest(t, &again));
    ms_tensor_free(t);
}

static void test_tensor_data__shuffled_neighbours_are_far_apart(void **state)
{
    /* |p(s + 1) - p(s)| of a random permutation of n averages n / 3; +-8 % is five deviations. */
    static double order[4097];
    double sum = 0;

    (void)state;
    for (int64_t epoch = 0; epoch < 4; epoch++) {
        order_of_epoch(4097, 0, epoch, order);
        for (int64_t s = 0; s + 1 < 4097; s++) {
            sum += fabs(order[s + 1] - order[s]);
        }
    }
    assert_true(fabs(sum / (4 * 4096) - 4097.0 / 3) < 0.08 * 4097 / 3);
}

static ms_tensor *logits_of(const double *values, int64_t n)
{
    ms_tensor *t;

    assert_ok(ms_tensor_from_doubles(&t, MS_DTYPE_F32, 1, &n, values, n));
    return t;
}

static void test_tensor_data__temperature_zero_takes_the_first_largest(void **state)
{
    ms_tensor *logits = logits_of((double[]){1, 3, -2, 3}, 4);
    int64_t token;

    (void)state;
    assert_ok(ms_data_sample(&token, logits, 0, 0, 1, 1));
    assert_int_equal(1, token);
    ms_tensor_free(logits);
}

/* Shares of 40,000 draws; a share of p deviates by sqrt(p (1 - p) / 40,000) <= 0.0025. */
static void shares(const double *values, int64_t n, double temperature, int32_t top_k,
                   double *share)
{
    ms_tensor *logits = logits_of(values, n);

    memset(share, 0, (size_t)n * sizeof(*share));
    for (int64_t draw = 0; draw < 40000; draw++) {
        int64_t token;

        assert_ok(ms_data_sample(&token, logits, temperature, top_k, 5, draw));
        assert_true(token >= 0 && token < n);
        share[token] += 1.0 / 40000;
    }
    ms_tensor_free(logits);
}

static void test_tensor_data__draws_follow_the_softmax(void **state)
{
    double share[3];

    (void)state;
    shares((double[]){log(1), log(2), log(5)}, 3, 1, 0, share);
    assert_true(fabs(share[0] - 1.0 / 8) < 0.012);
    assert_true(fabs(share[1] - 2.0 / 8) < 0.012);
    assert_true(fabs(share[2] - 5.0 / 8) < 0.012);
    shares((double[]){log(1), log(2), log(5)}, 3, 0.5, 0, share); /* squares: 1, 4, 25 */
    assert_true(fabs(share[0] - 1.0 / 30) < 0.012);
    assert_true(fabs(share[1] - 4.0 / 30) < 0.012);
}

static void test_tensor_data__top_k_keeps_the_first_of_equals_at_the_edge(void **state)
{
    double share[4];

    (void)state;
    shares((double[]){0, 2, 0, 0}, 4, 1e6, 2, share); /* so hot that all kept are equal */
    assert_true(share[2] == 0 && share[3] == 0);
    assert_true(fabs(share[0] - 0.5) < 0.012 && fabs(share[1] - 0.5) < 0.012);
}

/* The limits of growing logits and temperatures. */
static void test_tensor_data__infinite_logits_and_temperatures_are_limits(void **state)
{
    double share[4];

    (void)state;
    shares((double[]){1, 2, INFINITY, 0}, 4, 1, 0, share);
    assert_true(fabs(share[2] - 1) < 1e-9);
    shares((double[]){INFINITY, 2, INFINITY, -INFINITY}, 4, INFINITY, 3, share);
    assert_true(share[1] == 0 && share[3] == 0 && fabs(share[0] - 0.5) < 0.012);
    shares((double[]){0, -INFINITY, 3}, 3, INFINITY, 0, share);
    assert_true(share[1] == 0 && fabs(share[0] - 0.5) < 0.012);
}

static void test_tensor_data__refuses_what_cannot_be_drawn_from(void **state)
{
    ms_tensor *logits = logits_of((double[]){0, NAN}, 2);
    int64_t token;

    (void)state;
    assert_fails(MS_VALUE_ERROR, "logit 1 is NaN", ms_data_sample(&token, logits, 1, 0, 0, 0));
    assert_fails(MS_VALUE_ERROR, "neither below 0", ms_data_sample(&token, logits, -1, 0, 0, 0));
    assert_fails(MS_VALUE_ERROR, "neither below 0", ms_data_sample(&token, logits, 1, -1, 0, 0));
    ms_tensor_free(logits);
    logits = logits_of((double[]){-INFINITY, -INFINITY}, 2);
    for (int32_t temperature = 0; temperature < 2; temperature++) {
        assert_fails(MS_VALUE_ERROR, "all 2 logits are -inf",
                     ms_data_sample(&token, logits, temperature, 1, 0, 0));
    }
    ms_tensor_free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_data__maps_a_file_read_only),
        cmocka_unit_test(test_tensor_data__names_what_is_wrong_with_a_file),
        cmocka_unit_test(test_tensor_data__takes_nothing_but_regular_files),
        cmocka_unit_test(test_tensor_data__a_file_that_shrinks_is_an_error),
        cmocka_unit_test(test_tensor_data__a_file_that_shrinks_is_said_once),
        cmocka_unit_test(test_tensor_data__a_file_cut_within_a_page_is_an_error),
        cmocka_unit_test(test_tensor_data__zeros_at_the_end_of_a_file_are_tokens_too),
        cmocka_unit_test(test_tensor_data__a_fault_elsewhere_still_ends_the_process),
        cmocka_unit_test(test_tensor_data__faults_of_two_threads_are_passed_on_once_each),
        cmocka_unit_test(test_tensor_data__a_signal_that_is_ignored_stays_so),
        cmocka_unit_test(test_tensor_data__in_order_windows_follow_each_other),
        cmocka_unit_test(test_tensor_data__every_epoch_is_a_permutation),
        cmocka_unit_test(test_tensor_data__the_order_depends_on_seed_and_epoch_alone),
        cmocka_unit_test(test_tensor_data__a_digest_tells_streams_apart),
        cmocka_unit_test(test_tensor_data__shuffled_neighbours_are_far_apart),
        cmocka_unit_test(test_tensor_data__temperature_zero_takes_the_first_largest),
        cmocka_unit_test(test_tensor_data__draws_follow_the_softmax),
        cmocka_unit_test(test_tensor_data__top_k_keeps_the_first_of_equals_at_the_edge),
        cmocka_unit_test(test_tensor_data__infinite_logits_and_temperatures_are_limits),
        cmocka_unit_test(test_tensor_data__refuses_what_cannot_be_drawn_from),
    };
    return cmocka_run_group_tests_name("tensor_data", tests, NULL, NULL);
}
