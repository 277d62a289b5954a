/* runtime/base: errors, warnings, switches, keys. */
#include "array.h"
#include "base.h"
#include "ms_test.h"

#include <unistd.h>

static ms_status inner(void)
{
    return MS_FAIL(MS_VALUE_ERROR, "found %d, expected %d", 3, 4);
}

static ms_status outer(void)
{
    MS_TRY(inner());
    return MS_OK;
}

static void test_base_status__messages_pass_up_unchanged(void **state)
{
    (void)state;
    assert_fails(MS_VALUE_ERROR, "found 3, expected 4", outer());
    assert_string_equal("unit 'x': found 3, expected 4",
                        (msi_fail_prefix(MS_VALUE_ERROR, "unit '%s': ", "x"), ms_error_message()));
    ms_error_clear();
    assert_string_equal("", ms_error_message());
}

static void test_base_status__a_nan_has_no_sign(void **state)
{
    (void)state;
    msi_fail(MS_VALUE_ERROR, "%g, (%g), %g and %g in 'x-nan' or -nano", -NAN, NAN, -INFINITY, -NAN);
    assert_string_equal("nan, (nan), -inf and nan in 'x-nan' or -nano", ms_error_message());
    ms_error_clear();
}

static void test_base_status__every_kind_has_a_name(void **state)
{
    (void)state;
    assert_string_equal("OK", ms_status_name(MS_OK));
    assert_string_equal("ValueError", ms_status_name(MS_VALUE_ERROR));
    assert_string_equal("CommError", ms_status_name(MS_COMM_ERROR));
    assert_string_equal("HookError", ms_status_name(MS_HOOK_ERROR));
    assert_string_equal("UnknownError", ms_status_name(-99));
    assert_string_equal("UnknownError", ms_status_name(1));
    assert_string_equal("UnknownError", ms_status_name(INT32_MIN));
}

/* What is passed on as a failure is one, whatever number the host chose. */
static void test_base_status__an_error_set_from_outside_is_one_of_ours(void **state)
{
    static const ms_status none[] = {MS_OK, 55, -15, INT32_MIN, INT32_MAX};

    (void)state;
    assert_int_equal(MS_KEY_ERROR, ms_error_set(MS_KEY_ERROR, "its text"));
    assert_int_equal(MS_HOOK_ERROR, ms_error_set(MS_HOOK_ERROR, NULL));
    assert_string_equal("", ms_error_message());
    for (int32_t i = 0; i < MSI_COUNT(none); i++) {
        assert_int_equal(MS_RUNTIME_ERROR, ms_error_set(none[i], "its text"));
        assert_string_equal("its text", ms_error_message());
    }
}

static void test_base_status__a_long_message_is_cut_not_overrun(void **state)
{
    char text[8000];

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    ms_error_set(MS_IO_ERROR, text);
    assert_int_equal(4095, strlen(ms_error_message()));
    msi_fail_prefix(MS_IO_ERROR, "in front: ");
    assert_int_equal(4095, strlen(ms_error_message()));
    assert_memory_equal("in front: xxx", ms_error_message(), 13);
}

static void test_base_status__warnings_are_captured_in_order(void **state)
{
    const char *kind, *message;

    (void)state;
    ms_warnings_capture(true);
    msi_warn("UserWarning", "first %d", 1);
    ms_warn("FutureWarning", "second");
    assert_true(ms_warning_take(&kind, &message));
    assert_string_equal("UserWarning", kind);
    assert_string_equal("first 1", message);
    assert_true(ms_warning_take(&kind, &message));
    assert_string_equal("FutureWarning", kind);
    assert_false(ms_warning_take(&kind, &message));
    ms_warnings_capture(false);
}

