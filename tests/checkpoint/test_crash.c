/* Checkpoints under crashes and failing disks: the k-th step on disk is made the last one, or made
 * to fail, for every k. The earlier checkpoint always loads; the new one is all there or not. */
#include "ckpt_test.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>

static int countdown;

/* The process ends before step number `countdown`, as with SIGKILL or a panic. */
static int die_at(const char *step, const char *path)
{
    if (countdown-- == 0) {
        kill(getpid(), SIGKILL);
    }
    return 0;
}

static int fail_at(const char *step, const char *path)
{
    return countdown-- == 0 ? ENOSPC : 0;
}

/* The same on a file system that cannot exchange two folders in one step. */
static int die_at_without_exchange(const char *step, const char *path)
{
    return strcmp(step, "exchange") == 0 ? EINVAL : die_at(step, path);
}

static int fail_at_without_exchange(const char *step, const char *path)
{
    return strcmp(step, "exchange") == 0 ? EINVAL : fail_at(step, path);
}

/* Save `seed` as `name` in a process that dies at step k. @return true when it did */
static bool save_and_die(const char *root, const char *name, uint64_t seed, int k,
                         msi_io_hook_fn hook)
{
    pid_t child = fork();

    if (child == 0) {
        countdown = k;
        msi_io_hook = hook;
        _exit(save_small(root, name, seed) == MS_OK ? 0 : 1);
    }
    return was_killed(child);
}

static void test_checkpoint_crash__a_new_checkpoint_is_all_or_nothing(void **state)
{
    int k = 0, complete = 0, pointed = 0;

    for (bool died = true; died; k++) {
        char name[32];
        const char *root, *latest;

        snprintf(name, sizeof(name), "new-%d", k);
        root = path_of(name);
        assert_ok(save_small(root, "one", 1));
        died = save_and_die(root, "two", 2, k, die_at);
        assert_ok(load_small(inside(root, "one"), 1));
        assert_ok(ms_checkpoint_latest(&latest, root));
        assert_non_null(latest);
        if (access(inside(root, "two"), F_OK) == 0) {
            assert_ok(load_small(inside(root, "two"), 2));
            pointed += seed_in(inside(root, "latest")) == 2; /* moved last of all */
            assert_int_equal(seed_in(inside(root, "latest")), seed_in(latest));
            complete++;
        } else {
            assert_true(died);
            assert_ok(load_small(latest, 1));
        }
        assert_true(access(inside(root, "latest"), F_OK) == 0); /* never a pointer to nothing */

        /* what the dead left is cleared away, and the next save works */
        assert_ok(ms_checkpoint_prune(root, 5));
        assert_int_equal(0, count_entries(root, ".tmp-"));
        assert_ok(save_small(root, "two", 3));
        assert_ok(load_small(inside(root, "two"), 3));
    }
    assert_true(k >= 12);       /* mkdir, create, writes, syncs, renames were all reached */
    assert_true(complete >= 3); /* dying after the rename is late enough to have it */
    assert_true(pointed >= 1 && pointed < complete); /* and later, to go on from it */
    assert_true(complete < k);
}

static void test_checkpoint_crash__a_replaced_checkpoint_is_old_or_new(void **state)
{
    int k = 0, n_old = 0, n_new = 0;

    for (bool died = true; died; k++) {
        char name[32];
        const char *root;
        int seed;

        snprintf(name, sizeof(name), "replace-%d", k);
        root = path_of(name);
        assert_ok(save_small(root, "best", 1));
        died = save_and_die(root, "best", 2, k, die_at);
        seed = seed_in(inside(root, "best")); /* always one of the two, whole */
        n_old += seed == 1;
        n_new += seed == 2;
        assert_true(seed == 2 || died);
        assert_ok(ms_checkpoint_prune(root, 1));
        assert_int_equal(0, count_entries(root, ".tmp-"));
        assert_int_equal(seed, seed_in(inside(root, "best")));
    }
    assert_int_equal(k, n_old + n_new);
    assert_true(n_old >= 8 && n_new >= 5);
}

