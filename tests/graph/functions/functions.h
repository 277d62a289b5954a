/* Functions that programs record: their inputs, runs of them eager and replayed, and comparisons of
 * what these leave. */
#ifndef MST_GRAPH_FUNCTIONS_H
#define MST_GRAPH_FUNCTIONS_H

#include "values.h"

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

typedef struct instance {
    const function *f;
    ms_tensor *in[MAX_IN], *arg[MAX_IN], *out[MAX_OUT];
    ms_program *p; /* NULL: runs eagerly */
    int32_t level; /* of its program */
    int32_t value[MAX_OUT];
} instance;

/* A function of the table. */
const function *by_name(const char *name);
extern const function functions[];
extern const int32_t n_functions;
/* Calls of the table's custom operator. */
extern int32_t n_calls;

ms_tensor_info info_of(const ms_tensor *t);
bool has_grad(const function *f, int32_t i);
instance make(const function *f, int32_t dtype);
/* Run it eagerly and record it. */
ms_status record(instance *k);
void expect_recorded(const instance *k);
/* A run of the program, which is not ended. */
ms_status replay(instance *k);
/* A run: eager, or a replay of what was recorded. */
ms_status forward(instance *k);
/* The weighted sum of the outputs that get a gradient; NULL: of none. */
ms_status loss_of(const instance *k, ms_tensor **loss);
/* A forward and its backward; also an error that a device reports later. */
ms_status step(instance *k);
void expect_equal(const instance *k, const char *what, int32_t i, ms_tensor *a, ms_tensor *b);
/* What a step leaves: outputs, inputs, gradients. */
void expect_equal_steps(const instance *a, const instance *b);

#endif
