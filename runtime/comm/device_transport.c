/* The transport between members' devices, by their communicator, in order of stream COMPUTE. Data
 * is device memory. Reductions exchange parts and run the `tree` kernel over members, so they have
 * the bits of the host's. */
#include "group.h"

#include "device_comm.h"

_Static_assert(MSI_DEVICES_BYTES / 8 / MSI_PART_ALIGN >= MS_MAX_RANKS,
               "each member has a part to reduce, and so takes part in every exchange");

static bool is_complete(void *devices)
{
    return msi_device_comm_is_complete(devices);
}

/* The call just made, whose outcome is `status`. */
static ms_status complete(ms_comm *c, uint64_t seq, ms_status status)
{
    if (status == MS_OK && c->devices->incomplete) {
        status = msi_comm_wait(c, seq, is_complete, c->devices);
        if (status !=
            MS_OK) { /* else the library enqueues the call later, to memory freed by then */
            msi_device_lose(c->devices->device, status);
        }
    }
    return status == MS_OK ? msi_device_comm_check(c->devices) : status;
}

static ms_status all_gather(ms_comm *c, uint64_t seq, const void *in, int64_t nbytes, void *out)
{
    return complete(
        c, seq,
        msi_device_comm_all_gather(c->devices, MSI_STREAM_COMPUTE, in, out, nbytes, MS_DTYPE_U8));
}

static ms_status broadcast(ms_comm *c, uint64_t seq, int32_t root, char *data, int64_t nbytes)
{
    return complete(
        c, seq,
        msi_device_comm_broadcast(c->devices, MSI_STREAM_COMPUTE, data, nbytes, MS_DTYPE_U8, root));
}

static ms_status move_parts(ms_comm *c, uint64_t seq, const msi_device_part *parts, int32_t dtype)
{
    return complete(c, seq, msi_device_comm_exchange(c->devices, MSI_STREAM_COMPUTE, parts, dtype));
}

static ms_status exchange(ms_comm *c, uint64_t seq, const msi_exchange *e)
{
    msi_device_part parts[c->size];
    const char *in = e->in;
    char *out = e->out;

    for (int32_t q = 0; q < c->size; q++) {
        msi_device_part *p = &parts[q];

        *p = (msi_device_part){in, out, msi_exchange_sends(e, c->rank, q),
                               msi_exchange_receives(e, c->rank, q)};
        in += p->n_send;
        out = p->n_recv > 0 ? out + p->n_recv : out; /* may be NULL */
    }
    const msi_device_part *own = &parts[c->rank];

    if (own->n_send > 0) {
        MS_TRY(msi_mem_copy(c->devices->device->ctx, own->recv, own->send, own->n_send));
    }
    return move_parts(c, seq, parts, MS_DTYPE_U8);
}

/* -- reductions -------------------------------------------------------------------------------- */

/* Parts from each member: (size, stride) elements. */
typedef struct arrived {
    msi_mem_block *block;
    int64_t stride;
    int32_t dtype;
} arrived;

static ms_status arrived_new(arrived *a, const ms_comm *c, int32_t dtype, int64_t stride)
{
    *a = (arrived){.stride = stride, .dtype = dtype};
    return msi_alloc(c->devices->device->ctx, stride * c->size * ms_dtype_size(dtype),
                     MS_MEM_SCRATCH, &a->block);
}

static char *arrived_from(const arrived *a, int32_t q)
{
    return (char *)a->block->data + q * a->stride * ms_dtype_size(a->dtype);
}

/* out[0, n) = reduction of `own` and the others' parts. */
static ms_status reduce_parts(const ms_comm *c, const arrived *a, int32_t reduce, int64_t n,
                              const char *own, char *out)
{
    msi_tree_source src[c->size];
    const msi_tree_args args = msi_reduce_args(c, a->dtype, reduce, n, src, out);

    for (int32_t q = 0; q < c->size; q++) {
        src[q] = (msi_tree_source){q == c->rank ? own : arrived_from(a, q), a->dtype};
    }
    return msi_dispatch("reduce", MSI_K_tree, a->dtype, &args);
}

static ms_status reduce_own(ms_comm *c, uint64_t seq, const arrived *a, int32_t reduce, int64_t n,
                            char *in, char *out)
{
    const int64_t nbytes = n * ms_dtype_size(a->dtype);
    msi_device_part parts[c->size];

    for (int32_t q = 0; q < c->size; q++) {
        parts[q] = (msi_device_part){in + q * nbytes, arrived_from(a, q), n, n};
    }
    MS_TRY(move_parts(c, seq, parts, a->dtype));
    return reduce_parts(c, a, reduce, n, in + c->rank * nbytes, out);
}

static ms_status reduce_scatter(ms_comm *c, uint64_t seq, int32_t dtype, int32_t reduce, int64_t n,
                                char *in, char *out)
{
    arrived a;

    MS_TRY(arrived_new(&a, c, dtype, n));
    const ms_status status = reduce_own(c, seq, &a, reduce, n, in, out);

    msi_release(a.block);
    return status;
}

/* Member `root` gets the result; -1: all do. */
static bool gets(int32_t q, int32_t root)
{
    return root < 0 || q == root;
}

/* Each member reduces a part, in its own place of `a`, and sends it to those who get it. */
static ms_status reduce_and_send(ms_comm *c, uint64_t seq, const arrived *a, int32_t root,
                                 int32_t reduce, int64_t n, char *data)
{
    const int64_t size = ms_dtype_size(a->dtype);
    msi_device_part to[c->size], back[c->size];
    const msi_part own = msi_part_of(c->rank, c->size, n);
    char *at = data + own.first * size, *sum = arrived_from(a, c->rank);

    for (int32_t q = 0; q < c->size; q++) {
        const msi_part its = msi_part_of(q, c->size, n);
        char *place = data + its.first * size;

        to[q] = (msi_device_part){place, arrived_from(a, q), its.n, own.n};
        back[q] = (msi_device_part){sum, place, gets(q, root) ? own.n : 0,
                                    gets(c->rank, root) ? its.n : 0};
    }
    MS_TRY(move_parts(c, seq, to, a->dtype));
    MS_TRY(reduce_parts(c, a, reduce, own.n, at, sum));
    MS_TRY(move_parts(c, seq, back, a->dtype));
    return gets(c->rank, root) ? msi_mem_copy(c->devices->device->ctx, at, sum, own.n * size)
                               : MS_OK;
}

static ms_status reduce(ms_comm *c, uint64_t seq, int32_t root, int32_t dtype, int32_t how,
                        int64_t n, char *data)
{
    arrived a;

    MS_TRY(arrived_new(&a, c, dtype, (n / MSI_PART_ALIGN / c->size + 2) * MSI_PART_ALIGN));
    const ms_status status = reduce_and_send(c, seq, &a, root, how, n, data);

    msi_release(a.block);
    return status;
}

static ms_status all_reduce(ms_comm *c, uint64_t seq, int32_t dtype, int32_t how, int64_t n,
                            char *data)
{
    return reduce(c, seq, -1, dtype, how, n, data);
}

const msi_transport msi_transport_devices = {.all_gather = all_gather,
                                             .reduce_scatter = reduce_scatter,
                                             .all_reduce = all_reduce,
                                             .reduce = reduce,
                                             .broadcast = broadcast,
                                             .exchange = exchange};