/* Ranks as processes, each with half of the elements; `victim` dies at its step k. */
static void save_by_two(const char *root, uint64_t seed, int32_t victim, int k)
{
    ms_param_extent e = extent_of(MS_DTYPE_F32, 40);
    ms_launch *launch;
    ms_comm *world;
    ms_checkpoint_writer *w;
    const char *cause;
    int32_t rank, code;

    ms_close();
    assert_ok(ms_launch_fork(&launch, 2, &rank));
    if (rank < 0) {
        assert_ok(ms_launch_wait(launch, &code, &cause));
        return;
    }
    countdown = k;
    msi_io_hook = rank == victim ? die_at : NULL;
    if (ms_comm_world(&world) == MS_OK && ms_checkpoint_begin(&w, world, root, "best") == MS_OK) {
        e.start = rank * 20;
        e.numel = 20;
        ms_tensor *t = bits_tensor(MS_DTYPE_F32, seed, e.start, e.numel);

        ms_checkpoint_add(w, "t", &e, t);
        ms_checkpoint_commit(w, seed == 1 ? "{\"seed\": 1}" : "{\"seed\": 2}");
    }
    ms_dist_exit(0);
}

static void test_checkpoint_crash__any_rank_may_die_at_any_step(void **state)
{
    int n_old = 0, n_new = 0;

    for (int32_t victim = 0; victim < 2; victim++) {
        for (int k = 0; k < (victim == 0 ? 17 : 5); k++) { /* rank 1 has fewer steps */
            ms_param_extent e = extent_of(MS_DTYPE_F32, 40);
            ms_tensor *expected, *seen;
            ms_checkpoint *c;
            const char *root;
            char name[32];
            int seed = 0;

            snprintf(name, sizeof(name), "ranks-%d-%d", (int)victim, k);
            root = path_of(name);
            save_by_two(root, 1, -1, 0);
            save_by_two(root, 2, victim, k);
            assert_ok(ms_checkpoint_open(&c, inside(root, "best")));
            assert_int_equal(1, sscanf(ms_checkpoint_meta(c), "{\"seed\":%d", &seed));
            expected = bits_tensor(MS_DTYPE_F32, (uint64_t)seed, 0, 40);
            seen = bits_tensor(MS_DTYPE_F32, 999, 0, 40);
            assert_ok(ms_checkpoint_read(c, "t", &e, seen));
            assert_true(same_bytes(expected, seen));
            ms_checkpoint_close(c);
            ms_tensor_free(expected);
            ms_tensor_free(seen);
            n_old += seed == 1;
            n_new += seed == 2;
            assert_ok(ms_checkpoint_prune(root, 1));
            assert_int_equal(0, count_entries(root, ".tmp-"));
        }
    }
    assert_true(n_old >= 10 && n_new >= 5);
}

/* Between its two renames the name is free for a moment: the old one is found all the same, by its
 * name and as the latest, and stays until there is a new one. */
static void test_checkpoint_crash__without_exchange_one_of_both_is_found(void **state)
{
    int k = 0, n_old = 0, n_new = 0;

    for (bool died = true; died; k++) {
        char name[32];
        const char *root, *latest;
        int seed;

        snprintf(name, sizeof(name), "steps-%d", k);
        root = path_of(name);
        assert_ok(save_small(root, "best", 1));
        died = save_and_die(root, "best", 2, k, die_at_without_exchange);
        assert_ok(ms_checkpoint_latest(&latest, root));
        assert_non_null(latest);
        seed = seed_in(latest);
        n_old += seed == 1;
        n_new += seed == 2;
        ms_warnings_capture(true);
        assert_int_equal(seed, seed_in(inside(root, "best")));
        save_and_die(root, "best", 3, k, die_at_without_exchange); /* the same again on top of it */
        assert_true(seed_in(inside(root, "best")) == (died ? seed : 3) ||
                    seed_in(inside(root, "best")) == 3);
        assert_ok(save_small(root, "best", 4));
        assert_int_equal(4, seed_in(inside(root, "best")));
        ms_warnings_capture(false);
    }
    assert_int_equal(k, n_old + n_new);
    assert_true(n_old >= 8 && n_new >= 5);
}

