/* runtime/backend/gemm.c and the oneDNN plug-in: which means is chosen, and that all of them give
 * the product. The tests that need a fresh process (the library opens once) run in a child. */
#include "child_test.h"
#include "device.h"
#include "product.h"

static void test_backend_gemm__is_the_product(void **state)
{
    static const int32_t dtypes[][2] = {{MS_DTYPE_F32, MS_DTYPE_F32},
                                        {MS_DTYPE_F64, MS_DTYPE_F64},
                                        {MS_DTYPE_BF16, MS_DTYPE_BF16},
                                        {MS_DTYPE_BF16, MS_DTYPE_F32}};
    static const int64_t shapes[][4] = {
        {32, 48, 64, 1}, {65, 130, 77, 1}, {1, 300, 64, 1}, {300, 1, 64, 1},   {3, 130, 77, 2},
        {64, 96, 1, 1},  {17, 19, 23, 5},  {5, 4, 6, 3},    {128, 64, 200, 2}, {70, 80, 0, 2},
        {0, 5, 7, 1},    {5, 0, 7, 1},     {5, 4, 7, 0}};

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(dtypes) * MSI_COUNT(shapes) * 16; i++) {
        const int32_t *dtype = dtypes[i / 16 / MSI_COUNT(shapes)];
        const int32_t s = i / 16 % MSI_COUNT(shapes), v = i % 16;
        product p = make(dtype[0], dtype[1], shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3],
                         v & 1, v & 2, (v ^ s) & 1 ? 3 : 0);

        p.args.bias = v & 4 ? p.bias.data : NULL;
        p.args.accumulate = v & 8;
        assert_ok(msi_gemm(msi_context(), &p.args));
        assert_int_equal(0, count_wrong(&p, inner_epsilon(dtype[0])));
        free_product(&p);
    }
}

/* gemm.c: [Note: packing] */
static void test_backend_gemm__large_products_are_right_with_operands_packed(void **state)
{
    static const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_BF16};

    (void)state;
    for (int32_t i = 0; i < 4; i++) {
        const bool a_transposed = i & 1;
        product p = make(dtypes[i / 2], MS_DTYPE_F32, 512, 512, 513, 1, a_transposed, false, 3);

        p.args.accumulate = true;
        assert_ok(msi_gemm(msi_context(), &p.args));
        assert_int_equal(0, count_wrong(&p, inner_epsilon(dtypes[i / 2])));
        free_product(&p);
    }
}

static void multiply(int32_t dtype, int64_t n)
{
    product p = make(dtype, dtype, 11, n, 13, 1, false, true, 0);

    assert_ok(msi_gemm(msi_context(), &p.args));
    assert_int_equal(0, count_wrong(&p, inner_epsilon(dtype)));
    free_product(&p);
}

static void test_backend_gemm__primitives_are_kept_within_a_bound(void **state)
{
    enum { KEPT = 256, FIRST = 40 };
    ms_context *ctx = msi_context();

    (void)state;
    if (strncmp(msi_gemm_name(ctx, MS_DTYPE_F32), "own", 3) == 0) {
        skip(); /* no library */
    }
    for (int64_t n = FIRST; n < FIRST + 2 * KEPT; n++) { /* ever new shapes, and one used between */
        multiply(MS_DTYPE_F32, n);
        multiply(MS_DTYPE_F32, FIRST);
        assert_true(msi_gemm_kept(ctx) <= KEPT);
    }
    assert_int_equal(KEPT, msi_gemm_kept(ctx));
    int64_t created = msi_gemm_created(ctx);

    for (int64_t n = FIRST + KEPT + 1; n < FIRST + 2 * KEPT; n++) { /* the latest are there */
        multiply(MS_DTYPE_F32, n);
    }
    multiply(MS_DTYPE_F32, FIRST); /* and the one that was used */
    assert_int_equal(created, msi_gemm_created(ctx));
    multiply(MS_DTYPE_F32, FIRST + 1); /* the others are made again */
    assert_int_equal(created + 1, msi_gemm_created(ctx));
    assert_int_equal(KEPT, msi_gemm_kept(ctx));
    for (int64_t n = FIRST; n < FIRST + KEPT; n++) { /* a step of as many shapes as are kept */
        multiply(MS_DTYPE_F32, n);
    }
    created = msi_gemm_created(ctx);
    for (int64_t n = FIRST; n < FIRST + KEPT; n++) {
        multiply(MS_DTYPE_F32, n);
    }
    assert_int_equal(created, msi_gemm_created(ctx));
}

