/* When units are unsharded, resharded and reduced, part 2: backward, its end, errors. */
#include "array.h"
#include "gradient.h"
#include "schedule.h"
#include "unshard.h"

#include "moonshard/plan.h"

#include <stdio.h>
#include <stdlib.h>

/* -- units of a backward ----------------------------------------------------------------------- */

/* True if it reached the tree. */
bool msi_is_reached(const ms_fsdp_tree *tree)
{
    bool any = false;

    for (int32_t i = 0; i < tree->n_units; i++) {
        any |= tree->units[i]->use.expects_grad || tree->units[i]->use.backward_passes > 0 ||
               tree->units[i]->use.differentiated;
    }
    return any;
}

/* Prefetch the units whose backward is next: those listed for it, or by the option the previous one
 * in forward. `when`: MS_FSDP_PREFETCH_PRE or POST. */
static ms_status prefetch_backward(ms_fsdp_unit *u, int32_t when)
{
    const ms_fsdp_tree *tree = msi_tree_of(u);
    const msi_unit_schedule *course = msi_unit_schedule_of(u);
    const bool by_order = tree->options.backward_prefetch == when && course->post_index > 0;
    const msi_unit_list before = {by_order ? &tree->post.units[course->post_index - 1] : NULL,
                                  by_order};
    const bool listed = course->ahead_backward.units != NULL;
    const msi_unit_list *next = listed ? &course->ahead_backward : &before;

    for (int32_t i = 0; i < next->n && (!listed || when == MS_FSDP_PREFETCH_PRE); i++) {
        ms_fsdp_unit *n = next->units[i];

        if (msi_unit_schedule_of(n)->needs_backward && !n->use.differentiated &&
            !n->settings.forward_only) {
            MS_TRY(msi_prefetch(n));
        }
    }
    return MS_OK;
}

static bool keeps_after_backward(const ms_fsdp_unit *u)
{
    return msi_unit_keeps_after_backward(u, u->settings.sync);
}

static ms_status post_backward(ms_fsdp_unit *u)
{
    if (u->use.backward_passes == 0 && u->use.pending == 0 && !keeps_after_backward(u)) {
        msi_unit_reshard(u);
    }
    msi_unit_show_use(u);
    return prefetch_backward(u, MS_FSDP_PREFETCH_POST);
}

/* Backward has passed all it recorded. */
static ms_status left_behind(void *user)
{
    msi_pass *pass = user;
    ms_fsdp_unit *u = pass->unit;

    msi_pass_left(pass);
    return u->use.backward_passes == 0 ? post_backward(u) : MS_OK;
}

static ms_status may_begin(void *tree)
{
    const ms_fsdp_unit *u = msi_unit_in_forward(tree);

    return u == NULL ? MS_OK
                     : MS_FAIL(MS_ASSERTION_ERROR,
                               "backward cannot begin during forward (unit '%s' is in its forward)",
                               u->name);
}

/* [Note: what still reads a unit] The op that completes the unit's last gradient need not be its
 * last reader: frozen parameters have no gradient, and a trainable one may be read through
 * detach(). Ops outside its forwards may also read it while it is kept. So a unit stays unsharded
 * until the backward has passed everything that its reached forwards recorded, and its gradients
 * are complete. */
static ms_status expect_backward(void *user)
{
    msi_pass *pass = user;
    ms_fsdp_unit *u = pass->unit;

    if (u == NULL || pass->expected) {
        return MS_OK;
    }
    MS_TRY(msi_backward_when_behind(u->ctx, pass->place, left_behind, pass));
    msi_pass_expected(pass);
    return MS_OK;
}

static ms_status pre_backward(void *user)
{
    const msi_pass *pass = user;
    ms_fsdp_unit *u = pass->unit;

    if (u == NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "the sharded model that made this result was freed; keep "
                                         "it until backward has run");
    }
    MS_TRY(msi_masters_check(u->run, "backward"));
    MS_TRY(may_begin(msi_tree_of(u)));
    MS_TRY(msi_pools_restore(msi_tree_of(u)));
    MS_TRY(msi_unit_gather_in(u, pass->full_use ? u->orig_dtype : u->param_dtype, 0));
    u->full_use = pass->full_use;
    if (!u->settings.forward_only) {
        MS_TRY(msi_unit_unshard(u));
    }
    if (msi_tree_of(u)->again == u) {
        msi_tree_of(u)->again = NULL;
    }
    msi_unit_plan(u, MS_PLAN_BACKWARD);
    if (!u->use.differentiated) {
        u->use.differentiated = true;
        msi_unit_show_use(u);
        MS_TRY(prefetch_backward(u, MS_FSDP_PREFETCH_PRE));
    }
    return msi_progress_run(&u->run->progress);
}

