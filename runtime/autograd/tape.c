/* The tape: making and freeing nodes.
 *
 * At the one observable point (op.h) a node is made before an op's forward if an operand requires
 * grad; after it the node becomes its results' grad_fn. */
#include "tape.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 256 << 10 };

typedef struct msi_chunk {
    struct msi_chunk *next;
    char padding[56]; /* records start on cache lines */
} msi_chunk;

/* -- the context's tape ------------------------------------------------------------------------ */

static void tape_free(msi_tape *tape)
{
    while (tape->chunks != NULL) {
        msi_chunk *next = tape->chunks->next;

        free(tape->chunks);
        tape->chunks = next;
    }
    free(tape->to_visit.item);
    free(tape->hooked.item);
    free(tape->queue.item);
    free(tape->leaves.item);
    free(tape->reached.item);
    free(tape->temps.item);
    free(tape->ended.item);
    free(tape->milestones);
    free(tape->watchers);
    free(tape);
}

/* Handles still point to nodes; closing tensor/ next drops them one by one. */
static void tape_close(void *state)
{
    msi_tape *tape = state;

    while (tape->ended.n > 0) {
        msi_node_release(tape->ended.item[--tape->ended.n]);
    }
    tape->closed = true;
    if (tape->live == 0) {
        tape_free(tape);
    }
}

static void gone(msi_tape *tape)
{
    tape->live--;
    if (MSI_UNLIKELY(tape->closed) && tape->live == 0 && !tape->burying) {
        tape_free(tape);
    }
}

msi_tape *msi_tape_of(ms_context *ctx)
{
    if (MSI_UNLIKELY(ctx == NULL)) {
        return NULL;
    }
    if (MSI_UNLIKELY(ctx->room[MSI_ROOM_AUTOGRAD] == NULL)) {
        msi_tape *tape = calloc(1, sizeof(*tape));

        if (tape == NULL) {
            msi_fail(MS_OUT_OF_MEMORY, "no memory for the tape (%zu bytes)", sizeof(*tape));
            return NULL;
        }
        tape->ctx = ctx;
        tape->recording = true;
        ctx->room[MSI_ROOM_AUTOGRAD] = tape;
        ctx->close[MSI_ROOM_AUTOGRAD] = tape_close;
    }
    return ctx->room[MSI_ROOM_AUTOGRAD];
}

/* -- records ----------------------------------------------------------------------------------- */

/* `bytes`, a multiple of 64, from the current chunk. */
static void *cut(msi_tape *tape, int64_t bytes)
{
    if (tape->chunk_end - tape->chunk_at < bytes) {
        msi_chunk *chunk = aligned_alloc(64, CHUNK_BYTES);

        if (chunk == NULL) {
            msi_fail(MS_OUT_OF_MEMORY, "no memory for the tape's records (%d bytes)", CHUNK_BYTES);
            return NULL;
        }
        chunk->next = tape->chunks;
        tape->chunks = chunk;
        tape->chunk_at = (char *)(chunk + 1);
        tape->chunk_end = (char *)chunk + CHUNK_BYTES;
    }
    void *record = tape->chunk_at;

    tape->chunk_at += bytes;
    return record;
}

static int64_t rounded(size_t bytes)
{
    return ((int64_t)bytes + MSI_NODE_GRAIN - 1) / MSI_NODE_GRAIN * MSI_NODE_GRAIN;
}

ms_status msi_list_push(msi_list *list, void *item)
{
    if (MSI_UNLIKELY(list->n == list->capacity)) {
        int32_t capacity = list->capacity > 0 ? list->capacity * 2 : 64;
        void **grown = realloc(list->item, sizeof(*grown) * (size_t)capacity);

        if (grown == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a list of %d nodes", (int)capacity);
        }
        list->item = grown;
        list->capacity = capacity;
    }
    list->item[list->n++] = item;
    return MS_OK;
}

void msi_list_free(msi_list *list)
{
    free(list->item);
    *list = (msi_list){.item = NULL};
}

