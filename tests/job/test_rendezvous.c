/* runtime/job/rendezvous*.c: processes that find each other by the variables of a launcher. */
#include "ms_test.h"

#include "job.h"
#include "rendezvous.h"
#include "socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

/* -- processes with variables ------------------------------------------------------------------ */

/* Set the variables of "A=1 B=x", and no others. */
static void set_variables(const char *text)
{
    char copy[1024], *at = copy, *one;

    snprintf(copy, sizeof(copy), "%s", text);
    clearenv();
    while ((one = strsep(&at, " ")) != NULL) {
        char *value = strchr(one, '=');

        if (value != NULL) {
            *value = '\0';
            setenv(one, value + 1, 1);
        }
    }
}

typedef struct result {
    ms_status status;
    char text[1024];
} result;

typedef struct scene {
    result result[MOST];
    pid_t pid[MOST];
    int32_t port;
    int64_t timeout_ns;
    ms_status (*body)(msi_rendezvous *r, msi_place *p);
} scene;

static int32_t free_port(void)
{
    msi_address at;
    int32_t fd;

    assert_ok(msi_address_find(&at, "127.0.0.1", 0));
    assert_ok(msi_net_listen(&fd, &at));
    close(fd);
    return msi_address_port(&at);
}

static scene *scene_new(ms_status (*body)(msi_rendezvous *r, msi_place *p), double timeout_s)
{
    scene *x = mmap(NULL, sizeof(*x), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(x, MAP_FAILED);
    x->port = free_port();
    x->timeout_ns = (int64_t)(timeout_s * 1e9);
    x->body = body;
    return x;
}

static ms_status meet(const scene *x)
{
    msi_rendezvous *r = NULL;
    msi_place p;
    bool found;

    MS_TRY(msi_place_find(&p, &found));
    if (!found) {
        return MS_FAIL(MS_INTERNAL_ERROR, "no launcher found");
    }
    MS_TRY(msi_rendezvous_open(&r, &p, x->timeout_ns));
    ms_status status = x->body(r, &p);

    msi_rendezvous_close(r);
    return status;
}

/* Process `i`, with these variables. */
static void start(scene *x, int32_t i, const char *format, ...) MSI_PRINTF(3, 4);
static void start(scene *x, int32_t i, const char *format, ...)
{
    char variables[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(variables, sizeof(variables), format, args);
    va_end(args);
    const pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        set_variables(variables);
        x->result[i].status = meet(x);
        snprintf(x->result[i].text, sizeof(x->result[i].text), "%s",
                 x->result[i].status == MS_OK ? "" : ms_error_message());
        _exit(0);
    }
    assert_true(pid > 0);
    x->pid[i] = pid; /* in memory that the process shares */
}

static void start_rank(scene *x, int32_t i, int32_t rank, int32_t world, const char *more)
{
    start(x, i, "MS_RANK=%d MS_WORLD=%d MS_MASTER=127.0.0.1:%d %s", (int)rank, (int)world,
          (int)x->port, more);
}

/* Process `i` has ended with success (NULL), or with a message that contains this. */
static void expect(scene *x, int32_t i, const char *text)
{
    const result *got = &x->result[i];
    int status;

    assert_int_equal(waitpid(x->pid[i], &status, 0), x->pid[i]);
    assert_int_equal(status, 0);
    if (text == NULL && got->status != MS_OK) {
        fail_msg("process %d: %s", (int)i, got->text);
    }
    if (text != NULL && (got->status == MS_OK || strstr(got->text, text) == NULL)) {
        fail_msg("process %d: '%s' does not contain '%s'", (int)i, got->text, text);
    }
}

static void scene_free(scene *x)
{
    munmap(x, sizeof(*x));
}

static void sleep_ms(int64_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

#define EXPECT(cond)                                                                               \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            return MS_FAIL(MS_INTERNAL_ERROR, "line %d: %s", __LINE__, #cond);                     \
        }                                                                                          \
    } while (0)

