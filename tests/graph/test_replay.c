/* runtime/graph: a replay has the bits of eager execution, its errors, and no memory besides. */
#include "values.h"

#include "backend.h"
#include "oom.h"

#include <pthread.h>

enum { MAX_IN = 5, MAX_OUT = 2 };

/* X: argument. G: argument that requires grad; R: that is a result. W: outer leaf that requires
 * grad. F: outer leaf that does not. I: argument, indices below 4. */
typedef struct input {
    char kind;
    int32_t ndim;
    int64_t shape[4];
} input;

#define IN(kind, ...)                                                                              \
    {                                                                                              \
        (kind), (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                     \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

typedef struct function {
    const char *name;
    /* `p`: while it is recorded, or NULL */
    ms_status (*run)(ms_program *p, ms_tensor **in, ms_tensor **out);
    int32_t n_in;
    input in[MAX_IN];
    int32_t n_out;
    uint32_t without; /* outputs that get no gradient, by bit */
} function;

static ms_tensor_info info_of(const ms_tensor *t)
{
    ms_tensor_info info;

    assert_ok(ms_tensor_describe(t, &info));
    return info;
}

static ms_status cut(ms_program *p)
{
    int32_t segment;

    return p != NULL ? ms_program_cut(p, &segment) : MS_OK;
}

/* -- functions: their tensors belong to the scope of the step ---------------------------------- */

static ms_status mlp(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *h, *logits;

    (void)p;
    MS_TRY(ms_op_linear_gelu(&h, in[0], in[2], in[3], false));
    MS_TRY(ms_op_linear(&logits, h, in[4], NULL));
    return ms_op_cross_entropy(out, logits, in[1], -100, MS_REDUCTION_MEAN);
}

static ms_status written_view(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *copy, *rows;

    (void)p;
    MS_TRY(ms_op_clone(&copy, in[0]));
    MS_TRY(ms_op_narrow(&rows, copy, 0, 1, 2));
    MS_TRY(ms_tensor_add_scaled(rows, in[1], 0.5));
    return ms_op_mul(out, copy, in[2]);
}

/* As running statistics are: the argument keeps what was added. */
static ms_status written_argument(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *row, *y;

    (void)p;
    MS_TRY(ms_op_select(&row, in[1], 0, 1));
    MS_TRY(ms_tensor_add_scaled(row, in[0], 0.5));
    MS_TRY(ms_op_affine(&out[1], row, 2, 0));
    MS_TRY(ms_op_mul(&y, row, in[2]));
    return ms_op_exp(out, y);
}

static ms_status leaf_twice(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *y;

    (void)p;
    MS_TRY(ms_op_mul(&y, in[0], in[1]));
    return ms_op_mul(out, y, in[1]);
}

static ms_status two_outputs(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *y;

    (void)p;
    MS_TRY(ms_op_mul(&y, in[0], in[1]));
    MS_TRY(ms_op_tanh(&out[1], y));
    return ms_op_exp(out, y);
}

static ms_status view_of_input(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    (void)p;
    MS_TRY(ms_op_narrow(&out[1], in[0], 0, 1, 2));
    return ms_op_mul(out, out[1], in[1]);
}

static ms_status view_of_output(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    (void)p;
    MS_TRY(ms_op_mul(out, in[0], in[1]));
    return ms_op_narrow(&out[1], out[0], 0, 1, 2);
}

static ms_status returned_input(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    (void)p;
    out[1] = in[0];
    return ms_op_mul(out, in[0], in[1]);
}

static ms_status segments(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *scaled, *h, *y, *bounded, *column;

    MS_TRY(ms_op_mul(&scaled, in[0], in[1]));
    MS_TRY(ms_op_exp(&h, scaled));
    MS_TRY(cut(p));
    MS_TRY(ms_op_linear(&y, h, in[2], NULL));
    MS_TRY(ms_op_tanh(&bounded, y));
    MS_TRY(cut(p));
    MS_TRY(ms_op_narrow(&column, bounded, 1, 0, 1));
    return ms_op_mul(out, column, h);
}

/* Two results: the second has no gradient. */
static ms_status two_results(void *user, ms_tensor *const *in, int32_t n_in, ms_tensor **out,
                             int32_t n_out)
{
    ms_tensor *detached;

    (void)n_in;
    (void)n_out;
    ++*(int32_t *)user;
    MS_TRY(ms_op_mul(&out[0], in[0], in[1]));
    MS_TRY(ms_tensor_detach(&detached, in[0]));
    return ms_op_exp(&out[1], detached);
}

static int32_t n_calls;

static ms_status custom_operators(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *h, *first[2], *second[2];

    (void)p;
    MS_TRY(ms_custom_op("test::two", two_results, &n_calls, in, 2, first, 2));
    MS_TRY(ms_op_add(&h, first[0], first[1]));
    MS_TRY(
        ms_custom_op("test::two", two_results, &n_calls, (ms_tensor *[]){h, in[1]}, 2, second, 2));
    return ms_op_add(out, second[0], second[1]);
}

static ms_status embedding(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *h;

    (void)p;
    MS_TRY(ms_op_embedding(&h, in[1], in[0]));
    return ms_op_linear(out, h, in[1], NULL);
}

static ms_status attention(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *v;

    (void)p;
    MS_TRY(ms_op_mul(&v, in[1], in[2]));
    return ms_op_attention(out, in[0], in[1], v, true, 0);
}

static ms_status conv(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    static const int64_t ones[] = {1, 1, 1, 1};
    ms_tensor *y;

    (void)p;
    MS_TRY(ms_op_conv(&y, in[0], in[1], in[2], 2, ones, ones, ones, 1));
    return ms_op_relu(out, y);
}

static ms_status without_grad_mode(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *scale, *bounded, *fixed, *scaled, *sum;
    const bool before = ms_grad_enabled_set(false);
    const ms_status status = ms_op_exp(&scale, in[1]);

    (void)p;
    ms_grad_enabled_set(before);
    MS_TRY(status);
    MS_TRY(ms_op_tanh(&bounded, in[1]));
    MS_TRY(ms_tensor_detach(&fixed, bounded));
    MS_TRY(ms_op_mul(&scaled, in[0], scale));
    MS_TRY(ms_op_add(&sum, fixed, in[1]));
    return ms_op_mul(out, scaled, sum);
}

static ms_status integers(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *y, *most, *count;

    (void)p;
    MS_TRY(ms_op_mul(&y, in[0], in[1]));
    MS_TRY(ms_op_argmax(&most, y, 1u << 1, true));
    MS_TRY(ms_tensor_arange(&count, MS_DTYPE_I64, 0, 2, 4));
    MS_TRY(ms_op_add(&out[1], most, count));
    return ms_op_gather(out, y, 1, most);
}

/* gelu() saves its operand, so two of 12 numbers are saved besides `in`; each can be computed from
 * the one before. */
static ms_status chain(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *y, *z;

    (void)p;
    MS_TRY(ms_op_gelu(&y, in[0], false));
    MS_TRY(ms_op_gelu(&z, y, false));
    return ms_op_gelu(out, z, false);
}

/* Operands of a checkpoint, which its node owns. */
typedef struct checkpoint {
    ms_tensor *x, *w;
    bool nested;
} checkpoint;

static ms_status make_checkpoint(ms_program *p, ms_tensor *x, ms_tensor *w, bool nested,
                                 ms_tensor **out);

static ms_status run_checkpoint(ms_program *p, const checkpoint *c, ms_tensor **out)
{
    ms_tensor *scaled, *bounded, *again;

    if (c->nested) {
        MS_TRY(make_checkpoint(p, c->x, c->w, false, &bounded));
    } else {
        MS_TRY(ms_op_mul(&scaled, c->x, c->w));
        MS_TRY(ms_op_tanh(&bounded, scaled));
    }
    MS_TRY(ms_op_mul(&again, bounded, c->w));
    return ms_op_exp(out, again);
}

static ms_status run_checkpoint_again(void *user, ms_tensor *const *grads, int32_t n)
{
    const bool before = ms_grad_enabled_set(true);
    ms_tensor *y;
    ms_status status = run_checkpoint(NULL, user, &y);

    status = status == MS_OK ? ms_backward_extend(&y, grads, n) : status;
    ms_grad_enabled_set(before);
    return status;
}

static void drop_checkpoint(void *user)
{
    checkpoint *c = user;

    ms_tensor_free(c->x);
    ms_tensor_free(c->w);
    free(c);
}

static ms_status make_checkpoint(ms_program *p, ms_tensor *x, ms_tensor *w, bool nested,
                                 ms_tensor **out)
{
    const uint64_t since = ms_graph_now();
    ms_tensor *y;
    checkpoint *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a checkpoint");
    }
    *c = (checkpoint){ms_tensor_retain(x), ms_tensor_retain(w), nested};
    ms_status status = p != NULL ? ms_program_region_begin(p) : MS_OK;

    status = status == MS_OK ? run_checkpoint(p, c, &y) : status;
    if (status != MS_OK) {
        drop_checkpoint(c);
        return status;
    }
    MS_TRY(ms_checkpoint_graph(out, &y, 1, since, run_checkpoint_again, c, drop_checkpoint));
    return p != NULL ? ms_program_region_end(p) : MS_OK;
}

static ms_status checkpointed(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *h, *y;

    MS_TRY(ms_op_mul(&h, in[0], in[1]));
    MS_TRY(make_checkpoint(p, h, in[1], false, &y));
    return ms_op_mul(out, y, h);
}

static ms_status nested_checkpoints(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *h, *y;

    MS_TRY(make_checkpoint(p, in[0], in[1], true, &h));
    MS_TRY(make_checkpoint(p, h, in[1], true, &y));
    return ms_op_mul(out, y, h);
}

/* Eager execution keeps handles of h and y until the step ends, so their gradients have memory of
 * their own; a replay may write them over h and y. Both have an earlier contribution. */
static ms_status used_twice(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *h, *y, *scaled, *sum, *part;

    (void)p;
    MS_TRY(ms_op_linear(&h, in[0], in[2], NULL));
    MS_TRY(ms_op_gelu(&y, h, false));
    MS_TRY(ms_op_cross_entropy(out, y, in[1], -100, MS_REDUCTION_SUM));
    for (int32_t i = 0; i < 2; i++) {
        MS_TRY(ms_op_affine(&scaled, i == 0 ? h : y, 0.3, 0));
        MS_TRY(ms_op_sum(&sum, scaled, 0, false));
        MS_TRY(ms_op_cast(&part, sum, info_of(out[0]).dtype));
        MS_TRY(ms_op_add(&out[0], out[0], part));
    }
    return MS_OK;
}

static const function functions[] = {
    {"linear, gelu, cross entropy",
     mlp,
     5,
     {IN('G', 6, 4), IN('I', 6), IN('W', 8, 4), IN('W', 8), IN('W', 5, 8)},
     1,
     0},
    {"operands used twice", used_twice, 3, {IN('G', 40, 8), IN('I', 40), IN('W', 16, 8)}, 1, 0},
    {"a written view", written_view, 3, {IN('X', 4, 3), IN('X', 2, 3), IN('W', 3)}, 1, 0},
    {"a written argument", written_argument, 3, {IN('X', 3), IN('X', 2, 3), IN('W', 3)}, 2, 0},
    {"a leaf used twice", leaf_twice, 2, {IN('X', 4, 3), IN('W', 3)}, 1, 0},
    {"an output without gradient", two_outputs, 2, {IN('G', 4, 3), IN('W', 3)}, 2, 1},
    {"two outputs", two_outputs, 2, {IN('G', 4, 3), IN('W', 3)}, 2, 0},
    {"a view of an input", view_of_input, 2, {IN('G', 4, 3), IN('W', 3)}, 2, 0},
    {"a view of an output", view_of_output, 2, {IN('R', 4, 3), IN('W', 3)}, 2, 0},
    {"a returned input", returned_input, 2, {IN('R', 4, 3), IN('W', 3)}, 2, 0},
    {"segments", segments, 3, {IN('R', 4, 3), IN('W', 3), IN('W', 2, 3)}, 1, 0},
    {"custom operators", custom_operators, 2, {IN('G', 4, 3), IN('W', 3)}, 1, 0},
    {"embedding, tied", embedding, 2, {IN('I', 2, 5), IN('W', 4, 3)}, 1, 0},
    {"attention", attention, 3, {IN('G', 2, 2, 5, 4), IN('G', 2, 2, 5, 4), IN('W', 4)}, 1, 0},
    {"convolution", conv, 3, {IN('G', 2, 2, 5, 4), IN('W', 3, 2, 3, 3), IN('W', 3)}, 1, 0},
    {"a frozen leaf", leaf_twice, 2, {IN('G', 4, 3), IN('F', 3)}, 1, 0},
    {"without grad mode inside", without_grad_mode, 2, {IN('G', 4, 3), IN('W', 3)}, 1, 0},
    {"integers and a constant", integers, 2, {IN('G', 4, 3), IN('W', 3)}, 2, 0},
    {"a chain", chain, 1, {IN('G', 4, 3)}, 1, 0},
    {"a checkpoint", checkpointed, 2, {IN('G', 4, 3), IN('W', 3)}, 1, 0},
    {"nested checkpoints", nested_checkpoints, 2, {IN('R', 4, 3), IN('W', 3)}, 1, 0},
    {"no rows", segments, 3, {IN('G', 0, 3), IN('W', 3), IN('W', 2, 3)}, 1, 0},
};

static const function *by_name(const char *name)
{
    const function *f = functions;

    while (strcmp(f->name, name) != 0) {
        f++;
    }
    return f;
}

/* -- a function, its inputs, its program ------------------------------------------------------- */

typedef struct instance {
    const function *f;
    ms_tensor *in[MAX_IN], *arg[MAX_IN], *out[MAX_OUT];
    ms_program *p; /* NULL: runs eagerly */
    int32_t level; /* of its program */
    int32_t value[MAX_OUT];
} instance;

static bool is_argument(const function *f, int32_t i)
{
    return strchr("XGRI", f->in[i].kind) != NULL;
}

static bool has_grad(const function *f, int32_t i)
{
    return strchr("GRW", f->in[i].kind) != NULL;
}

static instance make(const function *f, int32_t dtype)
{
    instance k = {.f = f};

    for (int32_t i = 0; i < f->n_in; i++) {
        const input *in = &f->in[i];

        k.in[i] = filled(dtype, in->ndim, in->shape, (uint64_t)i + 1);
        if (in->kind == 'I') { /* [-1, 1) to 0 .. 3 */
            ms_tensor *x = k.in[i], *scaled;

            assert_ok(ms_op_affine(&scaled, x, 2, 2));
            assert_ok(ms_op_cast(&k.in[i], scaled, MS_DTYPE_I64));
        }
        if (has_grad(f, i)) {
            require(k.in[i]);
        }
    }
    return k;
}

static ms_status make_arguments(instance *k)
{
    for (int32_t i = 0; i < k->f->n_in; i++) {
        k->arg[i] = k->in[i];
        MS_TRY(k->f->in[i].kind == 'R' ? ms_op_affine(&k->arg[i], k->in[i], 2, 0) : MS_OK);
    }
    return MS_OK;
}

static ms_status record(instance *k)
{
    MS_TRY(make_arguments(k));
    MS_TRY(ms_program_begin(&k->p, k->level));
    for (int32_t i = 0; i < k->f->n_in; i++) {
        MS_TRY(is_argument(k->f, i) ? ms_program_argument(k->p, k->arg[i]) : MS_OK);
    }
    MS_TRY(k->f->run(k->p, k->arg, k->out));
    for (int32_t i = 0; i < k->f->n_out; i++) {
        MS_TRY(ms_program_value(k->p, k->out[i], true, &k->value[i]));
    }
    return ms_program_end(k->p);
}

static ms_status replay(instance *k)
{
    ms_program_info info;
    int32_t value = 0;
    bool fits;

    for (int32_t i = 0; i < k->f->n_in; i++) {
        if (is_argument(k->f, i)) {
            MS_TRY(ms_program_set(k->p, value++, k->arg[i], &fits));
            assert_true(fits);
        }
    }
    ms_program_info_get(k->p, &info);
    for (int32_t s = 0; s < info.steps; s++) {
        MS_TRY(ms_program_run(k->p, s));
    }
    for (int32_t i = 0; i < k->f->n_out; i++) {
        MS_TRY(ms_program_get(&k->out[i], k->p, k->value[i]));
    }
    return MS_OK;
}

static ms_status forward(instance *k)
{
    MS_TRY(make_arguments(k));
    if (k->p == NULL) {
        return k->f->run(NULL, k->arg, k->out);
    }
    const ms_status status = replay(k);

    ms_program_done(k->p);
    return status;
}

static void expect_recorded(const instance *k)
{
    if (ms_program_broken(k->p) != NULL) {
        fail_msg("%s: %s", k->f->name, ms_program_broken(k->p));
    }
}

/* The sum of the outputs, the first one squared: gradients of the others are expanded. So is that
 * of an argument that is a result, which the sum has, too. NULL if none requires grad. */
static ms_status loss_of(const instance *k, ms_tensor **loss)
{
    *loss = NULL;
    for (int32_t i = 0; i < k->f->n_out + k->f->n_in; i++) {
        const int32_t at = i - k->f->n_out;
        ms_tensor *y = at < 0 ? k->out[i] : k->arg[at], *sum;

        if (!info_of(y).requires_grad || (k->f->without & 1u << i) != 0 ||
            (at >= 0 && k->f->in[at].kind != 'R')) {
            continue;
        }
        MS_TRY(i == 0 ? ms_op_square(&y, y) : MS_OK);
        MS_TRY(ms_op_sum(&sum, y, 0, false));
        MS_TRY(*loss != NULL ? ms_op_add(loss, *loss, sum) : MS_OK);
        *loss = *loss != NULL ? *loss : sum;
    }
    return MS_OK;
}

static void expect_equal(const instance *k, const char *what, int32_t i, ms_tensor *a, ms_tensor *b)
{
    uint64_t x = 0, y = 0;

    assert_int_equal(a != NULL, b != NULL);
    if (a != NULL) {
        assert_ok(ms_tensor_hash(a, &x));
        assert_ok(ms_tensor_hash(b, &y));
    }
    if (x != y) {
        fail_msg("%s: %s %d differ", k->f->name, what, (int)i);
    }
}

/* What a step leaves: outputs, inputs, gradients. */
static void expect_equal_steps(const instance *a, const instance *b)
{
    for (int32_t i = 0; i < a->f->n_out; i++) {
        expect_equal(a, "outputs", i, a->out[i], b->out[i]);
    }
    for (int32_t i = 0; i < a->f->n_in; i++) {
        ms_tensor *x, *y;

        assert_ok(ms_tensor_grad(&x, a->in[i]));
        assert_ok(ms_tensor_grad(&y, b->in[i]));
        expect_equal(a, "inputs", i, a->in[i], b->in[i]);
        expect_equal(a, "gradients of input", i, x, y);
    }
}

/* Other values than in the last step, and after every second one no gradients. */
static void change(instance *k, int32_t step)
{
    const bool before = ms_grad_enabled_set(false);

    for (int32_t i = 0; i < k->f->n_in; i++) {
        if (k->f->in[i].kind != 'I') {
            assert_ok(ms_tensor_add_scaled(k->in[i], k->in[i], 0.25));
        }
        if (step % 2 == 1 && has_grad(k->f, i)) {
            assert_ok(ms_tensor_set_grad(k->in[i], NULL));
        }
    }
    ms_grad_enabled_set(before);
}

/* -- replay = eager ---------------------------------------------------------------------------- */

static const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16};

