/* Random programs over every public operator against plain loops in long double (programs/).
 *
 * A program is a chain of one to six calls. Operands are results of earlier calls or drawn: any
 * dtype, sizes of 0 and 1, permuted, narrowed, selected and expanded memory, and in some programs
 * NaN, infinities, -0, denormals and numbers near the ends of the range. After every call the
 * result is compared with the loops over what the operands really hold. Where a chain is smooth,
 * gradients of all its leaves are compared with finite differences of the loops over the whole
 * chain. Operands may lie in the .grad of another operand of their call.
 *
 * MS_PROGRAMS=100000 runs more, MS_PROGRAM=n runs the n-th alone and says what it does. */
#include "programs/program.h"

#include "tensor.h"
#include "unary_oracle.h"

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
    bool rough;  /* values at which finite differences say nothing */
    bool narrow; /* bf16 somewhere */
    slot slot[MAX_SLOTS];
    int32_t n_slots;
    call calls[MAX_CALLS];
    int32_t in[MAX_CALLS][MAX_IN], out[MAX_CALLS];
    int32_t n_calls;
} program;

static program the; /* one at a time: it is large */
static const program_op *all_ops[128];
static int32_t n_ops, calls_of[128], gradients_checked, gradients_read, values_checked;

static void collect_ops(void)
{
    const program_family *families[] = {&elementwise_programs, &matrix_programs, &row_programs,
                                        &shape_programs};

    n_ops = 0;
    for (int32_t f = 0; f < COUNT(families); f++) {
        for (int32_t k = 0; k < families[f]->n_ops; k++) {
            all_ops[n_ops++] = &families[f]->ops[k];
        }
    }
}

/* -- drawing ----------------------------------------------------------------------------------- */

static void draw_form(program *p, form *f)
{
    static const int64_t sizes[] = {1, 1, 2, 3, 4, 5, 7, 16};
    int64_t n = 1;

    f->ndim = below(&p->rng, 6);
    for (int32_t d = 0; d < f->ndim; d++) {
        f->shape[d] = sizes[below(&p->rng, 8)];
        if (n * f->shape[d] > 120) {
            f->shape[d] = 1;
        }
        n *= f->shape[d];
    }
    if (f->ndim > 0 && below(&p->rng, 12) == 0) {
        f->shape[below(&p->rng, f->ndim)] = 0;
    }
}

/* -- running ----------------------------------------------------------------------------------- */

static void describe(const program *p, const call *c, const int32_t *in)
{
    print_message("program %d%s: %s(", (int)p->number, p->special ? " (special)" : "", c->op->name);
    for (int32_t k = 0; k < c->n_in; k++) {
        const ms_tensor *t = p->slot[in[k]].t;

        print_message("%s%d: %s %s strides %s", k > 0 ? ", " : "", (int)in[k],
                      ms_dtype_name(t->v.dtype), msi_shape_text(t->v.ndim, t->v.shape),
                      msi_shape_text(t->v.ndim, t->v.stride));
    }
    print_message("; %lld %lld %lld %lld, %g %g)\n", (long long)c->i[0], (long long)c->i[1],
                  (long long)c->i[2], (long long)c->i[3], c->p[0], c->p[1]);
}

/* Is `got` the truth rounded to its dtype, give or take `slack`? */
static bool agrees(int32_t dtype, double got, real want, real slack)
{
    const real largest = largest_of(dtype);
    const real least = dtype == MS_DTYPE_F64   ? 0x1p-1073L
                       : dtype == MS_DTYPE_F16 ? 0x1p-25L
                                               : 0x1p-126L * 0x1p-7L;

    if (isnan(slack) || isinf(slack)) {
        return true;
    }
    if (!ms_dtype_is_floating(dtype)) {
        return got == (double)want;
    }
    if (isnan(want) || isnan(got)) {
        return isnan(want) && isnan(got);
    }
    const real room = slack + unit_of(dtype) * fabsl(want) * 1.001L + least;

    if (isinf(got)) {
        return !signbit(got) == !signbit(want) && fabsl(want) + room >= largest;
    }
    if (want == 0 && got == 0 && slack == 0) {
        return !signbit(got) == !signbit(want);
    }
    return isfinite(want) && fabsl(got - want) <= room;
}

