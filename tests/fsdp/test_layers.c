/* runtime/fsdp/progress, plan: what stands below units, by itself. */
#include "layout.h"
#include "ms_test.h"
#include "progress.h"
#include "slots_plan.h"
#include "step_plan.h"

/* -- slots ------------------------------------------------------------------------------------- */

enum { MOST = 9 };

typedef enum kind { SHARED, PULL, GRADIENTS, KINDS } kind;

/* Bytes of a rank's words: of gradients with a flag for each of three parameters, in whole lines.
 */
static const int64_t word_bytes[KINDS] = {128, 128, 192};

/* `numel` of each in f32, the first the root's; and where it has no slot of its own. */
static msi_slots_plan plan(const int64_t *numel, int32_t n, int32_t world, kind k,
                           msi_slot_wish *wishes)
{
    msi_group_facts groups[MOST];
    msi_slots_plan p;

    for (int32_t i = 0; i < n; i++) {
        groups[i] = (msi_group_facts){.full_numel = numel[i],
                                      .shard_numel = (numel[i] + world - 1) / world,
                                      .n_params = 3,
                                      .orig_dtype = MS_DTYPE_F32,
                                      .param_dtype = MS_DTYPE_F32,
                                      .reduce_dtype = MS_DTYPE_F32,
                                      .is_sharded = true,
                                      .shares = true,
                                      .is_root = i == 0};
    }
    if (k == GRADIENTS) {
        assert_ok(
            msi_plan_gradient_slots(groups, n, false, world, 1, MSI_SLOTS_SHARED, wishes, &p));
    } else {
        assert_ok(msi_plan_param_slots(groups, n, 3, world,
                                       k == PULL ? MSI_SLOTS_PULL : MSI_SLOTS_SHARED, wishes, &p));
    }
    return p;
}

static int64_t pages(int64_t nbytes)
{
    return (nbytes + 4095) / 4096 * 4096;
}

/* Every word and every part of every slot lies apart from all others, whatever the sizes. */
static void test_fsdp_layers__nothing_of_two_slots_overlaps(void **state)
{
    for (int32_t seed = 0; seed < 200; seed++) {
        const int32_t n = 1 + seed % MOST, world = 1 + seed % 7;
        const kind k = (kind)(seed / 7 % KINDS);
        int64_t numel[MOST], words_end, at;
        msi_slot_wish wishes[MOST];

        for (int32_t i = 0; i < n; i++) {
            numel[i] = (int64_t)(filler((uint64_t)seed, i) * 3000 + 3001);
        }
        const msi_slots_plan p = plan(numel, n, world, k, wishes);

        words_end = p.word_bytes * world * p.n_ring;
        at = p.offset + p.ring_bytes * p.n_parts * p.n_ring;
        for (int32_t i = 0; i < n; i++) {
            if (!wishes[i].owns) {
                assert_true(wishes[i].nbytes <= p.ring_bytes);
                continue;
            }
            assert_int_equal(wishes[i].at_words, words_end);
            assert_int_equal(wishes[i].offset, at);
            words_end += word_bytes[k] * world;
            at += pages(wishes[i].nbytes) * p.n_parts;
        }
        assert_true(words_end <= p.offset);
        assert_int_equal(at, p.nbytes);
        assert_int_equal(p.n_parts, k == SHARED ? 1 : world);
        assert_true(p.n_ring == 0 || p.word_bytes == word_bytes[k]);
    }
}

/* -- a model that nobody here could hold ------------------------------------------------------- */

enum { LAYERS = 80, WIDTH = 8192, INNER = 28672, VOCAB = 128256, KV = 1024, RANKS = 16384 };

/* Of a unit with these parameters, in bf16 with f32 masters, on rank 0 of so many. */
static msi_group_facts facts_of(const int64_t *numels, int32_t n, int32_t world, bool is_root)
{
    ms_layout *layout;
    msi_group_facts g = {.n_params = n,
                         .orig_dtype = MS_DTYPE_F32,
                         .param_dtype = MS_DTYPE_BF16,
                         .reduce_dtype = MS_DTYPE_F32,
                         .trains = true,
                         .is_sharded = true,
                         .shares = true,
                         .keeps = is_root,
                         .is_root = is_root};

    assert_ok(ms_layout_flat(&layout, numels, n, 8, world));
    g.shard_numel = ms_layout_shard_numel(layout);
    g.full_numel = g.shard_numel * world;
    for (int32_t i = 0; i < n; i++) {
        ms_layout_piece piece;

        assert_ok(ms_layout_piece_get(layout, 0, i, &piece));
        g.trained_numel += piece.present ? piece.numel : 0;
    }
    ms_layout_free(layout);
    return g;
}

