/* Storage, views, handles, scopes, parameters: the private part of moonshard/tensor.h.
 *
 * Three layers:
 *   msi_storage  bytes, reference counted. Storage of full parameters is bound late: `data` is
 *                NULL while the unit is sharded, and later bound again, perhaps elsewhere. So
 *                views (saved tensors) survive reshard and unshard.
 *   msi_view     shape, strides and offset over a storage. A plain value; does not own.
 *   ms_tensor    a handle: a view plus autograd and scope state. Recycled with a generation. */
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
    bool meta;        /* kind none, without values: only a shape */
    int64_t nbytes;
    uint64_t serial; /* identifies it among all storages of its context, also after it is freed */
    void *data;      /* NULL if absent */
    void *host; /* host memory beside a device, where kernels do not access it and `data` is NULL;
                   else NULL. Own memory (`block`) is pinned */
    msi_mem_block *block; /* of owned bytes */
    /* In-place writes, optimizer steps, loads and writebacks so far; not unshards. Saved tensors
     * compare it. */
    int64_t version;
    const char *unit; /* name of the unit of these parameters; borrowed or NULL */
    ms_context *ctx;
    const char *absent;   /* why `data` is NULL, e.g. "unit 'h.0' is sharded", or an unmaterialized
                             parameter's name; borrowed or NULL */
    const char *readonly; /* why scripts must not write, and what to do instead, for the error: "is
                             a view of ..."; borrowed. NULL: writable */
    union {
        struct msi_storage *base;      /* owner of these bytes, retained; or NULL */
        struct msi_storage *next_free; /* in the pool */
    };
    void (*dispose)(struct msi_storage *s, void *user); /* of borrowed or pinned memory; or NULL */
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

/* State of leaves that are parameters. */
typedef struct msi_param {
    int32_t init; /* MS_INIT_* */
    double a, b;
    int64_t zero_first, zero_n; /* elements that are 0 initially, whatever the rule */
    uint64_t seed;              /* of its initial values: the context's when it was declared */
    char *name;
    int64_t stream;    /* separates equal names of different trees */
    bool materialized; /* master values exist */
    int32_t dtype;     /* of the master */
    int32_t ndim;
    int64_t shape[MS_MAX_DIMS]; /* of the whole parameter */
    /* Local part of the master: 1-D, contiguous, elements [start, start + numel) of the parameter.
     * Plain parameters: all of it. */
    msi_view master; /* storage retained; NULL before materialize */
    int64_t start;
    int64_t drawn; /* master's version after its rule; if higher, it was written */
    /* The unit that manages it, and its index there (set by fsdp; else NULL). `ops`: calls of lower
     * layers to it. */
    void *unit;
    int32_t unit_index;
    bool shows_shard; /* the handle shows this rank's shard, whatever its shape */
    const struct msi_param_ops *ops;
} msi_param;

/* Calls to the manager of a parameter. */
typedef struct msi_param_ops {
    /* The master was written from outside (optimizer, load). */
    void (*touched)(void *unit, int32_t index);
    /* Allocate and initialise the master. */
    ms_status (*materialize)(void *unit);
    /* Error if `what`, the script's call, must not access the master now. */
    ms_status (*check_master)(void *unit, const char *what);
    /* The parameter's handle will be destroyed: drop it. */
    void (*orphan)(void *unit, int32_t index);
    /* Shape and dtype of its reduced gradient (perhaps unallocated). */
    void (*gradient_like)(void *unit, int32_t index, msi_view *like);
    /* Error if `what`, the script's call, must not use all gradients now. */
    ms_status (*check_gradient)(void *unit, const char *what);
    /* Finish pending work on its gradient before a read. */
    ms_status (*await_gradient)(void *unit);
    /* Its gradient was set to none. */
    void (*gradient_dropped)(void *unit, int32_t index);
    /* True if the whole parameter has a reduced gradient, on any rank. */
    bool (*has_gradient)(void *unit, int32_t index);
    /* True if the manager has an unreduced gradient of it (no_sync), or, of a flat parameter, any
     * gradient. */
    bool (*accumulates)(void *unit, int32_t index);
    /* That gradient: a copy, full shape, in the compute dtype; of a flat parameter see flat.c. */
    ms_status (*accumulated)(void *unit, int32_t index, ms_tensor **out);
    /* Replace it (full shape), or drop it (NULL). */
    ms_status (*replace_accumulated)(void *unit, int32_t index, const msi_view *value);
    /* NULL: the tensor has its own .grad and requires_grad. Else set, or drop, the gradient of all
     * parameters that it shows; and their requires_grad. */
    ms_status (*set_gradient)(void *unit, int32_t index, const msi_view *value);
    void (*set_requires_grad)(void *unit, bool on);
    /* Cast all parameters of the unit, or none. */
    ms_status (*cast)(void *unit, int32_t dtype);
    /* Compare a note (note.h) over the ranks that share it. */
    void (*note)(void *unit, const msi_note *note);
    /* Number of its model, equal on the ranks that share it, lower for models of more ranks. */
    int64_t (*model)(void *unit);
} msi_param_ops;

