/* Random legal programs: forwards over any units in any order (skipped, used twice, joined), with
 * and without gradients, backward, no_sync that begins late, steps, loads in the middle of a
 * forward, parameters and units that some backwards do not reach, summon, explicit unshard and
 * reshard, all strategies and prefetch settings, W = 1 to 5, all layouts of slots, ranks as
 * threads and as processes; and every rank naps where schedules are delicate.
 *
 * No program may fail, and its parameters must end with the bits of the same micro-batches trained
 * in the plainest way: one rank, no naps, nothing but forward, backward and step. Where every
 * backward reduces, bits depend on W: then it is the plainest way at that W. Some are run both by
 * threads and by processes, with the same bits.
 *
 * MS_PROGRAMS=n programs from MS_SEED=s on (default: 300 from 1; 60 under sanitizers). A
 * program that fails prints itself and its seed. */
#include "moonshard/optim.h"
#include "programs/program.h"
#include "rank_test.h"
#include "schedule.h"

/* -- naps -------------------------------------------------------------------------------------- */

static _Thread_local uint64_t nap_dice; /* 0: this rank is awake */

/* Long enough for all others to run ahead, now and then. */
static void nap(int32_t one_of)
{
    if (nap_dice != 0 && chance(&nap_dice, one_of)) {
        usleep(chance(&nap_dice, 12) ? 1000 : (useconds_t)below(&nap_dice, 60));
    }
}

/* Rare transitions first: a publish that had to be queued, a gradient that waits for peers. */
static void nap_at_change(const ms_fsdp_unit *u)
{
    nap(u->gather.task.listed || u->reduction.phase == MSI_GRAD_READY ? 12 : 64);
}

/* -- a model ----------------------------------------------------------------------------------- */

typedef struct model {
    const program *p;
    int32_t rank;
    bool plain; /* no noise, everything FULL_SHARD without prefetch */
    int32_t n_params[UNITS];
    ms_tensor *param[UNITS][MAX_PARAMS];
    ms_fsdp_unit *unit[UNITS];
    ms_fsdp_tree *tree;
    ms_optim *optim;
} model;

/* A weight, or two, or (large) three; odd units have a bias, so sizes differ. */
static ms_status make_unit(model *m, ms_comm *comm, int32_t i)
{
    const int64_t shape[2] = {SIDE, SIDE};
    char name[MAX_PARAMS][32], unit[16];
    const char *names[MAX_PARAMS];
    ms_fsdp_unit_options o;
    int32_t n = i == 2 && m->p->large ? 3 : 1;

    for (int32_t k = 0; k < n; k++) {
        MS_TRY(ms_tensor_parameter(&m->param[i][k], MS_DTYPE_F32, 2, shape, MS_INIT_UNIFORM, -0.5,
                                   0.5));
        m->n_params[i]++;
    }
    if (i % 2 == 1) {
        MS_TRY(ms_tensor_parameter(&m->param[i][n], MS_DTYPE_F32, 1, shape, MS_INIT_UNIFORM, -0.1,
                                   0.1));
        m->n_params[i]++;
        MS_TRY(ms_tensor_set_requires_grad(m->param[i][0], !m->p->frozen));
    }
    for (int32_t k = 0; k < m->n_params[i]; k++) {
        snprintf(name[k], sizeof(name[k]), "u%d.%d", (int)i, (int)k);
        names[k] = name[k];
    }
    ms_fsdp_unit_options_init(&o, sizeof(o));
    o.strategy = m->plain ? MS_FSDP_FULL_SHARD : m->p->strategy[i];
    o.layout = !m->plain && m->p->rows ? MS_FSDP_ROWS : MS_FSDP_FLAT;
    o.param_dtype = m->p->param_dtype;
    o.reduce_dtype = m->p->reduce_dtype;
    snprintf(unit, sizeof(unit), "u%d", (int)i);
    return ms_fsdp_unit_new(&m->unit[i], comm, unit, &o, m->param[i], m->n_params[i], names);
}

