/* kernels/cpu/embedding.c: rows of a table and their gradient, which adds in token order. */
#include "kernel_test.h"

enum { VOCAB = 11 };

static void check_forward(int32_t dtype, int64_t n, int64_t width, int64_t start)
{
    typed table = typed_filled(dtype, start + VOCAB * width, 1);
    typed out = typed_filled(dtype, start + n * width, 2);
    int64_t *ids = malloc((size_t)(n + 1) * sizeof(int64_t));
    const int64_t bytes = start * dtype_bytes(dtype);
    msi_embedding_args args = {.n = n,
                               .width = width,
                               .vocab = VOCAB,
                               .ids = ids,
                               .table = (char *)table.data + bytes,
                               .out = (char *)out.data + bytes};

    for (int64_t i = 0; i < n; i++) {
        ids[i] = i * 7 % VOCAB;
    }
    run_on_all_isas(&(kernel_call){MSI_K_embedding, dtype, &args, {out.data}, {typed_nbytes(&out)}},
                    "rows");
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < width; j++) {
            assert_true(typed_get(&out, start + i * width + j) ==
                        typed_get(&table, start + ids[i] * width + j));
        }
    }
    free(ids);
    typed_free(&table);
    typed_free(&out);
}

static void check_gradient(int32_t dtype, int32_t table_dtype, int64_t n, int64_t width,
                           int64_t start, bool accumulate)
{
    typed dy = typed_filled(dtype, start + n * width, 3);
    typed dtable = typed_filled(table_dtype, start + VOCAB * width, 4), want = typed_copy(&dtable);
    int64_t *ids = malloc((size_t)(n + 1) * sizeof(int64_t)), work[VOCAB + n];
    float *rows = calloc((size_t)(VOCAB * width + 1), sizeof(float)); /* rounded at the end only */
    const bool narrow = ms_dtype_is_narrow(table_dtype);
    msi_embedding_args args = {.n = n,
                               .width = width,
                               .vocab = VOCAB,
                               .ids = ids,
                               .work = narrow ? work : NULL,
                               .dy = (char *)dy.data + start * dtype_bytes(dtype),
                               .dtable = (char *)dtable.data + start * dtype_bytes(table_dtype),
                               .dtable_dtype = table_dtype,
                               .accumulate = accumulate};

    for (int64_t i = 0; i < VOCAB * width && !accumulate; i++) {
        typed_set(&want, start + i, 0);
    }
    for (int64_t i = 0; i < VOCAB * width; i++) {
        rows[i] = (float)typed_get(&want, start + i);
    }
    for (int64_t i = 0; i < n; i++) {
        ids[i] = i * i % VOCAB; /* some rows often, some never */
        for (int64_t j = 0; j < width; j++) {
            int64_t at = ids[i] * width + j;
            double term = typed_get(&dy, start + i * width + j);

            rows[at] = (float)(rows[at] + term);
            typed_set(&want, start + at,
                      table_dtype == MS_DTYPE_F64 ? typed_get(&want, start + at) + term : rows[at]);
        }
    }
    run_on_all_isas(
        &(kernel_call){MSI_K_embedding_grad, dtype, &args, {dtable.data}, {typed_nbytes(&dtable)}},
        "gradient");
    assert_memory_equal(want.data, dtable.data, (size_t)typed_nbytes(&want)); /* order and all */
    free(rows);
    free(ids);
    typed_free(&dy);
    typed_free(&dtable);
    typed_free(&want);
}

static void test_cpu_embedding__copies_rows_of_any_width(void **state)
{
    (void)state;
    report_missing_isas();
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t width = 0; width <= 130; width++) {
            check_forward(float_dtypes[d], width % 23, width, width * 29 % 64);
        }
    }
}

static void test_cpu_embedding__gradients_add_in_token_order(void **state)
{
    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        for (int64_t width = 0; width <= 130; width++) {
            bool wide = ms_dtype_is_narrow(float_dtypes[d]) && width % 2;

            check_gradient(float_dtypes[d], wide ? MS_DTYPE_F32 : float_dtypes[d], width % 41,
                           width, width * 29 % 64, width % 3 == 0);
        }
        for (int64_t start = 0; start < 64; start++) {
            check_gradient(float_dtypes[d], float_dtypes[d], 20, 21, start, true);
        }
    }
}

/* Ids 2 and 5, counted from 0, name no row: the first is told of, and both touch nothing. */
static void test_cpu_embedding__tells_of_the_first_id_that_is_none(void **state)
{
    enum { N = 6, WIDTH = 3, ROWS = 5 };
    const int64_t ids[N] = {4, 0, 5, 1, 0, -((int64_t)1 << 50)};

    (void)state;
    for (int32_t d = 0; d < N_FLOAT_DTYPES; d++) {
        typed table = typed_filled(float_dtypes[d], ROWS * WIDTH, 1);
        typed out = typed_filled(float_dtypes[d], N * WIDTH, 2);
        typed dtable = typed_filled(float_dtypes[d], ROWS * WIDTH, 3), right = typed_copy(&dtable);
        int64_t work[ROWS + N];
        msi_fault fault = {0};
        msi_embedding_args args = {.n = N,
                                   .width = WIDTH,
                                   .vocab = ROWS,
                                   .ids = ids,
                                   .table = table.data,
                                   .out = out.data,
                                   .work = work,
                                   .dy = out.data,
                                   .dtable = dtable.data,
                                   .dtable_dtype = float_dtypes[d],
                                   .fault = &fault};

        for (int32_t again = 0; again < 2; again++) {
            run_on_all_isas(&(kernel_call){MSI_K_embedding,
                                           float_dtypes[d],
                                           &args,
                                           {out.data, &fault},
                                           {typed_nbytes(&out), sizeof(fault)}},
                            "rows");
            assert_int_equal(fault.found, 1);
            assert_int_equal(fault.kernel, MSI_K_embedding);
            assert_int_equal(fault.index, again == 0 ? 5 : 77); /* the first stays */
            assert_int_equal(fault.position, 2);
            assert_int_equal(fault.n, N);
            assert_int_equal(fault.end, ROWS);
            fault.index = 77;
        }
        for (int64_t i = 0; i < N * WIDTH; i++) {
            const int64_t id = ids[i / WIDTH];

            assert_true(id < 0 || id >= ROWS
                            ? isnan(typed_get(&out, i))
                            : typed_get(&out, i) == typed_get(&table, id * WIDTH + i % WIDTH));
        }
        run_on_all_isas(&(kernel_call){MSI_K_embedding_grad,
                                       float_dtypes[d],
                                       &args,
                                       {dtable.data},
                                       {typed_nbytes(&dtable)}},
                        "gradient");
        for (int64_t i = 0; i < ROWS * WIDTH; i++) { /* rows 0, 1 and 4 themselves, 0 twice */
            const int64_t n = (int64_t[]){2, 1, 0, 0, 1}[i / WIDTH];

            typed_set(&right, i, (double)n * (n > 0 ? typed_get(&table, i) : 0));
            assert_true(typed_get(&right, i) == typed_get(&dtable, i));
        }
        typed_free(&table);
        typed_free(&out);
        typed_free(&dtable);
        typed_free(&right);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_embedding__copies_rows_of_any_width),
        cmocka_unit_test(test_cpu_embedding__gradients_add_in_token_order),
        cmocka_unit_test(test_cpu_embedding__tells_of_the_first_id_that_is_none),
    };

    return cmocka_run_group_tests_name("cpu/embedding", tests, NULL, NULL);
}