/* Gradients with respect to one input alone; of a checkpoint, eager execution has none. */
static void compare_one_gradient(instance *two)
{
    const function *f = two[0].f;
    ms_tensor *loss, *grad[2] = {NULL};
    int32_t i = f->n_in - 1;

    for (; !has_grad(f, i) && i > 0; i--) {
    }
    if (f->run == checkpointed || f->run == nested_checkpoints) {
        return;
    }
    for (int32_t k = 0; k < 2 && has_grad(f, i); k++) {
        assert_ok(forward(&two[k]));
        assert_ok(loss_of(&two[k], &loss));
        assert_ok(ms_grad(&grad[k], &loss, NULL, 1, &two[k].in[i], 1, 0));
    }
    expect_equal(&two[0], "ms_grad() of input", i, grad[0], grad[1]);
}

/* Two forwards, then their backwards, the last one first. A function that writes what it saved
 * fails in both. */
static void compare_interleaved(instance *two)
{
    ms_tensor *first, *second;
    ms_status status[2];

    for (int32_t k = 0; k < 2; k++) {
        assert_ok(forward(&two[k]));
        assert_ok(loss_of(&two[k], &first));
        assert_ok(forward(&two[k]));
        assert_ok(loss_of(&two[k], &second));
        assert_ok(second != NULL ? ms_backward(second, NULL) : MS_OK);
        status[k] = first != NULL ? ms_backward(first, NULL) : MS_OK;
    }
    assert_int_equal(status[0], status[1]);
    expect_equal_steps(&two[0], &two[1]);
}

