/* runtime/backend/device.h: what every device keeps to: the CPU, and the one that runs things later
 * under both of its orders. */
#include "blocks.h"
#include "bytes.h"
#include "child_test.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 64, SEEDS = 200 };

static msi_kernel_fn kernel(int32_t k, int32_t dtype)
{
    return msi_kernels()->fn[k][dtype];
}

static ms_status gemm(void *user, const msi_gemm_args *args)
{
    (void)user;
    msi_kernels()->fn[MSI_K_gemm][args->dtype](args);
    return MS_OK;
}

static const msi_device_ops *fake_ops(void)
{
    const msi_device_ops *(*plugin)(void);
    const char *folder = getenv("MS_PLUGIN_DIR");
    char path[4096];

    snprintf(path, sizeof(path), "%s/libmoonshard_fake.so", folder != NULL ? folder : ".");
    void *library = dlopen(path, RTLD_NOW);

    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
    }
    assert_non_null(library);
    *(void **)&plugin = dlsym(library, "msi_device_plugin");
    return plugin();
}

static msi_device *open_device(const msi_device_ops *ops, int32_t seed)
{
    const msi_device_host host = {.kernel = kernel,
                                  .args_bytes = msi_args_bytes,
                                  .args_copy = msi_args_copy,
                                  .gemm = gemm,
                                  .cpu = &msi_cpu_device_ops};
    char error[MSI_DEVICE_ERROR];
    msi_device *d;

    setenv("MS_FAKE_ORDER", seed % 2 == 0 ? "uniform" : "priorities", 1);
    assert_int_equal(ops->open(&d, &host, seed, error), MSI_DEV_OK);
    return d;
}

/* @return for how many seeds `body` held on the deferred device */
static int32_t count_right(bool (*body)(msi_device *d))
{
    const msi_device_ops *fake = fake_ops();
    int32_t n = 0;

    for (int32_t seed = 0; seed < SEEDS; seed++) {
        msi_device *d = open_device(fake, seed);

        n += body(d);
        d->ops->close(d);
    }
    return n;
}

/* out = in + 1, of N f32 */
static void add_one(msi_device *d, int32_t stream, float *out, const float *in)
{
    msi_ew_args args = {.out = out, .in = {in}, .scalar = {1, 1}};

    args.loop.ndim = 1;
    args.loop.shape[0] = N;
    args.loop.stride[0][0] = args.loop.stride[1][0] = 1;
    assert_int_equal(d->ops->run(d, stream, MSI_K_affine, MS_DTYPE_F32, &args), MSI_DEV_OK);
}

static void wait_for(msi_device *d, int32_t stream)
{
    assert_int_equal(d->ops->wait(d, d->ops->mark(d, stream), NULL, NULL), MSI_DEV_OK);
}

static float *take(msi_device *d)
{
    void *p;

    assert_int_equal(d->ops->take(d, N * sizeof(float), MSI_PLACE_DEVICE, &p), MSI_DEV_OK);
    assert_int_equal((uintptr_t)p % 64, 0);
    return p;
}

static void give(msi_device *d, float *p)
{
    assert_ok(msi_device_wait(d));
    d->ops->give(d, p, N * sizeof(float), MSI_PLACE_DEVICE);
}

/* -- one stream -------------------------------------------------------------------------------- */

static bool keeps_its_order(msi_device *d)
{
    float *a = take(d), *b = take(d);

    d->ops->set(d, MSI_STREAM_COMPUTE, a, 0, N * sizeof(float));
    for (int32_t i = 0; i < 5; i++) {
        add_one(d, MSI_STREAM_COMPUTE, a, a);
    }
    d->ops->copy(d, MSI_STREAM_COMPUTE, b, a, N * sizeof(float));
    add_one(d, MSI_STREAM_COMPUTE, a, a);
    wait_for(d, MSI_STREAM_COMPUTE);
    const bool right = a[0] == 6 && b[0] == 5 && b[N - 1] == 5;

    give(d, a);
    give(d, b);
    return right;
}

