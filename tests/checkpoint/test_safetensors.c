/* runtime/checkpoint/safetensors_read.c and safetensors_write.c: files by hand are read, files we
 * write are as the format says, hostile ones are refused. */
#include "ckpt_test.h"

#include <errno.h>
#include <sys/resource.h>

/* A file from a header text and data; the length prefix is right unless `length` says otherwise. */
static const char *make_file(const char *name, const char *header, size_t n_header,
                             const void *data, size_t n_data)
{
    const char *path = path_of(name);
    char *bytes = malloc(8 + n_header + n_data);
    uint64_t length = n_header;

    for (int i = 0; i < 8; i++) {
        bytes[i] = (char)(length >> (8 * i));
    }
    memcpy(bytes + 8, header, n_header);
    if (n_data > 0) {
        memcpy(bytes + 8 + n_header, data, n_data);
    }
    spill(path, bytes, 8 + n_header + n_data);
    free(bytes);
    return path;
}

static void test_checkpoint_safetensors__reads_a_file_made_by_hand(void **state)
{
    /* 2.0f, -0.5f little-endian; bf16 1.0; three bools, one of them 255 */
    static const uint8_t data[] = {0, 0, 0, 0x40, 0, 0, 0, 0xbf, 0x80, 0x3f, 1, 0, 255};
    static const char header[] =
        "  {\"__metadata__\":{\"format\":\"pt\",\"who\":\"hand\"},"
        "\"flags\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[10,13]},"
        "\"w\":{\"shape\":[1,2],\"data_offsets\":[0,8],\"dtype\":\"F32\"},"
        "\"nothing\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[8,8]},"
        "\"s\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[8,10]}}   ";
    const char *path = make_file("hand", header, sizeof(header) - 1, data, sizeof(data));
    ms_safetensors *f;
    ms_param_extent extent;
    ms_tensor_info info;
    ms_tensor *t;

    assert_ok(ms_safetensors_open(&f, path));
    assert_int_equal(4, ms_safetensors_n(f));
    assert_string_equal("w", ms_safetensors_name(f, 0)); /* in the order of their data */
    assert_string_equal("nothing", ms_safetensors_name(f, 1));
    assert_string_equal("s", ms_safetensors_name(f, 2));
    assert_string_equal("flags", ms_safetensors_name(f, 3));
    assert_string_equal("", ms_safetensors_name(f, 4));

    assert_ok(ms_safetensors_get(&t, f, 0));
    assert_ok(ms_tensor_describe(t, &info));
    assert_int_equal(MS_DTYPE_F32, info.dtype);
    assert_int_equal(2, info.ndim);
    assert_int_equal(1, info.shape[0]);
    assert_int_equal(2, info.shape[1]);
    assert_true(((const float *)info.data)[0] == 2.0f && ((const float *)info.data)[1] == -0.5f);
    ms_tensor_free(t);
    assert_ok(ms_safetensors_get(&t, f, 1));
    assert_int_equal(0, msi_view_numel(&t->v));
    ms_tensor_free(t);
    assert_ok(ms_safetensors_get(&t, f, 2));
    assert_int_equal(0, t->v.ndim);
    assert_bytes("\x80\x3f", t, 2);
    ms_tensor_free(t);
    assert_ok(ms_safetensors_get(&t, f, 3));
    assert_bytes("\1\0\1", t, 3); /* no third truth value */
    ms_tensor_free(t);
    assert_fails(MS_INDEX_ERROR, "tensor 4", ms_safetensors_get(&t, f, 4));

    assert_ok(ms_safetensors_extent(f, 0, &extent));
    assert_int_equal(MS_DTYPE_F32, extent.dtype);
    assert_int_equal(2, extent.numel);
    assert_int_equal(2, extent.ndim);
    assert_int_equal(2, extent.shape[1]);
    assert_ok(ms_safetensors_slice(&t, f, 0, 1, 1));
    assert_int_equal(1, t->v.ndim);
    assert_bytes("\0\0\0\xbf", t, 4);
    ms_tensor_free(t);
    assert_ok(ms_safetensors_slice(&t, f, 3, 1, 2));
    assert_bytes("\0\1", t, 2);
    ms_tensor_free(t);
    assert_ok(ms_safetensors_slice(&t, f, 1, 0, 0));
    assert_int_equal(0, msi_view_numel(&t->v));
    ms_tensor_free(t);
    assert_fails(MS_INDEX_ERROR, "2 elements from 1 of tensor 'w', which has 2",
                 ms_safetensors_slice(&t, f, 0, 1, 2));
    assert_fails(MS_INDEX_ERROR, "tensor -1", ms_safetensors_extent(f, -1, &extent));
    ms_safetensors_close(f);
}