static void compare(const function *f, int32_t dtype, int32_t level)
{
    enum { EAGER, REPLAY, STEPS = 6 };
    instance two[] = {make(f, dtype), make(f, dtype)};
    ms_tensor *loss;

    two[REPLAY].level = level;

    for (int32_t step = 0; step < STEPS; step++) {
        assert_ok(ms_scope_open("step"));
        for (int32_t k = EAGER; k <= REPLAY; k++) {
            if (k == REPLAY && step == 0) {
                assert_ok(record(&two[k]));
                expect_recorded(&two[k]);
            } else {
                assert_ok(forward(&two[k]));
            }
            assert_ok(loss_of(&two[k], &loss));
            for (int32_t again = step < STEPS - 2 ? 0 : 2; again >= 0 && loss != NULL; again--) {
                assert_ok(ms_backward_with(loss, NULL, again > 0 ? MS_RETAIN_GRAPH : 0));
            }
        }
        expect_equal_steps(&two[0], &two[1]);
        change(&two[0], step);
        change(&two[1], step);
        assert_ok(ms_scope_close(NULL, 0));
    }
    assert_ok(ms_scope_open("last"));
    compare_interleaved(two);
    compare_one_gradient(two);
    assert_ok(ms_scope_close(NULL, 0));
    ms_program_free(two[REPLAY].p);
}