struct ms_tensor {
    uint64_t
        generation;   /* incremented when the handle dies; first member, read through stale refs */
    int32_t refcount; /* owners */
    int32_t scope;    /* depth of the owning scope, 0: none */
    int32_t scope_index; /* index in that scope's list */
    bool requires_grad;
    int16_t out_index; /* output index of grad_fn */
    ms_context *ctx;
    msi_view v;               /* storage retained */
    struct msi_node *grad_fn; /* retained; NULL for leaves */
    ms_tensor *grad;          /* a leaf's gradient (owned), or NULL */
    struct msi_hooks *hooks;
    struct msi_grad_sink *sink; /* destination of a leaf's gradient; NULL: default */
    struct msi_node *leaf_node; /* autograd's accumulate node; borrowed, NULL when freed */
    msi_param *param;
    const char *released_by; /* scope that last released this handle */
    ms_tensor *next_free;
};

/* True if the handle shows a unit's shard. */
static inline bool msi_tensor_is_shard(const ms_tensor *t)
{
    return t->param != NULL && t->param->unit != NULL && t->param->shows_shard;
}

/* Fold one parameter into the hash `h` of a model, in order. */
uint64_t msi_params_fold(uint64_t h, uint64_t values, const char *name);
/* Key of its initial values' random stream; `name`: if it has none yet. */
uint64_t msi_param_key(const msi_param *p, const char *name);
/* Write initial values to args->out: those of the rule in `args`, and zeros where the parameter has
 * them. */
ms_status msi_param_draw(const msi_param *p, const msi_init_args *args, int32_t dtype);
/* True if t's manager gives its gradient, which then replaces t's own. */
static inline bool msi_param_accumulates(const ms_tensor *t)
{
    const msi_param *p = t->param;

    return p != NULL && p->ops != NULL && p->ops->accumulates != NULL &&
           p->ops->accumulates(p->unit, p->unit_index);
}
/* Ask t's manager: error if `what`, the script's call, must not use the master now. */
ms_status msi_param_check_master(const ms_tensor *t, const char *what);
/* Ask t's manager: error if `what`, the script's call, must not use all gradients now. */
ms_status msi_param_check_gradient(const ms_tensor *t, const char *what);
/* Report to t's manager that the master, or for elements on peers theirs, was written. */
void msi_param_touched(const ms_tensor *t);
/* Let t's manager finish pending work on t's gradient. */
ms_status msi_param_await_gradient(const ms_tensor *t);

/* Make the context close its tensors. */
void msi_tensor_install(ms_context *ctx);

/* -- storage ----------------------------------------------------------------------------------- */

ms_status msi_storage_new(msi_storage **out, ms_context *ctx, int64_t nbytes, int32_t mem_kind);
/** The same in host memory that the device's kernels access (offloading). Without a device, as
 * above. */
ms_status msi_storage_new_pinned(msi_storage **out, ms_context *ctx, int64_t nbytes,
                                 int32_t mem_kind);
/** Host memory beside the device, pinned, which operators refuse. Without a device, as the first.
 */
ms_status msi_storage_new_host(msi_storage **out, ms_context *ctx, int64_t nbytes);
/** Where `like` is: in such host memory, or on the device. */
ms_status msi_storage_new_beside(msi_storage **out, const msi_storage *like, int64_t nbytes,
                                 int32_t mem_kind);
/* Borrowed (data may be NULL for slot and none). */
ms_status msi_storage_wrap(msi_storage **out, ms_context *ctx, int32_t kind, void *data,
                           int64_t nbytes);
