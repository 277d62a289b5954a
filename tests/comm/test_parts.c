/* runtime/comm: scatter, gather, reduce and all_to_all, against plain loops over all ranks' values.
 */
#include "rank_test.h"

#include "books.h"
#include "bytes.h"

static const int64_t lengths[] = {0, 1, 7, 70001}; /* of a part; the last is several chunks */

/* Element i of the part from rank p to rank q. */
static float value_of(int32_t p, int32_t q, int64_t i)
{
    return (float)(p * 1000 + q * 100 + i % 89);
}

/* Parts of n[q] elements from `rank` to each q, one after another. */
static ms_status parts(ms_tensor **out, int32_t rank, int32_t w, const int64_t *n)
{
    int64_t total = 0, at = 0;

    for (int32_t q = 0; q < w; q++) {
        total += n[q];
    }
    float *values = malloc((size_t)(total + 1) * sizeof(*values));

    for (int32_t q = 0; q < w; q++) {
        for (int64_t i = 0; i < n[q]; i++) {
            values[at++] = value_of(rank, q, i);
        }
    }
    MS_TRY(ms_tensor_full(out, MS_DTYPE_F32, 1, &total, -1));
    write_bytes(*out, values);
    free(values);
    return MS_OK;
}

/* n[p] elements from each p to `rank`? */
static ms_status check_from(const ms_tensor *t, int32_t rank, int32_t w, const int64_t *n)
{
    float *seen = malloc((size_t)(msi_view_numel(&t->v) + 1) * sizeof(*seen));
    int64_t at = 0;
    bool same = true;

    read_bytes(t, seen);
    for (int32_t p = 0; p < w; p++) {
        for (int64_t i = 0; i < n[p]; i++) {
            same = same && seen[at++] == value_of(p, rank, i);
        }
    }
    free(seen);
    EXPECT(same && at == msi_view_numel(&t->v));
    return MS_OK;
}

static ms_status try_root(ms_comm *c, int32_t root, int64_t n)
{
    const int32_t w = ms_comm_size(c), r = ms_comm_rank(c);
    int64_t to[4] = {0}, from[4] = {0}, all[4] = {n, n, n, n};
    ms_tensor *in, *out;

    from[root] = n;
    MS_TRY(parts(&in, r, w, all));
    MS_TRY(ms_tensor_full(&out, MS_DTYPE_F32, 1, &n, -1));
    MS_TRY(ms_comm_scatter(c, out, r == root ? in : NULL, root));
    MS_TRY(check_from(out, r, w, from));
    ms_tensor_free(in);
    ms_tensor_free(out);
    to[root] = n;
    MS_TRY(parts(&in, r, w, to));
    MS_TRY(parts(&out, r, w, all));
    MS_TRY(ms_comm_gather(c, r == root ? out : NULL, in, root));
    EXPECT(r != root || check_from(out, r, w, all) == MS_OK);
    ms_tensor_free(in);
    ms_tensor_free(out);
    return MS_OK;
}

/* Has the bits of all_reduce on the root, and writes nothing elsewhere. */
static ms_status try_reduce(ms_comm *c, int32_t root, int64_t n)
{
    for (int32_t reduce = MS_REDUCE_SUM; reduce <= MS_REDUCE_MIN; reduce++) {
        ms_tensor *mine = filled(MS_DTYPE_F32, 1, &n, 5 + (uint64_t)ms_comm_rank(c)), *a, *b;

        MS_TRY(ms_op_clone(&a, mine));
        MS_TRY(ms_op_clone(&b, mine));
        MS_TRY(ms_comm_all_reduce(c, a, reduce));
        MS_TRY(ms_comm_reduce(c, b, root, reduce));
        EXPECT(same_bytes(b, ms_comm_rank(c) == root ? a : mine));
        ms_tensor_free(mine);
        ms_tensor_free(a);
        ms_tensor_free(b);
    }
    return MS_OK;
}

static ms_status try_all(ms_comm *c, int64_t n)
{
    const int32_t w = ms_comm_size(c), r = ms_comm_rank(c);
    int64_t from[4], to[4];
    ms_tensor *in, *out;

    for (int32_t unequal = 0; unequal < 2; unequal++) {
        for (int32_t q = 0; q < w; q++) {
            to[q] = unequal ? n * ((r + 2 * q) % 3) : n;
            from[q] = unequal ? n * ((q + 2 * r) % 3) : n;
        }
        MS_TRY(parts(&in, r, w, to));
        MS_TRY(parts(&out, r, w, from));
        MS_TRY(ms_comm_all_to_all(c, out, in, unequal ? from : NULL, unequal ? to : NULL));
        MS_TRY(check_from(out, r, w, from));
        ms_tensor_free(in);
        ms_tensor_free(out);
    }
    return MS_OK;
}

static ms_status try_every(void *user, int32_t rank)
{
    ms_comm *c;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&c));
    for (int32_t i = 0; i < MSI_COUNT(lengths); i++) {
        for (int32_t root = 0; root < ms_comm_size(c); root++) {
            MS_TRY(try_root(c, root, lengths[i]));
            MS_TRY(try_reduce(c, root, lengths[i]));
        }
        MS_TRY(try_all(c, lengths[i]));
    }
    return MS_OK;
}

static void test_comm_parts__move_what_plain_loops_move(void **state)
{
    (void)state;
    for (int32_t w = 1; w <= 4; w++) {
        run_ranks(w, try_every, NULL);
    }
}

/* Rank 1 sends 3 rows to rank 0, which expects 2: an error on both, and the group goes on. */
static ms_status expect_other_rows(void *user, int32_t rank)
{
    const int64_t two = 4, to[2] = {rank == 1 ? 3 : 2, rank == 1 ? 1 : 2}, from[2] = {2, 2};
    ms_tensor *in, *out;
    ms_comm *c;

    (void)user;
    MS_TRY(ms_comm_world(&c));
    MS_TRY(ms_tensor_full(&in, MS_DTYPE_F32, 1, &two, 1));
    MS_TRY(ms_tensor_full(&out, MS_DTYPE_F32, 1, &two, 1));
    EXPECT(ms_comm_all_to_all(c, out, in, from, to) == MS_COMM_ERROR);
    EXPECT(strstr(ms_error_message(), "rank 1 sends 3 rows to rank 0, which expects 2") != NULL);
    EXPECT(ms_comm_all_to_all(c, out, in, from, NULL) == MS_VALUE_ERROR);
    MS_TRY(ms_comm_all_to_all(c, out, in, NULL, NULL));
    ms_tensor_free(in);
    ms_tensor_free(out);
    return MS_OK;
}

static void test_comm_parts__rows_that_do_not_fit_are_an_error_on_all(void **state)
{
    (void)state;
    run_ranks(2, expect_other_rows, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_parts__move_what_plain_loops_move),
        cmocka_unit_test(test_comm_parts__rows_that_do_not_fit_are_an_error_on_all),
    };

    return cmocka_run_group_tests_name("comm/parts", tests, NULL, NULL);
}
