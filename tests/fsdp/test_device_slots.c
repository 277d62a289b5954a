/* runtime/fsdp/exchange on a device that runs things later (tests/fakedevice): steps that never
 * wait on the host have the CPU's bits, in both layouts of slots; memory, and ranks that fail.
 * MS_DEVICE_SEEDS=1000 orders from MS_DEVICE_SEED on (default: 12 from 1). */
#include "chain/chain.h"

/* train_on() with ranks that are processes; `c` in memory that they share. */
static void train_apart(chain *c, int32_t seed, const char *layout)
{
    const char *cause;

    set_device(seed, layout);
    c->hash = 0;
    if (run_processes(c->world, run_chain, c, &cause) != 0) {
        fail_msg("W=%d, layout %s, seed %d: %s", (int)c->world, layout, (int)seed, cause);
    }
    set_device(0, NULL);
}

static chain *shared_chain(const chain *c)
{
    chain *p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(p != MAP_FAILED);
    *p = *c;
    return p;
}

static void test_fsdp_device_slots__no_order_of_streams_changes_a_bit(void **state)
{
    const int32_t n = (int32_t)msi_switch_int("MS_DEVICE_SEEDS", SANITIZED ? 4 : 12);
    const int32_t first = (int32_t)(msi_switch_int("MS_DEVICE_SEED", 1) % (1 << 30));

    for (int32_t world = 1; world <= 5; world++) {
        for (int32_t strategy = MS_FSDP_FULL_SHARD; strategy <= MS_FSDP_NO_SHARD; strategy++) {
            chain cpu = {.strategy = strategy, .world = world}, c = cpu;

            assert_ok(train_on(&cpu, 0, "shared"));
            for (int32_t k = 0; k < n; k++) {
                assert_ok(train_on(&c, first + k, layouts[k % 2]));
                if (c.hash != cpu.hash) {
                    fail_msg("W=%d, strategy %d, layout %s, seed %d: %llx, on the CPU %llx",
                             (int)world, (int)strategy, layouts[k % 2], (int)(first + k),
                             (unsigned long long)c.hash, (unsigned long long)cpu.hash);
                }
            }
        }
    }
}

static void test_fsdp_device_slots__processes_share_what_threads_do(void **state)
{
    if (!CAN_FORK) {
        skip();
    }
    for (int32_t world = 1; world <= 5; world++) {
        for (int32_t i = 0; i < 2 * 3; i++) {
            chain cpu = {.strategy = i % 3, .world = world, .nests = world == 3};
            chain *c = shared_chain(&cpu);

            assert_ok(train_on(&cpu, 0, "shared"));
            train_apart(c, 1 + i, layouts[i / 3]);
            assert_true(c->hash == cpu.hash);
            assert_true(!c->nests || i % 3 != MS_FSDP_FULL_SHARD || c->n_slots == UNITS);
            munmap(c, sizeof(*c));
        }
    }
}

/* -- memory ------------------------------------------------------------------------------------ */

enum { N_NESTED = 3, NARROW = 12 };

/* Units one after the other, or each inside the one before: more than the ring was made for. */
static ms_status stack(ms_fsdp_tree *tree, ms_fsdp_unit *const *units, ms_tensor *const *weights,
                       bool nested, double *mean)
{
    const int64_t shape[2] = {3, NARROW};
    ms_tensor *x, *m;

    MS_TRY(ms_tensor_full(&x, MS_DTYPE_F32, 2, shape, 1));
    MS_TRY(ms_fsdp_tree_pre_forward(tree));
    for (int32_t i = 0; i < N_NESTED; i++) {
        MS_TRY(ms_fsdp_unit_pre_forward(units[i]));
        MS_TRY(ms_op_linear(&x, x, weights[i], NULL));
        MS_TRY(nested ? MS_OK : ms_fsdp_unit_post_forward(units[i], &x, 1));
    }
    for (int32_t i = N_NESTED - 1; i >= 0 && nested; i--) {
        MS_TRY(ms_fsdp_unit_post_forward(units[i], &x, 1));
    }
    MS_TRY(ms_fsdp_tree_post_forward(tree));
    MS_TRY(ms_op_mean(&m, x, 3, false));
    return ms_tensor_item(m, mean);
}