static void compare_without_grad(const function *f)
{
    instance two[] = {make(f, MS_DTYPE_F32), make(f, MS_DTYPE_F32)};

    ms_grad_enabled_set(false);
    assert_ok(forward(&two[0]));
    assert_ok(record(&two[1]));
    expect_recorded(&two[1]);
    expect_equal_steps(&two[0], &two[1]);
    change(&two[0], 0);
    change(&two[1], 0);
    assert_ok(forward(&two[0]));
    assert_ok(forward(&two[1]));
    expect_equal_steps(&two[0], &two[1]);
    ms_grad_enabled_set(true);
    ms_program_free(two[1].p);
}

static void test_graph_replay__has_the_bits_of_eager_execution(void **state)
{
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
            compare(&functions[i], dtypes[d], MS_PROGRAM_REPLAY);
            compare(&functions[i], dtypes[d], MS_PROGRAM_PARTITION);
        }
        compare_without_grad(&functions[i]);
    }
}

/* -- errors ------------------------------------------------------------------------------------ */

/* The error of a step, also if a device reports it later. */
static ms_status step(instance *k)
{
    ms_tensor *loss;
    double value;

    MS_TRY(forward(k));
    MS_TRY(loss_of(k, &loss));
    MS_TRY(ms_backward(loss, NULL));
    return ms_tensor_item(loss, &value);
}

