/* Full parameters shown by handles temporarily, and writing them back. */
#include "schedule.h"

#include <stdlib.h>
#include <string.h>

static int64_t count_params(const ms_fsdp_tree *tree)
{
    int64_t n = 0;

    for (int32_t i = 0; i < tree->n_units; i++) {
        n += tree->units[i]->n_params;
    }
    return n;
}

/* Per parameter: this rank's word, every rank's words, and the result. Allocated early, so that the
 * end needs no memory. */
static ms_status words_new(ms_fsdp_tree *tree)
{
    const int64_t n = count_params(tree);

    tree->words = calloc((size_t)(n * (tree->world + 2) + 1), sizeof(*tree->words));
    return tree->words != NULL
               ? MS_OK
               : MS_FAIL(MS_OUT_OF_MEMORY, "no memory to summon %lld parameters", (long long)n);
}

ms_status ms_fsdp_tree_summon(ms_fsdp_tree *tree)
{
    ms_status status = MS_OK;

    MS_TRY(ms_fsdp_tree_init(tree));
    if (tree->in_backward || msi_unit_in_forward(tree) != NULL) {
        return MS_FAIL(MS_ASSERTION_ERROR,
                       "Cannot manually unshard parameters during forward/backward");
    }
    if (tree->run.summoned) {
        return MS_FAIL(MS_ASSERTION_ERROR,
                       "Cannot manually unshard parameters when already unsharding parameters");
    }
    MS_TRY(words_new(tree));
    tree->run.progress.peers_committed = false;
    for (int32_t i = 0; i < tree->n_units && status == MS_OK; i++) {
        ms_fsdp_unit *u = tree->units[i];

        status = msi_unit_gather_flat(u, "summon_full_params of unit", &u->summoned);
        if (status == MS_OK) {
            u->summoned->version = 0; /* counts the script's writes */
            u->master->readonly = "shows a shard, of which summon_full_params has made a full "
                                  "copy; write into the parameter itself";
            msi_unit_show(u);
        }
    }
    tree->run.summoned = true;
    if (status != MS_OK) {
        msi_tree_give_up(tree, "summon_full_params");
        (void)ms_fsdp_tree_unsummon(tree, false);
    }
    return status;
}

/* What happened to a summoned parameter. */
enum {
    OWN_CHANGED = 1, /* this rank's extents changed */
    UNIT_TOUCHED = 2 /* something wrote to the unit */
};

/* This rank's extents of a parameter: in the master, and in the copy. */
static msi_view kept_view(const ms_fsdp_unit *u, const msi_unit_param *p)
{
    return msi_flat_view(u, u->master, p->piece.offset_in_shard, p->piece.numel);
}

static msi_view seen_view(const ms_fsdp_unit *u, const msi_unit_param *p)
{
    return msi_flat_view(u, u->summoned, p->offset + p->piece.start, p->piece.numel);
}

static ms_status change_of(const ms_fsdp_unit *u, const msi_unit_param *p, uint64_t *change)
{
    const msi_view kept = kept_view(u, p), seen = seen_view(u, p);
    const size_t nbytes = (size_t)(p->piece.numel * ms_dtype_size(u->orig_dtype));
    msi_host_view a = {0}, b = {0};
    ms_status status;

    MS_TRY_GOTO(msi_host_view_begin(&a, &kept, MSI_HOST_READS), done);
    MS_TRY_GOTO(msi_host_view_begin(&b, &seen, MSI_HOST_READS), done);
    *change = (memcmp(a.data, b.data, nbytes) != 0 ? OWN_CHANGED : 0) |
              (u->summoned->version != 0 ? UNIT_TOUCHED : 0);
done:
    status = msi_host_view_end(&a, status);
    return msi_host_view_end(&b, status);
}

static ms_status keep_piece(ms_fsdp_unit *u, const msi_unit_param *p)
{
    const msi_view kept = kept_view(u, p), seen = seen_view(u, p);

    return msi_mem_copy(u->ctx, msi_view_ptr(&kept), msi_view_ptr(&seen),
                        p->piece.numel * ms_dtype_size(u->orig_dtype));
}

