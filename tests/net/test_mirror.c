/* Memory with copies on several hosts: two ranks of this process, connected over the loopback. */
#include "job.h"
#include "ms_test.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, ROUNDS = 400, NBYTES = 1 << 22, RECORD_WORDS = 16 };

/* What each host has a copy of. `flag` is stored after the data that it announces. */
typedef struct shared {
    _Atomic uint64_t flag;
    _Atomic uint64_t record[RECORD_WORDS];
    char data[NBYTES];
} shared;

typedef struct host {
    msi_mirror *mirror;
    shared *memory;
    _Atomic int32_t wakes, failures;
    _Atomic uint64_t sent, stored; /* words */
} host;

/* For LeakSanitizer: UCX 1.13 keeps 56 bytes of an endpoint that is open when its worker ends. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libucs.so";
}

static msi_address addresses[RANKS];
static host hosts[RANKS];
static const msi_engine_ops *engine; /* NULL: TCP carries all */

static void wake(void *user)
{
    atomic_fetch_add(&((host *)user)->wakes, 1);
}

static void failed(void *user, int32_t rank, const char *why)
{
    atomic_fetch_add(&((host *)user)->failures, 1);
}

static bool is_gone(void *user, int32_t rank)
{
    return false;
}

static void open_hosts(void)
{
    int32_t listener[RANKS];

    for (int32_t r = 0; r < RANKS; r++) {
        assert_ok(msi_address_find(&addresses[r], "127.0.0.1", 0));
        assert_ok(msi_net_listen(&listener[r], &addresses[r]));
    }
    for (int32_t r = 0; r < RANKS; r++) {
        hosts[r] = (host){.memory = calloc(1, sizeof(shared))};
        const msi_mirror_setup setup = {.rank = r,
                                        .world = RANKS,
                                        .addresses = addresses,
                                        .address_step = sizeof(addresses[0]),
                                        .listener = listener[r],
                                        .layout = 7,
                                        .secret = msi_secret_of("secret"),
                                        .base = hosts[r].memory,
                                        .nbytes = sizeof(shared),
                                        .sent = &hosts[r].sent,
                                        .stored = &hosts[r].stored,
                                        .engine = engine,
                                        .wake = wake,
                                        .failed = failed,
                                        .is_gone = is_gone,
                                        .user = &hosts[r]};

        assert_ok(msi_mirror_new(&hosts[r].mirror, &setup));
    }
}

static void close_hosts(void)
{
    for (int32_t r = 0; r < RANKS; r++) {
        msi_mirror_free(hosts[r].mirror);
        free(hosts[r].memory);
    }
}

static void await(_Atomic uint64_t *word, uint64_t value)
{
    while (atomic_load(word) != value) {
    }
}

static void test_net_mirror__stores_data_before_a_later_word(void **state)
{
    shared *from, *to;
    uint64_t random = 1;

    open_hosts();
    from = hosts[0].memory;
    to = hosts[1].memory;
    for (uint64_t k = 1; k <= ROUNDS; k++) {
        random = msi_mix64(random);
        const int64_t at = (int64_t)(random % (NBYTES / 2));
        const int64_t n = (int64_t)(random >> 32) % (k % 8 == 0 ? NBYTES / 2 : 5000);

        memset(from->data + at, (int)k, (size_t)n);
        msi_mirror_put(hosts[0].mirror, 1, MSI_MIRROR_DATA, from->data + at, n);
        atomic_store(&from->flag, k);
        msi_mirror_put(hosts[0].mirror, 1, MSI_MIRROR_WORDS, (const void *)&from->flag, 8);
        msi_mirror_push(hosts[0].mirror, 1);
        await(&to->flag, k);
        for (int64_t i = 0; i < n; i++) {
            if (to->data[at + i] != (char)k) {
                fail_msg("round %d: byte %lld of %lld", (int)k, (long long)i, (long long)n);
            }
        }
    }
    assert_memory_equal(from->data, to->data, NBYTES);
    assert_true(atomic_load(&hosts[1].wakes) > 0);
    msi_mirror_flush(hosts[0].mirror);
    assert_int_equal(atomic_load(&hosts[0].sent), ROUNDS);
    assert_int_equal(atomic_load(&hosts[1].stored), ROUNDS);
    close_hosts();
}

/* A reader takes a record whose number is equal before and after. */
static void test_net_mirror__never_shows_a_record_half_old(void **state)
{
    shared *from, *to;
    uint64_t seen = 0;

    open_hosts();
    from = hosts[0].memory;
    to = hosts[1].memory;
    for (uint64_t k = 1; k <= 20000; k++) {
        for (int32_t i = 0; i < RECORD_WORDS; i++) {
            atomic_store(&from->record[i], k);
        }
        msi_mirror_put(hosts[0].mirror, 1, MSI_MIRROR_RECORD, (const void *)from->record,
                       sizeof(from->record));
        msi_mirror_push(hosts[0].mirror, 1);
        for (int32_t tries = 0; tries < 20; tries++) {
            const uint64_t number = atomic_load(&to->record[0]);
            uint64_t word[RECORD_WORDS];

            for (int32_t i = 0; i < RECORD_WORDS; i++) {
                word[i] = atomic_load(&to->record[i]);
            }
            if (number == 0 || atomic_load(&to->record[0]) != number) {
                continue;
            }
            for (int32_t i = 0; i < RECORD_WORDS; i++) {
                assert_int_equal(word[i], number);
            }
            seen++;
        }
    }
    msi_mirror_flush(hosts[0].mirror);
    assert_int_equal(atomic_load(&to->record[RECORD_WORDS - 1]), 20000);
    assert_true(seen > 0);
    close_hosts();
}

