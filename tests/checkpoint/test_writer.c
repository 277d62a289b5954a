/* runtime/checkpoint/writer.c and reader.c: what one number of ranks wrote, another reads. */
#include "ckpt_test.h"

#include "layout.h"

#include <errno.h>

static void test_checkpoint_writer__keeps_every_dtype_and_shape(void **state)
{
    const char *root = path_of("dtypes");
    static const int64_t shapes[3][3] = {{2, 3, 5}, {0, 4, 0}, {0, 0, 0}};
    static const int32_t ndims[3] = {3, 2, 0}; /* 30 elements, none, a scalar */
    static const int64_t numels[3] = {30, 0, 1};
    ms_checkpoint_writer *w;
    ms_checkpoint *c;
    ms_comm *self;

    assert_ok(ms_comm_self(&self));
    assert_ok(ms_checkpoint_begin(&w, self, root, "all"));
    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        for (int s = 0; s < 3; s++) {
            ms_param_extent e = {.numel = numels[s], .ndim = ndims[s], .dtype = dtype};
            ms_tensor *t = bits_tensor(dtype, (uint64_t)(dtype * 3 + s), 0, numels[s]);
            char key[32];

            memcpy(e.shape, shapes[s], sizeof(shapes[s]));
            snprintf(key, sizeof(key), "%s/%d", ms_dtype_name(dtype), s);
            assert_ok(ms_checkpoint_add(w, key, &e, t));
            ms_tensor_free(t);
        }
    }
    assert_ok(ms_checkpoint_commit(w, "{\"note\": \"h\\u00e9\", \"lr\": 0.1, \"n\": 12345678901}"));

    assert_ok(ms_checkpoint_open(&c, inside(root, "all")));
    assert_string_equal("{\"note\":\"hé\",\"lr\":0.10000000000000001,\"n\":12345678901}",
                        ms_checkpoint_meta(c));
    assert_int_equal(3 * MS_DTYPE_COUNT, ms_checkpoint_n_keys(c));
    assert_string_equal("f32/0", ms_checkpoint_key(c, 0));
    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        for (int s = 0; s < 3; s++) {
            ms_tensor *expected = bits_tensor(dtype, (uint64_t)(dtype * 3 + s), 0, numels[s]);
            ms_tensor *seen = bits_tensor(dtype, 999, 0, numels[s]);
            ms_param_extent e;
            char key[32];

            snprintf(key, sizeof(key), "%s/%d", ms_dtype_name(dtype), s);
            assert_true(ms_checkpoint_has(c, key));
            assert_ok(ms_checkpoint_extent(c, key, &e));
            assert_int_equal(dtype, e.dtype);
            assert_int_equal(ndims[s], e.ndim);
            assert_int_equal(0, e.start);
            assert_int_equal(numels[s], e.numel);
            assert_memory_equal(shapes[s], e.shape, sizeof(int64_t) * (size_t)ndims[s]);
            assert_ok(ms_checkpoint_read(c, key, &e, seen));
            assert_true(same_bytes(expected, seen));
            ms_tensor_free(expected);
            ms_tensor_free(seen);
        }
    }
    assert_false(ms_checkpoint_has(c, "f32/3"));
    ms_checkpoint_close(c);
}

/* Four parameters laid out flat: some ranks hold several, some a part of one. */
enum { N_PARAMS = 4 };
static const int64_t numels[N_PARAMS] = {7, 1000, 1, 301};

static ms_param_extent piece_extent(const ms_layout *l, int32_t rank, int32_t p)
{
    ms_param_extent e = extent_of(MS_DTYPE_F32, numels[p]);
    ms_layout_piece piece;

    assert_ok(ms_layout_piece_get(l, rank, p, &piece));
    e.start = piece.start;
    e.numel = piece.numel;
    return e;
}

