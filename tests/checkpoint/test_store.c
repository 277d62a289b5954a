/* runtime/checkpoint/store.c: finding the newest whole checkpoint, removing the others. */
#include "ckpt_test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static void test_checkpoint_store__latest_is_what_was_saved_last_then_goes_by_step(void **state)
{
    const char *root = path_of("newest"), *latest;

    assert_ok(ms_checkpoint_latest(&latest, root)); /* no such folder: no checkpoint */
    assert_null(latest);
    assert_ok(save_small(root, "z", 3));
    assert_ok(save_small(root, "a", 9)); /* step 90 */
    assert_ok(save_small(root, "m", 5)); /* somebody went back to step 50 */
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_string_equal(inside(root, "m"), latest);
    assert_int_equal(0, truncate(inside(root, "m/manifest.json"), 100));
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_latest(&latest, root));
    ms_warnings_capture(false);
    assert_string_equal(inside(root, "a"), latest);
    assert_int_equal(0, unlink(inside(root, "latest"))); /* copied without links, perhaps */
    assert_int_equal(0, rename(inside(root, "m"), inside(root, ".m")));
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_string_equal(inside(root, "a"), latest);
}

static void test_checkpoint_store__latest_skips_broken_ones_and_says_so(void **state)
{
    const char *root = path_of("broken"), *latest, *kind, *message;

    assert_ok(save_small(root, "s1", 1));
    assert_ok(save_small(root, "s2", 2));
    assert_ok(save_small(root, "s3", 3));
    assert_int_equal(0, truncate(inside(root, "s3/manifest.json"), 100));
    assert_int_equal(0, unlink(inside(root, "s2/rank-00000-of-00001.safetensors")));
    assert_int_equal(0, mkdir(inside(root, "empty"), 0777)); /* none of ours: no warning */
    assert_int_equal(0, mkdir(inside(root, "s9.tmp-0123456789abcdef"), 0777));
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_string_equal(inside(root, "s1"), latest);
    for (int i = 0; i < 2; i++) {
        assert_true(ms_warning_take(&kind, &message));
        assert_string_equal("UserWarning", kind);
        assert_non_null(strstr(message, "a broken checkpoint is passed over: "));
        assert_true(strstr(message, "s2/rank-00000") || strstr(message, "s3/manifest.json"));
    }
    assert_false(ms_warning_take(&kind, &message));
    ms_warnings_capture(false);
}

/* Sizes are right; only the bytes tell. */
static void test_checkpoint_store__latest_goes_by_content(void **state)
{
    const char *root = path_of("content"), *latest, *kind, *message;
    const char *shard = inside(root, "s2/rank-00000-of-00001.safetensors");
    size_t n;

    assert_ok(save_small(root, "s1", 1));
    assert_ok(save_small(root, "s2", 2));
    char *bytes = slurp(shard, &n);

    bytes[n - 1] ^= 1;
    spill(shard, bytes, n);
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_string_equal(inside(root, "s1"), latest);
    assert_true(ms_warning_take(&kind, &message));
    assert_non_null(strstr(message, "passed over: "));
    assert_non_null(strstr(message, "its bytes have hash"));
    ms_warnings_capture(false);
    free(bytes);
}

