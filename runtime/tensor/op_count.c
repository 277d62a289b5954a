#include "op_count.h"
#include "array.h"

#include "op.h"
#include "pool.h"

#include <stdlib.h>

typedef struct op_count {
    const msi_op *op;
    int64_t n_ran, n_recorded;
} op_count;

struct ms_op_counter {
    ms_context *ctx;
    msi_op_observer observer;
    op_count *counts; /* (n_ops) in order of first run */
    int32_t n_ops;
    bool missed; /* one, for lack of memory */
};

/* NULL without memory. */
static op_count *count_of(ms_op_counter *c, const msi_op *op)
{
    for (int32_t i = 0; i < c->n_ops; i++) {
        if (c->counts[i].op == op) {
            return &c->counts[i];
        }
    }
    op_count *grown = realloc(c->counts, sizeof(*grown) * (size_t)(c->n_ops + 1));

    if (grown == NULL) {
        return NULL;
    }
    c->counts = grown;
    grown[c->n_ops] = (op_count){.op = op};
    return &grown[c->n_ops++];
}

static void count_end(void *user, const msi_op_call *call, ms_status status)
{
    ms_op_counter *c = user;
    op_count *count = status == MS_OK ? count_of(c, call->op) : NULL;

    c->missed |= status == MS_OK && count == NULL;
    if (count != NULL) {
        count->n_ran++;
        count->n_recorded += call->node != NULL;
    }
}

ms_status ms_op_counter_new(ms_op_counter **out)
{
    ms_context *ctx = msi_context();
    const msi_tensor_state *state = msi_tensor_state_of(ctx);

    *out = NULL;
    if (state == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    if (state->observer != NULL) {
        return MS_FAIL(MS_RUNTIME_ERROR, "this thread's operators are watched already");
    }
    MS_TRY(msi_new_array(out, 1, "counter of operators"));
    (*out)->ctx = ctx;
    (*out)->observer = (msi_op_observer){.end = count_end, .user = *out};
    msi_op_observe(ctx, &(*out)->observer);
    return MS_OK;
}

void ms_op_counter_free(ms_op_counter *c)
{
    if (c == NULL) {
        return;
    }
    if (msi_context_peek() == c->ctx) { /* else closed, with its observer */
        msi_op_observe(c->ctx, NULL);
    }
    free(c->counts);
    free(c);
}

ms_status ms_op_counter_n(const ms_op_counter *c, int32_t *n)
{
    *n = c->n_ops;
    return c->missed ? MS_FAIL(MS_OUT_OF_MEMORY, "no memory to count all operators") : MS_OK;
}

const char *ms_op_counter_get(const ms_op_counter *c, int32_t i, int64_t *n_ran,
                              int64_t *n_recorded)
{
    *n_ran = c->counts[i].n_ran;
    *n_recorded = c->counts[i].n_recorded;
    return c->counts[i].op->name;
}
