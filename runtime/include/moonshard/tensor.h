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

/** How the bytes behind a tensor are held. */
enum {
    MS_STORAGE_OWNED = 0,    /**< from this context's allocator */
    MS_STORAGE_BORROWED = 1, /**< the host's memory */
    MS_STORAGE_FULL = 2, /**< a unit's full parameters: bound while unsharded, absent otherwise */
    MS_STORAGE_NONE = 3  /**< meta: shape and dtype, no memory */
};

/** A tensor handle: shape, strides and dtype over a reference-counted storage. A handle is one
 * owner; ms_tensor_free() gives it up. Handles are recycled, never handed back to malloc. */
typedef struct ms_tensor ms_tensor;

/** What scripts hold instead of a pointer: a handle and the generation it had when it was given
 * out. A recycled handle has another generation, so a stale ref is found, never followed. */
typedef struct ms_ref {
    ms_tensor *ptr;
    uint64_t generation;
} ms_ref;

/** Everything a script asks about a tensor, in one call. */
typedef struct ms_tensor_info {
    int32_t dtype;
    int32_t ndim;
    int64_t shape[8];
    int64_t stride[8]; /**< in elements */
    int64_t numel;
    int64_t offset;       /**< of element 0 in the storage, in elements */
    int64_t version;      /**< in-place writes so far to the storage */
    void *data;           /**< element 0, or NULL when absent (sharded, meta). On a device its
                             address there, unless the memory is borrowed */
    int32_t storage_kind; /**< MS_STORAGE_* */
    bool requires_grad;
    bool is_leaf;
    bool is_parameter;
    bool has_grad;
    bool contiguous;
    bool readonly; /**< a view of unsharded parameters shared with other ranks */
} ms_tensor_info;

/** Bytes of one element; 0 for a number that is no dtype. */
MS_API int64_t ms_dtype_size(int32_t dtype);
/** "f32", "f64", "bf16", "i64", "u8", "bool", "f16", "i32"; "none" otherwise. Static. */
MS_API const char *ms_dtype_name(int32_t dtype);
/** True for f32, f64, bf16 and f16. */
MS_API bool ms_dtype_is_floating(int32_t dtype);
/** True for bf16 and f16: computed in f32 and rounded once. */
MS_API bool ms_dtype_is_narrow(int32_t dtype);
/**
 * Does a tensor of this dtype hold the number? Floating dtypes round it, bool takes any (true is
 * "not 0"); integers hold whole numbers in their range, and none between two doubles can be given
 * (so from 2^53 on not every i64).
 * @param what  names the caller in the message
 * @return MS_VALUE_ERROR naming number and dtype
 */
MS_API ms_status ms_dtype_check(const char *what, int32_t dtype, double number);
/** Place of the first of `n` numbers that ms_dtype_check() refuses; n when it refuses none. */
MS_API int64_t ms_dtype_misfit(int32_t dtype, const double *numbers, int64_t n);

/**
 * New tensor with unset contents, C-contiguous.
 * @param out    the caller owns `*out`
 * @param shape  (ndim) sizes, each >= 0; not read when ndim is 0
 * @return MS_VALUE_ERROR for a bad dtype or shape, MS_OUT_OF_MEMORY
 */
MS_API ms_status ms_tensor_empty(ms_tensor **out, int32_t dtype, int32_t ndim,
                                 const int64_t *shape);
/** As ms_tensor_empty(), every element `value`. MS_VALUE_ERROR as ms_dtype_check(), here and where
 * else numbers are given. */
MS_API ms_status ms_tensor_full(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape,
                                double value);
/** As ms_tensor_empty(), copied from `n` doubles in row-major order; n must equal the numel. */
MS_API ms_status ms_tensor_from_doubles(ms_tensor **out, int32_t dtype, int32_t ndim,
                                        const int64_t *shape, const double *values, int64_t n);
/** As ms_tensor_empty(), over the caller's memory. Does not copy; the memory must outlive the
 * tensor. On a device operators do not reach it (MS_RUNTIME_ERROR), but copies do, both ways:
 * ms_tensor_copy(), ms_op_clone(), ms_op_cast(), collectives. They have been done on return. */
