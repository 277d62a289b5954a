/* runtime/layout/layout.c: where parameters lie in a flat buffer and who holds what.
 *
 * fixtures/golden.json holds 18 modules as PyTorch 2.15 lays them out: flat_layouts for the wrapper
 * form, row_shards for the in-place form. Every number of both is compared. */
#include "ms_test.h"

#include "extent.h"

#include <jansson.h>

static json_t *golden;

static int load_golden(void **state)
{
    const char *folder = getenv("MS_TEST_DATA");
    char path[512];
    json_error_t error;

    snprintf(path, sizeof(path), "%s/golden.json", folder ? folder : "tests/fixtures");
    golden = json_load_file(path, 0, &error);
    if (golden == NULL) {
        print_error("%s:%d: %s\n", path, error.line, error.text);
    }
    return golden == NULL;
}

static int drop_golden(void **state)
{
    json_decref(golden);
    return 0;
}

static int64_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static int64_t item(const json_t *array, size_t i)
{
    const json_t *value = json_array_get(array, i);

    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* Elements of entry [name, shape] of `params`. */
static int64_t numel_of(const json_t *param)
{
    const json_t *shape = json_array_get(param, 1);
    int64_t numel = 1;

    for (size_t d = 0; d < json_array_size(shape); d++) {
        numel *= item(shape, d);
    }
    return numel;
}

static void check_entries(const ms_layout *l, const json_t *sizes)
{
    int64_t offset = 0;
    int32_t param = 0;

    assert_int_equal(json_array_size(sizes), ms_layout_n_entries(l));
    for (size_t i = 0; i < json_array_size(sizes); i++) {
        int64_t size = item(sizes, i);
        ms_layout_entry e;

        assert_ok(ms_layout_entry_get(l, (int32_t)i, &e));
        assert_int_equal(offset, e.offset);
        assert_int_equal(size < 0 ? -size : size, e.numel);
        assert_int_equal(size < 0 ? -1 : param, e.param);
        if (size >= 0) {
            assert_int_equal(offset, ms_layout_offset(l, param));
            param++;
        }
        offset += e.numel;
    }
}

/* `pieces` lists the parameters rank holds; all others must be absent. */
static void check_rank(const ms_layout *l, int32_t rank, int32_t n_params, const json_t *pieces)
{
    size_t next = 0;

    for (int32_t p = 0; p < n_params; p++) {
        const json_t *expected = json_array_get(pieces, next);
        ms_layout_piece piece;

        assert_ok(ms_layout_piece_get(l, rank, p, &piece));
        if (expected != NULL && item(expected, 0) == p) {
            assert_true(piece.present);
            assert_int_equal(item(expected, 1), piece.offset_in_shard);
            assert_int_equal(item(expected, 2), piece.start);
            assert_int_equal(item(expected, 3), piece.start + piece.numel - 1);
            next++;
        } else {
            assert_false(piece.present);
            assert_int_equal(0, piece.numel);
        }
    }
    assert_int_equal(json_array_size(pieces), next);
}

static void test_layout_layout__equals_every_golden_flat_layout(void **state)
{
    json_t *module, *layout;
    size_t m, k;
    int n_checked = 0;

    json_array_foreach(json_object_get(golden, "flat_layouts"), m, module)
    {
        const json_t *params = json_object_get(module, "params");
        const json_t *ties = json_object_get(module, "ties");
        int64_t numels[64];
        int32_t n = 0;

        for (size_t p = 0; p < json_array_size(params); p++) {
            const char *name = json_string_value(json_array_get(json_array_get(params, p), 0));

            for (size_t t = 0; t < json_array_size(ties); t++) { /* a tie takes no storage */
                assert_string_not_equal(
                    name, json_string_value(json_array_get(json_array_get(ties, t), 0)));
            }
            numels[n++] = numel_of(json_array_get(params, p));
        }
        json_array_foreach(json_object_get(module, "layouts"), k, layout)
        {
            int32_t world = (int32_t)number(layout, "W");
            ms_layout *l;

            assert_ok(ms_layout_flat(&l, numels, n, number(layout, "align"), world));
            assert_int_equal(number(layout, "total"), ms_layout_total(l));
            assert_int_equal(number(layout, "shard"), ms_layout_shard_numel(l));
            check_entries(l, json_object_get(layout, "sizes"));
            for (int32_t r = 0; r < world; r++) {
                check_rank(l, r, n, json_array_get(json_object_get(layout, "shards"), (size_t)r));
            }
            ms_layout_free(l);
            n_checked++;
        }
    }
    assert_int_equal(240,
                     n_checked); /* as many as the file has; 0 would mean nothing was compared */
}

static int64_t rows_of(const json_t *param)
{
    const json_t *shape = json_array_get(param, 1);

    return json_array_size(shape) > 0 ? item(shape, 0) : 1;
}

/* Rank `r` has `count` rows of each parameter, from `next` on, and its extents have all of them. */
static void check_rows(const ms_layout *l, int32_t r, const json_t *params, const json_t *rows,
                       int64_t *next)
{
    msi_extent extents[64];
    int64_t numel = 0;
    int32_t n;

    for (int32_t p = 0; p < (int32_t)json_array_size(params); p++) {
        const json_t *param = json_array_get(params, (size_t)p);
        const int64_t count = item(json_array_get(rows, (size_t)p), (size_t)r);
        const int64_t row = rows_of(param) > 0 ? numel_of(param) / rows_of(param) : 0;
        ms_layout_piece piece;

        assert_ok(ms_layout_piece_get(l, r, p, &piece));
        assert_int_equal(count * row, piece.numel);
        assert_int_equal(next[p], piece.start);
        next[p] += piece.numel;
        numel += piece.numel;
    }
    assert_ok(msi_layout_extents(l, r, extents, &n));
    for (int32_t i = 0; i < n; i++) {
        numel -= extents[i].numel;
        assert_int_equal(ms_layout_offset(l, extents[i].param) + extents[i].start,
                         extents[i].in_full);
    }
    assert_int_equal(0, numel);
}

static void test_layout_layout__equals_every_golden_row_shard(void **state)
{
    json_t *module, *world;
    size_t m, k;
    int n_checked = 0;

    json_array_foreach(json_object_get(golden, "row_shards"), m, module)
    {
        const json_t *params = json_object_get(module, "params");
        const int32_t n = (int32_t)json_array_size(params);
        int64_t numels[64], row_numels[64];

        assert_in_range(n, 1, 64);
        for (int32_t p = 0; p < n; p++) {
            const json_t *param = json_array_get(params, (size_t)p);

            numels[p] = numel_of(param);
            row_numels[p] = rows_of(param) > 0 ? numels[p] / rows_of(param) : 0;
        }
        json_array_foreach(json_object_get(module, "worlds"), k, world)
        {
            const int32_t size = (int32_t)number(world, "W");
            int64_t next[64] = {0};
            ms_layout *l;

            assert_ok(ms_layout_by_rows(&l, numels, row_numels, n, 0, size));
            assert_int_equal(number(world, "gather_in"), ms_layout_shard_numel(l));
            assert_int_equal(number(world, "reduce_in"), msi_layout_gathered_numel(l));
            for (int32_t r = 0; r < size; r++) {
                check_rows(l, r, params, json_object_get(world, "rows"), next);
            }
            for (int32_t p = 0; p < n; p++) {
                assert_int_equal(numels[p], next[p]);
            }
            ms_layout_free(l);
            n_checked++;
        }
    }
    assert_int_equal(18 * 5, n_checked);
}

/* Worked by hand: 6, 0 and 2 elements over 4 ranks in shards of 2. The empty parameter lies between
 * elements 5 and 6, the end of rank 2 and the start of rank 3, so nobody holds both sides. */
static void test_layout_layout__an_empty_parameter_at_a_cut_is_nowhere(void **state)
{
    const int64_t numels[] = {6, 0, 2};
    ms_layout *l;

    assert_ok(ms_layout_flat(&l, numels, 3, 0, 4));
    assert_int_equal(2, ms_layout_shard_numel(l));
    for (int32_t r = 0; r < 4; r++) {
        ms_layout_piece piece;

        assert_ok(ms_layout_piece_get(l, r, 1, &piece));
        assert_false(piece.present);
    }
    ms_layout_free(l);
}

static void test_layout_layout__holds_every_element_exactly_once(void **state)
{
    const int64_t numels[] = {5, 1, 0, 17, 4, 33};
    const int64_t aligns[] = {0, 1, 2, 4, 8};
    ms_layout *l;

    for (size_t a = 0; a < 5; a++) {
        for (int32_t world = 1; world <= 70; world++) {
            int64_t next_in_full = 0;

            assert_ok(ms_layout_flat(&l, numels, 6, aligns[a], world));
            for (int32_t p = 0; p < 6; p++) {
                int64_t next = 0;

                for (int32_t r = 0; r < world; r++) {
                    ms_layout_piece piece;

                    assert_ok(ms_layout_piece_get(l, r, p, &piece));
                    if (piece.numel > 0) {
                        assert_int_equal(next, piece.start);
                        assert_int_equal(ms_layout_offset(l, p) + piece.start,
                                         r * ms_layout_shard_numel(l) + piece.offset_in_shard);
                        next += piece.numel;
                    }
                }
                assert_int_equal(numels[p], next);
            }
            for (int32_t r = 0; r < world; r++) {
                msi_extent whole;
                int32_t n;

                assert_ok(msi_layout_extents(l, r, &whole, &n));
                assert_int_equal(1, n);
                assert_int_equal(next_in_full, whole.in_full);
                next_in_full += whole.numel;
            }
            assert_int_equal(next_in_full, msi_layout_gathered_numel(l));
            assert_true(next_in_full >= ms_layout_total(l));
            ms_layout_free(l);
        }
    }
}

static void test_layout_layout__refuses_what_cannot_be_laid_out(void **state)
{
    const int64_t fine[] = {3, 4}, negative[] = {3, -4};
    const int64_t huge[] = {INT64_MAX / 2, INT64_MAX / 2, INT64_MAX / 2};
    ms_layout *l = (ms_layout *)state; /* any value but NULL */
    ms_layout_piece piece;
    ms_layout_entry entry;
    int64_t first, count, padded;

    assert_fails(MS_VALUE_ERROR, "at least one parameter, got 0",
                 ms_layout_flat(&l, fine, 0, 4, 2));
    assert_null(l);
    assert_fails(MS_VALUE_ERROR, "world size must be at least 1, got 0",
                 ms_layout_flat(&l, fine, 2, 4, 0));
    assert_fails(MS_VALUE_ERROR, "parameter 1 has -4", ms_layout_flat(&l, negative, 2, 4, 2));
    assert_fails(MS_VALUE_ERROR, "must not be negative, got -1",
                 ms_layout_flat(&l, fine, 2, -1, 2));
    assert_fails(MS_VALUE_ERROR, "2^60", ms_layout_flat(&l, huge, 3, 4, 2));
    assert_fails(MS_VALUE_ERROR, "rank 2 of a world of 2",
                 ms_layout_rows(8, 2, 2, &first, &count, &padded));
    assert_fails(MS_VALUE_ERROR, "-1 rows", ms_layout_rows(-1, 2, 0, &first, &count, &padded));

    assert_ok(ms_layout_flat(&l, fine, 2, 4, 2));
    assert_fails(MS_INDEX_ERROR, "rank 2 of a world of 2", ms_layout_piece_get(l, 2, 0, &piece));
    assert_fails(MS_INDEX_ERROR, "parameter 2", ms_layout_piece_get(l, 0, 2, &piece));
    assert_fails(MS_INDEX_ERROR, "entry 3 of a layout with 3", ms_layout_entry_get(l, 3, &entry));
    ms_layout_free(l);
    ms_layout_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_layout__equals_every_golden_flat_layout),
        cmocka_unit_test(test_layout_layout__equals_every_golden_row_shard),
        cmocka_unit_test(test_layout_layout__an_empty_parameter_at_a_cut_is_nowhere),
        cmocka_unit_test(test_layout_layout__holds_every_element_exactly_once),
        cmocka_unit_test(test_layout_layout__refuses_what_cannot_be_laid_out),
    };

    return cmocka_run_group_tests_name("layout/layout", tests, load_golden, drop_golden);
}
