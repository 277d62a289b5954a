/* runtime/checkpoint/manifest_read.c and reader.c against damaged and hostile checkpoints: an error
 * that names the file, or exactly what was saved; never a crash, never other numbers. */
#include "ckpt_test.h"

#include <jansson.h>

#define SHARD "rank-00000-of-00001.safetensors"

static void test_checkpoint_damage__any_changed_byte_of_a_manifest_is_found(void **state)
{
    const char *folder = inside(path_of("flip"), "s"), *path;
    int found = 0, harmless = 0;
    size_t n;

    assert_ok(save_small(path_of("flip"), "s", 3));
    path = inside(folder, "manifest.json");
    char *text = slurp(path, &n);

    for (size_t i = 0; i < n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            text[i] ^= (char)(1 << bit);
            spill(path, text, n);
            if (load_small(folder, 3) == MS_OK) {
                harmless++; /* white space that became other white space: the same contents */
            } else {
                assert_non_null(strstr(ms_error_message(), "manifest.json"));
                found++;
            }
            text[i] ^= (char)(1 << bit);
        }
    }
    assert_true(found > 20 * harmless);
    spill(path, text, n);
    assert_ok(load_small(folder, 3));
    free(text);
}

static void test_checkpoint_damage__any_changed_byte_of_a_shard_is_found(void **state)
{
    const char *folder = inside(path_of("shard"), "s"), *path;
    size_t n;

    assert_ok(save_small(path_of("shard"), "s", 3));
    path = inside(folder, SHARD);
    char *bytes = slurp(path, &n);

    assert_true(n > 65536);
    for (size_t i = 0; i < n; i += i < 300 || i > n - 160 ? 1 : 997) {
        bytes[i] ^= 1;
        spill(path, bytes, n);
        assert_fails(MS_FORMAT_ERROR, SHARD ": its bytes have hash", load_small(folder, 3));
        bytes[i] ^= 1;
    }
    free(bytes);
}

static void test_checkpoint_damage__a_damaged_file_leaves_the_destination(void **state)
{
    const char *folder = inside(path_of("leave"), "s"), *path;
    ms_param_extent e = extent_of(MS_DTYPE_F32, 33);
    ms_tensor *expected = bits_tensor(MS_DTYPE_F32, 77, 0, 33);
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, 77, 0, 33);
    ms_checkpoint *c;
    size_t n;

    assert_ok(save_small(path_of("leave"), "s", 3));
    path = inside(folder, SHARD);
    char *bytes = slurp(path, &n);

    bytes[n - 1] ^= 64;
    spill(path, bytes, n);
    assert_ok(ms_checkpoint_open(&c, folder)); /* sizes are right; hashes are checked on use */
    assert_fails(MS_FORMAT_ERROR, "expected", ms_checkpoint_read(c, "model/a", &e, t));
    assert_true(same_bytes(expected, t));
    bytes[n - 1] ^= 64;
    spill(path, bytes, n); /* repaired: the failure was not remembered as success or for good */
    assert_ok(ms_checkpoint_read(c, "model/a", &e, t));
    assert_false(same_bytes(expected, t));
    ms_checkpoint_close(c);
    ms_tensor_free(t);
    ms_tensor_free(expected);
    free(bytes);
}

static void test_checkpoint_damage__missing_cut_linked_and_foreign_files_are_refused(void **state)
{
    const char *root = path_of("files"), *folder = inside(root, "s"), *path;
    ms_checkpoint *c;
    size_t n;

    assert_ok(save_small(root, "s", 3));
    assert_ok(save_small(root, "other", 4));
    path = inside(folder, SHARD);
    char *bytes = slurp(path, &n);

    spill(path, bytes, n - 1);
    assert_fails(MS_FORMAT_ERROR, "bytes, expected", ms_checkpoint_open(&c, folder));
    spill(path, "", 0);
    assert_fails(MS_FORMAT_ERROR, SHARD ": has 0 bytes", ms_checkpoint_open(&c, folder));

    /* the file of another checkpoint has the same name and size */
    assert_int_equal(0, rename(inside(inside(root, "other"), SHARD), path));
    assert_ok(ms_checkpoint_open(&c, folder));
    ms_checkpoint_close(c);
    assert_fails(MS_FORMAT_ERROR, "its bytes have hash", load_small(folder, 3));

    assert_int_equal(0, unlink(path));
    assert_fails(MS_IO_ERROR, SHARD ": No such file or directory", ms_checkpoint_open(&c, folder));
    assert_null(c);
    spill(inside(root, "outside"), bytes, n);
    assert_int_equal(0, symlink("../outside", path));
    assert_fails(MS_FORMAT_ERROR, "is a symbolic link", ms_checkpoint_open(&c, folder));
    assert_int_equal(0, unlink(path));
    assert_int_equal(0, mkdir(path, 0777));
    assert_fails(MS_FORMAT_ERROR, "is no regular file", ms_checkpoint_open(&c, folder));
    assert_int_equal(0, rmdir(path));
    assert_int_equal(0, mkfifo(path, 0666));
    assert_fails(MS_FORMAT_ERROR, "is no regular file", ms_checkpoint_open(&c, folder));
    assert_fails(MS_IO_ERROR, "No such file", ms_checkpoint_open(&c, inside(root, "nothing")));
    assert_fails(MS_IO_ERROR, "; the checkpoint saved last there is ",
                 ms_checkpoint_open(&c, root));
    free(bytes);
}

