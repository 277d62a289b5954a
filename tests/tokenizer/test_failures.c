/* A tokenizer whose allocations fail one by one, and whose libraries are missing. */
#include "ms_test.h"
#include "oom.h"

#include <dlfcn.h>
#include <jansson.h>

void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);

static const char *missing = ""; /* a library that cannot be opened */

void *__wrap_dlopen(const char *path, int flags)
{
    return __real_dlopen(strcmp(path, missing) == 0 ? "/nowhere/libnone.so" : path, flags);
}

/* The tokenizer.json of a case of tests/fixtures/tokens.py. */
static const char *tokenizer_file(const char *name)
{
    char fixture[512];

    snprintf(fixture, sizeof(fixture), "%s/tokens.json", getenv("MS_TEST_DATA"));
    json_t *all = json_load_file(fixture, JSON_ALLOW_NUL, NULL);
    const char *path = temp_path(name);

    assert_non_null(all);
    json_t *file = json_object_get(json_object_get(json_object_get(all, "cases"), name), "file");

    assert_int_equal(0, json_dump_file(file, path, 0));
    json_decref(all);
    return path;
}

/* Added tokens, NFC, byte fallback, an unknown character, invalid UTF-8. */
static const char TEXT[] = "the  <mask> word caf\xC3\xA9 e\xCC\x81 \xF0\x9F\x98\x80 12\xFF";

/* Encode, and decode the ids. `*sum` depends on texts and ids. */
static ms_status use(ms_tokenizer *t, int64_t *sum)
{
    const int32_t *ids;
    const char *text;
    int64_t n, n_invalid, nbytes;
    ms_status status = ms_tokenizer_encode(t, TEXT, sizeof(TEXT) - 1, MS_TOKENIZER_PARSE_SPECIAL,
                                           &ids, &n, &n_invalid);

    *sum = 0;
    for (int64_t i = 0; status == MS_OK && i < n; i++) {
        *sum = 31 * *sum % (1 << 30) + ids[i];
    }
    status = status == MS_OK ? ms_tokenizer_decode(t, ids, n, 0, &text, &nbytes) : status;
    for (int64_t i = 0; status == MS_OK && i < nbytes; i++) {
        *sum = 31 * *sum % (1 << 30) + text[i];
    }
    return status;
}

static const char *const NAMES[] = {"gpt2", "qwen", "llama3", "llama2", "mistral", "splits"};

static void test_tokenizer_failures__each_failed_allocation_is_an_error(void **state)
{
    (void)state;
    ms_warnings_capture(true);
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        const char *path = tokenizer_file(NAMES[i]);
        ms_tokenizer *t;
        int64_t expected, sum;
        int n_failed = 0;

        assert_ok(ms_tokenizer_load(&t, path));
        assert_ok(use(t, &expected));
        ms_tokenizer_free(t);
        for (bool met = true; met; n_failed += met) {
            n_before = n_failed;
            ms_status status = ms_tokenizer_load(&t, path);
            const bool is_loaded = status == MS_OK;

            status = is_loaded ? use(t, &sum) : status;
            met = n_before < 0;
            n_before = -1;
            assert_int_equal(met ? MS_OUT_OF_MEMORY : MS_OK, status);
            if (is_loaded) { /* it works after the failure */
                assert_ok(use(t, &sum));
                assert_int_equal(expected, sum);
                ms_tokenizer_free(t);
            } else {
                assert_null(t);
            }
        }
        assert_true(n_failed > 20);
    }
    ms_warnings_capture(false);
}

static void test_tokenizer_failures__missing_libraries_are_named(void **state)
{
    ms_tokenizer *t;

    (void)state;
    missing = "libpcre2-8.so.0";
    assert_fails(MS_RUNTIME_ERROR, "install the package libpcre2-8-0",
                 ms_tokenizer_load(&t, tokenizer_file("gpt2")));
    missing = "libutf8proc.so.2";
    assert_fails(MS_RUNTIME_ERROR, "install the package libutf8proc2",
                 ms_tokenizer_load(&t, tokenizer_file("qwen")));
    assert_ok(ms_tokenizer_load(&t, tokenizer_file("llama3"))); /* which does not normalize */
    ms_tokenizer_free(t);
    missing = "";
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_failures__each_failed_allocation_is_an_error),
        cmocka_unit_test(test_tokenizer_failures__missing_libraries_are_named),
    };

    return cmocka_run_group_tests_name("tokenizer/failures", tests, NULL, NULL);
}
