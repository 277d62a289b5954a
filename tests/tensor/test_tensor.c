/* runtime/tensor: making, reading, viewing, scopes, generations, parameters. */
#include "values.h"

#include "tensor.h"

static ms_tensor *made(int32_t ndim, const int64_t *shape)
{
    double values[64];
    int64_t n = 1;
    ms_tensor *t;

    for (int32_t i = 0; i < ndim; i++) {
        n *= shape[i];
    }
    for (int64_t i = 0; i < n; i++) {
        values[i] = (double)i;
    }
    assert_ok(ms_tensor_from_doubles(&t, MS_DTYPE_F32, ndim, shape, values, n));
    return t;
}

static void test_tensor__values_go_in_and_out_in_every_dtype(void **state)
{
    static const double in[6] = {0, 1, 2, 3, 100, 255};
    const int64_t shape[2] = {2, 3};
    double out[6];

    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        ms_tensor *t;

        assert_ok(ms_tensor_from_doubles(&t, dtype, 2, shape, in, 6));
        assert_ok(ms_tensor_to_doubles(t, out, 6));
        for (int32_t i = 0; i < 6; i++) {
            assert_true(out[i] == (dtype == MS_DTYPE_BOOL ? in[i] != 0 : in[i]));
        }
    }
}

static void test_tensor__bad_shapes_are_named(void **state)
{
    const int64_t negative[2] = {2, -3}, huge[3] = {1 << 30, 1 << 30, 1 << 30};
    ms_tensor *t;

    assert_fails(MS_VALUE_ERROR, "size of dimension 1 is -3",
                 ms_tensor_empty(&t, MS_DTYPE_F32, 2, negative));
    assert_null(t);
    assert_fails(MS_VALUE_ERROR, "too many elements", ms_tensor_empty(&t, MS_DTYPE_F32, 3, huge));
    assert_fails(MS_VALUE_ERROR, "dtype 17", ms_tensor_empty(&t, 17, 0, NULL));
    assert_fails(MS_VALUE_ERROR, "0 to 8 dimensions, got 9",
                 ms_tensor_empty(&t, MS_DTYPE_F32, 9, huge));
    t = made(2, (const int64_t[]){2, 3});
    double out[5];

    assert_fails(MS_VALUE_ERROR, "room for 5 values, expected 6", ms_tensor_to_doubles(t, out, 5));
    assert_fails(MS_VALUE_ERROR, "one element, got shape (2, 3)", ms_tensor_item(t, out));
}

/* Strides of an empty tensor are products of sizes too; a message has room for any shape. */
static void test_tensor__sizes_that_cannot_be_counted_are_refused(void **state)
{
    static const int64_t huge = INT64_C(1) << 62, wide = INT64_C(1) << 40;
    const int64_t shapes[3][3] = {{0, huge, huge}, {huge, 0, huge}, {huge, huge, 0}};
    const int64_t eight[8] = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX,
                              INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    ms_tensor *t, *column, *row, *out, *many[64];

    for (int32_t i = 0; i < 3; i++) {
        assert_fails(MS_VALUE_ERROR, "too many elements",
                     ms_tensor_empty(&t, MS_DTYPE_U8, 3, shapes[i]));
        assert_fails(MS_VALUE_ERROR, "too many elements",
                     ms_tensor_meta(&t, MS_DTYPE_F32, 3, shapes[i]));
    }
    assert_fails(MS_VALUE_ERROR,
                 "(9223372036854775807, 9223372036854775807, 9223372036854775807, "
                 "9223372036854775807, 9223372036854775807, 9223372036854775807, "
                 "9223372036854775807, 9223372036854775807)",
                 ms_tensor_empty(&t, MS_DTYPE_F32, 8, eight));
    assert_ok(ms_tensor_empty(&t, MS_DTYPE_F32, 1, &(int64_t){0}));
    assert_fails(MS_VALUE_ERROR, "too many elements", ms_op_reshape(&out, t, 3, shapes[0]));
    assert_ok(ms_tensor_empty(&column, MS_DTYPE_F32, 2, (const int64_t[]){wide, 0}));
    assert_ok(ms_tensor_empty(&row, MS_DTYPE_F32, 2, (const int64_t[]){0, wide}));
    assert_fails(MS_VALUE_ERROR, "too many elements", ms_op_matmul(&out, column, row));
    assert_fails(MS_VALUE_ERROR, "too many elements", ms_op_linear(&out, column, column, NULL));
    assert_ok(ms_tensor_empty(&t, MS_DTYPE_F32, 2, (const int64_t[]){0, huge >> 4}));
    for (int32_t i = 0; i < 64; i++) {
        many[i] = t;
    }
    assert_fails(MS_VALUE_ERROR, "too many elements", ms_op_cat(&out, many, 64, 1));
    assert_ok(ms_tensor_empty(&t, MS_DTYPE_F32, 3, (const int64_t[]){wide, 1 << 10, 0}));
    assert_fails(MS_VALUE_ERROR, "too many elements",
                 ms_op_attention_packed(&out, t, INT32_MAX, false, 0));
}

