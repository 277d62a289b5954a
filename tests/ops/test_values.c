/* Every row of the table: values against the row's oracle, gradients against finite differences of
 * the oracle, the same bits on every instruction set, the same shapes and errors of meta tensors,
 * and an error for every allocation that fails.
 *
 * MS_OP=add runs the rows whose name contains it. MS_OP_DRAWS sets the number of calls per row. */
#include "row.h"

#include "autograd.h"
#include "backend.h"

enum { DRAWS = 1000, MAX_ROWS = 128, GUARD = 64, MAX_GUARDS = 32 };

/* -- what the runtime calls -------------------------------------------------------------------- */

/* The linker puts these in front of the functions that every kernel and every result pass. */
const msi_kernel_table *__real_msi_kernels(void);
const msi_kernel_table *__wrap_msi_kernels(void);
ms_status __real_msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args);
ms_status __wrap_msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args);
ms_status __real_msi_gemm(ms_context *ctx, const msi_gemm_args *args);
ms_status __wrap_msi_gemm(ms_context *ctx, const msi_gemm_args *args);
ms_status __real_msi_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, msi_mem_block **out);
ms_status __wrap_msi_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, msi_mem_block **out);
void __real_msi_release(msi_mem_block *block);
void __wrap_msi_release(msi_mem_block *block);

static int32_t isa; /* 0: the machine's best */
static bool reached[MSI_K_COUNT][MS_DTYPE_COUNT];
static int64_t kernels_run;
static bool guarded; /* the host may touch results: no device */

const msi_kernel_table *__wrap_msi_kernels(void)
{
    return isa != 0 ? msi_kernels_of(isa) : __real_msi_kernels();
}

ms_status __wrap_msi_dispatch(const char *op, int32_t kernel, int32_t dtype, const void *args)
{
    reached[kernel][dtype] = true;
    kernels_run++;
    return __real_msi_dispatch(op, kernel, dtype, args);
}

ms_status __wrap_msi_gemm(ms_context *ctx, const msi_gemm_args *args)
{
    kernels_run++;
    reached[MSI_K_gemm][args->dtype] |= args->m * args->n * args->k > 0;
    return __real_msi_gemm(ctx, args);
}

/* Results begin as NaN, which shows in them when it is read, and end with bytes that no kernel may
 * write. */
static msi_mem_block *guards[MAX_GUARDS];

ms_status __wrap_msi_alloc(ms_context *ctx, int64_t nbytes, int32_t kind, msi_mem_block **out)
{
    int32_t free_place = 0;

    while (free_place < MAX_GUARDS && guards[free_place] != NULL) {
        free_place++;
    }
    if (!guarded || free_place == MAX_GUARDS) {
        return __real_msi_alloc(ctx, nbytes, kind, out);
    }
    const ms_status status = __real_msi_alloc(ctx, nbytes + GUARD, kind, out);

    if (status == MS_OK) {
        memset((*out)->data, 0xff, (size_t)nbytes + GUARD);
        guards[free_place] = *out;
    }
    return status;
}

void __wrap_msi_release(msi_mem_block *block)
{
    for (int32_t g = 0; g < MAX_GUARDS && block != NULL; g++) {
        if (guards[g] == block) {
            const unsigned char *end = (const unsigned char *)block->data + block->nbytes;

            guards[g] = NULL;
            for (int32_t k = 1; k <= GUARD; k++) {
                assert_int_equal(end[-k], 0xff); /* else written past the end of a result */
            }
        }
    }
    __real_msi_release(block);
}

/* -- one call ---------------------------------------------------------------------------------- */

/* Ways to get gradients. */
enum {
    MODE_PLAIN,
    MODE_TWICE,    /* two calls in one graph: gradients add */
    MODE_REPEATED, /* two backward passes: gradients add */
    MODE_INNER,    /* operands are results of another operator */
    MODE_WIDE, /* the owner of the leaf takes gradients in f32 (f64 for wide dtypes), added to */
    MODE_ODD,  /* in a dtype that no kernel writes */
    N_MODES
};

typedef struct outcome {
    bool has_gradient;
    double out[MAX_NUMEL], grad[MAX_IN][MAX_NUMEL];
} outcome;

typedef struct keeper {
    ms_tensor *grad;
    bool stored;
} keeper;

static ms_status keeper_nothing(void *user, int32_t index)
{
    return MS_OK;
}

static ms_status keeper_dest(void *user, int32_t index, msi_view *dst, bool *add)
{
    keeper *k = (keeper *)user + index;

    *dst = k->grad->v;
    *add = k->stored;
    k->stored = true;
    return MS_OK;
}