static void compare(program *p, const call *c, const int32_t *in, slot *s, const array *want)
{
    double got[MAX_NUMEL];
    ms_tensor_info info;

    assert_ok(ms_tensor_describe(s->t, &info));
    bool same = info.dtype == want->form.dtype && info.ndim == want->form.ndim;

    for (int32_t d = 0; same && d < info.ndim; d++) {
        same = info.shape[d] == want->form.shape[d];
    }
    if (!same) {
        describe(p, c, in);
        fail_msg("the result is %s %s, expected %s %s", ms_dtype_name(info.dtype),
                 msi_shape_text(info.ndim, info.shape), ms_dtype_name(want->form.dtype),
                 msi_shape_text(want->form.ndim, want->form.shape));
    }
    assert_ok(ms_tensor_to_doubles(s->t, got, want->n));
    s->a = *want;
    for (int64_t i = 0; i < want->n; i++) {
        if (!agrees(info.dtype, got[i], want->v[i], want->slack[i])) {
            describe(p, c, in);
            for (int32_t k = 0; k < c->n_in && p->verbose; k++) {
                for (int64_t j = 0; j < p->slot[in[k]].a.n; j++) {
                    print_message(" %Lg", p->slot[in[k]].a.v[j]);
                }
                print_message("\n");
            }
            fail_msg("element %lld is %.9g, expected %.9Lg within %.3Lg", (long long)i, got[i],
                     want->v[i], want->slack[i]);
        }
        s->a.v[i] = (real)got[i];
        values_checked++;
    }
}

/* Least distance between the largest and the smallest element of a row. */
static real least_range(const array *x)
{
    const int64_t n = x->form.shape[x->form.ndim - 1];
    real least = INFINITY;

    for (int64_t i = 0; i < x->n; i += n) {
        real low = INFINITY, high = -INFINITY;

        for (int64_t j = 0; j < n; j++) {
            low = fminl(low, x->v[i + j]);
            high = fmaxl(high, x->v[i + j]);
        }
        least = fminl(least, high - low);
    }
    return least;
}

/* How far an operand is from the operator's pole or bend: at 0 if nothing else is said. */
static real from_bend(const call *c, real x)
{
    if (strcmp(c->op->name, "ms_op_clamp") == 0) {
        return fminl(fabsl(x - (real)c->p[0]), fabsl(x - (real)c->p[1]));
    }
    return strcmp(c->op->name, "ms_op_log1p") == 0      ? x + 1
           : strcmp(c->op->name, "ms_op_softplus") == 0 ? (real)c->p[0] * x - (real)c->p[1]
                                                        : x;
}

