/* Random programs: chains of one to six calls of the table's rows.
 *
 * Operands are results of earlier calls or drawn, and may lie in the .grad of another operand of
 * their call. Every result is compared with the row's oracle of what the operands really hold.
 * Where a chain is smooth, gradients of its leaves are compared with finite differences over the
 * chain.
 *
 * MS_PROGRAMS=100000 runs more, MS_PROGRAM=n runs the n-th alone and prints its calls. */
#include "row.h"

#include "tensor.h"

enum { PROGRAMS = 2000, MAX_CALLS = 6, MAX_SLOTS = 4 * MAX_CALLS };

typedef struct slot {
    array a;
    ms_tensor *t;
    bool differentiated; /* a leaf that requires grad */
    double *before;      /* what its .grad held before backward; NULL: none */
    bool lent;           /* lies in the .grad of another leaf */
} slot;

typedef struct program {
    int32_t number;
    uint64_t rng;
    bool special, verbose;
    bool rough;  /* values at poles or bends */
    bool narrow; /* bf16 somewhere */
    slot slot[MAX_SLOTS];
    int32_t n_slots;
    call calls[MAX_CALLS];
    int32_t in[MAX_CALLS][MAX_IN], out[MAX_CALLS];
    int32_t n_calls;
} program;

static program the; /* one at a time: it is large */
static const op_row *const *all_ops;
static int32_t n_ops, gradients_checked, gradients_read;

static void describe_call(const program *p, int32_t k)
{
    ms_tensor *tensors[MAX_IN];

    for (int32_t i = 0; i < p->calls[k].n_in; i++) {
        tensors[i] = p->slot[p->in[k][i]].t;
    }
    print_message("program %d%s: ", (int)p->number, p->special ? " (special)" : "");
    describe(&p->calls[k], tensors);
}

/* Where functions have poles or bends, finite differences need more distance than is left. */
static void judge(program *p, const call *c, const array *const *in, const array *y)
{
    p->rough = p->rough || (c->op->smooth != NULL && !c->op->smooth(c, in));
    for (int32_t k = 0; k < c->n_in && c->op->smooth != NULL; k++) {
        p->rough = p->rough || !is_away(in[k], 0); /* earlier calls move operands further */
    }
    for (int64_t i = 0; i < y->n; i++) {
        p->rough = p->rough || !(fabsl(y->v[i]) < 1e4L);
    }
    p->narrow = p->narrow || ms_dtype_is_narrow(y->form.dtype);
}

/* Sizes that stay within MAX_NUMEL whatever comes next. */
static bool small(const form *f)
{
    int64_t n = 1;

    for (int32_t d = 0; d < f->ndim; d++) {
        n *= f->shape[d] > 0 ? f->shape[d] : 1;
    }
    return n <= 200 && f->ndim <= 6;
}

/* Integers whose products a double holds; for attention, finite numbers: what a mask hides counts
 * as 0, not as absent. */
static bool fits_next(const array *x, bool finite)
{
    for (int64_t i = 0; i < x->n; i++) {
        if (finite && !(fabsl(x->v[i]) <= 1e4L)) {
            return false;
        }
        if (!is_float(&x->form) && fabsl(x->v[i]) > 0x1p26L) {
            return false;
        }
    }
    return true;
}

static int32_t new_leaf(program *p, const form *f)
{
    slot *s = &p->slot[p->n_slots];

    s->t = make_leaf(f, p->special ? LEAF_SPECIAL : LEAF_PLAIN, &p->rng, &s->a);
    s->before = NULL;
    s->lent = false;
    s->differentiated = is_float(f) && below(&p->rng, 4) > 0;
    if (s->differentiated) {
        assert_ok(ms_tensor_set_requires_grad(s->t, true));
    }
    p->narrow = p->narrow || ms_dtype_is_narrow(f->dtype);
    return p->n_slots++;
}

/* The operand's slot: an earlier value of its form, or a new leaf. (What lies in a gradient is read
 * by one call: backward may have added to it when an earlier one's turn comes.) */
static int32_t operand(program *p, const form *f)
{
    for (int32_t k = 0; k < p->n_slots && f->draw == DRAW_SIGNED; k++) {
        if (same_form(&p->slot[k].a.form, f) && !p->slot[k].lent &&
            fits_next(&p->slot[k].a, false) && below(&p->rng, 3) == 0) {
            return k;
        }
    }
    return new_leaf(p, f);
}

/* Move an operand that is new in this call, from slot `fresh` on, into the .grad of another. */
static void lend_one(program *p, const int32_t *in, int32_t n_in, int32_t fresh)
{
    for (int32_t k = 0; k < n_in * n_in; k++) {
        slot *lender = &p->slot[in[k / n_in]], *borrower = &p->slot[in[k % n_in]];

        if (lender != borrower && lender->differentiated && lender->before == NULL &&
            !lender->lent && in[k % n_in] >= fresh && borrower->a.n > 0 &&
            lender->a.n >= borrower->a.n && lender->a.form.dtype == borrower->a.form.dtype) {
            lender->before = lend_gradient(lender->t, &lender->a, &borrower->t, &borrower->a);
            borrower->lent = true;
            return;
        }
    }
}

