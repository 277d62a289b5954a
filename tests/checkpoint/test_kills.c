/* SIGKILL while ranks save, again and again over the same folder: each job resumes what the one
 * before left, checks that all ranks find the same whole checkpoint, no older than the last that
 * was confirmed, and saves until one of its ranks is killed: at a step on disk, at a random time,
 * or by a peer that is in the middle of publishing.
 *
 * MS_TEST_KILLS=1000 sets their number; otherwise it is small enough for every change. */
#include "ckpt_test.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>

enum { MAX_WORLD = 3, NUMEL = 40, KEPT = 2, WAYS = 3 };

typedef struct arrangement {
    const char *folder;
    int32_t world;
    bool numbered; /* step-<n>, the oldest pruned; else one name for all */
    bool exchange; /* can the file system exchange two folders? */
} arrangement;

static const arrangement arrangements[] = {
    {"named-2", 2, false, true},           {"named-3", 3, false, true},
    {"numbered-2", 2, true, true},         {"numbered-3", 3, true, true},
    {"named-in-steps-2", 2, false, false},
};

/* What ranks leave in memory that outlives them. */
typedef struct board {
    _Atomic int64_t begun, confirmed; /* steps */
    _Atomic int64_t found[MAX_WORLD]; /* the step each resumed at; -1: not that far */
    _Atomic int32_t pid[MAX_WORLD];
    _Atomic bool wrong;
    char message[400];
} board;

static board *b;
static const arrangement *now;
static int32_t rank, victim;
static int way, countdown;

static void report(const char *what)
{
    if (!atomic_exchange(&b->wrong, true)) {
        snprintf(b->message, sizeof(b->message), "%s: rank %d: %s: %s", now->folder, (int)rank,
                 what, ms_error_message());
    }
}

static int strike(const char *step, const char *path)
{
    (void)path;
    if (strcmp(step, "exchange") == 0 && !now->exchange) {
        return EINVAL;
    }
    if (way == 0 && rank == victim && countdown-- == 0) {
        kill(getpid(), SIGKILL);
    }
    if (way == 2 && rank == 0 && countdown-- == 0) {
        kill(atomic_load(&b->pid[victim]), SIGKILL);
    }
    return 0;
}

static void die(int signal)
{
    (void)signal;
    kill(getpid(), SIGKILL);
}

/* The element range of this rank. */
static ms_param_extent own_extent(void)
{
    ms_param_extent e = extent_of(MS_DTYPE_F32, NUMEL);

    e.start = NUMEL / now->world * rank;
    e.numel = rank == now->world - 1 ? NUMEL - e.start : NUMEL / now->world;
    return e;
}

/* Load what is there, and see that it is one of the checkpoints that were saved. */
static ms_status resume(ms_comm *world, const char *root, int64_t *step)
{
    ms_param_extent e = own_extent();
    ms_checkpoint_loader *l;
    long long saved = 0;

    *step = 0;
    MS_TRY(ms_checkpoint_load_latest(&l, world, root));
    if (l == NULL) {
        return MS_OK;
    }
    sscanf(ms_checkpoint_meta(ms_checkpoint_load_source(l)), "{\"step\":%lld", &saved);
    *step = saved;
    ms_tensor *seen = bits_tensor(MS_DTYPE_F32, 999, 0, e.numel);
    ms_tensor *expected = bits_tensor(MS_DTYPE_F32, (uint64_t)saved, e.start, e.numel);

    MS_TRY(ms_checkpoint_load_add(l, "t", &e, seen));
    MS_TRY(ms_checkpoint_load_commit(l));
    if (!same_bytes(expected, seen)) {
        report("other contents than were saved");
    }
    ms_tensor_free(seen);
    ms_tensor_free(expected);
    return MS_OK;
}

static ms_status save(ms_comm *world, const char *root, int64_t step)
{
    ms_param_extent e = own_extent();
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, (uint64_t)step, e.start, e.numel);
    char name[32], meta[48];
    ms_checkpoint_writer *w;

    snprintf(name, sizeof(name), now->numbered ? "step-%08d" : "last", (int)step);
    snprintf(meta, sizeof(meta), "{\"step\": %d}", (int)step);
    atomic_store(&b->begun, step);
    MS_TRY(ms_checkpoint_begin(&w, world, root, name));
    ms_status status = ms_checkpoint_add(w, "t", &e, t);

    ms_tensor_free(t);
    MS_TRY(status);
    MS_TRY(ms_checkpoint_commit(w, meta));
    atomic_store(&b->confirmed, step);
    return now->numbered && rank == 0 ? ms_checkpoint_prune(root, KEPT) : MS_OK;
}