/* -- what ranks do ----------------------------------------------------------------------------- */

static ms_status trade(msi_rendezvous *r, msi_place *p)
{
    int64_t own = 100 + p->rank, all[MOST];
    char most[MSI_RENDEZVOUS_BYTES];
    char *many = malloc(MOST * sizeof(most));

    MS_TRY(msi_rendezvous_exchange(r, "a", &own, sizeof(own), all));
    for (int32_t q = 0; q < p->world; q++) {
        EXPECT(all[q] == 100 + q);
    }
    memset(most, p->rank, sizeof(most));
    MS_TRY(msi_rendezvous_exchange(r, "b", most, sizeof(most), many));
    for (int32_t q = 0; q < p->world; q++) {
        EXPECT(many[q * MSI_RENDEZVOUS_BYTES] == q);
        EXPECT(many[(q + 1) * MSI_RENDEZVOUS_BYTES - 1] == q);
    }
    free(many);
    return msi_rendezvous_same(r, "layout", "equal");
}

/* Two descriptors of a rank and one more are more than fit one message. */
static ms_status trade_and_share(msi_rendezvous *r, msi_place *p)
{
    msi_place all[MOST];
    int32_t fds[2 * MOST + 1], got = -1;
    const int32_t n = 2 * p->local_world + 1;

    MS_TRY(trade(r, p));
    MS_TRY(msi_rendezvous_places(r, p, all));
    EXPECT(p->host == p->rank / p->local_world && p->n_hosts == p->world / p->local_world);
    EXPECT(msi_place_is_contiguous(all));
    for (int32_t i = 0; i < n && p->local_rank == 0; i++) {
        const int32_t mark[2] = {p->host, i};

        fds[i] = memfd_create("mark", 0);
        EXPECT(pwrite(fds[i], mark, sizeof(mark), 0) == sizeof(mark));
    }
    MS_TRY(msi_rendezvous_share(r, p, fds, n));
    for (int32_t i = 0; i < n; i++) {
        int32_t mark[2] = {-1, -1};

        EXPECT(pread(fds[i], mark, sizeof(mark), 0) == sizeof(mark));
        EXPECT(mark[0] == p->host && mark[1] == i);
        EXPECT(p->local_rank == 0 || (fcntl(fds[i], F_GETFD) & FD_CLOEXEC) != 0);
        got = i;
    }
    EXPECT(got == n - 1);
    return MS_OK;
}

/* -- plain ------------------------------------------------------------------------------------- */

static void test_job_rendezvous__joins_1_4_and_64_ranks_within_a_second(void **state)
{
    static const int32_t worlds[] = {1, 4, 64};

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(worlds); i++) {
        scene *x = scene_new(trade_and_share, 20);
        const int64_t begun_ns = msi_now_ns();
        char local[64];

        for (int32_t r = worlds[i] - 1; r >= 0; r--) {
            snprintf(local, sizeof(local), "MS_LOCAL_RANK=%d MS_LOCAL_WORLD=%d", (int)r,
                     (int)worlds[i]);
            start_rank(x, r, r, worlds[i], local);
        }
        for (int32_t r = 0; r < worlds[i]; r++) {
            expect(x, r, NULL);
        }
        print_message("%d ranks: %.0f ms\n", (int)worlds[i],
                      (double)(msi_now_ns() - begun_ns) / 1e6);
        assert_true(SANITIZED || msi_now_ns() - begun_ns < 1000000000);
        scene_free(x);
    }
}

static void test_job_rendezvous__waits_for_late_ranks(void **state)
{
    scene *x = scene_new(trade, 20);

    (void)state;
    start_rank(x, 1, 1, 3, "");
    sleep_ms(100);
    start_rank(x, 0, 0, 3, "");
    sleep_ms(100);
    start_rank(x, 2, 2, 3, "");
    for (int32_t i = 0; i < 3; i++) {
        expect(x, i, NULL);
    }
    scene_free(x);
}

