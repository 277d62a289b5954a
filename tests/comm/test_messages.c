/* runtime/comm/channel.c and message.c, with ranks as threads. (spec/dist/messages_spec.lua has
 * what fails.) */
#include "rank_test.h"

#include "books.h"
#include "bytes.h"

static const int64_t lengths[] = {0, 1, 1000, 200001};

static ms_status message_of(ms_tensor **out, int32_t from, int32_t to, int64_t n)
{
    *out = filled(MS_DTYPE_F32, 1, &n, (uint64_t)(10 * from + to));
    return MS_OK;
}

/* Every rank sends to every other one and receives from it, all at once; then they meet. */
static ms_status exchange_all(void *user, int32_t rank)
{
    ms_message *sends[4] = {NULL}, *receives[4] = {NULL};
    ms_tensor *out[4], *in[4], *expected;
    ms_comm *c;
    bool done;

    (void)user;
    MS_TRY(ms_comm_world(&c));
    for (int32_t i = 0; i < MSI_COUNT(lengths); i++) {
        for (int32_t q = 0; q < ms_comm_size(c); q++) {
            if (q != rank) {
                MS_TRY(message_of(&out[q], rank, q, lengths[i]));
                MS_TRY(ms_tensor_full(&in[q], MS_DTYPE_F32, 1, &lengths[i], 0));
                MS_TRY(ms_comm_send(&sends[q], c, out[q], q, i));
                MS_TRY(ms_comm_recv(&receives[q], c, in[q], q, i));
            }
        }
        MS_TRY(ms_comm_barrier(c));
        for (int32_t q = ms_comm_size(c) - 1; q >= 0; q--) {
            if (q == rank) {
                continue;
            }
            MS_TRY(ms_message_wait(receives[q]));
            MS_TRY(ms_message_wait(sends[q]));
            MS_TRY(ms_message_test(receives[q], &done));
            MS_TRY(message_of(&expected, q, rank, lengths[i]));
            EXPECT(done && ms_message_peer(receives[q]) == q && same_bytes(in[q], expected));
            ms_message_free(sends[q]);
            ms_message_free(receives[q]);
            ms_tensor_free(out[q]);
            ms_tensor_free(in[q]);
            ms_tensor_free(expected);
        }
    }
    return MS_OK;
}

static void test_comm_messages__move_while_ranks_wait(void **state)
{
    (void)state;
    for (int32_t w = 2; w <= 4; w++) {
        run_ranks(w, exchange_all, NULL);
    }
}

/* A handle that was given up: the message arrives nevertheless. */
static ms_status give_up(void *user, int32_t rank)
{
    const int64_t n = 100000;
    ms_message *m;
    ms_tensor *t, *expected;
    ms_comm *c;

    (void)user;
    MS_TRY(ms_comm_world(&c));
    MS_TRY(message_of(&expected, 0, 1, n));
    if (rank == 0) {
        MS_TRY(ms_comm_send(&m, c, expected, 1, 0));
        ms_message_free(m);
    } else {
        MS_TRY(ms_tensor_full(&t, MS_DTYPE_F32, 1, &n, 0));
        MS_TRY(ms_comm_recv(&m, c, t, -1, 0));
        MS_TRY(ms_message_wait(m));
        EXPECT(ms_message_peer(m) == 0 && same_bytes(t, expected));
        ms_message_free(m);
        ms_tensor_free(t);
    }
    ms_tensor_free(expected);
    return ms_comm_barrier(c);
}

static void test_comm_messages__arrive_without_their_handle(void **state)
{
    (void)state;
    run_ranks(2, give_up, NULL);
}

static void test_comm_messages__of_a_fake_group_go_nowhere(void **state)
{
    const int64_t n = 3;
    ms_message *m;
    ms_tensor *t;
    ms_comm *c;
    double seen[3];

    (void)state;
    assert_ok(ms_comm_fake(&c, 1, 3));
    assert_ok(ms_tensor_full(&t, MS_DTYPE_F64, 1, &n, 5));
    assert_ok(ms_comm_send(&m, c, t, 2, 0));
    assert_ok(ms_message_wait(m));
    ms_message_free(m);
    assert_ok(ms_comm_recv(&m, c, t, 0, 0));
    assert_ok(ms_message_wait(m));
    ms_message_free(m);
    assert_ok(ms_tensor_to_doubles(t, seen, 3));
    assert_true(seen[2] == 5);
    assert_fails(MS_VALUE_ERROR, "rank is 1", ms_comm_send(&m, c, t, 1, 0));
    assert_fails(MS_VALUE_ERROR, "rank is 3", ms_comm_recv(&m, c, t, 3, 0));
    ms_tensor_free(t);
    ms_comm_free(c);
    ms_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_messages__move_while_ranks_wait),
        cmocka_unit_test(test_comm_messages__arrive_without_their_handle),
        cmocka_unit_test(test_comm_messages__of_a_fake_group_go_nowhere),
    };

    return cmocka_run_group_tests_name("comm/messages", tests, NULL, NULL);
}