static void run_call(program *p, const call *c, int32_t first)
{
    static array want;
    static double got[MAX_NUMEL];
    int32_t *in = p->in[p->n_calls];
    const array *arrays[MAX_IN] = {NULL};
    ms_tensor *tensors[MAX_IN] = {NULL};
    const int32_t fresh = p->n_calls > 0 ? p->n_slots : 0;

    in[0] = first;
    for (int32_t k = 1; k < c->n_in; k++) {
        in[k] = operand(p, &c->in[k]);
    }
    lend_one(p, in, c->n_in, fresh);
    for (int32_t k = 0; k < c->n_in; k++) {
        arrays[k] = &p->slot[in[k]].a;
        tensors[k] = p->slot[in[k]].t;
    }
    slot *y = &p->slot[p->n_slots];

    y->differentiated = y->lent = false;
    y->before = NULL;
    y->t = NULL;
    p->calls[p->n_calls] = *c;
    if (p->verbose) {
        describe_call(p, p->n_calls);
    }
    if (c->op->run(&y->t, tensors, c) != MS_OK) {
        describe_call(p, p->n_calls);
        fail_msg("%s", ms_error_message());
    }
    c->op->oracle(c, arrays, &want);
    compare_values(c, tensors, y->t, &want, got);
    copy_array(&y->a, &want);
    for (int64_t i = 0; i < want.n; i++) {
        y->a.v[i] = (real)got[i];
    }
    judge(p, c, arrays, &y->a);
    p->out[p->n_calls++] = p->n_slots++;
}

static void begin(program *p)
{
    static const int32_t dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F32,  MS_DTYPE_F64,
                                     MS_DTYPE_F64, MS_DTYPE_BF16, MS_DTYPE_F16,
                                     MS_DTYPE_I64, MS_DTYPE_U8,   MS_DTYPE_BOOL};
    const op_row *row = all_ops[p->number % n_ops];
    call c;

    while (!draw_call(&c, row, dtypes[below(&p->rng, COUNT(dtypes))], SIZE_SMALL, &p->rng)) {
    }
    p->special = is_float(&c.in[0]) && below(&p->rng, 4) == 0 && !(row->flags & ROW_FINITE);
    run_call(p, &c, new_leaf(p, &c.in[0]));
}

/* Another call, on the last result or (rarely) on an earlier value. */
static bool extend(program *p)
{
    for (int32_t tries = 0; tries < 10; tries++) {
        const int32_t first = below(&p->rng, 4) == 0 ? below(&p->rng, p->n_slots) : p->n_slots - 1;
        call c = {.op = all_ops[below(&p->rng, n_ops)], .rng = &p->rng};
        const array *x = &p->slot[first].a;
        const bool finite = c.op->flags & ROW_FINITE;
        const bool fits = small(&x->form) && fits_next(x, finite) && !p->slot[first].lent;

        c.in[0] = x->form;
        if (fits && !(p->special && finite) && c.op->plan(&c)) {
            run_call(p, &c, first);
            return true;
        }
    }
    return false;
}

/* -- gradients --------------------------------------------------------------------------------- */

static array shadow[MAX_SLOTS]; /* the chain by loops alone */

/* The loops' results, weighted: into `terms`. */
static int64_t evaluate(const program *p, const real *weight, real *terms)
{
    for (int32_t k = 0; k < p->n_calls; k++) {
        const array *in[MAX_IN] = {NULL};

        for (int32_t i = 0; i < p->calls[k].n_in; i++) {
            in[i] = &shadow[p->in[k][i]];
        }
        if (!(p->calls[k].op->flags & (ROW_IN_PLACE | ROW_CONSTANT))) {
            p->calls[k].op->oracle(&p->calls[k], in, &shadow[p->out[k]]);
        }
    }
    const array *last = &shadow[p->n_slots - 1];

    for (int64_t i = 0; i < last->n; i++) {
        terms[i] = weight[i] * last->v[i];
    }
    return last->n;
}

/* Central difference over `h`; *size: the same of magnitudes. */
static real difference(const program *p, int32_t leaf, int64_t i, real h, const real *weight,
                       real *size)
{
    static real up[MAX_NUMEL], down[MAX_NUMEL];
    const real x = shadow[leaf].v[i];
    real sum = 0;

    shadow[leaf].v[i] = x + h;
    const int64_t n = evaluate(p, weight, up);

    shadow[leaf].v[i] = x - h;
    evaluate(p, weight, down);
    shadow[leaf].v[i] = x;
    *size = 0;
    for (int64_t k = 0; k < n; k++) {
        sum += (up[k] - down[k]) / (2 * h);
        *size += fabsl(up[k] - down[k]) / (2 * h);
    }
    return sum;
}