/* -- in a child -------------------------------------------------------------------------------- */

static int without_plugin(void)
{
    product p = make(MS_DTYPE_BF16, MS_DTYPE_BF16, 70, 90, 110, 2, false, true, 0);

    setenv("MS_ONEDNN", "0", 1);
    CHILD_CHECK(msi_gemm(msi_context(), &p.args) == MS_OK);
    CHILD_CHECK(count_wrong(&p, inner_epsilon(MS_DTYPE_BF16)) == 0);
    CHILD_CHECK(strncmp(msi_gemm_name(msi_context(), MS_DTYPE_BF16), "own:", 4) == 0);
    CHILD_CHECK(msi_gemm_created(msi_context()) == 0);
    free_product(&p);
    ms_close();
    return 0;
}

static void test_backend_gemm__the_own_kernel_stands_in_for_a_missing_plugin(void **state)
{
    (void)state;
    in_child(without_plugin);
}

/* One of the ways to transpose, add a bias and accumulate; counts wrong values. */
static int64_t multiply_variant(int32_t dtype, int32_t c_dtype, int64_t batch, int32_t v)
{
    product p = make(dtype, c_dtype, 70, 90, 110, batch, v & 1, v & 2, 1);

    p.args.accumulate = v & 4;
    p.args.bias = v & 2 ? p.bias.data : NULL;
    int64_t n_wrong = msi_gemm(msi_context(), &p.args) == MS_OK
                          ? count_wrong(&p, inner_epsilon(dtype))
                          : typed_nbytes(&p.c);

    free_product(&p);
    return n_wrong;
}

/* Work space of the gradients of a Linear, which is what ms_matmul_scratch() reports. */
static int packing_with_avx2(void)
{
    static const struct {
        int64_t rows, out, in, floats;
    } linears[] = {
        {1024, 1024, 512, 0}, /* the library packs */
        {1024, 1024, 256, 1024 * 1024},
        {1024, 256, 1024, 256 * 1024 + 1024 * 1024},
        {1024, 768, 256, 0}, /* many rows, not 2 KiB apart */
        {128, 1024, 512, 1024 * 512},
    };
    ms_memory_stats before, after;

    setenv("MS_CPU_ISA", "v3", 1);
    if (strcmp(ms_cpu_isa(), "x86-64-v3") != 0 ||
        strncmp(msi_gemm_name(msi_context(), MS_DTYPE_F32), "own", 3) == 0) {
        return 0; /* no AVX2 or no library */
    }
    for (int32_t i = 0; i < MSI_COUNT(linears); i++) {
        const int64_t rows = linears[i].rows, out = linears[i].out, in = linears[i].in;

        for (int32_t v = 0; v < 2; v++) { /* gradients of the input and of the weight */
            product p = v == 0 ? make(MS_DTYPE_F32, MS_DTYPE_F32, rows, in, out, 1, false, false, 0)
                               : make(MS_DTYPE_F32, MS_DTYPE_F32, out, in, rows, 1, true, false, 0);

            if (v == 0) {
                msi_gemm_trim(msi_context());
                ms_memory_stats_get(&before);
            }
            CHILD_CHECK(msi_gemm(msi_context(), &p.args) == MS_OK);
            free_product(&p);
        }
        ms_memory_stats_get(&after);
        CHILD_CHECK(after.live[MS_MEM_SCRATCH] - before.live[MS_MEM_SCRATCH] ==
                    4 * linears[i].floats);
        CHILD_CHECK(ms_matmul_scratch(MS_DTYPE_F32, rows, out, in) == 4 * linears[i].floats);
    }
    ms_close();
    return 0;
}