/* 70 B parameters over 16,384 ranks: from numbers alone, whoever is there. */
static void test_fsdp_layers__a_model_of_any_size_is_planned_for_any_number_of_ranks(void **state)
{
    const int64_t w = WIDTH, norm = WIDTH;
    const int64_t layer[] = {w * w,     w * KV,    w * KV, w * w, w * INNER,
                             w * INNER, w * INNER, norm,   norm};
    const int64_t root[] = {(int64_t)VOCAB * w, (int64_t)VOCAB * w, norm};
    msi_group_facts groups[LAYERS + 1];
    const msi_step step = {.world = RANKS, .hosts = 1, .n_ring = 3, .micro_batches = 1};
    ms_fsdp_plan plan;
    int64_t in_layer = 0, in_root = 0;

    for (size_t i = 0; i < MSI_COUNT(layer); i++) {
        in_layer += layer[i];
    }
    for (size_t i = 0; i < MSI_COUNT(root); i++) {
        in_root += root[i];
    }
    assert_true(in_root + LAYERS * in_layer > 70000000000);
    groups[0] = facts_of(root, (int32_t)MSI_COUNT(root), RANKS, true);
    for (int32_t i = 1; i <= LAYERS; i++) {
        groups[i] = facts_of(layer, (int32_t)MSI_COUNT(layer), RANKS, false);
    }
    in_root += WIDTH; /* padding up to a multiple of 16,384 elements, as which a layer comes */
    const int64_t all = in_root + LAYERS * in_layer;

    assert_ok(msi_plan_step(groups, LAYERS + 1, &step, &plan));
    assert_int_equal(plan.param_homes, 1);
    assert_int_equal(plan.param_ring, 3);
    assert_int_equal(plan.param_slots, 128LL * RANKS * 4 + 2 * in_root + 3 * 2 * in_layer);
    assert_int_equal(plan.gradient_homes, 1);
    assert_int_equal(plan.gradient_ring, 2);
    assert_int_equal(plan.gradient_slots,
                     192LL * RANKS * 3 + RANKS * (pages(4 * in_root) + 2 * pages(4 * in_layer)));
    assert_int_equal(plan.arena, plan.param_slots + plan.gradient_slots);
    assert_int_equal(plan.masters, 4 * all / RANKS);
    assert_int_equal(plan.per_state, 4 * all / RANKS);
    assert_int_equal(plan.gradients, 4 * all / RANKS);
    /* of the others: the root's once, layers' twice, in bf16; every gradient once, in f32 */
    assert_int_equal(plan.gathered, 2 * (2 * all - in_root) / RANKS * (RANKS - 1));
    assert_int_equal(plan.reduced, 4 * all / RANKS * (RANKS - 1));
}

/* -- what is read of other ranks --------------------------------------------------------------- */

/* A replica of 100 elements in chunks of 48, 48 and 4: a rank adds its own chunk of two peers', and
 * takes the sums that they made. Without peers nothing is read. */
static void test_fsdp_layers__replicas_read_chunks_then_sums(void **state)
{
    static const int64_t expected[] = {2 * 48 + 52, 2 * 48 + 52, 2 * 4 + 96};
    const msi_group_facts replica = {.full_numel = 100,
                                     .shard_numel = 100,
                                     .n_params = 1,
                                     .orig_dtype = MS_DTYPE_F32,
                                     .param_dtype = MS_DTYPE_F32,
                                     .reduce_dtype = MS_DTYPE_BF16,
                                     .trains = true};
    ms_fsdp_plan plan;

    for (int32_t rank = 0; rank < 3; rank++) {
        msi_step step = {.rank = rank, .world = 3, .hosts = 1, .n_ring = 3, .micro_batches = 1};

        assert_ok(msi_plan_step(&replica, 1, &step, &plan));
        assert_int_equal(plan.reduced, 2 * expected[rank]);
        assert_int_equal(plan.gathered, 0);
        step.micro_batches = 2; /* inner nodes are f32 */
        assert_ok(msi_plan_step(&replica, 1, &step, &plan));
        assert_int_equal(plan.reduced, 4 * expected[rank]);
    }
    const msi_step alone = {.world = 1, .hosts = 1, .n_ring = 3, .micro_batches = 1};

    assert_ok(msi_plan_step(&replica, 1, &alone, &plan));
    assert_int_equal(plan.reduced, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_layers__nothing_of_two_slots_overlaps),
        cmocka_unit_test(test_fsdp_layers__a_model_of_any_size_is_planned_for_any_number_of_ranks),
        cmocka_unit_test(test_fsdp_layers__replicas_read_chunks_then_sums),
    };

    return cmocka_run_group_tests_name("fsdp/layers", tests, NULL, NULL);
}
