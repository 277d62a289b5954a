/* runtime/graph/plan.c: where temporary buffers are put. */
#include "ms_test.h"

#include "graph.h"

enum { MAX_BUFFERS = 40, KERNELS = 30, DRAWS = 200 };

static uint64_t draw(uint64_t *rng, uint64_t below)
{
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    return (*rng >> 33) % below;
}

/* Buffers of random sizes and lifetimes, some of them saved: at offsets below `*saved`, live from
 * the start. */
static int32_t make_buffers(msi_buffer *b, uint64_t *rng, int64_t *saved)
{
    const int32_t n = 1 + (int32_t)draw(rng, MAX_BUFFERS);
    const bool with_saved = draw(rng, 2) == 0;

    *saved = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t born = (int32_t)draw(rng, KERNELS);

        b[i] = (msi_buffer){.address = (uint64_t)i * 64,
                            .nbytes = (int64_t)draw(rng, 4096),
                            .kind = with_saved && draw(rng, 4) == 0 ? MSI_BUFFER_SAVED
                                                                    : MSI_BUFFER_BACKWARD,
                            .born = born,
                            .died = born + 1 + (int32_t)draw(rng, 6)};
        if (b[i].kind == MSI_BUFFER_SAVED) {
            b[i].born = 0;
            b[i].offset = *saved;
            *saved += (b[i].nbytes + 64) / 64 * 64;
        }
    }
    return n;
}

static int64_t end_of(const msi_buffer *b)
{
    return b->offset + b->nbytes;
}

static void check_place(const msi_buffer *b, int32_t n, int64_t saved, int64_t end)
{
    for (int32_t i = 0; i < n; i++) {
        assert_true(b[i].offset >= 0 && b[i].offset % 64 == 0 && end_of(&b[i]) <= end);
        assert_true(b[i].offset >= saved || end_of(&b[i]) <= saved);
        for (int32_t k = 0; k < i; k++) {
            const bool live = b[i].born < b[k].died && b[k].born < b[i].died;

            assert_true(!live || end_of(&b[i]) <= b[k].offset || end_of(&b[k]) <= b[i].offset);
        }
    }
}

/* The most bytes that are live at once, buffers rounded up to 64. */
static int64_t peak_of(const msi_buffer *b, int32_t n)
{
    int64_t peak = 0;

    for (int32_t at = 0; at < KERNELS + 6; at++) {
        int64_t live = 0;

        for (int32_t i = 0; i < n; i++) {
            live += b[i].born <= at && at < b[i].died ? (b[i].nbytes + 63) / 64 * 64 : 0;
        }
        peak = live > peak ? live : peak;
    }
    return peak;
}

static void test_graph_plan__live_buffers_do_not_overlap_and_little_is_lost(void **state)
{
    msi_buffer buffers[MAX_BUFFERS];
    uint64_t rng = 1;
    double lost = 0;

    (void)state;
    for (int32_t i = 0; i < DRAWS; i++) {
        msi_plan plan = {.buffers = buffers};
        int64_t saved, end;

        plan.n_buffers = make_buffers(buffers, &rng, &saved);
        const int64_t peak = peak_of(buffers, plan.n_buffers);

        assert_ok(msi_plan_place(&plan, MSI_BUFFER_BACKWARD, saved, &end));
        check_place(buffers, plan.n_buffers, saved, end);
        assert_true(end >= peak && end >= saved);
        lost += peak > 0 ? (double)end / (double)(peak > saved ? peak : saved) - 1 : 0;
    }
    print_message("the regions are %.3f of the peaks\n", 1 + lost / DRAWS);
    assert_true(lost / DRAWS <= 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph_plan__live_buffers_do_not_overlap_and_little_is_lost),
    };

    return cmocka_run_group_tests_name("graph/plan", tests, NULL, NULL);
}
