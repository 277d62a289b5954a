/* runtime/backend/plugin.c and kernels/onednn: opening the matrix library where that fails, and
 * what the rest of the process sees of it. Each test runs in a child: the library opens once. */
#include "backend.h"
#include "child_test.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- in front of the loader -------------------------------------------------------------------- */

void *__real_dlopen(const char *path, int flags);
char *__real_dlerror(void);
void *__wrap_dlopen(const char *path, int flags);
char *__wrap_dlerror(void);

static const char *failure; /* of every dlopen(): the end of what dlerror() says; NULL: none */
static char failure_text[256];

void *__wrap_dlopen(const char *path, int flags)
{
    snprintf(failure_text, sizeof(failure_text), "%s: %s", path, failure != NULL ? failure : "");
    return failure != NULL ? NULL : __real_dlopen(path, flags);
}

char *__wrap_dlerror(void)
{
    return failure != NULL ? failure_text : __real_dlerror();
}

/* -- what the tests do ------------------------------------------------------------------------- */

enum { SIZE = 40 };

static ms_status multiply(int64_t n)
{
    static float a[SIZE * SIZE], b[SIZE * 64], c[SIZE * 64];
    const msi_gemm_args args = {.m = SIZE,
                                .n = n,
                                .k = SIZE,
                                .a = a,
                                .b = b,
                                .c = c,
                                .a_row = SIZE,
                                .a_col = 1,
                                .b_row = n,
                                .b_col = 1,
                                .c_row = n,
                                .batch = 1,
                                .dtype = MS_DTYPE_F32,
                                .c_dtype = MS_DTYPE_F32};

    return msi_gemm(msi_context(), &args);
}

static bool has_library(void)
{
    return strcmp(msi_gemm_library(msi_context()), "none") != 0;
}

static int failing_loader(void)
{
    char memory[128], files[128], missing[128];
    const struct {
        const char *text;
        ms_status status;
    } cases[] = {
        {memory, MS_OUT_OF_MEMORY},
        {files, MS_DEVICE_ERROR},
        {"file too short", MS_DEVICE_ERROR},
        {"out of memory", MS_OUT_OF_MEMORY},
    };
    int32_t operands;

    snprintf(memory, sizeof(memory), "failed to map segment from shared object: %s",
             strerror(ENOMEM));
    snprintf(files, sizeof(files), "cannot open shared object file: %s", strerror(EMFILE));
    snprintf(missing, sizeof(missing), "cannot open shared object file: %s", strerror(ENOENT));
    for (int32_t i = 0; i < MSI_COUNT(cases); i++) {
        failure = cases[i].text;
        CHILD_CHECK(multiply(SIZE) == cases[i].status);
        CHILD_CHECK(strstr(ms_error_message(), "cannot open the matrix library") != NULL);
        CHILD_CHECK(strstr(ms_error_message(), failure) != NULL);
        CHILD_CHECK(msi_gemm_operands(msi_context(), MS_DTYPE_BF16, &operands) == cases[i].status);
    }
    failure = NULL; /* tried again */
    CHILD_CHECK(multiply(SIZE) == MS_OK);
    CHILD_CHECK(has_library());
    ms_close();
    failure = missing; /* of it or of what it needs: own kernels */
    CHILD_CHECK(multiply(SIZE) == MS_OK);
    CHILD_CHECK(!has_library());
    return 0;
}

static void test_backend_plugin__what_is_there_and_does_not_open_is_an_error(void **state)
{
    (void)state;
    if (!has_library()) {
        skip();
    }
    ms_close();
    in_child(failing_loader);
}

/* A file that was cut short is an error, wherever: not the end of the process. */
static int cut_short(void)
{
    enum { CUTS = 8 };
    char path[4096], cut[4096], *bytes;
    struct stat file;

    snprintf(path, sizeof(path), "%s/libmoonshard_onednn.so", getenv("MS_PLUGIN_DIR"));
    snprintf(cut, sizeof(cut), "%s", temp_path("libmoonshard_onednn.so"));
    const int fd = open(path, O_RDONLY);

    CHILD_CHECK(fd >= 0 && fstat(fd, &file) == 0);
    bytes = malloc((size_t)file.st_size);
    CHILD_CHECK(bytes != NULL && read(fd, bytes, (size_t)file.st_size) == file.st_size);
    close(fd);
    setenv("MS_PLUGIN_DIR", temp_path("."), 1);
    for (int32_t i = 0; i <= CUTS / 2; i++) { /* what is behind nobody maps */
        const size_t n = (size_t)file.st_size * (size_t)i / CUTS;
        FILE *out = fopen(cut, "wb");

        CHILD_CHECK(out != NULL && fwrite(bytes, 1, n, out) == n && fclose(out) == 0);
        CHILD_CHECK(multiply(SIZE) == MS_DEVICE_ERROR);
        CHILD_CHECK(i == 0 || strstr(ms_error_message(), "was cut short, to ") != NULL);
    }
    free(bytes);
    return 0;
}

static void test_backend_plugin__a_file_that_was_cut_short_is_an_error(void **state)
{
    (void)state;
    if (!has_library() || getenv("MS_PLUGIN_DIR") == NULL) {
        skip();
    }
    (void)temp_path(""); /* whose folder is ours to remove */
    ms_close();
    in_child(cut_short);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_plugin__what_is_there_and_does_not_open_is_an_error),
        cmocka_unit_test(test_backend_plugin__a_file_that_was_cut_short_is_an_error),
    };

    return cmocka_run_group_tests_name("backend/plugin", tests, NULL, NULL);
}