/* A rank's life. It ends by a kill, or by the error that a peer's kill gives it. */
static ms_status live(const char *root, uint64_t chance)
{
    ms_comm *world;
    int64_t step;

    MS_TRY(ms_comm_world(&world));
    if (resume(world, root, &step) != MS_OK) {
        report("resume");
        return MS_OK;
    }
    atomic_store(&b->found[rank], step);
    MS_TRY(ms_comm_barrier(world)); /* from here on there are kills */
    msi_io_hook = strike;
    if (way == 1 && rank == victim) {
        signal(SIGALRM, die);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 1 + (int)(chance % 12000)},
                  NULL);
    }
    for (int n = 0; n < 1000; n++) {
        MS_TRY(save(world, root, ++step));
    }
    report("nobody was killed");
    return MS_OK;
}

/* One job over `root`, ended by kill number `i`. */
static void run_job(const char *root, int i)
{
    const uint64_t chance = msi_mix64((uint64_t)i * 77 + (uint64_t)(now - arrangements));
    const int64_t confirmed = atomic_load(&b->confirmed), begun = atomic_load(&b->begun);
    ms_launch *launch;
    const char *cause;
    int32_t code, r;

    way = i % WAYS;
    victim = way == 2 ? 1 + (int32_t)(chance % (uint64_t)(now->world - 1))
                      : (int32_t)(chance % (uint64_t)now->world);
    countdown = (int)((chance >> 20) % (way == 2 || victim == 0 ? 45 : 12));
    for (r = 0; r < MAX_WORLD; r++) {
        atomic_store(&b->found[r], -1);
    }
    ms_close();
    assert_ok(ms_launch_fork(&launch, now->world, &r));
    if (r >= 0) {
        rank = r;
        atomic_store(&b->pid[r], getpid());
        ms_dist_exit(live(root, chance >> 32) == MS_OK ? 0 : 1);
    }
    assert_ok(ms_launch_wait(launch, &code, &cause));
    if (atomic_load(&b->wrong)) {
        fail_msg("kill %d: %s", i, b->message);
    }
    assert_int_equal(128 + SIGKILL, code);
    for (r = 0; r < now->world; r++) {
        const int64_t found = atomic_load(&b->found[r]);

        assert_int_equal(atomic_load(&b->found[0]), found);
        assert_in_range(found, confirmed, begun);
    }
}

/* By its name, and as the latest, in this process alone. */
static void check_after(const char *root)
{
    const char *latest;

    if (atomic_load(&b->confirmed) == 0) {
        return;
    }
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_non_null(latest);
    if (!now->numbered) {
        ms_checkpoint *c;

        assert_ok(ms_checkpoint_open(&c, inside(root, "last")));
        ms_checkpoint_close(c);
    }
    ms_warnings_capture(false);
}

static void test_checkpoint_kills__resume_finds_a_whole_checkpoint_on_all_ranks(void **state)
{
    const char *number = getenv("MS_TEST_KILLS");
    const int n = number != NULL ? atoi(number) : 40;
    const int n_arrangements = (int)(sizeof(arrangements) / sizeof(arrangements[0]));

    (void)state;
    b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(b != MAP_FAILED);
    for (int a = 0; a < n_arrangements; a++) {
        const char *root = path_of(arrangements[a].folder);

        memset(b, 0, sizeof(*b));
        now = &arrangements[a];
        for (int i = a; i < n; i += n_arrangements) {
            run_job(root, i);
            check_after(root);
        }
        assert_true(atomic_load(&b->confirmed) > n / n_arrangements / 3); /* there was progress */
        assert_ok(ms_checkpoint_prune(root, KEPT));
        assert_int_equal(0, count_entries(root, ".tmp-"));
        assert_in_range(count_entries(root, ""), 2, KEPT + 3); /* kept, latest, a pointed one */
    }
    munmap(b, sizeof(*b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_kills__resume_finds_a_whole_checkpoint_on_all_ranks),
    };

    return cmocka_run_group_tests_name("checkpoint/kills", tests, NULL, NULL);
}
