/* What a tree exchanges with its peers, besides its units' exchanges. */
#include "schedule.h"

#include <stdio.h>

ms_status msi_tree_gather_over(ms_fsdp_tree *tree, ms_comm *comm, const char *what, const void *in,
                               int64_t nbytes, void *out)
{
    msi_label label;

    msi_label_set(&label, what);
    return msi_progress_gather(&tree->run.progress, comm, &label, tree->run.model, in, nbytes, out);
}

ms_status msi_tree_gather_devices(ms_fsdp_tree *tree, const char *what, const void *in,
                                  int64_t nbytes, void *out)
{
    msi_label label;

    msi_label_set(&label, what);
    msi_progress_commit(&tree->run.progress);
    return msi_comm_gather_devices(tree->shards, &label, tree->run.model, in, nbytes, out);
}

ms_status msi_tree_gather(ms_fsdp_tree *tree, const char *what, const void *in, int64_t nbytes,
                          void *out)
{
    return msi_tree_gather_over(tree, tree->comm, what, in, nbytes, out);
}

/* [Note: giving up] Peers may rely on what this rank committed and does not finish. On a forward or
 * backward they rely in any case: replicas commit nothing until they reduce, and the next batch's
 * reduction would be taken for this one's. So the rank publishes a reset. Ranks that fail at the
 * same place all publish it, and continue. A rank that fails alone is detected by it, even if it
 * repeats the call alone. Any other call that committed nothing needs no reset; peers detect it
 * later, if at all. */
void msi_tree_give_up(ms_fsdp_tree *tree, const char *what)
{
    const msi_fingerprint fp = {
        .kind = MSI_COLL_RESET, .dtype = MS_DTYPE_NONE, .ndim = -1, .slot = -1};
    char text[4096];
    uint64_t seq;

    snprintf(text, sizeof(text), "%s%s%s", what, what[0] != '\0' ? ": " : "", ms_error_message());
    ms_comm_failed(tree->comm, text);
    if (tree->shards != tree->comm) {
        ms_comm_failed(tree->shards, text);
    }
    if (tree->run.progress.committed && !msi_comm_broken(tree->comm)) {
        (void)msi_comm_publish(tree->comm, &fp, &seq);
    }
    msi_progress_begin(&tree->run.progress);
}
