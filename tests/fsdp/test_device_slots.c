/* runtime/fsdp/exchange on a device that runs things later (tests/fakedevice): steps that never
 * wait on the host have the CPU's bits, in both layouts of slots; and every order of streams that
 * the exchange asks for is needed: left out, some run comes out otherwise. MS_DEVICE_SEEDS=1000
 * orders from MS_DEVICE_SEED on (default: 100 from 1). */
#include "moonshard/optim.h"
#include "rank_test.h"
#include "schedule.h"

enum { UNITS = 5, SIDE = 12, ROWS = 3, STEPS = 3 };

/* -- a model whose steps read nothing on the host ---------------------------------------------- */

typedef struct chain {
    int32_t strategy, world;
    bool evaluates;     /* forwards alone ... */
    bool writes;        /* ... of one unit, whose values each rank writes between them */
    bool nests;         /* all units are open at once */
    bool adds;          /* each step adds to gradients that were set from outside */
    uint64_t hash;      /* of the trained parameters, or the evaluations' sum, by rank 0 */
    int32_t n_slots;    /* of parameters, at the end */
    int32_t n_segments; /* of all */
    int32_t victim;     /* rank whose device refuses once ... */
    int32_t nth;        /* ... to share, or, from FIRST_ATTACH on, to attach */
    bool refused;
} chain;

typedef struct model {
    ms_tensor *weight[UNITS];
    ms_fsdp_unit *unit[UNITS];
    ms_fsdp_tree *tree;
    ms_optim *optim;
} model;

static int32_t n_units(const chain *c)
{
    return c->writes ? 1 : UNITS;
}

static ms_status model_new(model *m, const chain *c)
{
    const int64_t shape[2] = {SIDE, SIDE};
    ms_fsdp_tree_options to;
    ms_fsdp_unit_options uo;
    ms_optim_options oo;
    ms_comm *comm;

    MS_TRY(ms_comm_world(&comm));
    ms_seed(3);
    ms_fsdp_unit_options_init(&uo, sizeof(uo));
    uo.strategy = c->strategy;
    for (int32_t i = 0; i < n_units(c); i++) {
        const char name[] = {'u', (char)('0' + i), '\0'}, *names = name;

        MS_TRY(
            ms_tensor_parameter(&m->weight[i], MS_DTYPE_F32, 2, shape, MS_INIT_UNIFORM, -0.6, 0.6));
        MS_TRY(ms_fsdp_unit_new(&m->unit[i], comm, name, &uo, &m->weight[i], 1, &names));
    }
    ms_fsdp_tree_options_init(&to, sizeof(to));
    to.forward_prefetch = true;
    to.n_slots = 2;
    MS_TRY(ms_fsdp_tree_new(&m->tree, comm, &to, m->unit, n_units(c), false));
    MS_TRY(ms_optim_options_init(&oo, sizeof(oo), MS_OPTIM_SGD));
    oo.lr = 0.5;
    oo.momentum = 0.9;
    MS_TRY(ms_optim_new(&m->optim, MS_OPTIM_SGD));
    return ms_optim_add_group(m->optim, m->weight, n_units(c), &oo, NULL);
}

static void model_free(model *m)
{
    ms_optim_free(m->optim);
    ms_fsdp_tree_free(m->tree);
    for (int32_t i = 0; i < UNITS; i++) {
        ms_tensor_free(m->weight[i]);
    }
}

static ms_status forward(model *m, const chain *c, double x0, ms_tensor **mean)
{
    const int64_t shape[2] = {ROWS, SIDE};
    ms_tensor *x;

    MS_TRY(ms_tensor_full(&x, MS_DTYPE_F32, 2, shape, x0));
    MS_TRY(ms_fsdp_tree_pre_forward(m->tree));
    for (int32_t i = 0; c->nests && i < n_units(c); i++) {
        MS_TRY(ms_fsdp_unit_pre_forward(m->unit[i]));
    }
    for (int32_t i = 0; i < n_units(c); i++) {
        MS_TRY(c->nests ? MS_OK : ms_fsdp_unit_pre_forward(m->unit[i]));
        MS_TRY(ms_op_linear(&x, x, m->weight[i], NULL));
        MS_TRY(c->nests ? MS_OK : ms_fsdp_unit_post_forward(m->unit[i], &x, 1));
    }
    for (int32_t i = n_units(c) - 1; c->nests && i >= 0; i--) {
        MS_TRY(ms_fsdp_unit_post_forward(m->unit[i], &x, 1));
    }
    MS_TRY(ms_fsdp_tree_post_forward(m->tree));
    MS_TRY(ms_op_mul(&x, x, x));
    return ms_op_mean(mean, x, 3, false);
}

