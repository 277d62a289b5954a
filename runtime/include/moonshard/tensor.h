/* Tensors: dtype, shape, strides, views, storage. Dimensions count from 0 in C, from 1 in Lua. */
#ifndef MOONSHARD_TENSOR_H
#define MOONSHARD_TENSOR_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MS_MAX_DIMS = 8 };

enum {
    MS_DTYPE_F32 = 0,
    MS_DTYPE_F64 = 1,
    MS_DTYPE_BF16 = 2,
    MS_DTYPE_I64 = 3,
    MS_DTYPE_U8 = 4,
    MS_DTYPE_BOOL = 5,
    MS_DTYPE_F16 = 6, /**< IEEE 754 binary16 */
    MS_DTYPE_I32 = 7,
    MS_DTYPE_COUNT = 8,
    MS_DTYPE_NONE = -1 /**< "not given" in options */
};

/** Who owns a tensor's memory. */
enum {
    MS_STORAGE_OWNED = 0,    /**< this context's allocator */
    MS_STORAGE_BORROWED = 1, /**< the host */
    MS_STORAGE_FULL = 2,     /**< a unit's slot: bound while unsharded, else absent */
    MS_STORAGE_NONE = 3      /**< meta: shape and dtype, no memory */
};

/** A tensor handle: shape, strides and dtype over a reference-counted storage. A handle counts its
 * owners; ms_tensor_free() removes one. Handles are recycled, never returned to malloc. */
typedef struct ms_tensor ms_tensor;

/** What scripts hold instead of a pointer: a handle and its generation at that time. Recycling a
 * handle changes its generation, so that a stale ref is detected. */
typedef struct ms_ref {
    ms_tensor *ptr;
    uint64_t generation;
} ms_ref;

/** Description of a tensor. */
typedef struct ms_tensor_info {
    int32_t dtype;
    int32_t ndim;
    int64_t shape[8];
    int64_t stride[8]; /**< in elements */
    int64_t numel;
    int64_t offset;  /**< of element 0 in the storage, in elements */
    int64_t version; /**< number of in-place writes to the storage */
    void *data; /**< element 0; NULL if absent (sharded, meta). A device address on a device, unless
                   the memory is borrowed */
    int32_t storage_kind; /**< MS_STORAGE_* */
    bool requires_grad;
    bool is_leaf;
    bool is_parameter;
    bool has_grad;
    bool contiguous;
    bool readonly; /**< a view of unsharded parameters that ranks share */
    bool on_host;  /**< host memory beside a device, where operators refuse it */
} ms_tensor_info;

/** Bytes of one element; 0 if `dtype` is invalid. */
MS_API int64_t ms_dtype_size(int32_t dtype);
/** "f32", "f64", "bf16", "i64", "u8", "bool", "f16", "i32"; otherwise "none". Static. */
MS_API const char *ms_dtype_name(int32_t dtype);
/** True for f32, f64, bf16 and f16. */
MS_API bool ms_dtype_is_floating(int32_t dtype);
/** True for bf16 and f16: computed in f32, rounded once. */
MS_API bool ms_dtype_is_narrow(int32_t dtype);
/**
 * Check that a tensor of this dtype can hold the number. Floating dtypes round it; bool takes any
 * number (true is "not 0"). Integers take whole numbers in their range (an i64 beyond 2^53 only if
 * a double can represent it).
 * @param what  name of the caller in the message
 * @return MS_VALUE_ERROR with number and dtype
 */
MS_API ms_status ms_dtype_check(const char *what, int32_t dtype, double number);
/** Index of the first of `n` numbers that ms_dtype_check() rejects; n if none. */
MS_API int64_t ms_dtype_misfit(int32_t dtype, const double *numbers, int64_t n);

/**
 * New C-contiguous tensor with uninitialised elements.
 * @param out    the caller owns `*out`
 * @param shape  (ndim) sizes, each >= 0; not read if ndim is 0
 * @return MS_VALUE_ERROR for a bad dtype or shape, MS_OUT_OF_MEMORY
 */
MS_API ms_status ms_tensor_empty(ms_tensor **out, int32_t dtype, int32_t ndim,
                                 const int64_t *shape);
/** As ms_tensor_empty(), every element `value`. Numbers are checked by ms_dtype_check() here and in
 * all functions below. */
MS_API ms_status ms_tensor_full(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape,
                                double value);
/** As ms_tensor_empty(), with `n` doubles in row-major order; n must equal numel. */
MS_API ms_status ms_tensor_from_doubles(ms_tensor **out, int32_t dtype, int32_t ndim,
                                        const int64_t *shape, const double *values, int64_t n);