static int32_t kept_dtype(int32_t dtype, int32_t mode)
{
    const int32_t wide = ms_dtype_is_narrow(dtype) ? MS_DTYPE_F32 : MS_DTYPE_F64;

    return mode == MODE_WIDE ? wide : dtype == MS_DTYPE_F64 ? MS_DTYPE_F32 : MS_DTYPE_F64;
}

/* Weights of the results in the sum that is differentiated: exact in every dtype; one may be NaN.
 */
static int64_t nan_weight = -1;

static double weight_of(int64_t i)
{
    return i == nan_weight ? NAN : (double)((i * 7 + 3) % 17 - 8) / 8;
}

static ms_tensor *make_weight(const ms_tensor *out)
{
    static double values[MAX_NUMEL];
    const int64_t n = msi_view_numel(&out->v);
    ms_tensor *weight;

    for (int64_t i = 0; i < n; i++) {
        values[i] = ms_dtype_is_floating(out->v.dtype) ? weight_of(i) : 1;
    }
    assert_ok(ms_tensor_from_doubles(&weight, out->v.dtype, out->v.ndim, out->v.shape, values, n));
    return weight;
}

/* Run the call, backward where that means something, in one of the modes. */
static void run_call(const call *c, ms_tensor *const *leaf, int32_t mode, outcome *o)
{
    const int32_t passes = mode == MODE_REPEATED || mode >= MODE_WIDE ? 2 : 1;
    ms_tensor *in[MAX_IN], *out = NULL, *again, *grad, *weight;
    keeper keepers[MAX_IN] = {{NULL}};
    msi_grad_sink sinks[MAX_IN];

    for (int32_t k = 0; k < c->n_in; k++) {
        in[k] = leaf[k];
        if (!is_float(&c->in[k]) || mode < 0) {
            continue;
        }
        assert_ok(ms_tensor_set_requires_grad(leaf[k], true));
        if (mode >= MODE_WIDE) {
            assert_ok(ms_tensor_full(&keepers[k].grad, kept_dtype(leaf[k]->v.dtype, mode),
                                     leaf[k]->v.ndim, leaf[k]->v.shape, 1e30));
            sinks[k] = (msi_grad_sink){keeper_nothing, keeper_dest, keeper_nothing, keepers, k};
            leaf[k]->sink = &sinks[k];
        }
    }
    for (int32_t pass = 0; pass < passes; pass++) {
        for (int32_t k = 0; k < c->n_in && mode == MODE_INNER; k++) {
            if (is_float(&c->in[k])) {
                assert_ok(ms_op_affine(&in[k], leaf[k], 1, -0.0));
            }
        }
        ms_tensor_free(out);
        if (c->op->run(&out, in, c) != MS_OK) {
            describe(c, in);
            fail_msg("%s", ms_error_message());
        }
        assert_ok(ms_tensor_to_doubles(out, o->out, msi_view_numel(&out->v)));
        o->has_gradient = out->requires_grad && out->grad_fn != NULL;
        if (o->has_gradient) {
            if (mode == MODE_TWICE) {
                assert_ok(c->op->run(&again, in, c));
                assert_ok(ms_op_add(&grad, out, again));
                ms_tensor_free(again);
                ms_tensor_free(out);
                out = grad;
            }
            weight = make_weight(out);
            assert_ok(ms_backward(out, weight));
            ms_tensor_free(weight);
        }
    }
    ms_tensor_free(out);
    for (int32_t k = 0; k < c->n_in; k++) {
        if (in[k] != leaf[k]) {
            ms_tensor_free(in[k]);
        }
        if (leaf[k]->requires_grad) {
            grad = keepers[k].grad;
            if (grad == NULL) {
                assert_ok(ms_tensor_grad(&grad, leaf[k]));
            } else if (!keepers[k].stored) {
                assert_ok(ms_tensor_fill(grad, 0));
            }
            memset(o->grad[k], 0, sizeof(*o->grad[k]) * (size_t)numel_of(&c->in[k]));
            if (grad != NULL) {
                assert_ok(ms_tensor_to_doubles(grad, o->grad[k], numel_of(&c->in[k])));
            }
            ms_tensor_free(grad);
            leaf[k]->sink = NULL;
            assert_ok(ms_tensor_set_grad(leaf[k], NULL));
            assert_ok(ms_tensor_set_requires_grad(leaf[k], false));
        }
    }
}

