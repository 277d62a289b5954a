/* runtime/fsdp/param_group/observed.c: what a watcher of the one observable point sees of units:
 * operators on tensors, as many as the strategy says, and the same training. */
#include "observed.h"
#include "rank_test.h"
#include "tiny_gpt.h"

enum { UNITS = TINY_BLOCKS + 1 };

/* -- a watcher --------------------------------------------------------------------------------- */

typedef struct watch {
    tiny_model *model;
    int32_t n_unshards, n_reshards, n_reduces, n_others;
    ms_tensor *first[UNITS]; /* per unit, the first of its parameters as it was seen first */
    ms_status status;        /* of the first check that failed */
    char message[256];
} watch;

#define SEES(w, cond)                                                                              \
    do {                                                                                           \
        if (!(cond) && (w)->status == MS_OK) {                                                     \
            (w)->status = MS_ASSERTION_ERROR;                                                      \
            snprintf((w)->message, sizeof((w)->message), "%d: %s", __LINE__, #cond);               \
        }                                                                                          \
    } while (0)

static ms_fsdp_unit *unit_of(const msi_op_call *call)
{
    return ((const msi_unit_attrs *)call->attrs)->unit;
}

/* Elements [0, numel) in a row. */
static bool is_row(const ms_tensor *t, int32_t dtype, int64_t numel)
{
    return t->v.dtype == dtype && t->v.ndim == 1 && t->v.shape[0] == numel && t->v.stride[0] == 1 &&
           t->v.offset == 0;
}

static bool is_readable(const ms_tensor *t)
{
    void *data;

    return msi_view_data(&t->v, &data) == MS_OK;
}

static void see_shard(watch *w, const ms_fsdp_unit *u, const ms_tensor *shard)
{
    SEES(w, is_row(shard, u->orig_dtype, u->shard_numel));
    SEES(w, shard->v.storage == u->master);
}

/* `shown`: they have memory, and the handles of the parameters show it. */
static void see_params(watch *w, const ms_fsdp_unit *u, ms_tensor *const *t, bool shown)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        const msi_param *param = u->params[i].tensor->param;
        const msi_view *v = &t[i]->v;
        msi_view whole = {.storage = u->full};

        msi_view_set_contiguous(&whole, u->param_dtype, param->ndim, param->shape);
        SEES(w, v->dtype == u->param_dtype && msi_view_same_shape(v, &whole));
        SEES(w, msi_view_contiguous(v) && v->storage == u->full);
        SEES(w, v->offset == u->params[i].offset);
        SEES(w, is_readable(t[i]) == shown);
    }
}

static void see_unshard(watch *w, const msi_op_call *c, bool ended)
{
    const ms_fsdp_unit *u = unit_of(c);
    ms_tensor **first = &w->first[u->index];

    SEES(w, c->n_in == 1 && c->n_out == u->n_params);
    see_shard(w, u, c->in[0]);
    see_params(w, u, c->out, ended);
    *first = *first != NULL ? *first : c->out[0];
    SEES(w, *first == c->out[0]); /* known again in every step */
    w->n_unshards += ended;
}

static void see_reshard(watch *w, const msi_op_call *c, bool ended)
{
    const ms_fsdp_unit *u = unit_of(c);

    SEES(w, c->n_in == u->n_params && c->n_out == 0);
    SEES(w, c->in[0] == w->first[u->index]);
    see_params(w, u, c->in, !ended);
    w->n_reshards += ended;
}

static void see_reduce(watch *w, const msi_op_call *c, bool ended)
{
    const ms_fsdp_unit *u = unit_of(c);

    SEES(w, c->n_in == 1 && c->n_out == 1);
    SEES(w, is_row(c->in[0], msi_unit_slot_dtype(u), msi_unit_full_numel(u)));
    SEES(w, is_row(c->out[0], u->orig_dtype, u->shard_numel));
    SEES(w, c->out[0]->v.storage == u->grad);
    w->n_reduces += ended;
}

static void see(watch *w, const msi_op_call *c, bool ended)
{
    SEES(w, c->node == NULL || strncmp(c->op->name, "fsdp.", 5) != 0);
    if (strcmp(c->op->name, "fsdp.unshard") == 0) {
        see_unshard(w, c, ended);
    } else if (strcmp(c->op->name, "fsdp.reshard") == 0) {
        see_reshard(w, c, ended);
    } else if (strcmp(c->op->name, "fsdp.reduce") == 0) {
        see_reduce(w, c, ended);
    } else {
        w->n_others += ended;
    }
}

static void see_begin(void *user, const msi_op_call *call)
{
    see(user, call, false);
}

static void see_end(void *user, const msi_op_call *call, ms_status status)
{
    watch *w = user;

    SEES(w, status == MS_OK);
    see(w, call, true);
}

/* -- a few steps ------------------------------------------------------------------------------- */

/* What a step has of each, worked out by hand: the root unit stays unsharded between forward and
 * backward whatever the strategy, a block of FULL_SHARD does not; a backward ends with all of them
 * sharded, unless it is one of no_sync, whose kept units stay for the next forward. */