static void test_backend_gemm__operands_are_packed_where_the_library_does_not(void **state)
{
    (void)state;
    in_child(packing_with_avx2);
}

static int without_bf16(void)
{
    const char *kind = NULL, *text = NULL;
    ms_memory_stats with_room, without;

    setenv("MS_CPU_ISA", "v3", 1);
    if (strncmp(msi_gemm_name(msi_context(), MS_DTYPE_F32), "own", 3) == 0) {
        return 0; /* no library */
    }
    ms_warnings_capture(true);
    for (int32_t v = 0; v < 16; v++) {
        CHILD_CHECK(multiply_variant(MS_DTYPE_BF16, v & 8 ? MS_DTYPE_F32 : MS_DTYPE_BF16, 2, v) ==
                    0);
    }
    CHILD_CHECK(ms_warning_take(&kind, &text));
    CHILD_CHECK(strcmp(kind, "UserWarning") == 0 && strstr(text, "fp32") != NULL);
    CHILD_CHECK(!ms_warning_take(&kind, &text)); /* once */
    CHILD_CHECK(strncmp(msi_gemm_name(msi_context(), MS_DTYPE_BF16), "fp32 by ", 8) == 0);
    ms_memory_stats_get(&with_room); /* one room, of the largest: operands, result, bias */
    msi_gemm_trim(msi_context());
    for (int32_t v = 0; v < 8; v++) { /* the library's own work space is the same without */
        CHILD_CHECK(multiply_variant(MS_DTYPE_F32, MS_DTYPE_F32, 1, v) == 0);
    }
    ms_memory_stats_get(&without);
    CHILD_CHECK(with_room.live[MS_MEM_SCRATCH] - without.live[MS_MEM_SCRATCH] ==
                4 * (70 * 110 + 110 * 90 + 70 * 90 + 90));
    ms_warnings_capture(false);
    ms_close();
    return 0;
}

static void test_backend_gemm__bf16_without_hardware_is_said_once_and_computed_in_f32(void **state)
{
    (void)state;
    in_child(without_bf16);
}

static int old_processor(void)
{
    product p = make(MS_DTYPE_F32, MS_DTYPE_F32, 70, 90, 110, 1, false, true, 0);

    setenv("MS_CPU_ISA", "v2", 1);
    CHILD_CHECK(msi_gemm(msi_context(), &p.args) == MS_OK);
    CHILD_CHECK(count_wrong(&p, inner_epsilon(MS_DTYPE_F32)) == 0);
    CHILD_CHECK(strstr(msi_gemm_name(msi_context(), MS_DTYPE_F32), "avx") == NULL);
    free_product(&p);
    ms_close();
    return 0;
}

static void test_backend_gemm__the_library_keeps_to_the_chosen_instruction_set(void **state)
{
    (void)state;
    in_child(old_processor);
}