/* Combine what all ranks did to each parameter, in `changes`. */
static ms_status gather_changes(ms_fsdp_tree *tree, int64_t n, uint64_t *changes)
{
    uint64_t *own = tree->words, *all = own + n;
    int64_t at = 0;

    for (int32_t i = 0; i < tree->n_units; i++) {
        for (int32_t p = 0; p < tree->units[i]->n_params; p++) {
            MS_TRY(change_of(tree->units[i], &tree->units[i]->params[p], &own[at++]));
        }
    }
    MS_TRY(msi_tree_gather(tree, "the end of summon_full_params", own, n * (int64_t)sizeof(*own),
                           all));
    memset(changes, 0, (size_t)n * sizeof(*changes));
    for (int64_t i = 0; i < n * tree->world; i++) {
        changes[i % n] |= all[i];
    }
    return MS_OK;
}

/* Every rank keeps its part of its copy, so all copies must be equal where a rank wrote. */
static ms_status check_same(ms_fsdp_tree *tree, int64_t n, const uint64_t *changes)
{
    uint64_t *own = tree->words, *all = own + n, touched = 0;
    int64_t at = 0;

    for (int32_t i = 0; i < tree->n_units; i++) {
        const ms_fsdp_unit *u = tree->units[i];

        for (int32_t p = 0; p < u->n_params; p++, at++) {
            const msi_unit_param *param = &u->params[p];
            const msi_view values = msi_flat_view(u, u->summoned, param->offset, param->numel);

            own[at] = 0;
            if ((changes[at] & UNIT_TOUCHED) != 0) {
                MS_TRY(msi_view_hash(&values, &own[at]));
            }
            touched |= changes[at] & UNIT_TOUCHED;
        }
    }
    if (touched == 0 || tree->world == 1) {
        return MS_OK;
    }
    MS_TRY(msi_tree_gather(tree, "the end of summon_full_params (values)", own,
                           n * (int64_t)sizeof(*own), all));
    at = 0;
    for (int32_t i = 0; i < tree->n_units; i++) {
        for (int32_t p = 0; p < tree->units[i]->n_params; p++, at++) {
            for (int32_t q = 1; q < tree->world; q++) {
                if (all[q * n + at] != all[at]) {
                    return MS_FAIL(MS_RUNTIME_ERROR,
                                   "summon_full_params: '%s' was left with other values on rank %d "
                                   "than on rank %d, of which each rank would keep its own part; "
                                   "write the same on all ranks. Nothing was kept",
                                   tree->units[i]->params[p].name,
                                   (int)msi_comm_rank_in_job(tree->comm, q),
                                   (int)msi_comm_rank_in_job(tree->comm, 0));
                }
            }
        }
    }
    return MS_OK;
}

/* A parameter counts as written if any rank's extents changed, so that all ranks agree; unchanged
 * ones stay valid for backward. */
static ms_status write_back(ms_fsdp_tree *tree)
{
    const int64_t n = count_params(tree);
    uint64_t *changes = tree->words + n * (tree->world + 1);
    int64_t at = 0;

    if (n == 0) {
        return MS_OK;
    }
    MS_TRY(gather_changes(tree, n, changes));
    MS_TRY(check_same(tree, n, changes));
    for (int32_t i = 0; i < tree->n_units; i++) {
        for (int32_t p = 0; p < tree->units[i]->n_params; p++, at++) {
            if ((changes[at] & OWN_CHANGED) != 0) {
                MS_TRY(keep_piece(tree->units[i], &tree->units[i]->params[p]));
                MS_TRY(ms_param_touch(tree->units[i]->params[p].tensor));
            }
        }
    }
    return MS_OK;
}

ms_status ms_fsdp_tree_unsummon(ms_fsdp_tree *tree, bool writeback)
{
    ms_status status = MS_OK;

    if (!tree->run.summoned) {
        return MS_FAIL(MS_ASSERTION_ERROR, "the parameters are not summoned");
    }
    if (writeback) {
        status = write_back(tree);
    }
    msi_tree_unsummon(tree);
    return status;
}

bool ms_fsdp_tree_summoned(const ms_fsdp_tree *tree)
{
    return tree->run.summoned;
}
