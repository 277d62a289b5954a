/* What could not be done at once, as peers were not so far: a list of tasks. Every wait runs it, so
 * no rank holds up another by waiting. Knows no unit. */
#ifndef MSI_FSDP_PROGRESS_H
#define MSI_FSDP_PROGRESS_H

#include "comm.h"

/* Of two tasks that are possible the one of smaller order goes first: what is quick and peers wait
 * for comes before what takes long. */
enum { MSI_TASK_FILL, MSI_TASK_REDUCE };

typedef struct msi_task {
    struct msi_task *next;
    bool listed;
    int32_t order; /* MSI_TASK_* */
    /* Is there a step to do now? Loads atomics and no more. */
    bool (*possible)(const struct msi_task *task);
    /* Do it. `*finished`: the task leaves the list. */
    ms_status (*step)(struct msi_task *task, bool *finished);
    /* Give it up, and say so to the peers. Needs neither memory nor peers. The task is not listed
     * any more. */
    void (*drop)(struct msi_task *task);
} msi_task;

typedef struct msi_progress {
    ms_comm *comm;
    msi_task *first;
    bool peers_committed; /* peers count on what runs now: a collective of it was named, or will be
                           */
} msi_progress;

/* Behind those of its order. */
void msi_progress_add(msi_progress *p, msi_task *task);
/* Take a task off the list, if it is there. */
void msi_progress_remove(msi_progress *p, msi_task *task);
/* The first task of `order`, or NULL. */
msi_task *msi_progress_first(const msi_progress *p, int32_t order);
/* Do all that can be done now. */
ms_status msi_progress_run(msi_progress *p);
/* Run until `ready(user)`; `seq` names what is waited for. */
ms_status msi_progress_wait(msi_progress *p, uint64_t seq, bool (*ready)(void *user), void *user);
/* Give up all tasks. */
void msi_progress_drop(msi_progress *p);

#endif