/* c = a + b, whose caller lists something else when it has returned. */
static bool keeps_what_arguments_list(msi_device *d)
{
    float *a = take(d), *b = take(d), *c = take(d);
    msi_tree_source src[] = {{a, MS_DTYPE_F32}, {b, MS_DTYPE_F32}};
    msi_tree_args args = {
        .n = N, .n_src = 2, .src = src, .out = c, .round_dtype = MS_DTYPE_F32, .factor = 1};

    d->ops->set(d, MSI_STREAM_COMPUTE, a, 0, N * sizeof(float));
    add_one(d, MSI_STREAM_COMPUTE, a, a);
    add_one(d, MSI_STREAM_COMPUTE, b, a);
    assert_int_equal(d->ops->run(d, MSI_STREAM_COMPUTE, MSI_K_tree, MS_DTYPE_F32, &args),
                     MSI_DEV_OK);
    src[0] = src[1] = (msi_tree_source){NULL, MS_DTYPE_NONE};
    args.src = NULL;
    wait_for(d, MSI_STREAM_COMPUTE);
    const bool right = c[0] == 3 && c[N - 1] == 3;

    give(d, a);
    give(d, b);
    give(d, c);
    return right;
}

/* -- several ----------------------------------------------------------------------------------- */

/* One stream writes what another reads, back and forth. */
static float pass_on(msi_device *d, bool ordered)
{
    float *a = take(d), *b = take(d);

    d->ops->set(d, MSI_STREAM_COMPUTE, a, 0, N * sizeof(float));
    for (int32_t i = 0; i < 4; i++) {
        if (ordered) {
            d->ops->after(d, MSI_STREAM_GATHER, d->ops->mark(d, MSI_STREAM_COMPUTE));
        }
        add_one(d, MSI_STREAM_GATHER, b, a);
        d->ops->after(d, MSI_STREAM_COMPUTE, d->ops->mark(d, MSI_STREAM_GATHER));
        add_one(d, MSI_STREAM_COMPUTE, a, b);
    }
    wait_for(d, MSI_STREAM_COMPUTE);
    const float result = a[N / 2];

    give(d, a);
    give(d, b);
    return result;
}

static bool passes_on(msi_device *d)
{
    return pass_on(d, true) == 8;
}

static bool passes_on_without_order(msi_device *d)
{
    return pass_on(d, false) == 8;
}

static bool is_read_early(msi_device *d)
{
    float *a = take(d);

    d->ops->set(d, MSI_STREAM_COMPUTE, a, 0, N * sizeof(float));
    for (int32_t i = 0; i < 6; i++) {
        add_one(d, MSI_STREAM_COMPUTE, a, a);
    }
    const bool right = a[0] == 6;

    give(d, a);
    return right;
}

/* -- words ------------------------------------------------------------------------------------- */

/* A stream waits for the words of two others, whatever was enqueued first. */
static bool waits_for_words(msi_device *d)
{
    _Atomic uint64_t word[2] = {0, 0};
    _Atomic uint64_t *const words[2] = {&word[0], &word[1]};
    float *a = take(d), *b = take(d), *c = take(d);

    d->ops->set(d, MSI_STREAM_COMPUTE, a, 0, N * sizeof(float));
    d->ops->set(d, MSI_STREAM_GATHER, b, 0, N * sizeof(float));
    wait_for(d, MSI_STREAM_COMPUTE);
    wait_for(d, MSI_STREAM_GATHER);
    assert_int_equal(d->ops->await(d, MSI_STREAM_REDUCE, words, 2, 3),
                     d->ops == &msi_cpu_device_ops ? MSI_DEV_FAILED : MSI_DEV_OK);
    add_one(d, MSI_STREAM_COMPUTE, a, a);
    d->ops->post(d, MSI_STREAM_COMPUTE, words[0], 3);
    add_one(d, MSI_STREAM_GATHER, b, b);
    add_one(d, MSI_STREAM_GATHER, b, b);
    d->ops->post(d, MSI_STREAM_GATHER, words[1], 4);
    assert_int_equal(d->ops->await(d, MSI_STREAM_REDUCE, words, 2, 3), MSI_DEV_OK);
    d->ops->copy(d, MSI_STREAM_REDUCE, c, a, N / 2 * sizeof(float));
    d->ops->copy(d, MSI_STREAM_REDUCE, c + N / 2, b, N / 2 * sizeof(float));
    wait_for(d, MSI_STREAM_REDUCE);
    const bool right = c[0] == 1 && c[N - 1] == 2 && word[0] == 3 && word[1] == 4;

    give(d, a);
    give(d, b);
    give(d, c);
    return right;
}

