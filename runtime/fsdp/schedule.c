/* When units are unsharded, prefetched and resharded: forward, backward, errors. */
#include "fsdp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* -- forward ----------------------------------------------------------------------------------- */

/* Did the running backward reach it? */
static bool is_reached(const ms_fsdp_tree *tree)
{
    bool any = false;

    for (int32_t i = 0; i < tree->n_units; i++) {
        any |= tree->units[i]->expecting || tree->units[i]->lingers > 0 ||
               tree->units[i]->ran_pre_backward;
    }
    return any;
}

ms_status ms_fsdp_tree_pre_forward(ms_fsdp_tree *tree)
{
    MS_TRY(ms_fsdp_tree_init(tree));
    MS_TRY(msi_masters_check(tree, "forward"));
    msi_tree_note_changes(tree);
    tree->forward_at = 0;
    tree->named = true; /* it counts on the peers' next backward, when it names nothing itself */
    /* at once, as slots may serve other units first; but in the middle of a backward ranks keep
     * what their graphs still read, which may differ, and look at each unit when it is used */
    if (!tree->in_backward || tree->settled || !is_reached(tree)) {
        MS_TRY(msi_units_renew(tree, tree->units, tree->n_units));
    }
    return msi_queue_run(tree);
}

/* Prefetched, and not used. All ranks say so: one that skips alone would be found out only where
 * its part had to wait for the slot. */
static void skip(ms_fsdp_unit *u)
{
    msi_note note = {.n_numbers = 0};

    if (u->slot != NULL) {
        msi_label_about(&note.label, "skipped unit", u->name);
        msi_unit_note(u, &note);
    }
    msi_unit_reshard(u);
}

bool msi_unit_is_differentiated(const ms_fsdp_unit *u)
{
    return u->ran_pre_backward && (u->pending > 0 || u->lingers > 0);
}

static void leave_forward(ms_fsdp_tree *tree, msi_pass *pass)
{
    ms_fsdp_unit *u = pass->unit;

    msi_pass_end(tree, pass);
    if (u->options.strategy == MS_FSDP_FULL_SHARD && !u->is_root &&
        !msi_unit_is_differentiated(u) && msi_pass_running(u) == NULL) {
        msi_unit_reshard(u);
    }
    msi_unit_show_use(u);
}

/* Leave those inside `pass` (NULL: all) that an error has ended: [Note: forwards that run]. */
static void leave_ended(ms_fsdp_tree *tree, const msi_pass *pass)
{
    while (tree->forward != pass && !msi_scope_is_open(tree->ctx, tree->forward->scope)) {
        leave_forward(tree, tree->forward);
    }
}

ms_status ms_fsdp_tree_post_forward(ms_fsdp_tree *tree)
{
    leave_ended(tree, NULL);
    tree->pre_order_fixed = tree->pre_order_fixed || tree->n_pre > 0;
    for (int32_t i = 0; i < tree->n_units; i++) {
        if (tree->units[i]->state == MS_UNIT_PUBLISHED) {
            skip(tree->units[i]);
        }
    }
    tree->named = tree->named && tree->in_backward; /* a hook's forward is part of that */
    return msi_queue_run(tree);
}

static ms_status check_in_tree(const ms_fsdp_unit *u)
{
    if (u->tree == NULL || !u->tree->initialized) {
        return MS_FAIL(MS_RUNTIME_ERROR, "unit '%s' is used before its tree was initialised",
                       u->name);
    }
    return MS_OK;
}

static ms_status prefetch(ms_fsdp_unit *u)
{
    return u->state == MS_UNIT_SHARDED && msi_slot_available(u) ? msi_unit_publish(u) : MS_OK;
}

ms_status ms_fsdp_unit_pre_forward(ms_fsdp_unit *u)
{
    ms_fsdp_tree *tree = u->tree;

    MS_TRY(check_in_tree(u));
    leave_ended(tree, NULL);
    MS_TRY(msi_pass_begin(u));
    MS_TRY(msi_unit_unshard(u));
    if (!tree->pre_order_fixed && tree->n_pre < tree->n_units) {
        tree->pre_order[tree->n_pre++] = u;
    }
    while (tree->forward_at < tree->n_pre && tree->pre_order[tree->forward_at] != u) {
        tree->forward_at++;
    }
    if (tree->options.forward_prefetch && tree->pre_order_fixed &&
        tree->forward_at + 1 < tree->n_pre) {
        MS_TRY(prefetch(tree->pre_order[tree->forward_at + 1]));
    }
    return MS_OK;
}

