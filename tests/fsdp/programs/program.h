/* Random legal programs of fsdp/test_programs.c: what they are, and how they are drawn and printed.
 */
#ifndef FSDP_PROGRAM_H
#define FSDP_PROGRAM_H

#include "schedule.h"

enum {
    UNITS = 5, /* the first may be the root's */
    SIDE = 8,
    MAX_PARAMS = 4,
    MAX_USES = 7,
    MAX_BLOCKS = 5,
    MAX_MICRO = 4,
    MAX_WORLD = 5
};

/* What must not matter; only the program under test does it. */
typedef enum noise_kind {
    NOTHING,
    EVALUATE,
    UNSHARD,
    RESHARD,
    TOUCH,
    REWRITE, /* one rank stores the elements it holds as they are; of a replica all do */
    SUMMON,
    N_NOISES
} noise_kind;

typedef struct noise {
    noise_kind kind;
    int32_t unit;
    int32_t n_uses, use[MAX_USES];
    int32_t touch; /* EVALUATE: touch this unit after the first use; -1: none */
    int32_t alone; /* EVALUATE: this rank does not use the unit that is used last; -1: all do */
    bool inside;   /* EVALUATE: the model turns gradients off, not its caller */
    int32_t rank;  /* REWRITE: which */
    bool writeback;
} noise;

/* One micro-batch of every rank. */
typedef struct micro {
    int32_t n_uses, use[MAX_USES];
    bool partly;  /* of a unit with three weights the first alone */
    int32_t load; /* a unit that gets new values after the first use, before its own; -1: none */
    int32_t
        aside; /* 0: nothing; a forward with gradients besides: 1 dropped, 2 joined in the loss */
    int32_t idle; /* this rank's batch does not reach the root's parameters; -1: all do */
    noise before, between;
} micro;

/* Micro-batches whose gradients make one sum, and perhaps a step. */
typedef struct block {
    int32_t n_micro;
    bool each_reduces, clips, steps;
    bool writes; /* by summon, into unit 1 */
    micro micro[MAX_MICRO];
    noise after, late; /* before and after the step */
} block;

typedef struct program {
    uint64_t seed;
    int32_t world;
    bool processes, rooted, large, rows, frozen, forward_prefetch, same_for_every_world;
    int32_t strategy[UNITS], param_dtype, reduce_dtype, backward_prefetch, n_slots, n_blocks;
    block block[MAX_BLOCKS];
} program;

/* -- dice -------------------------------------------------------------------------------------- */
uint64_t roll(uint64_t *dice);
bool chance(uint64_t *dice, int32_t of); /* one of `of` */
int32_t below(uint64_t *dice, int32_t n);

program make_program(uint64_t seed);
bool is_used(const micro *m, int32_t unit);
/* One rank skips a unit in one evaluation: no legal program. False: there is none to do it in. */
bool let_one_rank_skip(program *p);
/* What the rank uses in an evaluation, into `use`. @return their number */
int32_t uses_of(const noise *a, int32_t rank, int32_t *use);
void print_program(const program *p, int32_t rank, const char *message);

#endif