static bool never(void *user, bool run)
{
    (void)run;
    (*(int32_t *)user)++;
    return false;
}

static bool gives_up_waiting(msi_device *d)
{
    _Atomic uint64_t word = 0;
    _Atomic uint64_t *const words[1] = {&word};
    int32_t n_asked = 0;

    assert_int_equal(d->ops->await(d, MSI_STREAM_GATHER, words, 1, 1), MSI_DEV_OK);
    const msi_mark m = d->ops->mark(d, MSI_STREAM_GATHER);
    const bool right = d->ops->done(d, m) == MSI_DEV_NOT_YET &&
                       d->ops->wait(d, m, never, &n_asked) == MSI_DEV_NOT_YET && n_asked == 1;

    atomic_store(&word, 1);
    return right && d->ops->wait(d, m, never, &n_asked) == MSI_DEV_OK;
}

/* Peers that are there at first, and then gone. */
static int32_t n_looks;

static ms_status look_at_peers(ms_context *ctx, int64_t waited_ns)
{
    (void)ctx;
    assert_true(waited_ns >= 0);
    return ++n_looks < 3 ? MS_OK : MS_FAIL(MS_COMM_ERROR, "the peers are gone");
}

static bool ends_the_wait_for_peers_that_are_gone(msi_device *d)
{
    ms_context ctx = {.check_peers = look_at_peers};
    _Atomic uint64_t word = 0;
    _Atomic uint64_t *const words[1] = {&word};
    float *a = take(d);

    assert_int_equal(d->ops->await(d, MSI_STREAM_GATHER, words, 1, 1), MSI_DEV_OK);
    d->ops->set(d, MSI_STREAM_GATHER, a, 0, sizeof(*a));
    d->ctx = &ctx;
    n_looks = 0;
    const ms_status status = msi_device_wait(d);

    d->ctx = NULL;
    const bool right = status == MS_COMM_ERROR && n_looks == 3 && a[0] == 0 && word == 0;

    give(d, a);
    return right;
}

/* -- memory ------------------------------------------------------------------------------------ */

static bool shares_memory(msi_device *d)
{
    void *own, *other;
    int32_t fd;

    assert_int_equal(d->ops->share(d, 8192, &own, &fd), MSI_DEV_OK);
    assert_int_equal(d->ops->attach(d, fd, 8192, true, &other), MSI_DEV_OK);
    d->ops->set(d, MSI_STREAM_GATHER, own, 7, 8192);
    wait_for(d, MSI_STREAM_GATHER);
    const bool right = own != other && memcmp(own, other, 8192) == 0 && ((char *)other)[8191] == 7;

    d->ops->detach(d, own, 8192);
    d->ops->detach(d, other, 8192);
    close(fd);
    return right;
}

static bool refuses_what_the_host_does_not_have(msi_device *d)
{
    void *p;
    int32_t fd;

    return d->ops->share(d, (int64_t)1 << 50, &p, &fd) == MSI_DEV_NO_MEMORY;
}

/* Where it is asked for all the same, the signal of files that grow too large ends the process
 * before the memory of the host is gone. */
static int ask_for_too_much(void)
{
    const struct rlimit files = {1 << 20, 1 << 20};
    msi_device *cpu = open_device(&msi_cpu_device_ops, 0);

    signal(SIGXFSZ, SIG_DFL);
    CHILD_CHECK(setrlimit(RLIMIT_FSIZE, &files) == 0);
    CHILD_CHECK(refuses_what_the_host_does_not_have(cpu));
    CHILD_CHECK(count_right(refuses_what_the_host_does_not_have) == SEEDS);
    cpu->ops->close(cpu);
    return 0;
}

static void test_backend_device__memory_that_is_not_there_is_not_shared(void **state)
{
    (void)state;
    in_child(ask_for_too_much);
}