static ms_status expect_backward(void *user);
static ms_status pre_backward(void *user);

/* Before any of the outputs is differentiated the unit must be unsharded again. */
static ms_status hook_outputs(msi_pass *pass, ms_tensor *const *outputs, int32_t n_outputs)
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
        pass->unit->needs_pre_backward = pass->unit->tree->records = true;
    }
    return MS_OK;
}

ms_status ms_fsdp_unit_post_forward(ms_fsdp_unit *u, ms_tensor *const *outputs, int32_t n_outputs)
{
    ms_fsdp_tree *tree = u->tree;

    MS_TRY(check_in_tree(u));
    msi_pass *pass = msi_pass_running(u);

    if (pass == NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "unit '%s' ends a forward that it has not begun", u->name);
    }
    leave_ended(tree, pass);
    if (ms_grad_enabled()) {
        /* first: it may be called again, as nothing after it takes memory */
        MS_TRY(hook_outputs(pass, outputs, n_outputs));
        if (u->post_index < 0 && tree->n_post < tree->n_units) {
            u->post_index = tree->n_post;
            tree->post_order[tree->n_post++] = u;
        }
    }
    leave_forward(tree, pass);
    return msi_queue_run(tree);
}

/* -- backward ---------------------------------------------------------------------------------- */

/* The unit whose backward comes after u's: the one before it in forward. */
static ms_status prefetch_backward(ms_fsdp_unit *u)
{
    ms_fsdp_tree *tree = u->tree;

    if (u->post_index <= 0) {
        return MS_OK;
    }
    ms_fsdp_unit *next = tree->post_order[u->post_index - 1];

    return next->needs_pre_backward && !next->ran_pre_backward ? prefetch(next) : MS_OK;
}

/* Everything that this forward recorded has run. */
static ms_status left_behind(void *user)
{
    msi_pass *pass = user;
    ms_fsdp_unit *u = pass->unit;

    msi_pass_left(pass);
    return u->lingers == 0 ? msi_unit_post_backward(u) : MS_OK;
}

const ms_fsdp_unit *msi_unit_in_forward(ms_fsdp_tree *tree)
{
    const ms_fsdp_unit *outermost = NULL;

    leave_ended(tree, NULL);
    for (const msi_pass *pass = tree->forward; pass != NULL; pass = pass->around) {
        outermost = pass->unit;
    }
    return outermost;
}

ms_status msi_backward_may_begin(ms_fsdp_tree *tree)
{
    const ms_fsdp_unit *u = msi_unit_in_forward(tree);

    return u == NULL ? MS_OK
                     : MS_FAIL(MS_ASSERTION_ERROR,
                               "backward cannot begin during forward (unit '%s' is in its forward)",
                               u->name);
}

/* [Note: what still reads a unit] The op that finishes its last gradient need not be the last to
 * read it: frozen parameters have none, and a trainable one may be read apart from its gradient
 * (detach). Nor need ops of its forwards be the only ones: what is kept unsharded may be read
 * between them. So a unit lingers from the start of a backward until that is past all that its
 * forwards did which it reaches, and its gradients are finished. */
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
    MS_TRY(msi_masters_check(u->tree, "backward"));
    MS_TRY(msi_backward_may_begin(u->tree));
    MS_TRY(msi_unit_unshard(u));
    if (!u->ran_pre_backward) {
        u->ran_pre_backward = true;
        msi_unit_show_use(u);
        if (u->tree->options.backward_prefetch == MS_FSDP_PREFETCH_PRE) {
            MS_TRY(prefetch_backward(u));
        }
    }
    return msi_queue_run(u->tree);
}

/* no_sync trades memory for the next forward's gather. */
static bool keeps_after_backward(const ms_fsdp_unit *u)
{
    return !u->tree->sync && u->options.strategy != MS_FSDP_FULL_SHARD;
}

ms_status msi_unit_post_backward(ms_fsdp_unit *u)
{
    ms_fsdp_tree *tree = u->tree;

    if (u->lingers == 0 && u->pending == 0 && !keeps_after_backward(u)) {
        msi_unit_reshard(u);
    }
    msi_unit_show_use(u);
    return tree->options.backward_prefetch == MS_FSDP_PREFETCH_POST ? prefetch_backward(u) : MS_OK;
}

static bool accumulates(const ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        if (msi_unit_has_levels(tree->units[i])) {
            return true;
        }
    }
    return false;
}

static ms_status backward_begins(void *user)
{
    ms_fsdp_tree *tree = user;

    tree->in_backward = true;
    tree->named = false;
    if (tree->n_kept > 0 &&
        !accumulates(tree)) { /* reduced, or dropped by an error or the script */
        tree->n_kept = 0;
    }
    return MS_OK;
}