static void test_job_rendezvous__names_a_rank_that_never_comes(void **state)
{
    scene *x = scene_new(trade, 0.4);
    char text[128];

    (void)state;
    start_rank(x, 0, 0, 4, "");
    start_rank(x, 2, 2, 4, "");
    snprintf(text, sizeof(text), "ranks 1, 3 of 4 have not come to 127.0.0.1:%d within 0.4 s",
             (int)x->port);
    expect(x, 0, text);
    expect(x, 2, text);

    start_rank(x, 1, 1, 4, ""); /* rank 0 is missing */
    snprintf(text, sizeof(text), "rank 1 of 4 cannot connect to 127.0.0.1:%d within 0.4 s",
             (int)x->port);
    expect(x, 1, text);
    scene_free(x);
}

static int32_t connect_to(const scene *x)
{
    msi_address at;
    int32_t fd;

    assert_ok(msi_address_find(&at, "127.0.0.1", x->port));
    assert_int_equal(msi_net_connect(&fd, &at, msi_now_ns() + 5000000000), 0);
    return fd;
}

static void test_job_rendezvous__is_not_blocked_by_strangers(void **state)
{
    scene *x = scene_new(trade, 20);
    char garbage[4096];
    int32_t silent[100];

    (void)state;
    memset(garbage, 'x', sizeof(garbage));
    start_rank(x, 0, 0, 2, "");
    for (int32_t i = 0; i < MSI_COUNT(silent); i++) {
        silent[i] = connect_to(x);
    }
    const int32_t loud = connect_to(x);

    msi_net_send(loud, garbage, sizeof(garbage), msi_now_ns() + 1000000000);
    const int64_t begun_ns = msi_now_ns();

    start_rank(x, 1, 1, 2, "");
    expect(x, 0, NULL);
    expect(x, 1, NULL);
    assert_true(msi_now_ns() - begun_ns < 1000000000);
    for (int32_t i = 0; i < MSI_COUNT(silent); i++) {
        close(silent[i]);
    }
    close(loud);
    scene_free(x);
}

static void test_job_rendezvous__refuses_another_secret(void **state)
{
    scene *x = scene_new(trade, 0.5);

    (void)state;
    start_rank(x, 0, 0, 2, "MOONSHARD_SECRET=right");
    start_rank(x, 1, 1, 2, "MOONSHARD_SECRET=wrong");
    expect(x, 1, "has another secret than rank 0 at 127.0.0.1:");
    expect(x, 0, "rank 1 of 2 has not come");
    assert_non_null(strstr(x->result[0].text, "(refused: the process at 127.0.0.1:"));
    scene_free(x);
}

static void test_job_rendezvous__refuses_a_second_process_of_a_rank_alone(void **state)
{
    scene *x = scene_new(trade, 20);

    (void)state;
    start_rank(x, 0, 0, 3, "");
    start_rank(x, 1, 1, 3, "");
    sleep_ms(200); /* the first one has come */
    start_rank(x, 3, 1, 3, "");
    expect(x, 3, "rank 1 of 3 has come twice: from 127.0.0.1:");
    start_rank(x, 2, 2, 3, "");
    for (int32_t i = 0; i < 3; i++) {
        expect(x, i, NULL);
    }
    scene_free(x);
}

static void test_job_rendezvous__ends_for_all_when_a_rank_expects_another_world(void **state)
{
    scene *x = scene_new(trade, 20);

    (void)state;
    start_rank(x, 0, 0, 3, "");
    start_rank(x, 1, 1, 3, "");
    sleep_ms(100);
    start_rank(x, 2, 2, 4, "");
    for (int32_t i = 0; i < 3; i++) {
        expect(x, i, "is rank 2 of 4, but rank 0 expects 3 ranks (MS_RANK, MS_WORLD)");
    }
    scene_free(x);
}

