/* The total norm of all ranks' gradients: by the host, or by the devices. */
#include "norm_places.h"

#include "blocks.h"

#include <stdlib.h>
#include <string.h>

/* Compute the results of blocks that are cut in `memory`, by `run`, from the list at `first` and
 * `pieces`. */
static ms_status cut_norms(const msi_norm_places *p, const int64_t *first,
                           const msi_norm_piece *pieces, char *memory, double order,
                           ms_status (*run)(const char *op, int32_t kernel, int32_t dtype,
                                            const void *args))
{
    for (int64_t k = 0, end; k < p->n_cut; k = end) {
        for (end = k + 1; end < p->n_cut && p->dtype[end] == p->dtype[k];) {
            end++;
        }
        const msi_norm_cut_args args = {.n = end - k,
                                        .first = first + k,
                                        .pieces = pieces,
                                        .in = memory,
                                        .out = (double *)(void *)(memory + p->cut) + k,
                                        .order = order};

        MS_TRY(run("norm", MSI_K_norm_cut, (int32_t)p->dtype[k], &args));
    }
    return MS_OK;
}

/* -- by the host ------------------------------------------------------------------------------- */

/* Write this rank's messages and kept blocks to host memory, one behind another. Waits for the
 * device. */
static ms_status make_on_host(const ms_fsdp_tree *tree, const msi_param_list *o, double order,
                              const msi_norm_sizes *sizes, char *to)
{
    const int64_t nbytes = sizes->sharded + sizes->plain + sizes->kept;
    msi_mem_block *made;
    ms_status status;

    if (tree->ctx->device == NULL) {
        return msi_norm_write(tree, o, order, sizes, to, to + sizes->sharded);
    }
    MS_TRY(msi_alloc(tree->ctx, nbytes, MS_MEM_SCRATCH, &made));
    char *at = made->data;

    MS_TRY_GOTO(msi_norm_write(tree, o, order, sizes, at, at + sizes->sharded), done);
    MS_TRY_GOTO(msi_mem_copy(tree->ctx, to, at, nbytes), done);
    status = msi_settle_stream(tree->ctx);
done:
    msi_release(made);
    return status;
}

/* Put the value of each plain block, for which every rank sent a result, into the first message. */
static void agree_on_plain(const ms_fsdp_tree *tree, const msi_norm_sizes *sizes, double order,
                           double *messages)
{
    const int64_t n = sizes->plain / (int64_t)sizeof(double);

    for (int64_t b = 0; b < n; b++) {
        double total = 0;
        bool equal = true;

        for (int32_t q = 0; q < tree->world; q++) {
            const double *result = &messages[q * n + b];

            equal = equal && memcmp(result, &messages[b], sizeof(*result)) == 0;
            total = msi_norm_fold(total, result, 1, order);
        }
        if (!equal) {
            messages[b] = order == HUGE_VAL ? total : total / tree->world;
        }
    }
}

static double fold_all(const ms_fsdp_tree *tree, const msi_param_list *o, const msi_norm_places *p,
                       const double *memory, double order)
{
    const int64_t *place = p->of_block;
    double total = 0;

    for (int32_t i = 0; i < o->n; i++) {
        double folded = order == 0 ? 0 : total; /* order 0 counts tensors, not blocks */

        for (int64_t n = msi_norm_blocks_of(tree, &o->places[i]); n > 0; n--) {
            folded = msi_norm_fold(folded, &memory[*place++ - 1], 1, order);
        }
        total = order == 0 ? total + (folded != 0) : folded;
    }
    return total;
}

/* Gather the messages at `mine`: the sharded ones of the shard group, then the plain ones of all
 * ranks. */
static ms_status exchange(ms_fsdp_tree *tree, const char *mine, const msi_norm_sizes *sizes,
                          const msi_norm_places *p, char *memory)
{
    if (sizes->sharded > 0) {
        MS_TRY(msi_tree_gather_over(tree, tree->shards, "clip_grad_norm_", mine, sizes->sharded,
                                    memory));
    }
    if (sizes->plain > 0) {
        MS_TRY(msi_tree_gather(tree, "clip_grad_norm_", mine + sizes->sharded, sizes->plain,
                               memory + p->plain));
    }
    memcpy(memory + p->kept, mine + sizes->sharded + sizes->plain, (size_t)sizes->kept);
    msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE); /* equivalent collective */
    return MS_OK;
}

/* The exchange of a fake group, whose other ranks have no messages. Its memory is a real rank's. */
static void plan(const ms_fsdp_tree *tree, const msi_norm_sizes *sizes)
{
    if (sizes->sharded > 0) {
        msi_comm_plan(tree->shards, MSI_COLL_ALL_GATHER, sizes->sharded);
    }
    if (sizes->plain > 0) {
        msi_comm_plan(tree->comm, MSI_COLL_ALL_GATHER, sizes->plain);
    }
    msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE);
}

