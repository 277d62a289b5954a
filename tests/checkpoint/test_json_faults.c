/* runtime/checkpoint/json_whole.c: every allocation inside a parse is refused, one after the other,
 * once and from there on. Jansson asks for nothing more, writes nothing behind its blocks, leaves
 * none behind. */
#include "ckpt_test.h"
#include "faulty_calls.h"
#include "json_text.h"

enum { WIDTH = 16 };

/* Before each block its size, behind it a mark. */
static const char mark[WIDTH] = "the block's end";
static int n_blocks, n_asked_later;

static void *allocate(size_t n)
{
    n_asked_later += armed.n_struck > 0;
    char *p = malloc(WIDTH + n + WIDTH);

    if (p == NULL) {
        return NULL;
    }
    n_blocks++;
    memcpy(p, &n, sizeof(n));
    memcpy(p + WIDTH + n, mark, WIDTH);
    return p + WIDTH;
}

static void release(void *block)
{
    char *p = (char *)block - WIDTH;
    size_t n;

    if (block == NULL) {
        return;
    }
    memcpy(&n, p, sizeof(n));
    assert_memory_equal(mark, p + WIDTH + n, WIDTH);
    n_blocks--;
    free(p);
}

static const msi_json_source source = {.path = "some/file", .part = ""};

static ms_status parse_faulty(json_t **value, const char *text, fault f, bool *struck)
{
    msi_json_source from = source;

    from.begin = text;
    n_asked_later = 0;
    armed = f;
    const ms_status status = ms_json_parse(value, &from, text, strlen(text));

    *struck = armed.n_struck > 0;
    armed = (fault){0};
    return status;
}

/* What `text` says is `expected` (released), or nothing when that is NULL. */
static void try_text(const char *text, json_t *expected, int least)
{
    const ms_status whole = expected != NULL ? MS_OK : MS_FORMAT_ERROR;

    for (int for_good = 0; for_good < 2; for_good++) {
        const int n_before = n_blocks;
        bool struck = true;
        int n = 0;

        for (; struck; n++) {
            fault f = {ALLOCATIONS, .countdown = n, .for_good = for_good, .error = ENOMEM};
            json_t *value;

            const ms_status status = parse_faulty(&value, text, f, &struck);
            assert_int_equal(struck ? MS_OUT_OF_MEMORY : whole, status);
            if (struck) {
                assert_null(value);
                assert_non_null(strstr(ms_error_message(), source.path));
                assert_int_equal(n_before, n_blocks);
                assert_int_equal(0, n_asked_later);
                assert_int_equal(whole, parse_faulty(&value, text, (fault){0}, &(bool){false}));
            }
            assert_true(expected == NULL ? value == NULL : json_equal(value, expected));
            json_decref(value);
            assert_int_equal(n_before, n_blocks);
        }
        assert_true(n > least);
    }
    json_decref(expected);
}

/* The lexer's buffer begins with 16 bytes: here the closing quote does not fit. */
static void test_checkpoint_json_faults__a_string_that_fills_the_buffer(void **state)
{
    try_text("\"abcdefghijklmn\"", json_string("abcdefghijklmn"), 4);
    try_text("[\"abcdefghijklmn\",\"opqrstuvwxyzab\"]",
             json_pack("[s, s]", "abcdefghijklmn", "opqrstuvwxyzab"), 8);
    try_text("\"abcdefghijklmn\n\"", NULL, 2); /* and takes a byte back */
}

static void test_checkpoint_json_faults__a_string_above_64_kib(void **state)
{
    enum { N = 70000 };
    char *text = malloc(N + 3);

    memset(text + 1, 'x', N);
    text[0] = text[N + 1] = '"';
    text[N + 2] = '\0';
    try_text(text, json_stringn(text + 1, N), 15);
    free(text);
}

