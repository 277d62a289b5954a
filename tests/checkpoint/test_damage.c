/* runtime/checkpoint/manifest_read.c and reader.c against damaged and hostile checkpoints: an error
 * that names the file, or exactly what was saved; never a crash, never other numbers. */
#include "ckpt_test.h"

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

static void outside_file(json_t *root)
{
    set(entry_of(root, "files", 0), "name", "\"../s/" SHARD "\"");
}
static void file_of_another_world(json_t *root)
{
    set(entry_of(root, "files", 0), "name", "\"rank-00000-of-00002.safetensors\"");
}
static void control_characters(json_t *root)
{
    set(entry_of(root, "files", 0), "name", "\"\\u001b[2Jrank\\n\"");
}
static void text_meta_step(json_t *root)
{
    set(json_object_get(root, "meta"), "step", "\"30\"");
}
static void negative_size(json_t *root)
{
    set(entry_of(root, "files", 0), "size", "-1");
}
static void short_hash(json_t *root)
{
    set(entry_of(root, "files", 0), "xxh3", "\"0123\"");
}
static void file_out_of_range(json_t *root)
{
    set(first_piece(root), "file", "1");
}
static void late_start(json_t *root)
{
    set(first_piece(root), "start", "1");
}
static void too_many_elements(json_t *root)
{
    set(first_piece(root), "numel", "34");
}
static void too_few_elements(json_t *root)
{
    set(first_piece(root), "numel", "32");
}
static void overlapping_pieces(json_t *root)
{
    json_t *pieces = json_object_get(entry_of(root, "tensors", 0), "pieces");

    json_array_append_new(pieces, json_deep_copy(json_array_get(pieces, 0)));
}
static void offset_past_the_end(json_t *root)
{
    set(first_piece(root), "offset", "65600");
}
static void shape_that_overflows(json_t *root)
{
    set(entry_of(root, "tensors", 0), "shape", "[4294967296, 4294967296, 4294967296]");
}
static void nine_dimensions(json_t *root)
{
    set(entry_of(root, "tensors", 0), "shape", "[33,1,1,1,1,1,1,1,1]");
}
static void unknown_dtype(json_t *root)
{
    set(entry_of(root, "tensors", 0), "dtype", "\"F33\"");
}
static void wider_dtype(json_t *root)
{
    set(entry_of(root, "tensors", 0), "dtype", "\"F64\"");
}
static void same_key_twice(json_t *root)
{
    set(entry_of(root, "tensors", 1), "key", "\"model/a\"");
}
static void no_tensors(json_t *root)
{
    json_object_del(root, "tensors");
}
static void newer_version(json_t *root)
{
    set(root, "version", "2");
}
static void meta_no_object(json_t *root)
{
    set(root, "meta", "3");
}

static const struct {
    void (*change)(json_t *root);
    const char *message;
} hostile[] = {
    {outside_file, "file name '../s/" SHARD "' is none of a checkpoint of 1 ranks"},
    {file_of_another_world, "expected one like rank-00000-of-00001.safetensors"},
    {control_characters, "'name' of a file is '\\x1b[2Jrank\\x0a', which has control characters"},
    {text_meta_step, "'step' of the meta data is a string, expected an integer from 0 to 2^53"},
    {negative_size, "'size' of " SHARD " is negative"},
    {short_hash, "is '0123', expected 16 hex digits"},
    {file_out_of_range, "lies in file 1, expected below 1"},
    {late_start, "a piece [1, + 33), expected one from 0"},
    {too_many_elements, "a piece [0, + 34), expected one from 0 that ends by 33"},
    {too_few_elements, "has pieces for 32 elements, expected 33"},
    {overlapping_pieces, "a piece [0, + 33), expected one from 33"},
    {offset_past_the_end, "lies at byte 65600"},
    {shape_that_overflows, "is none"},
    {nine_dimensions, "9 dimensions, expected"},
    {unknown_dtype, "unknown dtype 'F33'"},
    {wider_dtype, "expected within its"},
    {same_key_twice, "'model/a' is there twice"},
    {no_tensors, "'tensors' of the manifest is nothing, expected an array"},
    {newer_version, "has version 2, expected 1 to 1"},
    {meta_no_object, "'meta' of the manifest is an integer, expected an object"},
};

/* A manifest whose text is put back after each change. */
static const char *hostile_folder(const char *root, char **text, size_t *n)
{
    static char folder[400];

    snprintf(folder, sizeof(folder), "%s/s", root);
    assert_ok(save_small(root, "s", 3));
    change_manifest(folder, NULL); /* resealing alone changes nothing */
    assert_ok(load_small(folder, 3));
    *text = slurp(inside(folder, "manifest.json"), n);
    return folder;
}

static void test_checkpoint_damage__hostile_manifests_are_refused(void **state)
{
    char *text;
    size_t n;
    const char *folder = hostile_folder(path_of("hostile"), &text, &n);

    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        ms_checkpoint *c;

        change_manifest(folder, hostile[i].change);
        assert_fails(MS_FORMAT_ERROR, hostile[i].message, ms_checkpoint_open(&c, folder));
        assert_non_null(strstr(ms_error_message(), "manifest.json"));
        assert_null(c);
        spill(inside(folder, "manifest.json"), text, n);
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