/* The hello of a later protocol: its first fields have the same positions in all versions. */
static void test_job_rendezvous__names_both_versions_of_the_protocol(void **state)
{
    struct {
        uint64_t magic;
        msi_secret secret;
        uint32_t protocol;
        int32_t rank, world;
        char version[28];
    } hello = {.magic = 0x6d736a6d65657431ULL,
               .secret = msi_secret_of("s"),
               .protocol = 2,
               .rank = 1,
               .world = 2,
               .version = "9.8.7"};
    scene *x = scene_new(trade, 20);
    char answer[1024] = {0};
    size_t n = 0;
    ssize_t some;

    (void)state;
    start_rank(x, 0, 0, 2, "MOONSHARD_SECRET=s");
    const int32_t fd = connect_to(x);

    assert_int_equal(msi_net_send(fd, &hello, sizeof(hello), msi_now_ns() + 1000000000), 0);
    fcntl(fd, F_SETFL, 0);
    while (n < sizeof(answer) - 1 && (some = read(fd, answer + n, sizeof(answer) - 1 - n)) > 0) {
        n += (size_t)some;
    }
    expect(x, 0, "has moonshard 9.8.7 (rendezvous protocol 2), rank 0 has 0.1.0 (protocol 1)");
    assert_non_null(memmem(answer, n, x->result[0].text, strlen(x->result[0].text)));
    close(fd);
    scene_free(x);
}

static ms_status differ(msi_rendezvous *r, msi_place *p)
{
    return msi_rendezvous_same(r, "layout of the control block", p->rank == 2 ? "7af" : "123");
}

static ms_status leave(msi_rendezvous *r, msi_place *p)
{
    int64_t own = 0, all[MOST];

    if (p->rank == 1) {
        kill(getpid(), SIGKILL);
    }
    return msi_rendezvous_exchange(r, "a", &own, sizeof(own), all);
}

static void test_job_rendezvous__ends_for_all_when_ranks_differ_or_leave(void **state)
{
    scene *x = scene_new(differ, 20);

    (void)state;
    for (int32_t i = 0; i < 3; i++) {
        start_rank(x, i, i, 3, "");
    }
    for (int32_t i = 0; i < 3; i++) {
        expect(x, i, "layout of the control block of rank 0 is 123, but that of rank 2 is 7af");
    }
    x->body = leave;
    for (int32_t i = 0; i < 3; i++) {
        start_rank(x, i, i, 3, "");
    }
    waitpid(x->pid[1], NULL, 0);
    expect(x, 0, "rank 1 of 3 at 127.0.0.1:");
    expect(x, 2, "has left during the rendezvous");
    scene_free(x);
}

/* -- hosts ------------------------------------------------------------------------------------- */

static ms_status find_places(msi_rendezvous *r, msi_place *p)
{
    msi_place all[MOST];

    MS_TRY(msi_rendezvous_places(r, p, all));
    EXPECT(p->host == all[p->rank].host && p->n_hosts == 2);
    return MS_FAIL(MS_COMM_ERROR, "%s: %d%d%d%d",
                   msi_place_is_contiguous(all) ? "contiguous" : "mixed", (int)all[0].host,
                   (int)all[1].host, (int)all[2].host, (int)all[3].host);
}

