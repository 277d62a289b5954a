/* How programs are drawn and printed. */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t roll(uint64_t *dice)
{
    *dice += 0x9e3779b97f4a7c15u;
    return msi_mix64(*dice) >> 16;
}

bool chance(uint64_t *dice, int32_t of)
{
    return roll(dice) % (uint64_t)of == 0;
}

int32_t below(uint64_t *dice, int32_t n)
{
    return (int32_t)(roll(dice) % (uint64_t)n);
}

static int32_t first_unit(const program *p)
{
    return p->rooted ? 1 : 0;
}

static int32_t any_unit(const program *p, uint64_t *dice)
{
    return first_unit(p) + below(dice, UNITS - first_unit(p));
}

/* Mostly in order with gaps; sometimes a unit twice, sometimes any order. */
static int32_t make_uses(const program *p, uint64_t *dice, int32_t *use)
{
    int32_t n = 0;

    for (int32_t u = first_unit(p); u < UNITS; u++) {
        if (chance(dice, 4)) {
            continue;
        }
        use[n++] = u;
        if (n < MAX_USES - UNITS && chance(dice, 6)) {
            use[n++] = u;
        }
    }
    if (n == 0) {
        use[n++] = any_unit(p, dice);
    }
    if (chance(dice, 6)) {
        int32_t i = below(dice, n), j = below(dice, n), kept = use[i];

        use[i] = use[j];
        use[j] = kept;
    }
    return n;
}

static void make_noise(const program *p, uint64_t *dice, noise *a, bool graph_waits)
{
    *a = (noise){.kind = chance(dice, 2) ? NOTHING : (noise_kind)below(dice, N_NOISES),
                 .unit = below(dice, UNITS),
                 .touch = -1,
                 .alone = -1,
                 .inside = chance(dice, 2),
                 .rank = below(dice, p->world),
                 .writeback = chance(dice, 2)};
    a->n_uses = make_uses(p, dice, a->use);
    if (graph_waits && (a->kind == TOUCH || a->kind == REWRITE)) {
        a->kind = EVALUATE;
    }
    if (a->kind == EVALUATE && !graph_waits && chance(dice, 2)) {
        a->touch = any_unit(p, dice);
    }
}

static bool contains(const int32_t *use, int32_t n, int32_t unit)
{
    for (int32_t i = 0; i < n; i++) {
        if (use[i] == unit) {
            return true;
        }
    }
    return false;
}

bool is_used(const micro *m, int32_t unit)
{
    return contains(m->use, m->n_uses, unit);
}

/* All uses but those of the unit that is used last, into `out`. @return their number */
static int32_t without_last(const int32_t *use, int32_t n, int32_t *out)
{
    int32_t left = 0;

    for (int32_t i = 0; i < n; i++) {
        if (use[i] != use[n - 1]) {
            out[left++] = use[i];
        }
    }
    return left;
}

/* It leaves out the unit that it would use last. */
static void skip_one(micro *m)
{
    int32_t use[MAX_USES];
    const int32_t n = without_last(m->use, m->n_uses, use);

    if (n > 0) {
        memcpy(m->use, use, sizeof(use));
        m->n_uses = n;
    }
}

int32_t uses_of(const noise *a, int32_t rank, int32_t *use)
{
    if (rank == a->alone) {
        return without_last(a->use, a->n_uses, use);
    }
    memcpy(use, a->use, sizeof(a->use));
    return a->n_uses;
}

bool let_one_rank_skip(program *p)
{
    uint64_t dice = p->seed;
    noise *found[MAX_BLOCKS * (2 * MAX_MICRO + 2)];
    int32_t n = 0, use[MAX_USES];

    for (int32_t i = 0; i < p->n_blocks; i++) {
        block *b = &p->block[i];

        for (int32_t k = 0; k < b->n_micro; k++) {
            found[n++] = &b->micro[k].before;
            found[n++] = &b->micro[k].between;
        }
        found[n++] = &b->after;
        found[n++] = &b->late;
    }
    while (n > 0) {
        const int32_t i = below(&dice, n);

        if (found[i]->kind == EVALUATE && without_last(found[i]->use, found[i]->n_uses, use) > 0) {
            found[i]->alone = below(&dice, p->world);
            return true;
        }
        found[i] = found[--n];
    }
    return false;
}

/* Every micro-batch uses the units of the first, or all but one: of the others each rank has at
 * least one to reduce. Which parameters of the root a batch reaches may differ among ranks, but in
 * the last, as the order of reductions depends on it. */
