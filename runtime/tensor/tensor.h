/* Storage, views, handles, scopes, parameters: the inside of moonshard/tensor.h.
 *
 * Three layers:
 *   msi_storage  bytes, reference counted. One of full parameters is bound late: `data` is NULL
 * while their unit is sharded and comes back, elsewhere perhaps, when it is unsharded again. So
 *                everything that holds a view (saved tensors) survives reshard and refill.
 *   msi_view     shape, strides and offset over a storage. A plain value; does not own.
 *   ms_tensor    a handle: a view plus what autograd and scopes need. Recycled with a generation.
 */
#ifndef MSI_TENSOR_H
#define MSI_TENSOR_H

#include "backend.h"
#include "moonshard/ops.h"
#include "moonshard/tensor.h"
#include "note.h"

typedef struct msi_storage {
    int32_t refcount;
    uint8_t kind;     /* MS_STORAGE_* */
    uint8_t mem_kind; /* MS_MEM_* of owned bytes */
    bool meta;        /* of kind none, and nobody will give it values: stands for a shape */
    int64_t nbytes;
    void *data;           /* NULL when absent */
    void *host;           /* on a device, the host's memory that is borrowed: no kernel reaches it,
                             and `data` is NULL. NULL: none is */
    msi_mem_block *block; /* of owned bytes */
    /* In-place writes, optimizer steps, loads and writebacks so far; a refill is none. Saved
     * tensors compare it. */
    int64_t version;
    const char *unit; /* name of the unit whose parameters it holds, with one version; borrowed or
                         NULL */
    ms_context *ctx;
    const char *absent;   /* why `data` is NULL, e.g. "unit 'h.0' is sharded"; of memory that a
                             parameter never had, its name; borrowed or NULL */
    const char *readonly; /* what it is that no script may write into, and what to do instead,
                             for the error: "is a view of ..."; borrowed. NULL: it may */
    union {
        struct msi_storage *base; /* whose bytes these are, kept alive; NULL: nobody else's here */
        struct msi_storage *next_free; /* in the pool */
    };
    void (*dispose)(struct msi_storage *s, void *user); /* for borrowed memory; may be NULL */
    void *user;
} msi_storage;

typedef struct msi_view {
    msi_storage *storage;
    int64_t offset; /* elements */
    int8_t dtype;
    int8_t ndim;
    int64_t shape[MS_MAX_DIMS];
    int64_t stride[MS_MAX_DIMS]; /* elements */
} msi_view;

struct msi_node;      /* autograd's */
struct msi_hooks;     /* autograd's */
struct msi_grad_sink; /* autograd's */

/* What only leaves that are parameters have. */
typedef struct msi_param {
    int32_t init; /* MS_INIT_* */
    double a, b;
    char *name;
    int64_t stream;    /* tells parameters of one name in different trees apart */
    bool materialized; /* master values exist */
    int32_t dtype;     /* of the master copy */
    int32_t ndim;
    int64_t shape[MS_MAX_DIMS]; /* of the whole parameter */
    /* Local part of the master copy: 1-D, contiguous, elements [start, start + numel) of the
     * parameter. Plain parameters: everything. */
    msi_view master; /* storage retained; NULL before materialize */
    int64_t start;
    int64_t drawn; /* version of the master when a rule made its values: a later one was written */
    /* The unit that manages it, and its index there (fsdp fills these; NULL otherwise). `ops` lets
     * lower rooms ask without knowing units. */
    void *unit;
    int32_t unit_index;
    bool shows_shard; /* the handle shows this rank's piece, be it of the whole's shape */
    const struct msi_param_ops *ops;
} msi_param;