MS_API ms_status ms_tensor_borrow(ms_tensor **out, int32_t dtype, int32_t ndim,
                                  const int64_t *shape, MS_NULLABLE void *data);
/** Shape and dtype without memory (storage kind none). An operator with such an operand gives such
 * a result, or the error it would give: it runs no kernel, reads no values, records nothing. */
MS_API ms_status ms_tensor_meta(ms_tensor **out, int32_t dtype, int32_t ndim, const int64_t *shape);
/** 0, 1, ..., n-1 times `step` plus `start`; shape (n). Integers are counted as such. */
MS_API ms_status ms_tensor_arange(ms_tensor **out, int32_t dtype, double start, double step,
                                  int64_t n);
/**
 * Fill with numbers that depend only on (seed of the context, key, element index).
 * @param kind  MS_INIT_UNIFORM: [a, b); MS_INIT_NORMAL: mean a, deviation b; MS_INIT_CONSTANT: a
 */
MS_API ms_status ms_tensor_init(ms_tensor *t, int32_t kind, double a, double b, uint64_t key);

enum { MS_INIT_NONE = 0, MS_INIT_CONSTANT = 1, MS_INIT_UNIFORM = 2, MS_INIT_NORMAL = 3 };

/** Give up one ownership of the handle. NULL is allowed. */
MS_API void ms_tensor_free(ms_tensor *t);
/** Add an owner to the handle (the C host's `ms_tensor_free` takes it away). */
MS_API ms_tensor *ms_tensor_retain(ms_tensor *t);

/** What it is, from what the host knows: waits for nothing. */
MS_API ms_status ms_tensor_describe(const ms_tensor *t, ms_tensor_info *info);
/** Wait until all that was to be computed has been. The host may read and write `data` of
 * ms_tensor_describe() then on the CPU, where nothing is ever outstanding, and of borrowed memory.
 * MS_INDEX_ERROR, MS_DEVICE_ERROR and others of what went wrong meanwhile. */
MS_API ms_status ms_tensor_wait(const ms_tensor *t);
/** Copy out as doubles, row-major; `n` must equal the numel. bool gives 0 and 1. */
MS_API ms_status ms_tensor_to_doubles(const ms_tensor *t, double *values, int64_t n);
/** The one element of a tensor with numel 1. Waits for the device. */
MS_API ms_status ms_tensor_item(const ms_tensor *t, double *value);
/** Overwrite with `src`, broadcast and cast (moonshard/ops.h says how numbers convert). Bumps the
 * version; never differentiated. MS_RUNTIME_ERROR when `src` requires grad while ops are recorded
 * (its gradient would be cut; integers and bool have none), when the two overlap in memory without
 * being the same view, or when elements of `t` overlap: the result would depend on the order of
 * writing. */
MS_API ms_status ms_tensor_copy(ms_tensor *t, const ms_tensor *src);
/** Does nothing where ms_tensor_copy() would take tensors of one shape; else fails as that does, or
 * because one of them has no memory.
 * @param what  names the caller in the message */
MS_API ms_status ms_tensor_check_copy(const ms_tensor *t, const ms_tensor *src, const char *what);
/** Overwrite every element. Bumps the version. */
MS_API ms_status ms_tensor_fill(ms_tensor *t, double value);
/** t += alpha * src, broadcast. Bumps the version; never differentiated. A `src` that requires grad
 * and overlaps are refused as in ms_tensor_copy(). */
MS_API ms_status ms_tensor_add_scaled(ms_tensor *t, const ms_tensor *src, double alpha);
/** XXH3 of the elements in row-major order (equal tensors hash equal whatever their strides). */
MS_API ms_status ms_tensor_hash(const ms_tensor *t, uint64_t *hash);
/** Same shape, same dtype, and equal values everywhere (NaN equals nothing, 0 equals -0)? */
MS_API ms_status ms_tensor_equal(const ms_tensor *a, const ms_tensor *b, bool *equal);
/**
 * |a - b| <= atol + rtol |b| for every element, computed in f64? Equal infinities are close, NaN is
 * close to nothing. Shapes broadcast.
 * @return MS_TYPE_ERROR when the dtypes differ, MS_VALUE_ERROR when a tolerance is below 0 or NaN
 */