static void expect_same_bits(const call *c, ms_tensor *const *in, const char *what, const double *a,
                             const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof(*a)) != 0 && !(isnan(a[i]) && isnan(b[i]))) {
            describe(c, in);
            fail_msg("%s at %lld: %a on x86-64-v2, %a on x86-64-v%d", what, (long long)i, a[i],
                     b[i], (int)isa);
        }
    }
}

/* On every instruction set of this machine: one outcome. */
static void run_on_all(const call *c, ms_tensor *const *in, int32_t mode, int64_t n, outcome *o)
{
    static outcome other;

    isa = msi_kernels_of(2) != NULL ? 2 : 3; /* a build with sanitizers has only 3 */
    run_call(c, in, mode, o);
    while (++isa <= 4) {
        if (msi_kernels_of(isa) == NULL) {
            continue;
        }
        run_call(c, in, mode, &other);
        expect_same_bits(c, in, "the result", o->out, other.out, n);
        for (int32_t k = 0; k < c->n_in && o->has_gradient; k++) {
            if (is_float(&c->in[k])) {
                expect_same_bits(c, in, "the gradient", o->grad[k], other.grad[k],
                                 numel_of(&c->in[k]));
            }
        }
    }
    isa = 0;
}

/* -- gradients --------------------------------------------------------------------------------- */

static array arrays[MAX_IN], want;
static const array *const operands[MAX_IN] = {&arrays[0], &arrays[1], &arrays[2], &arrays[3]};
static int64_t differences, refused;

/* The weighted sum of the oracle's results with operand k moved by `step` along a direction of
 * signs; *size: of magnitudes. */
static void move(int32_t k, real step, uint64_t signs)
{
    for (int64_t i = 0; i < arrays[k].n; i++) {
        arrays[k].v[i] += (signs >> i % 61 & 1) ? step : -step;
    }
}

static real difference(const call *c, int32_t k, real h, uint64_t signs, real *size)
{
    static array up, down;
    real sum = 0;

    move(k, h, signs);
    c->op->oracle(c, operands, &up);
    move(k, -2 * h, signs);
    c->op->oracle(c, operands, &down);
    move(k, h, signs);
    for (int64_t i = 0; i < up.n; i++) {
        const real term = (real)weight_of(i) * (up.v[i] - down.v[i]) / (2 * h);

        sum += term;
        *size += fabsl(term);
    }
    return sum;
}

/* The f64 gradient of operand k along a random direction, against a central difference. */
static void check_direction(const call *c, ms_tensor *const *in, int32_t k, const double *grad)
{
    const uint64_t signs =
        (uint64_t)below(c->rng, 1 << 30) << 31 | (uint64_t)below(c->rng, 1 << 30);
    real got = 0, size = 0, ignored = 0;

    for (int64_t i = 0; i < arrays[k].n; i++) {
        got += (signs >> i % 61 & 1) ? grad[i] : -grad[i];
        size += fabs(grad[i]);
    }
    const real coarse = difference(c, k, 2e-3L, signs, &size);
    const real fine = difference(c, k, 1e-3L, signs, &ignored);
    const real exact = (4 * fine - coarse) / 3, spread = fabsl(fine - coarse);

    if (!isfinite(spread) || spread > 0.01L * (size + 1e-3L)) {
        return; /* not smooth enough here */
    }
    if (!(fabsl(got - exact) <= 1e-10L * (size + 1e-3L) + 0.1L * spread)) {
        describe(c, in);
        fail_msg("the gradient of operand %d along a direction is %.12Lg, differences give %.12Lg",
                 (int)k, got, exact);
    }
    differences++;
}

