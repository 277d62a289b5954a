/* runtime/checkpoint/search.c: another process saves and prunes between the listing of a root and
 * the opening of what it lists. The linker puts the function below in front of the C library's (see
 * CMakeLists.txt). */
#include "ckpt_test.h"

#include <stdarg.h>

/* What happens just before a path is opened for the `nth` time. */
static struct {
    const char *path;
    int nth;
    void (*happens)(const char *root);
    const char *root;
} moment;

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;

    va_end(args);
    if (moment.path != NULL && strcmp(path, moment.path) == 0 && --moment.nth == 0) {
        moment.path = NULL;
        moment.happens(moment.root);
    }
    return __real_open(path, flags, mode);
}

/* From here on: `happens` before `name` under `root` is opened for the `nth` time. */
static void expect(void (*happens)(const char *), const char *root, const char *name, int nth)
{
    moment.happens = happens;
    moment.root = root;
    moment.nth = nth;
    moment.path = inside(root, name);
}

/* Where the two ways to search find the newest, "": nowhere. It must have happened. */
static const char *newest(const char *root, bool by_loader)
{
    const char *path = NULL;
    ms_checkpoint_loader *l;
    static char found[400];
    ms_comm *self;

    if (by_loader) {
        assert_ok(ms_comm_self(&self));
        assert_ok(ms_checkpoint_load_latest(&l, self, root));
        if (l != NULL) {
            path = ms_checkpoint_path(ms_checkpoint_load_source(l));
        }
        snprintf(found, sizeof(found), "%s", path != NULL ? path : "");
        ms_checkpoint_load_discard(l);
    } else {
        assert_ok(ms_checkpoint_latest(&path, root));
        snprintf(found, sizeof(found), "%s", path != NULL ? path : "");
    }
    assert_null(moment.path);
    return found;
}

static void save_s3_and_keep_one(const char *root)
{
    assert_ok(save_small(root, "s3", 3));
    assert_ok(ms_checkpoint_prune(root, 1));
}

static void lose_all(const char *root)
{
    assert_int_equal(0, unlink(inside(root, "latest")));
    assert_int_equal(0, rename(inside(root, "s2"), inside(root, ".s2")));
}

static void damage(const char *shard)
{
    size_t n;
    char *bytes = slurp(shard, &n);

    bytes[n - 1] ^= 1;
    spill(shard, bytes, n);
    free(bytes);
}

static void test_checkpoint_together__what_is_pruned_meanwhile_is_not_broken(void **state)
{
    /* before it is looked into; before it is examined; before it is read */
    const struct {
        const char *opened;
        int nth;
    } moments[] = {{"s2", 1}, {"s2/manifest.json", 1}, {"s2/manifest.json", 2}};
    const char *kind, *message;

    for (int i = 0; i < 6; i++) {
        const bool pointed = i < 3; /* else something stands in the place of the link */
        char name[32];

        for (int by_loader = 0; by_loader < 2; by_loader++) {
            snprintf(name, sizeof(name), "pruned-%d-%d", i, by_loader);
            const char *root = path_of(name);

            assert_int_equal(0, mkdir(root, 0777));
            if (!pointed) {
                spill(inside(root, "latest"), "x", 1);
            }
            ms_warnings_capture(true);
            assert_ok(save_small(root, "s2", 2));
            ms_warnings_capture(true);
            expect(save_s3_and_keep_one, root, moments[i % 3].opened, moments[i % 3].nth);
            assert_string_equal(inside(root, "s3"), newest(root, by_loader != 0));
            while (ms_warning_take(&kind, &message)) {
                if (strstr(message, "but 'latest' does not point there") == NULL) {
                    fail_msg("%s warns: %s", name, message);
                }
            }
            ms_warnings_capture(false);
        }
    }
}

/* Which is told once, however often the root is listed. */
static void test_checkpoint_together__a_broken_one_is_told_once(void **state)
{
    const char *root = path_of("once"), *kind, *message;

    assert_ok(save_small(root, "s1", 1));
    assert_ok(save_small(root, "s2", 2));
    assert_int_equal(0, truncate(inside(root, "s1/manifest.json"), 100));
    ms_warnings_capture(true);
    expect(save_s3_and_keep_one, root, "s2/manifest.json", 2);
    assert_string_equal(inside(root, "s3"), newest(root, false));
    assert_true(ms_warning_take(&kind, &message));
    assert_non_null(strstr(message, "a broken checkpoint is passed over: "));
    assert_non_null(strstr(message, "s1/manifest.json"));
    assert_false(ms_warning_take(&kind, &message));
    ms_warnings_capture(false);
}