ms_status msi_pass_hook_outputs(msi_pass *pass, ms_tensor *const *outputs, int32_t n_outputs)
{
    for (int32_t i = 0; i < n_outputs; i++) {
        if (outputs[i] == NULL || outputs[i]->grad_fn == NULL) {
            continue;
        }
        const msi_pre_hook hook = {pre_backward, msi_pass_retain(pass), msi_pass_drop,
                                   expect_backward};
        ms_status status = msi_autograd_pre_hook(outputs[i], hook);

        if (status != MS_OK) {
            msi_pass_drop(pass);
            return status;
        }
        msi_pass_recorded(pass);
        msi_unit_schedule_of(pass->unit)->needs_backward = msi_tree_of(pass->unit)->records = true;
    }
    return MS_OK;
}

static bool accumulates(const ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        if (msi_accumulator_holds(&tree->units[i]->sums)) {
            return true;
        }
    }
    return false;
}

/* `cause`: why gradients are given up, else NULL. */
static void enter(ms_fsdp_tree *tree, msi_phase phase, const char *cause)
{
    const bool explains = cause != NULL || tree->run.phase == MSI_GIVEN_UP;

    tree->run.phase = phase;
    for (int32_t i = 0; explains && i < tree->n_units; i++) {
        msi_unit_explain(tree->units[i], cause);
    }
}

static ms_status backward_begins(void *user)
{
    ms_fsdp_tree *tree = user;

    enter(tree, MSI_BACKWARD, NULL);
    msi_progress_begin(&tree->run.progress);
    const bool dropped = !accumulates(tree);

    for (int32_t i = 0; dropped && i < tree->n_units; i++) {
        tree->units[i]->n_kept = 0;
    }
    return MS_OK;
}

/* True if the running backward has gradients for a unit of the tree. */
static bool expects_gradients(const ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        if (tree->units[i]->use.expects_grad) {
            return true;
        }
    }
    return false;
}

/* End of a micro-batch that is not reduced. A unit it did not reach gets an empty gradient. */
static ms_status keep(ms_fsdp_unit *u)
{
    MS_TRY(u->use.expects_grad ? MS_OK : msi_unit_accumulate(u));
    u->n_kept++;
    return MS_OK;
}

/* Reduce what is accumulated in a unit that this backward did not reach. */
static ms_status reduce_unreached(ms_fsdp_unit *u)
{
    u->use.expects_grad = true;
    return msi_unit_reduce(u);
}

static ms_status finish_gradients(ms_fsdp_tree *tree)
{
    const bool any = expects_gradients(tree);

    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        if (!u->settings.sync) {
            MS_TRY(any ? keep(u) : MS_OK);
            continue;
        }
        MS_TRY(msi_accumulator_holds(&u->sums) ? reduce_unreached(u) : MS_OK);
        u->n_kept = 0;
    }
    return MS_OK;
}

static ms_status finish_backward(void *user)
{
    ms_fsdp_tree *tree = user;

    if (!msi_is_reached(tree)) {
        return MS_OK;
    }
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(msi_unit_check_kept(tree->units[i]));
    }
    if (msi_backward_accumulates(tree->ctx)) {
        MS_TRY(finish_gradients(tree));
    }
    MS_TRY(msi_reductions_finish(&tree->run.progress, &tree->run.gradients));
    for (int32_t i = 0; i < tree->n_units; i++) {
        if (tree->units[i]->state == MS_UNIT_PUBLISHED) {
            msi_skip(tree->units[i]);
        } else if (!keeps_after_backward(tree->units[i])) {
            msi_unit_reshard(tree->units[i]);
        }
    }
    MS_TRY(msi_progress_run(&tree->run.progress));
    enter(tree, MSI_SETTLED, NULL);
    return MS_OK;
}