/* Gradients in the call's dtype against those in f64, which are checked against differences. */
static void check_gradients(call *c, ms_tensor *const *in, int32_t mode, const outcome *o)
{
    static outcome exact;
    const real factor = mode == MODE_TWICE || mode == MODE_REPEATED || mode >= MODE_WIDE ? 2 : 1;
    const int32_t dtype = c->in[0].dtype;
    ms_tensor *wide[MAX_IN];
    call d = *c;

    for (int32_t k = 0; k < c->n_in; k++) {
        static double values[MAX_NUMEL];

        for (int64_t i = 0; i < arrays[k].n; i++) {
            values[i] = (double)arrays[k].v[i];
        }
        d.in[k].dtype = is_float(&c->in[k]) ? MS_DTYPE_F64 : c->in[k].dtype;
        assert_ok(ms_tensor_from_doubles(&wide[k], d.in[k].dtype, d.in[k].ndim, d.in[k].shape,
                                         values, arrays[k].n));
    }
    run_call(&d, wide, MODE_PLAIN, &exact);
    const real error = c->op->grad_error != 0 ? c->op->grad_error : 16;
    const real unit = unit_of(mode == MODE_ODD && dtype == MS_DTYPE_F64 ? MS_DTYPE_F32
                                                                        : dtype); /* the kept one */

    for (int32_t k = 0; k < c->n_in; k++) {
        real most = 1;

        ms_tensor_free(wide[k]);
        if (!is_float(&c->in[k])) {
            continue;
        }
        if (c->op->smooth == NULL || c->op->smooth(c, operands)) {
            check_direction(c, in, k, exact.grad[k]);
        }
        for (int64_t i = 0; i < arrays[k].n; i++) {
            most = fmaxl(most, fabs(exact.grad[k][i]));
        }
        const real terms = arrays[k].n > 0 ? (real)want.n / (real)arrays[k].n : 1;
        const real room = factor * unit * most * error * sqrtl(fmaxl(terms, 1));

        for (int64_t i = 0; i < arrays[k].n; i++) {
            if (!agrees(dtype, o->grad[k][i], factor * exact.grad[k][i], room)) {
                describe(c, in);
                fail_msg(
                    "mode %d: the gradient of operand %d at %lld is %.9g, in f64 %.9g within %Lg",
                    (int)mode, (int)k, (long long)i, o->grad[k][i],
                    (double)factor * exact.grad[k][i], room);
            }
        }
    }
}

static const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_F16,
                                 MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_F16,
                                 MS_DTYPE_I64, MS_DTYPE_I32, MS_DTYPE_U8,   MS_DTYPE_BOOL};

/* -- shape inference --------------------------------------------------------------------------- */

/* A view of the same form over memory that is not there. */
static ms_tensor *meta_twin(const ms_tensor *t)
{
    msi_view v = t->v;
    ms_tensor *twin;

    assert_ok(msi_storage_wrap(&v.storage, t->ctx, MS_STORAGE_NONE, NULL, 0));
    v.storage->meta = true;
    assert_ok(msi_tensor_new(&twin, t->ctx, &v));
    msi_storage_release(v.storage);
    return twin;
}

/* The operand that a result is a view of; -1: none. */
static int32_t operand_shown(const call *c, ms_tensor *const *in, const ms_tensor *out)
{
    for (int32_t k = 0; k < c->n_in; k++) {
        if (out->v.storage == in[k]->v.storage) {
            return k;
        }
    }
    return -1;
}

typedef struct inference {
    ms_status status;
    char message[MSI_MESSAGE_BYTES];
    msi_view form;
    int32_t shown;
} inference;

/* Does the error depend on a value? Meta operands have none. */
static bool is_about_values(const inference *a)
{
    return a->status == MS_INDEX_ERROR && strstr(a->message, ", number ") != NULL;
}

static void infer(inference *a, const call *c, ms_tensor *const *in)
{
    ms_tensor *out = NULL;

    *a = (inference){.status = c->op->run(&out, in, c)};
    assert_true((a->status == MS_OK) == (out != NULL));
    if (out != NULL) {
        a->status = msi_settle(out->ctx); /* a device reports bad indices then */
    }
    if (a->status != MS_OK) {
        snprintf(a->message, sizeof(a->message), "%s", ms_error_message());
        ms_tensor_free(out);
        return;
    }
    a->form = out->v;
    a->shown = operand_shown(c, in, out);
    ms_tensor_free(out);
}

static bool same_inference(const inference *a, const inference *b)
{
    if (a->status != MS_OK) {
        return a->status == b->status && strcmp(a->message, b->message) == 0;
    }
    bool same = b->status == MS_OK && a->form.dtype == b->form.dtype && a->shown == b->shown &&
                msi_view_same_shape(&a->form, &b->form) && a->form.offset == b->form.offset;

    for (int32_t d = 0; same && d < a->form.ndim; d++) {
        same = a->form.stride[d] == b->form.stride[d];
    }
    return same;
}

/* Run the call with real operands, with those in `meta` replaced by meta tensors, and with meta
 * tensors alone. All give one form or one error, and the last two run no kernel and take no memory.
 * @return whether the operands were right */
