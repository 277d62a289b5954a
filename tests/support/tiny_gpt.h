/* A model small enough for thousands of steps and awkward enough to matter: a tied embedding in the
 * root unit, three residual blocks with sizes that no world divides, dropout in each. Shared by the
 * fsdp tests; runs on ranks as threads. */
#ifndef TINY_GPT_H
#define TINY_GPT_H

#include "moonshard/optim.h"
#include "ms_test.h"
#include "schedule.h"

enum {
    TINY_VOCAB = 11,
    TINY_WIDTH = 6,
    TINY_HIDDEN = 9,
    TINY_BLOCKS = 3,
    TINY_ROWS = 2,
    TINY_CONTEXT = 5,
    TINY_BLOCK_PARAMS = 6
};

/* How one run is set up. */
typedef struct tiny_config {
    int32_t world, strategy, optimizer, micro_batches /* over all ranks */, steps;
    int32_t param_dtype, reduce_dtype; /* MS_DTYPE_NONE: the master's */
    int32_t prefetch, n_slots;
    bool forward_prefetch, flat, each_backward_reduces;
    double dropout, max_norm;
} tiny_config;

tiny_config tiny_defaults(void);

/* What every rank ends with; rank 0's is compared by the tests. */
typedef struct tiny_result {
    uint64_t hash;
    double loss;       /* of the last micro-batch of the last step */
    double norm;       /* of the last step */
    int64_t counts[5]; /* collectives of the last step on rank 0: ms_comm_counts() */
    ms_memory_stats memory;
} tiny_result;

/* Train; all ranks must end with the same hash and norm. */
ms_status tiny_train(const tiny_config *config, tiny_result *result);

/* One rank's part of it, in a group of `config->world` ranks. `after_step` may be NULL. */
ms_status tiny_train_in(ms_comm *comm, const tiny_config *config, tiny_result *result,
                        ms_status (*after_step)(void *user, int32_t step), void *user);

typedef struct tiny_model {
    ms_tensor *embedding;
    ms_tensor *block[TINY_BLOCKS][TINY_BLOCK_PARAMS];
    ms_fsdp_unit *root, *unit[TINY_BLOCKS];
    ms_fsdp_tree *tree;
    double dropout;
} tiny_model;

ms_status tiny_new(tiny_model *m, const tiny_config *config, ms_comm *comm);
/* The same without memory: nothing is initialised yet. */
ms_status tiny_declare(tiny_model *m, const tiny_config *config, ms_comm *comm);
/* Optimizer over all parameters; the caller owns `*out`, after a failure too (or it is NULL). */
ms_status tiny_optim(ms_optim **out, const tiny_model *m, const tiny_config *config);
void tiny_free(tiny_model *m);
/* Mean loss of one micro-batch; `ids` and `targets` i64 (TINY_ROWS, TINY_CONTEXT). */
ms_status tiny_forward(tiny_model *m, ms_tensor *ids, ms_tensor *targets, ms_tensor **loss);
/* Micro-batch `index` of all runs, equal whatever the world. */
ms_status tiny_batch(int64_t index, ms_tensor **ids, ms_tensor **targets);
/* forward, backward, free. */
ms_status tiny_micro_step(tiny_model *m, int64_t index, double *loss);
/* Clips all gradients; `*norm` is what they had. */
ms_status tiny_clip(tiny_model *m, double max_norm, double *norm);

#endif
