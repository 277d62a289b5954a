/* Private to graph/: recorded operators, and the kernels they are lowered to.
 *
 *   msi_value           what an operand or result of a recorded operator shows
 *   msi_recorded        one operator, with its attributes and values
 *   msi_region          operators that backward runs again: an activation checkpoint
 *   msi_graph_segment   operators between two steps of the host, with their plans
 *   msi_plan            kernels in order, whose pointers are places in buffers
 *
 * record.c observes the operators of a running program. lower.c runs a segment's operators, and
 * backward over them, in a context of its own whose device (record_device.c) executes nothing and
 * notes every kernel. So gradient rules, hooks and sharded units need to know nothing of graphs.
 * partition.c chooses what backward computes again. plan.c gives every temporary buffer its place.
 * replay.c runs a segment as one operator. */
#ifndef MSI_GRAPH_H
#define MSI_GRAPH_H

#include "moonshard/program.h"
#include "tape.h"

#include "array.h"
#include "device.h"

/* -- what is recorded -------------------------------------------------------------------------- */

enum {
    MSI_VALUE_ARGUMENT = MS_VALUE_ARGUMENT,
    MSI_VALUE_OUTER = MS_VALUE_OUTER,
    MSI_VALUE_RESULT = MS_VALUE_RESULT
};

typedef struct msi_value {
    int32_t kind;      /* MSI_VALUE_* */
    int32_t segment;   /* that made it; -1: none */
    int32_t last;      /* segment after which it is not used; -1: used by the one that made it */
    int32_t used;      /* last operator of which it is an operand; -1: none */
    int32_t out_of;    /* an output of its segment: index there; -1: used inside alone */
    bool constant;     /* of attributes alone */
    bool written;      /* in place */
    bool held;         /* until the run ends */
    ms_tensor *handle; /* OUTER: retained. ARGUMENT: retained while recording, or a parameter */
    int32_t first;     /* ARGUMENT: the first one that was the same value, or itself */
    uint64_t serial;   /* of its storage while recording */
    uint64_t node;     /* sequence of the node that made it; 0: none */
    int32_t node_out;
    bool requires_grad;
    msi_view view; /* storage NULL */
} msi_value;

/* Bytes of its elements. */
static inline int64_t msi_value_bytes(const msi_value *v)
{
    return msi_view_numel(&v->view) * ms_dtype_size(v->view.dtype);
}

static inline void msi_value_use(msi_value *v, int32_t segment)
{
    v->last = v->last > segment ? v->last : segment;
}

typedef struct msi_recorded {
    const msi_op *op;
    void *attrs;  /* copied */
    int32_t *in;  /* (n_in) values, -1 for an omitted operand; then (n_out) */
    int32_t *out; /* (n_out); of a write into existing tensors: those */
    int32_t n_in, n_out;
    int32_t place;
    int32_t draw; /* its random mask, among the program's; -1: none */
    bool into;    /* msi_op_run_into() */
    bool grads;   /* grad mode */
} msi_recorded;

/* An activation checkpoint. Those inside it follow it in the program's list. */
typedef struct msi_region {
    int32_t first, n;    /* operators; n -1: it has not ended */
    int32_t first_value; /* those made later belong to it */
    int32_t outer;       /* the one around it; -1: none */
    int32_t *result;     /* (n_result) values that it computes again */
    int32_t n_result;
} msi_region;
/* A custom operator, which each run calls. */
typedef struct msi_call {
    ms_custom_op_fn fn;
    void *user;
    char name[64];
    int32_t op;      /* recorded operators before it */
    int32_t segment; /* that runs next; the number of segments: none */
    int32_t n_in, n_out;
    int32_t in[MS_CUSTOM_OP_MAX], out[MS_CUSTOM_OP_MAX]; /* values */
} msi_call;

/* What the caller runs at a time: up to these. */
typedef struct msi_step {
    int32_t segments, calls;
} msi_step;

/* The random mask in attributes of `op`, which has one. */
static inline msi_draw *msi_draw_in(const msi_op *op, const void *attrs)
{
    return (msi_draw *)(uintptr_t)((const char *)attrs + op->draw - 1);
}

/* -- plans ------------------------------------------------------------------------------------- */

enum {
    MSI_BUFFER_INPUT,   /* of the segment: index of the input */
    MSI_BUFFER_OUTPUT,  /* a storage of its own: index among them */
    MSI_BUFFER_SAVED,   /* in the block that forward leaves to backward */
    MSI_BUFFER_TEMP,    /* in the arena of forward */
    MSI_BUFFER_GRAD,    /* gradient of an output: its index */
    MSI_BUFFER_DEST,    /* destination of an input's gradient: index of the input */
    MSI_BUFFER_BACKWARD /* in the arena of backward: at `offset`, behind the saved block */
};

typedef struct msi_buffer {
    uint64_t address; /* symbolic, ascending */
    int64_t nbytes;
    int32_t kind; /* MSI_BUFFER_* */
    int32_t index;
    int64_t offset;
    int32_t maker;      /* kernel of the forward that backward can run again for it; -1: none */
    int32_t born, died; /* kernels between which it was allocated; died INT32_MAX: not released */
} msi_buffer;

