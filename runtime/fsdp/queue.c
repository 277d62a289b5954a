/* The queue of what could not be done at once: publishes whose slot peers still read, reductions
 * whose gradients are not all ready. Every wait runs it, so no rank holds up another by waiting. */
#include "fsdp.h"

static void remove_at(ms_fsdp_unit **list, int32_t *n, int32_t i)
{
    for (; i + 1 < *n; i++) {
        list[i] = list[i + 1];
    }
    (*n)--;
}

ms_status msi_queue_run(ms_fsdp_tree *tree)
{
    bool again = true;

    while (again) {
        again = false;
        for (int32_t i = 0; i < tree->n_publishing;) {
            if (!msi_publish_possible(tree->publishing[i])) {
                i++;
                continue;
            }
            MS_TRY(msi_publish_fill(tree->publishing[i]));
            remove_at(tree->publishing, &tree->n_publishing, i);
            again = true;
        }
        for (int32_t i = 0; i < tree->n_reducing;) {
            bool finished = false;

            if (!msi_reduce_possible(tree->reducing[i])) {
                i++;
                continue;
            }
            MS_TRY(msi_reduce_step(tree->reducing[i], &finished));
            if (finished) {
                remove_at(tree->reducing, &tree->n_reducing, i);
            }
            again = true;
        }
    }
    return MS_OK;
}

typedef struct waiting {
    ms_fsdp_tree *tree;
    bool (*ready)(void *user);
    void *user;
} waiting;

static bool ready_or_work(void *user)
{
    waiting *w = user;

    if (w->ready(w->user)) {
        return true;
    }
    for (int32_t i = 0; i < w->tree->n_publishing; i++) {
        if (msi_publish_possible(w->tree->publishing[i])) {
            return true;
        }
    }
    for (int32_t i = 0; i < w->tree->n_reducing; i++) {
        if (msi_reduce_possible(w->tree->reducing[i])) {
            return true;
        }
    }
    return false;
}

ms_status msi_queue_wait(ms_fsdp_tree *tree, uint64_t seq, bool (*ready)(void *user), void *user)
{
    waiting w = {tree, ready, user};

    for (;;) {
        MS_TRY(msi_queue_run(tree));
        if (ready(user)) {
            return MS_OK;
        }
        MS_TRY(msi_comm_wait(tree->comm, seq, ready_or_work, &w));
    }
}

static void drop(ms_fsdp_unit **list, int32_t *n, const ms_fsdp_unit *u)
{
    for (int32_t i = *n - 1; i >= 0; i--) {
        if (list[i] == u) {
            remove_at(list, n, i);
        }
    }
}

void msi_queue_drop_publish(ms_fsdp_unit *u)
{
    drop(u->tree->publishing, &u->tree->n_publishing, u);
    u->publish_queued = false;
}

void msi_queue_drop_reduction(ms_fsdp_unit *u)
{
    drop(u->tree->reducing, &u->tree->n_reducing, u);
}
