/* What the running program should do alike on all ranks, said in notes that ride in the next
 * collective. (What a plan says is compared once, in agree.c.) */
#include "param_group.h"

void msi_model_note(ms_comm *comm, int32_t model, const msi_note *note)
{
    msi_note own = *note;

    own.model = model;
    msi_comm_note(comm, &own);
}

void msi_unit_note(void *unit, const msi_note *note)
{
    const ms_fsdp_unit *u = unit;

    msi_model_note(u->comm, msi_unit_model(u), note);
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
            msi_unit_note(u, &note);
        }
    }
}

void msi_unit_note_touch(ms_fsdp_unit *u)
{
    int64_t version = u->master != NULL ? u->master->version : 0;

    u->values.written = u->values.written || version > u->values.told + 1;
    u->values.told = version;
}

/* All of a replica: which of its parameters was written is not known. */
static ms_status note_values(ms_fsdp_unit *u)
{
    for (int32_t i = 0; i < u->n_params; i++) {
        msi_note note = {.text = {.text = "hash#"}, .n_numbers = 1};
        uint64_t hash;

        MS_TRY(msi_replica_hash(u, i, &hash));
        note.number[0] = msi_note_hash(hash);
        msi_label_about(&note.label, "values written to", u->params[i].name);
        msi_unit_note(u, &note);
    }
    u->values.told = u->master->version;
    u->values.written = false;
    return MS_OK;
}

/* -- gradients of replicas --------------------------------------------------------------------- */

/* Shards have no gradient in common to compare. */
static bool compares(const ms_fsdp_unit *u)
{
    return !u->is_sharded && u->world > 1;
}

/* Is its gradient the version of the reduced one that the other ranks know? */
static bool is_told(const msi_unit_param *p)
{
    const msi_view *v = &p->tensor->grad->v;

    return v->storage == p->place && v->storage->version == p->told_grad_version;
}

void msi_unit_told_gradient(ms_fsdp_unit *u, int32_t index)
{
    msi_unit_param *p = &u->params[index];

    p->told_grad = p->tensor != NULL && p->tensor->grad != NULL;
    p->told_grad_version = p->place != NULL ? p->place->version : 0;
}

static ms_status note_gradient(ms_fsdp_unit *u, int32_t index)
{
    msi_unit_param *p = &u->params[index];
    msi_note note = {.n_numbers = 0};
    uint64_t hash;

    if (p->tensor->grad == NULL && p->told_grad) {
        msi_label_about(&note.label, "dropped gradient of", p->name);
        msi_unit_note(u, &note);
    } else if (p->tensor->grad != NULL && !is_told(p)) {
        MS_TRY(ms_tensor_hash(p->tensor->grad, &hash));
        note =
            (msi_note){.text = {.text = "hash#"}, .number = {msi_note_hash(hash)}, .n_numbers = 1};
        msi_label_about(&note.label, "changed gradient of", p->name);
        msi_unit_note(u, &note);
    }
    msi_unit_told_gradient(u, index);
    return MS_OK;
}

ms_status msi_unit_note_gradient(void *unit, int32_t index)
{
    ms_fsdp_unit *u = unit;

    return compares(u) && u->params[index].tensor != NULL ? note_gradient(u, index) : MS_OK;
}

static ms_status note_kept_gradients(ms_fsdp_unit *u)
{
    msi_note note = {.text = {.text = "number which#"}, .n_numbers = 2};
    uint64_t which = 0;

    for (int32_t i = 0; i < u->n_params; i++) {
        msi_unit_param *p = &u->params[i];

        if (p->tensor == NULL) {
            continue;
        }
        if (p->tensor->grad != NULL) {
            MS_TRY(note_gradient(u, i));
            which = msi_mix64(which ^ (uint64_t)i);
            note.number[0]++;
        }
        msi_unit_told_gradient(u, i); /* none: said by what is not noted */
    }
    if (note.number[0] > 0) {
        note.number[1] = msi_note_hash(which);
        msi_label_about(&note.label, "gradients added to of unit", u->name);
        msi_unit_note(u, &note);
    }
    return MS_OK;
}

ms_status msi_unit_note_kept_gradients(ms_fsdp_unit *u)
{
    return compares(u) ? note_kept_gradients(u) : MS_OK;
}

/* -- changes ----------------------------------------------------------------------------------- */

ms_status msi_unit_note_changes(ms_fsdp_unit *u)
{
    const bool written = u->values.written || u->values.told != u->master->version;

    note_flags(u);
    return !u->is_sharded && written ? note_values(u) : MS_OK;
}