/* Borrowed host memory. On a device kernels cannot access it, but msi_copy() and the host
 * (msi_host_view_begin) can. */
ms_status msi_storage_of_host(msi_storage **out, ms_context *ctx, void *data, int64_t nbytes);
/* The bytes of `base` from `offset` on; retains it. Borrowed. */
ms_status msi_storage_part(msi_storage **out, msi_storage *base, int64_t offset, int64_t nbytes);
/* Bind a storage without own bytes to `data`, owned by `base`, which it retains; NULL: by someone
 * who outlives the binding. */
void msi_storage_bind(msi_storage *s, msi_storage *base, void *data, int64_t nbytes);
/* End the binding. */
void msi_storage_unbind(msi_storage *s);
msi_storage *msi_storage_retain(msi_storage *s);
void msi_storage_release(msi_storage *s);
/* True if its holder is the only owner and may write. */
static inline bool msi_storage_is_private(const msi_storage *s)
{
    return s->refcount == 1 && s->kind == MS_STORAGE_OWNED && s->readonly == NULL;
}

/* -- numbers ----------------------------------------------------------------------------------- */

/* Check a number for arithmetic in this dtype. MS_TYPE_ERROR for a fraction with integers, since
 * dtypes are not promoted. */
ms_status msi_check_number(const char *op, int32_t dtype, double number);

/* -- views ------------------------------------------------------------------------------------- */

int64_t msi_view_numel(const msi_view *v);
bool msi_view_contiguous(const msi_view *v);
/* Elements from the first to the last, both counted; at most msi_view_numel() for a dense view. */
int64_t msi_view_span(const msi_view *v);
/* Pointer to element 0; MS_RUNTIME_ERROR with the reason if absent. numel 0 is allowed. */
ms_status msi_view_data(const msi_view *v, void **data);
/* The same error if the bytes are absent, on the device and on the host. */
ms_status msi_view_present(const msi_view *v);
/* Address, for comparison only. */
void *msi_view_address(const msi_view *v);
/* msi_view_data() of a view that must be bound, else NULL. */
void *msi_view_ptr(const msi_view *v);
void msi_view_set_contiguous(msi_view *v, int32_t dtype, int32_t ndim, const int64_t *shape);
/* True if the shapes are equal. */
bool msi_view_same_shape(const msi_view *a, const msi_view *b);
/* "(2, 3)", in msi_part_text(). */
const char *msi_shape_text(int32_t ndim, const int64_t *shape);
/* MS_VALUE_ERROR if the product of all nonzero sizes exceeds MSI_MAX_NUMEL. All tensors, even empty
 * ones, obey this, so offsets, bytes and partial products cannot overflow. */
#define MSI_MAX_NUMEL (INT64_MAX / 16)
ms_status msi_check_sizes(int32_t ndim, const int64_t *shape);
/* msi_view_set_contiguous() with a check of the shape. */
ms_status msi_view_make(msi_view *v, int32_t dtype, int32_t ndim, const int64_t *shape);
/* Shape that a and b broadcast to; MS_VALUE_ERROR shows both. */
ms_status msi_broadcast(const msi_view *a, const msi_view *b, int32_t *ndim, int64_t *shape);
/* Strides of `v` expanded to a larger broadcast shape. */
void msi_view_expand(const msi_view *v, int32_t ndim, const int64_t *shape, msi_view *out);
/* View with another shape. @return false if the strides do not allow it */
bool msi_view_reshape(const msi_view *v, int32_t ndim, const int64_t *shape, msi_view *out);
/* True if the two share a byte. */
bool msi_view_shares(const msi_view *a, const msi_view *b);
/* MS_RUNTIME_ERROR if `src` overlaps `dst`, unless they are the same view. `op` is the caller, here
 * and below. */
ms_status msi_check_source(const char *op, const msi_view *dst, const msi_view *src);
/* MS_RUNTIME_ERROR if a view has an element twice. */
ms_status msi_check_expanded(const char *op, const msi_view *dst);
/* Loops over `shape` for n operands (views of that shape, NULL entries are skipped), merging
 * neighbouring dimensions. */
void msi_loop_make(msi_loop *loop, int32_t ndim, const int64_t *shape, const msi_view *const *ops,
                   int32_t n);

/* Run an elementwise kernel: operands broadcast to dst's shape. `op` is the caller. */
ms_status msi_ew(const char *op, int32_t kernel, const msi_view *dst, const msi_view *const *in,
                 int32_t n_in, const double *scalars, bool accumulate);
