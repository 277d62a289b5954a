/* runtime/checkpoint: groups of one job, each with checkpoints of its own. */
#include "ckpt_test.h"

static int n_refused(const ms_status *status, const char (*message)[400])
{
    int n = 0;

    for (int r = 0; r < 4; r++) {
        if (status[r] != MS_OK) {
            assert_int_equal(MS_VALUE_ERROR, status[r]);
            assert_non_null(strstr(message[r], "another group of this job, whose least rank is "));
            n++;
        }
    }
    return n;
}

/* Four ranks in two pairs write `<root>/<name>`, and what came of it. */
typedef struct scene {
    const char *root;
    const char *name[2]; /* by pair */
    ms_status status[4];
    char message[4][400];
} scene;

static ms_status write_half(ms_checkpoint_writer *w, int32_t place, int32_t color)
{
    ms_param_extent e = extent_of(MS_DTYPE_F32, 12);
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, (uint64_t)color, 6 * place, 6);

    e.start = 6 * place;
    e.numel = 6;
    const ms_status status = ms_checkpoint_add(w, "key", &e, t);

    ms_tensor_free(t);
    return status;
}

static ms_status save_in_pairs(void *user, int32_t rank)
{
    const int32_t color = rank % 2;
    scene *s = user;
    ms_comm *world, *pair;
    ms_checkpoint_writer *w = NULL;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_split(&pair, world, color, 0));
    s->status[rank] = ms_checkpoint_begin(&w, pair, s->root, s->name[color]);
    snprintf(s->message[rank], sizeof(s->message[rank]), "%s", ms_error_message());
    MS_TRY(ms_comm_barrier(world)); /* both write at once */
    if (s->status[rank] == MS_OK) {
        MS_TRY(write_half(w, ms_comm_rank(pair), color));
        s->status[rank] = ms_checkpoint_commit(w, "{\"step\": 1}");
    }
    ms_comm_free(pair);
    return MS_OK;
}

static bool holds(const char *path, uint64_t seed)
{
    ms_tensor *expected = bits_tensor(MS_DTYPE_F32, seed, 0, 12);
    ms_tensor *seen = bits_tensor(MS_DTYPE_F32, 999, 0, 12);
    ms_param_extent e = extent_of(MS_DTYPE_F32, 12);
    ms_checkpoint *c;

    assert_ok(ms_checkpoint_open(&c, path));
    assert_ok(ms_checkpoint_read(c, "key", &e, seen));
    const bool same = same_bytes(expected, seen);

    ms_checkpoint_close(c);
    ms_tensor_free(seen);
    ms_tensor_free(expected);
    return same;
}

static void test_checkpoint_groups__save_side_by_side(void **state)
{
    scene s = {.root = path_of("side"), .name = {"even", "odd"}};

    assert_ok(ms_dist_threads(4, save_in_pairs, &s));
    assert_int_equal(0, n_refused(s.status, s.message));
    assert_true(holds(inside(s.root, "even"), 0));
    assert_true(holds(inside(s.root, "odd"), 1));
}

/* The model of one of them would be gone. */
static void test_checkpoint_groups__do_not_write_one_checkpoint_at_once(void **state)
{
    scene s = {.root = path_of("one"), .name = {"same", "same"}};

    assert_ok(ms_dist_threads(4, save_in_pairs, &s));
    const int refused = n_refused(s.status, s.message);

    assert_true(refused == 2 || refused == 4);
    assert_int_equal(s.status[0], s.status[2]);
    assert_int_equal(s.status[1], s.status[3]);
    assert_int_equal(refused == 4 ? 0 : 2, count_entries(s.root, "")); /* it, and latest */
    if (refused == 2) {
        assert_true(holds(inside(s.root, "same"), s.status[0] == MS_OK ? 0 : 1));
    }
}