static ms_status write_sharded(void *user, int32_t rank)
{
    ms_checkpoint_writer *w;
    ms_comm *world;
    ms_layout *l;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_layout_flat(&l, numels, N_PARAMS, 4, ms_comm_size(world)));
    MS_TRY(ms_checkpoint_begin(&w, world, user, "sharded"));
    for (int32_t p = 0; p < N_PARAMS; p++) {
        ms_param_extent e = piece_extent(l, rank, p);
        ms_tensor *t = bits_tensor(MS_DTYPE_F32, (uint64_t)p, e.start, e.numel);
        char key[16];

        snprintf(key, sizeof(key), "p%d", p);
        MS_TRY(ms_checkpoint_add(w, key, &e, e.numel > 0 ? t : NULL));
        ms_tensor_free(t);
    }
    ms_layout_free(l);
    return ms_checkpoint_commit(w, "{\"step\": 1}");
}

static void test_checkpoint_writer__what_three_ranks_wrote_any_number_reads(void **state)
{
    const char *root = path_of("reshard");
    ms_checkpoint *c;

    assert_ok(ms_dist_threads(3, write_sharded, (void *)(uintptr_t)root));
    assert_int_equal(4, count_entries(inside(root, "sharded"), "")); /* three files, one manifest */
    assert_ok(ms_checkpoint_open(&c, inside(root, "sharded")));
    for (int32_t world = 1; world <= 5; world++) {
        ms_layout *l;

        assert_ok(ms_layout_flat(&l, numels, N_PARAMS, world == 3 ? 0 : 4, world));
        for (int32_t rank = 0; rank < world; rank++) {
            for (int32_t p = 0; p < N_PARAMS; p++) {
                ms_param_extent e = piece_extent(l, rank, p);
                ms_tensor *expected = bits_tensor(MS_DTYPE_F32, (uint64_t)p, e.start, e.numel);
                ms_tensor *seen = bits_tensor(MS_DTYPE_F32, 999, 0, e.numel);
                char key[16];

                snprintf(key, sizeof(key), "p%d", p);
                assert_ok(ms_checkpoint_read(c, key, &e, seen));
                assert_true(same_bytes(expected, seen));
                ms_tensor_free(expected);
                ms_tensor_free(seen);
            }
        }
        ms_layout_free(l);
    }
    ms_checkpoint_close(c);
}

/* What three ranks do, each by its own rule, and what commit then says on each. */
typedef struct scene {
    const char *root;
    void (*act)(ms_checkpoint_writer *w, int32_t rank);
    ms_status status[3];
    char message[3][300];
} scene;

static ms_status play(void *user, int32_t rank)
{
    scene *s = user;
    ms_checkpoint_writer *w;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_checkpoint_begin(&w, world, s->root, "scene"));
    s->act(w, rank);
    s->status[rank] = ms_checkpoint_commit(w, NULL);
    if (s->status[rank] != MS_OK) {
        snprintf(s->message[rank], sizeof(s->message[rank]), "%s", ms_error_message());
    }
    msi_io_hook = NULL;
    return MS_OK;
}

/* Play a scene that must fail equally on all ranks and leave nothing. */
static void expect_failure(void (*act)(ms_checkpoint_writer *, int32_t), ms_status kind,
                           const char *text)
{
    scene s = {.root = path_of("scene"), .act = act};

    assert_ok(ms_dist_threads(3, play, &s));
    for (int r = 0; r < 3; r++) {
        assert_int_equal(kind, s.status[r]);
        assert_non_null(strstr(s.message[r], text));
        assert_string_equal(s.message[0], s.message[r]);
    }
    assert_int_equal(0, count_entries(s.root, ""));
}

static void add_part(ms_checkpoint_writer *w, const char *key, int64_t start, int64_t numel)
{
    ms_param_extent e = extent_of(MS_DTYPE_F32, 12);
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, 5, start, numel);

    e.start = start;
    e.numel = numel;
    assert_ok(ms_checkpoint_add(w, key, &e, numel > 0 ? t : NULL));
    ms_tensor_free(t);
}

static void add_different_keys(ms_checkpoint_writer *w, int32_t rank)
{
    add_part(w, rank == 2 ? "other" : "key", rank * 4, 4);
}

static void leave_a_hole(ms_checkpoint_writer *w, int32_t rank)
{
    add_part(w, "key", rank * 4, rank == 1 ? 3 : 4);
}

static void add_all_twice(ms_checkpoint_writer *w, int32_t rank)
{
    add_part(w, "key", 0, rank == 1 ? 0 : 12); /* two models, each whole on its rank */
}