/* Checkpoints are there, and none can be had: to begin anew would be to lose them in silence. */
static void test_checkpoint_store__latest_fails_when_all_are_broken(void **state)
{
    const char *root = path_of("all-broken"), *latest;
    const char *piped = inside(root, "piped/manifest.json");

    assert_ok(save_small(root, "bare", 1));
    assert_ok(save_small(root, "piped", 2));
    assert_int_equal(0, unlink(inside(root, "bare/manifest.json")));
    assert_int_equal(0, unlink(piped));
    assert_int_equal(0, mkfifo(piped, 0666));
    ms_warnings_capture(true);
    assert_fails(MS_FORMAT_ERROR, "all-broken holds 2 checkpoints, none of them intact: ",
                 ms_checkpoint_latest(&latest, root));
    assert_null(latest);
    assert_non_null(strstr(ms_error_message(), "bare/manifest.json: No such file"));
    assert_non_null(strstr(ms_error_message(), "piped/manifest.json: is no regular file"));
    ms_warnings_capture(false);
    assert_int_equal(0, unlink(piped));
    assert_int_equal(0, rename(inside(root, "bare"), inside(root, ".bare")));
    ms_warnings_capture(true);
    assert_fails(MS_FORMAT_ERROR, "all-broken holds 1 checkpoint, which is not intact: open ",
                 ms_checkpoint_latest(&latest, root));
    ms_warnings_capture(false);
    assert_int_equal(0, unlink(inside(root, "piped/rank-00000-of-00001.safetensors")));
    assert_fails(MS_FORMAT_ERROR,
                 "latest points at 'piped', but no checkpoint of this folder is there",
                 ms_checkpoint_latest(&latest, root));
    assert_int_equal(0, unlink(inside(root, "latest")));
    assert_ok(ms_checkpoint_latest(&latest, root)); /* empty folders are anybody's */
    assert_null(latest);
}

static void test_checkpoint_store__prune_keeps_the_newest(void **state)
{
    const char *root = path_of("prune");
    char name[16];

    for (int s = 1; s <= 5; s++) {
        snprintf(name, sizeof(name), "s%d", s);
        assert_ok(save_small(root, name, (uint64_t)s));
    }
    assert_ok(ms_checkpoint_prune(root, 2));
    assert_int_equal(3, count_entries(root, "")); /* s4, s5, latest */
    assert_ok(load_small(inside(root, "s4"), 4));
    assert_ok(load_small(inside(root, "s5"), 5));
    assert_ok(ms_checkpoint_prune(root, 2)); /* nothing more to do */
    assert_int_equal(3, count_entries(root, ""));
    assert_fails(MS_VALUE_ERROR, "at least 1 checkpoint, got 0", ms_checkpoint_prune(root, 0));
    assert_ok(ms_checkpoint_prune(path_of("no-such-folder"), 1));
}

static void test_checkpoint_store__prune_keeps_what_was_saved_last(void **state)
{
    const char *root = path_of("rewound"), *latest, *kind, *message;

    assert_ok(save_small(root, "s8", 8));
    assert_ok(save_small(root, "s9", 9));
    assert_ok(save_small(root, "s2", 2)); /* somebody went back to step 10 and trains on */
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_prune(root, 2));
    assert_true(ms_warning_take(&kind, &message));
    assert_non_null(strstr(message, "rewound/s2 was saved last, with step 20, though s9 has step "
                                    "90"));
    ms_warnings_capture(false);
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_string_equal(inside(root, "s2"), latest);
    assert_int_equal(3, count_entries(root, "")); /* s9, s2, latest */
    assert_ok(load_small(inside(root, "s9"), 9));
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_prune(root, 1));
    ms_warnings_capture(false);
    assert_int_equal(2, count_entries(root, "")); /* as many as were asked for */
    assert_ok(load_small(inside(root, "latest"), 2));
    assert_int_equal(0, unlink(inside(root, "latest")));
    assert_ok(save_small(root, "s9", 9));
    assert_int_equal(0, unlink(inside(root, "latest")));
    assert_ok(ms_checkpoint_prune(root, 1)); /* nothing says which was saved last */
    assert_int_equal(1, count_entries(root, ""));
    assert_ok(load_small(inside(root, "s9"), 9));
}