/* Nor one after the other; who has saved it does so again, and so does another job. */
static ms_status save_in_turn(void *user, int32_t rank)
{
    ms_checkpoint_writer *w;
    ms_comm *world, *pair;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_split(&pair, world, rank % 2, 0));
    for (int turn = 0; turn < 2; turn++) {
        if (rank % 2 == 0) {
            MS_TRY(ms_checkpoint_begin(&w, pair, user, "same"));
            MS_TRY(write_half(w, ms_comm_rank(pair), 0));
            MS_TRY(ms_checkpoint_commit(w, "{\"step\": 1}"));
        }
        MS_TRY(ms_comm_barrier(world));
    }
    if (rank % 2 != 0) {
        assert_fails(MS_VALUE_ERROR, " has saved checkpoint '",
                     ms_checkpoint_begin(&w, pair, user, "same"));
        assert_non_null(strstr(ms_error_message(), "/same': give this one a path of its own"));
    }
    ms_comm_free(pair);
    return MS_OK;
}

static void test_checkpoint_groups__do_not_replace_what_another_has_saved(void **state)
{
    const char *root = path_of("turn");

    assert_ok(ms_dist_threads(4, save_in_turn, (void *)(uintptr_t)root));
    assert_ok(ms_dist_threads(4, save_in_turn, (void *)(uintptr_t)root));
    assert_true(holds(inside(root, "same"), 0));
}

/* Saves `<root>/step-00000001` in a group. */
static ms_status save_step(ms_comm *comm, const char *root)
{
    const ms_param_extent e = extent_of(MS_DTYPE_F32, 12);
    ms_checkpoint_writer *w;

    MS_TRY(ms_checkpoint_begin(&w, comm, root, ms_checkpoint_step_name(1)));
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, 0, 0, 12);
    const ms_status status = ms_checkpoint_add(w, "key", &e, ms_comm_rank(comm) == 0 ? t : NULL);

    ms_tensor_free(t);
    MS_TRY(status);
    return ms_checkpoint_commit(w, "{\"step\": 1}");
}

/* Resumes the newest step in a group. */
static ms_status resume(ms_comm *comm, const char *root)
{
    ms_checkpoint_loader *l;

    MS_TRY(ms_checkpoint_load_latest_step(&l, comm, root));
    ms_checkpoint_load_discard(l);
    return MS_OK;
}

static ms_status share_steps(void *user, int32_t rank)
{
    static const char refused[] = " has saved checkpoint '";
    ms_comm *world, *pair;
    ms_checkpoint_writer *w;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_split(&pair, world, rank % 2, 0));
    MS_TRY(resume(pair, user)); /* what another job has saved */
    MS_TRY(ms_comm_barrier(world));
    if (rank % 2 == 0) {
        MS_TRY(save_step(pair, user));
        MS_TRY(resume(pair, user));
    }
    MS_TRY(ms_comm_barrier(world));
    if (rank % 2 != 0) {
        ms_checkpoint_loader *l;

        assert_fails(MS_VALUE_ERROR, refused, ms_checkpoint_begin(&w, pair, user, "step-00000002"));
        assert_non_null(strstr(ms_error_message(), "/step-00000001': give this one a root "
                                                   "of its own"));
        assert_fails(MS_VALUE_ERROR, refused, ms_checkpoint_load_latest_step(&l, pair, user));
    }
    MS_TRY(ms_comm_barrier(world));
    /* nor is it that of all ranks, whose least is the same */
    assert_fails(MS_VALUE_ERROR, "give this one a root",
                 ms_checkpoint_begin(&w, world, user, "step-00000002"));
    ms_comm_free(pair);
    return MS_OK;
}

static ms_status save_by_all(void *user, int32_t rank)
{
    ms_comm *world;

    (void)rank;
    MS_TRY(ms_comm_world(&world));
    return save_step(world, user);
}

static void test_checkpoint_groups__do_not_share_the_steps_of_one_root(void **state)
{
    void *root = (void *)(uintptr_t)path_of("shared");

    assert_ok(ms_dist_threads(4, save_by_all, root));
    assert_ok(ms_dist_threads(4, share_steps, root));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_groups__save_side_by_side),
        cmocka_unit_test(test_checkpoint_groups__do_not_write_one_checkpoint_at_once),
        cmocka_unit_test(test_checkpoint_groups__do_not_replace_what_another_has_saved),
        cmocka_unit_test(test_checkpoint_groups__do_not_share_the_steps_of_one_root),
    };
    return cmocka_run_group_tests_name("checkpoint/groups", tests, NULL, NULL);
}
