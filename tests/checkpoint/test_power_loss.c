/* Checkpoints and power loss: the process ends before the k-th step on disk, for every k, and all
 * that no fsync had covered by then is lost: contents of files, and names in folders. The method is
 * that of SQLite's crash tests (sqlite.org/testing.html, section 4.3). */
#include "ckpt_test.h"

#include <limits.h>
#include <signal.h>
#include <sys/wait.h>

enum { MAX_FILES = 16 };

/* How contents that were never synced come back. */
enum { LOSE_ALL, LOSE_HALF, GARBAGE, N_LOSSES };

/* A file of the save, held open so that it is found under whatever name it has by then. */
typedef struct witness {
    char path[PATH_MAX]; /* it was created under */
    int fd;
    bool contents_safe, name_safe;
} witness;

static witness files[MAX_FILES];
static int n_files, countdown, loss, renames_at_risk;
static char syncing[PATH_MAX]; /* what the step before this one synced */
static const char *broken_rule;

static bool is_in(const char *path, const char *folder)
{
    size_t n = strlen(folder);

    return strncmp(path, folder, n) == 0 && path[n] == '/' && strchr(path + n + 1, '/') == NULL;
}

static void believe_sync(const char *path)
{
    for (int i = 0; i < n_files; i++) {
        files[i].contents_safe |= strcmp(files[i].path, path) == 0;
        files[i].name_safe |= is_in(files[i].path, path);
    }
    renames_at_risk = 0; /* the only folder that is synced twice is the root */
}

static void lose_contents(int fd)
{
    const char noise[64] = "nothing that anybody has written there";
    struct stat st;

    if (fstat(fd, &st) != 0) {
        return;
    }
    if (loss != GARBAGE) {
        if (ftruncate(fd, loss == LOSE_ALL ? 0 : st.st_size / 2) != 0) {
            abort();
        }
        return;
    }
    for (off_t at = 0; at < st.st_size; at += (off_t)sizeof(noise)) {
        const size_t left = (size_t)(st.st_size - at);

        if (pwrite(fd, noise, left < sizeof(noise) ? left : sizeof(noise), at) < 0) {
            abort();
        }
    }
}

static void lose_name(int fd)
{
    char link[64], path[PATH_MAX];

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof(path) - 1);

    if (n > 0) {
        path[n] = '\0';
        unlink(path);
    }
}

static _Noreturn void lose_power(void)
{
    for (int i = 0; i < n_files; i++) {
        if (!files[i].contents_safe) {
            lose_contents(files[i].fd);
        }
        if (!files[i].name_safe) {
            lose_name(files[i].fd);
        }
    }
    kill(getpid(), SIGKILL);
    abort();
}

static witness *witness_of(const char *path)
{
    for (int i = 0; i < n_files; i++) {
        if (strcmp(files[i].path, path) == 0) {
            return &files[i];
        }
    }
    if (n_files == MAX_FILES) {
        abort();
    }
    witness *w = &files[n_files++];

    *w = (witness){.fd = open(path, O_RDWR | O_CLOEXEC)};
    snprintf(w->path, sizeof(w->path), "%s", path);
    return w;
}

/* Called before each step; the one before has been done by then. */
static int watch(const char *step, const char *path)
{
    if (syncing[0] != '\0') {
        believe_sync(syncing);
        syncing[0] = '\0';
    }
    if (countdown-- == 0) {
        lose_power();
    }
    if (strcmp(step, "write") == 0) {
        witness_of(path)->contents_safe = false;
    } else if (strcmp(step, "fsync") == 0) {
        snprintf(syncing, sizeof(syncing), "%s", path);
    } else if (strcmp(step, "rename") == 0 && renames_at_risk++ > 0) {
        broken_rule = path; /* either of two may come to disk first */
    }
    return 0;
}

/* @return true when the process died at step k */
static bool save_and_lose_power(const char *root, const char *name, uint64_t seed, int k)
{
    pid_t child = fork();

    if (child == 0) {
        countdown = k;
        msi_io_hook = watch;
        if (save_small(root, name, seed) != MS_OK) {
            _exit(1);
        }
        if (broken_rule != NULL) {
            fprintf(stderr, "%s is renamed while an earlier rename is not synced\n", broken_rule);
            _exit(2);
        }
        _exit(0);
    }
    return was_killed(child);
}

static void check_latest(const char *root, bool died, int *n_old, int *n_new)
{
    const char *latest;

    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_non_null(latest);
    const bool is_new = seed_in(latest) == 2;

    assert_true(is_new || died);
    *n_new += is_new;
    *n_old += !is_new;
}

/* Save seed 1 as "one", lose power while seed 2 is saved as `second`, at every step, in every way.
 */
static void try_every_step(const char *folder, const char *second)
{
    int n_old = 0, n_new = 0, k = 0;

    for (loss = 0; loss < N_LOSSES; loss++) {
        bool died = true;

        for (k = 0; died; k++) {
            const char *root;
            char name[48];

            snprintf(name, sizeof(name), "%s-%d-%d", folder, loss, k);
            root = path_of(name);
            assert_ok(save_small(root, "one", 1));
            died = save_and_lose_power(root, second, 2, k);
            check_latest(root, died, &n_old, &n_new);
            if (strcmp(second, "one") != 0) {
                assert_ok(load_small(inside(root, "one"), 1));
            }
            assert_ok(ms_checkpoint_prune(root, 5));
            assert_int_equal(0, count_entries(root, ".tmp-"));
            assert_ok(save_small(root, "three", 3));
            assert_ok(load_small(inside(root, "three"), 3));
        }
    }
    assert_true(k >= 12);
    assert_int_equal(k * N_LOSSES, n_old + n_new);
    /* the link to a new name is moved last, and not always synced; a name that is there has it */
    assert_true(n_old >= 8 * N_LOSSES);
    assert_true(n_new >= (strcmp(second, "one") == 0 ? 3 * N_LOSSES : N_LOSSES + 1));
}

static void test_checkpoint_power_loss__a_new_checkpoint_is_all_or_nothing(void **state)
{
    (void)state;
    try_every_step("new", "two");
}

static void test_checkpoint_power_loss__a_replaced_checkpoint_is_old_or_new(void **state)
{
    (void)state;
    try_every_step("replaced", "one");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_power_loss__a_new_checkpoint_is_all_or_nothing),
        cmocka_unit_test(test_checkpoint_power_loss__a_replaced_checkpoint_is_old_or_new),
    };

    return cmocka_run_group_tests_name("checkpoint/power loss", tests, NULL, NULL);
}
