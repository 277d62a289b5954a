#include "progress.h"

ms_status msi_progress_publish(msi_progress *p, ms_comm *comm, const msi_fingerprint *fp,
                               uint64_t *seq)
{
    msi_progress_commit(p);
    MS_TRY(msi_comm_publish(comm, fp, seq));
    msi_comm_count(comm, fp->kind);
    return MS_OK;
}

ms_status msi_progress_gather(msi_progress *p, ms_comm *comm, const msi_label *what, int32_t model,
                              const void *in, int64_t nbytes, void *out)
{
    msi_progress_commit(p);
    return msi_comm_gather_named(comm, what, model, in, nbytes, out);
}

void msi_progress_add(msi_progress *p, msi_task *task)
{
    msi_task **at = &p->first;

    while (*at != NULL && (*at)->order <= task->order) {
        at = &(*at)->next;
    }
    task->next = *at;
    task->listed = true;
    *at = task;
}

void msi_progress_remove(msi_progress *p, msi_task *task)
{
    msi_task **at = &p->first;

    if (!task->listed) {
        return;
    }
    while (*at != task) {
        at = &(*at)->next;
    }
    *at = task->next;
    task->next = NULL;
    task->listed = false;
}

msi_task *msi_progress_first(const msi_progress *p, int32_t order)
{
    msi_task *task = p->first;

    while (task != NULL && task->order != order) {
        task = task->next;
    }
    return task;
}

ms_status msi_progress_run(msi_progress *p)
{
    bool again = true;

    while (again) {
        again = false;
        for (msi_task *task = p->first, *next; task != NULL; task = next) {
            bool finished = false;

            next = task->next;
            if (!task->possible(task)) {
                continue;
            }
            MS_TRY(task->step(task, &finished));
            next = task->next;
            if (finished) {
                msi_progress_remove(p, task);
            }
            again = true;
        }
    }
    return MS_OK;
}

typedef struct waiting {
    const msi_progress *progress;
    bool (*ready)(void *user);
    void *user;
} waiting;

static bool ready_or_work(void *user)
{
    const waiting *w = user;

    if (w->ready(w->user)) {
        return true;
    }
    for (const msi_task *task = w->progress->first; task != NULL; task = task->next) {
        if (task->possible(task)) {
            return true;
        }
    }
    return false;
}

ms_status msi_progress_wait(msi_progress *p, ms_comm *comm, uint64_t seq, bool (*ready)(void *user),
                            void *user)
{
    waiting w = {p, ready, user};

    for (;;) {
        MS_TRY(msi_progress_run(p));
        if (ready(user)) {
            return MS_OK;
        }
        MS_TRY(msi_comm_wait(comm, seq, ready_or_work, &w));
    }
}

void msi_progress_drop(msi_progress *p)
{
    while (p->first != NULL) {
        msi_task *task = p->first;

        msi_progress_remove(p, task);
        task->drop(task);
    }
}
