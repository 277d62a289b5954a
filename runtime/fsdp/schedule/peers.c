/* What a tree says to its peers, beside what its units exchange. */
#include "schedule.h"

#include <stdio.h>

void msi_tree_note(const ms_fsdp_tree *tree, const msi_note *note)
{
    msi_model_note(tree->comm, tree->run.model, note);
}

void msi_tree_note_options(const ms_fsdp_tree *tree)
{
    static const char *const prefetches[] = {"none", "BACKWARD_PRE", "BACKWARD_POST"};
    const ms_fsdp_tree_options *o = &tree->options;
    msi_note prefetch = {.label = {.text = "backward_prefetch"}};
    const msi_note others = {{.text = "the tree's options"},
                             {.text = "forward_prefetch n_slots"},
                             {o->forward_prefetch, o->n_slots},
                             .n_numbers = 2};

    msi_label_set(&prefetch.text, prefetches[o->backward_prefetch]);
    msi_tree_note(tree, &prefetch);
    msi_tree_note(tree, &others);
}

ms_status msi_tree_gather(ms_fsdp_tree *tree, const char *what, const void *in, int64_t nbytes,
                          void *out)
{
    msi_label label;

    msi_label_set(&label, what);
    return msi_comm_gather_named(tree->comm, &label, tree->run.model, in, nbytes, out);
}

/* [Note: giving up] What this rank has named and does not finish, its peers may still count on. On
 * a forward or backward they do whether it has named anything yet or not: replicas name nothing
 * until they reduce, and that of the next batch would be taken for that of this one. When they fail
 * at the same place of the program they say so too, and all go on; one that fails alone is told
 * apart by what it says here, also when it tries again what only it has to do again. Any other call
 * that has named nothing is this rank's own affair; peers are told when it comes out. */
void msi_tree_give_up(ms_fsdp_tree *tree, const char *what)
{
    const msi_fingerprint fp = {
        .kind = MSI_COLL_RESET, .dtype = MS_DTYPE_NONE, .ndim = -1, .slot = -1};
    char text[4096];
    uint64_t seq;

    snprintf(text, sizeof(text), "%s%s%s", what, what[0] != '\0' ? ": " : "", ms_error_message());
    ms_comm_failed(tree->comm, text);
    if (tree->run.progress.peers_committed && !msi_comm_broken(tree->comm)) {
        (void)msi_comm_publish(tree->comm, &fp, &seq);
    }
    tree->run.progress.peers_committed = false;
}