/* Let every step fail in turn until the save comes through. */
static void fail_at_every_step(const char *root, msi_io_hook_fn hook)
{
    ms_status status = MS_IO_ERROR;
    int k;

    ms_warnings_capture(true);
    assert_ok(save_small(root, "best", 1));
    for (k = 0; status != MS_OK; k++) {
        assert_true(k < 100);
        countdown = k;
        msi_io_hook = hook;
        status = save_small(root, "best", 2);
        msi_io_hook = NULL;
        if (status != MS_OK) {
            assert_int_equal(MS_IO_ERROR, status);
            assert_non_null(strstr(ms_error_message(), "No space left on device"));
            assert_non_null(strstr(ms_error_message(), root));
            assert_ok(load_small(inside(root, "best"), 1));
            assert_int_equal(2, count_entries(root, "")); /* best, latest */
        }
    }
    assert_true(k >= 10);
    assert_ok(load_small(inside(root, "best"), 2));
    ms_warnings_capture(false);
}

static void test_checkpoint_crash__a_failing_disk_is_an_error_that_leaves_nothing(void **state)
{
    fail_at_every_step(path_of("enospc"), fail_at);
    fail_at_every_step(path_of("enospc-steps"), fail_at_without_exchange);
}

/* After the rename the checkpoint is safe; what fails then is worth a warning. */
static void test_checkpoint_crash__late_failures_are_warnings(void **state)
{
    const char *root = path_of("late"), *kind, *message;
    int n_steps, warned = 0;

    countdown = 1000;
    msi_io_hook = fail_at;
    assert_ok(save_small(root, "a", 1));
    countdown = 1000;
    assert_ok(save_small(root, "a", 2));
    n_steps = 1000 - countdown;
    ms_warnings_capture(true);
    for (int k = n_steps - 6; k < n_steps; k++) {
        countdown = k;
        if (save_small(root, "a", 3) == MS_OK) {
            assert_ok(load_small(inside(root, "a"), 3));
            assert_true(ms_warning_take(&kind, &message));
            assert_non_null(strstr(message, "No space left"));
            warned++;
        }
    }
    msi_io_hook = NULL;
    ms_warnings_capture(false);
    assert_true(warned >= 4); /* symlink, rename, unlink, rmdir */
    assert_ok(ms_checkpoint_prune(root, 1));
    assert_int_equal(0, count_entries(root, ".tmp-"));
}

/* A limit on file sizes sends a signal that would end the process. */
static void test_checkpoint_crash__a_file_size_limit_is_an_error(void **state)
{
    const char *root = path_of("limit");
    struct rlimit before, limit;
    ms_status status;

    assert_int_equal(0, getrlimit(RLIMIT_FSIZE, &before));
    limit = (struct rlimit){.rlim_cur = 1000, .rlim_max = before.rlim_max};
    assert_int_equal(0, setrlimit(RLIMIT_FSIZE, &limit));
    status = save_small(root, "a", 1);
    assert_int_equal(0, setrlimit(RLIMIT_FSIZE, &before));
    assert_int_equal(MS_IO_ERROR, status);
    assert_non_null(strstr(ms_error_message(), "File too large (files may have "));
    assert_non_null(strstr(ms_error_message(), " bytes: ulimit -f)"));
    assert_int_equal(0, count_entries(root, ""));
}

static void test_checkpoint_crash__a_folder_that_is_no_folder_is_named(void **state)
{
    const char *path = path_of("plain-file");

    spill(path, "x", 1);
    assert_fails(MS_IO_ERROR, "plain-file", save_small(path, "a", 1));
}