static void test_graph_replay__each_run_calls_custom_operators(void **state)
{
    instance k = make(by_name("custom operators"), MS_DTYPE_F32);

    (void)state;
    n_calls = 0;
    assert_ok(record(&k));
    expect_recorded(&k);
    assert_int_equal(n_calls, 2);
    assert_ok(forward(&k));
    assert_ok(forward(&k));
    assert_int_equal(n_calls, 6);
    ms_program_free(k.p);
}

static void test_graph_replay__an_index_out_of_range_is_the_eager_error(void **state)
{
    const function f = {"embedding", embedding, 2, {IN('I', 2, 5), IN('W', 4, 3)}, 1, 0};
    instance two[] = {make(&f, MS_DTYPE_F32), make(&f, MS_DTYPE_F32)};
    char text[2][256];

    assert_ok(record(&two[1]));
    expect_recorded(&two[1]);
    for (int32_t k = 0; k < 2; k++) {
        ms_memory_stats before, after;

        ms_memory_stats_get(&before);
        assert_ok(ms_tensor_fill(two[k].in[0], 4));
        assert_ok(ms_scope_open("step"));
        assert_int_equal(step(&two[k]), MS_INDEX_ERROR);
        snprintf(text[k], sizeof(text[k]), "%s", ms_error_message());
        assert_ok(ms_scope_close(NULL, 0));
        assert_ok(ms_tensor_set_grad(two[k].in[1], NULL));
        ms_memory_stats_get(&after);
        assert_int_equal(after.live_handles, before.live_handles);
        assert_int_equal(tensor_bytes(&after), tensor_bytes(&before));
        assert_ok(ms_tensor_fill(two[k].in[0], 3));
        assert_ok(step(&two[k]));
    }
    assert_string_equal(text[1], text[0]);
    expect_equal_steps(&two[0], &two[1]);
    ms_program_free(two[1].p);
}