/* Widest dtype first, then by name; `{` at once, a multiple of 8, format=pt. Worked out by hand. */
static void test_checkpoint_safetensors__writes_what_other_programs_read(void **state)
{
    static const char expected[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"z\":{\"dtype\":\"F64\",\"shape\":[1,2],\"data_offsets\":[0,16]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[16,28]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[28,32]},"
        "\"c\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[32,37]}}";
    const char *const names[] = {"c", "b", "a", "z"};
    const char *path = path_of("written");
    const int64_t one_two[] = {1, 2};
    ms_tensor *t[4] = {bits_tensor(MS_DTYPE_U8, 1, 0, 5), NULL, bits_tensor(MS_DTYPE_F32, 2, 0, 3),
                       NULL};
    uint64_t length;
    size_t n;

    assert_ok(ms_tensor_empty(&t[1], MS_DTYPE_F32, 0, NULL));
    write_bytes(t[1], &(float){7});
    assert_ok(ms_tensor_empty(&t[3], MS_DTYPE_F64, 2, one_two));
    write_bytes(t[3], (const double[]){1, 2});
    assert_ok(ms_safetensors_save(path, t, 4, names));

    char *bytes = slurp(path, &n);

    memcpy(&length, bytes, 8);
    assert_int_equal((sizeof(expected) - 1 + 7) / 8 * 8, length);
    assert_memory_equal(expected, bytes + 8, sizeof(expected) - 1);
    for (size_t i = 8 + sizeof(expected) - 1; i < 8 + length; i++) {
        assert_int_equal(' ', bytes[i]);
    }
    assert_int_equal(8 + length + 37, n);
    assert_bytes(bytes + 8 + length, t[3], 16);
    assert_bytes(bytes + 8 + length + 16, t[2], 12);
    assert_bytes(bytes + 8 + length + 28, t[1], 4);
    assert_bytes(bytes + 8 + length + 32, t[0], 5);
    free(bytes);
    for (int i = 0; i < 4; i++) {
        ms_tensor_free(t[i]);
    }
}

static void test_checkpoint_safetensors__writes_nothing_and_refuses_bad_names(void **state)
{
    const char *path = path_of("names");
    ms_tensor *t[2] = {bits_tensor(MS_DTYPE_F32, 1, 0, 3), bits_tensor(MS_DTYPE_F32, 2, 0, 3)};
    const char *const twice[] = {"x", "x"}, *const reserved[] = {"x", "__metadata__"};
    const char *const bad[] = {"x", "\xc3\x28"};
    ms_safetensors *f;

    assert_fails(MS_VALUE_ERROR, "'x' is given twice", ms_safetensors_save(path, t, 2, twice));
    assert_fails(MS_VALUE_ERROR, "reserved", ms_safetensors_save(path, t, 2, reserved));
    assert_fails(MS_VALUE_ERROR, "no UTF-8", ms_safetensors_save(path, t, 2, bad));
    assert_int_equal(0, count_entries(temp_path(""), "names"));
    assert_ok(ms_safetensors_save(path, NULL, 0, NULL)); /* a file without tensors is one */
    assert_ok(ms_safetensors_open(&f, path));
    assert_int_equal(0, ms_safetensors_n(f));
    ms_safetensors_close(f);
    ms_tensor_free(t[0]);
    ms_tensor_free(t[1]);
}

/* What others have put at the place of a file is not a file to be replaced. */
static void test_checkpoint_safetensors__replaces_regular_files_only(void **state)
{
    const char *pipe = path_of("pipe"), *link = path_of("link"), *file = path_of("linked");
    const char *folder = path_of("folder"), *astray = path_of("astray");
    ms_safetensors *f;
    struct stat st;

    assert_int_equal(0, mkfifo(pipe, 0666));
    assert_int_equal(0, mkdir(folder, 0777));
    assert_int_equal(0, symlink("nowhere", astray));
    assert_int_equal(0, symlink("linked", link));
    assert_fails(MS_VALUE_ERROR, "pipe is a pipe or a device, expected a regular file or nothing",
                 ms_safetensors_save(pipe, NULL, 0, NULL));
    assert_fails(MS_VALUE_ERROR, "folder is a folder, expected",
                 ms_safetensors_save(folder, NULL, 0, NULL));
    assert_fails(MS_VALUE_ERROR, "/dev/null is a pipe or a device, expected",
                 ms_safetensors_save("/dev/null", NULL, 0, NULL));
    assert_fails(MS_VALUE_ERROR, "astray is a symbolic link to nothing",
                 ms_safetensors_save(astray, NULL, 0, NULL));
    assert_fails(MS_VALUE_ERROR, "'' is empty, expected the path of a file",
                 ms_safetensors_save("", NULL, 0, NULL));
    assert_fails(MS_VALUE_ERROR, "new/' ends with '/' and so names a folder, expected the path",
                 ms_safetensors_save(path_of("new/"), NULL, 0, NULL));
    assert_int_equal(0, lstat(pipe, &st));
    assert_true(S_ISFIFO(st.st_mode));
    spill(file, "before", 6);
    assert_ok(ms_safetensors_save(link, NULL, 0, NULL)); /* what it leads to is replaced */
    assert_int_equal(0, lstat(link, &st));
    assert_true(S_ISLNK(st.st_mode));
    assert_ok(ms_safetensors_open(&f, link));
    ms_safetensors_close(f);
    assert_int_equal(0, count_entries(temp_path(""), ".tmp-"));
}

/* Only rank 0 writes; all of them hear how it went. */
static ms_status export_twice(void *user, int32_t rank)
{
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, (uint64_t)rank, 0, 3);
    const char *name = "x";
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    assert_fails(MS_IO_ERROR, "rank 0: write /dev/null/x: Not a directory",
                 ms_safetensors_export(world, "/dev/null/x", &t, rank == 0, &name));
    assert_fails(MS_VALUE_ERROR, "rank 1 exports to 'b', rank 0 'a'",
                 ms_safetensors_export(world, rank == 0 ? "a" : "b", &t, rank == 0, &name));
    MS_TRY(ms_safetensors_export(world, user, &t, rank == 0, &name));
    ms_tensor_free(t);
    return MS_OK;
}

