/* The walk before a backward: what it reaches, what it rejects, and which of it is needed.
 *
 * It rejects spent graphs, counts the contributions of each leaf, so that a leaf can be finished
 * (reduced, its memory reused) while backward continues, and collects hooks.
 *
 * [Note: idle nodes] A backward that returns gradients needs only those of its inputs. Nodes that
 * reach none of these are idle: they get no gradient, do not run, and keep what they saved. */
#include "tape.h"

#include <stdlib.h>
#include <string.h>

static ms_status reach_leaf(msi_tape *tape, msi_node *leaf)
{
    if (leaf->walk != tape->walk) {
        MS_TRY(msi_list_push(&tape->leaves, leaf));
        msi_node_retain(leaf);
        leaf->walk = tape->walk;
        leaf->pending = 0;
        leaf->reached = leaf->newborn = leaf->idle = false;
        leaf->gathers = leaf->captured || msi_hooks_any(leaf->leaf->hooks, MSI_HOOK_GRAD);
    }
    leaf->pending++;
    return MS_OK;
}

static ms_status reach(msi_tape *tape, msi_node *node)
{
    if (node->op == NULL) {
        return reach_leaf(tape, node);
    }
    if (node->walk == tape->walk) {
        return MS_OK;
    }
    if (node->spent) {
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "trying to backward through the graph a second time: '%s' gave up what it "
                       "saved when it was differentiated; specify retain_graph = true in the first "
                       "backward, or run forward again",
                       node->op->name);
    }
    node->walk = tape->walk;
    node->idle = false;
    if (node->pre != NULL) {
        MS_TRY(msi_list_push(&tape->hooked, node));
    }
    return msi_list_push(&tape->to_visit, node);
}

/* Between forwards a unit's parameter shows a shard, whose gradient has no place in the whole
 * parameter's, which the unit averages over ranks. */
ms_status msi_refuse_shard(const char *user, const ms_tensor *leaf, int32_t ndim,
                           const int64_t *shape)
{
    return MS_FAIL(MS_RUNTIME_ERROR,
                   "backward: '%s' was given this rank's shard %s of '%s', expected the whole "
                   "parameter %s: a term over parameters belongs in the forward of the module "
                   "that FSDP wraps with them (the weight_decay of an optimizer does without)",
                   user, msi_shape_text(ndim, shape), msi_tensor_label(leaf),
                   msi_shape_text(leaf->param->ndim, leaf->param->shape));
}

/* (The leaf's node may come from reading a shard.) */
static ms_status expect_whole(const msi_node *node, const msi_edge *edge)
{
    const ms_tensor *leaf = edge->node->leaf;
    const msi_param *p = leaf != NULL ? leaf->param : NULL;
    msi_output *whole = &edge->node->out[0];

    if (p == NULL || p->unit == NULL) {
        return MS_OK;
    }
    if (edge->shard) {
        return msi_refuse_shard(node->op->name, leaf, edge->ndim, edge->shape);
    }
    whole->dtype = edge->dtype;
    whole->ndim = edge->ndim;
    memcpy(whole->shape, p->shape, sizeof(*p->shape) * (size_t)p->ndim);
    return MS_OK;
}

/* A leaf frozen since its use gets no gradient; from a retained graph it may later. */
static bool leave_frozen(const msi_tape *tape, msi_edge *edge)
{
    msi_node *node = edge->node;

    if (node->op != NULL || MSI_LIKELY(node->leaf->requires_grad)) {
        return false;
    }
    node->idle = true;
    if (!tape->retains) {
        edge->node = NULL;
        msi_node_release(node);
    }
    return true;
}

/* A rule may read a leaf's own .grad, as in (w * w.grad).sum(). Leaves with a .grad are then summed
 * separately and added when finished, after those rules. */
static void gather_apart(const msi_tape *tape)
{
    for (int32_t i = 0; i < tape->leaves.n; i++) {
        msi_node *node = tape->leaves.item[i];

        node->gathers |= node->leaf->grad != NULL && node->leaf->sink == NULL;
    }
}

/* True if an operand needs a gradient; rules require one. */
bool msi_node_leads_on(const msi_node *node)
{
    for (int32_t i = 0; i < node->n_in; i++) {
        if (msi_edge_needs(&node->edge[i])) {
            return true;
        }
    }
    return false;
}

static int by_sequence(const void *a, const void *b)
{
    const uint64_t x = (*(msi_node *const *)a)->sequence, y = (*(msi_node *const *)b)->sequence;

    return x < y ? -1 : x > y;
}

/* See [Note: idle nodes]. Operands' nodes come first. */
static void find_idle(const msi_tape *tape)
{
    msi_node **node = (msi_node **)tape->reached.item;

    for (int32_t i = 0; i < tape->leaves.n; i++) {
        msi_node *leaf = tape->leaves.item[i];

        leaf->idle = !leaf->captured;
    }
    qsort(node, (size_t)tape->reached.n, sizeof(msi_node *), by_sequence);
    for (int32_t i = 0; i < tape->reached.n; i++) {
        node[i]->idle = !node[i]->captured && !msi_node_leads_on(node[i]);
    }
}

ms_status msi_walk_on(msi_tape *tape, const msi_root *roots, int32_t n_roots)
{
    bool reads_grad = false;

    for (int32_t i = 0; i < n_roots; i++) {
        MS_TRY(reach(tape, roots[i].node));
    }
    while (tape->to_visit.n > 0) {
        msi_node *node = tape->to_visit.item[--tape->to_visit.n];

        if (MSI_UNLIKELY(tape->returns)) {
            MS_TRY(msi_list_push(&tape->reached, node));
        }
        reads_grad |= node->reads_grad;
        for (int32_t i = 0; i < node->n_in; i++) {
            msi_edge *edge = &node->edge[i];

            if (edge->node != NULL && !leave_frozen(tape, edge)) {
                MS_TRY(expect_whole(node, edge));
                MS_TRY(reach(tape, edge->node));
            }
        }
    }
    if (MSI_UNLIKELY(reads_grad)) {
        gather_apart(tape);
    }
    return MS_OK;
}

ms_status msi_walk(msi_tape *tape, const msi_root *roots, int32_t n_roots)
{
    tape->walk++;
    tape->to_visit.n = tape->hooked.n = tape->reached.n = 0;
    MS_TRY(msi_walk_on(tape, roots, n_roots));
    if (MSI_UNLIKELY(tape->returns)) {
        find_idle(tape);
    }
    return MS_OK;
}