/* What the rule of mul() reads is written afterwards. */
static ms_status written_after(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *row;

    (void)p;
    MS_TRY(ms_op_mul(out, in[0], in[1]));
    MS_TRY(ms_op_select(&row, in[0], 0, 1));
    return ms_tensor_fill(row, 0);
}

static void test_graph_replay__a_write_to_what_was_saved_is_an_error(void **state)
{
    const function inside = {"inside", written_after, 2, {IN('X', 4, 3), IN('W', 3)}, 1, 0};
    const function outside = {"outside", two_outputs, 2, {IN('X', 4, 3), IN('W', 3)}, 1, 0};
    const char *const text = "was modified by an in-place operation: it is at version";

    for (int32_t recorded = 0; recorded < 2; recorded++) {
        instance k = make(&inside, MS_DTYPE_F32);
        ms_tensor *loss;

        assert_ok(recorded != 0 ? record(&k) : MS_OK);
        assert_fails(MS_RUNTIME_ERROR, text, step(&k));
        ms_program_free(k.p);
        k = make(&outside, MS_DTYPE_F32);
        assert_ok(recorded != 0 ? record(&k) : MS_OK);
        for (int32_t output = 0; output < 2; output++) {
            ms_tensor *written = k.in[0];

            assert_ok(forward(&k));
            assert_ok(loss_of(&k, &loss));
            assert_ok(output ? ms_tensor_detach(&written, k.out[0]) : MS_OK);
            assert_ok(ms_tensor_fill(written, 0));
            assert_fails(MS_RUNTIME_ERROR, text, ms_backward(loss, NULL));
        }
        ms_program_free(k.p);
    }
}

/* -- lifetimes --------------------------------------------------------------------------------- */

static void test_graph_replay__backward_needs_no_program(void **state)
{
    instance two[] = {make(&functions[0], MS_DTYPE_F32), make(&functions[0], MS_DTYPE_F32)};
    ms_tensor *loss;

    assert_ok(record(&two[1]));
    for (int32_t k = 0; k < 2; k++) {
        assert_ok(forward(&two[k]));
        assert_ok(loss_of(&two[k], &loss));
        ms_program_free(two[k].p);
        assert_ok(ms_backward(loss, NULL));
    }
    expect_equal_steps(&two[0], &two[1]);
}

static void *close_before_free(void *user)
{
    instance k = make(user, MS_DTYPE_F32);
    ms_tensor *loss;

    assert_ok(record(&k));
    assert_ok(replay(&k)); /* not done: the program has values, and a node of it exists */
    assert_ok(loss_of(&k, &loss));
    assert_ok(ms_close());
    ms_program_free(k.p);
    return NULL;
}