/* What ms_warn() prints. */
static void read_warning_of(const char *kind, char *text, size_t room)
{
    int ends[2], err = dup(STDERR_FILENO);

    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    ms_warn(kind, "look here");
    dup2(err, STDERR_FILENO);
    ssize_t n = read(ends[0], text, room - 1);

    text[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    close(ends[1]);
    close(err);
}

static void read_warning(char *text, size_t room)
{
    read_warning_of("UserWarning", text, room);
}

static void test_base_status__warnings_name_the_rank_when_it_is_not_the_first(void **state)
{
    char text[64];

    (void)state;
    read_warning(text, sizeof(text));
    assert_string_equal(text, "moonshard: UserWarning: look here\n");
    msi_context()->rank = 3;
    read_warning(text, sizeof(text));
    assert_string_equal(text, "moonshard: rank 3: UserWarning: look here\n");
    ms_close();
}

/* What a file or another process says must not drive the terminal. */
static void test_base_status__control_characters_are_written_out(void **state)
{
    static const struct {
        const char *raw, *printed;
    } texts[] = {
        {"a line\nand a\ttab", "a line\nand a\ttab"},
        {"\x1b]0;title\a\r\x7f\b", "\\x1b]0;title\\x07\\x0d\\x7f\\x08"},
        {"\\x1b again", "\\x1b again"},
        {"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82", "h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82"},
        {"\xc2\x9b"
         "2J",
         "\\xc2\\x9b"
         "2J"}, /* the control character of one code point */
        {"\x9b"
         "2J \xff \xc3",
         "\\x9b"
         "2J \\xff \\xc3"},
        {"\xe2\x82", "\\xe2\\x82"}, /* cut within a character */
    };
    const char *kind, *message;
    char small[8], printed[64];

    (void)state;
    for (int32_t i = 0; i < MSI_COUNT(texts); i++) {
        ms_error_set(MS_IO_ERROR, texts[i].raw);
        assert_string_equal(texts[i].printed, ms_error_message());
        msi_fail_prefix(MS_IO_ERROR, "%s", "");
        assert_string_equal(texts[i].printed, ms_error_message());
        ms_warnings_capture(true);
        msi_warn("UserWarning", "%s", texts[i].raw);
        assert_true(ms_warning_take(&kind, &message));
        assert_string_equal(texts[i].printed, message);
        ms_warnings_capture(false);
    }
    ms_warnings_capture(true);
    ms_warn("A\n\x1b[2J\xc3\xa9\xc3\xa9\xc3\xa9", "text");
    assert_true(ms_warning_take(&kind, &message));
    assert_string_equal("A\\x0a\\x1b[2J\xc3\xa9", kind); /* 15 bytes, no half character */
    ms_warnings_capture(false);
    read_warning_of("A\n\x1b[2J", printed, sizeof(printed));
    assert_string_equal("moonshard: A\\x0a\\x1b[2J: look here\n", printed);
    assert_string_equal("a\\x0ab\\x09c", msi_foreign_name("a\nb\tc"));
    assert_int_equal(7, msi_printable(small, sizeof(small),
                                      "123\x1b"
                                      "45")); /* all or nothing */
    assert_string_equal("123\\x1b", small);
    assert_int_equal(6, msi_printable(small, sizeof(small), "123456\xc3\xa9"));
    assert_int_equal(4, msi_printable(small, sizeof(small), "1234\x1b"));
}

static void test_base_status__four_parts_of_a_message_stand_at_once(void **state)
{
    char *part[4];

    (void)state;
    for (int32_t i = 0; i < 4; i++) {
        part[i] = msi_part_text();
        memset(part[i], 'a' + i, MSI_PART_TEXT);
    }
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(part[i][0], 'a' + i);
        assert_int_equal(part[i][MSI_PART_TEXT - 1], 'a' + i);
    }
}

/* FNV-1a's published test vectors. */
static void test_base_util__name_keys_are_fnv1a(void **state)
{
    (void)state;
    assert_true(ms_name_key("") == 0xcbf29ce484222325u);
    assert_true(ms_name_key("a") == 0xaf63dc4c8601ec8cu);
    assert_true(ms_name_key("foobar") == 0x85944171f73967e8u);
}

static void check_within(const char *value, int64_t expected, const char *said)
{
    const char *kind, *message;

    setenv("MS_TEST_SWITCH", value, 1);
    ms_warnings_capture(true);
    assert_int_equal(expected, msi_switch_within("MS_TEST_SWITCH", 5, 1, 9));
    assert_int_equal(ms_warning_take(&kind, &message), said != NULL);
    if (said != NULL) {
        assert_string_equal(said, message);
        assert_false(ms_warning_take(&kind, &message));
    }
    ms_warnings_capture(false);
}

static void test_base_switch__switches_are_numbers_or_a_warning(void **state)
{
    const char *kind, *message;

    (void)state;
    setenv("MS_TEST_SWITCH", "12", 1);
    assert_int_equal(12, msi_switch_int("MS_TEST_SWITCH", 5));
    setenv("MS_TEST_SWITCH", "12x", 1);
    ms_warnings_capture(true);
    assert_int_equal(5, msi_switch_int("MS_TEST_SWITCH", 5));
    assert_true(ms_warning_take(&kind, &message));
    assert_string_equal("MS_TEST_SWITCH is '12x', expected a whole number; using 5", message);
    ms_warnings_capture(false);
    check_within("0", 1, "MS_TEST_SWITCH is 0, expected 1 to 9; using 1");
    check_within("1", 1, NULL);
    check_within("9", 9, NULL);
    check_within("10", 9, "MS_TEST_SWITCH is 10, expected 1 to 9; using 9");
    check_within("9223372036854775808", 9,
                 "MS_TEST_SWITCH is 9223372036854775808, expected 1 to 9; using 9");
    check_within("-9223372036854775809", 1,
                 "MS_TEST_SWITCH is -9223372036854775809, expected 1 to 9; using 1");
    check_within(" ", 5, "MS_TEST_SWITCH is ' ', expected a whole number; using 5");
    unsetenv("MS_TEST_SWITCH");
    assert_int_equal(5, msi_switch_int("MS_TEST_SWITCH", 5));
}