/* Does the running backward have gradients for any of its units? */
static bool expects_gradients(const ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        if (tree->units[i]->expecting) {
            return true;
        }
    }
    return false;
}

/* A micro-batch of no_sync is done: units that it did not reach have an empty leaf. */
static ms_status count_kept(ms_fsdp_tree *tree)
{
    const bool any = expects_gradients(tree);

    for (int32_t i = 0; any && i < tree->n_units; i++) {
        if (!tree->units[i]->expecting) {
            MS_TRY(msi_unit_keep_leaf(tree->units[i]));
        }
    }
    tree->n_kept += any;
    return MS_OK;
}

/* What no_sync accumulated in units that this backward did not reach: reduced with the rest. */
static ms_status reduce_unreached(ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        if (msi_unit_has_levels(u)) {
            u->expecting = true;
            MS_TRY(msi_unit_fold_into_slot(u));
            MS_TRY(msi_gradient_announce(u));
        }
    }
    return MS_OK;
}

static ms_status finish_backward(void *user)
{
    ms_fsdp_tree *tree = user;

    if (!is_reached(tree)) {
        return MS_OK;
    }
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(msi_unit_check_kept(tree->units[i]));
    }
    MS_TRY(tree->sync ? reduce_unreached(tree) : count_kept(tree));
    MS_TRY(msi_gradients_finish(tree));
    for (int32_t i = 0; i < tree->n_units; i++) {
        if (tree->units[i]->state == MS_UNIT_PUBLISHED) {
            skip(tree->units[i]);
        } else if (!keeps_after_backward(tree->units[i])) {
            msi_unit_reshard(tree->units[i]);
        }
    }
    MS_TRY(msi_queue_run(tree));
    tree->settled = true;
    return MS_OK;
}

/* See [Note: gradients inside a backward]. */
static ms_status run_accumulate_hooks(void *user)
{
    ms_fsdp_tree *tree = user;

    for (int32_t i = 0; i < tree->n_units; i++) {
        for (int32_t k = 0; k < tree->units[i]->n_params; k++) {
            msi_unit_param *p = &tree->units[i]->params[k];

            if (p->arrived) {
                p->arrived = false;
                MS_TRY(msi_hooks_run_accumulate(p->tensor));
            }
        }
    }
    return MS_OK;
}

static void forget_iteration(ms_fsdp_tree *tree)
{
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        u->needs_pre_backward = u->ran_pre_backward = u->expecting = false;
        for (msi_pass *pass = u->passes; u->lingers > 0 && pass != NULL; pass = pass->next) {
            if (pass->expected) {
                msi_pass_left(pass);
            }
        }
        u->post_index = -1;
        msi_unit_show_use(u);
    }
    tree->n_post = 0;
    tree->named = false;
}

/* By a forward that failed with `cause`; NULL: the running backward's gradients are not. */
static void set_given_up(ms_fsdp_tree *tree, const char *cause)
{
    if (!tree->given_up && cause == NULL) {
        return;
    }
    tree->given_up = cause != NULL;
    for (int32_t i = 0; i < tree->n_units; i++) {
        msi_unit_explain(tree->units[i], cause);
    }
}

/* Gradients that are settled stay. Those of a backward that goes on are given up, and it fails when
 * it comes to them, or at its end. What it has added to earlier ones cannot be taken out, so those
 * go, too: of all units, whether it came to them or not, as wrapping decides nothing. */
static void reset(ms_fsdp_tree *tree, const char *what)
{
    const bool gives_up = !tree->settled && expects_gradients(tree);
    char message[4096];

    if (!tree->initialized) {
        return;
    }
    /* cleaning up must not hide the error it cleans up after */
    snprintf(message, sizeof(message), "%s", ms_error_message());
    tree->named |= is_reached(tree) && !tree->given_up; /* once given up it has been said */
    for (int32_t i = 0; i < tree->n_units; i++) {
        /* a slot's generation was counted up, be it named or not */
        tree->named |= tree->units[i]->slot != NULL || tree->units[i]->grad_slot != NULL;
    }
    msi_tree_give_up(tree, what);
    msi_pass_end_all(tree);
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        if (!tree->settled) {
            msi_unit_gradient_drop(u, gives_up);
        }
        msi_unit_reshard(u);
    }
    tree->n_pre = tree->pre_order_fixed ? tree->n_pre : 0;
    if (!is_reached(tree)) {
        forget_iteration(tree);
    } else if (!tree->settled) {
        set_given_up(tree, message);
    }
    ms_error_set(MS_RUNTIME_ERROR, message);
}