/** As ms_tensor_empty(), over the caller's memory, which must outlive the tensor. No copy. On a
 * device, operators reject it (MS_RUNTIME_ERROR); ms_tensor_copy(), ms_op_clone(), ms_op_cast() and
 * collectives read and write it, and have finished on return. */
MS_API ms_status ms_tensor_borrow(ms_tensor **out, int32_t dtype, int32_t ndim,
                                  const int64_t *shape, MS_NULLABLE void *data);
/** A contiguous copy in host memory, outside the graph, for reading and files; waits for it. On a
 * device the memory is pinned, and only what ms_tensor_borrow() lists, ms_tensor_hash(),
 * checkpoints and views accept it; ms_op_clone() moves it back. As an operand beside others a
 * tensor without dimensions is a scalar. Without a device, or if `t` is such a tensor: a handle on
 * its memory. */
MS_API ms_status ms_tensor_to_host(ms_tensor **out, const ms_tensor *t);
/** Shape and dtype without memory (MS_STORAGE_NONE). An operator with such an operand returns such
 * a result, or its error. It runs no kernel and records nothing. */
MS_API ms_status ms_tensor_meta(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape);
/** start, start + step, ..., shape (n). Integer dtypes compute in integers. */
MS_API ms_status ms_tensor_arange(ms_tensor **out, int32_t dtype, double start, double step,
                                  int64_t n);
/**
 * Fill with numbers that depend only on (seed of the context, key, element index). Of a parameter's
 * shard the index counts in the whole parameter. A parameter without values gets its memory first.
 * @param kind  MS_INIT_UNIFORM: [a, b); MS_INIT_NORMAL: mean a, deviation b; MS_INIT_CONSTANT: a
 */
MS_API ms_status ms_tensor_init(ms_tensor *t, int32_t kind, double a, double b, uint64_t key);

enum { MS_INIT_NONE = 0, MS_INIT_CONSTANT = 1, MS_INIT_UNIFORM = 2, MS_INIT_NORMAL = 3 };

/** Release one owner of the handle. NULL is allowed. */
MS_API void ms_tensor_free(ms_tensor *t);
/** Add an owner to the handle; ms_tensor_free() removes it. */
MS_API ms_tensor *ms_tensor_retain(ms_tensor *t);

/** Shape, dtype and flags. Does not wait for a device. */
MS_API ms_status ms_tensor_describe(const ms_tensor *t, ms_tensor_info *info);
/** Wait for all enqueued work. After it the host may access `data` of ms_tensor_describe() on the
 * CPU (where no work is ever pending) and of borrowed memory. Returns the error of that work:
 * MS_INDEX_ERROR, MS_DEVICE_ERROR and others. */
MS_API ms_status ms_tensor_wait(const ms_tensor *t);
/** Copy out as doubles, row-major; `n` must equal numel. bool becomes 0 and 1. */
MS_API ms_status ms_tensor_to_doubles(const ms_tensor *t, double *values, int64_t n);
/** The element of a tensor with numel 1. Waits for the device. */
MS_API ms_status ms_tensor_item(const ms_tensor *t, double *value);
/** Overwrite with `src`, broadcast and cast as ms_op_cast() does. Increments the version; never
 * differentiated. MS_RUNTIME_ERROR if a floating `src` requires grad while ops are recorded (its
 * gradient would be lost), if both overlap in memory without being the same view, or if elements of
 * `t` overlap (the result would depend on the order of writes). */
MS_API ms_status ms_tensor_copy(ms_tensor *t, const ms_tensor *src);
/** MS_OK if ms_tensor_copy() would copy tensors of one shape; else its error, or that one of them
 * has no memory.
 * @param what  name of the caller in the message */
MS_API ms_status ms_tensor_check_copy(const ms_tensor *t, const ms_tensor *src, const char *what);
/** Overwrite all elements. Increments the version. */
MS_API ms_status ms_tensor_fill(ms_tensor *t, double value);
/** t += alpha * src, broadcast. Increments the version; never differentiated. Rejects overlaps and
 * a `src` that requires grad as ms_tensor_copy() does. */
MS_API ms_status ms_tensor_add_scaled(ms_tensor *t, const ms_tensor *src, double alpha);
/** XXH3 of the elements in row-major order; independent of strides. */
MS_API ms_status ms_tensor_hash(const ms_tensor *t, uint64_t *hash);
/** True if shape, dtype and all values are equal (NaN equals nothing, 0 equals -0). */
MS_API ms_status ms_tensor_equal(const ms_tensor *a, const ms_tensor *b, bool *equal);
/** True if |a - b| <= atol + rtol |b| for every element, computed in f64. Equal infinities are
 * close, NaN is close to nothing. Shapes broadcast.
 * @return MS_TYPE_ERROR if the dtypes differ, MS_VALUE_ERROR if a tolerance is below 0 or NaN */
