/* runtime/collective: collectives of meta tensors, which nobody waits for, and what a watcher of
 * operators sees of them. */
#include "collectives.h"

#include "books.h"

#include "backend.h"

/* -- meta tensors ------------------------------------------------------------------------------ */

/* Of each row, recorded or not. */
typedef struct sightings {
    bool real[MSI_COLLECTIVE_COUNT], meta[MSI_COLLECTIVE_COUNT];
    bool real_extreme[MSI_COLLECTIVE_COUNT], meta_extreme[MSI_COLLECTIVE_COUNT];
} sightings;

static void sight(void *user, const msi_op_call *call, ms_status status)
{
    sightings *s = user;

    for (int32_t i = 0; i < MSI_COLLECTIVE_COUNT && status == MS_OK; i++) {
        s->real[i] |= call->op == &msi_collectives[i].op && !call->meta;
        s->meta[i] |= call->op == &msi_collectives[i].op && call->meta;
        s->real_extreme[i] |= call->op == &msi_collectives[i].extreme && !call->meta;
        s->meta_extreme[i] |= call->op == &msi_collectives[i].extreme && call->meta;
    }
}

static ms_status answer(ms_tensor **out, char *message, ms_comm *c, const collective *k,
                        ms_tensor *x)
{
    ms_status status = k->run(out, c, x, k->a);

    snprintf(message, MSI_MESSAGE_BYTES, "%s", status != MS_OK ? ms_error_message() : "");
    return status;
}

static ms_status compare_forms(ms_comm *c, const collective *k, int32_t dtype, int32_t ndim,
                               const int64_t *shape)
{
    static _Thread_local char said[MSI_MESSAGE_BYTES], said_of_meta[MSI_MESSAGE_BYTES];
    ms_tensor *real, *meta, *y, *shaped;

    MS_TRY(ms_tensor_full(&real, dtype, ndim, shape, 1));
    MS_TRY(ms_tensor_meta(&meta, dtype, ndim, shape));
    ms_status status = answer(&y, said, c, k, real);

    EXPECT(answer(&shaped, said_of_meta, c, k, meta) == status);
    EXPECT(strcmp(said, said_of_meta) == 0);
    if (status == MS_OK) {
        EXPECT(shaped->v.storage->meta && shaped->v.dtype == y->v.dtype);
        EXPECT(msi_view_same_shape(&shaped->v, &y->v));
    }
    ms_tensor_free(shaped);
    ms_tensor_free(y);
    ms_tensor_free(meta);
    ms_tensor_free(real);
    return MS_OK;
}

static ms_status try_forms(void *user, int32_t rank)
{
    static const int64_t shapes[][3] = {{12, 2, 3}, {12, 0, 1}, {5, 1, 1}, {0, 4, 4}};
    const collective wrong = {"", ms_op_all_reduce, 7, false};
    sightings seen = {.real = {false}};
    const msi_op_observer observer = {.end = sight, .user = &seen};
    ms_comm *c;

    (void)user;
    (void)rank;
    MS_TRY(ms_comm_world(&c));
    msi_op_observe(msi_context(), &observer);
    for (int32_t k = 0; k < MSI_COUNT(collectives); k++) {
        for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
            for (int32_t s = 0; s < MSI_COUNT(shapes); s++) {
                MS_TRY(compare_forms(c, &collectives[k], dtype, s % 4, shapes[s]));
            }
        }
    }
    MS_TRY(compare_forms(c, &wrong, MS_DTYPE_F32, 1, shapes[0]));
    msi_op_observe(msi_context(), NULL);
    for (int32_t i = 0; i < MSI_COLLECTIVE_COUNT; i++) {
        const bool reduces = msi_collectives[i].reduces;

        EXPECT(seen.real[i] && seen.meta[i]);
        EXPECT(seen.real_extreme[i] == reduces && seen.meta_extreme[i] == reduces);
    }
    return MS_OK;
}

static void test_watched__say_the_same_of_real_and_meta_operands(void **state)
{
    (void)state;
    run_ranks(1, try_forms, NULL);
    run_ranks(3, try_forms, NULL);
}

