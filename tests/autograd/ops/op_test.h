/* One row of the op test: an operator on operands of given shapes and layouts, beside the plain
 * loops that say what it must give. test_ops.c says what is checked of every row. */
#ifndef OP_TEST_H
#define OP_TEST_H

#include "ms_test.h"

/* Oracles compute in long double, so that their finite differences are good to ten digits. */
typedef long double real;

enum { OP_MAX_IN = 3, OP_MAX_NUMEL = 4352 };

/* How an operand lies in memory. */
enum {
    LAYOUT_PLAIN,
    LAYOUT_PERMUTED, /* memory holds the dimensions in reverse order */
    LAYOUT_NARROWED  /* cut out of a tensor that is larger by two in every dimension */
};

/* What values it gets; all but ids are differentiated. */
enum {
    VALUES_SIGNED,   /* [-1.5, 1.5) */
    VALUES_POSITIVE, /* [0.5, 2) */
    VALUES_IDS       /* i64, [0, limit) */
};

typedef struct operand {
    int32_t ndim;
    int64_t shape[5];
    int32_t layout;
    int32_t values;
    int64_t limit;
} operand;

typedef struct op_case {
    const char *name;
    ms_status (*run)(ms_tensor **out, ms_tensor *const *in, const struct op_case *c);
    /* Writes the result from in[], all row-major in their logical shapes. */
    void (*oracle)(const struct op_case *c, const real *const *in, real *out);
    /* For oracle_map: one element of the result from one of each operand. */
    real (*map)(const struct op_case *c, real a, real b);
    int32_t n_in;
    operand in[OP_MAX_IN];
    operand out;   /* shape alone counts */
    bool integer;  /* run in i64 and i32 alone, without gradients */
    int32_t terms; /* of the longest sum, forward or backward; 0 means 1 */
    double p[2];   /* the operator's own numbers */
    int64_t i[4];
} op_case;

typedef struct op_family {
    const op_case *cases;
    int32_t n_cases;
} op_family;

extern const op_family elementwise_cases, choice_cases, shape_cases, matrix_cases, row_cases,
    attention_cases;

/* Comparisons and where in every dtype, on values all of them hold (choice.c). */
void test_autograd_ops__comparisons_in_all_dtypes(void **state);
void test_autograd_ops__what_is_no_number(void **state);

#define DIMS(...)                                                                                  \
    .ndim = (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .shape = {__VA_ARGS__}
#define SCALAR                                                                                     \
    {                                                                                              \
        .ndim = 0                                                                                  \
    }
#define SHAPE(...)                                                                                 \
    {                                                                                              \
        DIMS(__VA_ARGS__)                                                                          \
    }
#define PERMUTED(...)                                                                              \
    {                                                                                              \
        DIMS(__VA_ARGS__), .layout = LAYOUT_PERMUTED                                               \
    }
#define NARROWED(...)                                                                              \
    {                                                                                              \
        DIMS(__VA_ARGS__), .layout = LAYOUT_NARROWED                                               \
    }
#define POSITIVE(...)                                                                              \
    {                                                                                              \
        DIMS(__VA_ARGS__), .values = VALUES_POSITIVE                                               \
    }
#define IDS(limit_, ...)                                                                           \
    {                                                                                              \
        DIMS(__VA_ARGS__), .values = VALUES_IDS, .limit = (limit_)                                 \
    }
/* Rows: name, kind (run_<kind> and oracle_<kind>), operands, result, further members. */
#define ROW1(name_, kind, in0, ...)                                                                \
    {                                                                                              \
        .name = name_, .run = run_##kind, .oracle = oracle_##kind, .n_in = 1, .in = {in0},         \
        .out = __VA_ARGS__                                                                         \
    }
#define ROW2(name_, kind, in0, in1, ...)                                                           \
    {                                                                                              \
        .name = name_, .run = run_##kind, .oracle = oracle_##kind, .n_in = 2, .in = {in0, in1},    \
        .out = __VA_ARGS__                                                                         \
    }
#define ROW3(name_, kind, in0, in1, in2, ...)                                                      \
    {                                                                                              \
        .name = name_, .run = run_##kind, .oracle = oracle_##kind, .n_in = 3,                      \
        .in = {in0, in1, in2}, .out = __VA_ARGS__                                                  \
    }
/* Elementwise rows: run_<kind> and map_<kind>. */
#define MAP1(name_, kind, in0, ...)                                                                \
    {                                                                                              \
        .name = name_, .run = run_##kind, .oracle = oracle_map, .map = map_##kind, .n_in = 1,      \
        .in = {in0}, .out = __VA_ARGS__                                                            \
    }
#define MAP2(name_, kind, in0, in1, ...)                                                           \
    {                                                                                              \
        .name = name_, .run = run_##kind, .oracle = oracle_map, .map = map_##kind, .n_in = 2,      \
        .in = {in0, in1}, .out = __VA_ARGS__                                                       \
    }
#define COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

int64_t numel_of(const operand *o);
/* Position in `o`, seen broadcast to `out`, of the element at row-major position `i` of `out`. */
int64_t broadcast_position(const operand *out, int64_t i, const operand *o);
/* Oracle of everything elementwise: `map` over one or two broadcast operands. */
void oracle_map(const op_case *c, const real *const *in, real *out);

/* -- running a row (run.c) --------------------------------------------------------------------- */

/* One seed's numbers. */
typedef struct numbers {
    double in[OP_MAX_IN][OP_MAX_NUMEL];
    double weight[OP_MAX_NUMEL]; /* of the results in the differentiated sum */
} numbers;

typedef struct results {
    double out[OP_MAX_NUMEL];
    double grad[OP_MAX_IN][OP_MAX_NUMEL];
} results;

enum {
    RUN_PLAIN,     /* operands are leaves */
    RUN_INNER,     /* operands are results of another operator, whose handles are gone */
    RUN_TWICE,     /* the operator is called twice in one graph: gradients add */
    RUN_REPEATED,  /* two backward passes: gradients add to what is there */
    RUN_BORN_WIDE, /* gradients are born in f64, or f32 for bf16 */
    RUN_BORN_ODD   /* gradients are born in a dtype no kernel writes directly */
};

/* A tensor of these values, laid out as the row asks. */
ms_tensor *make_operand(const operand *o, int32_t dtype, const double *values);
/* The operator on a row's operands in i64, result only. */
/* @return dtype of the result */
int32_t run_integers(const op_case *c, int32_t dtype, const numbers *n, double *out);
/* Run the operator on a row's operands in `dtype`, and backward through it. */
void run_case(const op_case *c, const numbers *n, int32_t dtype, int32_t mode, results *r);
/* Run the operator and backward while allocation k fails, for k = 0, 1, ... until none does: each
 * time the error says so, and nothing is left behind. */
void run_out_of_memory(const op_case *c, const numbers *n, int32_t dtype);

#endif