static int no_space(const char *step, const char *path)
{
    return strcmp(step, "write") == 0 ? ENOSPC : 0;
}

static void fill_the_disk_of_rank_one(ms_checkpoint_writer *w, int32_t rank)
{
    msi_io_hook = rank == 1 ? no_space : NULL;
    add_part(w, "key", rank * 4, 4);
    add_part(w, "more", rank * 4, 4);
}

static void say_different_things(ms_checkpoint_writer *w, int32_t rank)
{
    add_part(w, "key", rank * 4, 4);
    assert_ok(ms_checkpoint_same(w, "config", "{}"));
    assert_ok(ms_checkpoint_same(w, "the run",
                                 rank == 2 ? "a very long text about it, lr 0.2, and its end"
                                           : "a very long text about it, lr 0.1, and its end"));
}

static void test_checkpoint_writer__all_ranks_fail_when_one_does(void **state)
{
    expect_failure(say_different_things, MS_VALUE_ERROR,
                   "the run is ...text about it, lr 0.1, and its end on rank 0 and ...text about "
                   "it, lr 0.2, and its end on rank 2");
    expect_failure(add_different_keys, MS_VALUE_ERROR,
                   "rank 0: rank 2 added 'other' as tensor 0, rank 0 added 'key'");
    expect_failure(leave_a_hole, MS_VALUE_ERROR, "element 7 of 'key' was added by no rank");
    expect_failure(add_all_twice, MS_VALUE_ERROR, "element 0 of 'key' was added by ranks 0 and 2");
    expect_failure(fill_the_disk_of_rank_one, MS_IO_ERROR, "No space left on device");
}

static void test_checkpoint_writer__replaces_a_checkpoint_of_the_same_name(void **state)
{
    const char *root = path_of("replace");
    char target[64];
    ssize_t n;

    assert_ok(save_small(root, "best", 1));
    assert_ok(load_small(inside(root, "best"), 1));
    assert_ok(save_small(root, "best", 2));
    assert_ok(load_small(inside(root, "best"), 2));
    assert_int_equal(2, count_entries(root, "")); /* best, latest */
    n = readlink(inside(root, "latest"), target, sizeof(target));
    assert_int_equal(4, n);
    assert_memory_equal("best", target, 4);
    assert_ok(load_small(inside(root, "latest"), 2));
}

/* The place of a checkpoint is not for something else that is there. */
static void test_checkpoint_writer__replaces_nothing_but_a_checkpoint(void **state)
{
    const char *root = path_of("target");

    assert_int_equal(0, mkdir(root, 0777));
    spill(inside(root, "file"), "x", 1);
    assert_int_equal(0, mkdir(inside(root, "thesis"), 0777));
    spill(inside(root, "thesis/chapter"), "x", 1);
    assert_int_equal(0, mkdir(inside(root, "empty"), 0777));
    assert_int_equal(0, symlink("empty", inside(root, "link")));
    assert_fails(MS_VALUE_ERROR, "file is no folder, expected nothing there or a checkpoint",
                 save_small(root, "file", 1));
    assert_fails(MS_VALUE_ERROR, "thesis is a folder of something else",
                 save_small(root, "thesis", 1));
    assert_fails(MS_VALUE_ERROR, "link is a symbolic link", save_small(root, "link", 1));
    assert_int_equal(1, count_entries(inside(root, "thesis"), ""));
    assert_int_equal(4, count_entries(root, ""));
    assert_ok(save_small(root, "empty", 1));
    assert_ok(load_small(inside(root, "empty"), 1));
}

/* Four ranks in two pairs write `<root>/<name>` at once. */
typedef struct pairs {
    const char *root, *name[2]; /* by pair */
} pairs;

static ms_status save_in_pairs(void *user, int32_t rank)
{
    const pairs *s = user;
    ms_checkpoint_writer *w;
    ms_comm *world, *pair;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_split(&pair, world, rank % 2, 0));
    MS_TRY(ms_checkpoint_begin(&w, pair, s->root, s->name[rank % 2]));
    MS_TRY(ms_comm_barrier(world));
    const ms_param_extent half = {
        .start = rank / 2 * 6, .numel = 6, .ndim = 1, .shape = {12}, .dtype = MS_DTYPE_F32};
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, (uint64_t)(rank % 2), half.start, 6);
    const ms_status status = ms_checkpoint_add(w, "key", &half, t);

    ms_tensor_free(t);
    MS_TRY(status);
    MS_TRY(ms_checkpoint_commit(w, "{\"step\": 1}"));
    ms_comm_free(pair);
    return MS_OK;
}

