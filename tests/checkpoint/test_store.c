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

/* What is none, and so no reason not to begin. */
static void test_checkpoint_store__latest_takes_nothing_else_for_a_checkpoint(void **state)
{
    const char *root = path_of("none"), *elsewhere = path_of("elsewhere"), *latest;
    const char *died = inside(root, "s.tmp-0123456789abcdef");

    assert_ok(save_small(elsewhere, "s", 1));
    assert_int_equal(0, mkdir(root, 0777));
    assert_int_equal(0, mkdir(died, 0777));
    spill(inside(died, "rank-00000-of-00001.safetensors"), "x", 1);
    assert_int_equal(0, mkdir(inside(root, "tensorboard"), 0777));
    spill(inside(root, "tensorboard/events"), "x", 1);
    assert_int_equal(0, mkdir(inside(root, ".hidden"), 0777));
    spill(inside(root, ".hidden/manifest.json"), "x", 1);
    spill(inside(root, "manifest.json"), "x", 1);
    assert_int_equal(0, mkfifo(inside(root, "pipe"), 0666));
    assert_int_equal(0, symlink(inside(elsewhere, "s"), inside(root, "link")));
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_null(latest);
}

/* What was saved last is lost, and an older one is taken: not in silence. */
static void test_checkpoint_store__latest_says_when_what_was_saved_last_is_lost(void **state)
{
    const char *root = path_of("lost"), *latest, *kind, *message;

    assert_ok(save_small(root, "s1", 1));
    assert_ok(save_small(root, "s2", 2));
    assert_int_equal(0, rename(inside(root, "s2"), path_of("lost-s2")));
    for (int by_file = 0; by_file < 2; by_file++) {
        ms_warnings_capture(true);
        assert_ok(ms_checkpoint_latest(&latest, root));
        assert_string_equal(inside(root, "s1"), latest);
        assert_true(ms_warning_take(&kind, &message));
        assert_non_null(strstr(
            message, "lost/latest points at 's2', but no checkpoint of this folder is there: "));
        assert_false(ms_warning_take(&kind, &message));
        ms_warnings_capture(false);
        spill(inside(root, "s2"), "x", 1);
    }
}

/* People move the link by hand. Where it leads decides, not how that is spelt. */
static void test_checkpoint_store__latest_leads_to_a_folder_however_it_is_spelt(void **state)
{
    const char *root = path_of("spelt"), *link = inside(root, "latest"), *latest, *kind, *message;
    const char *const spellings[] = {"s1/", "./s1", "../spelt//s1", inside(root, "s1"), "by-hand"};

    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        assert_ok(save_small(root, "s1", 1));
        assert_ok(save_small(root, "s2", 2));
        assert_int_equal(0, symlink("s1", inside(root, "by-hand")));
        assert_int_equal(0, unlink(link));
        assert_int_equal(0, symlink(spellings[i], link));
        ms_warnings_capture(true);
        assert_ok(ms_checkpoint_latest(&latest, root));
        assert_string_equal(inside(root, "s1"), latest);
        assert_false(ms_warning_take(&kind, &message));
        assert_ok(ms_checkpoint_prune(root, 1));
        assert_true(ms_warning_take(&kind, &message));
        assert_non_null(strstr(message, "spelt/s1 was saved last, with step 10, though s2"));
        ms_warnings_capture(false);
        assert_ok(load_small(inside(root, "s1"), 1));
        assert_int_equal(0, unlink(inside(root, "by-hand")));
        assert_int_equal(2, count_entries(root, "")); /* s1, latest */
    }
}

