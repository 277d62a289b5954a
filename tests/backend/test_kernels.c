/* runtime/backend/kernels.c: choosing a table, looking kernels up, errors about missing ones. */
#include "backend.h"
#include "ms_test.h"

#include <sys/wait.h>
#include <unistd.h>

static void test_backend_kernels__names_are_those_of_the_list(void **state)
{
    (void)state;
    assert_string_equal("copy", msi_kernel_name(MSI_K_copy));
    assert_string_equal("gelu_tanh", msi_kernel_name(MSI_K_gelu_tanh));
    assert_string_equal("gemm", msi_kernel_name(MSI_K_COUNT - 1));
    assert_string_equal("unknown", msi_kernel_name(MSI_K_COUNT));
    assert_string_equal("unknown", msi_kernel_name(-1));
}

/* Comparisons give bool and are looked up by it, whatever they compare. */
static bool gives_bool(int32_t kernel)
{
    return kernel == MSI_K_eq || kernel == MSI_K_ne || kernel == MSI_K_lt || kernel == MSI_K_le ||
           kernel == MSI_K_close || kernel == MSI_K_is_inf || kernel == MSI_K_is_finite;
}

/* Squares of narrow dtypes are f32 and looked up by it; blocks of norms fold in f64. */
static bool has_dtype(int32_t kernel, int32_t dtype)
{
    if (gives_bool(kernel)) {
        return dtype == MS_DTYPE_BOOL;
    }
    return kernel == MSI_K_norm_fold
               ? dtype == MS_DTYPE_F64
               : ms_dtype_is_floating(dtype) && (kernel != MSI_K_mse || !ms_dtype_is_narrow(dtype));
}

static void check_complete(const msi_kernel_table *table, int32_t kernel)
{
    for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
        if (has_dtype(kernel, dtype) && table->fn[kernel][dtype] == NULL) {
            fail_msg("%s has no %s for %s", table->isa, msi_kernel_name(kernel),
                     ms_dtype_name(dtype));
        }
    }
}

static void test_backend_kernels__every_table_has_every_floating_kernel(void **state)
{
    (void)state;
    for (int32_t isa = 2; isa <= 4; isa++) {
        const msi_kernel_table *table = msi_kernels_of(isa);

        if (table == NULL) {
            print_message("SKIPPED: this machine does not run x86-64-v%d\n", (int)isa);
            continue;
        }
        for (int32_t k = 0; k < MSI_K_COUNT; k++) {
            check_complete(table, k);
        }
        for (int32_t dtype = 0; dtype < MS_DTYPE_COUNT; dtype++) {
            assert_non_null(table->fn[MSI_K_copy][dtype]);
            assert_non_null(table->fn[MSI_K_fill][dtype]);
        }
        for (int32_t i = 0; i < 2; i++) {
            const int32_t whole = i == 0 ? MS_DTYPE_I64 : MS_DTYPE_I32;

            assert_non_null(table->fn[MSI_K_add][whole]);
            assert_non_null(table->fn[MSI_K_sum][whole]);
            assert_non_null(table->fn[MSI_K_tree][whole]);
        }
    }
}

static void test_backend_kernels__a_missing_kernel_is_named(void **state)
{
    (void)state;
    msi_ew_args args = {0};

    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "half is not implemented for dtype i64 on device 'cpu'",
                 msi_dispatch("half", MSI_K_gelu, MS_DTYPE_I64, &args));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "half is not implemented for dtype f32",
                 msi_dispatch("half", MSI_K_COUNT, MS_DTYPE_F32, &args));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "for dtype none",
                 msi_dispatch("half", MSI_K_add, MS_DTYPE_NONE, &args));
}

static void test_backend_kernels__dispatch_runs_the_kernel_of_the_dtype(void **state)
{
    (void)state;
    double x = 3;
    int64_t y = 0;
    msi_ew_args args = {.out = &y, .in = {&x}, .in_dtype = MS_DTYPE_F64};

    assert_ok(msi_dispatch("cast", MSI_K_copy, MS_DTYPE_I64, &args));
    assert_true(y == 3);
}

/* The choice is made once per process, so each setting is tried in a child. Exit code: the ISA's
 * number, + 10 when a warning that contains the setting was issued. */
static int chosen_with(const char *setting)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) {
        const char *kind = NULL, *message = NULL, *isa;
        bool warned;

        setenv("MS_CPU_ISA", setting, 1);
        ms_warnings_capture(true);
        isa = ms_cpu_isa();
        warned = ms_warning_take(&kind, &message) && strcmp(kind, "UserWarning") == 0 &&
                 strstr(message, setting) != NULL;
        _exit(strncmp(isa, "x86-64-v", 8) == 0 ? isa[8] - '0' + (warned ? 10 : 0) : 99);
    }
    assert_true(waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_backend_kernels__the_switch_forces_a_table_or_warns(void **state)
{
    (void)state;
    const int best = msi_kernels_of(4) != NULL ? 4 : msi_kernels_of(3) != NULL ? 3 : 2;

    if (msi_kernels_of(2) == NULL) {
        skip(); /* a build with sanitizers */
    }
    assert_int_equal(2, chosen_with("v2"));
    assert_int_equal(best >= 3 ? 3 : 12, chosen_with("v3"));
    assert_int_equal(best == 4 ? 4 : 10 + best, chosen_with("v4"));
    assert_int_equal(best, chosen_with(""));
    assert_int_equal(10 + best, chosen_with("v5"));
    assert_int_equal(10 + best, chosen_with("avx2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* before anything chooses */
        cmocka_unit_test(test_backend_kernels__the_switch_forces_a_table_or_warns),
        cmocka_unit_test(test_backend_kernels__names_are_those_of_the_list),
        cmocka_unit_test(test_backend_kernels__every_table_has_every_floating_kernel),
        cmocka_unit_test(test_backend_kernels__a_missing_kernel_is_named),
        cmocka_unit_test(test_backend_kernels__dispatch_runs_the_kernel_of_the_dtype),
    };

    return cmocka_run_group_tests_name("backend/kernels", tests, NULL, NULL);
}