/* How a manager of parameters answers the lower rooms. */
typedef struct msi_param_ops {
    /* The master copy was written from outside (optimizer, load). */
    void (*touched)(void *unit, int32_t index);
    /* Give the master copy its memory and first values. */
    ms_status (*materialize)(void *unit);
    /* May `what` the script has called read or write the master copy now? Else an error. */
    ms_status (*check_master)(void *unit, const char *what);
    /* Let go of the parameter: its handle is about to be destroyed. */
    void (*orphan)(void *unit, int32_t index);
    /* Shape and dtype of its reduced gradient (which may have no memory yet). */
    void (*gradient_like)(void *unit, int32_t index, msi_view *like);
    /* May `what` the script has called use its gradient now, as part of all? Else an error. */
    ms_status (*check_gradient)(void *unit, const char *what);
    /* Finish what is on its way to its gradient, which is about to be read. */
    ms_status (*await_gradient)(void *unit);
    /* Its gradient was set to none. */
    void (*gradient_dropped)(void *unit, int32_t index);
    /* Does the whole parameter have a reduced gradient, wherever its elements are? */
    bool (*has_gradient)(void *unit, int32_t index);
    /* Backwards that reduced nothing have left a gradient of it with the manager. */
    bool (*accumulates)(void *unit, int32_t index);
    /* A copy of that, full shape, in the dtype the parameter is computed in. */
    ms_status (*accumulated)(void *unit, int32_t index, ms_tensor **out);
    /* Put another value (full shape) in its place, or with NULL drop it. */
    ms_status (*replace_accumulated)(void *unit, int32_t index, const msi_view *value);
    /* Say to the ranks it is shared with what all of them should say here (note.h). */
    void (*note)(void *unit, const msi_note *note);
} msi_param_ops;

struct ms_tensor {
    uint64_t generation; /* bumped when the handle dies; first member, read through stale refs */
    int32_t refcount;    /* owners */
    int32_t scope;       /* depth of the owning scope, 0: none */
    int32_t scope_index; /* place in that scope's list */
    bool requires_grad;
    int16_t out_index; /* which output of grad_fn */
    ms_context *ctx;
    msi_view v;               /* storage retained */
    struct msi_node *grad_fn; /* retained; NULL for leaves */
    ms_tensor *grad;          /* a leaf's gradient (owned), or NULL */
    struct msi_hooks *hooks;
    struct msi_grad_sink *sink; /* where a leaf's gradient is born; NULL: engine's default */
    struct msi_node *leaf_node; /* autograd's accumulate node; borrowed, cleared when it dies */
    msi_param *param;
    const char *released_by; /* name of the scope that released this handle last */
    ms_tensor *next_free;
};

/* The piece of a parameter that its unit shows between forwards? */
static inline bool msi_tensor_is_shard(const ms_tensor *t)
{
    return t->param != NULL && t->param->unit != NULL && t->param->shows_shard;
}

/* One parameter more in the hash `h` over a model's, in order. */
uint64_t msi_params_fold(uint64_t h, uint64_t values, const char *name);
/* Key of the random stream its first values come from; `name` stands in for one not given yet. */
uint64_t msi_param_key(const msi_param *p, const char *name);
/* Has t's manager a gradient of it that is not reduced yet? That one stands for t's own then. */
bool msi_param_accumulates(const ms_tensor *t);
/* May `what` the script has called use the master copy now? Its manager's answer. */
ms_status msi_param_check_master(const ms_tensor *t, const char *what);
/* May `what` the script has called use t's gradient now, as part of all? Its manager's answer. */
ms_status msi_param_check_gradient(const ms_tensor *t, const char *what);
/* The master copy of a parameter was written, or, as its elements lie with peers, theirs was: tell
 * its manager. */
void msi_param_touched(const ms_tensor *t);
/* Let t's manager finish what is on its way to t's gradient. */
ms_status msi_param_await_gradient(const ms_tensor *t);

/* Closing this context takes its tensors along. */
void msi_tensor_install(ms_context *ctx);

/* -- storage ----------------------------------------------------------------------------------- */

ms_status msi_storage_new(msi_storage **out, ms_context *ctx, int64_t nbytes, int32_t mem_kind);
/* Borrowed (data may be NULL for slot and none). */
ms_status msi_storage_wrap(msi_storage **out, ms_context *ctx, int32_t kind, void *data,
                           int64_t nbytes);
/* Borrowed memory of the host's, which kernels reach on the CPU alone; on a device msi_copy() does,
 * and the host (msi_host_view_begin). */
ms_status msi_storage_of_host(msi_storage **out, ms_context *ctx, void *data, int64_t nbytes);
/* Part of another, which it keeps alive: the bytes from `offset` on. Borrowed. */
ms_status msi_storage_part(msi_storage **out, msi_storage *base, int64_t offset, int64_t nbytes);
/* Let one that owns no bytes show those at `data`, now those of `base`, which it keeps alive; NULL:
 * of somebody who is there until it shows others. */