static int out_of_memory(void)
{
    static const struct {
        int64_t k; /* the step before has been done by then */
        const char *what;
    } failures[] = {{0, "opening the matrix library"},
                    {1, "making a matrix primitive"},
                    {1, "bytes of scratch"}};
    product p = make(MS_DTYPE_F32, MS_DTYPE_F32, 70, 90, 110, 1, true, true, 0);

    for (int32_t i = 0; i < MSI_COUNT(failures); i++) {
        msi_alloc_fail_at(msi_context(), failures[i].k);
        ms_status status = msi_gemm(msi_context(), &p.args);

        msi_alloc_fail_at(msi_context(), -1);
        if (status == MS_OK && strcmp(msi_gemm_library(msi_context()), "none") == 0) {
            break; /* the own kernel needs no memory */
        }
        if (i > 0 && strncmp(msi_gemm_name(msi_context(), MS_DTYPE_F32), "brg", 3) != 0) {
            break; /* an implementation that takes no work space */
        }
        CHILD_CHECK(status == MS_OUT_OF_MEMORY);
        CHILD_CHECK(strstr(ms_error_message(), failures[i].what) != NULL);
    }
    memcpy(p.c.data, p.before.data, (size_t)typed_nbytes(&p.c));
    CHILD_CHECK(msi_gemm(msi_context(), &p.args) == MS_OK); /* the same context works */
    CHILD_CHECK(count_wrong(&p, inner_epsilon(MS_DTYPE_F32)) == 0);
    free_product(&p);
    ms_close();
    return 0;
}

static void test_backend_gemm__running_out_of_memory_is_an_error_that_can_be_survived(void **state)
{
    (void)state;
    in_child(out_of_memory);
}

/* What nobody has computed is NaN; what lies between the rows is no part of it. */
static bool holds_nan(const product *p)
{
    for (int64_t i = 0; i < p->c.n; i++) {
        const double got = typed_get(&p->c, i);

        if (i % p->args.c_row < p->args.n ? !isnan(got) : got != typed_get(&p->before, i)) {
            return false;
        }
    }
    return true;
}

static int fail_on_a_device(void)
{
    static const int32_t dtypes[][2] = {{MS_DTYPE_F32, MS_DTYPE_F32},
                                        {MS_DTYPE_BF16, MS_DTYPE_BF16},
                                        {MS_DTYPE_BF16, MS_DTYPE_F32}};
    ms_context *ctx = msi_context();

    setenv("MS_DEVICE", "fake", 1);
    CHILD_CHECK(msi_memory_open(ctx) == MS_OK);
    if (strcmp(msi_gemm_library(ctx), "none") == 0) {
        return 0; /* the own kernel needs no memory */
    }
    ms_warnings_capture(true);
    for (int32_t i = 0; i < MSI_COUNT(dtypes); i++) {
        product p = make(dtypes[i][0], dtypes[i][1], 70, 90, 110, 2, true, true, 3);

        msi_alloc_fail_at(ctx, 0);
        CHILD_CHECK(msi_gemm(ctx, &p.args) == MS_OK); /* so far it is only enqueued */
        CHILD_CHECK(msi_device_wait(ctx->device) == MS_OK);
        msi_alloc_fail_at(ctx, -1);
        CHILD_CHECK(msi_device_fault_report(ctx->device) == MS_OUT_OF_MEMORY);
        CHILD_CHECK(holds_nan(&p));
        free_product(&p);
    }
    return 0;
}

static void test_backend_gemm__a_product_that_fails_on_a_device_is_nan(void **state)
{
    (void)state;
    in_child(fail_on_a_device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_gemm__the_own_kernel_stands_in_for_a_missing_plugin),
        cmocka_unit_test(test_backend_gemm__operands_are_packed_where_the_library_does_not),
        cmocka_unit_test(test_backend_gemm__bf16_without_hardware_is_said_once_and_computed_in_f32),
        cmocka_unit_test(test_backend_gemm__the_library_keeps_to_the_chosen_instruction_set),
        cmocka_unit_test(test_backend_gemm__running_out_of_memory_is_an_error_that_can_be_survived),
        cmocka_unit_test(test_backend_gemm__a_product_that_fails_on_a_device_is_nan),
        cmocka_unit_test(test_backend_gemm__is_the_product),
        cmocka_unit_test(test_backend_gemm__large_products_are_right_with_operands_packed),
        cmocka_unit_test(test_backend_gemm__primitives_are_kept_within_a_bound),
    };

    return cmocka_run_group_tests_name("backend/gemm", tests, NULL, NULL);
}