MS_API ms_status ms_tensor_allclose(const ms_tensor *a, const ms_tensor *b, double rtol,
                                    double atol, bool *close);
/** Is every element of a bool tensor true (so of an empty one)? MS_TYPE_ERROR for other dtypes. */
MS_API ms_status ms_tensor_all(const ms_tensor *t, bool *all);
/** Is some element of a bool tensor true? MS_TYPE_ERROR for other dtypes. */
MS_API ms_status ms_tensor_any(const ms_tensor *t, bool *any);
/** New handle on the same storage, cut from the graph. The caller owns `*out`. */
MS_API ms_status ms_tensor_detach(ms_tensor **out, const ms_tensor *t);

/* -- parameters -------------------------------------------------------------------------------- */

/**
 * Declare a parameter: shape, dtype and the rule for its first values. No memory is taken until
 * ms_tensor_materialize() (or a unit does it shard by shard), so a full tensor need never exist.
 * The result is a leaf that requires grad.
 */
MS_API ms_status ms_tensor_parameter(ms_tensor **out, int32_t dtype, int32_t ndim,
                                     const int64_t *shape, int32_t init, double a, double b);
/** Name of a parameter: its path; keys the random stream of its first values. Copied. */
MS_API ms_status ms_tensor_set_name(ms_tensor *t, const char *name);
/** Tell parameters of one name apart that stand in different models: first values of stream 0 (the
 * default) are keyed by the name alone. Before it has values. */
MS_API ms_status ms_tensor_set_stream(ms_tensor *t, int64_t stream);
/** Borrowed from `t`; "" when it has none. */
MS_API ms_status ms_tensor_name(const ms_tensor *t, const char **name);
/** Give a declared parameter its memory and first values. Does nothing when it has them. */
MS_API ms_status ms_tensor_materialize(ms_tensor *t);
/** Hash over names and values of plain parameters, in the order of `params` (n): what
 * ms_fsdp_tree_hash() gives for the same ones sharded. MS_RUNTIME_ERROR when a unit holds one. */
MS_API ms_status ms_params_hash(ms_tensor *const *params, int32_t n_params, uint64_t *hash);
/** Let plain parameters have another floating dtype: values and gradients are cast, a declared one
 * is declared in it, handles stay what they were. Their memory is new: views and saved tensors keep
 * the old one. MS_RUNTIME_ERROR when a unit holds one, or a graph that was not differentiated yet;
 * then none is cast. Where memory is out those before it are: call it again. */
MS_API ms_status ms_params_cast(ms_tensor *const *params, int32_t n_params, int32_t dtype);
/** Make any tensor a parameter (leaf, requires grad) that keeps its present values. */
MS_API ms_status ms_tensor_make_parameter(ms_tensor *t);

/* -- scopes ------------------------------------------------------------------------------------ */

/**
 * Open a scope: handles made from now on in this thread belong to it.
 * @param name  names the scope in errors about stale refs; must be a static or interned string
 */
MS_API ms_status ms_scope_open(const char *name);
/**
 * Close the innermost scope: every handle made in it is released, except those in `results`, which
 * move to the enclosing scope, or to the caller when there is none.
 * @return MS_RUNTIME_ERROR without an open scope
 */
MS_API ms_status ms_scope_close(const ms_ref *results, int32_t n_results);
/** Depth of open scopes. */
MS_API int32_t ms_scope_depth(void);
/** Take a handle out of its scope; the caller then owns it. */
MS_API ms_status ms_scope_keep(ms_tensor *t);
/** Name of the scope that released the handle behind a stale ref, or "". Static or interned. */
MS_API const char *ms_ref_released_by(const ms_ref *ref);
/** True while the ref still names a live handle. */
MS_API bool ms_ref_alive(const ms_ref *ref);
#ifndef MS_FFI_CDEF
/** Fill `*ref` for a live handle. Adds no owner. */
MS_API ms_status ms_ref_of(ms_ref *ref, ms_tensor *t);
#endif
/** Give up the ownership a ref stands for; stale refs are left alone (finalizers call this). */
MS_API void ms_ref_release(ms_ref *ref);

#ifdef __cplusplus
}
#endif

#endif