void ms_fsdp_tree_reset(ms_fsdp_tree *tree)
{
    reset(tree, "");
}

static void backward_ends(void *user, ms_status status)
{
    ms_fsdp_tree *tree = user;
    const bool reached = is_reached(tree);

    if (reached && status != MS_OK) {
        tree->settled = false;
        reset(tree, "backward");
    }
    if (reached) {
        forget_iteration(tree);
    }
    set_given_up(tree, NULL);
    tree->in_backward = tree->settled = false;
}

/* -- sync, explicit unshard -------------------------------------------------------------------- */

ms_status ms_fsdp_tree_set_sync(ms_fsdp_tree *tree, bool sync)
{
    static const msi_note notes[] = {
        {.label = {.text = "no_sync"}, .text = {.text = "begun"}},
        {.label = {.text = "no_sync"}, .text = {.text = "ended"}},
    };

    MS_TRY(ms_fsdp_tree_init(tree));
    if (tree->in_backward) {
        return MS_FAIL(MS_ASSERTION_ERROR, "no_sync() cannot begin or end during backward");
    }
    if (sync != tree->sync) {
        msi_tree_note(tree, &notes[sync]);
    }
    if (!sync) {
        MS_TRY(msi_gradients_widen(tree));
    }
    tree->sync = sync;
    return MS_OK;
}

bool ms_fsdp_tree_sync(const ms_fsdp_tree *tree)
{
    return tree->sync;
}

ms_status ms_fsdp_tree_set_gradient_factor(ms_fsdp_tree *tree, double factor)
{
    if (!(factor >= 0 && isfinite(factor))) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "gradient factor is %g, expected 0 (default) or a finite number above",
                       factor);
    }
    for (int32_t i = 0; i < tree->n_units; i++) {
        MS_TRY(msi_unit_check_gradient(tree->units[i], "set_gradient_factor"));
    }
    if (factor != tree->factor) {
        const msi_note note = {
            {.text = "set_gradient_factor"}, {.text = "factor"}, {factor}, .n_numbers = 1};

        msi_tree_note(tree, &note);
    }
    tree->factor = factor;
    return MS_OK;
}

ms_status ms_fsdp_unit_unshard(ms_fsdp_unit *u)
{
    MS_TRY(check_in_tree(u));
    MS_TRY(msi_units_renew(u->tree, &u, 1));
    MS_TRY(msi_unit_unshard(u));
    u->held = true;
    msi_unit_show_use(u);
    return MS_OK;
}

ms_status ms_fsdp_unit_reshard(ms_fsdp_unit *u)
{
    MS_TRY(check_in_tree(u));
    leave_ended(u->tree, NULL);
    const bool in_forward = msi_pass_running(u) != NULL;

    if (u->grad_phase == MSI_GRAD_WRITING || in_forward) {
        return MS_FAIL(MS_RUNTIME_ERROR, "unit '%s' cannot be resharded during its %s", u->name,
                       in_forward ? "forward" : "backward");
    }
    msi_unit_reshard(u);
    return MS_OK;
}

/* -- the schedule's memory --------------------------------------------------------------------- */

ms_status msi_schedule_new(ms_fsdp_tree *tree)
{
    size_t bytes = sizeof(ms_fsdp_unit *) * (size_t)(tree->n_units + 1);

    tree->written =
        malloc(sizeof(*tree->written) * (size_t)(tree->n_units + 1) * (size_t)(tree->world + 1));
    tree->publishing = malloc(bytes);
    tree->reducing = malloc(bytes);
    tree->post_order = malloc(bytes);
    tree->pre_order = malloc(bytes);
    if (tree->written == NULL || tree->publishing == NULL || tree->reducing == NULL ||
        tree->post_order == NULL || tree->pre_order == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the schedule of %d units",
                       (int)tree->n_units);
    }
    const msi_backward_observer observer = {backward_begins, finish_backward, run_accumulate_hooks,
                                            backward_ends, tree};

    return msi_backward_observe(tree->ctx, &observer);
}

void msi_schedule_free(ms_fsdp_tree *tree)
{
    msi_pass_end_all(tree);
    msi_backward_unobserve(tree->ctx, tree);
    free(tree->written);
    free(tree->publishing);
    free(tree->reducing);
    free(tree->post_order);
    free(tree->pre_order);
    tree->written = NULL;
    tree->publishing = tree->reducing = tree->post_order = tree->pre_order = NULL;
}
