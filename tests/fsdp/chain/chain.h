/* A chain of units whose steps read nothing on the host, for tests of streams on a device that runs
 * things later (tests/fakedevice). */
#ifndef MS_TEST_CHAIN_H
#define MS_TEST_CHAIN_H

#include "moonshard/optim.h"
#include "rank_test.h"
#include "schedule.h"

enum { UNITS = 5, SIDE = 12, ROWS = 3, STEPS = 3 };

typedef struct chain {
    int32_t strategy, world;
    bool evaluates;  /* forwards alone ... */
    bool writes;     /* ... of one unit, whose values each rank writes between them */
    bool nests;      /* all units are open at once */
    bool adds;       /* each step adds to gradients that were set from outside */
    uint64_t hash;   /* of the trained parameters, or the evaluations' sum, by rank 0 */
    int32_t n_slots; /* of parameters, at the end */
} chain;

typedef struct model {
    ms_tensor *weight[UNITS];
    ms_fsdp_unit *unit[UNITS];
    ms_fsdp_tree *tree;
    ms_optim *optim;
} model;

ms_status model_new(model *m, const chain *c);
void model_free(model *m);
/* All units, one after the other (or nested), of an input full of x0. */
ms_status forward(model *m, const chain *c, double x0, ms_tensor **mean);
/* STEPS of them, with what c tells afterwards. */
ms_status train(model *m, chain *c, int32_t rank);
/* A rank's whole work; `user` is a chain. */
ms_status run_chain(void *user, int32_t rank);

bool has_fake(void);
extern const char *const layouts[2]; /* of slots */
/* Contexts to come compute on a device in the order drawn by `seed`; 0: on the CPU. Two of eight
 * seeds in a row are drawn uniformly, an even and an odd one: layouts take turns, so both are. */
void set_device(int32_t seed, const char *layout);
/* run_chain() by threads, there. */
ms_status train_on(chain *c, int32_t seed, const char *layout);

#endif