static void test_job_rendezvous__numbers_hosts_and_checks_their_ranks(void **state)
{
    /* of ranks 0 to 3: host, local rank, ranks of the host */
    static const struct {
        int32_t host[4], local[4], n[4];
        const char *text;
    } rows[] = {
        {{0, 0, 1, 1}, {0, 1, 0, 1}, {2, 2, 2, 2}, "contiguous: 0011"},
        {{1, 1, 0, 0}, {0, 1, 0, 1}, {2, 2, 2, 2}, "contiguous: 0011"}, /* by their first ranks */
        {{0, 1, 0, 1}, {0, 0, 1, 1}, {2, 2, 2, 2}, "mixed: 0101"},
        {{0, 0, 1, 1}, {1, 0, 0, 1}, {2, 2, 2, 2}, "mixed: 0011"},
        {{0, 0, 1, 1}, {0, 0, 0, 1}, {2, 2, 2, 2}, "ranks 0 and 1 are both local rank 0 of host"},
        {{0, 0, 0, 1}, {0, 1, 2, 0}, {3, 3, 3, 1}, "start the same number of ranks on every host"},
        {{0, 0, 1, 1}, {0, 1, 0, 1}, {2, 2, 2, 3}, "rank 3 was started as one of 3 ranks"},
    };

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(rows); i++) {
        scene *x = scene_new(find_places, 20);

        for (int32_t r = 0; r < 4; r++) {
            start(x, r,
                  "RANK=%d WORLD_SIZE=4 LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d GROUP_RANK=%d "
                  "MASTER_ADDR=127.0.0.1 MASTER_PORT=%d",
                  (int)r, (int)rows[i].local[r], (int)rows[i].n[r], (int)rows[i].host[r],
                  (int)x->port);
        }
        for (int32_t r = 0; r < 4; r++) {
            expect(x, r, rows[i].text);
        }
        scene_free(x);
    }
}

/* -- a TCPStore, as torchrun's agent has one ----------------------------------------------------
 */

enum { VALIDATE = 0, SET = 1, GET = 3, ADD = 4, CHECK = 5, WAIT = 6, ENTRIES = 256 };

typedef struct text {
    uint64_t n;
    char data[MSI_RENDEZVOUS_BYTES];
} text;

static struct {
    text key, value;
} entries[ENTRIES];
static int32_t n_entries;

/* A client's queries, and the keys it waits for. */
static struct {
    int32_t fd, n_waits;
    text waits[8];
} client[16];

static bool read_all(int32_t fd, void *to, size_t nbytes)
{
    return recv(fd, to, nbytes, MSG_WAITALL) == (ssize_t)nbytes;
}

static bool read_text(int32_t fd, text *t)
{
    return read_all(fd, &t->n, 8) && t->n <= sizeof(t->data) && read_all(fd, t->data, t->n);
}

static text *value_of(const text *key, bool make)
{
    for (int32_t i = 0; i < n_entries; i++) {
        if (entries[i].key.n == key->n && memcmp(entries[i].key.data, key->data, key->n) == 0) {
            return &entries[i].value;
        }
    }
    if (!make) {
        return NULL;
    }
    entries[n_entries].key = *key;
    return &entries[n_entries++].value;
}

/* One query. False: close the connection. */
static bool answer(int32_t c, bool right)
{
    const int32_t fd = client[c].fd;
    uint8_t kind, not_ready = 0;
    uint32_t magic;
    int64_t n;
    text key, *value;

    if (!read_all(fd, &kind, 1)) {
        return false;
    }
    switch (kind) {
    case VALIDATE:
        return read_all(fd, &magic, 4) && magic == 0x3C85F7CE && right;
    case SET:
        return read_text(fd, &key) && read_text(fd, value_of(&key, true));
    case GET:
        return read_text(fd, &key) && (value = value_of(&key, false)) != NULL &&
               write(fd, &value->n, 8) == 8 && write(fd, value->data, value->n) > 0;
    case ADD:
        if (!read_text(fd, &key) || !read_all(fd, &n, 8)) {
            return false;
        }
        value = value_of(&key, true);
        n += atoll(value->data);
        value->n = (uint64_t)snprintf(value->data, sizeof(value->data), "%lld", (long long)n);
        return write(fd, &n, 8) == 8;
    default:
        if ((kind != CHECK && kind != WAIT) || !read_all(fd, &n, 8) || n > 8) {
            return false;
        }
        for (int32_t i = 0; i < n; i++) {
            if (!read_text(fd, &client[c].waits[i])) {
                return false;
            }
            not_ready |= value_of(&client[c].waits[i], false) == NULL;
        }
        client[c].n_waits = kind == WAIT ? (int32_t)n : 0;
        return kind == WAIT || write(fd, &not_ready, 1) == 1;
    }
}