static void test_net_mirror__flushes_until_all_is_stored(void **state)
{
    open_hosts();
    for (int32_t k = 1; k <= 50; k++) {
        memset(hosts[0].memory->data, k, NBYTES);
        msi_mirror_put(hosts[0].mirror, 1, MSI_MIRROR_DATA, hosts[0].memory->data, NBYTES);
        msi_mirror_flush(hosts[0].mirror);
        assert_int_equal(hosts[1].memory->data[NBYTES - 1], k);
    }
    close_hosts();
}

static void test_net_mirror__ends_after_its_peer(void **state)
{
    open_hosts();
    msi_mirror_put(hosts[0].mirror, 1, MSI_MIRROR_DATA, hosts[0].memory->data, NBYTES);
    msi_mirror_flush(hosts[0].mirror);
    msi_mirror_free(hosts[1].mirror);
    hosts[1].mirror = NULL;
    msi_mirror_put(hosts[0].mirror, 1, MSI_MIRROR_DATA, hosts[0].memory->data, NBYTES);
    msi_mirror_push(hosts[0].mirror, 1);
    close_hosts();
}

/* exit() of a copy runs the destructors of the engine's libraries. */
static void test_net_mirror__lets_a_forked_process_end(void **state)
{
    fflush(NULL);
    open_hosts();
    for (int32_t k = 0; k < 100; k++) {
        msi_mirror_put(hosts[0].mirror, 1, MSI_MIRROR_DATA, hosts[0].memory->data, NBYTES);
        msi_mirror_push(hosts[0].mirror, 1);
        const pid_t pid = fork();

        if (pid == 0) {
            alarm(5);
            exit(0);
        }
        int how;

        assert_int_equal(waitpid(pid, &how, 0), pid);
        assert_int_equal(how, 0);
    }
    close_hosts();
}

/* A frame as mirror.c has it. */
typedef struct forged {
    msi_hello hello;
    uint64_t region;
    int64_t offset;
    uint32_t nbytes, kind;
    char data[64];
} forged;

/* Frames of a rank, with one field wrong: nothing is stored, and others are served. */
static void test_net_mirror__does_not_store_what_does_not_fit(void **state)
{
    const int64_t deadline = msi_now_ns() + 5000000000LL;
    const forged right = {.hello = {.magic = engine != NULL ? 0x6d736e65 : 0x6d736e31,
                                    .layout = 7,
                                    .secret = msi_secret_of("secret"),
                                    .from = 0,
                                    .to = 1},
                          .offset = offsetof(shared, data),
                          .nbytes = sizeof(right.data),
                          .kind = MSI_MIRROR_WORDS,
                          .data = "forged"};

    open_hosts();
    for (int32_t k = 0; k < 9; k++) {
        forged f = right;
        int32_t fd;

        switch (k) {
        case 0:
            f.hello.magic++;
            break;
        case 1:
            f.hello.layout++;
            break;
        case 2:
            f.hello.secret.word[3]++;
            break;
        case 3:
            f.hello.to = 0;
            break;
        case 4:
            f.hello.from = RANKS;
            break;
        case 5:
            f.region = 3;
            break;
        case 6:
            f.offset = sizeof(shared) - 8;
            break;
        case 7:
            f.offset = -8;
            break;
        default:
            f.nbytes = UINT32_MAX;
            break;
        }
        assert_int_equal(msi_net_connect(&fd, &addresses[1], deadline), 0);
        assert_int_equal(msi_net_send(fd, &f, sizeof(f), deadline), 0);
        close(fd);
    }
    msi_mirror_put(hosts[0].mirror, 1, MSI_MIRROR_WORDS, hosts[0].memory, 8);
    msi_mirror_flush(hosts[0].mirror);
    for (int32_t i = 0; i < NBYTES; i++) {
        assert_int_equal(hosts[1].memory->data[i], 0);
    }
    close_hosts();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_net_mirror__stores_data_before_a_later_word),
        cmocka_unit_test(test_net_mirror__never_shows_a_record_half_old),
        cmocka_unit_test(test_net_mirror__flushes_until_all_is_stored),
        cmocka_unit_test(test_net_mirror__ends_after_its_peer),
        cmocka_unit_test(test_net_mirror__lets_a_forked_process_end),
        cmocka_unit_test(test_net_mirror__does_not_store_what_does_not_fit),
    };
    const int failed = cmocka_run_group_tests_name("net/mirror", tests, NULL, NULL);

    setenv("MS_NET", "ucx", 1);
    if (msi_job_engine(msi_context(), &engine) != MS_OK) {
        print_message("net/mirror by UCX: skipped: %s\n", ms_error_message());
        return failed;
    }
    return failed + cmocka_run_group_tests_name("net/mirror by UCX", tests, NULL, NULL);
}