static bool compare_inference(const call *c, ms_tensor *const *in, uint32_t meta)
{
    static inference plain, other;
    ms_tensor *twins[MAX_IN] = {NULL}, *mixed[MAX_IN] = {NULL};
    ms_memory_stats before, after;

    for (int32_t k = 0; k < c->n_in; k++) {
        twins[k] = meta_twin(in[k]);
        mixed[k] = meta >> k & 1 ? twins[k] : in[k];
    }
    infer(&plain, c, in);
    if (is_about_values(&plain)) {
        plain.status = MS_OK;
    } else {
        ms_memory_stats_get(&before);
        kernels_run = 0;
        for (int32_t k = 0; k < 2; k++) {
            infer(&other, c, k == 0 ? mixed : twins);
            if (!same_inference(&plain, &other)) {
                describe(c, in);
                fail_msg(
                    "real operands give %s %s %s %s, meta ones %s %s %s %s",
                    ms_status_name(plain.status), plain.message, ms_dtype_name(plain.form.dtype),
                    msi_shape_text(plain.form.ndim, plain.form.shape), ms_status_name(other.status),
                    other.message, ms_dtype_name(other.form.dtype),
                    msi_shape_text(other.form.ndim, other.form.shape));
            }
        }
        ms_memory_stats_get(&after);
        assert_int_equal(kernels_run, 0);
        assert_int_equal(after.n_allocs, before.n_allocs);
    }
    for (int32_t k = 0; k < c->n_in; k++) {
        ms_tensor_free(twins[k]);
    }
    return plain.status == MS_OK;
}

/* Change one thing about the call. Most changes make it wrong. */
static void spoil(call *c, uint64_t *rng)
{
    form *f = &c->in[below(rng, c->n_in)];
    const int32_t d = f->ndim > 0 ? below(rng, f->ndim) : 0;

    switch (below(rng, 6)) {
    case 0:
        f->dtype = below(rng, MS_DTYPE_COUNT);
        f->draw = f->draw == DRAW_POSITIVE ? DRAW_SIGNED : f->draw; /* integers have no fractions */
        break;
    case 1:
        f->shape[d] += f->ndim > 0;
        break;
    case 2:
        f->ndim -= f->ndim > 0;
        break;
    case 3:
        f->shape[f->ndim++] = 2;
        break;
    case 4:
        c->i[0] += strcmp(c->op->name, "ms_op_reshape") == 0 ? 0 : 7;
        break;
    default:
        c->i[1 + below(rng, 3)] += 7;
        break;
    }
}

/* A call with one thing changed gives an error or a result, the same for meta operands. @return
 * whether it was accepted */
static bool check_misuse(const op_row *row, int32_t n)
{
    uint64_t rng = (uint64_t)n * 0x9e3779b97f4a7c15u + 7;
    ms_tensor *in[MAX_IN];
    call c;

    if (!draw_call(&c, row, dtypes[below(&rng, COUNT(dtypes))], SIZE_SMALL, &rng)) {
        return true;
    }
    spoil(&c, &rng);
    for (int32_t k = 0; k < c.n_in; k++) {
        in[k] = make_leaf(&c.in[k], LEAF_PLAIN, &rng, &arrays[k]);
    }
    const bool accepted = compare_inference(&c, in, 1u << below(&rng, c.n_in));

    for (int32_t k = 0; k < c.n_in; k++) {
        ms_tensor_free(in[k]);
    }
    return accepted;
}

/* -- one row ----------------------------------------------------------------------------------- */

/* Results do not depend on where operands lie. */
static void check_plain_operands(const call *c, ms_tensor *const *in, const outcome *o)
{
    static outcome plain;
    ms_tensor *copy[MAX_IN];

    for (int32_t k = 0; k < c->n_in; k++) {
        assert_ok(ms_op_clone(&copy[k], in[k]));
    }
    run_call(c, copy, -1, &plain);
    expect_same_bits(c, in, "the result of contiguous operands", o->out, plain.out, want.n);
    for (int32_t k = 0; k < c->n_in; k++) {
        ms_tensor_free(copy[k]);
    }
}