void msi_storage_bind(msi_storage *s, msi_storage *base, void *data, int64_t nbytes);
/* It shows none any more. */
void msi_storage_unbind(msi_storage *s);
msi_storage *msi_storage_retain(msi_storage *s);
void msi_storage_release(msi_storage *s);
/* Are its bytes its holder's alone, and may be written? */
static inline bool msi_storage_is_private(const msi_storage *s)
{
    return s->refcount == 1 && s->kind == MS_STORAGE_OWNED && s->readonly == NULL;
}

/* -- numbers ----------------------------------------------------------------------------------- */

/* Can arithmetic of this dtype take the number? MS_TYPE_ERROR for a fraction and integers: there is
 * no promotion to another dtype. */
ms_status msi_check_number(const char *op, int32_t dtype, double number);

/* -- views ------------------------------------------------------------------------------------- */

int64_t msi_view_numel(const msi_view *v);
bool msi_view_contiguous(const msi_view *v);
/* Pointer to element 0; MS_RUNTIME_ERROR naming why when the bytes are absent. numel 0 is fine. */
ms_status msi_view_data(const msi_view *v, void **data);
/* Are the bytes there, be they the host's on a device? Else the same error. */
ms_status msi_view_present(const msi_view *v);
/* Where they are, for comparing addresses. */
void *msi_view_address(const msi_view *v);
/* Same as msi_view_data() for a view that must be bound; NULL otherwise. */
void *msi_view_ptr(const msi_view *v);
void msi_view_set_contiguous(msi_view *v, int32_t dtype, int32_t ndim, const int64_t *shape);
/* Do a and b have the same shape? */
bool msi_view_same_shape(const msi_view *a, const msi_view *b);
/* "(2, 3)", in msi_part_text(). */
const char *msi_shape_text(int32_t ndim, const int64_t *shape);
/* Can offsets and bytes of a C-contiguous tensor of this shape be counted? So the product of all
 * sizes that are not 0 may be no more than MSI_MAX_NUMEL (MS_VALUE_ERROR otherwise), which every
 * tensor keeps to, empty ones too: part products need no check of their own then. */
#define MSI_MAX_NUMEL (INT64_MAX / 16)
ms_status msi_check_sizes(int32_t ndim, const int64_t *shape);
/* As msi_view_set_contiguous(), of a shape that nobody has checked. */
ms_status msi_view_make(msi_view *v, int32_t dtype, int32_t ndim, const int64_t *shape);
/* Shape that a and b broadcast to; MS_VALUE_ERROR names both. */
ms_status msi_broadcast(const msi_view *a, const msi_view *b, int32_t *ndim, int64_t *shape);
/* Strides of `v` seen with a larger broadcast shape. */
void msi_view_expand(const msi_view *v, int32_t ndim, const int64_t *shape, msi_view *out);
/* Reinterpret as another shape without a copy. @return false when the strides do not allow it */
bool msi_view_reshape(const msi_view *v, int32_t ndim, const int64_t *shape, msi_view *out);
/* Do the two have a byte in common? */
bool msi_view_shares(const msi_view *a, const msi_view *b);
/* Refuse to write `src` into a `dst` that overlaps it, unless they are the same view
 * (MS_RUNTIME_ERROR). `op` names the caller here and below. */
ms_status msi_check_source(const char *op, const msi_view *dst, const msi_view *src);
/* Refuse to write to a view that shows an element more than once (MS_RUNTIME_ERROR). */
ms_status msi_check_expanded(const char *op, const msi_view *dst);
/* Loops over `shape` for n operands (views already of that shape; NULL entries are skipped), with
 * neighbouring dimensions merged. */
void msi_loop_make(msi_loop *loop, int32_t ndim, const int64_t *shape, const msi_view *const *ops,
                   int32_t n);

/* Elementwise conveniences over views: shapes must broadcast to dst's. `op` names the caller. */
ms_status msi_ew(const char *op, int32_t kernel, const msi_view *dst, const msi_view *const *in,
                 int32_t n_in, const double *scalars, bool accumulate);
/* dst = src (cast, broadcast), or dst += src. On a device either may be the host's: it has been
 * done then on return. */
