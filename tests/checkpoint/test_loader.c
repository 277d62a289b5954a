/* runtime/checkpoint/loader.c: ranks load one checkpoint together, all of it or nothing. */
#include "ckpt_test.h"

#include <sched.h>

enum { WORLD = 2, NUMEL = 33 };

/* What each rank sees of the file system, what it asks for, and what came of it. */
typedef struct scene {
    const char *root[WORLD];
    bool apart;  /* each rank has its root as working folder: one path, two places */
    bool latest; /* else s2 */
    void (*prepare)(const struct scene *s, int32_t rank); /* before the ranks meet */
    void (*act)(ms_checkpoint_loader *l, int32_t rank);
    ms_status status[WORLD];
    int64_t step[WORLD]; /* that was loaded; 0: none was there */
    bool changed[WORLD];
    int64_t versions[WORLD]; /* that the tensor has gone through */
    char message[WORLD][1000];
    int n_warnings[WORLD];
    char warning[400]; /* the last one */
} scene;

static ms_status add_all(ms_checkpoint_loader *l, ms_tensor *t)
{
    ms_param_extent e = extent_of(MS_DTYPE_F32, NUMEL);

    return ms_checkpoint_load_add(l, "model/a", &e, t);
}

static ms_status load(scene *s, ms_comm *world, int32_t rank, ms_tensor *t)
{
    char path[300];
    ms_checkpoint_loader *l;
    int step = 0;

    const char *root = s->apart ? "." : s->root[rank];

    if (s->apart) {
        assert_int_equal(0, unshare(CLONE_FS));
        assert_int_equal(0, chdir(s->root[rank]));
    }
    if (s->prepare != NULL) {
        s->prepare(s, rank);
    }
    snprintf(path, sizeof(path), "%s/s2", root);
    MS_TRY(s->latest ? ms_checkpoint_load_latest(&l, world, root)
                     : ms_checkpoint_load_begin(&l, world, path));
    if (l == NULL) {
        return MS_OK;
    }
    sscanf(ms_checkpoint_meta(ms_checkpoint_load_source(l)), "{\"step\":%d", &step);
    ms_status status = add_all(l, t);

    if (status != MS_OK) {
        ms_checkpoint_load_fail(l, status, ms_error_message());
    }
    if (s->act != NULL) {
        s->act(l, rank);
    }
    MS_TRY(ms_checkpoint_load_commit(l));
    s->step[rank] = step;
    return MS_OK;
}

static int64_t version_of(const ms_tensor *t)
{
    ms_tensor_info info;

    assert_ok(ms_tensor_describe(t, &info));
    return info.version;
}

static ms_status play(void *user, int32_t rank)
{
    scene *s = user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, 999, 0, NUMEL);
    ms_tensor *before = bits_tensor(MS_DTYPE_F32, 999, 0, NUMEL);

    const char *kind, *message;

    s->step[rank] = 0;
    s->n_warnings[rank] = 0;
    ms_warnings_capture(true);
    s->status[rank] = load(s, world, rank, t);
    snprintf(s->message[rank], sizeof(s->message[rank]), "%s",
             s->status[rank] != MS_OK ? ms_error_message() : "");
    while (ms_warning_take(&kind, &message)) {
        s->n_warnings[rank]++;
        snprintf(s->warning, sizeof(s->warning), "%s", message);
    }
    ms_warnings_capture(false);
    s->changed[rank] = !same_bytes(t, before);
    s->versions[rank] = version_of(t) - version_of(before);
    ms_tensor_free(t);
    ms_tensor_free(before);
    return MS_OK;
}

/* Both ranks have loaded the checkpoint of `step`. */
static void expect_step(scene *s, int64_t step)
{
    assert_ok(ms_dist_threads(WORLD, play, s));
    for (int r = 0; r < WORLD; r++) {
        if (s->status[r] != MS_OK) {
            fail_msg("rank %d: %s", r, s->message[r]);
        }
        assert_int_equal(step, s->step[r]);
        assert_true(s->changed[r] == (step != 0));
        assert_int_equal(step != 0, s->versions[r]);
    }
}

/* Both ranks fail with this, and nothing has changed on either. */
static void expect_failure(scene *s, ms_status kind, const char *text)
{
    assert_ok(ms_dist_threads(WORLD, play, s));
    for (int r = 0; r < WORLD; r++) {
        assert_int_equal(kind, s->status[r]);
        assert_non_null(strstr(s->message[r], text));
        assert_string_equal(s->message[0], s->message[r]);
        assert_false(s->changed[r]);
        assert_int_equal(0, s->versions[r]);
    }
}

