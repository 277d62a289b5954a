/* Tasks: steps that must wait for peers. Every wait runs them, so that no rank blocks another by
 * waiting. Knows no units. */
#ifndef MSI_FSDP_PROGRESS_H
#define MSI_FSDP_PROGRESS_H

#include "comm.h"

/* Of two possible tasks the smaller order runs first: the quick ones that peers wait for. */
enum { MSI_TASK_FILL, MSI_TASK_REDUCE };

typedef struct msi_task {
    struct msi_task *next;
    bool listed;
    int32_t order; /* MSI_TASK_* */
    /* True if step() has work now. Only loads atomics. */
    bool (*possible)(const struct msi_task *task);
    /* Do it. `*finished`: the task leaves the list. */
    ms_status (*step)(struct msi_task *task, bool *finished);
    /* Drop it and signal the peers. Needs neither memory nor peers. The task is already unlisted.
     */
    void (*drop)(struct msi_task *task);
} msi_task;

typedef struct msi_progress {
    msi_task *first;
    bool committed; /* peers rely on what runs: a collective of it is or will be committed */
} msi_progress;

/* Peers rely on what runs, until msi_progress_begin(). */
static inline void msi_progress_commit(msi_progress *p)
{
    p->committed = true;
}

/* Something begins that peers do not rely on yet. */
static inline void msi_progress_begin(msi_progress *p)
{
    p->committed = false;
}

/* Commit, publish and count a collective of the schedule; `*seq`: its sequence. */
ms_status msi_progress_publish(msi_progress *p, ms_comm *comm, const msi_fingerprint *fp,
                               uint64_t *seq);
/* Commit, and gather bytes: msi_comm_gather_named(). */
ms_status msi_progress_gather(msi_progress *p, ms_comm *comm, const msi_label *what, int32_t model,
                              const void *in, int64_t nbytes, void *out);

/* Insert after those of its order. */
void msi_progress_add(msi_progress *p, msi_task *task);
/* Remove a task, if listed. */
void msi_progress_remove(msi_progress *p, msi_task *task);
/* The first task of `order`, or NULL. */
msi_task *msi_progress_first(const msi_progress *p, int32_t order);
/* Run all possible steps. */
ms_status msi_progress_run(msi_progress *p);
/* Run until `ready(user)`, waiting for ranks of `comm`; `seq` is its, for messages. */
ms_status msi_progress_wait(msi_progress *p, ms_comm *comm, uint64_t seq, bool (*ready)(void *user),
                            void *user);
/* Drop all tasks. */
void msi_progress_drop(msi_progress *p);

#endif