static void test_tensor__writing_bumps_the_version(void **state)
{
    ms_tensor *t = made(1, (const int64_t[]){4}), *u = made(1, (const int64_t[]){4}), *view;
    ms_tensor_info a, b;
    double out[4];

    assert_ok(ms_tensor_detach(&view, t));
    assert_ok(ms_tensor_describe(view, &a));
    assert_ok(ms_tensor_add_scaled(t, u, 2));
    assert_ok(ms_tensor_describe(view, &b));
    assert_int_equal(a.version + 1, b.version); /* seen through every handle on the storage */
    assert_ok(ms_tensor_to_doubles(view, out, 4));
    assert_true(out[3] == 9);
}

/* Saved tensors and replicas are compared by versions: one says that something was written. */
static void test_tensor__a_refused_write_bumps_no_version(void **state)
{
    ms_tensor *t = made(1, (const int64_t[]){4}), *wide = made(2, (const int64_t[]){2, 4});
    ms_tensor *long_one = made(1, (const int64_t[]){5}), *none, *bytes, *tokens, *x, *y;
    ms_tensor_info info;

    assert_ok(ms_tensor_meta(&none, MS_DTYPE_F32, 1, (const int64_t[]){4}));
    for (int32_t k = 0; k < 3; k++) {
        ms_tensor *src = k == 0 ? wide : k == 1 ? long_one : none;
        const ms_status kind = k < 2 ? MS_VALUE_ERROR : MS_RUNTIME_ERROR;
        const char *why = k < 2 ? "does not broadcast to (4)" : "has no values yet";

        assert_fails(kind, why, ms_tensor_copy(t, src));
        assert_fails(kind, why, ms_tensor_add_scaled(t, src, 2));
    }
    assert_ok(ms_tensor_describe(t, &info));
    assert_int_equal(info.version, 0);
    assert_fails(MS_RUNTIME_ERROR, "has no values yet", ms_tensor_fill(none, 1));
    assert_fails(MS_RUNTIME_ERROR, "has no values yet", ms_tensor_copy(none, t));
    assert_fails(MS_RUNTIME_ERROR, "has no values yet", ms_tensor_check_copy(none, t, "load"));
    assert_fails(MS_RUNTIME_ERROR, "has no values yet", ms_tensor_check_copy(t, none, "load"));
    assert_fails(MS_RUNTIME_ERROR, "has no values yet",
                 ms_tensor_init(none, MS_INIT_NORMAL, 0, 1, 7));
    assert_ok(ms_tensor_describe(none, &info));
    assert_int_equal(info.version, 0);
    assert_ok(ms_tensor_full(&bytes, MS_DTYPE_U8, 1, (const int64_t[]){4}, 1));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "add_ is not implemented for dtype u8",
                 ms_tensor_add_scaled(bytes, bytes, 1));
    assert_ok(ms_tensor_describe(bytes, &info));
    assert_int_equal(info.version, 0);
    assert_ok(ms_tensor_full(&tokens, MS_DTYPE_I64, 1, (const int64_t[]){9}, 1));
    assert_ok(ms_tensor_full(&x, MS_DTYPE_I64, 2, (const int64_t[]){1, 4}, 0));
    assert_ok(ms_tensor_meta(&y, MS_DTYPE_I64, 2, (const int64_t[]){1, 4}));
    assert_fails(MS_RUNTIME_ERROR, "has no values yet",
                 ms_data_windows(x, y, tokens, 0, 1, 0, false));
    assert_ok(ms_tensor_describe(x, &info));
    assert_int_equal(info.version, 0);
}