static void make_block(const program *p, uint64_t *dice, block *b)
{
    b->n_micro = 1 << below(dice, 3);
    b->each_reduces = b->n_micro > 1 && chance(dice, 5);
    b->clips = chance(dice, 2);
    b->steps = !chance(dice, 4);
    b->writes = chance(dice, 6);
    for (int32_t k = 0; k < b->n_micro; k++) {
        micro *m = &b->micro[k];

        m->load = -1;
        if (k == 0) {
            m->n_uses = make_uses(p, dice, m->use);
            if (m->n_uses > 1 && chance(dice, 3) &&
                !contains(m->use, m->n_uses - 1, m->use[m->n_uses - 1])) {
                m->load = m->use[m->n_uses - 1];
            }
        } else {
            memcpy(m->use, b->micro[0].use, sizeof(m->use));
            m->n_uses = b->micro[0].n_uses;
        }
        m->partly = chance(dice, 4);
        m->aside = m->load < 0 && chance(dice, 4) ? 1 + below(dice, 2) : 0;
        make_noise(p, dice, &m->before, false);
        make_noise(p, dice, &m->between, true);
        m->idle = -1;
        if (b->each_reduces) {
            continue;
        }
        if (p->rooted && k < b->n_micro - 1 && chance(dice, 4)) {
            m->idle = below(dice, p->world);
        }
        if (k > 0 && chance(dice, 6)) {
            skip_one(m);
        }
    }
    make_noise(p, dice, &b->after, false);
    make_noise(p, dice, &b->late, false);
}

program make_program(uint64_t seed)
{
    uint64_t d = seed * 0x2545f4914f6cdd1du + 1;
    program p = {.seed = seed, .world = 1 + (int32_t)(seed % 5), .processes = seed / 5 % 2 == 1};
    const int32_t precision = below(&d, 4);

    p.rooted = chance(&d, 2);
    p.large = chance(&d, 2);
    p.rows = chance(&d, 2);
    p.frozen = chance(&d, 8);
    p.forward_prefetch = !chance(&d, 4);
    p.backward_prefetch = below(&d, 3);
    p.n_slots = chance(&d, 4) ? below(&d, 4) : 2;
    p.param_dtype = precision < 2 ? MS_DTYPE_NONE : MS_DTYPE_BF16;
    p.reduce_dtype = precision == 2 ? MS_DTYPE_F32 : MS_DTYPE_NONE;
    for (int32_t i = 0; i < UNITS; i++) {
        p.strategy[i] = chance(&d, 2) ? MS_FSDP_FULL_SHARD : below(&d, 3);
    }
    p.n_blocks = 1 + below(&d, MAX_BLOCKS);
    p.same_for_every_world = true;
    for (int32_t i = 0; i < p.n_blocks; i++) {
        make_block(&p, &d, &p.block[i]);
        p.same_for_every_world &= !p.block[i].each_reduces;
    }
    return p;
}

static void print_noise(FILE *out, const char *when, const noise *a)
{
    static const char *const names[] = {"nothing", "evaluate", "unshard", "reshard",
                                        "touch",   "rewrite",  "summon"};

    if (a->kind == NOTHING) {
        return;
    }
    fprintf(out, "    %s: %s", when, names[a->kind]);
    for (int32_t i = 0; a->kind == EVALUATE && i < a->n_uses; i++) {
        fprintf(out, " %d", (int)a->use[i]);
    }
    if (a->kind == EVALUATE) {
        fprintf(out, ", touch %d, alone %d, inside %d\n", (int)a->touch, (int)a->alone, a->inside);
    } else {
        fprintf(out, " unit %d, rank %d, writeback %d\n", (int)a->unit, (int)a->rank, a->writeback);
    }
}

static void write_program(FILE *out, const program *p)
{
    fprintf(
        out,
        "program MS_SEED=%llu MS_PROGRAMS=1: W=%d as %s, rooted %d, large %d, rows %d, frozen %d, "
        "dtypes %d/%d, prefetch %d/%d, slots %d, strategies",
        (unsigned long long)p->seed, (int)p->world, p->processes ? "processes" : "threads",
        p->rooted, p->large, p->rows, p->frozen, (int)p->param_dtype, (int)p->reduce_dtype,
        p->forward_prefetch, (int)p->backward_prefetch, (int)p->n_slots);
    for (int32_t i = 0; i < UNITS; i++) {
        fprintf(out, " %d", (int)p->strategy[i]);
    }
    fprintf(out, "\n");
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const block *b = &p->block[i];

        fprintf(out, "  block %d: each reduces %d, clips %d, steps %d, writes %d\n", (int)i,
                b->each_reduces, b->clips, b->steps, b->writes);
        for (int32_t k = 0; k < b->n_micro; k++) {
            const micro *m = &b->micro[k];

            print_noise(out, "before", &m->before);
            fprintf(out, "    forward");
            for (int32_t j = 0; j < m->n_uses; j++) {
                fprintf(out, " %d", (int)m->use[j]);
            }
            fprintf(out, ", partly %d, load %d, aside %d, idle %d\n", m->partly, (int)m->load,
                    (int)m->aside, (int)m->idle);
            print_noise(out, "between", &m->between);
        }
        print_noise(out, "after", &b->after);
        print_noise(out, "late", &b->late);
    }
}

/* In one piece: the other ranks print too. */
void print_program(const program *p, int32_t rank, const char *message)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);

    fprintf(out, "rank %d: %s\n", (int)rank, message);
    write_program(out, p);
    fclose(out);
    fwrite(text, 1, n, stderr);
    free(text);
}
