/* runtime/graph/record.c, program.c: what cannot be replayed is named, and has run eagerly. */
#include "values.h"

#include "backend.h"

/* -- breaks ------------------------------------------------------------------------------------ */

/* A function of x = (1, 2) and a leaf w = (3, 4); `y` is x w. */
typedef struct breaking {
    const char *why;
    ms_tensor *(*run)(ms_tensor *x, ms_tensor *w, ms_tensor *y);
    double result[2];
} breaking;

static ms_tensor *earlier; /* 2 w, computed before the program; or a view of x */

static ms_tensor *sum_of(ms_tensor *t)
{
    ms_tensor *sum;

    assert_ok(ms_op_sum(&sum, t, 0, false));
    return sum;
}

static ms_tensor *times(ms_tensor *a, ms_tensor *b)
{
    ms_tensor *product;

    assert_ok(ms_op_mul(&product, a, b));
    return product;
}

static ms_tensor *reads_item(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    double sum;
    ms_tensor *shifted;

    (void)x;
    (void)w;
    assert_ok(ms_tensor_item(sum_of(y), &sum));
    assert_ok(ms_op_affine(&shifted, y, 1, sum));
    return shifted;
}

static ms_tensor *makes_values(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    (void)x;
    (void)w;
    return times(y, VECTOR(MS_DTYPE_F64, 10, 100));
}

static ms_status no_gradient(void *user, ms_tensor *const *grads_out, int32_t n_out,
                             ms_tensor **grads_in, int32_t n_in)
{
    (void)user;
    (void)grads_out;
    (void)n_out;
    (void)grads_in;
    (void)n_in;
    return MS_OK;
}

static ms_tensor *runs_custom(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    ms_tensor *out;

    assert_ok(ms_custom(&out, &x, 1, &w, 1, no_gradient, NULL, NULL));
    return times(out, y);
}

static ms_status recompute(void *user, ms_tensor *const *grads, int32_t n)
{
    (void)user;
    (void)grads;
    (void)n;
    return MS_OK;
}

static ms_tensor *checkpoints(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    const uint64_t since = ms_graph_now();
    ms_tensor *out, *z = times(y, w);

    (void)x;
    assert_ok(ms_checkpoint_graph(&out, &z, 1, since, recompute, NULL, NULL));
    return out;
}

static ms_status keep(void *user, ms_tensor *grad, ms_tensor **replacement)
{
    (void)user;
    (void)grad;
    (void)replacement;
    return MS_OK;
}

static ms_tensor *hooks(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    (void)x;
    (void)w;
    assert_ok(ms_tensor_hook(y, keep, NULL, NULL, NULL));
    return y;
}

static ms_tensor *uses_earlier(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    (void)x;
    (void)w;
    return times(y, earlier);
}

static ms_tensor *differentiates(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    ms_tensor *grad;

    (void)x;
    assert_ok(ms_backward(sum_of(y), NULL));
    assert_ok(ms_tensor_grad(&grad, w));
    return grad;
}

static ms_tensor *draws(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    const int64_t two = 2;
    ms_tensor *t;

    (void)x;
    (void)w;
    assert_ok(ms_tensor_empty(&t, MS_DTYPE_F64, 1, &two));
    assert_ok(ms_tensor_init(t, MS_INIT_CONSTANT, 7, 0, 0));
    return times(y, t);
}

static ms_tensor *constant(void)
{
    ms_tensor *t;

    assert_ok(ms_tensor_arange(&t, MS_DTYPE_F64, 5, 1, 2));
    return t;
}

static ms_tensor *first_of(ms_tensor *t)
{
    ms_tensor *first;

    assert_ok(ms_op_narrow(&first, t, 0, 0, 1));
    return first;
}

static ms_tensor *writes_constant(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    ms_tensor *t = constant();

    (void)x;
    (void)w;
    assert_ok(ms_tensor_fill(t, 7));
    return times(y, t);
}

static ms_tensor *writes_view_of_constant(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    ms_tensor *t = constant();

    (void)x;
    (void)w;
    assert_ok(ms_tensor_add_scaled(first_of(t), first_of(x), 1));
    return times(y, t);
}

static ms_tensor *returns_constant(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    ms_tensor *view;

    (void)x;
    (void)w;
    (void)y;
    assert_ok(ms_op_narrow(&view, constant(), 0, 0, 2));
    return view;
}

static ms_tensor *writes_shared(ms_tensor *x, ms_tensor *w, ms_tensor *y)
{
    (void)w;
    assert_ok(ms_tensor_fill(earlier, 9));
    return times(x, y);
}

