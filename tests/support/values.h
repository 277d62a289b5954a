/* Small tensors written out and read back, for tests of the tape and the engine. */
#ifndef VALUES_H
#define VALUES_H

#include "books.h"

/* A vector of these values. */
#define VECTOR(dtype, ...)                                                                         \
    vector((dtype), (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)),                   \
           (double[]){__VA_ARGS__})

static inline ms_tensor *vector(int32_t dtype, int64_t n, const double *values)
{
    ms_tensor *t;

    assert_ok(ms_tensor_from_doubles(&t, dtype, 1, &n, values, n));
    return t;
}

static inline ms_tensor *require(ms_tensor *leaf)
{
    assert_ok(ms_tensor_set_requires_grad(leaf, true));
    return leaf;
}

#define LEAF(dtype, ...) require(VECTOR((dtype), __VA_ARGS__))

static inline void expect_values(ms_tensor *t, int64_t n, const double *values)
{
    double got[64];

    assert_non_null(t);
    assert_true(n <= 64);
    assert_ok(ms_tensor_to_doubles(t, got, n));
    assert_close(got, values, n, 1e-14, 0);
}

/* The tensor's values, exactly (up to f64 rounding). */
#define EXPECT_VALUES(t, ...)                                                                      \
    expect_values((t), (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)),                \
                  (double[]){__VA_ARGS__})

static inline void expect_grad(ms_tensor *leaf, int64_t n, const double *values)
{
    ms_tensor *grad;

    assert_ok(ms_tensor_grad(&grad, leaf));
    expect_values(grad, n, values);
    ms_tensor_free(grad);
}

#define EXPECT_GRAD(leaf, ...)                                                                     \
    expect_grad((leaf), (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)),               \
                (double[]){__VA_ARGS__})

static inline void expect_no_grad(ms_tensor *leaf)
{
    ms_tensor *grad;

    assert_ok(ms_tensor_grad(&grad, leaf));
    assert_null(grad);
}

/* Replace `*t` by the result of an op on it. */
static inline void affine(ms_tensor **t, double scale, double shift)
{
    ms_tensor *y;

    assert_ok(ms_op_affine(&y, *t, scale, shift));
    ms_tensor_free(*t);
    *t = y;
}

#endif