static ms_status set_gradients(model *m, const chain *c, double value)
{
    const int64_t whole[2] = {SIDE, SIDE};
    ms_param_extent extent;
    ms_tensor *shard, *grad;

    for (int32_t i = 0; i < UNITS; i++) {
        MS_TRY(ms_param_local(&shard, m->weight[i], &extent));
        MS_TRY(c->strategy == MS_FSDP_NO_SHARD
                   ? ms_tensor_full(&grad, MS_DTYPE_F32, 2, whole, value)
                   : ms_tensor_full(&grad, MS_DTYPE_F32, 1, &extent.numel, value));
        MS_TRY(ms_tensor_set_grad(m->weight[i], grad));
    }
    return MS_OK;
}

static ms_status step(model *m, const chain *c, double x0)
{
    ms_tensor *loss;

    MS_TRY(c->adds ? set_gradients(m, c, 0.25) : MS_OK);
    MS_TRY(forward(m, c, x0, &loss));
    MS_TRY(ms_backward(loss, NULL));
    return ms_optim_step(m->optim);
}

static ms_status train(model *m, chain *c, int32_t rank)
{
    uint64_t hash;

    for (int32_t t = 0; t < STEPS; t++) {
        MS_TRY(ms_scope_open("step"));
        const ms_status status = step(m, c, 0.5 + 0.25 * rank + 0.125 * t);

        (void)ms_scope_close(NULL, 0);
        MS_TRY(status);
        MS_TRY(ms_optim_zero_grad(m->optim));
    }
    MS_TRY(ms_fsdp_tree_hash(m->tree, m->weight, n_units(c), &hash));
    if (rank == 0) {
        c->hash = hash;
        c->n_slots = m->tree->run.params.n_slots;
        c->n_segments = m->tree->run.params.n_segments + m->tree->run.gradients.n_segments;
    }
    return MS_OK;
}

/* This rank's shard, with nobody else. */
static ms_status write_shard(ms_tensor *weight, double value)
{
    ms_param_extent extent;
    ms_tensor *shard;

    MS_TRY(ms_param_local(&shard, weight, &extent));
    ms_status status = ms_tensor_fill(shard, value);

    ms_tensor_free(shard);
    return status == MS_OK ? ms_param_touch(weight) : status;
}

static ms_status sum_evaluations(model *m, const chain *c, int32_t rank, double *sum)
{
    ms_tensor *mean, *all;

    MS_TRY(ms_tensor_full(&all, MS_DTYPE_F32, 0, NULL, 0));
    for (int32_t t = 0; t < 2 * STEPS; t++) {
        MS_TRY(forward(m, c, 0.5 + 0.125 * t, &mean));
        MS_TRY(ms_op_add(&all, all, mean));
        MS_TRY(c->writes ? write_shard(m->weight[0], 0.25 * (t + 1) + rank) : MS_OK);
    }
    return ms_tensor_item(all, sum);
}

static ms_status evaluate(model *m, chain *c, int32_t rank)
{
    double sum = 0;

    ms_grad_enabled_set(false);
    MS_TRY(ms_scope_open("evaluations"));
    const ms_status status = sum_evaluations(m, c, rank, &sum);

    (void)ms_scope_close(NULL, 0);
    if (rank == 0) {
        c->hash = ms_hash_bytes(&sum, sizeof(sum));
    }
    return status;
}

static ms_status run(void *user, int32_t rank)
{
    model m = {.tree = NULL};
    chain *c = user;
    ms_status status = model_new(&m, c);

    status = status != MS_OK ? status : (c->evaluates ? evaluate : train)(&m, c, rank);

    model_free(&m);
    return status;
}

/* -- devices ----------------------------------------------------------------------------------- */

static bool has_fake(void)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/libmoonshard_fake.so", msi_switch_text("MS_PLUGIN_DIR", "."));
    return access(path, R_OK) == 0;
}

static void set(const char *name, const char *value)
{
    assert_int_equal(value != NULL ? setenv(name, value, true) : unsetenv(name), 0);
}

/* Contexts to come compute on a device in the order drawn by `seed`; 0: on the CPU. Two of eight
 * seeds in a row are drawn uniformly, an even and an odd one: layouts take turns, so both are. */
static void set_device(int32_t seed, const char *layout)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", (int)seed);
    set("MS_DEVICE", seed > 0 ? "fake" : "cpu");
    set("MS_FAKE_SEED", text);
    set("MS_FAKE_ORDER", seed / 2 % 4 == 0 ? "uniform" : NULL);
    set("MS_SLOTS", layout);
}

static ms_status train_on(chain *c, int32_t seed, const char *layout)
{
    set_device(seed, layout);
    c->hash = 0;
    const ms_status status = ms_dist_threads(c->world, run, c);

    set_device(0, NULL);
    return status;
}