static void end_wait(int32_t c)
{
    const uint8_t stop_waiting = 0;

    for (int32_t i = 0; i < client[c].n_waits; i++) {
        if (value_of(&client[c].waits[i], false) == NULL) {
            return;
        }
    }
    if (client[c].n_waits > 0 && write(client[c].fd, &stop_waiting, 1) == 1) {
        client[c].n_waits = 0;
    }
}

static pid_t start_store(int32_t port, bool right)
{
    struct pollfd fds[1 + MSI_COUNT(client)];
    const pid_t pid = fork();
    msi_address at;
    int32_t n = 0, listener;

    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test does not end it */
    if (msi_address_find(&at, "127.0.0.1", port) != MS_OK ||
        msi_net_listen(&listener, &at) != MS_OK) {
        _exit(1);
    }
    for (;;) {
        fds[0] = (struct pollfd){.fd = listener, .events = POLLIN};
        for (int32_t c = 0; c < n; c++) {
            fds[1 + c] = (struct pollfd){.fd = client[c].fd, .events = POLLIN};
        }
        poll(fds, (nfds_t)(1 + n), -1);
        for (int32_t c = 0; c < n; c++) {
            if (fds[1 + c].revents != 0 && !answer(c, right)) {
                close(client[c].fd);
                client[c].fd = -1;
            }
        }
        for (int32_t c = 0; c < n; c++) {
            end_wait(c);
        }
        if (fds[0].revents != 0 && n < MSI_COUNT(client)) {
            client[n++].fd = accept(listener, NULL, NULL);
        }
    }
}

static void start_agent_rank(scene *x, int32_t i, int32_t rank, int32_t world)
{
    start(x, i,
          "RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d GROUP_RANK=0 "
          "MASTER_ADDR=127.0.0.1 MASTER_PORT=%d TORCHELASTIC_RUN_ID=none "
          "TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True",
          (int)rank, (int)world, (int)rank, (int)world, (int)x->port);
}

static void test_job_rendezvous__meets_at_the_store_of_an_agent(void **state)
{
    static const struct {
        int32_t ranks[3]; /* of the three processes */
        int32_t world;
        bool right;
        const char *text;
    } rows[] = {
        {{0, 1, 2}, 3, true, NULL},
        {{0, 1, 2}, 3, false, "expected the store of a torchrun of PyTorch 2.1 or later"},
        {{0, 1, 3}, 4, true, "rank 2 of 4 has not come to 127.0.0.1:"},
    };

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(rows); i++) {
        scene *x = scene_new(trade_and_share, i == 2 ? 0.4 : 20);
        const pid_t store = start_store(x->port, rows[i].right);

        for (int32_t k = 0; k < 3; k++) {
            start_agent_rank(x, k, rows[i].ranks[k], rows[i].world);
        }
        for (int32_t k = 0; k < 3; k++) {
            expect(x, k, rows[i].text);
        }
        if (rows[i].text == NULL) { /* the counters of the run remain */
            start_agent_rank(x, 3, 1, 3);
            expect(x, 3, "rank 1 of 3 has come 2 times to 127.0.0.1:");
        }
        kill(store, SIGKILL);
        waitpid(store, NULL, 0);
        scene_free(x);
    }
}

/* -- variables --------------------------------------------------------------------------------- */

#define TORCHRUN                                                                                   \
    "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=n0 "             \
    "MASTER_PORT=29500 TORCHELASTIC_RUN_ID=x TORCHELASTIC_RESTART_COUNT=2 "