ms_status msi_tape_hook(msi_hooks **out, msi_tape *tape)
{
    msi_hooks *hook = tape->free_hooks;

    if (hook != NULL) {
        tape->free_hooks = hook->next;
    } else {
        hook = cut(tape, rounded(sizeof(*hook)));
    }
    *out = hook;
    if (hook == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    memset(hook, 0, sizeof(*hook));
    hook->tape = tape;
    hook->id = ++tape->hook_id;
    tape->live++;
    return MS_OK;
}

void msi_tape_drop_hook(msi_hooks *hook)
{
    msi_tape *tape = hook->tape;

    if (hook->drop != NULL) {
        tape->ctx->host_calls++;
        hook->drop(hook->user);
        tape->ctx->host_calls--;
    }
    hook->next = tape->free_hooks;
    tape->free_hooks = hook;
    gone(tape);
}

void msi_hooks_drop_all(msi_hooks **list)
{
    while (*list != NULL) {
        msi_hooks *hook = *list;

        *list = hook->next;
        msi_tape_drop_hook(hook);
    }
}

ms_status msi_tape_grad(msi_grad **out, msi_tape *tape)
{
    *out = tape->free_grads;
    if (*out != NULL) {
        tape->free_grads = (*out)->next_free;
        return MS_OK;
    }
    *out = cut(tape, rounded(sizeof(**out)));
    return *out != NULL ? MS_OK : MS_OUT_OF_MEMORY;
}

void msi_grads_clear(msi_node *node)
{
    msi_tape *tape = node->tape;

    for (int32_t i = 0; i < node->n_out; i++) {
        msi_grad *grad = node->out[i].grad;

        if (grad != NULL) {
            node->out[i].grad = NULL;
            msi_storage_release(grad->view.storage);
            grad->next_free = tape->free_grads;
            tape->free_grads = grad;
        }
    }
}

/* -- nodes ------------------------------------------------------------------------------------- */

/* A node without gradients and saved views; edges are unset. */
static ms_status node_new(msi_node **out, msi_tape *tape, const msi_op *op, int32_t n_in,
                          int32_t n_out, int32_t n_dims)
{
    const size_t n_saved = op != NULL ? (size_t)op->n_saved : 0;
    const size_t edges = sizeof(msi_node) + sizeof(msi_output) * (size_t)(n_out - 1);
    const size_t saved = edges + sizeof(msi_edge) * (size_t)n_in;
    const size_t shapes = saved + sizeof(msi_saved) * n_saved;
    const size_t attrs = shapes + sizeof(int64_t) * (size_t)n_dims;
    const int64_t bytes = rounded(attrs + (op != NULL ? (size_t)op->attrs_size : 0));
    const int64_t size_class = bytes / MSI_NODE_GRAIN;

    *out = NULL;
    if (MSI_UNLIKELY(size_class >= MSI_NODE_CLASSES)) {
        return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                       "'%s' has %d operands and %d results, too many to record", op->name,
                       (int)n_in, (int)n_out);
    }
    msi_node *node = tape->free_nodes[size_class];

    if (MSI_LIKELY(node != NULL)) {
        tape->free_nodes[size_class] = node->next;
    } else {
        node = cut(tape, bytes);
        if (node == NULL) {
            return MS_OUT_OF_MEMORY;
        }
    }
    memset(node, 0, offsetof(msi_node, out));
    node->op = op;
    node->tape = tape;
    node->refcount = 1;
    node->n_in = (int16_t)n_in;
    node->n_out = (int16_t)n_out;
    node->n_saved = (int16_t)n_saved;
    node->size_class = (int16_t)size_class;
    node->edge = (msi_edge *)((char *)node + edges);
    node->saved = (msi_saved *)((char *)node + saved);
    node->attrs = (char *)node + attrs;
    for (size_t i = 0; i < n_saved; i++) {
        node->saved[i].view.storage = NULL;
    }
    for (int32_t i = 0; i < n_out; i++) {
        node->out[i].grad = NULL;
        node->out[i].tensor = NULL;
    }
    tape->live++;
    *out = node;
    return MS_OK;
}

/* First of the operands' sizes. */
static int64_t *node_shapes(msi_node *node)
{
    return (int64_t *)(void *)(node->saved + node->n_saved);
}

msi_node *msi_node_retain(msi_node *node)
{
    node->refcount++;
    return node;
}

void msi_node_drop_saved(msi_node *node)
{
    for (int32_t i = 0; i < node->n_saved; i++) {
        msi_storage_release(node->saved[i].view.storage);
        node->saved[i].view.storage = NULL;
    }
}

/* [Note: what is left of a graph] A result that outlives its backward must still show which op made
 * it. A spent node therefore hands its results to one placeholder per op. So its memory, which is
 * in cache, serves the next step, even while results wait for a garbage collector. */
static msi_node *ended(msi_tape *tape, const msi_op *op)
{
    msi_node *node;

    for (int32_t i = 0; i < tape->ended.n; i++) {
        node = tape->ended.item[i];
        if (node->op == op) {
            return node;
        }
    }
    if (node_new(&node, tape, op, 0, 1, 0) != MS_OK) {
        return NULL;
    }
    node->spent = true;
    if (msi_list_push(&tape->ended, node) != MS_OK) {
        msi_node_release(node);
        return NULL;
    }
    return node;
}