/* One rank alone may ask for the shapes. */
static ms_status ask_alone(void *user, int32_t rank)
{
    const int64_t part[1] = {6}, whole[2] = {2, 6};
    ms_tensor *x, *all, *y;
    int64_t counts[5];
    ms_comm *c;

    (void)user;
    MS_TRY(ms_comm_world(&c));
    for (int32_t k = 0; rank == 1 && k < MSI_COUNT(collectives); k++) {
        MS_TRY(ms_tensor_meta(&x, MS_DTYPE_F32, 1, part));
        MS_TRY(collectives[k].run(&y, c, x, collectives[k].a));
        MS_TRY(ms_tensor_meta(&all, MS_DTYPE_F32, 2, whole));
        MS_TRY(ms_comm_all_reduce(c, x, MS_REDUCE_MAX));
        MS_TRY(ms_comm_broadcast(c, x, 1));
        MS_TRY(ms_comm_all_gather(c, all, x));
        MS_TRY(ms_comm_reduce_scatter(c, x, all, MS_REDUCE_AVG));
        EXPECT(ms_comm_all_gather(c, x, all) == MS_VALUE_ERROR);
        ms_tensor_free(y);
        ms_tensor_free(all);
        ms_tensor_free(x);
    }
    ms_comm_counts(c, counts);
    for (int32_t i = 0; i < MSI_COUNT(counts); i++) {
        EXPECT(counts[i] == 0);
    }
    return ms_comm_barrier(c);
}

static void test_watched__say_nothing_of_meta_operands_to_others(void **state)
{
    (void)state;
    run_ranks(2, ask_alone, NULL);
}

static void test_watched__refuse_to_read_or_fill_one_meta_operand_of_two(void **state)
{
    const int64_t three[1] = {3};
    ms_tensor *x, *meta;
    ms_comm *self;

    (void)state;
    assert_ok(ms_comm_self(&self));
    assert_ok(ms_tensor_full(&x, MS_DTYPE_F32, 1, three, 1));
    assert_ok(ms_tensor_meta(&meta, MS_DTYPE_F32, 1, three));
    assert_fails(MS_RUNTIME_ERROR, "a meta tensor of shape (3) has no values yet",
                 ms_comm_all_gather(self, x, meta));
    assert_fails(MS_RUNTIME_ERROR, "a meta tensor of shape (3) has no values yet",
                 ms_comm_all_gather(self, meta, x));
    ms_tensor_free(meta);
    ms_tensor_free(x);
}

/* -- backward ---------------------------------------------------------------------------------- */

static void remember(void *user, const msi_op_call *call, ms_status status)
{
    (void)status;
    *(const msi_op **)user = call->op;
}

static void test_watched__show_the_collective_of_a_backward(void **state)
{
    ms_tensor *x = FILLED(MS_DTYPE_F32, 1, 3), *y = FILLED(MS_DTYPE_F32, 2, 3), *z;
    const msi_op *seen = NULL;
    const msi_op_observer observer = {.end = remember, .user = &seen};
    ms_comm *self;

    (void)state;
    assert_ok(ms_comm_self(&self));
    assert_ok(ms_tensor_set_requires_grad(x, true));
    assert_ok(ms_op_all_gather(&z, self, x));
    msi_op_observe(msi_context(), &observer);
    assert_ok(ms_backward(z, y));
    msi_op_observe(msi_context(), NULL);
    assert_ptr_equal(seen, &msi_collectives[MSI_REDUCE_SCATTER].op);
    assert_ok(ms_tensor_set_grad(x, NULL));
    ms_tensor_free(z);
    ms_tensor_free(y);
    ms_tensor_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watched__say_the_same_of_real_and_meta_operands),
        cmocka_unit_test(test_watched__say_nothing_of_meta_operands_to_others),
        BOOKED_TEST(test_watched__refuse_to_read_or_fill_one_meta_operand_of_two),
        BOOKED_TEST(test_watched__show_the_collective_of_a_backward),
    };

    return cmocka_run_group_tests_name("collective/watched", tests, NULL, NULL);
}
