/* Token files and windows for the tests of this room. */
#ifndef TOKEN_TEST_H
#define TOKEN_TEST_H

#include "moonshard/data.h"
#include "ms_test.h"

static inline const char *write_file(const char *name, const void *bytes, size_t n)
{
    const char *path = temp_path(name);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(n, fwrite(bytes, 1, n, f));
    assert_int_equal(0, fclose(f));
    return path;
}

static inline ms_tensor *token_file(const char *name, int64_t n)
{
    uint8_t *bytes = malloc((size_t)n);
    ms_tensor *tokens;

    for (int64_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)i;
    }
    assert_ok(ms_data_map(&tokens, write_file(name, bytes, (size_t)n), MS_DTYPE_U8));
    free(bytes);
    return tokens;
}

static inline ms_tensor *windows_tensor(int64_t rows, int64_t context)
{
    ms_tensor *t;

    assert_ok(ms_tensor_empty(&t, MS_DTYPE_I64, 2, (int64_t[]){rows, context}));
    return t;
}

#endif