ms_status msi_copy(const msi_view *dst, const msi_view *src, bool accumulate);
ms_status msi_copy_of(const char *op, const msi_view *dst, const msi_view *src, bool accumulate);
ms_status msi_fill(const msi_view *dst, double value);
/* A new owned contiguous view with src's shape in `dtype`; *out owns one reference to the storage.
 * Copies src when `copy`. */
ms_status msi_view_like(msi_view *out, ms_context *ctx, const msi_view *src, int32_t dtype,
                        int32_t mem_kind, bool copy);
/* dst (+)= src summed over the dimensions that were broadcast from dst's shape to src's. */
ms_status msi_sum_to(const char *op, const msi_view *dst, const msi_view *src, double scale,
                     bool accumulate);

/* -- the host ---------------------------------------------------------------------------------- */

/* [Note: host views] A device's memory is touched by what is enqueued on it, and by nothing else.
 * The host reads and writes a tensor without gaps between a begin and an end, at `data`: on the CPU
 * the memory itself, at no cost; of a device's a pinned copy, which is fetched if the host reads,
 * and put back at the end if it writes. All that was enqueued before has run at the begin. */
enum { MSI_HOST_READS = 1, MSI_HOST_WRITES = 2 }; /* who does not read writes every element */

typedef struct msi_host_view {
    void *data;
    msi_mem_block *copy; /* NULL: the tensor's own memory */
    ms_context *ctx;
    void *to; /* where the copy goes at the end; NULL: nowhere */
} msi_host_view;

ms_status msi_host_view_begin_on(msi_host_view *h, const msi_view *v, int32_t use);
ms_status msi_host_view_end_on(msi_host_view *h, ms_status status);

/* A view that begins, or is all zeros, may be ended: who has several ends all. */
static inline ms_status msi_host_view_begin(msi_host_view *h, const msi_view *v, int32_t use)
{
    h->copy = NULL;
    return MSI_LIKELY(v->storage->ctx->device == NULL) ? msi_view_data(v, &h->data)
                                                       : msi_host_view_begin_on(h, v, use);
}

/* `status` is what the host's part has come to, and is returned unless the end fails: what was
 * written goes to the device where it is MS_OK. */
static inline ms_status msi_host_view_end(msi_host_view *h, ms_status status)
{
    return MSI_LIKELY(h->copy == NULL) ? status : msi_host_view_end_on(h, status);
}

/* Hash of a view's values, in the order of its elements. */
ms_status msi_view_hash(const msi_view *v, uint64_t *hash);

/* -- handles ----------------------------------------------------------------------------------- */

/* The innermost open scope, to be told apart from all others. */
typedef struct msi_scope_place {
    int32_t depth; /* 0: there was none */
    uint64_t serial;
} msi_scope_place;
msi_scope_place msi_scope_now(const ms_context *ctx);
/* Is it open still, as none always is? */
bool msi_scope_is_open(const ms_context *ctx, msi_scope_place place);

/* New handle on a view; retains the storage. Enters the open scope, if any. */
ms_status msi_tensor_new(ms_tensor **out, ms_context *ctx, const msi_view *v);
/* New handle on new memory, contiguous. */
ms_status msi_tensor_make(ms_tensor **out, ms_context *ctx, int32_t dtype, int32_t ndim,
                          const int64_t *shape, int32_t mem_kind);
/* Let a handle show another view (sharded, unsharded): same handle, same identity. */
void msi_tensor_rebind(ms_tensor *t, const msi_view *v);
/* As msi_tensor_new(), but owned by the runtime: enters no scope. */
ms_status msi_tensor_new_internal(ms_tensor **out, ms_context *ctx, const msi_view *v);
/* Refuse a write into shared, graph-bound, expanded or absent memory. Who then writes bumps the
 * version, which says that something was written. */
ms_status msi_tensor_check_write(const ms_tensor *t, const char *what);
/* The same, and bump it: for writes that cannot fail any more. */
ms_status msi_tensor_begin_write(ms_tensor *t, const char *what);
/* MS_VALUE_ERROR for a number that is no MS_INIT_*. */
ms_status msi_init_check(int32_t kind);
/* Name of a parameter for messages, else "tensor". */
const char *msi_tensor_label(const ms_tensor *t);

#endif
