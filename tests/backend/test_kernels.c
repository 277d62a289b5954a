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

/* Words of `args` that hold `pointer` are the kernel's fields, in order. */
static void expect_fields(int32_t kernel, const void *args, const void *pointer)
{
    int32_t n, at = 0;
    const msi_args_field *field = msi_args_fields(kernel, &n);

    for (int64_t offset = 0; offset < msi_args_bytes(kernel, args); offset += 8) {
        if (memcmp((const char *)args + offset, &pointer, sizeof(pointer)) == 0) {
            assert_true(at < n);
            assert_int_equal(offset, field[at].offset);
            at++;
        }
    }
    assert_int_equal(at, n);
}

static void test_backend_kernels__pointers_of_arguments_are_listed(void **state)
{
    (void)state;
    static const _Alignas(64) char zeros[2048];
    static ms_status word;
    void *p = &word;

    for (int32_t kernel = 0; kernel < MSI_K_COUNT; kernel++) {
        int32_t n, last = -8;
        const msi_args_field *field = msi_args_fields(kernel, &n);
        const int64_t nbytes = msi_args_bytes(kernel, zeros);

        assert_true(nbytes <= (int64_t)sizeof(zeros));
        assert_true(n > 0);
        for (int32_t i = 0; i < n; i++) {
            assert_true(field[i].offset >= last + 8 && field[i].offset % 8 == 0);
            assert_true(field[i].offset + 8 <= nbytes);
            assert_in_range(field[i].kind, MSI_FIELD_MEMORY, MSI_FIELD_DRAW);
            last = field[i].offset;
        }
    }
    const msi_ew_args add = {.out = p, .in = {p, p, p}};
    const msi_attention_args attention = {.q = p,
                                          .k = p,
                                          .v = p,
                                          .mask = p,
                                          .seed = (uint64_t)(uintptr_t)p,
                                          .out = p,
                                          .max = p,
                                          .rsum = p,
                                          .o = p,
                                          .dout = p,
                                          .dq = p,
                                          .dk = p,
                                          .dv = p,
                                          .dmask = p,
                                          .work = p,
                                          .ctx = p,
                                          .status = p};
    const msi_embedding_args embedding = {
        .ids = p, .table = p, .out = p, .dy = p, .dtable = p, .work = p, .fault = p};

    expect_fields(MSI_K_add, &add, p);
    expect_fields(MSI_K_attention, &attention, p);
    expect_fields(MSI_K_embedding, &embedding, p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* before anything chooses */
        cmocka_unit_test(test_backend_kernels__pointers_of_arguments_are_listed),
        cmocka_unit_test(test_backend_kernels__the_switch_forces_a_table_or_warns),
        cmocka_unit_test(test_backend_kernels__a_missing_kernel_is_named),
    };

    return cmocka_run_group_tests_name("backend/kernels", tests, NULL, NULL);
}