/* Gradients of every second draw, on numbers that every dtype holds. */
static void check_draw(const op_row *row, int32_t n, bool *drawn)
{
    static outcome o;
    uint64_t rng = (uint64_t)n * 0x9e3779b97f4a7c15u + 1;
    const bool gradient = n % 2 == 0;
    const int32_t mode = gradient ? below(&rng, N_MODES) : -1;
    const int32_t size = below(&rng, 4) == 0 ? SIZE_BIG : n / 2 % 2 == 0 ? SIZE_ROW : SIZE_SMALL;
    const int32_t values = gradient                                            ? LEAF_GRID
                           : below(&rng, 3) == 0 && !(row->flags & ROW_FINITE) ? LEAF_SPECIAL
                                                                               : LEAF_PLAIN;
    ms_tensor *in[MAX_IN];
    call c;

    if (!draw_call(&c, row, dtypes[below(&rng, COUNT(dtypes))], size, &rng)) {
        return;
    }
    *drawn = true;
    for (int32_t k = 0; k < c.n_in; k++) {
        in[k] = make_leaf(&c.in[k], values, &rng, &arrays[k]);
    }
    c.op->oracle(&c, operands, &want);
    ms_tensor *out;

    assert_ok(row->run(&out, in, &c));
    compare_values(&c, in, out, &want, o.out);
    ms_tensor_free(out);
    assert_true(row->flags & ROW_IN_PLACE || compare_inference(&c, in, 1u << below(&rng, c.n_in)));
    run_on_all(&c, in, row->flags & ROW_IN_PLACE ? -1 : mode, want.n, &o);
    if (!(row->flags & (guarded ? ROW_LIBRARY : ROW_LIBRARY | ROW_DEVICE_LIBRARY))) {
        check_plain_operands(&c, in, &o);
    }
    if (o.has_gradient) {
        check_gradients(&c, in, mode, &o);
    }
    for (int32_t k = 0; k < c.n_in; k++) {
        ms_tensor_free(in[k]);
    }
}

/* -- what is not finite ------------------------------------------------------------------------ */

/* Element `at` of operand k. */
typedef struct element {
    int32_t k;
    int64_t at;
} element;

/* The first, the last or any element of a floating operand; false: there is none. */
static bool draw_element(const call *c, element *e)
{
    e->k = below(c->rng, c->n_in);
    const int64_t n = numel_of(&c->in[e->k]);

    if (!is_float(&c->in[e->k]) || n == 0) {
        return false;
    }
    const int64_t places[] = {0, n - 1, below(c->rng, (int32_t)n)};

    e->at = places[below(c->rng, 3)];
    return true;
}

/* The weighted sum of the oracle's results, or result j alone, with two elements moved. */
static real moved(const call *c, int64_t j, element a, real da, element b, real db)
{
    static array out;
    real sum = 0;

    arrays[a.k].v[a.at] += da;
    arrays[b.k].v[b.at] += db;
    c->op->oracle(c, operands, &out);
    arrays[a.k].v[a.at] -= da;
    arrays[b.k].v[b.at] -= db;
    for (int64_t i = 0; i < out.n && j < 0; i++) {
        sum += (real)weight_of(i) * out.v[i];
    }
    return j < 0 ? sum : out.v[j];
}

/* Are two difference quotients one derivative that is not 0? At a bend they differ. */
static bool is_derivative(real a, real b)
{
    return fabsl(b) > 1e-4L && fabsl(a - b) < 0.1L * fabsl(b);
}

/* Does the gradient of b depend on a? By differences of two steps. */
static bool is_curved(const call *c, element a, element b)
{
    real quotient[2];

    for (int32_t s = 0; s < 2; s++) {
        const real h = s == 0 ? 4e-3L : 2e-3L;

        quotient[s] = (moved(c, -1, a, h, b, h) - moved(c, -1, a, h, b, -h) -
                       moved(c, -1, a, -h, b, h) + moved(c, -1, a, -h, b, -h)) /
                      (4 * h * h);
    }
    return is_derivative(quotient[0], quotient[1]);
}

/* Does result j depend on b? By differences to both sides. */
static bool is_sloped(const call *c, int64_t j, element b)
{
    const real h = 2e-3L, here = moved(c, j, b, 0, b, 0);

    return is_derivative((moved(c, j, b, h, b, 0) - here) / h,
                         (here - moved(c, j, b, -h, b, 0)) / h);
}

static void run_values(const call *c, outcome *o)
{
    static double values[MAX_NUMEL];
    ms_tensor *in[MAX_IN];

    for (int32_t k = 0; k < c->n_in; k++) {
        for (int64_t i = 0; i < arrays[k].n; i++) {
            values[i] = (double)arrays[k].v[i];
        }
        assert_ok(ms_tensor_from_doubles(&in[k], c->in[k].dtype, c->in[k].ndim, c->in[k].shape,
                                         values, arrays[k].n));
    }
    run_call(c, in, c->op->flags & ROW_IN_PLACE ? -1 : MODE_PLAIN, o);
    for (int32_t k = 0; k < c->n_in; k++) {
        ms_tensor_free(in[k]);
    }
}