static ms_status make_model(model *m, const program *p, ms_comm *comm, bool plain)
{
    ms_tensor *all[UNITS * MAX_PARAMS];
    ms_fsdp_tree_options o;
    ms_optim_options oo;
    int32_t n = 0, group;

    *m = (model){.p = p, .rank = ms_comm_rank(comm), .plain = plain};
    ms_seed(7);
    for (int32_t i = 0; i < UNITS; i++) {
        MS_TRY(make_unit(m, comm, i));
        for (int32_t k = 0; k < m->n_params[i]; k++) {
            all[n++] = m->param[i][k];
        }
    }
    ms_fsdp_tree_options_init(&o, sizeof(o));
    o.backward_prefetch = plain ? MS_FSDP_PREFETCH_NONE : p->backward_prefetch;
    o.forward_prefetch = !plain && p->forward_prefetch;
    o.n_slots = plain ? 0 : p->n_slots;
    MS_TRY(ms_fsdp_tree_new(&m->tree, comm, &o, m->unit, UNITS, p->rooted));
    MS_TRY(ms_optim_options_init(&oo, sizeof(oo), MS_OPTIM_SGD));
    oo.lr = 0.05;
    oo.momentum = 0.5;
    MS_TRY(ms_optim_new(&m->optim, MS_OPTIM_SGD));
    return ms_optim_add_group(m->optim, all, n, &oo, &group);
}

static void free_model(model *m)
{
    ms_optim_free(m->optim);
    ms_fsdp_tree_free(m->tree);
    for (int32_t i = 0; i < UNITS; i++) {
        for (int32_t k = 0; k < m->n_params[i]; k++) {
            ms_tensor_free(m->param[i][k]);
        }
    }
}

static ms_status load(model *m, int32_t unit, int32_t at)
{
    const int64_t shape[2] = {SIDE, SIDE};
    double values[SIDE * SIDE];
    ms_tensor *full;

    for (int32_t i = 0; i < SIDE * SIDE; i++) {
        values[i] = 0.4 * filler(m->p->seed + (uint64_t)at, i + unit * SIDE * SIDE);
    }
    MS_TRY(ms_tensor_from_doubles(&full, MS_DTYPE_F32, 2, shape, values, SIDE * SIDE));
    ms_status status = ms_fsdp_unit_load(m->unit[unit], 0, full);

    ms_tensor_free(full);
    return status;
}

/* What happens after the first use of a forward. */
typedef struct meanwhile {
    int32_t touch, load, block;
    bool partly, idle, unrecorded; /* all through it */
} meanwhile;

/* `partly`: the first weight alone. */
static ms_status use_unit(model *m, int32_t i, meanwhile then, ms_tensor **x)
{
    const bool biased = i % 2 == 1, before = ms_grad_enabled();
    const int32_t n = m->n_params[i] - biased;
    ms_status status = MS_OK;

    ms_grad_enabled_set(before && !then.unrecorded);
    for (int32_t k = 0; k < (then.partly ? 1 : n) && status == MS_OK; k++) {
        status = ms_op_linear(x, *x, m->param[i][k], biased ? m->param[i][n] : NULL);
    }
    ms_grad_enabled_set(before);
    return status;
}