static bool holds(const char *path, uint64_t seed)
{
    ms_tensor *expected = bits_tensor(MS_DTYPE_F32, seed, 0, 12);
    ms_tensor *seen = bits_tensor(MS_DTYPE_F32, 999, 0, 12);
    const ms_param_extent e = extent_of(MS_DTYPE_F32, 12);
    ms_checkpoint *c;

    assert_ok(ms_checkpoint_open(&c, path));
    assert_ok(ms_checkpoint_read(c, "key", &e, seen));
    const bool same = same_bytes(expected, seen);

    ms_checkpoint_close(c);
    ms_tensor_free(seen);
    ms_tensor_free(expected);
    return same;
}

/* Of one name the checkpoint of either group is there, as a whole. */
static void test_checkpoint_writer__groups_of_a_job_save_at_once(void **state)
{
    pairs apart = {path_of("apart"), {"even", "odd"}}, one = {path_of("one"), {"same", "same"}};

    (void)state;
    assert_ok(ms_dist_threads(4, save_in_pairs, &apart));
    assert_true(holds(inside(apart.root, "even"), 0));
    assert_true(holds(inside(apart.root, "odd"), 1));
    assert_ok(ms_dist_threads(4, save_in_pairs, &one));
    assert_true(holds(inside(one.root, "same"), 0) != holds(inside(one.root, "same"), 1));
    assert_int_equal(2, count_entries(one.root, "")); /* it, and latest */
}

static void test_checkpoint_writer__begins_another_file_when_a_header_is_full(void **state)
{
    const char *root = path_of("many");
    ms_param_extent e = extent_of(MS_DTYPE_I64, 2);
    ms_checkpoint_writer *w;
    ms_checkpoint *c;
    ms_comm *self;
    char key[300];

    assert_ok(ms_comm_self(&self));
    assert_ok(ms_checkpoint_begin(&w, self, root, "m"));
    for (int i = 0; i < 100; i++) {
        ms_tensor *t = bits_tensor(MS_DTYPE_I64, (uint64_t)i, 0, 2);

        snprintf(key, sizeof(key), "%0200d", i);
        assert_ok(ms_checkpoint_add(w, key, &e, t));
        ms_tensor_free(t);
    }
    assert_ok(ms_checkpoint_commit(w, NULL));
    assert_true(count_entries(inside(root, "m"), "rank-00000") > 1);
    assert_ok(ms_checkpoint_open(&c, inside(root, "m")));
    for (int i = 0; i < 100; i++) {
        ms_tensor *expected = bits_tensor(MS_DTYPE_I64, (uint64_t)i, 0, 2);
        ms_tensor *seen = bits_tensor(MS_DTYPE_I64, 999, 0, 2);

        snprintf(key, sizeof(key), "%0200d", i);
        assert_ok(ms_checkpoint_read(c, key, &e, seen));
        assert_true(same_bytes(expected, seen));
        ms_tensor_free(expected);
        ms_tensor_free(seen);
    }
    ms_checkpoint_close(c);
}

