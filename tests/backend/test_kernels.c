/* runtime/backend/kernels.c: choosing a table, looking kernels up, errors about missing ones. */
#include "backend.h"
#include "ms_test.h"

#include <sys/wait.h>
#include <unistd.h>

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

/* -- pointers of arguments --------------------------------------------------------------------- */

static void test_backend_kernels__pointers_are_inside_their_struct_and_ascend(void **state)
{
    static const int64_t bytes[] = {
#define BYTES(name, args) sizeof(args),
        MSI_KERNELS(BYTES)
#undef BYTES
    };

    (void)state;
    for (int32_t kernel = 0; kernel < MSI_K_COUNT; kernel++) {
        int32_t n;
        const msi_args_field *fields = msi_args_fields(kernel, &n);

        assert_true(n > 0);
        for (int32_t i = 0; i < n; i++) {
            assert_int_equal(fields[i].offset % (int64_t)sizeof(void *), 0);
            assert_in_range(fields[i].offset, i > 0 ? fields[i - 1].offset + 1 : 0,
                            bytes[kernel] - (int64_t)sizeof(void *));
        }
    }
}

/* The pointers of `args` point to the marks, in order. */
static void expect_marks(int32_t kernel, const void *args, const char *marks, int32_t n_marks)
{
    int32_t n;
    const msi_args_field *fields = msi_args_fields(kernel, &n);

    assert_int_equal(n, n_marks);
    for (int32_t i = 0; i < n; i++) {
        const char *p;

        memcpy(&p, (const char *)args + fields[i].offset, sizeof(p));
        assert_ptr_equal(p, marks + i);
    }
}

static void test_backend_kernels__every_pointer_of_a_struct_is_listed(void **state)
{
    static char m[16];
    const msi_ew_args ew = {.out = m, .in = {m + 1, m + 2, m + 3}};
    const msi_pool_args pool = {
        .x = m, .dy = m + 1, .y = m + 2, .taps = (void *)(m + 3), .dx = m + 4};
    const msi_gemm_args gemm = {.a = m, .b = m + 1, .c = m + 2, .bias = m + 3, .work = m + 4};

    (void)state;
    expect_marks(MSI_K_where, &ew, m, 4);
    expect_marks(MSI_K_max_pool, &pool, m, 5);
    expect_marks(MSI_K_gemm, &gemm, m, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* before anything chooses */
        cmocka_unit_test(test_backend_kernels__the_switch_forces_a_table_or_warns),
        cmocka_unit_test(test_backend_kernels__a_missing_kernel_is_named),
        cmocka_unit_test(test_backend_kernels__pointers_are_inside_their_struct_and_ascend),
        cmocka_unit_test(test_backend_kernels__every_pointer_of_a_struct_is_listed),
    };

    return cmocka_run_group_tests_name("backend/kernels", tests, NULL, NULL);
}