static void check_leaf(program *p, int32_t leaf, const real *weight)
{
    const int32_t dtype = p->slot[leaf].a.form.dtype;
    const real relative = p->narrow ? 0.06L : dtype == MS_DTYPE_F64 ? 1e-7L : 2e-3L;
    static double grad[MAX_NUMEL];
    real room = p->narrow               ? 0.01L /* sums of rounded products may cancel */
                : dtype == MS_DTYPE_F64 ? 0
                                        : 2e-5L;
    ms_tensor *g;

    memset(grad, 0, sizeof(grad));
    assert_ok(ms_tensor_grad(&g, p->slot[leaf].t));
    if (g != NULL) { /* else the result does not depend on it: the difference is 0 */
        assert_ok(ms_tensor_to_doubles(g, grad, p->slot[leaf].a.n));
        ms_tensor_free(g);
    }
    for (int64_t i = 0; i < p->slot[leaf].a.n && p->narrow; i++) {
        room = fmaxl(room, 0.03L * fabsl((real)grad[i]));
    }
    for (int64_t i = 0; i < p->slot[leaf].a.n && p->slot[leaf].before != NULL; i++) {
        grad[i] -= p->slot[leaf].before[i];
        gradients_read += i == 0;
    }
    for (int32_t k = 0; k < 6 && p->slot[leaf].a.n > 0; k++) {
        const int64_t i = below(&p->rng, (int32_t)p->slot[leaf].a.n);
        real size, ignored;
        const real coarse = difference(p, leaf, i, 2e-3L, weight, &size);
        const real fine = difference(p, leaf, i, 1e-3L, weight, &ignored);
        const real want = (4 * fine - coarse) / 3, spread = fabsl(fine - coarse);

        if (!isfinite(spread) || spread > 0.01L * (size + 1e-3L)) {
            continue; /* not smooth enough here */
        }
        if (!(fabsl(grad[i] - want) <= relative * (size + 1e-3L) + spread + room)) {
            for (int32_t c = 0; c < p->n_calls; c++) {
                describe_call(p, c);
            }
            fail_msg("the gradient of operand %d at %lld is %.9g, expected %.9Lg within %.3Lg",
                     (int)leaf, (long long)i, grad[i], want, relative * size + spread + room);
        }
        gradients_checked++;
    }
}

static void differentiate(program *p)
{
    static real weight[MAX_NUMEL];
    slot *last = &p->slot[p->n_slots - 1];
    static double values[MAX_NUMEL];
    ms_tensor_info info;
    ms_tensor *seed;
    form f = last->a.form;
    bool mixed = false;

    assert_ok(ms_tensor_describe(last->t, &info));
    if (!info.requires_grad || info.is_leaf) {
        return;
    }
    for (int64_t i = 0; i < last->a.n; i++) {
        values[i] = 2 * uniform(&p->rng) - 1;
    }
    assert_ok(ms_tensor_from_doubles(&seed, f.dtype, f.ndim, f.shape, values, last->a.n));
    assert_ok(ms_tensor_to_doubles(seed, values, last->a.n));
    assert_ok(ms_backward(last->t, seed)); /* with special values too: it must end */
    ms_tensor_free(seed);
    for (int32_t k = 0; k < p->n_slots; k++) {
        mixed = mixed || p->slot[k].a.form.dtype != f.dtype;
        copy_array(&shadow[k], &p->slot[k].a);
    }
    if (p->special || p->rough || (p->narrow && p->n_calls > 1)) {
        return;
    }
    for (int64_t i = 0; i < last->a.n; i++) {
        weight[i] = (real)values[i];
    }
    for (int32_t k = 0; k < p->n_slots; k++) {
        const bool wide = p->slot[k].a.form.dtype == MS_DTYPE_F64;

        if (p->slot[k].differentiated && !(mixed && wide)) {
            check_leaf(p, k, weight);
        }
    }
}

static void run_program(int32_t number, bool verbose)
{
    program *p = &the;

    memset(p, 0, offsetof(program, slot));
    p->n_slots = p->n_calls = 0;
    p->number = number;
    p->verbose = verbose;
    p->rng = (uint64_t)number * 0x9e3779b97f4a7c15u + 1;
    begin(p);
    for (int32_t left = below(&p->rng, MAX_CALLS); left > 0 && extend(p); left--) {
    }
    differentiate(p);
    for (int32_t k = 0; k < p->n_slots; k++) {
        ms_tensor_free(p->slot[k].t);
        free(p->slot[k].before);
    }
}

static void test_ops_programs__give_what_plain_loops_give(void **state)
{
    const int32_t one = from_environment("MS_PROGRAM", -1);
    const int32_t n = from_environment("MS_PROGRAMS", PROGRAMS);

    (void)state;
    n_ops = collect_rows(&all_ops);
    if (one >= 0) {
        run_program(one, true);
        return;
    }
    for (int32_t k = 0; k < n; k++) {
        run_program(k, false);
    }
    print_message("%d programs: %d gradients, %d read while added to\n", (int)n,
                  (int)gradients_checked, (int)gradients_read);
    assert_true(gradients_checked > n && gradients_read >= n / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops_programs__give_what_plain_loops_give),
    };

    return cmocka_run_group_tests_name("ops/programs", tests, NULL, NULL);
}