/* 6 x 4 as (2, 3, 4); a transposed view does not merge, a narrowed outer dimension does. */
static void test_tensor_view__reshapes_without_a_copy_where_strides_allow(void **state)
{
    ms_tensor *t = made(2, (const int64_t[]){6, 4}), *moved, *reshaped;
    const int32_t swap[2] = {1, 0};
    msi_view out;

    assert_true(msi_view_reshape(&t->v, 3, (const int64_t[]){2, 3, 4}, &out));
    assert_int_equal(12, out.stride[0]);
    assert_ok(ms_op_permute(&moved, t, 2, swap)); /* (4, 6), strides 1, 4 */
    assert_false(msi_view_reshape(&moved->v, 1, (const int64_t[]){24}, &out));
    assert_true(msi_view_reshape(&moved->v, 3, (const int64_t[]){4, 2, 3}, &out));
    assert_int_equal(1, out.stride[0]);
    assert_int_equal(12, out.stride[1]);
    assert_int_equal(4, out.stride[2]);
    assert_ok(ms_op_reshape(&reshaped, moved, 1, (const int64_t[]){24})); /* by a copy */
    double values[24];

    assert_ok(ms_tensor_to_doubles(reshaped, values, 24));
    assert_true(values[0] == 0 && values[1] == 4 && values[6] == 1);
}

/* Element `i` in row-major order of a (2, 1, 3, 1, 4) whose dimensions were taken from `perm`. */
static double permuted_value(const int32_t *perm, int64_t i)
{
    static const int64_t shape[5] = {2, 1, 3, 1, 4}, stride[5] = {12, 12, 4, 4, 1};
    int64_t value = 0;

    for (int32_t d = 4; d >= 0; d--) {
        value += i % shape[perm[d]] * stride[perm[d]];
        i /= shape[perm[d]];
    }
    return (double)value;
}

/* Sizes of 1 between others have a stride too, which says nothing. */
static void test_tensor_view__reshapes_every_order_of_dimensions(void **state)
{
    static const int64_t to[8][5] = {{24, 1, 1, 1, 1}, {1, 24, 1, 1, 1}, {2, 12, 1, 1, 1},
                                     {4, 6, 1, 1, 1},  {3, 1, 8, 1, 1},  {2, 1, 3, 1, 4},
                                     {6, 1, 2, 2, 1},  {1, 8, 1, 3, 1}};
    ms_tensor *t = made(5, (const int64_t[]){2, 1, 3, 1, 4}), *moved, *reshaped;

    for (int32_t code = 0; code < 5 * 5 * 5 * 5 * 5; code++) {
        int32_t perm[5], seen = 0;
        double values[24];

        for (int32_t d = 0, rest = code; d < 5; d++, rest /= 5) {
            perm[d] = rest % 5;
            seen |= 1 << perm[d];
        }
        if (seen != 31) {
            continue;
        }
        assert_ok(ms_op_permute(&moved, t, 5, perm));
        for (int32_t k = 0; k < 8; k++) {
            assert_ok(ms_op_reshape(&reshaped, moved, 5, to[k]));
            assert_ok(ms_tensor_to_doubles(reshaped, values, 24));
            for (int64_t i = 0; i < 24; i++) {
                assert_true(values[i] == permuted_value(perm, i));
            }
        }
    }
}

/* Also when sizes inside the one of 0 have gaps: no group of dimensions has a product then. */
static void test_tensor_view__reshapes_empty_tensors_with_gaps(void **state)
{
    ms_tensor *t = made(3, (const int64_t[]){2, 3, 4}), *empty, *narrow, *reshaped;
    msi_view out;

    assert_ok(ms_op_narrow(&empty, t, 0, 1, 0));
    assert_ok(ms_op_narrow(&narrow, empty, 2, 1, 2)); /* (0, 3, 2) with strides of (2, 3, 4) */
    assert_true(msi_view_reshape(&narrow->v, 2, (const int64_t[]){5, 0}, &out));
    assert_ok(ms_op_reshape(&reshaped, narrow, 2, (const int64_t[]){0, 7}));
}