/* dst = src (cast, broadcast), or dst += src. On a device either may be host memory: the host may
 * change a borrowed source, and read a result, on return. */
ms_status msi_copy(const msi_view *dst, const msi_view *src, bool accumulate);
ms_status msi_copy_of(const char *op, const msi_view *dst, const msi_view *src, bool accumulate);
ms_status msi_fill(const msi_view *dst, double value);
/* New owned contiguous view of src's shape in `dtype`; *out owns one reference. Copies src if
 * `copy`. */
ms_status msi_view_like(msi_view *out, ms_context *ctx, const msi_view *src, int32_t dtype,
                        int32_t mem_kind, bool copy);
/* dst (+)= src summed over the dimensions along which dst's shape broadcasts to src's. */
ms_status msi_sum_to(const char *op, const msi_view *dst, const msi_view *src, double scale,
                     bool accumulate);

/* -- the host ---------------------------------------------------------------------------------- */

/* [Note: host views] Only enqueued work accesses device memory. The host accesses a contiguous
 * tensor at `data` between begin and end. On the CPU this is its memory. On a device it is a pinned
 * copy, fetched if the host reads, and written back at the end if it writes. Begin waits for the
 * fetch, and so for the work of its stream; the end waits for nothing. */
enum { MSI_HOST_READS = 1, MSI_HOST_WRITES = 2 }; /* without READS, all elements must be written */

typedef struct msi_host_view {
    void *data;
    msi_mem_block *copy; /* NULL: the tensor's memory */
    ms_context *ctx;
    void *to; /* destination of the copy, or NULL */
} msi_host_view;

ms_status msi_host_view_begin_on(msi_host_view *h, const msi_view *v, int32_t use);
ms_status msi_host_view_end_on(msi_host_view *h, ms_status status);

/* A failed or zeroed view may be ended, too, so a caller can end all of several. */
static inline ms_status msi_host_view_begin(msi_host_view *h, const msi_view *v, int32_t use)
{
    h->copy = NULL;
    return MSI_LIKELY(v->storage->ctx->device == NULL) ? msi_view_data(v, &h->data)
                                                       : msi_host_view_begin_on(h, v, use);
}

/* `status` is the outcome of the host's work, returned unless the end fails. Writes reach the
 * device only if it is MS_OK. */
static inline ms_status msi_host_view_end(msi_host_view *h, ms_status status)
{
    return MSI_LIKELY(h->copy == NULL) ? status : msi_host_view_end_on(h, status);
}

/* Hash of a view's values, in element order. */
ms_status msi_view_hash(const msi_view *v, uint64_t *hash);

/* -- handles ----------------------------------------------------------------------------------- */

/* Identifies the innermost open scope. */
typedef struct msi_scope_place {
    int32_t depth; /* 0: none */
    uint64_t serial;
} msi_scope_place;
msi_scope_place msi_scope_now(const ms_context *ctx);
/* True if open, as no scope is. */
bool msi_scope_is_open(const ms_context *ctx, msi_scope_place place);

/* New handle on a view; retains the storage. Belongs to the open scope, if any. */
ms_status msi_tensor_new(ms_tensor **out, ms_context *ctx, const msi_view *v);
/* New handle on new memory, contiguous. */
ms_status msi_tensor_make(ms_tensor **out, ms_context *ctx, int32_t dtype, int32_t ndim,
                          const int64_t *shape, int32_t mem_kind);
/* Make a handle show another view (sharded, unsharded). */
void msi_tensor_rebind(ms_tensor *t, const msi_view *v);
/* As msi_tensor_new(), but owned by the runtime, in no scope. */
ms_status msi_tensor_new_internal(ms_tensor **out, ms_context *ctx, const msi_view *v);
/* Error for a write to shared, graph-bound, expanded or absent memory. The caller then writes and
 * increments the version. */
ms_status msi_tensor_check_write(const ms_tensor *t, const char *what);
/* The same, and increments it: for writes that cannot fail. */
ms_status msi_tensor_begin_write(ms_tensor *t, const char *what);
/* MS_VALUE_ERROR for an invalid MS_INIT_*. */
ms_status msi_init_check(int32_t kind);
/* Name of a parameter for messages, else "tensor". */
const char *msi_tensor_label(const ms_tensor *t);

#endif