/* -- of every device --------------------------------------------------------------------------- */

/* How many of SEEDS orders of the deferred device come out right: those without order or wait
 * show that it does run things in other orders. */
static const struct {
    const char *name;
    bool (*body)(msi_device *d);
    bool also_cpu;
    int32_t least, most;
} laws[] = {
    {"a stream keeps its order", keeps_its_order, true, SEEDS, SEEDS},
    {"arguments are copied with their lists", keeps_what_arguments_list, true, SEEDS, SEEDS},
    {"streams go on after marks", passes_on, true, SEEDS, SEEDS},
    {"streams without marks", passes_on_without_order, false, 0, SEEDS * 3 / 4},
    {"reading without waiting", is_read_early, false, 0, SEEDS / 4},
    {"a stream waits for words", waits_for_words, true, SEEDS, SEEDS},
    {"the caller ends a wait", gives_up_waiting, false, SEEDS, SEEDS},
    {"peers that are gone end a wait", ends_the_wait_for_peers_that_are_gone, false, SEEDS, SEEDS},
    {"shared memory has two addresses", shares_memory, true, SEEDS, SEEDS},
};

static void test_backend_device__keeps_its_laws_in_every_order(void **state)
{
    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(laws); i++) {
        msi_device *cpu = open_device(&msi_cpu_device_ops, 0);
        const bool right = !laws[i].also_cpu || laws[i].body(cpu);
        const int32_t n = count_right(laws[i].body);

        cpu->ops->close(cpu);
        if (!right || n < laws[i].least || n > laws[i].most) {
            fail_msg("%s: %s on the CPU, right in %d of %d orders", laws[i].name,
                     right ? "right" : "wrong", (int)n, SEEDS);
        }
    }
}

/* -- what the fake one notices ----------------------------------------------------------------- */

/* In a process that ends by it; `body` comes back where it is not noticed. */
static void assert_ends_in(void (*body)(msi_device *d))
{
    const msi_device_ops *fake = fake_ops();
    int status;
    const pid_t pid = fork();

    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) != NULL) {
            body(open_device(fake, 1));
        }
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void close_with_shared_memory(msi_device *d)
{
    void *p;
    int32_t fd;

    assert_int_equal(d->ops->share(d, 8192, &p, &fd), MSI_DEV_OK);
    d->ops->close(d);
}

/* Nothing runs before the word is there, which is not posted. */
static void block(msi_device *d)
{
    static _Atomic uint64_t word;
    _Atomic uint64_t *const words[] = {&word};

    d->ops->await(d, MSI_STREAM_COMPUTE, words, 1, 1);
}

static void give_what_a_kernel_writes(msi_device *d)
{
    float *a = take(d), *b = take(d);

    block(d);
    add_one(d, MSI_STREAM_COMPUTE, b, a);
    d->ops->give(d, b, N * sizeof(float), MSI_PLACE_DEVICE);
}

static void test_backend_device__memory_that_is_not_given_back_rightly_is_noticed(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it forks */
#endif
    assert_ends_in(close_with_shared_memory);
    assert_ends_in(give_what_a_kernel_writes);
}

/* -- the runtime on it ------------------------------------------------------------------------- */

static void test_backend_device__one_that_does_not_exist_is_an_error(void **state)
{
    ms_tensor *t;

    (void)state;
    ms_close();
    setenv("MS_DEVICE", "gpu", 1);
    assert_fails(MS_DEVICE_ERROR, "MS_DEVICE is 'gpu', expected cpu, cuda, plan or fake",
                 ms_tensor_full(&t, MS_DTYPE_F32, 0, NULL, 1));
    unsetenv("MS_DEVICE");
    ms_close();
}

/* -- memory for items -------------------------------------------------------------------------- */

static struct {
    const msi_device_ops *real;
    msi_device_ops ops;
    bool refuses; /* the next */
} starved;

static bool refuses(void)
{
    const bool now = starved.refuses;

    starved.refuses = false;
    return now;
}

static int32_t starved_run(msi_device *d, int32_t stream, int32_t k, int32_t dtype,
                           const void *args)
{
    return refuses() ? MSI_DEV_NO_MEMORY : starved.real->run(d, stream, k, dtype, args);
}