/* Without memory for the placeholder, the node stays. */
static void leave_results(msi_node *node)
{
    for (int32_t i = 0; i < node->n_out; i++) {
        ms_tensor *t = node->out[i].tensor;
        msi_node *left = t != NULL ? ended(node->tape, node->op) : NULL;

        if (left != NULL) {
            t->grad_fn = msi_node_retain(left);
            node->out[i].tensor = NULL;
            msi_node_release(node);
        }
    }
}

void msi_node_spend(msi_node *node)
{
    if (!node->spent) {
        leave_results(node);
    }
    node->spent = true;
    msi_node_drop_saved(node);
    if (MSI_UNLIKELY(node->hooks != NULL || node->pre != NULL)) {
        msi_hooks_drop_all(&node->hooks);
        msi_hooks_drop_all(&node->pre);
    }
    for (int32_t i = 0; i < node->n_in; i++) {
        msi_node *operand = node->edge[i].node;

        node->edge[i].node = NULL;
        if (operand != NULL) {
            msi_node_release(operand);
        }
    }
}

static void bury(msi_node *node)
{
    msi_tape *tape = node->tape;

    msi_grads_clear(node);
    if (node->leaf != NULL) {
        ms_tensor *leaf = node->leaf;

        node->leaf = NULL;
        leaf->leaf_node = NULL;
        ms_tensor_free(leaf);
    }
    msi_node_spend(node);
    node->next = tape->free_nodes[node->size_class];
    tape->free_nodes[node->size_class] = node;
}

/* Not recursive: dead nodes queue up here. */
void msi_node_release(msi_node *node)
{
    msi_tape *tape = node->tape;

    if (--node->refcount > 0) {
        return;
    }
    node->next = tape->dead;
    tape->dead = node;
    if (tape->burying) {
        return;
    }
    tape->burying = true;
    int64_t buried = 0;

    while (tape->dead != NULL) {
        msi_node *dead = tape->dead;

        tape->dead = dead->next;
        bury(dead);
        buried++;
    }
    tape->burying = false;
    tape->live -= buried - 1;
    gone(tape);
}

ms_status msi_node_own(msi_node *node, void *user, void (*drop)(void *user))
{
    msi_hooks *hook;

    MS_TRY(msi_tape_hook(&hook, node->tape));
    hook->kind = MSI_HOOK_OWNER;
    hook->user = user;
    hook->drop = drop;
    hook->next = node->hooks;
    node->hooks = hook;
    return MS_OK;
}

ms_status msi_node_of_leaf(msi_node **out, msi_tape *tape, ms_tensor *leaf)
{
    if (leaf->leaf_node != NULL) {
        *out = msi_node_retain(leaf->leaf_node);
        return MS_OK;
    }
    MS_TRY(node_new(out, tape, NULL, 0, 1, 0));
    (*out)->leaf = ms_tensor_retain(leaf);
    (*out)->out[0].dtype = leaf->v.dtype;
    (*out)->out[0].ndim = leaf->v.ndim;
    memcpy((*out)->out[0].shape, leaf->v.shape, sizeof(leaf->v.shape));
    leaf->leaf_node = *out;
    return MS_OK;
}

/* -- recording --------------------------------------------------------------------------------- */

static ms_status connect(msi_node *node, const msi_op_call *call)
{
    int64_t *shape = node_shapes(node);

    for (int32_t i = 0; i < call->n_in; i++) { /* all empty first: a failure below releases them */
        node->edge[i] = (msi_edge){.node = NULL, .ndim = -1};
    }
    for (int32_t i = 0; i < call->n_in; i++) {
        ms_tensor *in = call->in[i];
        msi_edge *edge = &node->edge[i];

        if (in == NULL) {
            continue;
        }
        edge->dtype = in->v.dtype;
        edge->ndim = in->v.ndim;
        edge->shape = shape;
        for (int32_t d = 0; d < in->v.ndim; d++) {
            *shape++ = in->v.shape[d];
        }
        if (!in->requires_grad) {
            continue;
        }
        if (in->grad_fn != NULL) {
            edge->node = msi_node_retain(in->grad_fn);
            edge->out = in->out_index;
        } else {
            MS_TRY(msi_node_of_leaf(&edge->node, node->tape, in));
            edge->shard = msi_tensor_is_shard(in);
        }
    }
    return MS_OK;
}