enum { MSI_ENTRY_KERNEL, MSI_ENTRY_PRODUCT, MSI_ENTRY_COPY, MSI_ENTRY_SET };

/* A pointer of a kernel's arguments. */
typedef struct msi_reloc {
    int32_t at;     /* in the plan's bytes */
    int32_t buffer; /* once linked, its region. < 0: -1 - MSI_FIELD_* */
    int64_t offset;
} msi_reloc;

/* Memory that a run finds by one pointer each: these, then inputs, destinations of their gradients,
 * outputs' storages, and outputs' gradients. */
enum { MSI_REGION_SAVED, MSI_REGION_ARENA, MSI_REGIONS };

typedef struct msi_copy_args {
    void *to;
    const void *from;
    int64_t nbytes;
} msi_copy_args;

typedef struct msi_entry {
    int8_t kind; /* MSI_ENTRY_* */
    int8_t dtype;
    int16_t kernel;
    int32_t args;  /* offset in the plan's bytes */
    int32_t reloc; /* first of n_relocs */
    int32_t n_relocs;
    int32_t op; /* of the program, whose forward it is; -1: none */
    bool in_region;
    bool faults; /* it may record invalid data or fail */
} msi_entry;

typedef struct msi_plan {
    msi_entry *entries;
    msi_reloc *relocs;
    char *bytes; /* arguments */
    msi_buffer *buffers;
    int32_t n_entries, n_relocs, n_buffers;
    int32_t cap_entries, cap_relocs, cap_buffers;
    int64_t n_bytes, cap_bytes;
    int64_t saved_bytes, arena_bytes;
    int32_t op;              /* while lowering: of the next entries */
    bool in_region;          /* likewise */
    int64_t unplanned_bytes; /* peak of saved and temporary buffers if each had its own memory */
} msi_plan;

/* What a backward of a segment depends on, besides the segment. */
typedef struct msi_backward_key {
    bool retains;                   /* the graph stays for another backward */
    bool *present;                  /* (n_out) outputs with a gradient */
    bool *needed;                   /* (n_in) */
    bool *add;                      /* (n_in) destinations that are added to */
    int8_t *dtype;                  /* (n_in) of destinations */
    int64_t (*stride)[MS_MAX_DIMS]; /* (n_out) of gradients */
} msi_backward_key;

/* Calls of random masks in lowered arguments: this and the mask's number in its segment. */
#define MSI_FIRST_CALL ((int64_t)1 << 62)

typedef struct msi_backward_plan {
    struct msi_backward_plan *next;
    msi_backward_key key;
    bool *reached; /* (n_in) inputs that receive a gradient */
    msi_plan plan; /* begins with the buffers of the forward */
} msi_backward_plan;

typedef struct msi_graph_segment {
    struct ms_program *program;
    int32_t number;
    int32_t first, n; /* operators */
    int32_t *in;      /* (n_in) values it uses that it did not make */
    bool *writes;     /* (n_in) memory of these is written */
    int32_t n_in;
    int32_t *out;        /* (n_out) values it made that are used behind it */
    int32_t *storage_of; /* (n_out) output's storage: index among n_storages, or -1 - input */
    msi_view *view_of;   /* (n_out) its view of that storage */
    bool *grad_of;       /* (n_out) requires grad */
    int32_t n_out;
    int64_t *storage_bytes; /* (n_storages) */
    int32_t n_storages;
    int32_t *drops; /* (n_drops) values not used behind it */
    int32_t n_drops;
    int32_t first_draw, n_draws; /* random masks, among the program's */
    msi_draw *draws;             /* (n_draws) of the current forward */
    bool recorded;               /* an output requires grad */
    bool *keeps;                 /* (n_in + n_storages) saved for backward */
    msi_plan forward;
    msi_backward_plan *backward; /* most recent first */
    struct msi_run *free_runs;
    /* scratch of a run */
    char **bases;          /* by region */
    ms_tensor **handles;   /* (n_in + n_out) */
    msi_storage **outputs; /* (n_storages) */
    msi_backward_key key;
} msi_graph_segment;

struct ms_program {
    int32_t refcount;                      /* the owner's handle, and nodes of its segments */
    ms_context *ctx;                       /* NULL: closed */
    void (*close)(struct ms_program *p);   /* called when the context closes */
    void (*release)(struct ms_program *p); /* drops a reference */
    struct ms_program *next, **link;       /* in the list of the context's programs */
    int32_t level;                         /* MS_PROGRAM_* */
    char *broken;                          /* or NULL */
    bool recording;
    bool grads;     /* grad mode at the start */
    int32_t depth;  /* of running operators */
    int32_t place;  /* of operators that are recorded next */
    bool into;      /* the outermost of them writes existing tensors */
    uint64_t since; /* storages made later are of the program */
    msi_op_observer observer;
    msi_value *values;
    int32_t n_values, cap_values, n_arguments;
    msi_recorded *ops;
    int32_t n_ops, cap_ops, cut; /* first operator of the current segment */
    msi_region *regions;         /* in the order in which they begin */
    int32_t n_regions, cap_regions;
    int32_t region; /* innermost that has not ended; -1: none */
    int32_t n_draws, cap_draws, cut_draws;
    int64_t *draws; /* (n_draws) calls, set before the segment runs */
    msi_call *calls;
    int32_t n_calls, cap_calls, cut_calls;
    msi_step *steps;
    int32_t n_steps, cap_steps;
    msi_graph_segment **segments;
    int32_t n_segments, cap_segments;
    ms_tensor **frame; /* (n_values) of the current run, owned */
    char misfit[256];
    char no_memory[16];
};

