/* runtime/tensor/storage.c: whose the bytes are that a storage shows. */
#include "books.h"

#include "tensor.h"

#include <pthread.h>

static msi_storage *owned(int64_t nbytes)
{
    msi_storage *s;

    assert_ok(msi_storage_new(&s, msi_context(), nbytes, MS_MEM_ACTIVATION));
    return s;
}

static msi_storage *part_of(msi_storage *base, int64_t offset, int64_t nbytes)
{
    msi_storage *s;

    assert_ok(msi_storage_part(&s, base, offset, nbytes));
    return s;
}

static int64_t bytes_held(void)
{
    ms_memory_stats stats;

    ms_memory_stats_get(&stats);
    return stats.live[MS_MEM_ACTIVATION];
}

static void test_tensor_storage__a_part_shows_bytes_of_another_and_keeps_it(void **state)
{
    const int64_t before = bytes_held();
    msi_storage *whole = owned(4096), *part = part_of(whole, 1024, 16);

    assert_ptr_equal(part->data, (char *)whole->data + 1024);
    assert_int_equal(part->nbytes, 16);
    msi_storage_release(whole);
    assert_true(bytes_held() > before);
    msi_storage_release(part);
    assert_int_equal(bytes_held(), before);
}

static void test_tensor_storage__bound_to_another_it_lets_go_of_the_one_before(void **state)
{
    const int64_t before = bytes_held();
    msi_storage *first = owned(4096), *second = owned(8192), *part = part_of(first, 0, 4096);

    msi_storage_release(first);
    const int64_t both = bytes_held();

    msi_storage_bind(part, second, second->data, 8192);
    assert_true(bytes_held() < both);
    assert_ptr_equal(part->data, second->data);
    assert_int_equal(part->nbytes, 8192);
    msi_storage_bind(part, second, second->data, 8192); /* again: it stays */
    msi_storage_release(second);
    assert_true(bytes_held() > before);
    msi_storage_release(part);
    assert_int_equal(bytes_held(), before);
}

static void test_tensor_storage__unbound_it_shows_nothing_and_holds_nothing(void **state)
{
    const int64_t before = bytes_held(), n = 4;
    msi_storage *whole = owned(4096);
    msi_view v = {.storage = part_of(whole, 0, 4)};
    void *data;

    msi_view_set_contiguous(&v, MS_DTYPE_U8, 1, &n);
    v.storage->absent = "it was given back";
    msi_storage_release(whole);
    assert_ok(msi_view_data(&v, &data));
    msi_storage_unbind(v.storage);
    assert_int_equal(bytes_held(), before);
    assert_fails(MS_RUNTIME_ERROR, "it was given back", msi_view_data(&v, &data));
    msi_storage_unbind(v.storage);
    msi_storage_release(v.storage);
}

static void test_tensor_storage__only_owned_memory_of_one_holder_may_be_written_over(void **state)
{
    msi_storage *whole = owned(64), *part;

    assert_true(msi_storage_is_private(whole));
    whole->readonly = "is a view of something";
    assert_false(msi_storage_is_private(whole));
    whole->readonly = NULL;
    part = part_of(whole, 0, 64);
    assert_false(msi_storage_is_private(whole));
    assert_false(msi_storage_is_private(part));
    msi_storage_release(part);
    assert_true(msi_storage_is_private(whole));
    msi_storage_release(whole);
}

/* Wholes made before their parts and after them: records are gone through in one order. */
static void *close_with_parts(void *user)
{
    msi_storage *first = owned(64), *part = part_of(first, 0, 64), *last = owned(64);

    msi_storage_bind(part, last, last->data, 64);
    part_of(first, 0, 64);
    msi_storage_release(last);
    assert_ok(ms_close());
    assert_int_equal(bytes_held(), 0);
    ms_close();
    return NULL;
}

static void test_tensor_storage__serial_numbers_are_not_used_again(void **state)
{
    msi_storage *s = owned(64), *part = part_of(s, 0, 8);
    const msi_storage *record = s;
    const uint64_t serial = s->serial;

    assert_true(part->serial > serial);
    msi_storage_release(part);
    msi_storage_release(s);
    s = owned(64);
    assert_ptr_equal(s, record); /* recycled */
    assert_int_equal(s->serial, serial + 2);
    msi_storage_release(s);
}

static void test_tensor_storage__closing_a_context_takes_parts_and_wholes_once_each(void **state)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, close_with_parts, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_tensor_storage__a_part_shows_bytes_of_another_and_keeps_it),
        BOOKED_TEST(test_tensor_storage__bound_to_another_it_lets_go_of_the_one_before),
        BOOKED_TEST(test_tensor_storage__unbound_it_shows_nothing_and_holds_nothing),
        BOOKED_TEST(test_tensor_storage__only_owned_memory_of_one_holder_may_be_written_over),
        BOOKED_TEST(test_tensor_storage__serial_numbers_are_not_used_again),
        BOOKED_TEST(test_tensor_storage__closing_a_context_takes_parts_and_wholes_once_each),
    };
    return cmocka_run_group_tests_name("tensor/storage", tests, NULL, NULL);
}