/* A link that leads to no checkpoint of the folder, though to one elsewhere, is told of. */
static void test_checkpoint_store__latest_leads_out_of_no_folder(void **state)
{
    const char *root = path_of("inner"), *away = path_of("outer"), *latest, *kind, *message;
    const char *const texts[][2] = {{"../outer/s3", "../outer/s3"},
                                    {inside(away, "s3"), "outer/s3"},
                                    {".", "."},
                                    {"..", ".."},
                                    {"latest", "latest"},
                                    {"s1/manifest.json", "s1/manifest.json"},
                                    {"a\n\x1b[31mb", "a\\x0a\\x1b[31mb"}};

    assert_ok(save_small(away, "s3", 3));
    assert_ok(save_small(root, "s1", 1));
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_int_equal(0, unlink(inside(root, "latest")));
        assert_int_equal(0, symlink(texts[i][0], inside(root, "latest")));
        ms_warnings_capture(true);
        assert_ok(ms_checkpoint_latest(&latest, root));
        assert_string_equal(inside(root, "s1"), latest);
        assert_true(ms_warning_take(&kind, &message));
        assert_non_null(strstr(message, "inner/latest points at '"));
        if (strstr(message, texts[i][1]) == NULL) {
            fail_msg("%s, expected %s", message, texts[i][1]);
        }
        assert_false(ms_warning_take(&kind, &message));
        ms_warnings_capture(false);
    }
    assert_ok(save_small(root, "s1", 1)); /* which moves the link again */
    assert_ok(load_small(inside(root, "latest"), 1));
    assert_ok(load_small(inside(away, "s3"), 3));
}

/* A root on a volume that is not mounted is none without checkpoints. */
static void test_checkpoint_store__a_link_to_nothing_is_no_empty_root(void **state)
{
    const char *away = path_of("volume"), *link = path_of("mount"), *latest;
    const char *const roots[] = {link, inside(link, ""), inside(link, "sub"),
                                 inside(link, "sub//deep")};

    assert_int_equal(0, symlink(away, link));
    for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
        const char *expected = "mount is a symbolic link to nothing";

        assert_fails(MS_IO_ERROR, expected, ms_checkpoint_latest(&latest, roots[i]));
        assert_fails(MS_IO_ERROR, expected, ms_checkpoint_prune(roots[i], 1));
        assert_fails(MS_IO_ERROR, expected, save_small(roots[i], "s1", 1));
    }
    assert_int_equal(0, mkdir(away, 0777));
    assert_ok(ms_checkpoint_latest(&latest, inside(link, "sub")));
    assert_null(latest);
    assert_ok(save_small(inside(link, "sub"), "s1", 1));
    assert_ok(load_small(inside(away, "sub/s1"), 1));
}

static void test_checkpoint_store__a_root_that_cannot_be_looked_at_is_not_made(void **state)
{
    char name[300], expected[32];

    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    const char *root = inside(path_of("looked"), name);

    snprintf(expected, sizeof(expected), "stat %.16s", root);
    assert_fails(MS_IO_ERROR, expected, save_small(root, "s1", 1));
    assert_non_null(strstr(ms_error_message(), ": File name too long"));
}

/* A root copied with `cp -rL` has a folder where the link was. */
static void test_checkpoint_store__a_folder_called_latest_is_no_checkpoint(void **state)
{
    const char *root = path_of("followed"), *link = inside(root, "latest"), *latest, *kind, *text;

    assert_ok(save_small(root, "s2", 2));
    assert_int_equal(0, unlink(link));
    assert_int_equal(0, rename(inside(root, "s2"), link));
    ms_warnings_capture(true);
    assert_fails(MS_FORMAT_ERROR, "latest is a folder, expected a link to a checkpoint",
                 ms_checkpoint_latest(&latest, root));
    assert_ok(save_small(root, "s1", 1));
    ms_warnings_capture(true); /* of before is nothing left */
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_string_equal(inside(root, "s1"), latest);
    assert_true(ms_warning_take(&kind, &text));
    assert_non_null(strstr(text, "passed over: "));
    assert_non_null(strstr(text, "followed/latest is a folder"));
    assert_ok(ms_checkpoint_prune(root, 1));
    ms_warnings_capture(false);
    assert_ok(load_small(inside(root, "s1"), 1));
    assert_ok(load_small(link, 2)); /* named, it is what it holds; and prune has spared it */
}

/* A process with too many open files cannot tell: it must not take a whole checkpoint for a broken
 * one, and begin anew. */