/* What the heap hands to a slot may still be computed with. */
static ms_status nest_after_others_used_memory(void *user, int32_t rank)
{
    const int64_t shape[2] = {NARROW, NARROW}, some[1] = {1024};
    ms_fsdp_unit *units[N_NESTED];
    ms_tensor *weights[N_NESTED], *gone[8];
    ms_fsdp_tree_options o;
    ms_fsdp_tree *tree;
    ms_comm *world;
    double flat, nested;

    MS_TRY(ms_comm_world(&world));
    ms_seed(3);
    ms_grad_enabled_set(false);
    for (int32_t i = 0; i < N_NESTED; i++) {
        const char *name = "w";

        MS_TRY(ms_tensor_parameter(&weights[i], MS_DTYPE_F32, 2, shape, MS_INIT_UNIFORM, -1, 1));
        MS_TRY(ms_fsdp_unit_new(&units[i], world, name, NULL, &weights[i], 1, &name));
    }
    ms_fsdp_tree_options_init(&o, sizeof(o));
    o.n_slots = 1;
    o.backward_prefetch = MS_FSDP_PREFETCH_NONE;
    MS_TRY(ms_fsdp_tree_new(&tree, world, &o, units, N_NESTED, false));
    MS_TRY(ms_scope_open("forwards"));
    MS_TRY(stack(tree, units, weights, false, &flat));
    for (int32_t i = 0; i < MSI_COUNT(gone); i++) {
        MS_TRY(ms_tensor_full(&gone[i], MS_DTYPE_F32, 1, some, 7));
    }
    for (int32_t i = 0; i < MSI_COUNT(gone); i++) {
        ms_tensor_free(gone[i]);
    }
    MS_TRY(stack(tree, units, weights, true, &nested));
    (void)ms_scope_close(NULL, 0);
    ms_fsdp_tree_free(tree);
    EXPECT(nested == flat);
    return MS_OK;
}

static void test_fsdp_device_slots__a_ring_grows_into_memory_that_was_used(void **state)
{
    for (int32_t seed = 0; seed <= (SANITIZED ? 20 : 60); seed++) {
        for (int32_t i = 0; i < 2; i++) {
            set_device(seed, layouts[i]);
            assert_ok(ms_dist_threads(2, nest_after_others_used_memory, NULL));
        }
    }
    set_device(0, NULL);
}

/* Models that were made and freed leave nothing open, nothing mapped. */
static ms_status make_models(void *user, int32_t rank)
{
    const chain *c = user;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(msi_memory_open(msi_context()));
    const held before = held_now();

    for (int32_t i = 0; i < 3; i++) {
        model m = {.tree = NULL};
        chain mine = *c;

        MS_TRY(model_new(&m, c));
        MS_TRY(train(&m, &mine, rank));
        EXPECT(held_now().maps > before.maps);
        model_free(&m);
        EXPECT(holds_no_more(before));
    }
    return MS_OK;
}

static void test_fsdp_device_slots__a_model_that_is_freed_leaves_nothing_mapped(void **state)
{
    const held before = held_now();

    for (int32_t i = 0; i < 4; i++) {
        chain c = {.strategy = MS_FSDP_FULL_SHARD, .world = 3, .nests = i % 2 == 1};
        const char *cause;

        assert_ok(train_on(&c, 1 + i, layouts[i / 2]));
        assert_true(holds_no_more(before));
        set_device(1 + i, layouts[i / 2]);
        if (CAN_FORK && run_processes(3, make_models, &c, &cause) != 0) {
            fail_msg("%s", cause);
        }
        set_device(0, NULL);
    }
}

/* -- a peer that fails ------------------------------------------------------------------------- */

static _Atomic bool rank_0_is_done;

static void wait_for(_Atomic bool *flag)
{
    for (int32_t k = 0; k < SOON_S * 1000 && !atomic_load(flag); k++) {
        usleep(1000);
    }
}

/* Rank 1 has promised its extents, fails, and does not come back to its device. For rank 0, which
 * has enqueued all of the step, the wait for the result ends with an error. */
static ms_status lose_rank_1(model *m, const chain *c, int32_t rank)
{
    ms_tensor *mean;
    double value;

    for (int32_t t = 0; t < STEPS; t++) {
        MS_TRY(forward(m, c, 0.5, &mean));
    }
    if (rank == 1) {
        ms_dist_abort(MS_RUNTIME_ERROR, "a mistake of its own");
        wait_for(&rank_0_is_done);
        EXPECT(atomic_load(&rank_0_is_done));
        return MS_OK;
    }
    const ms_status status = ms_tensor_item(mean, &value);

    atomic_store(&rank_0_is_done, true);
    EXPECT(status == MS_OK || status == MS_COMM_ERROR); /* ok: all had run */
    EXPECT(status == MS_OK || strstr(ms_error_message(), "a mistake of its own") != NULL);
    return MS_OK;
}