static int32_t starved_await(msi_device *d, int32_t stream, _Atomic uint64_t *const *words,
                             int32_t n, uint64_t at_least)
{
    return refuses() ? MSI_DEV_NO_MEMORY : starved.real->await(d, stream, words, n, at_least);
}

/* Memory for an item is there once others have run. */
static void test_backend_device__a_moments_want_of_memory_fails_nothing(void **state)
{
    float one = 1, sum = 0;
    const msi_ew_args add = {.out = &sum, .in = {&one, &one}, .in_dtype = MS_DTYPE_F32};
    _Atomic uint64_t word = 1, *const words[] = {&word};

    (void)state;
    ms_close();
    setenv("MS_DEVICE", "fake", 1);
    assert_ok(msi_memory_open(msi_context()));
    msi_device *d = msi_context()->device;

    starved.real = d->ops;
    starved.ops = *d->ops;
    starved.ops.run = starved_run;
    starved.ops.await = starved_await;
    d->ops = &starved.ops;
    starved.refuses = true;
    assert_ok(msi_dispatch("add", MSI_K_add, MS_DTYPE_F32, &add));
    starved.refuses = true;
    assert_ok(msi_device_await(d, MSI_STREAM_GATHER, words, 1, 1));
    assert_ok(msi_settle(msi_context()));
    assert_false(starved.refuses);
    assert_true(sum == 2);
    unsetenv("MS_DEVICE");
    ms_close();
}

/* A rank that computes before it has joined, as the environment says which it is. */
static void test_backend_device__is_the_ranks_own_from_the_beginning(void **state)
{
    msi_device_info info;
    ms_tensor *t;

    (void)state;
    ms_close();
    setenv("MS_DEVICE", "fake", 1);
    setenv("MS_FAKE_CARDS", "each", 1);
    setenv("MOONSHARD_RANK", "3", 1);
    setenv("MOONSHARD_LOCAL_RANK", "3", 1);
    assert_ok(ms_tensor_full(&t, MS_DTYPE_F32, 0, NULL, 1));
    msi_context()->device->ops->info(msi_context()->device, &info);
    assert_string_equal(info.uuid, "fake 3");
    ms_tensor_free(t);
    unsetenv("MOONSHARD_RANK");
    unsetenv("MOONSHARD_LOCAL_RANK");
    unsetenv("MS_FAKE_CARDS");
    unsetenv("MS_DEVICE");
    assert_ok(ms_close());
}

static void test_backend_device__freed_memory_is_no_number(void **state)
{
    const int64_t n = 100;
    float values[100];
    ms_tensor *t;
    double value;

    (void)state;
    ms_close();
    setenv("MS_DEVICE", "fake", 1);
    assert_ok(ms_tensor_full(&t, MS_DTYPE_F32, 1, &n, 3));
    assert_non_null(msi_context()->device);
    ms_tensor_free(t);
    assert_ok(ms_tensor_empty(&t, MS_DTYPE_F32, 1, &n));
    read_bytes(t, values);
    assert_true(isnan(values[n - 1]));
    assert_ok(ms_tensor_fill(t, 2));
    ms_tensor *sum;

    assert_ok(ms_op_sum(&sum, t, 1, false));
    assert_ok(ms_tensor_item(sum, &value));
    assert_true(value == 200);
    ms_tensor_free(sum);
    ms_tensor_free(t);
    assert_ok(ms_close());
    assert_null(msi_context()->device);
    unsetenv("MS_DEVICE");
    ms_close();
}

/* What the stream of computing has written another brings to the host, from a block that is
 * released meanwhile and whose next user writes something else. @return did it come as it was? */