static const breaking breaks[] = {
    {"the host reads values of a tensor", reads_item, {14, 19}},
    {"a tensor is made from values of the host", makes_values, {30, 800}},
    {"a custom function runs", runs_custom, {3, 16}},
    {"a checkpoint is made", checkpoints, {9, 32}},
    {"a hook is added to a result", hooks, {3, 8}},
    {"it uses a tensor of shape (2) that was computed before it, and is no argument",
     uses_earlier,
     {18, 64}},
    {"a backward runs", differentiates, {1, 2}},
    {"random values are drawn", draws, {21, 56}},
    {"'fill_' writes to a constant", writes_constant, {21, 56}},
    {"'add_' writes to a constant", writes_view_of_constant, {18, 48}},
    {"a constant is a result", returns_constant, {5, 6}},
    {"'fill_' writes to memory that 2 tensors from outside share", writes_shared, {27, 16}},
};

static void test_graph_record__what_breaks_a_program_is_named_and_has_run(void **state)
{
    for (size_t i = 0; i < sizeof(breaks) / sizeof(breaks[0]); i++) {
        ms_tensor *x = VECTOR(MS_DTYPE_F64, 1, 2), *w = LEAF(MS_DTYPE_F64, 3, 4), *out;
        ms_program *p;
        int32_t value;

        if (breaks[i].run == writes_shared) {
            earlier = first_of(x);
        } else {
            assert_ok(ms_op_affine(&earlier, w, 2, 0));
        }
        assert_ok(ms_program_begin(&p, MS_PROGRAM_REPLAY));
        assert_ok(ms_program_argument(p, x));
        out = breaks[i].run(x, w, times(x, w));
        assert_ok(ms_program_value(p, out, true, &value));
        assert_ok(ms_program_end(p));
        assert_non_null(ms_program_broken(p));
        assert_string_equal(ms_program_broken(p), breaks[i].why);
        ms_program_free(p);
        expect_values(out, 2, breaks[i].result);
    }
}

static void test_graph_record__a_thread_records_one_program(void **state)
{
    ms_program *p, *other;

    assert_ok(ms_program_begin(&p, MS_PROGRAM_REPLAY));
    assert_fails(MS_RUNTIME_ERROR, "watched already", ms_program_begin(&other, MS_PROGRAM_REPLAY));
    assert_null(other);
    ms_program_free(p);
    assert_ok(ms_program_begin(&p, MS_PROGRAM_REPLAY));
    ms_program_free(p);
}

/* -- misfits ----------------------------------------------------------------------------------- */

enum { X, Y, LEAF_ARGUMENT, PARAMETER, ARGUMENTS };

/* Sets one or two of the arguments of a recorded program, which writes to the second. */
typedef struct misfit {
    const char *text;
    void (*change)(ms_tensor **arg);
} misfit;

static void other_dtype(ms_tensor **arg)
{
    arg[X] = FILLED(MS_DTYPE_F64, 1, 2, 3);
}

static void other_shape(ms_tensor **arg)
{
    arg[X] = FILLED(MS_DTYPE_F32, 1, 3, 2);
}

static void other_strides(ms_tensor **arg)
{
    assert_ok(ms_op_permute(&arg[X], FILLED(MS_DTYPE_F32, 1, 3, 2), 2, (int32_t[]){1, 0}));
}

static void leaf_for_none(ms_tensor **arg)
{
    require(arg[X]);
}

static void no_leaf(ms_tensor **arg)
{
    arg[LEAF_ARGUMENT] = FILLED(MS_DTYPE_F32, 1, 3);
}

static void one_twice(ms_tensor **arg)
{
    arg[Y] = arg[X];
}

static void overlapping(ms_tensor **arg)
{
    ms_tensor *both = FILLED(MS_DTYPE_F32, 1, 3, 3);

    assert_ok(ms_op_narrow(&arg[X], both, 0, 0, 2));
    assert_ok(ms_op_narrow(&arg[Y], both, 0, 1, 2));
}

static ms_tensor *parameter(void)
{
    ms_tensor *t = require(FILLED(MS_DTYPE_F32, 3, 3));

    assert_ok(ms_tensor_make_parameter(t));
    return t;
}

static ms_tensor *another; /* parameter */

static void other_parameter(ms_tensor **arg)
{
    arg[PARAMETER] = another;
}

static void grad_mode_off(ms_tensor **arg)
{
    (void)arg;
    ms_grad_enabled_set(false);
}

static const misfit misfits[] = {
    {"argument 1 is f64, recorded as f32", other_dtype},
    {"argument 1 has shape (3, 2), recorded with (2, 3)", other_shape},
    {"argument 1 has strides (1, 2), recorded with (3, 1)", other_strides},
    {"argument 1 requires grad", leaf_for_none},
    {"argument 3 no longer requires grad", no_leaf},
    {"argument 2 is argument 1, unlike when it was recorded", one_twice},
    {"argument 2 shares memory with argument 1, and one of them is written", overlapping},
    {"argument 4 is another tensor than the parameter recorded", other_parameter},
    {"argument 1 is used with grad mode off, recorded with on", grad_mode_off},
};