#define MPIRUN                                                                                     \
    "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 "                  \
    "OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=77 "
#define SRUN                                                                                       \
    "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=3 "         \
    "SLURM_JOB_ID=40007 SLURM_STEP_NODELIST=gpu[07-09,12]n[2-3],cpu1 "                             \
    "SLURM_STEP_TASKS_PER_NODE=4(x2) "

/* "launcher rank/world local rank/world host/hosts master:port run meet"; NULL: not found; or after
 * "!" the error. */
static void test_job_place__is_found_by_variables(void **state)
{
    static const struct {
        const char *variables, *place;
    } rows[] = {
        {"", NULL},
        {"RANK=1 SLURM_PROCID=0 SLURM_NTASKS=4", NULL}, /* common names; a batch script */
        {SRUN "SLURM_STEP_ID=4294967291", NULL},        /* the batch step */
        {"MS_RANK=0 MS_WORLD=1", "plain 0/1 0/1 -1/-1 :0 plain 0"},
        {"MS_RANK=3 MS_WORLD=4 MS_MASTER=n0:29500", "plain 3/4 0/1 -1/-1 n0:29500 n0:29500 0"},
        {"MS_RANK=3 MS_WORLD=4 MS_LOCAL_RANK=1 MS_LOCAL_WORLD=2 MS_MASTER=[::1]:80",
         "plain 3/4 1/2 -1/-1 ::1:80 [::1]:80 0"},
        {TORCHRUN, "torchrun 5/8 1/4 1/-1 n0:29500 x/2/29500 0"},
        {TORCHRUN "GROUP_WORLD_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=True",
         "torchrun 5/8 1/4 1/2 n0:29500 x/2/29500 1"},
        {MPIRUN "PMIX_RANK=5", "mpirun 5/8 1/4 -1/-1 :0 77 2"},
        {SRUN "SLURM_STEP_ID=0", "srun 5/8 1/4 1/3 gpu07n2:20007 40007.0/0 0"},
        {SRUN "SLURM_STEP_ID=0 PMIX_RANK=5", "srun 5/8 1/4 1/3 :0 40007.0/0 2"},
        /* nested */
        {TORCHRUN "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0",
         "torchrun 5/8 1/4 1/-1 n0:29500 x/2/29500 0"},
        {MPIRUN "PMIX_RANK=5 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0",
         "mpirun 5/8 1/4 -1/-1 :0 77 2"},
        /* agreeing, disagreeing */
        {TORCHRUN "MS_RANK=5 MS_WORLD=8 MS_MASTER=h:1", "plain 5/8 0/1 -1/-1 h:1 h:1 0"},
        {TORCHRUN "MS_RANK=4 MS_WORLD=8 MS_MASTER=h:1", "!MS_RANK is 4, but RANK is 5"},
        {TORCHRUN "MS_RANK=5 MS_WORLD=9 MS_MASTER=h:1", "!MS_WORLD is 9, but WORLD_SIZE is 8"},
        {"RANK=1 WORLD_SIZE=8 MASTER_ADDR=h MASTER_PORT=1 " SRUN "SLURM_STEP_ID=0",
         "!RANK is 1, but SLURM_PROCID is 5"},
        {MPIRUN "PMIX_RANK=4", "!OMPI_COMM_WORLD_RANK is 5, but PMIX_RANK is 4"},
        {SRUN "SLURM_STEP_ID=0 PMIX_RANK=4", "!SLURM_PROCID is 5, but PMIX_RANK is 4"},
        /* missing, wrong */
        {"MS_RANK=1", "!MS_WORLD is not set, but MS_RANK is '1'"},
        {"MS_WORLD=2", "!MS_RANK is not set, but MS_WORLD is '2'"},
        {"PMIX_RANK=1", "!OMPI_COMM_WORLD_SIZE is not set, but PMIX_RANK is '1'"},
        {"MS_RANK=1 MS_WORLD=2", "!MS_MASTER is not set, but MS_WORLD is 2"},
        {"MS_RANK=2 MS_WORLD=2", "!MS_RANK is '2', expected a whole number from 0 to 1"},
        {"MS_RANK=-1 MS_WORLD=2", "!MS_RANK is '-1', expected a whole number from 0 to 1"},
        {"MS_RANK=0 MS_WORLD=129", "!MS_WORLD is '129', expected a whole number from 1 to 128"},
        {"MS_RANK=0 MS_WORLD=2x", "!MS_WORLD is '2x', expected a whole number from 1 to 128"},
        {"MS_RANK=0 MS_WORLD=2 MS_MASTER=h:0", "!MS_MASTER is 'h:0', expected host:port"},
        {"MS_RANK=0 MS_WORLD=2 MS_MASTER=h", "!MS_MASTER is 'h', expected host:port"},
        {"MS_RANK=0 MS_WORLD=2 MS_MASTER=:8", "!MS_MASTER names a host of 0 bytes"},
        {"MS_RANK=0 MS_WORLD=4 MS_LOCAL_WORLD=2 MS_MASTER=h:1", "!MS_LOCAL_RANK is not set, but"},
        {"MS_RANK=0 MS_WORLD=4 MS_LOCAL_WORLD=5 MS_MASTER=h:1",
         "!MS_LOCAL_WORLD is '5', expected a whole number from 1 to 4"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=h", "!MASTER_PORT is not set, but MASTER_ADDR is 'h'"},
        {MPIRUN, "!PMIX_RANK is not set, but OMPI_COMM_WORLD_RANK is 5"},
        {"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODEID=0",
         "!SLURM_STEP_TASKS_PER_NODE is '', expected the number of tasks of node 0"},
    };

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(rows); i++) {
        char got[600] = "";
        msi_place p;
        bool found;

        set_variables(rows[i].variables);
        if (msi_place_find(&p, &found) != MS_OK) {
            snprintf(got, sizeof(got), "!%s", ms_error_message());
        } else if (found) {
            snprintf(got, sizeof(got), "%s %d/%d %d/%d %d/%d %s:%d %s %d", p.launcher, (int)p.rank,
                     (int)p.world, (int)p.local_rank, (int)p.local_world, (int)p.host,
                     (int)p.n_hosts, p.master, (int)p.port, p.run, (int)p.meet);
        }
        const char *expected = rows[i].place == NULL ? "" : rows[i].place;

        if (expected[0] == '!' ? strncmp(got, expected, strlen(expected)) != 0
                               : strcmp(got, expected) != 0) {
            fail_msg("'%s': found '%s', expected '%s'", rows[i].variables, got, expected);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_rendezvous__joins_1_4_and_64_ranks_within_a_second),
        cmocka_unit_test(test_job_rendezvous__waits_for_late_ranks),
        cmocka_unit_test(test_job_rendezvous__names_a_rank_that_never_comes),
        cmocka_unit_test(test_job_rendezvous__is_not_blocked_by_strangers),
        cmocka_unit_test(test_job_rendezvous__refuses_another_secret),
        cmocka_unit_test(test_job_rendezvous__refuses_a_second_process_of_a_rank_alone),
        cmocka_unit_test(test_job_rendezvous__ends_for_all_when_a_rank_expects_another_world),
        cmocka_unit_test(test_job_rendezvous__names_both_versions_of_the_protocol),
        cmocka_unit_test(test_job_rendezvous__ends_for_all_when_ranks_differ_or_leave),
        cmocka_unit_test(test_job_rendezvous__numbers_hosts_and_checks_their_ranks),
        cmocka_unit_test(test_job_rendezvous__meets_at_the_store_of_an_agent),
        cmocka_unit_test(test_job_place__is_found_by_variables),
    };

    return cmocka_run_group_tests_name("job/rendezvous", tests, NULL, NULL);
}