static ms_status record_begin(msi_op_call *call)
{
    bool needed = false;
    int32_t n_dims = 0;

    if (call->op->backward == NULL || call->meta) {
        return MS_OK;
    }
    for (int32_t i = 0; i < call->n_in; i++) {
        if (call->in[i] != NULL) {
            needed |= call->in[i]->requires_grad;
            n_dims += call->in[i]->v.ndim;
        }
    }
    if (!needed) {
        return MS_OK;
    }
    msi_tape *tape = msi_tape_of(call->ctx);

    if (MSI_UNLIKELY(tape == NULL)) {
        return MS_OUT_OF_MEMORY;
    }
    if (!tape->recording) {
        return MS_OK;
    }
    MS_TRY(node_new(&call->node, tape, call->op, call->n_in, call->n_out, n_dims));
    call->node->sequence = ++tape->sequence;
    if (call->op->attrs_size > 0) {
        memcpy(call->node->attrs, call->attrs, (size_t)call->op->attrs_size);
    }
    return connect(call->node, call);
}

void msi_node_output(msi_node *node, int32_t i, ms_tensor *t)
{
    msi_output *output = &node->out[i];

    output->dtype = t->v.dtype;
    output->ndim = t->v.ndim;
    memcpy(output->shape, t->v.shape, sizeof(int64_t) * (size_t)t->v.ndim);
    output->tensor = t;
    t->requires_grad = true;
    t->out_index = (int16_t)i;
    t->grad_fn = msi_node_retain(node);
}

static void record_end(msi_op_call *call, ms_status status)
{
    msi_node *node = call->node;

    if (node == NULL) {
        return;
    }
    for (int32_t i = 0; status == MS_OK && i < call->n_out; i++) {
        if (ms_dtype_is_floating(call->out[i]->v.dtype)) {
            msi_node_output(node, i, call->out[i]);
        }
    }
    msi_node_release(node);
}

ms_status msi_node_record(msi_node **out, const msi_op *op, const void *attrs, ms_tensor *const *in,
                          int32_t n_in, int32_t n_out)
{
    msi_op_call call = {.op = op, .attrs = attrs, .in = in, .n_in = n_in, .n_out = n_out};

    *out = NULL;
    for (int32_t i = 0; i < n_in && call.ctx == NULL; i++) {
        call.ctx = in[i] != NULL ? in[i]->ctx : NULL;
    }
    if (call.ctx == NULL) {
        return MS_OK;
    }
    ms_status status = record_begin(&call);

    if (status != MS_OK && call.node != NULL) {
        msi_node_release(call.node);
        return status;
    }
    *out = call.node;
    return status;
}

ms_status msi_node_of_edges(msi_node **out, msi_tape *tape, const msi_op *op, const void *attrs,
                            msi_edge *const *edges, int32_t n, msi_node *rest, int32_t n_out)
{
    MS_TRY(node_new(out, tape, op, n + (rest != NULL), n_out, 0));
    (*out)->sequence = ++tape->sequence;
    if (op->attrs_size > 0) {
        memcpy((*out)->attrs, attrs, (size_t)op->attrs_size);
    }
    for (int32_t i = 0; i < n; i++) {
        (*out)->edge[i] = *edges[i];
        (*out)->edge[i].shape = NULL; /* the other node's */
        (*out)->edge[i].shard = false;
        msi_node_retain(edges[i]->node);
    }
    if (rest != NULL) {
        (*out)->edge[n] = (msi_edge){.node = msi_node_retain(rest), .ndim = -1};
    }
    return MS_OK;
}

static bool record_is_on(const ms_context *ctx)
{
    const msi_tape *tape = ctx->room[MSI_ROOM_AUTOGRAD];

    return tape == NULL || tape->recording;
}

bool msi_call_needs(const msi_op_call *c, int32_t i)
{
    return c->node != NULL && c->node->edge[i].node != NULL;
}

void msi_save(msi_op_call *c, int32_t which, const msi_view *v)
{
    if (c->node == NULL) {
        return;
    }
    msi_saved *saved = &c->node->saved[which];

    msi_storage_retain(v->storage);
    msi_storage_release(saved->view.storage);
    saved->view = *v;
    saved->version = v->storage->version;
    c->node->reads_grad |= v->storage->mem_kind == MS_MEM_GRADIENT;
}

/* Drop a handle's autograd state. */
static void drop_autograd(ms_tensor *t)
{
    msi_node *node = t->grad_fn;
    ms_tensor *grad = t->grad;

    t->grad_fn = NULL;
    t->grad = NULL;
    if (t->leaf_node != NULL) { /* the context closes while its node awaits gradients */
        t->leaf_node->leaf = NULL;
        t->leaf_node = NULL;
    }
    msi_hooks_drop_all(&t->hooks);
    ms_tensor_free(grad);
    if (node != NULL) {
        if (!node->spent) {
            node->out[t->out_index].tensor = NULL;
        }
        msi_node_release(node);
    }
}

static const msi_op_recorder recorder = {record_begin, record_end, record_is_on, drop_autograd};

void msi_autograd_install(ms_context *ctx)
{
    ctx->recorder = &recorder;
}
