/* runtime/base/chain.c: what a context keeps in a room, and finds when it is closed. */
#include "chain.h"
#include "ms_test.h"

enum { N = 5, ROOM = MSI_ROOM_FSDP_UNITS };

typedef struct member {
    msi_chained chained;
    int32_t closed;
} member;

static void close_members(void *first)
{
    for (msi_chained *link = first; link != NULL; link = link->next) {
        ((member *)link->owner)->closed++;
    }
}

/* Which are closed, a digit each, when the context is after `left` were taken away. */
static int32_t close_without(const int32_t *left, int32_t n_left)
{
    member members[N] = {{.closed = 0}};
    ms_context *ctx = msi_context();
    int32_t digits = 0;

    for (int32_t i = 0; i < N; i++) {
        msi_chain_add(ctx, ROOM, &members[i].chained, &members[i], close_members);
    }
    for (int32_t i = 0; i < n_left; i++) {
        msi_chain_remove(ctx, ROOM, &members[left[i]].chained);
        msi_chain_remove(ctx, ROOM, &members[left[i]].chained); /* nothing */
    }
    ms_close();
    for (int32_t i = 0; i < N; i++) {
        digits = digits * 10 + members[i].closed;
    }
    return digits;
}

static void test_base_chain__closes_those_that_are_still_there(void **state)
{
    const int32_t left[] = {4, 0, 2, 1, 3}; /* the latest, the first, between */

    (void)state;
    assert_int_equal(close_without(left, 0), 11111);
    assert_int_equal(close_without(left, 1), 11110);
    assert_int_equal(close_without(left, 2), 1110);
    assert_int_equal(close_without(left, 3), 1010);
    assert_int_equal(close_without(left, 4), 10);
    assert_int_equal(close_without(left, 5), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_chain__closes_those_that_are_still_there),
    };

    return cmocka_run_group_tests_name("base/chain", tests, NULL, NULL);
}