static ms_program *record(ms_tensor **arg, int32_t n, bool writes)
{
    ms_program *p;
    ms_tensor *out = arg[0];
    int32_t value;

    assert_ok(ms_program_begin(&p, MS_PROGRAM_REPLAY));
    for (int32_t i = 0; i < n; i++) {
        assert_ok(ms_program_argument(p, arg[i]));
    }
    assert_ok(writes ? ms_tensor_add_scaled(arg[Y], arg[X], 1) : MS_OK);
    for (int32_t i = 1; i < n; i++) {
        out = times(out, arg[i]);
    }
    assert_ok(ms_program_value(p, out, true, &value));
    assert_ok(ms_program_end(p));
    if (ms_program_broken(p) != NULL) {
        fail_msg("%s", ms_program_broken(p));
    }
    return p;
}

/* NULL: it fits. */
static const char *misfit_of(ms_program *p, ms_tensor **arg, int32_t n)
{
    bool fits = true;

    for (int32_t i = 0; i < n && fits; i++) {
        assert_ok(ms_program_set(p, i, arg[i], &fits));
    }
    ms_program_done(p);
    return fits ? NULL : ms_program_misfit(p);
}

static void test_graph_record__what_does_not_fit_is_named(void **state)
{
    ms_tensor *recorded[ARGUMENTS] = {FILLED(MS_DTYPE_F32, 1, 2, 3), FILLED(MS_DTYPE_F32, 2, 2, 3),
                                      require(FILLED(MS_DTYPE_F32, 3, 3)), parameter()};
    ms_program *p = record(recorded, ARGUMENTS, true);

    another = parameter();
    assert_null(misfit_of(p, recorded, ARGUMENTS));
    for (size_t i = 0; i < sizeof(misfits) / sizeof(misfits[0]); i++) {
        ms_tensor *arg[ARGUMENTS] = {FILLED(MS_DTYPE_F32, 4, 2, 3), FILLED(MS_DTYPE_F32, 5, 2, 3),
                                     require(FILLED(MS_DTYPE_F32, 6, 3)), recorded[PARAMETER]};

        assert_null(misfit_of(p, arg, ARGUMENTS));
        misfits[i].change(arg);
        const char *text = misfit_of(p, arg, ARGUMENTS);

        ms_grad_enabled_set(true);
        assert_non_null(text);
        assert_string_equal(text, misfits[i].text);
    }
    ms_program_free(p);
    ms_tensor_free(another); /* no scope owns parameters */
    ms_tensor_free(recorded[PARAMETER]);
}

static void test_graph_record__equal_arguments_stay_equal(void **state)
{
    ms_tensor *x = FILLED(MS_DTYPE_F32, 1, 2), *y = FILLED(MS_DTYPE_F32, 2, 2), *view, *alias;

    assert_ok(ms_op_narrow(&view, x, 0, 0, 1));
    assert_ok(ms_tensor_alias(&alias, x));
    ms_program *three = record((ms_tensor *[]){x, alias, x}, 3, false);
    ms_program *two = record((ms_tensor *[]){x, view}, 2, false); /* one memory, two shapes */

    assert_null(misfit_of(three, (ms_tensor *[]){y, y, y}, 3));
    assert_null(misfit_of(three, (ms_tensor *[]){x, x, alias}, 3));
    assert_string_equal(misfit_of(three, (ms_tensor *[]){x, x, y}, 3),
                        "argument 3 is not argument 1, unlike when it was recorded");
    assert_null(misfit_of(two, (ms_tensor *[]){x, view}, 2));
    ms_program_free(three);
    ms_program_free(two);
}

/* An outer tensor is found by its handle in every run, and must stay as it was. */
static void test_graph_record__an_outer_tensor_that_changed_is_an_error(void **state)
{
    ms_tensor *x = FILLED(MS_DTYPE_F32, 1, 3), *w = FILLED(MS_DTYPE_F32, 2, 3);
    ms_program *p;
    bool fits;

    assert_ok(ms_program_begin(&p, MS_PROGRAM_REPLAY));
    assert_ok(ms_program_argument(p, x));
    (void)times(x, w);
    assert_ok(ms_program_end(p));
    require(w);
    assert_ok(ms_program_set(p, 0, x, &fits));
    assert_fails(MS_RUNTIME_ERROR, "is f32 of shape (3), requires grad, expected f32 of shape (3)",
                 ms_program_run(p, 0));
    assert_ok(ms_tensor_set_requires_grad(w, false));
    assert_ok(ms_program_run(p, 0));
    ms_program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_graph_record__what_breaks_a_program_is_named_and_has_run),
        BOOKED_TEST(test_graph_record__a_thread_records_one_program),
        BOOKED_TEST(test_graph_record__what_does_not_fit_is_named),
        BOOKED_TEST(test_graph_record__equal_arguments_stay_equal),
        BOOKED_TEST(test_graph_record__an_outer_tensor_that_changed_is_an_error),
    };

    return cmocka_run_group_tests_name("graph/record", tests, NULL, NULL);
}