static void test_base_switch__one_of_some_words_or_a_warning(void **state)
{
    static const char *const words[] = {"one", "two", "three"};
    const char *kind, *message;

    (void)state;
    unsetenv("MS_TEST_SWITCH");
    assert_int_equal(7, msi_switch_choice("MS_TEST_SWITCH", words, 3, 7));
    setenv("MS_TEST_SWITCH", "three", 1);
    assert_int_equal(2, msi_switch_choice("MS_TEST_SWITCH", words, 3, 7));
    setenv("MS_TEST_SWITCH", "Two", 1);
    ms_warnings_capture(true);
    assert_int_equal(7, msi_switch_choice("MS_TEST_SWITCH", words, 3, 7));
    assert_true(ms_warning_take(&kind, &message));
    assert_string_equal("MS_TEST_SWITCH is 'Two', expected one, two or three; it is ignored",
                        message);
    setenv("MOONSHARD_RANK", "1", 1); /* a rank that has not joined yet: rank 0 says it */
    assert_int_equal(7, msi_switch_choice("MS_TEST_SWITCH", words, 3, 7));
    assert_false(ms_warning_take(&kind, &message));
    unsetenv("MOONSHARD_RANK");
    ms_warnings_capture(false);
    unsetenv("MS_TEST_SWITCH");
}

static void test_base_context__closing_forgets_seed_and_samples(void **state)
{
    (void)state;
    ms_seed(9);
    assert_ok(ms_samples_begin(40));
    assert_true(ms_seed_get() == 9);
    assert_int_equal(2, ms_sample_epoch()); /* a seed begins anew, too */
    ms_close();
    assert_true(ms_seed_get() == 0);
    assert_int_equal(0, ms_sample_epoch());
    assert_int_equal(MS_VALUE_ERROR, ms_samples_begin(-1));
    assert_string_equal("samples_begin: the first sample is -1, expected 0 or more",
                        ms_error_message());
    assert_int_equal(0, ms_sample_epoch());
    ms_close();
}

static void test_base_status__an_error_of_earlier_work_says_so_with_prefixes_too(void **state)
{
    (void)state;
    assert_int_equal(MS_FAIL(MS_OUT_OF_MEMORY, "no memory"), MS_OUT_OF_MEMORY);
    assert_false(ms_error_is_late());
    msi_error_late();
    assert_true(ms_error_is_late());
    assert_int_equal(msi_fail_prefix(MS_OUT_OF_MEMORY, "step: "), MS_OUT_OF_MEMORY);
    assert_string_equal(ms_error_message(), "step: no memory");
    assert_true(ms_error_is_late());
    ms_error_set(MS_RUNTIME_ERROR, "another");
    assert_false(ms_error_is_late());
    msi_error_late();
    ms_error_clear();
    assert_false(ms_error_is_late());
}

static void test_base_array__is_zeroed_or_an_error(void **state)
{
    int64_t *p;

    (void)state;
    assert_ok(msi_new_array(&p, 3, "units"));
    assert_true(p[0] == 0 && p[1] == 0 && p[2] == 0);
    free(p);
    assert_ok(msi_new_array(&p, 0, "units"));
    assert_non_null(p);
    free(p);
    /* more bytes than a size_t counts */
    assert_fails(MS_OUT_OF_MEMORY, "no memory for 4611686018427387904 units",
                 msi_new_array(&p, INT64_C(1) << 62, "units"));
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_status__messages_pass_up_unchanged),
        cmocka_unit_test(test_base_status__a_nan_has_no_sign),
        cmocka_unit_test(test_base_status__every_kind_has_a_name),
        cmocka_unit_test(test_base_status__an_error_set_from_outside_is_one_of_ours),
        cmocka_unit_test(test_base_status__a_long_message_is_cut_not_overrun),
        cmocka_unit_test(test_base_status__warnings_are_captured_in_order),
        cmocka_unit_test(test_base_status__warnings_name_the_rank_when_it_is_not_the_first),
        cmocka_unit_test(test_base_status__control_characters_are_written_out),
        cmocka_unit_test(test_base_status__four_parts_of_a_message_stand_at_once),
        cmocka_unit_test(test_base_util__name_keys_are_fnv1a),
        cmocka_unit_test(test_base_switch__switches_are_numbers_or_a_warning),
        cmocka_unit_test(test_base_switch__one_of_some_words_or_a_warning),
        cmocka_unit_test(test_base_context__closing_forgets_seed_and_samples),
        cmocka_unit_test(test_base_status__an_error_of_earlier_work_says_so_with_prefixes_too),
        cmocka_unit_test(test_base_array__is_zeroed_or_an_error),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