/* One element of an operand, or of the incoming gradient, is NaN or infinite. Results are not
 * finite where the oracle's are not; a gradient that depends on a NaN is NaN. */
static void check_not_finite(const op_row *row, int32_t n)
{
    static const real bad[] = {NAN, INFINITY, -INFINITY};
    static outcome o;
    uint64_t rng = (uint64_t)n * 0x9e3779b97f4a7c15u + 11;
    const int32_t dtype = dtypes[n % 4];
    const real value = bad[below(&rng, 3)];
    element a, b;
    call c;

    if (!draw_call(&c, row, dtype, n / 4 % 2 == 0 ? SIZE_ROW : SIZE_SMALL, &rng)) {
        return;
    }
    for (int32_t k = 0; k < c.n_in; k++) {
        ms_tensor_free(make_leaf(&c.in[k], LEAF_GRID, &rng, &arrays[k]));
    }
    if (!draw_element(&c, &a) || !draw_element(&c, &b)) {
        return;
    }
    c.op->oracle(&c, operands, &want);
    const int64_t j = want.n > 0 ? below(&rng, (int32_t)want.n) : -1;
    const bool curved = is_curved(&c, a, b), sloped = j >= 0 && is_sloped(&c, j, b);
    const real kept = arrays[a.k].v[a.at];

    nan_weight = sloped ? j : -1;
    run_values(&c, &o);
    nan_weight = -1;
    if (sloped && o.has_gradient && !isnan(o.grad[b.k][b.at])) {
        fail_msg("%s %s: the gradient of operand %d at %lld is %g where NaN comes in at %lld",
                 row->name, ms_dtype_name(dtype), (int)b.k, (long long)b.at, o.grad[b.k][b.at],
                 (long long)j);
    }
    arrays[a.k].v[a.at] = value;
    c.op->oracle(&c, operands, &want);
    run_values(&c, &o);
    for (int64_t i = 0; i < want.n; i++) {
        const real y = want.v[i];

        if (isnan(y) ? !isnan(o.out[i]) : isinf(y) && isfinite(o.out[i])) {
            fail_msg("%s %s: operand %d is %Lg at %lld, the result at %lld %g, expected %Lg",
                     row->name, ms_dtype_name(dtype), (int)a.k, value, (long long)a.at,
                     (long long)i, o.out[i], y);
        }
    }
    if (isnan(value) && curved && o.has_gradient && !isnan(o.grad[b.k][b.at])) {
        fail_msg("%s %s: operand %d is NaN at %lld, the gradient of operand %d at %lld %g",
                 row->name, ms_dtype_name(dtype), (int)a.k, (long long)a.at, (int)b.k,
                 (long long)b.at, o.grad[b.k][b.at]);
    }
    arrays[a.k].v[a.at] = kept;
}

/* Allocation k fails, for every k: an error that says so, and nothing is left behind. */
static void check_failing_allocations(const op_row *row)
{
    uint64_t rng = 5;
    ms_tensor *in[MAX_IN], *out, *weight;
    ms_memory_stats before, after;
    ms_status status = MS_OUT_OF_MEMORY;
    call c;

    if (row->flags & ROW_IN_PLACE || !draw_call(&c, row, MS_DTYPE_F32, SIZE_SMALL, &rng)) {
        return;
    }
    for (int32_t k = 0; k < c.n_in; k++) {
        in[k] = make_leaf(&c.in[k], LEAF_GRID, &rng, &arrays[k]);
        if (is_float(&c.in[k])) {
            assert_ok(ms_tensor_set_requires_grad(in[k], true));
        }
    }
    assert_ok(row->run(&out, in, &c)); /* work space that is kept exists from here on */
    const bool gradient = out->requires_grad;

    weight = make_weight(out);
    assert_ok(gradient ? ms_backward(out, weight) : MS_OK);
    ms_tensor_free(out);
    for (int64_t k = 0; status != MS_OK; k++) {
        for (int32_t i = 0; i < c.n_in; i++) {
            assert_ok(ms_tensor_set_grad(in[i], NULL));
        }
        ms_memory_stats_get(&before);
        msi_alloc_fail_at(msi_context(), k);
        status = row->run(&out, in, &c);
        status = status == MS_OK && gradient ? ms_backward(out, weight) : status;
        msi_alloc_fail_at(msi_context(), -1);
        assert_true(status == MS_OK || status == MS_OUT_OF_MEMORY);
        ms_tensor_free(out);
        for (int32_t i = 0; i < c.n_in; i++) {
            assert_ok(ms_tensor_set_grad(in[i], NULL));
        }
        ms_memory_stats_get(&after);
        assert_int_equal(after.live_handles, before.live_handles);
        assert_int_equal(after.live_total, before.live_total);
        assert_true(k < 1000);
    }
    ms_tensor_free(weight);
    for (int32_t k = 0; k < c.n_in; k++) {
        ms_tensor_free(in[k]);
    }
}