static void test_checkpoint_store__latest_blames_no_checkpoint_for_want_of_descriptors(void **state)
{
    const char *root = path_of("descriptors"), *latest;
    struct rlimit before, few;
    int next = dup(0);

    assert_ok(save_small(root, "s1", 1));
    assert_int_equal(0, close(next));
    assert_int_equal(0, getrlimit(RLIMIT_NOFILE, &before));
    for (int n = 0; n < 3; n++) { /* for the folder, a manifest, a file */
        few = (struct rlimit){.rlim_cur = (rlim_t)(next + n), .rlim_max = before.rlim_max};
        assert_int_equal(0, setrlimit(RLIMIT_NOFILE, &few));
        const ms_status status = ms_checkpoint_latest(&latest, root);

        assert_int_equal(0, setrlimit(RLIMIT_NOFILE, &before));
        if (n < 2) {
            assert_int_equal(MS_RUNTIME_ERROR, status);
            assert_non_null(strstr(ms_error_message(), "Too many open files ("));
            assert_non_null(strstr(ms_error_message(), " files may be open: ulimit -n)"));
            assert_non_null(strstr(ms_error_message(), n == 0 ? root : inside(root, "")));
        } else {
            assert_int_equal(MS_OK, status);
            assert_string_equal(inside(root, "s1"), latest);
        }
    }
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

static void test_checkpoint_store__prune_removes_nothing_that_is_not_ours(void **state)
{
    const char *root = path_of("foreign");

    assert_ok(save_small(root, "s1", 1));
    assert_int_equal(0, mkdir(inside(root, "notes"), 0777));
    spill(inside(root, "notes/manifest.json"), "{}", 2); /* looks like ours, is not */
    spill(inside(root, "notes/thesis.txt"), "x", 1);
    assert_int_equal(0, mkdir(inside(root, "x.tmp-short"), 0777));
    spill(inside(root, "metrics.jsonl"), "{}\n", 3);
    ms_warnings_capture(true);
    assert_ok(ms_checkpoint_prune(root, 1));
    ms_warnings_capture(false);
    assert_int_equal(5, count_entries(root, ""));
    assert_int_equal(2, count_entries(inside(root, "notes"), ""));
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

/* What cannot be removed is a warning; the rest is done all the same. */
static int refuse_the_first_rename(const char *step, const char *path)
{
    static bool refused;
    const bool refuse = !refused && strcmp(step, "rename") == 0;

    refused |= refuse;
    return refuse ? EACCES : 0;
}

static void test_checkpoint_store__prune_warns_and_goes_on(void **state)
{
    const char *root = path_of("stubborn"), *kind, *message;

    assert_ok(save_small(root, "s1", 1));
    assert_ok(save_small(root, "s2", 2));
    assert_ok(save_small(root, "s3", 3));
    ms_warnings_capture(true);
    msi_io_hook = refuse_the_first_rename;
    assert_ok(ms_checkpoint_prune(root, 1));
    msi_io_hook = NULL;
    assert_true(ms_warning_take(&kind, &message));
    assert_non_null(strstr(message, "an old checkpoint is not removed: "));
    assert_non_null(strstr(message, "Permission denied"));
    assert_int_equal(3, count_entries(root, "")); /* s2, s3, latest */
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

/* At one moment of a save, do what another process might. */
static const char *moment_root;

static int prune_before_latest_moves(const char *step, const char *path)
{
    if (strcmp(step, "rename") == 0 && strcmp(path, inside(moment_root, "latest")) == 0) {
        msi_io_hook = NULL;
        assert_ok(ms_checkpoint_prune(moment_root, 1));
    }
    return 0;
}

static void test_checkpoint_store__prune_spares_the_pointer_on_its_way(void **state)
{
    const char *root = path_of("pointer"), *kind, *message;

    moment_root = root;
    assert_ok(save_small(root, "s9", 9));
    ms_warnings_capture(true);
    msi_io_hook = prune_before_latest_moves;
    assert_ok(save_small(root, "s1", 1)); /* of a lower step, and not yet the latest */
    assert_null(msi_io_hook);
    assert_false(ms_warning_take(&kind, &message));
    ms_warnings_capture(false);
    assert_int_equal(1, seed_in(inside(root, "latest")));
    assert_int_equal(0, count_entries(root, ".tmp-"));
}

static int prune_and_fail_once_replaced(const char *step, const char *path)
{
    if (strcmp(step, "fsync") == 0 && strcmp(path, moment_root) == 0) {
        msi_io_hook = NULL;
        assert_ok(ms_checkpoint_prune(moment_root, 1));
        return EIO;
    }
    return 0;
}

static void test_checkpoint_store__prune_spares_what_may_have_to_come_back(void **state)
{
    const char *root = path_of("back");

    moment_root = root;
    assert_ok(save_small(root, "s", 1));
    msi_io_hook = prune_and_fail_once_replaced;
    assert_fails(MS_IO_ERROR, "sync", save_small(root, "s", 2));
    assert_null(msi_io_hook);
    assert_int_equal(1, seed_in(inside(root, "s")));
    assert_int_equal(2, count_entries(root, "")); /* s, latest */
}

enum { N_SAVES = 200 };

/* Another process prunes all the time. Names are replaced and steps go up and down, so that it
 * finds every kind of thing to remove. */
static void test_checkpoint_store__prune_harms_no_writer_of_another_process(void **state)
{
    const char *root = path_of("together"), *kind, *message;
    const pid_t pruner = fork();

    if (pruner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        for (;;) {
            if (ms_checkpoint_prune(root, 1) != MS_OK) {
                _exit(1);
            }
        }
    }
    ms_warnings_capture(true);
    for (uint64_t s = 1; s <= N_SAVES; s++) {
        const char *name = s % 4 == 0 ? "b" : s % 4 == 2 ? "c" : "a";
        const uint64_t step = s % 8 < 4 ? s : 2 * N_SAVES - s;

        assert_ok(save_small(root, name, step));
        if (ms_warning_take(&kind, &message)) {
            fail_msg("save %d warns: %s", (int)s, message);
        }
        assert_int_equal(step, seed_in(inside(root, "latest")));
    }
    ms_warnings_capture(false);
    assert_int_equal(0, kill(pruner, SIGKILL));
    assert_true(was_killed(pruner));
    assert_ok(ms_checkpoint_prune(root, 1));
    assert_int_equal(0, count_entries(root, ".tmp-"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_store__latest_is_what_was_saved_last_then_goes_by_step),
        cmocka_unit_test(test_checkpoint_store__latest_skips_broken_ones_and_says_so),
        cmocka_unit_test(test_checkpoint_store__latest_goes_by_content),
        cmocka_unit_test(test_checkpoint_store__latest_fails_when_all_are_broken),
        cmocka_unit_test(test_checkpoint_store__latest_takes_nothing_else_for_a_checkpoint),
        cmocka_unit_test(test_checkpoint_store__latest_says_when_what_was_saved_last_is_lost),
        cmocka_unit_test(test_checkpoint_store__latest_leads_to_a_folder_however_it_is_spelt),
        cmocka_unit_test(test_checkpoint_store__latest_leads_out_of_no_folder),
        cmocka_unit_test(test_checkpoint_store__a_link_to_nothing_is_no_empty_root),
        cmocka_unit_test(test_checkpoint_store__a_root_that_cannot_be_looked_at_is_not_made),
        cmocka_unit_test(test_checkpoint_store__a_folder_called_latest_is_no_checkpoint),
        cmocka_unit_test(
            test_checkpoint_store__latest_blames_no_checkpoint_for_want_of_descriptors),
        cmocka_unit_test(test_checkpoint_store__prune_keeps_the_newest),
        cmocka_unit_test(test_checkpoint_store__prune_keeps_what_was_saved_last),
        cmocka_unit_test(test_checkpoint_store__prune_removes_nothing_that_is_not_ours),
        cmocka_unit_test(test_checkpoint_store__prune_takes_only_our_files_from_a_folder),
        cmocka_unit_test(test_checkpoint_store__prune_warns_and_goes_on),
        cmocka_unit_test(test_checkpoint_store__prune_spares_writers_at_work),
        cmocka_unit_test(test_checkpoint_store__prune_spares_the_pointer_on_its_way),
        cmocka_unit_test(test_checkpoint_store__prune_spares_what_may_have_to_come_back),
        cmocka_unit_test(test_checkpoint_store__prune_harms_no_writer_of_another_process),
    };

    return cmocka_run_group_tests_name("checkpoint/store", tests, NULL, NULL);
}
