/* Functions that programs record; see functions.h. */
#include "functions.h"

#include "backend.h"

ms_tensor_info info_of(const ms_tensor *t)
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

int32_t n_calls;

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

const function functions[] = {
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

const int32_t n_functions = sizeof(functions) / sizeof(functions[0]);

const function *by_name(const char *name)
{
    const function *f = functions;

    while (strcmp(f->name, name) != 0) {
        f++;
    }
    return f;
}

/* -- a function, its inputs, its program ------------------------------------------------------- */

static bool is_argument(const function *f, int32_t i)
{
    return strchr("XGRI", f->in[i].kind) != NULL;
}

bool has_grad(const function *f, int32_t i)
{
    return strchr("GRW", f->in[i].kind) != NULL;
}

instance make(const function *f, int32_t dtype)
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

ms_status record(instance *k)
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

ms_status replay(instance *k)
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

ms_status forward(instance *k)
{
    MS_TRY(make_arguments(k));
    if (k->p == NULL) {
        return k->f->run(NULL, k->arg, k->out);
    }
    const ms_status status = replay(k);

    ms_program_done(k->p);
    return status;
}

void expect_recorded(const instance *k)
{
    if (ms_program_broken(k->p) != NULL) {
        fail_msg("%s: %s", k->f->name, ms_program_broken(k->p));
    }
}

/* The sum of the outputs, the first one squared: gradients of the others are expanded. So is that
 * of an argument that is a result, which the sum has, too. NULL if none requires grad. */
ms_status loss_of(const instance *k, ms_tensor **loss)
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

void expect_equal(const instance *k, const char *what, int32_t i, ms_tensor *a, ms_tensor *b)
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
void expect_equal_steps(const instance *a, const instance *b)
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

ms_status step(instance *k)
{
    ms_tensor *loss;
    double value;

    MS_TRY(forward(k));
    MS_TRY(loss_of(k, &loss));
    MS_TRY(ms_backward(loss, NULL));
    return ms_tensor_item(loss, &value);
}