static void test_checkpoint_crash__a_single_file_is_old_or_new(void **state)
{
    const char *path = path_of("file.safetensors");
    const char *const names[] = {"t"};
    ms_tensor *old = bits_tensor(MS_DTYPE_F32, 1, 0, 9), *new = bits_tensor(MS_DTYPE_F32, 2, 0, 5);
    ms_status status = MS_IO_ERROR;
    int k;

    assert_ok(ms_safetensors_save(path, &old, 1, names));
    for (k = 0; status != MS_OK; k++) {
        ms_safetensors *f;
        ms_tensor *seen;

        assert_true(k < 20);
        countdown = k;
        msi_io_hook = fail_at;
        status = ms_safetensors_save(path, &new, 1, names);
        msi_io_hook = NULL;
        assert_ok(ms_safetensors_open(&f, path));
        assert_ok(ms_safetensors_get(&seen, f, 0));
        assert_true(same_bytes(seen, old) || same_bytes(seen, new));
        assert_true(status != MS_OK || same_bytes(seen, new));
        ms_tensor_free(seen);
        ms_safetensors_close(f);
        assert_int_equal(0, count_entries(temp_path(""), "file.safetensors.tmp-"));
    }
    assert_true(k >= 5); /* create, writes, sync, rename, sync of the folder */
    ms_tensor_free(old);
    ms_tensor_free(new);
}

/* -- survivors --------------------------------------------------------------------------------- */

static atomic_int n_given_up;

/* As when a rank dies while rank 0 publishes: the others learn of it, and give up, before rank 0
 * goes on. */
static int abort_at_manifest(const char *step, const char *path)
{
    if (strcmp(step, "create") == 0 && strstr(path, "manifest.json") != NULL) {
        ms_dist_abort(MS_RUNTIME_ERROR, "a rank is gone");
        while (atomic_load(&n_given_up) < 2) {
            usleep(1000);
        }
    }
    return 0;
}

static ms_status save_while_one_aborts(void *user, int32_t rank)
{
    ms_param_extent e = extent_of(MS_DTYPE_F32, 30);
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, 1, rank * 10, 10);
    ms_checkpoint_writer *w;
    ms_comm *world;

    e.start = rank * 10;
    e.numel = 10;
    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_checkpoint_begin(&w, world, user, "last"));
    MS_TRY(ms_checkpoint_add(w, "t", &e, t));
    msi_io_hook = rank == 0 ? abort_at_manifest : NULL;
    ms_checkpoint_commit(w, "{\"step\": 1}");
    msi_io_hook = NULL;
    atomic_fetch_add(&n_given_up, rank != 0);
    ms_tensor_free(t);
    return MS_OK;
}

static void test_checkpoint_crash__survivors_leave_what_is_being_published(void **state)
{
    const char *root = path_of("torn");
    ms_param_extent e = extent_of(MS_DTYPE_F32, 30);
    ms_tensor *expected = bits_tensor(MS_DTYPE_F32, 1, 0, 30), *seen;
    ms_checkpoint *c;

    atomic_store(&n_given_up, 0);
    ms_dist_threads(3, save_while_one_aborts, (void *)(uintptr_t)root);
    seen = bits_tensor(MS_DTYPE_F32, 999, 0, 30);
    assert_ok(ms_checkpoint_open(&c, inside(root, "last")));
    assert_ok(ms_checkpoint_read(c, "t", &e, seen));
    assert_true(same_bytes(expected, seen));
    ms_checkpoint_close(c);
    ms_tensor_free(expected);
    ms_tensor_free(seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_crash__a_new_checkpoint_is_all_or_nothing),
        cmocka_unit_test(test_checkpoint_crash__a_replaced_checkpoint_is_old_or_new),
        cmocka_unit_test(test_checkpoint_crash__any_rank_may_die_at_any_step),
        cmocka_unit_test(test_checkpoint_crash__without_exchange_one_of_both_is_found),
        cmocka_unit_test(test_checkpoint_crash__a_failing_disk_is_an_error_that_leaves_nothing),
        cmocka_unit_test(test_checkpoint_crash__late_failures_are_warnings),
        cmocka_unit_test(test_checkpoint_crash__a_file_size_limit_is_an_error),
        cmocka_unit_test(test_checkpoint_crash__a_folder_that_is_no_folder_is_named),
        cmocka_unit_test(test_checkpoint_crash__a_single_file_is_old_or_new),
        cmocka_unit_test(test_checkpoint_crash__survivors_leave_what_is_being_published),
    };

    return cmocka_run_group_tests_name("checkpoint/crash", tests, NULL, NULL);
}