/* The same with ranks that are processes; `c` in memory that they share. */
static void train_apart(chain *c, int32_t seed, const char *layout)
{
    const char *cause;

    set_device(seed, layout);
    c->hash = 0;
    if (run_processes(c->world, run, c, &cause) != 0) {
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

static const char *const layouts[] = {"shared", "pull"};

static void test_fsdp_device_slots__no_order_of_streams_changes_a_bit(void **state)
{
    const int32_t n = (int32_t)msi_switch_int("MS_DEVICE_SEEDS", SANITIZED ? 24 : 100);
    const int32_t first = (int32_t)(msi_switch_int("MS_DEVICE_SEED", 1) % (1 << 30));

    (void)state;
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
    (void)state;
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

    (void)user;
    (void)rank;
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
    (void)state;
    for (int32_t seed = 0; seed <= (SANITIZED ? 20 : 60); seed++) {
        for (int32_t i = 0; i < 2; i++) {
            set_device(seed, layouts[i]);
            assert_ok(ms_dist_threads(2, nest_after_others_used_memory, NULL));
        }
    }
    set_device(0, NULL);
}

/* All units are held at once: more than the ring was made for. */
static void test_fsdp_device_slots__a_ring_grows_in_the_devices_memory(void **state)
{
    (void)state;
    for (int32_t world = 2; world <= 5; world++) {
        for (int32_t k = 0; k < 8; k++) {
            chain cpu = {.strategy = MS_FSDP_FULL_SHARD, .world = world, .nests = true}, c = cpu;

            assert_ok(train_on(&cpu, 0, "shared"));
            assert_ok(train_on(&c, 1 + k, layouts[k % 2]));
            assert_int_equal(c.n_slots, UNITS);
            assert_true(c.hash == cpu.hash);
        }
    }
}

enum { FIRST_ATTACH = 1000 };

static _Thread_local int32_t shares_left, attaches_left; /* until one is refused */
static _Thread_local const msi_device_ops *real;

static int32_t share(msi_device *d, int64_t nbytes, void **out, int32_t *fd)
{
    return shares_left-- == 0 ? MSI_DEV_FAILED : real->share(d, nbytes, out, fd);
}

static int32_t attach(msi_device *d, int32_t fd, int64_t nbytes, bool readonly, void **out)
{
    return attaches_left-- == 0 ? MSI_DEV_FAILED : real->attach(d, fd, nbytes, readonly, out);
}

/* All ranks are told of the same refusal, and train once it is over. */
static ms_status train_when_refused(model *m, chain *c, int32_t rank)
{
    const char *does = c->nth < FIRST_ATTACH ? "reserve" : "map";
    char text[64];

    if (train(m, c, rank) == MS_OK) {
        EXPECT(rank != c->victim || (c->nth < FIRST_ATTACH ? shares_left : attaches_left) >= 0);
        return MS_OK;
    }
    snprintf(text, sizeof(text), "rank %d cannot %s a shared segment", (int)c->victim, does);
    EXPECT(strstr(ms_error_message(), text) != NULL);
    if (rank == c->victim) {
        c->refused = true;
    }
    return train(m, c, rank);
}

static ms_status run_refused(void *user, int32_t rank)
{
    model m = {.tree = NULL};
    chain *c = user;
    msi_device_ops patched;

    MS_TRY(msi_memory_open(msi_context()));
    msi_device *d = msi_context()->device;
    const int32_t nth = rank == c->victim ? c->nth : -1;

    real = d->ops;
    patched = *real;
    patched.share = share;
    patched.attach = attach;
    d->ops = &patched;
    shares_left = nth < FIRST_ATTACH ? nth : -1;
    attaches_left = nth < FIRST_ATTACH ? -1 : nth - FIRST_ATTACH;
    ms_status status = model_new(&m, c);

    status = status == MS_OK ? train_when_refused(&m, c, rank) : status;
    model_free(&m);
    d->ops = real;
    return status;
}

/* From the one with that number on. @return how many there are */
static int32_t refuse_each(chain *c, int32_t first)
{
    const chain expected = *c;
    const held before = held_now();

    c->nth = first;
    do {
        c->refused = false;
        c->hash = 0;
        assert_ok(ms_dist_threads(c->world, run_refused, c));
        assert_true(c->hash == expected.hash);
        assert_int_equal(c->n_segments, expected.n_segments); /* none of one that failed */
        assert_true(holds_no_more(before));
        c->nth++;
    } while (c->refused);
    return c->nth - 1 - first;
}

static void test_fsdp_device_slots__memory_that_one_device_refuses_is_an_error_of_all(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 2 * 3; i++) {
        chain cpu = {.strategy = MS_FSDP_FULL_SHARD, .world = 3, .nests = true}, c = cpu;

        assert_ok(train_on(&cpu, 0, "shared"));
        assert_ok(train_on(&c, 1 + i, layouts[i / 3]));
        assert_true(c.hash == cpu.hash);
        set_device(1 + i, layouts[i / 3]);
        c.victim = i % 3;
        const int32_t shares = refuse_each(&c, 0);
        const int32_t attaches = refuse_each(&c, FIRST_ATTACH);

        set_device(0, NULL);
        print_message("%s: rank %d shares %d segments, attaches %d\n", layouts[i / 3],
                      (int)c.victim, (int)shares, (int)attaches);
        assert_true(shares > 0 && attaches > 1);
    }
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

    (void)state;
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

/* -- what is left out -------------------------------------------------------------------------- */

typedef struct mutation {
    msi_stream_order order;
    const char *name, *layout;
    chain chain;
} mutation;

/* Without ARRIVED, and with all others, no training that succeeds comes out otherwise: a backward
 * that ends joins all of its sums, its gradients cannot be read before, and a slot that is taken
 * again is REUSED after them. It is for a backward that fails: what its reductions wrote is then
 * read, or given back, without its end. */
static const mutation mutations[] = {
    {MSI_ORDER_STEPPED, "stepped", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_RELEASED, "released", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_FILLED, "filled", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_USED, "used", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_GATHERED, "gathered", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_STEPPED, "stepped", "pull", {.strategy = MS_FSDP_FULL_SHARD}},
    /* in training other units' words imply it, as all gathering is in one stream */
    {MSI_ORDER_RELEASED,
     "released",
     "pull",
     {.strategy = MS_FSDP_FULL_SHARD, .evaluates = true, .writes = true}},
    {MSI_ORDER_FILLED, "filled", "pull", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_USED, "used", "pull", {.strategy = MS_FSDP_FULL_SHARD, .evaluates = true}},
    {MSI_ORDER_GATHERED, "gathered", "pull", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_REUSED, "reused", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_READ, "read", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_WRITTEN, "written", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_READY, "ready", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_PREPARED, "prepared", "shared", {.strategy = MS_FSDP_FULL_SHARD, .adds = true}},
    {MSI_ORDER_SUMMED, "summed", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_ORDER_REUSED, "reused by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
    {MSI_ORDER_READ, "read by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
    {MSI_ORDER_WRITTEN, "written by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
    {MSI_ORDER_READY, "ready by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
    {MSI_ORDER_PREPARED,
     "prepared by replicas",
     "shared",
     {.strategy = MS_FSDP_NO_SHARD, .adds = true}},
    {MSI_ORDER_CHUNKED, "chunked by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
    {MSI_ORDER_SUMMED, "summed by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
};

/* Seeds up to `most` until one run comes out otherwise; 0: none does. */
static int32_t noticed_by(const mutation *m, int32_t most)
{
    chain cpu = m->chain, c;
    int32_t seed = 0;

    cpu.world = 3;
    c = cpu;
    assert_ok(train_on(&cpu, 0, "shared"));
    atomic_store(&msi_order_left_out, m->order);
    do {
        seed++;
        if (train_on(&c, seed, m->layout) != MS_OK || c.hash != cpu.hash) {
            break;
        }
    } while (seed < most);
    atomic_store(&msi_order_left_out, MSI_ORDER_ALL);
    return c.hash != cpu.hash ? seed : 0;
}

static void test_fsdp_device_slots__every_order_is_needed(void **state)
{
    const int32_t most = 2000;

    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* what is left out makes races, and shall */
#endif
    for (int32_t i = 0; i < MSI_COUNT(mutations); i++) {
        const mutation *m = &mutations[i];
        const int32_t seed = noticed_by(m, most);

        print_message("%s, %s left out: seed %d notices\n", m->layout, m->name, (int)seed);
        if (seed == 0) {
            fail_msg("layout %s without '%s': none of %d seeds notices", m->layout, m->name,
                     (int)most);
        }
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
    (void)state;
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
    (void)state;
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
        cmocka_unit_test(test_fsdp_device_slots__a_ring_grows_in_the_devices_memory),
        cmocka_unit_test(test_fsdp_device_slots__a_ring_grows_into_memory_that_was_used),
        cmocka_unit_test(test_fsdp_device_slots__memory_that_one_device_refuses_is_an_error_of_all),
        cmocka_unit_test(test_fsdp_device_slots__a_model_that_is_freed_leaves_nothing_mapped),
        cmocka_unit_test(test_fsdp_device_slots__every_order_is_needed),
        cmocka_unit_test(test_fsdp_device_slots__peers_learn_what_one_ranks_device_finds),
        cmocka_unit_test(test_fsdp_device_slots__a_peer_that_fails_ends_the_wait_for_a_device),
    };

    if (!has_fake()) {
        print_message("skipped: no libmoonshard_fake.so\n");
        return 0;
    }
    return cmocka_run_group_tests_name("fsdp device slots", tests, NULL, NULL);
}