/* -- record.c ---------------------------------------------------------------------------------- */

/* Keep the first reason why a program cannot be replayed. */
void msi_program_break(ms_program *p, const char *format, ...) MSI_PRINTF(2, 3);
void msi_record_start(ms_program *p);
void msi_record_stop(ms_program *p);
/* The value that `t` shows; otherwise -1, and the program is broken. */
ms_status msi_record_value(ms_program *p, ms_tensor *t, int32_t *value);
ms_status msi_record_argument(ms_program *p, ms_tensor *t);
/* A value that a step of the host made. */
ms_status msi_record_made(ms_program *p, const char *step, ms_tensor *t, int32_t *value);
/* True if `t` shows memory of a constant, which must not be written or returned. */
bool msi_record_is_constant(const ms_program *p, const ms_tensor *t);
ms_status msi_record_region(ms_program *p);
void msi_record_region_end(ms_program *p);
/* Of the same memory, or of different ones. */
bool msi_same_view(const msi_view *a, const msi_view *b);

/* -- record_device.c --------------------------------------------------------------------------- */

/* Add to the programs that are closed before their context. */
ms_status msi_graph_enlist(ms_program *p);
/* The program that the calling thread records, if it is not paused; otherwise NULL. */
ms_program *msi_graph_recording(void);
/* The calling thread's context for lowering, made on demand; `under`: the context whose device
 * answers what kernels exist and what scratch they take. */
ms_status msi_lowering_begin(ms_context *under, ms_context **out, msi_plan *plan);
/* Back to the previous context. */
void msi_lowering_end(void);
/* `status` of what was lowered, or the failure of the plan: MS_RUNTIME_ERROR if the host waited for
 * a result, which lowering does not compute. */
ms_status msi_lowering_status(ms_status status);
/* The buffer that holds this symbolic address; -1: none. */
int32_t msi_plan_buffer_at(const msi_plan *plan, const void *address);
void msi_plan_free(msi_plan *plan);

/* -- lower.c ----------------------------------------------------------------------------------- */

/* Lower the forward of a segment whose operators and values are complete. The program may be broken
 * afterwards. */
ms_status msi_lower_forward(msi_graph_segment *s);
/* Lower a backward; `key`'s arrays are copied. */
ms_status msi_lower_backward(msi_graph_segment *s, const msi_backward_key *key,
                             msi_backward_plan **out);
void msi_graph_segment_free(msi_graph_segment *s);
ms_status msi_key_new(msi_backward_key *key, const msi_graph_segment *s);
void msi_key_free(msi_backward_key *key);

/* -- plan.c ------------------------------------------------------------------------------------ */

/* Place the buffers of this kind in a region, those that are live together beside each other. The
 * region's first `saved` bytes are a block of their own, which holds the saved buffers until they
 * are released. @return the end of the region, at least `saved` */
ms_status msi_plan_place(msi_plan *plan, int32_t kind, int64_t saved, int64_t *end);

/* The most bytes that are live at one kernel in buffers of these kinds (-1: no second one). */
int64_t msi_plan_live(const msi_plan *plan, int32_t kind, int32_t other);

/* -- partition.c ------------------------------------------------------------------------------- */

/* Let temporary buffers be what backward can compute again of the saved ones. */
ms_status msi_partition_forward(msi_graph_segment *s);
/* Drop the forward's kernels, the first n, but those that backward runs again: these go before the
 * first kernel that needs them. The first `n_buffers` buffers are the forward's. */
ms_status msi_partition_backward(msi_plan *plan, int32_t n, int32_t n_buffers);

/* -- segments.c -------------------------------------------------------------------------------- */

/* Take the next operators as a segment. */
ms_status msi_segment_add(ms_program *p);
/* Find what each segment needs of others. */
ms_status msi_segments_prepare(ms_program *p);

/* -- replay.c ---------------------------------------------------------------------------------- */

/* The most regions a segment can have. */
int32_t msi_graph_segment_regions(const msi_graph_segment *s);
/* Let a plan's pointers be offsets in regions; its buffers stay, for backwards to compare. */
void msi_graph_segment_link(const msi_graph_segment *s, msi_plan *plan);
/* Run it over the values of `frame`. */
ms_status msi_graph_segment_run(msi_graph_segment *s, ms_tensor **frame);
void msi_runs_free(msi_graph_segment *s);

#endif