static void test_checkpoint_json_faults__a_string_that_begins_with_escapes(void **state)
{
    try_text(
        "\"\\n\\u0041\\ud83d\\ude00\\\"\\\\ and much that is plain behind them, \\u00e9 too\"",
        json_string("\nA\xf0\x9f\x98\x80\"\\ and much that is plain behind them, \xc3\xa9 too"), 6);
    try_text("\"\\ud83d\\ude00\\ud83d is one half, and much that is plain behind it\"", NULL, 5);
}

static void test_checkpoint_json_faults__small_containers_in_each_other(void **state)
{
    try_text(
        "{\"a\": [[], {}, [true, null, [[[]]]]], \"a name above sixteen bytes\": {\"x\": [1, "
        "2.5, \"s\"]}, \"c\": [0,1,2,3,4,5,6,7,8], \"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,"
        "\"i\":0}",
        json_pack("{s: [[], {}, [b, n, [[[]]]]], s: {s: [i, f, s]}, s: [iiiiiiiii], s: i, s: i,"
                  "s: i, s: i, s: i, s: i}",
                  "a", 1, "a name above sixteen bytes", "x", 1, 2.5, "s", "c", 0, 1, 2, 3, 4, 5, 6,
                  7, 8, "d", 0, "e", 0, "f", 0, "g", 0, "h", 0, "i", 0),
        50);
}

static void test_checkpoint_json_faults__long_numbers_and_words(void **state)
{
    try_text("[-1234567890123456, 0.12345678901234567890, 1.5]",
             json_pack("[I, f, f]", (json_int_t)-1234567890123456, 0.12345678901234567890, 1.5), 7);
    try_text("[1234567890123456789012345678901234567890]", NULL, 4);
    try_text("[trueandmanymoreletterswithoutmeaning]", NULL, 4);
    try_text("[\"caf\xc3\xa9 caf\xc3\xa9 caf\xc3\xa9\", 1]",
             json_pack("[s, i]", "caf\xc3\xa9 caf\xc3\xa9 caf\xc3\xa9", 1), 7);
}

/* Names are unescaped in their text. */
static void test_checkpoint_json_faults__the_name_of_a_member(void **state)
{
    static const char text[] = "{\"\\tabcdefghijkl\": 1, \"\\u0042 name that is longer\": 2}";

    for (int n = 0, struck = 1; struck; n++) {
        char copy[sizeof(text)];
        msi_json_source from = {.path = source.path, .part = "", .begin = copy};
        msi_json_member *members;
        int32_t n_members;

        memcpy(copy, text, sizeof(text));
        n_asked_later = 0;
        armed = (fault){ALLOCATIONS, .countdown = n, .for_good = n % 2, .error = ENOMEM};
        const ms_status status = ms_json_split(&members, &n_members, &from, copy, sizeof(text) - 1);

        struck = armed.n_struck > 0;
        armed = (fault){0};
        assert_int_equal(struck ? MS_OUT_OF_MEMORY : MS_OK, status);
        assert_int_equal(0, n_asked_later);
        assert_int_equal(0, n_blocks);
        assert_true(struck || n > 8);
        if (!struck) {
            assert_string_equal("\tabcdefghijkl", members[0].name);
            assert_string_equal("B name that is longer", members[1].name);
        }
        free(members);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_json_faults__a_string_that_fills_the_buffer),
        cmocka_unit_test(test_checkpoint_json_faults__a_string_above_64_kib),
        cmocka_unit_test(test_checkpoint_json_faults__a_string_that_begins_with_escapes),
        cmocka_unit_test(test_checkpoint_json_faults__small_containers_in_each_other),
        cmocka_unit_test(test_checkpoint_json_faults__long_numbers_and_words),
        cmocka_unit_test(test_checkpoint_json_faults__the_name_of_a_member),
    };

    json_set_alloc_funcs(allocate, release);
    return cmocka_run_group_tests_name("checkpoint/json_faults", tests, NULL, NULL);
}