static void test_graph_replay__a_program_may_outlive_its_context(void **state)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, close_before_free,
                                    (void *)(uintptr_t)by_name("linear, gelu, cross entropy")),
                     0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* -- memory ------------------------------------------------------------------------------------ */

static void test_graph_replay__steps_use_the_memory_of_the_first(void **state)
{
    enum { STEPS = 1000 };
    instance k = make(by_name("segments"), MS_DTYPE_F32);
    ms_memory_stats first, now;

    assert_ok(record(&k));
    expect_recorded(&k);
    for (int32_t i = 0; i < STEPS; i++) {
        assert_ok(ms_scope_open("step"));
        assert_ok(step(&k));
        assert_ok(ms_scope_close(NULL, 0));
        ms_memory_stats_get(i < 2 ? &first : &now);
    }
    assert_int_equal(now.live_handles, first.live_handles);
    assert_int_equal(now.live_total, first.live_total);
    assert_int_equal(now.n_system, first.n_system);
    ms_program_free(k.p);
}

static void test_graph_replay__a_forward_leaves_outputs_and_what_was_saved(void **state)
{
    static const char *const names[] = {/* of one segment, outputs of memory of their own */
                                        "linear, gelu, cross entropy",
                                        "an output without gradient",
                                        "embedding, tied",
                                        "attention",
                                        "convolution",
                                        "without grad mode inside",
                                        "a checkpoint",
                                        "integers and a constant"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        instance k = make(by_name(names[i]), MS_DTYPE_F32);
        ms_memory_stats before, after;
        ms_program_info info;
        int64_t bytes = 0;

        assert_ok(record(&k));
        for (int32_t o = 0; o < k.f->n_out; o++) {
            bytes += info_of(k.out[o]).numel * ms_dtype_size(info_of(k.out[o]).dtype);
        }
        ms_program_info_get(k.p, &info);
        assert_ok(ms_scope_open("step"));
        ms_memory_stats_get(&before);
        assert_ok(forward(&k));
        ms_memory_stats_get(&after);
        assert_int_equal(tensor_bytes(&after) - tensor_bytes(&before), bytes + info.saved_bytes);
        assert_ok(ms_scope_close(NULL, 0));
        ms_program_free(k.p);
    }
}

enum { ROWS = 1100, CLASSES = 1000 }; /* more bytes of logits than a piece */

static ms_status large_logits(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *logits, *rows;

    (void)p;
    MS_TRY(ms_op_linear(&logits, in[0], in[2], NULL));
    MS_TRY(ms_op_reshape(&rows, logits, 2, (const int64_t[]){ROWS, CLASSES}));
    return ms_op_cross_entropy(out, rows, in[1], -100, MS_REDUCTION_MEAN);
}

static void test_graph_replay__a_gradient_of_logits_overwrites_them(void **state)
{
    const function f = {"large logits",
                        large_logits,
                        3,
                        {IN('X', ROWS, 4), IN('I', ROWS), IN('W', CLASSES, 4)},
                        1,
                        0};
    instance eager = make(&f, MS_DTYPE_F32), replayed = make(&f, MS_DTYPE_F32);
    const int64_t logits = (int64_t)sizeof(float) * ROWS * CLASSES;
    ms_memory_stats before, after;

    assert_ok(record(&replayed));
    ms_memory_reset_peak();
    ms_memory_stats_get(&before);
    assert_ok(step(&replayed));
    ms_memory_stats_get(&after);
    const int64_t most = after.peak[MS_MEM_ACTIVATION] - before.live[MS_MEM_ACTIVATION];

    assert_in_range(most, logits, 2 * logits - 1);
    assert_ok(step(&eager));
    expect_equal_steps(&eager, &replayed);
    ms_program_free(replayed.p);
}

static void test_graph_replay__partition_saves_what_is_costly_to_compute(void **state)
{
    static const struct {
        const char *name;
        int64_t replay, partition; /* bytes, each tensor's rounded up to 64 */
    } rows[] = {
        {"a chain", 128, 0},
        {"linear, gelu, cross entropy", 640, 448}, /* not gelu()'s result of 48 numbers */
        {"attention", 512, 192}, /* not the product of 80 numbers; two numbers a query stay */
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (int32_t level = MS_PROGRAM_REPLAY; level <= MS_PROGRAM_PARTITION; level++) {
            instance k = make(by_name(rows[i].name), MS_DTYPE_F32);
            ms_program_info info;

            k.level = level;
            assert_ok(record(&k));
            ms_program_info_get(k.p, &info);
            assert_int_equal(info.saved_bytes,
                             level == MS_PROGRAM_REPLAY ? rows[i].replay : rows[i].partition);
            ms_program_free(k.p);
        }
    }
}

static ms_status wide(ms_program *p, ms_tensor **in, ms_tensor **out)
{
    ms_tensor *h;

    (void)p;
    MS_TRY(ms_op_linear_gelu(&h, in[0], in[1], in[2], false));
    return ms_op_linear(out, h, in[3], NULL);
}