static ms_status run_forward(model *m, const int32_t *use, int32_t n, int64_t batch, meanwhile then,
                             ms_tensor **loss)
{
    const int64_t shape[2] = {2, SIDE};
    ms_tensor *x;

    MS_TRY(ms_tensor_full(&x, m->p->param_dtype == MS_DTYPE_NONE ? MS_DTYPE_F32 : MS_DTYPE_BF16, 2,
                          shape, 0.5 + 0.25 * (double)(batch % 7)));
    MS_TRY(ms_fsdp_tree_pre_forward(m->tree));
    if (m->p->rooted) {
        MS_TRY(ms_fsdp_unit_pre_forward(m->unit[0]));
    }
    if (m->p->rooted && !then.idle) {
        MS_TRY(use_unit(m, 0, then, &x));
    }
    for (int32_t i = 0; i < n; i++) {
        MS_TRY(ms_fsdp_unit_pre_forward(m->unit[use[i]]));
        nap(64);
        MS_TRY(use_unit(m, use[i], then, &x));
        MS_TRY(ms_fsdp_unit_post_forward(m->unit[use[i]], &x, 1));
        if (i == 0 && then.touch >= 0) {
            MS_TRY(ms_param_touch(m->param[then.touch][0]));
        }
        if (i == 0 && then.load >= 0) {
            MS_TRY(load(m, then.load, then.block));
        }
    }
    if (m->p->rooted) {
        MS_TRY(ms_fsdp_unit_post_forward(m->unit[0], &x, 1));
    }
    MS_TRY(ms_fsdp_tree_post_forward(m->tree));
    return ms_op_mean(loss, x, 3, false);
}

static ms_status forward(model *m, const int32_t *use, int32_t n, int64_t batch, meanwhile then,
                         ms_tensor **loss)
{
    ms_fsdp_tree_hide_shards(m->tree, true);
    ms_status status = run_forward(m, use, n, batch, then, loss);

    ms_fsdp_tree_hide_shards(m->tree, false);
    return status;
}

static ms_status evaluate(model *m, const noise *a)
{
    const meanwhile then = {.touch = a->touch, .load = -1, .unrecorded = a->inside};
    int32_t use[MAX_USES];
    const int32_t n = uses_of(a, m->rank, use);
    const bool before = ms_grad_enabled_set(a->inside);
    ms_tensor *loss;
    ms_status status = forward(m, use, n, 1, then, &loss);

    ms_grad_enabled_set(before);
    return status;
}

static ms_status rewrite(model *m, const noise *a)
{
    const bool before = ms_grad_enabled();
    const ms_fsdp_unit *u = m->unit[a->unit];
    ms_tensor *t = m->param[a->unit][m->n_params[a->unit] - 1], *same;
    ms_status status;

    if ((u->is_sharded && m->rank != a->rank) || msi_view_numel(&t->v) == 0 ||
        t->v.storage != u->master) {
        return MS_OK;
    }
    ms_grad_enabled_set(false);
    MS_TRY_GOTO(ms_op_clone(&same, t), done);
    status = ms_tensor_copy(t, same);
done:
    ms_grad_enabled_set(before);
    return status;
}

static ms_status make_noise_of(model *m, const noise *a)
{
    switch (a->kind) {
    case EVALUATE:
        return evaluate(m, a);
    case UNSHARD:
        return ms_fsdp_unit_unshard(m->unit[a->unit]);
    case RESHARD:
        return ms_fsdp_unit_reshard(m->unit[a->unit]);
    case TOUCH:
        return ms_param_touch(m->param[a->unit][0]);
    case REWRITE:
        return rewrite(m, a);
    case SUMMON:
        MS_TRY(ms_fsdp_tree_summon(m->tree, false));
        nap(4);
        return ms_fsdp_tree_unsummon(m->tree, a->writeback);
    default:
        return MS_OK;
    }
}

/* Between forwards and backwards handles show shards, but for what is unsharded by hand and not
 * written since, and what `waiting` (NULL: no graph waits) has used and its backward will read,
 * unless something was evaluated since. */
static ms_status check_shown(const model *m, const micro *waiting)
{
    for (int32_t i = 0; i < UNITS; i++) {
        const ms_fsdp_unit *u = m->unit[i];
        const bool used = waiting != NULL && (u->is_root || is_used(waiting, i)),
                   whole = u->state == MS_UNIT_UNSHARDED &&
                           (used || (u->use.held && !u->values.outdated));

        EXPECT(m->param[i][0]->v.storage == (whole ? u->full : u->master));
    }
    return MS_OK;
}