static void save_two(const char *root)
{
    assert_ok(save_small(root, "s1", 1));
    assert_ok(save_small(root, "s2", 2));
}

static void damage(const char *folder)
{
    const char *path = inside(folder, "rank-00000-of-00001.safetensors");
    size_t n;
    char *bytes = slurp(path, &n);

    bytes[n / 2] ^= 1;
    spill(path, bytes, n);
    free(bytes);
}

static void test_checkpoint_loader__takes_the_newest_that_is_intact(void **state)
{
    const char *root = path_of("newest");
    scene s = {.root = {root, root}, .latest = true};

    expect_step(&s, 0); /* no such folder */
    save_two(root);
    expect_step(&s, 20);
    damage(inside(root, "s2")); /* sizes are right */
    expect_step(&s, 10);
    assert_int_equal(1, s.n_warnings[0]);
    assert_int_equal(0, s.n_warnings[1]);
    assert_non_null(strstr(s.warning, "passed over: rank 0: "));
    assert_non_null(strstr(s.warning, "its bytes have hash"));
    damage(inside(root, "s1"));
    expect_failure(&s, MS_FORMAT_ERROR, "newest holds 2 checkpoints, none of them intact: ");
    assert_int_equal(2, s.n_warnings[0]);
    assert_non_null(strstr(s.message[0], "s1/rank-00000-of-00001.safetensors: its bytes have"));
    assert_non_null(strstr(s.message[0], "s2/rank-00000-of-00001.safetensors: its bytes have"));
    s.latest = false;
    expect_failure(&s, MS_FORMAT_ERROR, "rank 0: ");
}

/* The same bytes in two places are two checkpoints; and none in one of them is none for all. */
static void test_checkpoint_loader__refuses_two_paths(void **state)
{
    const char *here = path_of("one"), *there = path_of("two");
    scene s = {.root = {here, there}};

    save_two(here);
    assert_int_equal(0, symlink(here, there));
    expect_failure(&s, MS_VALUE_ERROR, "two/s2' with step 20");
    assert_non_null(strstr(s.message[0], "one/s2' with step 20"));
    s.latest = true;
    expect_failure(&s, MS_VALUE_ERROR, "rank 1 looks for checkpoints in '");
    assert_non_null(strstr(s.message[0], "/two', rank 0 '"));
    s.root[0] = path_of("no-such-folder");
    expect_failure(&s, MS_VALUE_ERROR, "rank 1 looks for checkpoints in '");
}

static void want_another_shape(ms_checkpoint_loader *l, int32_t rank)
{
    ms_param_extent e = extent_of(MS_DTYPE_I64, 4);
    const ms_status status = rank == 1 ? ms_checkpoint_load_add(l, "model/b", &e, NULL) : MS_OK;

    if (status != MS_OK) { /* checked also where this rank holds nothing */
        ms_checkpoint_load_fail(l, status, ms_error_message());
    }
}

static void want_another_key(ms_checkpoint_loader *l, int32_t rank)
{
    ms_param_extent e = extent_of(MS_DTYPE_I64, 4);

    assert_int_equal(MS_KEY_ERROR, ms_checkpoint_load_add(l, "model/c", &e, NULL));
    ms_checkpoint_load_fail(l, MS_KEY_ERROR, "of its own");
    ms_checkpoint_load_fail(l, MS_VALUE_ERROR, "the first one counts");
}

static void test_checkpoint_loader__fails_on_all_ranks_when_one_does(void **state)
{
    const char *root = path_of("one-fails");
    scene s = {.root = {root, root}, .act = want_another_shape};

    save_two(root);
    expect_failure(&s, MS_VALUE_ERROR, "'model/b' is i64 of shape (3), expected i64 of shape (4)");
    assert_int_equal(0, strncmp("rank 1: ", s.message[0], 8));
    s.act = want_another_key;
    expect_failure(&s, MS_KEY_ERROR, "rank 0: of its own");
    s.act = NULL;
    expect_step(&s, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_loader__takes_the_newest_that_is_intact),
        cmocka_unit_test(test_checkpoint_loader__refuses_two_paths),
        cmocka_unit_test(test_checkpoint_loader__fails_on_all_ranks_when_one_does),
    };

    return cmocka_run_group_tests_name("checkpoint/loader", tests, NULL, NULL);
}