/* gelu() reads what backward needs in any case; its result is needed by the product behind it. */
static void test_graph_replay__a_piece_ends_where_little_is_used_behind_it(void **state)
{
    const function f = {
        "wide", wide,
        4,      {IN('X', ROWS, 4), IN('W', CLASSES, 4), IN('W', CLASSES), IN('W', 4, CLASSES)},
        1,      0};
    const int64_t hidden = (int64_t)sizeof(float) * ROWS * CLASSES;
    instance eager = make(&f, MS_DTYPE_F32);

    assert_ok(step(&eager));
    for (int32_t level = MS_PROGRAM_REPLAY; level <= MS_PROGRAM_PARTITION; level++) {
        instance k = make(&f, MS_DTYPE_F32);
        ms_memory_stats before, after;
        ms_tensor *loss;

        k.level = level;
        assert_ok(record(&k));
        assert_ok(ms_scope_open("step"));
        ms_memory_stats_get(&before);
        assert_ok(forward(&k));
        ms_memory_stats_get(&after);
        assert_int_equal((tensor_bytes(&after) - tensor_bytes(&before)) / hidden,
                         level == MS_PROGRAM_REPLAY ? 2 : 1);
        assert_ok(loss_of(&k, &loss));
        assert_ok(ms_backward(loss, NULL));
        expect_equal_steps(&eager, &k);
        assert_ok(ms_scope_close(NULL, 0));
        ms_program_free(k.p);
    }
}

/* Record, and two steps of the program; what fails for lack of memory ends it. */
static ms_status live(instance *k)
{
    MS_TRY(record(k));
    if (ms_program_broken(k->p) != NULL) {
        assert_non_null(strstr(ms_program_broken(k->p), "no memory"));
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY(step(k));
    return step(k);
}

static void fail_at(bool of_tensors, int32_t at)
{
    if (of_tensors) {
        msi_alloc_fail_at(msi_context(), at);
    } else {
        n_before = at;
    }
}

/* Allocation k fails, for each k: of tensors' memory, or of the C library. */
static void fail_each(const function *f, bool of_tensors)
{
    ms_status status = MS_OUT_OF_MEMORY;

    for (int32_t at = 0; status != MS_OK; at++) {
        ms_memory_stats before, after;

        ms_memory_stats_get(&before);
        assert_ok(ms_scope_open("life"));
        instance k = make(f, MS_DTYPE_F32);

        k.level = MS_PROGRAM_PARTITION;
        fail_at(of_tensors, at);
        status = live(&k);
        fail_at(of_tensors, -1);
        if (status != MS_OK && status != MS_OUT_OF_MEMORY) {
            fail_msg("%s: allocation %d fails: %s", f->name, (int)at, ms_error_message());
        }
        ms_program_free(k.p);
        assert_ok(ms_scope_close(NULL, 0));
        ms_memory_stats_get(&after);
        assert_int_equal(after.live_handles, before.live_handles);
        assert_int_equal(tensor_bytes(&after), tensor_bytes(&before));
    }
}

static void test_graph_replay__each_allocation_may_fail(void **state)
{
    const function *const some[] = {by_name("linear, gelu, cross entropy"),
                                    by_name("a written argument"),
                                    by_name("segments"),
                                    by_name("attention"),
                                    by_name("nested checkpoints"),
                                    by_name("custom operators")};

    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        instance warm = make(some[i], MS_DTYPE_F32);

        assert_ok(live(&warm));
        ms_program_free(warm.p);
        fail_each(some[i], true);
        fail_each(some[i], false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOKED_TEST(test_graph_replay__has_the_bits_of_eager_execution),
        BOOKED_TEST(test_graph_replay__each_run_calls_custom_operators),
        BOOKED_TEST(test_graph_replay__an_index_out_of_range_is_the_eager_error),
        BOOKED_TEST(test_graph_replay__a_write_to_what_was_saved_is_an_error),
        BOOKED_TEST(test_graph_replay__backward_needs_no_program),
        BOOKED_TEST(test_graph_replay__a_program_may_outlive_its_context),
        BOOKED_TEST(test_graph_replay__steps_use_the_memory_of_the_first),
        BOOKED_TEST(test_graph_replay__a_forward_leaves_outputs_and_what_was_saved),
        BOOKED_TEST(test_graph_replay__a_gradient_of_logits_overwrites_them),
        BOOKED_TEST(test_graph_replay__partition_saves_what_is_costly_to_compute),
        BOOKED_TEST(test_graph_replay__a_piece_ends_where_little_is_used_behind_it),
        BOOKED_TEST(test_graph_replay__each_allocation_may_fail),
    };

    return cmocka_run_group_tests_name("graph/replay", tests, NULL, NULL);
}
