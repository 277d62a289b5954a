/* Passes: one forward of one unit, as its graph remembers it.
 *
 * Several graphs of a unit may exist, be differentiated in any order, and outlive the model. So the
 * graph stores what backward needs: the unit and the forward's start on the tape. The unit owns and
 * reuses the records.
 *
 * [Note: forwards that run] Running forwards form a stack. An error that the script catches inside
 * an outer forward ends the inner ones without a call. It closes the scopes they began in, so these
 * are checked wherever the stack matters. */
#include "schedule.h"
#include "unshard.h"

#include "moonshard/plan.h"

#include <stdlib.h>

ms_status msi_pass_begin(ms_fsdp_unit *u)
{
    ms_fsdp_tree *tree = msi_tree_of(u);
    msi_unit_schedule *course = msi_unit_schedule_of(u);
    msi_pass *pass = course->passes;

    while (pass != NULL && pass->refcount > 0) {
        pass = pass->next;
    }
    if (pass == NULL) {
        pass = calloc(1, sizeof(*pass));
        if (pass == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a forward of unit '%s'", u->name);
        }
        pass->next = course->passes;
        course->passes = pass;
    }
    pass->unit = u;
    pass->full_use = u->full_use = u->full_forward;
    pass->place = msi_autograd_now(u->ctx);
    pass->scope = msi_scope_now(u->ctx);
    pass->refcount = 1;
    pass->collected = pass->expected = false;
    pass->waits = 0;
    pass->around = tree->forward;
    tree->forward = pass;
    u->use.running++;
    msi_unit_plan(u, MS_PLAN_FORWARD);
    return MS_OK;
}

msi_pass *msi_pass_running(const ms_fsdp_unit *u)
{
    msi_pass *pass = msi_tree_of(u)->forward;

    while (pass != NULL && pass->unit != u) {
        pass = pass->around;
    }
    return pass;
}

void msi_pass_recorded(msi_pass *pass)
{
    ms_fsdp_unit *u = pass->unit;

    u->use.n_waiting += pass->waits != u->use.eval_epoch;
    pass->waits = u->use.eval_epoch;
}

static void stop_waiting(msi_pass *pass)
{
    pass->unit->use.n_waiting -= pass->waits == pass->unit->use.eval_epoch;
    pass->waits = 0;
}

void msi_pass_expected(msi_pass *pass)
{
    pass->expected = true;
    pass->unit->use.backward_passes++;
    msi_pass_retain(pass);
}

void msi_pass_left(msi_pass *pass)
{
    stop_waiting(pass);
    pass->expected = false;
    pass->unit->use.backward_passes--;
    msi_pass_drop(pass);
}

void msi_pass_end(ms_fsdp_tree *tree, msi_pass *pass)
{
    msi_pass **at = &tree->forward;

    while (*at != pass) {
        at = &(*at)->around;
    }
    *at = pass->around;
    pass->unit->use.running--;
    msi_unit_plan(pass->unit, MS_PLAN_FORWARD_END);
    msi_pass_drop(pass);
}

msi_pass *msi_pass_retain(msi_pass *pass)
{
    pass->refcount++;
    return pass;
}

void msi_pass_end_all(ms_fsdp_tree *tree)
{
    while (tree->forward != NULL) {
        msi_pass_end(tree, tree->forward);
    }
}

void msi_pass_drop(void *p)
{
    msi_pass *pass = p;
    ms_fsdp_unit *u = pass->unit;

    pass->refcount--;
    if (u == NULL) {
        if (pass->refcount == 0) {
            free(pass); /* last owner */
        }
        return;
    }
    pass->collected |= u->ctx->collecting;
    if (pass->refcount == 0 && !pass->collected) {
        stop_waiting(pass);
        msi_unit_show_use(u);
    }
}

void msi_passes_free(msi_unit_schedule *course)
{
    while (course->passes != NULL) {
        msi_pass *pass = course->passes;

        course->passes = pass->next;
        pass->unit = NULL;
        if (pass->refcount == 0) {
            free(pass);
        }
    }
}

/* -- the end of a forward ---------------------------------------------------------------------- */

static void reshard_after_forward(ms_fsdp_unit *u)
{
    if (!msi_unit_keeps_after_forward(u) && !msi_unit_is_differentiated(u) &&
        msi_pass_running(u) == NULL) {
        msi_unit_reshard(u);
    }
    msi_unit_show_use(u);
}

void msi_pass_keep_again(ms_fsdp_tree *tree, ms_fsdp_unit *u)
{
    ms_fsdp_unit *before = tree->again;

    tree->again = u;
    if (before != NULL && before != u) {
        reshard_after_forward(before);
    }
}

void msi_pass_leave(ms_fsdp_tree *tree, msi_pass *pass)
{
    ms_fsdp_unit *u = pass->unit;
    const bool recorded = pass->refcount > 1;

    msi_pass_end(tree, pass);
    if (recorded && msi_in_backward(&tree->run)) {
        msi_pass_keep_again(tree, u);
        msi_unit_show_use(u);
    } else {
        reshard_after_forward(u);
    }
}

void msi_pass_leave_ended(ms_fsdp_tree *tree, const msi_pass *pass)
{
    while (tree->forward != pass && !msi_scope_is_open(tree->ctx, tree->forward->scope)) {
        msi_pass_leave(tree, tree->forward);
    }
}

void ms_fsdp_tree_hide_shards(ms_fsdp_tree *tree, bool hide)
{
    if (tree->run.phase == MSI_UNUSED || tree->run.hides_shards == hide) {
        return;
    }
    const bool evaluated = !hide && !tree->records;

    if (hide) {
        tree->outer_rank = tree->ctx->sample_rank;
    }
    tree->ctx->sample_rank = hide ? tree->rank : tree->outer_rank;
    tree->run.hides_shards = hide;
    tree->records = tree->records && !hide;
    for (int32_t i = 0; i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        if (evaluated) {
            u->use.eval_epoch++;
            u->use.n_waiting = 0;
        }
        msi_unit_hide_shards(u);
    }
}

const ms_fsdp_unit *msi_unit_in_forward(ms_fsdp_tree *tree)
{
    const ms_fsdp_unit *outermost = NULL;

    msi_pass_leave_ended(tree, NULL);
    for (const msi_pass *pass = tree->forward; pass != NULL; pass = pass->around) {
        outermost = pass->unit;
    }
    return outermost;
}