static ms_status make(model *m, const noise *a, const micro *waiting)
{
    if (m->plain) {
        return MS_OK;
    }
    nap(12);
    MS_TRY(make_noise_of(m, a));
    return m->tree->run.initialized ? check_shown(m, a->kind == EVALUATE ? NULL : waiting) : MS_OK;
}

/* -- running ----------------------------------------------------------------------------------- */

/* Micro-batch k of rank r of W; `last`: its backward reduces. */
static ms_status run_micro(model *m, int32_t at, int32_t k, int32_t r, bool last)
{
    const block *b = &m->p->block[at];
    const micro *one = &b->micro[k];
    const int64_t batch = 16 * at + (int64_t)r * b->n_micro + k;
    const meanwhile then = {.touch = -1,
                            .load = one->load,
                            .block = at,
                            .partly = one->partly,
                            .idle = r == one->idle},
                    nothing = {
                        .touch = -1, .load = -1, .partly = one->partly, .idle = r == one->idle};
    ms_tensor *aside, *loss;

    MS_TRY(ms_fsdp_tree_init(m->tree));
    MS_TRY(ms_fsdp_tree_set_sync(m->tree, last || b->each_reduces));
    MS_TRY(make(m, &one->before, NULL));
    if (one->aside == 2 || (one->aside == 1 && !m->plain)) {
        MS_TRY(forward(m, one->use, one->n_uses, batch + 3, nothing, &aside));
    }
    MS_TRY(forward(m, one->use, one->n_uses, batch, then, &loss));
    if (one->aside == 2) {
        MS_TRY(ms_op_add(&loss, aside, loss));
    }
    MS_TRY(make(m, &one->between, one));
    nap(12);
    return ms_backward(loss, NULL);
}

/* Into unit 1: in place where handles show the master, every other time, each rank what it holds;
 * else by summon. */
static ms_status write_values(model *m, int32_t at)
{
    const bool in_place = at % 2 == 1 && m->param[1][0]->v.storage == m->unit[1]->master;

    MS_TRY(in_place ? MS_OK : ms_fsdp_tree_summon(m->tree, false));
    for (int32_t k = 0; k < m->n_params[1]; k++) {
        if (msi_view_numel(&m->param[1][k]->v) > 0) {
            MS_TRY(ms_tensor_fill(m->param[1][k], 0.125 * (at + 1 + k)));
        }
    }
    nap(4);
    return in_place ? MS_OK : ms_fsdp_tree_unsummon(m->tree, true);
}

/* As rank `first` of W, or as all ranks one after the other. */
static ms_status run_block(model *m, int32_t at, int32_t first, int32_t n_ranks)
{
    const block *b = &m->p->block[at];
    ms_tensor *norm;

    MS_TRY(ms_fsdp_tree_set_gradient_factor(m->tree, 1.0 / (b->n_micro * m->p->world)));
    for (int32_t r = first; r < first + n_ranks; r++) {
        for (int32_t k = 0; k < b->n_micro; k++) {
            MS_TRY(ms_scope_open("micro-batch"));
            ms_status status =
                run_micro(m, at, k, r, r == first + n_ranks - 1 && k == b->n_micro - 1);

            MS_TRY(ms_scope_close(NULL, 0));
            MS_TRY(status);
        }
    }
    MS_TRY(make(m, &b->after, NULL));
    MS_TRY(b->writes ? write_values(m, at) : MS_OK);
    if (b->clips) {
        MS_TRY(ms_fsdp_tree_clip_grad_norm(&norm, m->tree, NULL, 0, 0.5, 2, false));
        ms_tensor_free(norm);
    }
    if (b->steps) {
        nap(8);
        MS_TRY(ms_optim_step(m->optim));
        MS_TRY(ms_optim_zero_grad(m->optim));
    }
    return make(m, &b->late, NULL);
}

