/* Random programs over every public operator, beside plain loops in long double. A program is a
 * chain of calls; test_programs.c says what is checked of it. A new operator needs a row in one of
 * the families: how operands are drawn, how it is called, what it must give. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "ms_test.h"

/* Oracles compute in long double, so that their finite differences are good to ten digits. */
typedef long double real;

enum { MAX_NUMEL = 1024, MAX_IN = 3 };

/* What a drawn operand holds. */
enum {
    DRAW_SIGNED,   /* [-2, 2); integers in [-9, 9] */
    DRAW_POSITIVE, /* [0.5, 2.5) */
    DRAW_IDS,      /* i64 in [0, limit) */
    DRAW_BOOL
};

typedef struct form {
    int32_t dtype, ndim;
    int64_t shape[MS_MAX_DIMS];
    int32_t draw;
    int64_t limit;
} form;

/* Values in row-major order. A result's also carry how far the runtime may be from them, beyond the
 * rounding to the result's dtype. */
typedef struct array {
    form form;
    int64_t n;
    real v[MAX_NUMEL];
    real slack[MAX_NUMEL];
} array;

/* One call of an operator: its row, operands' forms and its own numbers. */
typedef struct call {
    const struct program_op *op;
    int32_t n_in;
    form in[MAX_IN];
    int64_t i[8];
    double p[2];
    uint64_t *rng;
} call;

typedef struct program_op {
    const char *name; /* of the public function */
    /* Complete a call whose in[0] is given: other operands, numbers. False: not with this one. */
    bool (*plan)(call *c);
    ms_status (*run)(ms_tensor **out, ms_tensor *const *in, const call *c);
    /* Fill in `out`: form, values, slack. */
    void (*oracle)(const call *c, const array *const *in, array *out);
    /* Draw in[0]'s shape for a program that begins with this operator; NULL: any. */
    void (*begin)(form *x, uint64_t *rng);
} program_op;

typedef struct program_family {
    const program_op *ops;
    int32_t n_ops;
} program_family;

extern const program_family elementwise_programs, matrix_programs, row_programs, shape_programs;

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
/* Are dtype and shape the same? */
bool same_form(const form *a, const form *b);
/* out->form = a form, contiguous, and its count. */
void set_form(array *out, int32_t dtype, int32_t ndim, const int64_t *shape);
/* Element of `in` at row-major position `i` of a shape it broadcasts to. */
int64_t broadcast_at(const form *in, int32_t ndim, const int64_t *shape, int64_t i);
/* A shape that broadcasts with f's: sizes replaced by 1, leading dimensions left out. */
void draw_broadcast(form *out, const form *f, uint64_t *rng);
/* Shape of two broadcast operands. */
void broadcast_shape(const form *a, const form *b, int32_t *ndim, int64_t *shape);

/* -- operands (leaf.c) ------------------------------------------------------------------------- */

/* A tensor of the form in memory of any layout, with special values among others if asked for. In
 * `a` what each element must be, found from the memory by own arithmetic. */
ms_tensor *make_leaf(const form *f, bool special, uint64_t *rng, array *a);
/* Move an operand, a leaf of no more elements, into the last elements of the lender's .grad, its
 * dimensions in reversed order; *borrower is replaced. @return all the .grad holds then; the caller
 * frees it */
double *lend_gradient(ms_tensor *lender, const array *lends, ms_tensor **borrower,
                      const array *shown);

#endif
