/* What the running program should do alike on all ranks, said in notes that ride in the next
 * collective. (What a plan says is compared once, in agree.c.) */
#include "fsdp.h"

void msi_unit_note(void *unit, const msi_note *note)
{
    const ms_fsdp_unit *u = unit;

    msi_comm_note(u->comm, note);
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
    msi_comm_note(tree->comm, &prefetch);
    msi_comm_note(tree->comm, &others);
}

static void note_flags(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];

        if (MSI_UNLIKELY(p->tensor->requires_grad != p->trained)) {
            msi_note note = {.n_numbers = 0};

            p->trained = p->tensor->requires_grad;
            msi_label_about(&note.label, "requires_grad of", p->name);
            msi_label_set(&note.text, p->trained ? "true" : "false");
            msi_comm_note(u->comm, &note);
        }
    }
}

void msi_unit_note_touch(ms_fsdp_unit *u)
{
    int64_t version = u->master != NULL ? u->master->version : 0;

    u->written = u->written || version > u->told_version + 1;
    u->told_version = version;
}

/* All of a replica: which of its parameters was written is not known. */
static void note_values(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_note note = {.text = {.text = "hash#"},
                         .number = {msi_note_hash(msi_replica_hash(u, i))},
                         .n_numbers = 1};

        msi_label_about(&note.label, "values written to", u->params[i].name);
        msi_comm_note(u->comm, &note);
    }
    u->told_version = u->master->version;
    u->written = false;
}

void msi_tree_note_changes(ms_fsdp_tree *tree)
{
    for (int32_t i = 0; tree->world > 1 && i < tree->n_units; i++) {
        ms_fsdp_unit *u = tree->units[i];

        note_flags(u);
        if (!u->is_sharded && (u->written || u->told_version != u->master->version)) {
            note_values(u);
        }
    }
}