static ms_status run_model(const program *p, ms_comm *comm, bool plain, int32_t first,
                           int32_t n_ranks, uint64_t *hash)
{
    model m;
    ms_status status;

    MS_TRY(ms_scope_open("program"));
    MS_TRY_GOTO(make_model(&m, p, comm, plain), done);
    for (int32_t i = 0; i < p->n_blocks; i++) {
        MS_TRY_GOTO(run_block(&m, i, first, n_ranks), done);
    }
    MS_TRY_GOTO(ms_fsdp_tree_hash(m.tree, NULL, 0, hash), done);
done:
    free_model(&m);
    (void)ms_scope_close(NULL, 0);
    return status;
}

/* -- jobs -------------------------------------------------------------------------------------- */

static const char *const layouts[] = {"shared", "pull", "nccl"};

/* nccl: only between GPUs. */
static int32_t n_layouts(void)
{
    const char *device = getenv("MS_DEVICE");

    return device != NULL && strcmp(device, "cuda") == 0 ? 3 : 2;
}

typedef struct job {
    int32_t world, layout;
    bool processes;
    uint64_t first_seed;
    int64_t n;
    uint64_t *by_threads; /* (1 + n / TWICE) hashes of the programs that are run as both */
} job;

enum { TWICE = 50 }; /* one of so many programs is run by threads and by processes */

static ms_status check_hash(uint64_t hash, uint64_t expected)
{
    if (hash != expected) {
        return msi_fail(MS_RUNTIME_ERROR, "parameters have hash %016llx, expected %016llx",
                        (unsigned long long)hash, (unsigned long long)expected);
    }
    return MS_OK;
}

static ms_status run_program(const program *p, int32_t rank, uint64_t *hash)
{
    ms_comm *world, *self;
    uint64_t expected;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_comm_self(&self));
    nap_dice = p->seed * 64 + (uint64_t)rank + 1;
    ms_status status = run_model(p, world, false, rank, 1, hash);

    nap_dice = 0;
    MS_TRY(status);
    if (!p->same_for_every_world) {
        MS_TRY(run_model(p, world, true, rank, 1, &expected));
    } else if (p->seed / 10 % (uint64_t)p->world == (uint64_t)rank) { /* by turns */
        MS_TRY(run_model(p, self, true, 0, p->world, &expected));
    } else {
        return MS_OK;
    }
    return check_hash(*hash, expected);
}

/* Where its slots lie. */
static int32_t layout_of(uint64_t seed)
{
    return (int32_t)(msi_mix64(seed) % (uint64_t)n_layouts());
}

/* `by_threads`: what this program's hash was, or shall be, by threads; NULL: it is run as its dice
 * say alone. */
static ms_status run_seed(const job *j, uint64_t seed, int32_t rank, uint64_t *by_threads)
{
    const program p = make_program(seed);
    uint64_t hash;

    if (p.world != j->world || layout_of(seed) != j->layout ||
        (p.processes != j->processes && by_threads == NULL)) {
        return MS_OK;
    }
    ms_status status = run_program(&p, rank, &hash);

    if (status == MS_OK && by_threads != NULL && j->processes) {
        status = check_hash(hash, *by_threads);
    } else if (status == MS_OK && by_threads != NULL && rank == 0) {
        *by_threads = hash;
    }
    if (status != MS_OK) {
        print_program(&p, rank, ms_error_message());
    }
    return status;
}

/* Beyond those of a default run, what longer ones have found. */
static const uint64_t found[] = {
    6041, /* a slot becomes free within the backward of one rank, at the end of the other's */
};

static ms_status run_job(void *user, int32_t rank)
{
    const job *j = user;

    for (int32_t i = 0; i < MSI_COUNT(found); i++) {
        MS_TRY(run_seed(j, found[i], rank, NULL));
    }
    for (int64_t i = 0; i < j->n; i++) {
        MS_TRY(run_seed(j, j->first_seed + (uint64_t)i, rank,
                        CAN_FORK && i % TWICE == 0 ? &j->by_threads[i / TWICE] : NULL));
    }
    return MS_OK;
}