/* See [Note: gradients inside a backward]. */
static ms_status run_accumulate_hooks(void *user)
{
    ms_fsdp_tree *tree = user;

    for (int32_t i = 0; i < tree->n_params; i++) {
        msi_unit_param *p = msi_listed_in_unit(&tree->params[i]);

        if (p->arrived) {
            p->arrived = false;
            MS_TRY(msi_hooks_run_accumulate(p->tensor));
        }
    }
    return MS_OK;
}

/* The order of the next backward's prefetch. */
static void forget_order(ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        tree->course[i].needs_backward = false;
        tree->course[i].post_index = -1;
    }
    tree->post.n = 0;
}

static void forget_iteration(ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        u->use.differentiated = u->use.expects_grad = false;
        for (msi_pass *pass = tree->course[i].passes; u->use.backward_passes > 0 && pass != NULL;
             pass = pass->next) {
            if (pass->expected) {
                msi_pass_left(pass);
            }
        }
        msi_unit_show_use(u);
    }
    msi_progress_begin(&tree->run.progress);
}

/* End passes and pending tasks, drop gradients that are not final, and reshard all units. */
static void reset(ms_fsdp_tree *tree, const char *what)
{
    const bool settled = tree->run.phase == MSI_SETTLED, reached = msi_is_reached(tree);
    const bool gives_up = !settled && expects_gradients(tree);
    bool relied = reached && tree->run.phase != MSI_GIVEN_UP; /* then it was published */
    msi_error why;

    if (tree->run.phase == MSI_UNUSED) {
        return;
    }
    /* keep the original error */
    msi_error_keep(&why);
    for (int32_t i = 0; i < tree->n_units; i++) {
        /* the slot's generation was incremented, even if not committed */
        relied |= tree->units[i]->gather.slot != NULL || tree->units[i]->reduction.slot != NULL;
    }
    if (relied) {
        msi_progress_commit(&tree->run.progress);
    }
    msi_tree_give_up(tree, what);
    msi_pass_end_all(tree);
    msi_progress_drop(&tree->run.progress);
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        if (!settled) {
            msi_unit_gradient_drop(u, gives_up);
        }
        msi_unit_reshard(u);
    }
    tree->pre.n = tree->pre_fixed ? tree->pre.n : 0;
    if (!reached) {
        forget_order(tree);
        forget_iteration(tree);
    } else if (!settled) {
        enter(tree, MSI_GIVEN_UP, why.message);
    }
    msi_error_put_back(&why);
}

void ms_fsdp_tree_reset(ms_fsdp_tree *tree)
{
    reset(tree, "");
}

static void backward_ends(void *user, ms_status status)
{
    ms_fsdp_tree *tree = user;
    const bool reached = msi_is_reached(tree);

    msi_pass_keep_again(tree, NULL);
    if (reached && status != MS_OK) {
        if (tree->run.phase == MSI_SETTLED) {
            enter(tree, MSI_BACKWARD, NULL);
        }
        reset(tree, "backward");
    }
    if (reached && (tree->last_backward || status != MS_OK)) {
        forget_order(tree);
    }
    if (reached) {
        forget_iteration(tree);
    }
    enter(tree, MSI_IDLE, NULL);
}

/* -- the schedule's memory --------------------------------------------------------------------- */

ms_status msi_schedule_new(ms_fsdp_tree *tree)
{
    const int64_t n = tree->n_units + 1, n_ranks = msi_tree_has_peers(tree) ? tree->world : 0;

    MS_TRY(msi_new_array(&tree->written, n * (n_ranks + 1), "words of a schedule"));
    MS_TRY(msi_new_array(&tree->post.units, n, "units of a schedule"));
    MS_TRY(msi_new_array(&tree->pre.units, n, "units of a schedule"));
    tree->run.may_begin_backward = may_begin;
    tree->run.gradient_complete = post_backward;
    const msi_backward_observer observer = {backward_begins, finish_backward, run_accumulate_hooks,
                                            backward_ends, tree};

    return msi_backward_observe(tree->ctx, &observer);
}

void msi_schedule_free(ms_fsdp_tree *tree)
{
    msi_pass_end_all(tree);
    msi_backward_unobserve(tree->ctx, tree);
    free(tree->written);
    free(tree->post.units);
    free(tree->pre.units);
    tree->written = NULL;
    tree->post.units = tree->pre.units = NULL;
}