static ms_status run_and_lose(void *user, int32_t rank)
{
    model m = {.tree = NULL};
    ms_status status = model_new(&m, user);

    ms_grad_enabled_set(false);
    if (status == MS_OK && (status = ms_scope_open("forwards")) == MS_OK) {
        status = lose_rank_1(&m, user, rank);
        (void)ms_scope_close(NULL, 0);
    }
    model_free(&m);
    return status == MS_COMM_ERROR ? MS_OK : status; /* told before it had enqueued all */
}

static void test_fsdp_device_slots__a_peer_that_fails_ends_the_wait_for_a_device(void **state)
{
    for (int32_t seed = 1; seed <= 40; seed++) {
        chain c = {.strategy = MS_FSDP_FULL_SHARD, .world = 2};

        atomic_store(&rank_0_is_done, false);
        set_device(seed, layouts[seed % 2]);
        const ms_status status = ms_dist_threads(2, run_and_lose, &c);

        set_device(0, NULL);
        if (status != MS_OK && strstr(ms_error_message(), "a mistake of its own") == NULL) {
            fail_msg("%s", ms_error_message());
        }
    }
}

/* -- a rank whose data are wrong --------------------------------------------------------------- */

/* Rank 0's device finds an index outside its table when both ranks have gone on; rank 0 catches
 * that. Nobody's next step succeeds. */
static ms_status go_on_after_a_fault(model *m, const chain *c, int32_t rank)
{
    const int64_t shape[2] = {4, 2}, one = 1;
    const double bad = 99;
    ms_tensor *mean, *table, *id, *row, *sum;
    double value;

    MS_TRY(forward(m, c, 0.5, &mean));
    MS_TRY(ms_tensor_full(&table, MS_DTYPE_F32, 2, shape, 1));
    MS_TRY(ms_tensor_from_doubles(&id, MS_DTYPE_I64, 1, &one, &bad, 1));
    if (rank == 0) {
        MS_TRY(ms_op_embedding(&row, table, id));
        MS_TRY(ms_op_mean(&sum, row, 3, false));
        EXPECT(ms_tensor_item(sum, &value) == MS_INDEX_ERROR);
    }
    EXPECT(forward(m, c, 0.5, &mean) == MS_COMM_ERROR);
    EXPECT(strstr(ms_error_message(), "embedding: id 99") != NULL);
    return MS_OK;
}

static ms_status run_with_a_fault(void *user, int32_t rank)
{
    model m = {.tree = NULL};
    ms_status status = model_new(&m, user);

    ms_grad_enabled_set(false);
    if (status == MS_OK && (status = ms_scope_open("forwards")) == MS_OK) {
        status = go_on_after_a_fault(&m, user, rank);
        (void)ms_scope_close(NULL, 0);
    }
    model_free(&m);
    return status;
}

static void test_fsdp_device_slots__peers_learn_what_one_ranks_device_finds(void **state)
{
    for (int32_t seed = 1; seed <= 8; seed++) {
        chain c = {.strategy = MS_FSDP_FULL_SHARD, .world = 2};

        set_device(seed, layouts[seed % 2]);
        const ms_status status = ms_dist_threads(2, run_with_a_fault, &c);

        set_device(0, NULL);
        assert_int_equal(status, MS_COMM_ERROR); /* the job's */
        assert_non_null(strstr(ms_error_message(), "embedding: id 99"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_device_slots__no_order_of_streams_changes_a_bit),
        cmocka_unit_test(test_fsdp_device_slots__processes_share_what_threads_do),
        cmocka_unit_test(test_fsdp_device_slots__a_ring_grows_into_memory_that_was_used),
        cmocka_unit_test(test_fsdp_device_slots__a_model_that_is_freed_leaves_nothing_mapped),
        cmocka_unit_test(test_fsdp_device_slots__peers_learn_what_one_ranks_device_finds),
        cmocka_unit_test(test_fsdp_device_slots__a_peer_that_fails_ends_the_wait_for_a_device),
    };

    if (!has_fake()) {
        print_message("skipped: no libmoonshard_fake.so\n");
        return 0;
    }
    return cmocka_run_group_tests_name("fsdp device slots", tests, NULL, NULL);
}
