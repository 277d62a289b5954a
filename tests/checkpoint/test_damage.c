/* runtime/checkpoint/manifest_read.c and reader.c against damaged and hostile checkpoints: an error
 * that names the file, or exactly what was saved; never a crash, never other numbers. */
#include "ckpt_test.h"

#include <malloc.h>

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

static void test_checkpoint_damage__a_shortened_manifest_is_an_error(void **state)
{
    const char *folder = inside(path_of("cut"), "s"), *path;
    size_t n;

    assert_ok(save_small(path_of("cut"), "s", 3));
    path = inside(folder, "manifest.json");
    char *text = slurp(path, &n);

    for (size_t keep = 0; keep < n; keep++) {
        spill(path, text, keep);
        assert_fails(MS_FORMAT_ERROR, "manifest.json", load_small(folder, 3));
    }
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
static void absolute_file(json_t *root)
{
    set(entry_of(root, "files", 0), "name", "\"/etc/passwd\"");
}
static void parent_file(json_t *root)
{
    set(entry_of(root, "files", 0), "name", "\"..\"");
}
static void no_name(json_t *root)
{
    set(entry_of(root, "files", 0), "name", "\"\"");
}
static void file_of_another_world(json_t *root)
{
    set(entry_of(root, "files", 0), "name", "\"rank-00000-of-00002.safetensors\"");
}
static void file_of_a_rank_too_many(json_t *root)
{
    set(entry_of(root, "files", 0), "name", "\"rank-00001-of-00001.safetensors\"");
}
static void control_characters(json_t *root)
{
    set(entry_of(root, "files", 0), "name", "\"\\u001b[2Jrank\\n\"");
}
static void same_file_twice(json_t *root)
{
    json_array_append_new(json_object_get(root, "files"),
                          json_deep_copy(entry_of(root, "files", 0)));
}
static void no_world(json_t *root)
{
    json_object_del(root, "world");
}
static void world_of_none(json_t *root)
{
    set(root, "world", "0");
}
static void half_a_world(json_t *root)
{
    set(root, "world", "1.5");
}
static void other_world(json_t *root)
{
    set(root, "world", "2000000000");
}
static void no_nonce(json_t *root)
{
    json_object_del(root, "nonce");
}
static void other_nonce(json_t *root)
{
    set(root, "nonce", "\"x\"");
}
static void unknown_field(json_t *root)
{
    set(root, "more", "1");
}
static void unknown_field_of_a_file(json_t *root)
{
    set(entry_of(root, "files", 0), "offset", "1");
}
static void unknown_field_of_a_tensor(json_t *root)
{
    set(entry_of(root, "tensors", 0), "\a", "1");
}
static void unknown_field_of_a_piece(json_t *root)
{
    set(first_piece(root), "length", "1");
}
static void control_key(json_t *root)
{
    set(entry_of(root, "tensors", 0), "key", "\"model/\\u009bm\"");
}
static void other_step(json_t *root)
{
    set(root, "step", "31");
}
static void no_step(json_t *root)
{
    json_object_del(root, "step");
}
static void step_in_the_manifest_only(json_t *root)
{
    json_object_del(json_object_get(root, "meta"), "step");
}
static void text_meta_step(json_t *root)
{
    set(json_object_get(root, "meta"), "step", "\"30\"");
}
static void negative_meta_step(json_t *root)
{
    set(json_object_get(root, "meta"), "step", "-1");
}
static void large_meta_step(json_t *root)
{
    set(json_object_get(root, "meta"), "step", "9007199254740993");
}
static void real_meta_step(json_t *root)
{
    set(json_object_get(root, "meta"), "step", "1e308");
}
static void negative_size(json_t *root)
{
    set(entry_of(root, "files", 0), "size", "-1");
}
static void text_size(json_t *root)
{
    set(entry_of(root, "files", 0), "size", "\"65680\"");
}
static void short_hash(json_t *root)
{
    set(entry_of(root, "files", 0), "xxh3", "\"0123\"");
}
static void file_out_of_range(json_t *root)
{
    set(first_piece(root), "file", "1");
}
static void negative_file(json_t *root)
{
    set(first_piece(root), "file", "-1");
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
static void no_elements(json_t *root)
{
    set(first_piece(root), "numel", "0");
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
static void offset_that_overflows(json_t *root)
{
    set(first_piece(root), "offset", "9223372036854775807");
}
static void shape_that_overflows(json_t *root)
{
    set(entry_of(root, "tensors", 0), "shape", "[4294967296, 4294967296, 4294967296]");
}
static void negative_shape(json_t *root)
{
    set(entry_of(root, "tensors", 0), "shape", "[-33]");
}
static void real_shape(json_t *root)
{
    set(entry_of(root, "tensors", 0), "shape", "[33.0]");
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
static void files_no_array(json_t *root)
{
    set(root, "files", "{}");
}
static void newer_version(json_t *root)
{
    set(root, "version", "2");
}
static void other_format(json_t *root)
{
    set(root, "format", "\"something\"");
}
static void meta_no_object(json_t *root)
{
    set(root, "meta", "3");
}
static void text_step(json_t *root)
{
    set(root, "step", "\"7\"");
}

static const struct {
    void (*change)(json_t *root);
    const char *message;
} hostile[] = {
    {outside_file, "file name '../s/" SHARD "' is none of a checkpoint of 1 ranks"},
    {absolute_file, "file name '/etc/passwd' is none of a checkpoint of 1 ranks"},
    {parent_file, "file name '..' is none"},
    {no_name, "file name '' is none"},
    {file_of_another_world, "expected one like rank-00000-of-00001.safetensors"},
    {file_of_a_rank_too_many, "file name 'rank-00001-of-00001.safetensors' is none"},
    {control_characters, "'name' of a file is '\\x1b[2Jrank\\x0a', which has control characters"},
    {same_file_twice, "file '" SHARD "' stands there twice"},
    {no_world, "'world' of the manifest is nothing, expected an integer of at least 0"},
    {world_of_none, "'world' of the manifest is 0, expected 1 to 2147483647"},
    {half_a_world, "'world' of the manifest is a real"},
    {other_world, "file name '" SHARD "' is none of a checkpoint of 2000000000 ranks"},
    {no_nonce, "'nonce' of the manifest is nothing, expected a string"},
    {other_nonce, "'nonce' of the manifest is 'x', expected 16 hex digits"},
    {unknown_field, "the manifest has an unknown field 'more'"},
    {unknown_field_of_a_file, SHARD " has an unknown field 'offset'"},
    {unknown_field_of_a_tensor, "model/a has an unknown field '\\x07'"},
    {unknown_field_of_a_piece, "model/a has an unknown field 'length'"},
    {control_key, "'key' of a tensor is 'model/\\xc2\\x9bm', which has control characters"},
    {other_step, "'step' of the manifest is 31, expected 30 as in the meta data"},
    {no_step, "'step' of the manifest is nothing, expected 30"},
    {step_in_the_manifest_only, "'step' of the manifest is 30, expected nothing as"},
    {text_meta_step, "'step' of the meta data is a string, expected an integer from 0 to 2^53"},
    {negative_meta_step, "'step' of the meta data is -1, expected"},
    {large_meta_step, "'step' of the meta data is 9007199254740993, expected"},
    {real_meta_step, "'step' of the meta data is a real"},
    {negative_size, "'size' of " SHARD " is negative"},
    {text_size, "'size' of " SHARD " is a string, expected an integer"},
    {short_hash, "is '0123', expected 16 hex digits"},
    {file_out_of_range, "lies in file 1, expected below 1"},
    {negative_file, "'file' of model/a is negative"},
    {late_start, "a piece [1, + 33), expected one from 0"},
    {too_many_elements, "a piece [0, + 34), expected one from 0 that ends by 33"},
    {too_few_elements, "has pieces for 32 elements, expected 33"},
    {no_elements, "a piece [0, + 0)"},
    {overlapping_pieces, "a piece [0, + 33), expected one from 33"},
    {offset_past_the_end, "lies at byte 65600"},
    {offset_that_overflows, "lies at byte 9223372036854775807"},
    {shape_that_overflows, "has a shape that is none"},
    {negative_shape, "has a shape that is none"},
    {real_shape, "has a shape that is none"},
    {nine_dimensions, "has 9 dimensions, expected at most 8"},
    {unknown_dtype, "unknown dtype 'F33'"},
    {wider_dtype, "expected within its"},
    {same_key_twice, "'model/a' stands there twice"},
    {no_tensors, "'tensors' of the manifest is nothing, expected an array"},
    {files_no_array, "'files' of the manifest is an object, expected an array"},
    {newer_version, "has version 2, expected 1 to 1"},
    {other_format, "has format 'something', expected 'moonshard checkpoint'"},
    {meta_no_object, "'meta' of the manifest is an integer, expected an object"},
    {text_step, "'step' of the manifest is a string"},
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

/* -- manifests that say something else than the headers of their files ------------------------- */

static void unaligned_offset(json_t *root)
{
    set(first_piece(root), "offset", "65537");
}
static void offset_of_another(json_t *root)
{
    set(first_piece(root), "offset", "65544");
}
static void offset_in_the_header(json_t *root)
{
    set(first_piece(root), "offset", "0");
}
static void keys_exchanged(json_t *root)
{
    set(entry_of(root, "tensors", 0), "key", "\"model/b\"");
    set(entry_of(root, "tensors", 1), "key", "\"model/a\"");
}
static void another_key(json_t *root)
{
    set(entry_of(root, "tensors", 0), "key", "\"model/c\"");
}
static void other_elements(json_t *root)
{
    set(entry_of(root, "tensors", 0), "shape", "[8]");
    set(entry_of(root, "tensors", 0), "dtype", "\"F64\"");
    set(first_piece(root), "numel", "8");
}
static void fewer_elements(json_t *root)
{
    set(entry_of(root, "tensors", 0), "shape", "[32]");
    set(first_piece(root), "numel", "32");
}
static void more_elements(json_t *root)
{
    set(entry_of(root, "tensors", 0), "shape", "[35]");
    set(first_piece(root), "numel", "35");
}
static void cut_in_two(json_t *root)
{
    json_t *pieces = json_object_get(entry_of(root, "tensors", 0), "pieces");

    json_array_append_new(pieces, json_deep_copy(json_array_get(pieces, 0)));
    set(json_array_get(pieces, 0), "numel", "16");
    set(json_array_get(pieces, 1), "start", "16");
    set(json_array_get(pieces, 1), "numel", "17");
    set(json_array_get(pieces, 1), "offset", "65600");
    set(json_array_get(pieces, 0), "offset", "65604"); /* the last 16 */
}

static const struct {
    void (*change)(json_t *root);
    const char *message;
} misplaced[] = {
    {unaligned_offset,
     "'offset' of 'model/a' is 65537 and 'numel' 33, but " SHARD " has it in bytes [65536, 65668)"},
    {offset_of_another, "'offset' of 'model/a' is 65544"},
    {offset_in_the_header, "'offset' of 'model/a' is 0"},
    {keys_exchanged, "'dtype' of 'model/a' is i64, but " SHARD " has it as f32"},
    {another_key, "'pieces' of 2 tensors are said to lie in " SHARD ", which has 1 of them"},
    {other_elements, "'dtype' of 'model/a' is f64, but " SHARD " has it as f32"},
    {fewer_elements, "'offset' of 'model/a' is 65536 and 'numel' 32"},
    {more_elements, "'offset' of 'model/a' is 65536 and 'numel' 35"},
    {cut_in_two, "'model/a' has two pieces in " SHARD ", expected one"},
};

static void test_checkpoint_damage__manifests_that_misplace_tensors_are_refused(void **state)
{
    char *text;
    size_t n;
    const char *folder = hostile_folder(path_of("misplaced"), &text, &n), *latest, *kind, *message;
    ms_param_extent e = extent_of(MS_DTYPE_I64, 3);
    ms_tensor *expected = bits_tensor(MS_DTYPE_I64, 77, 0, 3);
    ms_tensor *t = bits_tensor(MS_DTYPE_I64, 77, 0, 3);

    assert_ok(save_small(path_of("misplaced"), "older", 2));
    assert_int_equal(0, unlink(inside(path_of("misplaced"), "latest"))); /* steps decide */
    for (size_t i = 0; i < sizeof(misplaced) / sizeof(misplaced[0]); i++) {
        ms_checkpoint *c;

        change_manifest(folder, misplaced[i].change);
        assert_ok(ms_checkpoint_open(&c, folder));
        /* whichever tensor is asked for, it is the file that is not as the manifest says */
        assert_fails(MS_FORMAT_ERROR, misplaced[i].message,
                     ms_checkpoint_read(
                         c, misplaced[i].change == keys_exchanged ? "model/a" : "model/b", &e, t));
        assert_non_null(strstr(ms_error_message(), "s/manifest.json: "));
        assert_true(same_bytes(expected, t));
        ms_checkpoint_close(c);
        ms_warnings_capture(true);
        assert_ok(ms_checkpoint_latest(&latest, path_of("misplaced")));
        assert_string_equal(inside(path_of("misplaced"), "older"), latest);
        assert_true(ms_warning_take(&kind, &message));
        ms_warnings_capture(false);
        spill(inside(folder, "manifest.json"), text, n);
    }
    ms_tensor_free(t);
    ms_tensor_free(expected);
    free(text);
}

static void test_checkpoint_damage__manifests_that_are_no_json_are_refused(void **state)
{
    const char *folder = inside(path_of("text"), "s"), *path;
    char deep[100001];
    static const char *const texts[] = {
        "",
        "null",
        "[]",
        "{}",
        "{\"format\": 1}",
        "{\"format\": \"moonshard checkpoint\"}",
        "{\"a\": 1, \"a\": 1}",
        "{\"version\": 99999999999999999999}",
        "\xff\xfe\xfd",
        "{\"format\": \"moonshard checkpoint\", \"version\": 1, \"xxh3\": \"0000000000000000\"}",
    };
    ms_checkpoint *c;

    assert_ok(save_small(path_of("text"), "s", 3));
    path = inside(folder, "manifest.json");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        spill(path, texts[i], strlen(texts[i]));
        assert_fails(MS_FORMAT_ERROR, "manifest.json", ms_checkpoint_open(&c, folder));
    }
    memset(deep, '[', sizeof(deep));
    spill(path, deep, sizeof(deep));
    assert_fails(MS_FORMAT_ERROR, "manifest.json", ms_checkpoint_open(&c, folder));
}

/* -- large manifests --------------------------------------------------------------------------- */

static size_t tree_bytes, most_tree_bytes; /* that Jansson holds */

static void *count_malloc(size_t n)
{
    void *p = malloc(n);

    tree_bytes += malloc_usable_size(p);
    most_tree_bytes = tree_bytes > most_tree_bytes ? tree_bytes : most_tree_bytes;
    return p;
}

static void count_free(void *p)
{
    tree_bytes -= malloc_usable_size(p);
    free(p);
}

enum { MANY = 60000 };

static json_t *many(const char *entry)
{
    json_t *list = json_array();

    for (int i = 0; i < MANY; i++) {
        json_array_append_new(list, json_loads(entry, JSON_DECODE_ANY, NULL));
    }
    return list;
}

static void large_unknown_field(json_t *root)
{
    json_object_set_new(root, "extra", many("{}"));
}
static void large_version(json_t *root)
{
    json_object_set_new(root, "version", many("[]"));
}
static void large_shape(json_t *root)
{
    json_object_set_new(entry_of(root, "tensors", 0), "shape", many("1"));
}
static void large_file(json_t *root)
{
    json_object_set_new(entry_of(root, "files", 0), "size", many("{}"));
}
static void large_pieces(json_t *root)
{
    json_object_set_new(entry_of(root, "tensors", 0), "pieces", many("{}"));
}
static void many_tensors(json_t *root)
{
    json_object_set_new(root, "tensors", many("{}"));
}
/* Names, numbers and texts that a compact form with sorted names writes otherwise than they stand
 * there, in objects and lists that are small, large, and large within large ones. */
static void large_config(json_t *root)
{
    json_t *config = json_object(), *names = json_object();
    char name[32];

    for (int i = 0; i < MANY / 10; i++) {
        snprintf(name, sizeof(name), "%s\"%d\xc3\xa4\t", i % 2 != 0 ? "b" : "A", i * 7919 % MANY);
        json_object_set_new(names, name, json_loads("{\"z\": [1e2, -0.5], \"a\": 1}", 0, NULL));
    }
    json_object_set_new(config, "z", many("{}"));
    json_object_set_new(config, "names", names);
    json_object_set_new(config, "list",
                        json_pack("[s, o, b, n, {}, []]", "\\/\x01", many("[1]"), 1));
    json_object_set_new(config, "text", json_string("  [ \"spaced\" : ] "));
    json_object_set_new(json_object_get(root, "meta"), "config", config);
}

static const struct {
    void (*change)(json_t *root);
    const char *message; /* NULL: it is sound */
} large[] = {
    {large_unknown_field, "the manifest has an unknown field 'extra'"},
    {large_version, "'version' of the manifest has 240000 bytes, expected at most 65536"},
    {large_shape, "'shape' of a tensor has 180000 bytes, expected at most 65536"},
    {large_file, "a file is described by 240"},
    {large_pieces, "'file' of model/a is nothing"},
    {many_tensors, "'key' of a tensor is nothing"},
    {large_config, NULL},
};

/* Jansson's tree of these would take some 20 to 80 times the bytes of the text. */
static void test_checkpoint_damage__large_manifests_take_no_large_trees(void **state)
{
    char *text;
    size_t n;
    const char *folder = hostile_folder(path_of("large"), &text, &n);

    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
        ms_checkpoint *c;

        change_manifest(folder, large[i].change);
        tree_bytes = most_tree_bytes = 0;
        json_set_alloc_funcs(count_malloc, count_free);
        const ms_status status = ms_checkpoint_open(&c, folder);

        json_set_alloc_funcs(malloc, free);
        assert_int_equal(0, tree_bytes);
        assert_in_range(most_tree_bytes, 1, 6 << 20);
        if (large[i].message == NULL) {
            assert_ok(status);
            json_t *root = json_load_file(inside(folder, "manifest.json"), 0, NULL);
            json_t *meta = json_loads(ms_checkpoint_meta(c), 0, NULL);

            assert_true(json_equal(json_object_get(root, "meta"), meta));
            json_decref(meta);
            json_decref(root);
            ms_checkpoint_close(c);
        } else {
            assert_fails(MS_FORMAT_ERROR, large[i].message, status);
        }
        spill(inside(folder, "manifest.json"), text, n);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_damage__any_changed_byte_of_a_manifest_is_found),
        cmocka_unit_test(test_checkpoint_damage__a_shortened_manifest_is_an_error),
        cmocka_unit_test(test_checkpoint_damage__any_changed_byte_of_a_shard_is_found),
        cmocka_unit_test(test_checkpoint_damage__a_damaged_file_leaves_the_destination),
        cmocka_unit_test(test_checkpoint_damage__missing_cut_linked_and_foreign_files_are_refused),
        cmocka_unit_test(test_checkpoint_damage__hostile_manifests_are_refused),
        cmocka_unit_test(test_checkpoint_damage__manifests_that_misplace_tensors_are_refused),
        cmocka_unit_test(test_checkpoint_damage__manifests_that_are_no_json_are_refused),
        cmocka_unit_test(test_checkpoint_damage__large_manifests_take_no_large_trees),
    };

    return cmocka_run_group_tests_name("checkpoint/damage", tests, NULL, NULL);
}