static void run_layout(int32_t world, int32_t layout)
{
    job j = {.world = world,
             .layout = layout,
             .first_seed = (uint64_t)msi_switch_int("MS_SEED", 1),
             .n = msi_switch_int("MS_PROGRAMS", SANITIZED ? 60 : 300)};
    const char *cause;

    j.by_threads = calloc((size_t)(1 + j.n / TWICE), sizeof(*j.by_threads));
    assert_non_null(j.by_threads);
    msi_fsdp_state_changed = nap_at_change;
    ms_status status = ms_dist_threads(world, run_job, &j);

    j.processes = true;
    if (status == MS_OK && CAN_FORK && run_processes(world, run_job, &j, &cause) != 0) {
        fail_msg("%d processes: %s", (int)world, cause);
    }
    free(j.by_threads);
    msi_fsdp_state_changed = NULL;
    assert_ok(status);
}

static void run_world(int32_t world)
{
    for (int32_t layout = 0; layout < n_layouts(); layout++) {
        assert_int_equal(setenv("MS_SLOTS", layouts[layout], true), 0);
        run_layout(world, layout);
    }
    assert_int_equal(unsetenv("MS_SLOTS"), 0);
}

static void test_fsdp_programs__have_the_bits_of_the_plain_way(void **state)
{
    for (int32_t world = 1; world <= 5; world++) {
        run_world(world);
    }
}

/* -- one rank that skips alone ----------------------------------------------------------------- */

typedef struct skipping {
    program p;
    uint64_t naps;
} skipping;

static ms_status run_skipping(void *user, int32_t rank)
{
    const skipping *s = user;
    const program *p = &s->p;
    ms_comm *world;
    uint64_t hash, expected;

    MS_TRY(ms_comm_world(&world));
    nap_dice = s->naps * (uint64_t)(rank + 1);
    ms_status status = run_model(p, world, false, rank, 1, &hash);

    nap_dice = 0;
    MS_TRY(status);
    MS_TRY(run_model(p, world, true, rank, 1, &expected));
    EXPECT(hash == expected);
    return MS_OK;
}

/* Told, or of no consequence (the rank had nothing to gather); which of them does not depend on
 * who naps. */
static void test_fsdp_programs__one_rank_skips_alone(void **state)
{
    enum { PROGRAMS = SANITIZED ? 20 : 60, TIMES = 3 };
    int32_t n_told = 0, n_equal = 0;

#ifdef __SANITIZE_THREAD__
    skip(); /* ranks that differ fill one slot for two units before either looks and is told */
#endif
    msi_fsdp_state_changed = nap_at_change;
    for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
        skipping s = {.p = make_program(seed)};
        int32_t told = 0;

        if (s.p.world == 1 || !let_one_rank_skip(&s.p)) {
            continue;
        }
        for (int32_t i = 0; i < TIMES; i++) {
            s.naps = (uint64_t)i * seed; /* none at first */
            ms_status status = ms_dist_threads(s.p.world, run_skipping, &s);

            told += status != MS_OK;
            if (status != MS_OK && strstr(ms_error_message(), " unit 'u") == NULL) {
                print_program(&s.p, -1, ms_error_message());
                fail();
            }
        }
        if (told != 0 && told != TIMES) {
            print_program(&s.p, -1, "told sometimes");
            fail();
        }
        n_told += told != 0;
        n_equal += told == 0;
    }
    msi_fsdp_state_changed = NULL;
    assert_in_range(n_told, 1, PROGRAMS);
    assert_in_range(n_equal, 1, PROGRAMS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_programs__have_the_bits_of_the_plain_way),
        cmocka_unit_test(test_fsdp_programs__one_rank_skips_alone),
    };
    return cmocka_run_group_tests_name("fsdp programs", tests, NULL, NULL);
}