static void test_tensor_scope__releases_all_but_results_and_kept(void **state)
{
    ms_memory_stats before, after;
    ms_ref gone, result, kept;
    double out[4];

    ms_memory_stats_get(&before);
    assert_ok(ms_scope_open("outer"));
    assert_ok(ms_scope_open("inner"));
    gone.ptr = made(1, (const int64_t[]){4});
    result.ptr = made(1, (const int64_t[]){4});
    kept.ptr = made(1, (const int64_t[]){4});
    gone.generation = gone.ptr->generation;
    result.generation = result.ptr->generation;
    kept.generation = kept.ptr->generation;
    assert_ok(ms_scope_keep(kept.ptr));
    assert_ok(ms_scope_close(&result, 1));
    assert_false(ms_ref_alive(&gone));
    assert_string_equal("inner", ms_ref_released_by(&gone));
    assert_true(ms_ref_alive(&result)); /* now the outer scope's */
    assert_ok(ms_scope_close(NULL, 0));
    assert_false(ms_ref_alive(&result));
    assert_string_equal("outer", ms_ref_released_by(&result));
    assert_true(ms_ref_alive(&kept));
    assert_ok(ms_tensor_to_doubles(kept.ptr, out, 4));
    ms_ref_release(&kept);
    ms_ref_release(&gone); /* stale: nothing happens */
    ms_memory_stats_get(&after);
    assert_int_equal(before.live_handles, after.live_handles);
    assert_int_equal(before.live_total, after.live_total);
    assert_fails(MS_RUNTIME_ERROR, "no scope is open", ms_scope_close(NULL, 0));
}

static void test_tensor_scope__a_recycled_handle_is_not_the_old_one(void **state)
{
    ms_ref old;

    old.ptr = made(1, (const int64_t[]){2});
    old.generation = old.ptr->generation;
    ms_tensor_free(old.ptr);
    ms_tensor *next = made(1, (const int64_t[]){2});

    assert_ptr_equal(old.ptr, next); /* the record is used again at once */
    assert_false(ms_ref_alive(&old));
    ms_ref_release(&old);
    ms_tensor_info info;

    assert_ok(ms_tensor_describe(next, &info)); /* the new owner's is untouched */
    assert_int_equal(2, info.numel);
    ms_tensor_free(next);
}

static void test_tensor_scope__gives_refs_for_live_handles_only(void **state)
{
    const int64_t one = 1;
    ms_tensor *t;
    ms_ref ref;

    assert_ok(ms_tensor_empty(&t, MS_DTYPE_F32, 1, &one));
    assert_ok(ms_ref_of(&ref, t));
    assert_true(ms_ref_alive(&ref));
    assert_fails(MS_VALUE_ERROR, "ms_ref_of: 'ref' is NULL", ms_ref_of(NULL, t));
    assert_fails(MS_VALUE_ERROR, "ms_ref_of: 'ref' is NULL", ms_ref_of(NULL, NULL));
    ms_tensor_free(t);
    assert_false(ms_ref_alive(&ref));
    assert_fails(MS_VALUE_ERROR, "ms_ref_of: 't' is a freed tensor", ms_ref_of(&ref, t));
    assert_fails(MS_VALUE_ERROR, "ms_ref_of: 't' is NULL", ms_ref_of(&ref, NULL));
    assert_false(ms_ref_alive(&ref));
}

static void test_tensor_close__makes_every_ref_stale(void **state)
{
    ms_ref ref;
    ms_memory_stats stats;

    ref.ptr = made(1, (const int64_t[]){2});
    ref.generation = ref.ptr->generation;
    ms_close();
    assert_false(ms_ref_alive(&ref));
    ms_ref_release(&ref);
    ms_memory_stats_get(&stats);
    assert_int_equal(0, stats.live_handles);
    assert_int_equal(0, stats.live_total);
}

