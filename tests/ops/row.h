/* The table of operators. A row names an operator, draws calls of it, and computes what each call
 * must return with plain loops in long double. Rows call public functions and know no device.
 *
 * Drivers read the rows:
 *   test_values.c    values, gradients, dtypes, strides, instruction sets, shapes, misuse, memory
 *   test_programs.c  random chains of calls
 *   test_accuracy.c  units in the last place over all of f32
 * test_edges.c holds exact results and errors that random operands do not reach.
 *
 * A new operator needs one row in rows/; test_values.c fails for a public operator without one. */
#ifndef ROW_H
#define ROW_H

#include "ms_test.h"

/* Finite differences of oracles in long double are good to ten digits. */
typedef long double real;

enum { MAX_NUMEL = 8192, MAX_IN = 4 };

/* What a drawn operand holds. */
enum {
    DRAW_SIGNED,   /* [-2, 2); integers in [-9, 9] */
    DRAW_POSITIVE, /* [0.5, 2.5) */
    DRAW_IDS,      /* i64 in [0, limit) */
    DRAW_BOOL,
    DRAW_POSITIONS /* i64 in [1, limit] */
};

typedef struct form {
    int32_t dtype, ndim;
    int64_t shape[MS_MAX_DIMS];
    int32_t draw;
    int64_t limit;
} form;

/* Values in row-major order. `slack` of a result: how far the runtime may be from the value, beyond
 * the rounding to the result's dtype. */
typedef struct array {
    form form;
    int64_t n;
    real v[MAX_NUMEL];
    real slack[MAX_NUMEL];
} array;

/* How large operands are. */
enum {
    SIZE_SMALL, /* up to 120 elements, up to 5 dimensions */
    SIZE_ROW,   /* rows of 0 to 130 elements */
    SIZE_BIG,   /* up to 2,000 elements in long rows or columns */
    N_SIZES
};

/* One call of an operator: its row, its operands' forms, and its attributes. */
typedef struct call {
    const struct op_row *op;
    int32_t n_in, size;
    form in[MAX_IN];
    int64_t i[8];
    double p[2];
    uint64_t *rng;
} call;

enum {
    ROW_IN_PLACE = 1,       /* writes into memory: no gradient, no meta function */
    ROW_FINITE = 2,         /* operands are finite numbers of at most 1e4 */
    ROW_LIBRARY = 4,        /* a library's results depend on the operands' strides */
    ROW_CONSTANT = 8,       /* has no gradient, though results depend on operands smoothly */
    ROW_DEVICE_LIBRARY = 16 /* as ROW_LIBRARY, but not on the CPU */
};

typedef struct op_row {
    const char *name; /* of the public function */
    /* Complete a call whose in[0] is given: other operands, attributes. False: in[0] does not fit.
     */
    bool (*plan)(call *c);
    ms_status (*run)(ms_tensor **out, ms_tensor *const *in, const call *c);
    /* Fill in `out`: form, values, slack. */
    void (*oracle)(const call *c, const array *const *in, array *out);
    /* Draw in[0]'s shape for c->size where not every shape fits; NULL: any. */
    void (*begin)(call *c);
    /* Are these operands away from poles and bends? NULL: always. */
    bool (*smooth)(const call *c, const array *const *in);
    uint32_t flags;
    real grad_error; /* of gradients, in roundings of the largest; 0: 16 */
} op_row;

/* run_<name>, which makes the call. */
#define RUN(name, CALL)                                                                            \
    static ms_status run_##name(ms_tensor **out, ms_tensor *const *in, const call *c)              \
    {                                                                                              \
        (void)c;                                                                                   \
        return (CALL);                                                                             \
    }
/* A row of ms_op_<name>, with its run_<name> and oracle_<name>. */
#define OP(op, plan_, ...)                                                                         \
    {                                                                                              \
        .name = "ms_op_" #op, .plan = (plan_), .run = run_##op, .oracle = oracle_##op, __VA_ARGS__ \
    }

/* One array of rows per family, ended by a row without a name. */
extern const op_row elementwise_rows[], matrix_rows[], reduction_rows[], shape_rows[],
    gather_rows[], spatial_rows[];

/* All rows of all families. @return how many */
int32_t collect_rows(const op_row *const **rows);

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

/* -- helpers (support.c) ----------------------------------------------------------------------- */

/* [0, n). */
int32_t below(uint64_t *rng, int32_t n);
/* [0, 1). */
double uniform(uint64_t *rng);
int64_t numel_of(const form *f);
/* Rounding unit of a dtype (half a last place, relative), of what it is computed in, and its
 * largest number; 0 units for integers. */
real unit_of(int32_t dtype);
real compute_unit_of(int32_t dtype);
real largest_of(int32_t dtype);
bool is_float(const form *f);
/* i64 or i32. */
bool is_integer(const form *f);
/* Are dtype and shape the same? */
bool same_form(const form *a, const form *b);
/* to = from, of as many elements as it has. */
void copy_array(array *to, const array *from);
/* out->form = a form, contiguous, and its count. */
void set_form(array *out, int32_t dtype, int32_t ndim, const int64_t *shape);
/* Element of `in` at row-major position `i` of a shape it broadcasts to. */
int64_t broadcast_at(const form *in, int32_t ndim, const int64_t *shape, int64_t i);
/* A shape that broadcasts with f's: sizes replaced by 1, leading dimensions left out. */
void draw_broadcast(form *out, const form *f, uint64_t *rng);
/* Shape of two broadcast operands. */
void broadcast_shape(const form *a, const form *b, int32_t *ndim, int64_t *shape);
/* Is every element of x at least 0.004 away from `at`? */
bool is_away(const array *x, real at);
/* Is `got` what `want` becomes in the dtype, give or take `slack`? */
bool agrees(int32_t dtype, double got, real want, real slack);
/* Fail unless t has the oracle's dtype and shape and agrees with it; its values go to `got`. */
void compare_values(const call *c, ms_tensor *const *in, ms_tensor *t, const array *want,
                    double *got);
void describe(const call *c, ms_tensor *const *in);
/* An integer from the environment. */
int32_t from_environment(const char *name, int32_t otherwise);

/* -- operands (leaf.c) ------------------------------------------------------------------------- */

/* A call with operands that the operator takes, in[0] of this dtype and size. False: it takes none.
 */
bool draw_call(call *c, const op_row *op, int32_t dtype, int32_t size, uint64_t *rng);

enum {
    LEAF_PLAIN,
    LEAF_SPECIAL, /* NaN, infinities, zeros, denormals and numbers near the ends of the range */
    LEAF_GRID     /* odd multiples of 1/32: exact in every dtype, and none at a bend */
};

/* A tensor of the form in memory of any start and strides. In `a` what each element must be, found
 * from the memory by own arithmetic. */
ms_tensor *make_leaf(const form *f, int32_t values, uint64_t *rng, array *a);
/* Move an operand, a leaf of no more elements, into the last elements of the lender's .grad, its
 * dimensions in reversed order; *borrower is replaced. @return all the .grad holds then; the caller
 * frees it */
double *lend_gradient(ms_tensor *lender, const array *lends, ms_tensor **borrower,
                      const array *shown);

#endif