/* The one saved last is damaged, and while its bytes are verified the next best is pruned. */
static void test_checkpoint_together__what_is_pruned_after_a_damaged_one(void **state)
{
    const char *kind, *message;

    for (int by_loader = 0; by_loader < 2; by_loader++) {
        const char *root = path_of(by_loader ? "after-loader" : "after-latest");

        assert_ok(save_small(root, "s1", 1));
        assert_ok(save_small(root, "s2", 2));
        damage(inside(root, "s2/rank-00000-of-00001.safetensors"));
        ms_warnings_capture(true);
        expect(save_s3_and_keep_one, root, "s1/manifest.json", 2);
        assert_string_equal(inside(root, "s3"), newest(root, by_loader != 0));
        assert_false(ms_warning_take(&kind, &message)); /* both are gone */
        ms_warnings_capture(false);
    }
}

/* A run that went back to step 20 saves step 30: it goes on from there, not from step 90. */
static void test_checkpoint_together__the_link_moves_on(void **state)
{
    for (int by_loader = 0; by_loader < 2; by_loader++) {
        const char *root = path_of(by_loader ? "moves-loader" : "moves-latest");

        assert_ok(save_small(root, "s9", 9));
        assert_ok(save_small(root, "s2", 2));
        ms_warnings_capture(true);
        expect(save_s3_and_keep_one, root, "s9", 1);
        assert_string_equal(inside(root, "s3"), newest(root, by_loader != 0));
        ms_warnings_capture(false);
    }
}

static void test_checkpoint_together__where_all_is_removed_there_is_none(void **state)
{
    for (int by_loader = 0; by_loader < 2; by_loader++) {
        const char *root = path_of(by_loader ? "all-loader" : "all-latest");

        assert_ok(save_small(root, "s2", 2));
        expect(lose_all, root, "s2/manifest.json", 1);
        assert_string_equal("", newest(root, by_loader != 0));
    }
}

/* Nothing that is listed is there to be opened, as often as one looks. */
static void go_on_for_ever(const char *root)
{
    static int n = 1;
    char before[16], now[16];

    snprintf(before, sizeof(before), "s%d", n++);
    snprintf(now, sizeof(now), "s%d", n);
    assert_int_equal(0, rename(inside(root, before), inside(root, now)));
    expect(go_on_for_ever, root, now, 1);
}

static void test_checkpoint_together__a_search_comes_to_an_end(void **state)
{
    const char *root = path_of("for-ever"), *latest;

    assert_ok(save_small(root, "s1", 1));
    assert_int_equal(0, unlink(inside(root, "latest")));
    expect(go_on_for_ever, root, "s1", 1);
    assert_fails(MS_IO_ERROR, "for-ever: checkpoints are removed as fast as they are listed",
                 ms_checkpoint_latest(&latest, root));
    assert_null(latest);
    moment.path = NULL;
    assert_ok(ms_checkpoint_latest(&latest, root));
    assert_int_equal(1, seed_in(latest));
}

static void put_a_file_there(const char *root)
{
    spill(inside(root, "s2"), "x", 1);
}

/* What comes into the place of a checkpoint while it is written stays there. */
static void test_checkpoint_together__a_save_displaces_no_file(void **state)
{
    const char *root = path_of("file");

    expect(put_a_file_there, root, "s2", 1);
    assert_fails(MS_IO_ERROR, "file/s2: Not a directory", save_small(root, "s2", 2));
    assert_null(moment.path);
    assert_int_equal(1, count_entries(root, ""));
    assert_int_equal(0, unlink(inside(root, "s2")));
    assert_ok(save_small(root, "s2", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_together__what_is_pruned_meanwhile_is_not_broken),
        cmocka_unit_test(test_checkpoint_together__a_broken_one_is_told_once),
        cmocka_unit_test(test_checkpoint_together__what_is_pruned_after_a_damaged_one),
        cmocka_unit_test(test_checkpoint_together__the_link_moves_on),
        cmocka_unit_test(test_checkpoint_together__where_all_is_removed_there_is_none),
        cmocka_unit_test(test_checkpoint_together__a_search_comes_to_an_end),
        cmocka_unit_test(test_checkpoint_together__a_save_displaces_no_file),
    };

    return cmocka_run_group_tests_name("checkpoint/together", tests, NULL, NULL);
}