/* What others have put into a checkpoint stays, under its name; links are not followed. */
static void test_checkpoint_store__prune_takes_only_our_files_from_a_folder(void **state)
{
    static const char *const theirs[] = {"notes.txt", "rank-1.safetensors",
                                         "rank-a-of-b.safetensors",
                                         "rank-00000-of-00001.safetensors.bak", "sub"};
    const char *root = path_of("mixed"), *away = path_of("away"), *kind, *message;
    const char *dead = inside(root, "s0.tmp-0123456789abcdef");

    for (uint64_t s = 1; s <= 3; s++) {
        char name[8];

        snprintf(name, sizeof(name), "s%d", (int)s);
        assert_ok(save_small(root, name, s));
    }
    for (int i = 0; i < 4; i++) {
        spill(inside(inside(root, "s1"), theirs[i]), "x", 1);
    }
    assert_int_equal(0, mkdir(inside(root, "s1/sub"), 0777));
    spill(inside(root, "s1/sub/manifest.json"), "x", 1);
    assert_int_equal(0, mkdir(away, 0777));
    spill(inside(away, "manifest.json"), "x", 1);
    assert_int_equal(0, mkdir(dead, 0777));
    assert_int_equal(0, symlink(away, inside(dead, "manifest.json")));
    assert_int_equal(0, symlink(away, inside(root, "s4.tmp-0123456789abcdef")));
    assert_int_equal(0, symlink(away, inside(dead, "theirs")));
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_prune(root, 1));
    assert_true(ms_warning_take(&kind, &message));
    assert_non_null(strstr(message, "not what others put into"));
    assert_false(ms_warning_take(&kind, &message));
    assert_int_equal(5, count_entries(inside(root, "s1"), ""));
    assert_int_equal(1, count_entries(inside(root, "s1/sub"), ""));
    assert_int_equal(1, count_entries(away, ""));
    assert_int_equal(1, count_entries(dead, "")); /* their link */
    assert_int_equal(4, count_entries(root, "")); /* s1, s3, latest, dead */
    assert_ok(ms_checkpoint_prune(root, 1));      /* and nobody hears of it again */
    assert_false(ms_warning_take(&kind, &message));
    ms_warnings_capture(false);
}

/* A folder a writer still works in is not a leftover; once it is dead, it is. */
static void test_checkpoint_store__prune_spares_writers_at_work(void **state)
{
    const char *root = path_of("working");
    ms_param_extent e = extent_of(MS_DTYPE_F32, 4);
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, 1, 0, 4);
    ms_checkpoint_writer *w;
    ms_comm *self;

    assert_ok(ms_comm_self(&self));
    assert_ok(ms_checkpoint_begin(&w, self, root, "s1"));
    assert_ok(ms_checkpoint_add(w, "k", &e, t));
    assert_int_equal(0, mkdir(inside(root, "dead.tmp-0123456789abcdef"), 0777));
    spill(inside(root, "dead.tmp-0123456789abcdef/rank-00000-of-00001.safetensors"), "x", 1);
    assert_int_equal(0, symlink("gone", inside(root, "latest.tmp-0123456789abcdef")));
    assert_int_equal(3, count_entries(root, ".tmp-"));
    assert_ok(ms_checkpoint_prune(root, 1));
    assert_int_equal(1, count_entries(root, ".tmp-"));
    assert_ok(ms_checkpoint_commit(w, "{}"));
    assert_int_equal(0, count_entries(root, ".tmp-"));
    assert_int_equal(2, count_entries(root, "")); /* s1, latest */
    ms_tensor_free(t);
}

enum { N_SAVES = 200 };

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_store__latest_is_what_was_saved_last_then_goes_by_step),
        cmocka_unit_test(test_checkpoint_store__latest_skips_broken_ones_and_says_so),
        cmocka_unit_test(test_checkpoint_store__latest_goes_by_content),
        cmocka_unit_test(test_checkpoint_store__latest_fails_when_all_are_broken),
        cmocka_unit_test(test_checkpoint_store__prune_keeps_the_newest),
        cmocka_unit_test(test_checkpoint_store__prune_keeps_what_was_saved_last),
        cmocka_unit_test(test_checkpoint_store__prune_takes_only_our_files_from_a_folder),
        cmocka_unit_test(test_checkpoint_store__prune_spares_writers_at_work),
    };

    return cmocka_run_group_tests_name("checkpoint/store", tests, NULL, NULL);
}