static void test_checkpoint_safetensors__an_export_has_one_outcome(void **state)
{
    const char *path = path_of("exported");
    ms_tensor *expected = bits_tensor(MS_DTYPE_F32, 0, 0, 3), *seen;
    ms_safetensors *f;

    assert_ok(ms_dist_threads(2, export_twice, (void *)(uintptr_t)path));
    assert_ok(ms_safetensors_open(&f, path));
    assert_ok(ms_safetensors_get(&seen, f, 0));
    assert_true(same_bytes(expected, seen));
    ms_safetensors_close(f);
    ms_tensor_free(seen);
    ms_tensor_free(expected);
}

#define ENTRY(dtype, shape, offsets)                                                               \
    "\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define HEADER(entries) "{" entries "}"

/* Headers over 8 bytes of data. */
static const struct {
    const char *header;
    const char *message;
} hostile[] = {
    {"", "header, byte 0"},
    {"{", "header, byte"},
    {"{}", "has 8 bytes of data, expected 0"},
    {"[]", "the header is no object"},
    {HEADER(ENTRY("F32", "[2]", "[0,8]")) "{}", "header, byte"},
    {"{\"t\":3}", "expected exactly dtype, shape and two data_offsets"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2]}}", "expected exactly"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"more\":1}}",
     "expected exactly"},
    {HEADER(ENTRY("F32", "[2]", "[0,8]") "," ENTRY("F32", "[2]", "[0,8]")), "duplicate"},
    {HEADER(ENTRY("F32", "[2]", "[0,8,9]")), "expected exactly"},
    {HEADER(ENTRY("F32", "[2]", "[0.0,8.0]")), "expected exactly"},
    {HEADER(ENTRY("F32", "2", "[0,8]")), "expected exactly"},
    {HEADER(ENTRY("F99", "[2]", "[0,8]")), "unknown dtype 'F99'"},
    {HEADER(ENTRY("F32", "[3]", "[0,8]")), "bytes [0, 8), expected 12"},
    {HEADER(ENTRY("F32", "[-2]", "[0,8]")), "no integer of at least 0"},
    {HEADER(ENTRY("F32", "[2.0]", "[0,8]")), "no integer of at least 0"},
    {HEADER(ENTRY("F32", "[\"2\"]", "[0,8]")), "no integer of at least 0"},
    {HEADER(ENTRY("F32", "[2]", "[8,0]")), "bytes [8, 0)"},
    {HEADER(ENTRY("F32", "[2]", "[-8,0]")), "bytes [-8, 0)"},
    {HEADER(ENTRY("F32", "[4]", "[0,16]")), "has 8 bytes of data, expected 16"},
    {HEADER(ENTRY("F32", "[1]", "[0,4]")), "has 8 bytes of data, expected 4"},
    {HEADER(ENTRY("F32", "[1]", "[4,8]")), "begins at byte 4 of the data, expected 0"},
    {HEADER(ENTRY("F32", "[2]", "[0,8]") ",\"u\":{\"dtype\":\"F32\",\"shape\":[1],"
                                         "\"data_offsets\":[4,8]}"),
     "begins at byte 4 of the data, expected 8"},
    {HEADER(ENTRY("F32", "[4294967296,4294967296]", "[0,8]")), "than 64 bits count"},
    {HEADER(ENTRY("F32", "[9223372036854775807]", "[0,8]")), "than 64 bits count"},
    {HEADER(ENTRY("F32", "[2]", "[0,9223372036854775807]")), "expected 8 by its shape"},
    {HEADER(ENTRY("F32", "[18446744073709551616]", "[0,8]")), "header, byte"},
    {HEADER(ENTRY("F4", "[3]", "[0,8]")), "fill no whole bytes"},
    {"{\"__metadata__\":3}", "'__metadata__': expected an object"},
    {"{\"__metadata__\":{\"a\":3}}", "expected strings only"},
    {"{\"\xff\":{}}", "header, byte"},
};