static ms_status fold_on_host(ms_fsdp_tree *tree, const msi_param_list *o, double order,
                              const msi_norm_sizes *sizes, const char *mine, double *total)
{
    msi_norm_places p = {0};
    msi_mem_block *all = NULL;
    ms_status status;

    MS_TRY_GOTO(msi_norm_places_new(&p, tree, o, sizes), done);
    MS_TRY_GOTO(msi_host_alloc(tree->ctx, p.nbytes, MS_MEM_SCRATCH, &all), done);
    if (ms_comm_is_fake(tree->comm)) {
        plan(tree, sizes);
        *total = 0;
        goto done;
    }
    char *memory = all->data;

    MS_TRY_GOTO(exchange(tree, mine, sizes, &p, memory), done);
    agree_on_plain(tree, sizes, order, (double *)(void *)(memory + p.plain));
    MS_TRY_GOTO(cut_norms(&p, p.first, p.pieces, memory, order, msi_dispatch_host), done);
    *total = fold_all(tree, o, &p, all->data, order);
    *total = msi_plain_nan(msi_norm_finish(*total, order));
done:
    msi_release(all);
    msi_release(p.block);
    return status;
}

ms_status msi_norm_of_ranks(ms_fsdp_tree *tree, const msi_param_list *o, double order,
                            double *total)
{
    msi_norm_sizes sizes = {0};
    msi_mem_block *mine = NULL;
    ms_status status;

    MS_TRY_GOTO(msi_norm_measure(tree, o, &sizes), done);
    MS_TRY_GOTO(
        msi_host_alloc(tree->ctx, sizes.sharded + sizes.plain + sizes.kept, MS_MEM_SCRATCH, &mine),
        done);
    MS_TRY_GOTO(make_on_host(tree, o, order, &sizes, mine->data), done);
    status = fold_on_host(tree, o, order, &sizes, mine->data, total);
done:
    msi_release(mine);
    free(sizes.cut);
    return status;
}

/* -- by the devices ---------------------------------------------------------------------------- */

bool msi_norm_on_devices(const ms_fsdp_tree *tree, const msi_param_list *o, double order)
{
    bool all = tree->layout == MSI_SLOTS_NCCL && tree->ctx->device != NULL && order != 0;

    for (int32_t i = 0; i < o->n && all; i++) {
        all = o->places[i].unit != NULL || !msi_norm_is_sent(tree, &o->places[i]);
    }
    return all;
}

/* Copy the list to the device; the caller releases `*out`. */
static ms_status upload(ms_context *ctx, const msi_norm_places *p, msi_mem_block **out)
{
    const int64_t nbytes = (int64_t)((char *)p->dtype - (char *)p->of_block);

    MS_TRY(msi_alloc(ctx, nbytes, MS_MEM_SCRATCH, out));
    return msi_mem_copy(ctx, (*out)->data, p->of_block, nbytes);
}

static ms_status fold_on_device(const msi_norm_places *p, msi_norm *norm, double max_norm,
                                const int64_t *list, char *memory)
{
    const int64_t *first = list + (p->first - p->of_block);
    const void *pieces = list + ((int64_t *)(void *)p->pieces - p->of_block);
    const msi_gather_args args = {
        .loop = {.ndim = 1, .shape = {p->n_blocks}, .stride = {{1}, {1}, {0}}},
        .size = p->nbytes / (int64_t)sizeof(double),
        .step = 1,
        .index = list,
        .in = memory,
        .out = msi_norm_room(norm, p->n_blocks)};

    MS_TRY(cut_norms(p, first, pieces, memory, norm->order, msi_dispatch));
    MS_TRY(msi_dispatch("norm", MSI_K_gather, MS_DTYPE_F64, &args));
    return msi_norm_fold_blocks(norm, max_norm);
}

ms_status msi_norm_of_devices(ms_fsdp_tree *tree, const msi_param_list *o, double max_norm,
                              msi_norm *norm)
{
    ms_context *ctx = tree->ctx;
    msi_norm_sizes sizes = {0};
    msi_norm_places p = {0};
    msi_mem_block *all = NULL, *list = NULL;
    ms_status status;

    MS_TRY_GOTO(msi_norm_measure(tree, o, &sizes), done);
    MS_TRY_GOTO(msi_norm_places_new(&p, tree, o, &sizes), done);
    MS_TRY_GOTO(msi_alloc(ctx, p.nbytes, MS_MEM_SCRATCH, &all), done);
    MS_TRY_GOTO(upload(ctx, &p, &list), done);
    char *memory = all->data, *own = memory + tree->shard_rank * sizes.sharded;

    MS_TRY_GOTO(msi_norm_write(tree, o, norm->order, &sizes, own, memory + p.kept), done);
    if (ms_comm_is_fake(tree->comm)) {
        plan(tree, &sizes);
        status = msi_norm_set(norm, max_norm, 0);
        goto done;
    }
    MS_TRY_GOTO(msi_tree_gather_devices(tree, "clip_grad_norm_", own, sizes.sharded, memory), done);
    msi_comm_count(tree->comm, MSI_COLL_ALL_REDUCE); /* equivalent collective */
    status = fold_on_device(&p, norm, max_norm, list->data, memory);
done:
    msi_release(list);
    msi_release(all);
    msi_release_later(ctx, p.block); /* the copy reads it */
    free(sizes.cut);
    return status;
}