/* Where functions have poles or bends, finite differences need more distance than is left. */
static void judge(program *p, const call *c, const int32_t *in)
{
    static const char *const bent[] = {"ms_op_pow",   "ms_op_div",      "ms_op_reciprocal",
                                       "ms_op_where", "ms_op_softplus", "ms_op_clamp"};
    const slot *y = &p->slot[p->out[p->n_calls]];
    bool edge = false;

    for (int32_t k = 0; k < COUNT(bent); k++) {
        edge = edge || strcmp(c->op->name, bent[k]) == 0;
    }
    for (int32_t k = 0; k < COUNT(unary_oracles); k++) {
        edge =
            edge || (unary_oracles[k].bent && strcmp(c->op->name, unary_oracles[k].function) == 0);
    }
    if (strcmp(c->op->name, "ms_op_layer_norm") == 0) { /* rows of nearly one value */
        p->rough = p->rough || least_range(&p->slot[in[0]].a) < 0.1L;
    }
    if (strcmp(c->op->name, "ms_op_maximum") == 0 || strcmp(c->op->name, "ms_op_minimum") == 0) {
        p->rough = true; /* operands that are nearly equal; autograd/ops/ has the gradient */
    }
    for (int32_t k = 0; k < c->n_in; k++) {
        const array *x = &p->slot[in[k]].a;

        for (int64_t i = 0; i < x->n && edge && is_float(&x->form); i++) {
            p->rough = p->rough || fabsl(from_bend(c, x->v[i])) < 0.02L;
        }
    }
    for (int64_t i = 0; i < y->a.n; i++) {
        p->rough = p->rough || !(fabsl(y->a.v[i]) < 1e4L);
    }
    p->narrow = p->narrow || ms_dtype_is_narrow(y->a.form.dtype);
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

    s->t = make_leaf(f, p->special, &p->rng, &s->a);
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

static int32_t op_index(const program_op *op)
{
    int32_t k = 0;

    while (all_ops[k] != op) {
        k++;
    }
    return k;
}

static void run_call(program *p, call *c, int32_t first)
{
    static array want;
    int32_t *in = p->in[p->n_calls];
    const array *arrays[MAX_IN] = {NULL};
    ms_tensor *tensors[MAX_IN] = {NULL};

    in[0] = first;
    const int32_t fresh = p->n_calls > 0 ? p->n_slots : 0;

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
    if (p->verbose) {
        describe(p, c, in);
    }
    ms_status status = c->op->run(&y->t, tensors, c);

    if (status != MS_OK) {
        describe(p, c, in);
        fail_msg("%s: %s", ms_status_name(status), ms_error_message());
    }
    c->op->oracle(c, arrays, &want);
    p->out[p->n_calls] = p->n_slots++;
    compare(p, c, in, y, &want);
    judge(p, c, in);
    calls_of[op_index(c->op)]++;
    p->calls[p->n_calls++] = *c;
}

static bool is_attention(const program_op *op)
{
    return strncmp(op->name, "ms_op_attention", 15) == 0;
}

static void begin(program *p)
{
    const program_op *op = all_ops[p->number % n_ops];

    for (;;) {
        call c = {.op = op, .rng = &p->rng};
        const int32_t kind = below(&p->rng, 8);

        c.in[0].dtype = kind < 6 ? kind % 3 : kind == 6 ? MS_DTYPE_I64 : MS_DTYPE_U8;
        if (below(&p->rng, 20) == 0) {
            c.in[0].dtype = MS_DTYPE_BOOL;
        }
        draw_form(p, &c.in[0]);
        if (op->begin != NULL) {
            op->begin(&c.in[0], &p->rng);
        }
        p->special = is_float(&c.in[0]) && below(&p->rng, 4) == 0 && !is_attention(op);
        if (op->plan(&c)) {
            run_call(p, &c, new_leaf(p, &c.in[0]));
            return;
        }
    }
}

/* Another call, on the last result or (rarely) on an earlier value. */
static bool extend(program *p)
{
    for (int32_t tries = 0; tries < 10; tries++) {
        const int32_t first = below(&p->rng, 4) == 0 ? below(&p->rng, p->n_slots) : p->n_slots - 1;
        call c = {.op = all_ops[below(&p->rng, n_ops)], .rng = &p->rng};
        const array *x = &p->slot[first].a;
        const bool fits =
            small(&x->form) && fits_next(x, is_attention(c.op)) && !p->slot[first].lent;

        c.in[0] = x->form;
        if (fits && !(p->special && is_attention(c.op)) && c.op->plan(&c)) {
            run_call(p, &c, first);
            return true;
        }
    }
    return false;
}

/* -- gradients --------------------------------------------------------------------------------- */

static array shadow[MAX_SLOTS]; /* the chain by loops alone */

/* Are its results constants to a derivative? */
static bool in_place(const program_op *op)
{
    return strncmp(op->name, "ms_tensor_", 10) == 0;
}

/* The loops' results, weighted: into `terms`. */
static int64_t evaluate(const program *p, const real *weight, real *terms)
{
    for (int32_t k = 0; k < p->n_calls; k++) {
        const array *in[MAX_IN] = {NULL};

        for (int32_t i = 0; i < p->calls[k].n_in; i++) {
            in[i] = &shadow[p->in[k][i]];
        }
        if (!in_place(p->calls[k].op)) {
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
    double grad[MAX_NUMEL] = {0};
    real room = p->narrow               ? 0.01L /* sums of rounded products may cancel */
                : dtype == MS_DTYPE_F64 ? 0
                                        : 2e-5L;
    ms_tensor *g;

    assert_ok(ms_tensor_grad(&g, p->slot[leaf].t));
    if (g != NULL) { /* else the result does not depend on it, which the difference must say too */
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
                describe(p, &p->calls[c], p->in[c]);
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
    double values[MAX_NUMEL];
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
        shadow[k] = p->slot[k].a;
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

static int32_t from_environment(const char *name, int32_t otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : otherwise;
}

static void test_autograd_programs__give_what_plain_loops_give(void **state)
{
    const int32_t one = from_environment("MS_PROGRAM", -1);
    const int32_t n = from_environment("MS_PROGRAMS", PROGRAMS);

    (void)state;
    collect_ops();
    if (one >= 0) {
        run_program(one, true);
        return;
    }
    for (int32_t k = 0; k < n; k++) {
        run_program(k, false);
    }
    for (int32_t k = 0; k < n_ops; k++) {
        if (calls_of[k] < n / 100) {
            fail_msg("%s was called %d times in %d programs", all_ops[k]->name, (int)calls_of[k],
                     (int)n);
        }
    }
    print_message("%d programs: %d values, %d gradients, %d read while added to\n", (int)n,
                  (int)values_checked, (int)gradients_checked, (int)gradients_read);
    assert_true(gradients_checked > n && values_checked > 10 * n && gradients_read > n / 50);
}

/* Every ms_op_... that the header declares has a row: a new one without fails here. */
static void test_autograd_programs__know_every_operator_of_the_header(void **state)
{
    const char *fixtures = getenv("MS_TEST_DATA");
    char path[512], line[256];
    int32_t declared = 0;

    (void)state;
    collect_ops();
    snprintf(path, sizeof(path), "%s/../../runtime/include/moonshard/ops.h",
             fixtures != NULL ? fixtures : "tests/fixtures");
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        char *name = strstr(line, "ms_status ms_op_");
        bool known = false;

        if (name == NULL) {
            continue;
        }
        name += strlen("ms_status ");
        name[strcspn(name, "(")] = 0;
        for (int32_t k = 0; k < n_ops; k++) {
            known = known || strcmp(all_ops[k]->name, name) == 0;
        }
        if (!known) {
            fail_msg("%s has no row in tests/autograd/programs", name);
        }
        declared++;
    }
    fclose(file);
    assert_true(declared > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_autograd_programs__know_every_operator_of_the_header),
        cmocka_unit_test(test_autograd_programs__give_what_plain_loops_give),
    };

    return cmocka_run_group_tests_name("autograd/programs", tests, NULL, NULL);
}