MS_API ms_status ms_tensor_allclose(const ms_tensor *a, const ms_tensor *b, double rtol,
                                    double atol, bool *close);
/** True if all elements of a bool tensor are true, or it is empty. MS_TYPE_ERROR otherwise. */
MS_API ms_status ms_tensor_all(const ms_tensor *t, bool *all);
/** True if an element of a bool tensor is true. MS_TYPE_ERROR for other dtypes. */
MS_API ms_status ms_tensor_any(const ms_tensor *t, bool *any);
/** i64 (found, ndim): positions, from 1, of the elements that are not 0, in row-major order. Waits
 * for the device. */
MS_API ms_status ms_tensor_nonzero(ms_tensor **out, const ms_tensor *t);
/** New handle on the same storage, outside the graph. The caller owns `*out`. */
MS_API ms_status ms_tensor_detach(ms_tensor **out, const ms_tensor *t);

/* -- parameters -------------------------------------------------------------------------------- */

/** Declare a parameter: shape, dtype and rule of initial values. Memory is allocated by
 * ms_tensor_materialize(), or shard by shard by a unit: the full tensor need never exist. The
 * result is a leaf that requires grad. */
MS_API ms_status ms_tensor_parameter(ms_tensor **out, int32_t dtype, int32_t ndim,
                                     const int64_t *shape, int32_t init, double a, double b);
/** Make elements [first, first + n) of a parameter, in row-major order, 0 initially, whatever its
 * rule. Call before materializing. MS_VALUE_ERROR for a range outside of the parameter. */
MS_API ms_status ms_tensor_initial_zeros(ms_tensor *t, int64_t first, int64_t n);
/** Set a parameter's name (its path), the key of its initial values. Copied. */
MS_API ms_status ms_tensor_set_name(ms_tensor *t, const char *name);
/** Separate the initial values of equal names in different models. Stream 0, the default, is keyed
 * by the name alone. Call before materializing. */
MS_API ms_status ms_tensor_set_stream(ms_tensor *t, int64_t stream);
/** Borrowed from `t`; "" if it has no name. */
MS_API ms_status ms_tensor_name(const ms_tensor *t, const char **name);
/** Allocate and initialise a declared parameter. Does nothing the second time. */
MS_API ms_status ms_tensor_materialize(ms_tensor *t);
/** Hash of names and values of plain parameters, in the order of `params` (n). Equal to
 * ms_fsdp_tree_hash() of the sharded ones. MS_RUNTIME_ERROR if a unit owns one. */
MS_API ms_status ms_params_hash(ms_tensor *const *params, int32_t n_params, uint64_t *hash);
/** Change the dtype of plain parameters to another floating one: casts values and gradients, or the
 * declaration. Handles stay valid. Memory is new: views and saved tensors keep the old one.
 * MS_RUNTIME_ERROR, with none cast, if a unit owns one or an undifferentiated graph uses one. When
 * memory runs out, those before are cast; the call can be repeated. */
MS_API ms_status ms_params_cast(ms_tensor *const *params, int32_t n_params, int32_t dtype);
/** Make a tensor a parameter (leaf, requires grad) with its current values. */
MS_API ms_status ms_tensor_make_parameter(ms_tensor *t);

/* -- scopes ------------------------------------------------------------------------------------ */

/**
 * Open a scope: handles made in this thread from now on belong to it.
 * @param name  shown in errors about stale refs; a static or interned string
 */
MS_API ms_status ms_scope_open(const char *name);
/** Close the innermost scope and release its handles, except those in `results`, which move to the
 * enclosing scope, or to the caller if there is none.
 * @return MS_RUNTIME_ERROR without an open scope */
MS_API ms_status ms_scope_close(const ms_ref *results, int32_t n_results);
/** Number of open scopes. */
MS_API int32_t ms_scope_depth(void);
/** Remove a handle from its scope; the caller then owns it. */
MS_API ms_status ms_scope_keep(ms_tensor *t);
/** Name of the scope that released the handle behind a stale ref, or "". Static or interned. */
MS_API const char *ms_ref_released_by(const ms_ref *ref);
/** True if the ref's handle is live. */
MS_API bool ms_ref_alive(const ms_ref *ref);
#ifndef MS_FFI_CDEF
/** Fill `*ref` for a live handle. Adds no owner. */
MS_API ms_status ms_ref_of(ms_ref *ref, ms_tensor *t);
#endif
/** Release the owner that a ref counts as; does nothing for a stale ref (called by finalizers). */
MS_API void ms_ref_release(ms_ref *ref);

#ifdef __cplusplus
}
#endif

#endif