static void test_checkpoint_writer__refuses_what_makes_no_sense(void **state)
{
    static const char *const names[] = {"",     ".",       "..",         ".hidden",
                                        "a/b",  "latest",  "x.tmp-0123", "step-3.old",
                                        "a\nb", "\x1b[2J", "\xff"};
    static const char *const steps_that_are_none[] = {
        "{\"step\": -1}", "{\"step\": 1.5}", "{\"step\": \"1\"}", "{\"step\": 9007199254740993}"};
    const char *root = path_of("refuse");
    ms_param_extent e = extent_of(MS_DTYPE_F32, 4), bad;
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, 1, 0, 4);
    ms_checkpoint_writer *w;
    ms_comm *self;

    assert_ok(ms_comm_self(&self));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_fails(MS_VALUE_ERROR, "cannot name a checkpoint",
                     ms_checkpoint_begin(&w, self, root, names[i]));
        assert_null(w);
    }
    assert_ok(ms_checkpoint_begin(&w, self, root, "s"));
    assert_ok(ms_checkpoint_add(w, "k", &e, t));
    assert_fails(MS_VALUE_ERROR, "'k' is in the checkpoint already",
                 ms_checkpoint_add(w, "k", &e, t));
    assert_fails(MS_VALUE_ERROR, "is no key", ms_checkpoint_add(w, "", &e, t));
    assert_fails(MS_VALUE_ERROR, "'\\xff\\xfe' is no key", ms_checkpoint_add(w, "\xff\xfe", &e, t));
    assert_fails(MS_VALUE_ERROR, "'\\x1b[2J' is no key", ms_checkpoint_add(w, "\x1b[2J", &e, t));
    bad = e;
    bad.start = 1;
    assert_fails(MS_VALUE_ERROR, "elements [1, + 4), expected within 4",
                 ms_checkpoint_add(w, "x", &bad, t));
    bad = e;
    bad.dtype = MS_DTYPE_F64;
    assert_fails(MS_VALUE_ERROR, "expected 4 elements of f64", ms_checkpoint_add(w, "x", &bad, t));
    assert_fails(MS_VALUE_ERROR, "a JSON object", ms_checkpoint_commit(w, "[1, 2"));
    for (size_t i = 0; i < sizeof(steps_that_are_none) / sizeof(steps_that_are_none[0]); i++) {
        assert_ok(ms_checkpoint_begin(&w, self, root, "s"));
        assert_fails(MS_VALUE_ERROR, "'step' of a checkpoint's meta data is no integer from 0",
                     ms_checkpoint_commit(w, steps_that_are_none[i]));
    }
    assert_int_equal(0, count_entries(root, ""));

    assert_ok(ms_checkpoint_begin(&w, self, root, "s"));
    assert_ok(ms_checkpoint_add(w, "k", &e, t));
    ms_checkpoint_discard(w);
    assert_int_equal(0, count_entries(root, ""));
    ms_tensor_free(t);
}

static void test_checkpoint_writer__reads_only_what_fits(void **state)
{
    const char *root = path_of("fit");
    ms_param_extent e = extent_of(MS_DTYPE_F32, 33);
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, 9, 0, 33);
    ms_checkpoint *c;

    assert_ok(save_small(root, "s", 1));
    assert_ok(ms_checkpoint_open(&c, inside(root, "s")));
    assert_fails(MS_KEY_ERROR, "has no tensor 'model/c'", ms_checkpoint_read(c, "model/c", &e, t));
    e.shape[0] = 34;
    assert_fails(MS_VALUE_ERROR, "is f32 of shape (33), expected f32 of shape (34)",
                 ms_checkpoint_read(c, "model/a", &e, t));
    e = extent_of(MS_DTYPE_F64, 33);
    assert_fails(MS_VALUE_ERROR, "is f32 of shape (33), expected f64 of shape (33)",
                 ms_checkpoint_read(c, "model/a", &e, t));
    e = extent_of(MS_DTYPE_F32, 33);
    e.numel = 3;
    assert_fails(MS_VALUE_ERROR, "expected 3 elements", ms_checkpoint_read(c, "model/a", &e, t));
    ms_checkpoint_close(c);
    ms_tensor_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_writer__keeps_every_dtype_and_shape),
        cmocka_unit_test(test_checkpoint_writer__what_three_ranks_wrote_any_number_reads),
        cmocka_unit_test(test_checkpoint_writer__all_ranks_fail_when_one_does),
        cmocka_unit_test(test_checkpoint_writer__replaces_a_checkpoint_of_the_same_name),
        cmocka_unit_test(test_checkpoint_writer__replaces_nothing_but_a_checkpoint),
        cmocka_unit_test(test_checkpoint_writer__groups_of_a_job_save_at_once),
        cmocka_unit_test(test_checkpoint_writer__begins_another_file_when_a_header_is_full),
        cmocka_unit_test(test_checkpoint_writer__refuses_what_makes_no_sense),
        cmocka_unit_test(test_checkpoint_writer__reads_only_what_fits),
    };

    return cmocka_run_group_tests_name("checkpoint/writer", tests, NULL, NULL);
}