static void test_tensor_parameter__takes_memory_only_when_materialised(void **state)
{
    const int64_t shape[2] = {100, 7};
    ms_memory_stats before, declared, after;
    ms_tensor *a, *b, *zeros, *view;
    double x[700], y[700];

    ms_seed(3);
    ms_memory_stats_get(&before);
    assert_ok(ms_tensor_parameter(&a, MS_DTYPE_F32, 2, shape, MS_INIT_NORMAL, 0, 0.02));
    assert_ok(ms_tensor_set_name(a, "h.0.weight"));
    ms_memory_stats_get(&declared);
    assert_int_equal(before.live_total, declared.live_total);
    assert_fails(MS_RUNTIME_ERROR, "parameter 'h.0.weight' has no values yet: call its module's",
                 ms_tensor_to_doubles(a, x, 700));
    assert_ok(ms_tensor_detach(&view, a));
    assert_ok(ms_tensor_materialize(a));
    assert_fails(MS_RUNTIME_ERROR, "a meta tensor of shape (100, 7) has no values yet",
                 ms_tensor_to_doubles(view, x, 700)); /* what it views has lost its name */
    ms_tensor_free(view);
    ms_memory_stats_get(&after);
    assert_int_equal(before.live[MS_MEM_PARAMETER] + 2800, after.live[MS_MEM_PARAMETER]);
    assert_ok(ms_tensor_parameter(&b, MS_DTYPE_F32, 2, shape, MS_INIT_NORMAL, 0, 0.02));
    assert_ok(ms_tensor_set_name(b, "h.0.weight"));
    assert_ok(ms_tensor_materialize(b));
    assert_ok(ms_tensor_to_doubles(a, x, 700));
    assert_ok(ms_tensor_to_doubles(b, y, 700));
    assert_memory_equal(x, y, sizeof(x)); /* the name is the key */
    assert_ok(ms_tensor_parameter(&zeros, MS_DTYPE_F32, 2, shape, MS_INIT_NORMAL, 0, 0.02));
    assert_ok(ms_tensor_set_name(zeros, "h.0.weight"));
    assert_fails(MS_VALUE_ERROR, "14 elements from 687, expected a range of the 700 elements",
                 ms_tensor_initial_zeros(zeros, 687, 14));
    assert_ok(ms_tensor_initial_zeros(zeros, 7, 14));
    assert_ok(ms_tensor_materialize(zeros));
    assert_ok(ms_tensor_to_doubles(zeros, y, 700));
    memset(x + 7, 0, 14 * sizeof(x[0]));
    assert_memory_equal(x, y, sizeof(x));
    assert_fails(MS_TYPE_ERROR, "floating dtype, got i64",
                 ms_tensor_parameter(&b, MS_DTYPE_I64, 2, shape, MS_INIT_NONE, 0, 0));
    ms_tensor_free(zeros);
    ms_tensor_free(a);
}

/* A NaN's other bits must not reach Lua, which keeps types there. */
static void test_tensor__every_nan_reads_as_the_plain_one(void **state)
{
    uint32_t narrow[3] = {0xffffffff, 0x7f800001, 0xfffe1234};
    uint64_t wide[3] = {0xffffffffffffffff, 0xfffaffff00000001, 0x7ff8dead00000000}, bits;
    const double plain = __builtin_nan("");
    ms_tensor *t;
    double x[3];

    for (int32_t k = 0; k < 2; k++) {
        assert_ok(ms_tensor_borrow(&t, k == 0 ? MS_DTYPE_F32 : MS_DTYPE_F64, 1, &(int64_t){3},
                                   k == 0 ? (void *)narrow : (void *)wide));
        assert_ok(ms_tensor_to_doubles(t, x, 3));
        for (int32_t i = 0; i < 3; i++) {
            assert_memory_equal(&x[i], &plain, sizeof(plain));
        }
    }
    memcpy(&bits, &plain, sizeof(bits));
    assert_int_equal(bits, 0x7ff8000000000000);
}

static ms_tensor *parameter(const char *name)
{
    const int64_t shape[1] = {3};
    ms_tensor *t;

    assert_ok(ms_tensor_parameter(&t, MS_DTYPE_F32, 1, shape, MS_INIT_UNIFORM, 0, 1));
    assert_ok(ms_tensor_set_name(t, name));
    return t;
}