static void test_checkpoint_safetensors__hostile_headers_are_refused(void **state)
{
    static const char data[8] = {0};
    ms_safetensors *f;

    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        const char *path =
            make_file("hostile", hostile[i].header, strlen(hostile[i].header), data, sizeof(data));

        assert_fails(MS_FORMAT_ERROR, hostile[i].message, ms_safetensors_open(&f, path));
        assert_non_null(strstr(ms_error_message(), path));
        assert_null(f);
    }
}

static void test_checkpoint_safetensors__lengths_that_lie_are_refused(void **state)
{
    static const uint64_t lengths[] = {
        3, 100000001, UINT64_MAX, (uint64_t)INT64_MAX, UINT64_MAX - 7, 1u << 30};
    const char *path = path_of("length");
    static char deep[200000];
    ms_safetensors *f;
    char bytes[10] = {0};

    bytes[8] = '{';
    bytes[9] = '}';
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        memcpy(bytes, &lengths[i], 8);
        spill(path, bytes, sizeof(bytes));
        assert_fails(MS_FORMAT_ERROR, "a header of", ms_safetensors_open(&f, path));
    }
    for (size_t n = 0; n < 8; n++) {
        spill(path, bytes, n);
        assert_fails(MS_FORMAT_ERROR, "expected at least 8", ms_safetensors_open(&f, path));
    }
    for (size_t i = 0; i < sizeof(deep); i++) {
        deep[i] = "{\"a\":"[i % 5];
    }
    path = make_file("deep", deep, sizeof(deep), NULL, 0);
    assert_fails(MS_FORMAT_ERROR, "depth", ms_safetensors_open(&f, path));
    assert_fails(MS_IO_ERROR, "No such file", ms_safetensors_open(&f, path_of("missing")));
    assert_fails(MS_FORMAT_ERROR, "no regular file", ms_safetensors_open(&f, temp_path("")));
}