/* -- hostile manifests, whose own hash is right ------------------------------------------------ */

#define FILE_0 "files/0/"
#define TENSOR "tensors/0/"
#define PIECE "{\"file\": 0, \"start\": 0, \"numel\": 33, \"offset\": 65536}"

static const struct {
    const char *where, *json; /* what becomes of this field */
    const char *message;
} hostile[] = {
    {FILE_0 "name", "\"../s/" SHARD "\"", "'../s/" SHARD "' is none of a checkpoint of 1 ranks"},
    {FILE_0 "name", "\"/etc/passwd\"", "'/etc/passwd' is none of a checkpoint of 1 ranks"},
    {FILE_0 "name", "\"rank-00000-of-00002.safetensors\"", "expected one like rank-00000-of-00001"},
    {FILE_0 "name", "\"\\u001b[2Jrank\\n\"", "'\\x1b[2Jrank\\x0a', which has control characters"},
    {FILE_0 "size", "-1", "'size' of " SHARD " is negative"},
    {FILE_0 "xxh3", "\"0123\"", "is '0123', expected 16 hex digits"},
    {"meta/step", "\"30\"", "'step' of the meta data is a string, expected an integer from 0 to"},
    {"meta", "3", "'meta' of the manifest is an integer, expected an object"},
    {"version", "2", "has version 2, expected 1 to 1"},
    {"tensors", "{}", "'tensors' of the manifest is an object, expected an array"},
    {"tensors/1/key", "\"model/a\"", "'model/a' is there twice"},
    {TENSOR "shape", "[4294967296, 4294967296, 4294967296]", "is none"},
    {TENSOR "shape", "[-33]", "is none"},
    {TENSOR "shape", "[33,1,1,1,1,1,1,1,1]", "9 dimensions, expected"},
    {TENSOR "dtype", "\"F33\"", "unknown dtype 'F33'"},
    {TENSOR "dtype", "\"F64\"", "expected within its"},
    {TENSOR "pieces", "[" PIECE ", " PIECE "]", "a piece [0, + 33), expected one from 33"},
    {TENSOR "pieces/0/file", "1", "lies in file 1, expected below 1"},
    {TENSOR "pieces/0/start", "1", "a piece [1, + 33), expected one from 0"},
    {TENSOR "pieces/0/numel", "34", "a piece [0, + 34), expected one from 0 that ends by 33"},
    {TENSOR "pieces/0/numel", "32", "has pieces for 32 elements, expected 33"},
    {TENSOR "pieces/0/offset", "65600", "lies at byte 65600"},
    {TENSOR "pieces/0/offset", "9223372036854775807", "lies at byte 9223372036854775807"},
};

/* Set the field at `where`, as "tensors/0/key", in a manifest and give it its own hash again, as
 * somebody who means harm would: XXH3 of the object without "xxh3", compact, keys sorted. */
static void change_manifest(const char *path, const char *where, const char *json)
{
    json_t *root = json_load_file(path, 0, NULL), *at = root;
    const char *slash;
    char hex[17];

    while ((slash = strchr(where, '/')) != NULL) {
        char name[32];

        snprintf(name, sizeof(name), "%.*s", (int)(slash - where), where);
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(name)) : json_object_get(at, name);
        where = slash + 1;
    }
    assert_int_equal(0, json_object_set_new(at, where, json_loads(json, JSON_DECODE_ANY, NULL)));
    json_object_del(root, "xxh3");
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);

    snprintf(hex, sizeof(hex), "%016llx",
             (unsigned long long)ms_hash_bytes(text, (int64_t)strlen(text)));
    json_object_set_new(root, "xxh3", json_string(hex));
    assert_int_equal(0, json_dump_file(root, path, 0));
    json_decref(root);
    free(text);
}

static void test_checkpoint_damage__hostile_manifests_are_refused(void **state)
{
    const char *folder = inside(path_of("hostile"), "s"), *path = inside(folder, "manifest.json");
    ms_checkpoint *c;
    size_t n;

    assert_ok(save_small(path_of("hostile"), "s", 3));
    char *text = slurp(path, &n);

    change_manifest(path, "meta/seed", "3"); /* the same again, spaced otherwise */
    assert_ok(load_small(folder, 3));
    for (int32_t i = 0; i < MSI_COUNT(hostile); i++) {
        spill(path, text, n);
        change_manifest(path, hostile[i].where, hostile[i].json);
        assert_fails(MS_FORMAT_ERROR, hostile[i].message, ms_checkpoint_open(&c, folder));
        assert_non_null(strstr(ms_error_message(), "manifest.json"));
        assert_null(c);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_damage__any_changed_byte_of_a_manifest_is_found),
        cmocka_unit_test(test_checkpoint_damage__any_changed_byte_of_a_shard_is_found),
        cmocka_unit_test(test_checkpoint_damage__a_damaged_file_leaves_the_destination),
        cmocka_unit_test(test_checkpoint_damage__missing_cut_linked_and_foreign_files_are_refused),
        cmocka_unit_test(test_checkpoint_damage__hostile_manifests_are_refused),
    };

    return cmocka_run_group_tests_name("checkpoint/damage", tests, NULL, NULL);
}