static bool comes_down(int32_t seed, bool waits)
{
    char text[16];
    msi_mem_block *a, *next, *host;

    ms_close();
    snprintf(text, sizeof(text), "%d", (int)seed);
    setenv("MS_FAKE_SEED", text, 1);
    setenv("MS_FAKE_ORDER", seed % 2 == 0 ? "uniform" : "priorities", 1);
    assert_ok(msi_alloc(msi_context(), N * sizeof(float), MS_MEM_ACTIVATION, &a));
    assert_ok(msi_host_alloc(msi_context(), N * sizeof(float), MS_MEM_SCRATCH, &host));
    msi_device *d = msi_context()->device;

    d->ops->set(d, MSI_STREAM_COMPUTE, a->data, 0, a->nbytes);
    add_one(d, MSI_STREAM_COMPUTE, a->data, a->data);
    d->ops->after(d, MSI_STREAM_OUT, d->ops->mark(d, MSI_STREAM_COMPUTE));
    d->ops->copy(d, MSI_STREAM_OUT, host->data, a->data, a->nbytes);
    if (waits) {
        msi_release_after(a, d->ops->mark(d, MSI_STREAM_OUT));
    } else {
        msi_release(a);
    }
    assert_ok(msi_alloc(msi_context(), N * sizeof(float), MS_MEM_ACTIVATION, &next));
    d->ops->set(d, MSI_STREAM_COMPUTE, next->data, 0, next->nbytes);
    wait_for(d, MSI_STREAM_COMPUTE);
    wait_for(d, MSI_STREAM_OUT);
    const bool right = ((const float *)host->data)[N - 1] == 1;

    msi_release(next);
    msi_release(host);
    return right;
}

static void test_backend_device__a_block_waits_for_the_mark_of_its_last_use(void **state)
{
    int32_t n_waiting = 0, n_not = 0;

    (void)state;
    setenv("MS_DEVICE", "fake", 1);
    for (int32_t seed = 0; seed < SEEDS; seed++) {
        n_waiting += comes_down(seed, true);
        n_not += comes_down(seed, false);
    }
    ms_close();
    unsetenv("MS_FAKE_SEED");
    unsetenv("MS_FAKE_ORDER");
    unsetenv("MS_DEVICE");
    assert_int_equal(n_waiting, SEEDS);
    assert_true(n_not < SEEDS * 3 / 4);
}

static void leave(int number)
{
    (void)number;
    _exit(0);
}

/* Items reach it, and pinned memory all; a fault is where the child has to go. */
static int touch_guarded_memory(void)
{
    const int64_t n = N;
    double values[N];
    ms_tensor_info info;
    msi_mem_block *pinned;
    ms_tensor *t;

    signal(SIGSEGV, leave);
    CHILD_CHECK(ms_tensor_full(&t, MS_DTYPE_F32, 1, &n, 3) == MS_OK);
    CHILD_CHECK(ms_tensor_to_doubles(t, values, N) == MS_OK && values[N - 1] == 3);
    CHILD_CHECK(msi_host_alloc(msi_context(), n, MS_MEM_SCRATCH, &pinned) == MS_OK);
    memset(pinned->data, 0, (size_t)n);
    msi_release(pinned);
    CHILD_CHECK(ms_tensor_describe(t, &info) == MS_OK);
    return *(volatile const float *)info.data == 3 ? 1 : 2;
}

static void test_backend_device__guarded_memory_is_not_the_hosts_to_touch(void **state)
{
    (void)state;
    ms_close();
    setenv("MS_DEVICE", "fake", 1);
    setenv("MS_FAKE_GUARD", "on", 1);
    in_child(touch_guarded_memory);
    unsetenv("MS_FAKE_GUARD");
    unsetenv("MS_DEVICE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_device__keeps_its_laws_in_every_order),
        cmocka_unit_test(test_backend_device__memory_that_is_not_there_is_not_shared),
        cmocka_unit_test(test_backend_device__memory_that_is_not_given_back_rightly_is_noticed),
        cmocka_unit_test(test_backend_device__one_that_does_not_exist_is_an_error),
        cmocka_unit_test(test_backend_device__is_the_ranks_own_from_the_beginning),
        cmocka_unit_test(test_backend_device__a_moments_want_of_memory_fails_nothing),
        cmocka_unit_test(test_backend_device__freed_memory_is_no_number),
        cmocka_unit_test(test_backend_device__guarded_memory_is_not_the_hosts_to_touch),
        cmocka_unit_test(test_backend_device__a_block_waits_for_the_mark_of_its_last_use),
    };

    return cmocka_run_group_tests_name("backend/device", tests, NULL, NULL);
}