/* Types we cannot hold do not make the other tensors unreadable. */
static void test_checkpoint_safetensors__names_what_it_cannot_hold(void **state)
{
    static const char header[] =
        "{\"short\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[0,4]},"
        "\"nine\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[4,8]},"
        "\"six\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[8,11]},"
        "\"fine\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[11,12]}}";
    static const char data[12] = {[11] = 42};
    ms_safetensors *f;
    ms_tensor *t;

    assert_ok(ms_safetensors_open(&f, make_file("other", header, sizeof(header) - 1, data, 12)));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "'short' is I16", ms_safetensors_get(&t, f, 0));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "with 9 dimensions", ms_safetensors_get(&t, f, 1));
    assert_fails(MS_NOT_IMPLEMENTED_ERROR, "F6_E2M3", ms_safetensors_get(&t, f, 2));
    assert_null(t);
    assert_ok(ms_safetensors_get(&t, f, 3));
    assert_bytes("\x2a", t, 1);
    ms_tensor_free(t);
    ms_safetensors_close(f);
}

/* Read everything a file claims to have; only errors or tensors may come of it. */
static bool read_all(const char *path)
{
    ms_safetensors *f;
    ms_tensor *t;

    if (ms_safetensors_open(&f, path) != MS_OK) {
        return false;
    }
    for (int32_t i = 0; i < ms_safetensors_n(f); i++) {
        if (ms_safetensors_get(&t, f, i) == MS_OK) {
            ms_tensor_free(t);
        }
    }
    ms_safetensors_close(f);
    return true;
}

static void test_checkpoint_safetensors__any_changed_bit_is_survived(void **state)
{
    const char *const names[] = {"a", "b"};
    const char *path = path_of("bits");
    ms_tensor *t[2] = {bits_tensor(MS_DTYPE_F32, 1, 0, 3), bits_tensor(MS_DTYPE_BOOL, 2, 0, 5)};
    size_t n, opened = 0;

    assert_ok(ms_safetensors_save(path, t, 2, names));
    char *bytes = slurp(path, &n);

    for (size_t i = 0; i < n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            bytes[i] ^= (char)(1 << bit);
            spill(path, bytes, n);
            opened += read_all(path);
            bytes[i] ^= (char)(1 << bit);
        }
    }
    assert_true(opened >= 17 * 8); /* every change of the data, and some of names */
    assert_true(opened < 8 * n / 2);
    for (size_t keep = 0; keep < n; keep++) {
        spill(path, bytes, keep);
        assert_false(read_all(path));
    }
    free(bytes);
    ms_tensor_free(t[0]);
    ms_tensor_free(t[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_safetensors__reads_a_file_made_by_hand),
        cmocka_unit_test(test_checkpoint_safetensors__writes_what_other_programs_read),
        cmocka_unit_test(test_checkpoint_safetensors__writes_nothing_and_refuses_bad_names),
        cmocka_unit_test(test_checkpoint_safetensors__replaces_regular_files_only),
        cmocka_unit_test(test_checkpoint_safetensors__an_export_has_one_outcome),
        cmocka_unit_test(test_checkpoint_safetensors__hostile_headers_are_refused),
        cmocka_unit_test(test_checkpoint_safetensors__lengths_that_lie_are_refused),
        cmocka_unit_test(test_checkpoint_safetensors__names_what_it_cannot_hold),
        cmocka_unit_test(test_checkpoint_safetensors__any_changed_bit_is_survived),
    };

    return cmocka_run_group_tests_name("checkpoint/safetensors", tests, NULL, NULL);
}