typedef struct expected {
    int32_t strategy;
    int32_t unshards, reshards, reduces;    /* of a step that reduces */
    int32_t kept_unshards, kept_reshards;   /* of a backward under no_sync before it */
    int32_t after_unshards, after_reshards; /* of the step that comes after that one */
} expected;

static const expected by_strategy[] = {
    {MS_FSDP_FULL_SHARD, 2 * TINY_BLOCKS + 1, 2 * TINY_BLOCKS + 1, UNITS, 2 * TINY_BLOCKS + 1,
     2 * TINY_BLOCKS + 1, 2 * TINY_BLOCKS + 1, 2 * TINY_BLOCKS + 1},
    {MS_FSDP_SHARD_GRAD_OP, UNITS, UNITS, UNITS, UNITS, 0, 0, UNITS},
    {MS_FSDP_NO_SHARD, UNITS, UNITS, UNITS, UNITS, 0, 0, UNITS},
};

static ms_status step_counts(watch *w, int64_t index, int32_t unshards, int32_t reshards,
                             int32_t reduces)
{
    double loss;

    w->n_unshards = w->n_reshards = w->n_reduces = 0;
    MS_TRY(tiny_micro_step(w->model, index, &loss));
    if (w->n_unshards != unshards || w->n_reshards != reshards || w->n_reduces != reduces) {
        return msi_fail(MS_ASSERTION_ERROR,
                        "%d unshards, %d reshards, %d reduces; expected %d, %d, %d",
                        (int)w->n_unshards, (int)w->n_reshards, (int)w->n_reduces, (int)unshards,
                        (int)reshards, (int)reduces);
    }
    return MS_OK;
}

static ms_status observed_steps(watch *w, const expected *e, int32_t rank)
{
    MS_TRY(step_counts(w, 2 * rank, e->unshards, e->reshards, e->reduces));
    MS_TRY(step_counts(w, 2 * rank + 1, e->unshards, e->reshards, e->reduces));
    MS_TRY(ms_fsdp_tree_set_sync(w->model->tree, false));
    MS_TRY(step_counts(w, 2 * rank, e->kept_unshards, e->kept_reshards, 0));
    MS_TRY(ms_fsdp_tree_set_sync(w->model->tree, true));
    return step_counts(w, 2 * rank + 1, e->after_unshards, e->after_reshards, e->reduces);
}

typedef struct course {
    const expected *expected;
    int32_t param_dtype;
} course;

static ms_status run_observed(void *user, int32_t rank)
{
    const course *k = user;
    tiny_config config = tiny_defaults();
    ms_memory_stats before, after;
    tiny_model model;
    watch w = {.model = &model};
    const msi_op_observer observer = {.begin = see_begin, .end = see_end, .user = &w};
    ms_comm *comm;

    MS_TRY(ms_comm_world(&comm));
    ms_memory_stats_get(&before);
    config.world = ms_comm_size(comm);
    config.strategy = k->expected->strategy;
    config.param_dtype = k->param_dtype;
    config.reduce_dtype = MS_DTYPE_F32;
    ms_seed(5);
    MS_TRY(tiny_new(&model, &config, comm));
    msi_op_observe(msi_context(), &observer);
    ms_status status = observed_steps(&w, k->expected, rank);

    msi_op_observe(msi_context(), NULL);
    tiny_free(&model);
    MS_TRY(status);
    ms_memory_stats_get(&after);
    EXPECT(after.live_handles == before.live_handles);
    EXPECT(w.n_others > 0);
    return w.status != MS_OK ? msi_fail(w.status, "line %s", w.message) : MS_OK;
}

static void test_fsdp_observed__units_are_operators_on_tensors(void **state)
{
    for (int32_t i = 0; i < MSI_COUNT(by_strategy); i++) {
        course k = {&by_strategy[i], MS_DTYPE_NONE};

        for (int32_t w = 1; w <= 3; w++) {
            k.param_dtype = MS_DTYPE_NONE;
            run_ranks(w, run_observed, &k);
            k.param_dtype = MS_DTYPE_BF16;
            run_ranks(w, run_observed, &k);
        }
    }
}

/* -- the same training ------------------------------------------------------------------------- */

static ms_status train_watched(void *user, int32_t rank)
{
    static const msi_op_observer observer = {.user = NULL};
    const tiny_result *unwatched = user;
    tiny_config config = tiny_defaults();
    tiny_result result;
    ms_comm *comm;

    config.world = 2;
    config.steps = 3;
    MS_TRY(ms_comm_world(&comm));
    msi_op_observe(msi_context(), &observer);
    ms_status status = tiny_train_in(comm, &config, &result, NULL, NULL);

    msi_op_observe(msi_context(), NULL);
    MS_TRY(status);
    EXPECT(result.hash == unwatched->hash);
    return MS_OK;
}

static void test_fsdp_observed__a_watcher_changes_no_bit(void **state)
{
    tiny_config config = tiny_defaults();
    tiny_result result;

    config.world = 2;
    config.steps = 3;
    assert_ok(tiny_train(&config, &result));
    run_ranks(2, train_watched, &result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_observed__units_are_operators_on_tensors),
        cmocka_unit_test(test_fsdp_observed__a_watcher_changes_no_bit),
    };

    return cmocka_run_group_tests_name("fsdp/observed", tests, NULL, NULL);
}