static void test_tensor_parameter__cast_keeps_the_handle_and_takes_the_gradient_along(void **state)
{
    const int64_t shape[1] = {3};
    ms_tensor *p = parameter("w"), *grad, *cast;
    double before[3], after[3];

    assert_ok(ms_tensor_materialize(p));
    assert_ok(ms_tensor_to_doubles(p, before, 3));
    assert_ok(ms_tensor_full(&grad, MS_DTYPE_F32, 1, shape, 1.0 / 3));
    assert_ok(ms_tensor_set_grad(p, grad));
    assert_ok(ms_params_cast(&p, 1, MS_DTYPE_F64));
    assert_ok(ms_tensor_to_doubles(p, after, 3));
    assert_memory_equal(before, after, sizeof(before));
    assert_int_equal(p->param->dtype, MS_DTYPE_F64);
    assert_ok(ms_tensor_grad(&cast, p));
    assert_int_equal(cast->v.dtype, MS_DTYPE_F64);
    assert_ok(ms_tensor_to_doubles(cast, after, 3));
    assert_true(after[2] == (float)(1.0 / 3));
    assert_fails(MS_TYPE_ERROR, "floating dtype, got i64", ms_params_cast(&p, 1, MS_DTYPE_I64));
    assert_fails(MS_TYPE_ERROR, "is no parameter", ms_params_cast(&grad, 1, MS_DTYPE_F32));
    ms_tensor_free(cast);
    ms_tensor_free(grad);
    ms_tensor_free(p);
}

/* Whichever allocation fails, each parameter is whole, and a second call casts the rest. */
static void test_tensor_parameter__cast_without_memory_can_be_called_again(void **state)
{
    const int64_t shape[1] = {3};
    bool failed = true;

    for (int64_t k = 0; failed; k++) {
        ms_tensor *params[2] = {parameter("a"), parameter("b")}, *grad;

        for (int32_t i = 0; i < 2; i++) {
            assert_ok(ms_tensor_materialize(params[i]));
            assert_ok(ms_tensor_full(&grad, MS_DTYPE_F32, 1, shape, 1));
            assert_ok(ms_tensor_set_grad(params[i], grad));
            ms_tensor_free(grad);
        }
        msi_alloc_fail_at(msi_context(), k);
        failed = ms_params_cast(params, 2, MS_DTYPE_F64) != MS_OK;
        msi_alloc_fail_at(msi_context(), -1);
        for (int32_t i = 0; i < 2; i++) {
            assert_int_equal(params[i]->grad->v.dtype, params[i]->v.dtype);
            assert_int_equal(params[i]->param->master.dtype, params[i]->v.dtype);
        }
        assert_ok(ms_params_cast(params, 2, MS_DTYPE_F64));
        for (int32_t i = 0; i < 2; i++) {
            assert_int_equal(params[i]->v.dtype, MS_DTYPE_F64);
            ms_tensor_free(params[i]);
        }
        assert_true(k < 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_tensor__every_nan_reads_as_the_plain_one),
        BOOKED_TEST(test_tensor__values_go_in_and_out_in_every_dtype),
        BOOKED_TEST(test_tensor__bad_shapes_are_named),
        BOOKED_TEST(test_tensor__sizes_that_cannot_be_counted_are_refused),
        BOOKED_TEST(test_tensor__writing_bumps_the_version),
        BOOKED_TEST(test_tensor__a_refused_write_bumps_no_version),
        BOOKED_TEST(test_tensor_view__reshapes_without_a_copy_where_strides_allow),
        BOOKED_TEST(test_tensor_view__reshapes_every_order_of_dimensions),
        BOOKED_TEST(test_tensor_view__reshapes_empty_tensors_with_gaps),
        cmocka_unit_test(test_tensor_scope__releases_all_but_results_and_kept),
        cmocka_unit_test(test_tensor_scope__gives_refs_for_live_handles_only),
        cmocka_unit_test(test_tensor_scope__a_recycled_handle_is_not_the_old_one),
        cmocka_unit_test(test_tensor_parameter__takes_memory_only_when_materialised),
        cmocka_unit_test(test_tensor_parameter__cast_keeps_the_handle_and_takes_the_gradient_along),
        cmocka_unit_test(test_tensor_parameter__cast_without_memory_can_be_called_again),
        cmocka_unit_test(test_tensor_close__makes_every_ref_stale),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