static void test_ops_values__row(void **state)
{
    const op_row *row = *state;
    const int32_t draws =
        from_environment("MS_OP_DRAWS", SANITIZED || !guarded ? DRAWS / 8 : DRAWS);
    bool drawn = false;
    ms_memory_stats before, after;

    ms_memory_stats_get(&before);
    for (int32_t n = 0; n < draws; n++) {
        check_draw(row, n, &drawn);
        refused += !(row->flags & ROW_IN_PLACE) && !check_misuse(row, n);
    }
    for (int32_t n = 0; n < draws / 5; n++) {
        check_not_finite(row, n);
    }
    assert_true(drawn);
    check_failing_allocations(row);
    ms_memory_stats_get(&after);
    assert_int_equal(after.live_handles, before.live_handles);
}

/* -- nothing is left out ----------------------------------------------------------------------- */

/* Kernels that no operator of the table runs: optimizers, initial values, reductions of ranks, and
 * the comparison of ms_tensor_allclose(). */
static const int32_t elsewhere[] = {MSI_K_init,      MSI_K_sgd,   MSI_K_adam, MSI_K_rmsprop,
                                    MSI_K_adagrad,   MSI_K_lion,  MSI_K_norm, MSI_K_norm_cut,
                                    MSI_K_norm_fold, MSI_K_scale, MSI_K_tree, MSI_K_close};

static void test_ops_values__rows_reach_every_kernel(void **state)
{
    const msi_kernel_table *table = msi_kernels();
    int32_t missing = 0;

    (void)state;
    for (int32_t k = 0; k < MSI_K_COUNT; k++) {
        bool other = false;

        for (int32_t e = 0; e < COUNT(elsewhere); e++) {
            other = other || elsewhere[e] == k;
        }
        for (int32_t d = 0; d < MS_DTYPE_COUNT && !other; d++) {
            if (table->fn[k][d] != NULL && !reached[k][d]) {
                print_error("no row runs kernel %s %s\n", msi_kernel_name(k), ms_dtype_name(d));
                missing++;
            }
        }
    }
    assert_int_equal(missing, 0);
    assert_true(differences > 1000 && refused > 1000);
}

/* Every ms_op_... that the header declares has a row. */
static void test_ops_values__every_operator_of_the_header_has_a_row(void **state)
{
    const char *fixtures = getenv("MS_TEST_DATA");
    const op_row *const *rows;
    const int32_t n = collect_rows(&rows);
    char path[512], line[256];

    (void)state;
    snprintf(path, sizeof(path), "%s/../../runtime/include/moonshard/ops.h",
             fixtures != NULL ? fixtures : "tests/fixtures");
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        char *name = strstr(line, "ms_op_");
        bool known = strstr(line, "MS_API") == NULL || name == NULL;

        for (int32_t k = 0; k < n && !known; k++) {
            const size_t length = strlen(rows[k]->name);

            known = strncmp(rows[k]->name, name, length) == 0 && name[length] == '(';
        }
        if (!known) {
            fail_msg("no row in tests/ops/rows: %s", name);
        }
    }
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_ops_values__every_operator_of_the_header_has_a_row),
        cmocka_unit_test(test_ops_values__rows_reach_every_kernel), /* last */
    };
    static struct CMUnitTest tests[MAX_ROWS + COUNT(others)];
    const char *only = getenv("MS_OP"), *device = getenv("MS_DEVICE");
    const op_row *const *rows;
    const int32_t n_rows = collect_rows(&rows);
    size_t n = 0;

    guarded = device == NULL || strcmp(device, "cpu") == 0;
    for (int32_t k = 0; k < n_rows; k++) {
        if (only == NULL || strstr(rows[k]->name, only) != NULL) {
            tests[n++] = (struct CMUnitTest){rows[k]->name, test_ops_values__row, NULL, NULL,
                                             (void *)rows[k]};
        }
    }
    if (only == NULL) {
        memcpy(tests + n, others, sizeof(others));
        n += COUNT(others);
    }
    return _cmocka_run_group_tests("ops/values", tests, n, NULL, NULL);
}
