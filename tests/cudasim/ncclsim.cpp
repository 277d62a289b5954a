/* ncclsim.h: members exchange through a memory file. Operation n of a communicator is two items of
 * its stream: put this member's data and description there, once all have taken those of n - 1;
 * take the others', once all have put theirs. */
#include "ncclsim.h"

#include <atomic>
#include <chrono>
#include <fcntl.h>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

enum { MOST = 16, PATIENCE = 30 };            /* members; seconds until a hang is an error */
static const size_t ROOM = (size_t)256 << 20; /* of a member's data: the file is sparse */

enum kind { ALL_GATHER, REDUCE_SCATTER, BROADCAST, PARTS };
static const char *const kinds[] = {"all-gather", "reduce-scatter", "broadcast", "sends"};

/* An operation; of sends and receives by peer. */
struct op {
    kind what;
    int type, root;
    size_t n;
    size_t n_send[MOST], n_recv[MOST];
};

struct member {
    std::atomic<uint64_t> joined, put, taken;
    op now; /* operation `put` */
};

struct shared {
    member members[MOST];
};

struct comm {
    shared *memory;
    int rank, size;
    uint64_t n_ops;
    bool joining, finalized;
    std::chrono::steady_clock::time_point connected; /* not before */
    std::atomic<bool> aborted;
    std::chrono::steady_clock::time_point hung; /* since, in calls that differ */
    cudaStream_t stream;                        /* of the last call, or NULL */
    int patience;                /* polls for which the last call stays incomplete, */
    std::function<void()> items; /* which it then enqueues */
    ~comm()
    {
        munmap(memory, sizeof(*memory) + size * ROOM);
    }
};

struct ncclsim_comm {
    std::shared_ptr<comm> is;
};

/* The calling thread's group. */
struct group {
    int depth;
    comm *of;
    ncclComm_t handle;
    cudaStream_t stream;
    op parts;
    const char *send[MOST];
    char *recv[MOST];
    cudaStream_t aborted; /* a stream of a communicator that was aborted in it */
};
static thread_local group open_group;

#define MISUSED(...)                                                                               \
    do {                                                                                           \
        fprintf(stderr, "ncclsim: " __VA_ARGS__);                                                  \
        fputc('\n', stderr);                                                                       \
        abort();                                                                                   \
    } while (0)

static size_t size_of(int type)
{
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclFloat32:
        return 4;
    default:
        return 8;
    }
}

static char *data_of(const comm *c, int q)
{
    return (char *)(c->memory + 1) + (size_t)q * ROOM;
}

static bool all(const comm *c, std::atomic<uint64_t> member::*word, uint64_t n)
{
    for (int q = 0; q < c->size; q++) {
        if ((c->memory->members[q].*word).load() < n) {
            return false;
        }
    }
    return true;
}

/* -- checks ------------------------------------------------------------------------------------ */

enum { TEXT = 256 };

/* Does operation n of rank q match this rank's? Else how not, in `text`. */
static bool matches(const comm *c, uint64_t n, int q, char text[TEXT])
{
    const op &mine = c->memory->members[c->rank].now, &its = c->memory->members[q].now;

    if (mine.what != its.what) {
        snprintf(text, TEXT, "call %llu of a communicator is %s on rank %d and %s on rank %d",
                 (unsigned long long)n, kinds[mine.what], c->rank, kinds[its.what], q);
        return false;
    }
    if (mine.type != its.type || mine.root != its.root || mine.n != its.n) {
        snprintf(text, TEXT,
                 "%s %llu has %zu elements of type %d, root %d, on rank %d, and %zu, %d, %d on "
                 "rank %d",
                 kinds[mine.what], (unsigned long long)n, mine.n, mine.type, mine.root, c->rank,
                 its.n, its.type, its.root, q);
        return false;
    }
    if (mine.what == PARTS && q != c->rank && mine.n_recv[q] != its.n_send[c->rank]) {
        snprintf(text, TEXT, "rank %d receives %zu elements from rank %d, which sends %zu", c->rank,
                 mine.n_recv[q], q, its.n_send[c->rank]);
        return false;
    }
    return true;
}

/* Calls that differ between ranks never complete: the operation hangs until the communicator is
 * aborted, and ends the process if that does not happen. */
static bool completes(comm *c, uint64_t n)
{
    const auto now = std::chrono::steady_clock::now();
    char text[TEXT];

    for (int q = 0; q < c->size; q++) {
        if (!matches(c, n, q, text)) {
            c->hung = c->hung == std::chrono::steady_clock::time_point() ? now : c->hung;
            if (now - c->hung > std::chrono::seconds(PATIENCE)) {
                MISUSED("%s; the communicator was not aborted in %d s", text, (int)PATIENCE);
            }
            return false;
        }
    }
    return true;
}

/* -- data -------------------------------------------------------------------------------------- */

static double get(const char *p, int type, size_t i)
{
    uint32_t bits;
    uint16_t half;
    float x;

    switch (type) {
    case ncclFloat64:
        return ((const double *)p)[i];
    case ncclFloat32:
        return ((const float *)p)[i];
    case ncclBfloat16:
        memcpy(&half, p + 2 * i, sizeof(half));
        bits = (uint32_t)half << 16;
        memcpy(&x, &bits, sizeof(x));
        return x;
    default:
        MISUSED("reduce-scatter of type %d", type);
    }
}

static void add(char *p, int type, size_t i, double value)
{
    const double sum = get(p, type, i) + value;
    const float x = (float)sum;
    uint32_t bits;
    uint16_t half;

    switch (type) {
    case ncclFloat64:
        ((double *)p)[i] = sum;
        break;
    case ncclFloat32:
        ((float *)p)[i] = x;
        break;
    default:
        memcpy(&bits, &x, sizeof(bits));
        half = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
        memcpy(p + 2 * i, &half, sizeof(half));
    }
}

/* Elements that a rank puts there. */
static size_t put_elements(const comm *c, const op &o)
{
    size_t n = 0;

    for (int q = 0; o.what == PARTS && q < c->size; q++) {
        n += o.n_send[q];
    }
    return o.what == PARTS                            ? n
           : o.what == REDUCE_SCATTER                 ? o.n * (size_t)c->size
           : o.what == BROADCAST && c->rank != o.root ? 0
                                                      : o.n;
}

/* In a ring that starts after this rank: an order of the library's. */
static void reduce(const comm *c, const op &o, char *out)
{
    const size_t at = (size_t)c->rank * o.n, bytes = size_of(o.type);

    for (int i = 1; i <= c->size; i++) {
        const char *from = data_of(c, (c->rank + i) % c->size) + at * bytes;

        if (i == 1) {
            memcpy(out, from, o.n * bytes);
        }
        for (size_t k = 0; i > 1 && k < o.n; k++) {
            add(out, o.type, k, get(from, o.type, k));
        }
    }
}

static void take(const comm *c, const op &o, char *out, char *const *recv)
{
    const size_t bytes = size_of(o.type);

    for (int q = 0; q < c->size; q++) {
        if (o.what == ALL_GATHER) {
            memcpy(out + (size_t)q * o.n * bytes, data_of(c, q), o.n * bytes);
        } else if (o.what == PARTS && q != c->rank && o.n_recv[q] > 0) {
            const op &its = c->memory->members[q].now;
            size_t before = 0;

            for (int p = 0; p < c->rank; p++) {
                before += its.n_send[p];
            }
            memcpy(recv[q], data_of(c, q) + before * bytes, o.n_recv[q] * bytes);
        }
    }
    if (o.what == BROADCAST) {
        memcpy(out, data_of(c, o.root), o.n * bytes);
    } else if (o.what == REDUCE_SCATTER) {
        reduce(c, o, out);
    }
}

/* The items of operation n, from the last call. */
static void enqueue_items(const std::shared_ptr<comm> &c, cudaStream_t s, uint64_t n, const op &o,
                          const char *in, char *out, const std::vector<const char *> &from,
                          const std::vector<char *> &to)
{
    const cudasim_stream_base *base = (const cudasim_stream_base *)s;

    base->enqueue(
        s,
        [=] {
            char *at = data_of(c.get(), c->rank);

            if (c->aborted) {
                return;
            }
            c->memory->members[c->rank].now = o;
            if (o.what != PARTS) {
                memcpy(at, in, put_elements(c.get(), o) * size_of(o.type));
            }
            for (size_t q = 0; q < from.size(); q++) {
                memcpy(at, from[q], o.n_send[q] * size_of(o.type));
                at += o.n_send[q] * size_of(o.type);
            }
            c->memory->members[c->rank].put = n;
        },
        [=] { return c->aborted || all(c.get(), &member::taken, n - 1); });
    base->enqueue(
        s,
        [=] {
            if (c->aborted) {
                return;
            }
            take(c.get(), o, out, to.data());
            c->memory->members[c->rank].taken = n;
        },
        [=] { return c->aborted || (all(c.get(), &member::put, n) && completes(c.get(), n)); });
}

/* One poll: as with the library's own thread, the items are enqueued when the call completes. */
static ncclResult_t advance(comm *c)
{
    c->patience -= c->patience > 0;
    if (c->patience > 0) {
        return ncclInProgress;
    }
    if (c->items) {
        c->items();
        c->items = nullptr;
    }
    return ncclSuccess;
}

static ncclResult_t enqueue(ncclComm_t handle, cudaStream_t s, const op &o, const char *in,
                            char *out, const char *const *send, char *const *recv)
{
    const std::shared_ptr<comm> c = handle->is;
    const std::vector<const char *> from(send, send + (send != NULL ? c->size : 0));
    const std::vector<char *> to(recv, recv + (recv != NULL ? c->size : 0));
    const uint64_t n = ++c->n_ops;
    std::vector<const void *> all(from.begin(), from.end());

    if (put_elements(c.get(), o) * size_of(o.type) > ROOM) {
        MISUSED("%s of more than %zu bytes", kinds[o.what], ROOM);
    }
    all.insert(all.end(), to.begin(), to.end());
    all.insert(all.end(), {in, out});
    for (const void *p : all) {
        ((const cudasim_stream_base *)s)->check_reach(p, "a message is");
    }
    c->stream = s;
    c->items = [=] { enqueue_items(handle->is, s, n, o, in, out, from, to); };
    c->patience = (int)(n % 3) + 1; /* as if connections were made */
    return advance(c.get());
}

static void check_call(const comm *c, const char *what)
{
    if (c->joining || c->patience > 0) {
        MISUSED("%s while an earlier call is in progress", what);
    }
    if (c->finalized) {
        MISUSED("%s after ncclCommFinalize", what);
    }
}

/* One operation outside a group. */
static ncclResult_t single(ncclComm_t handle, cudaStream_t s, const op &o, const void *in,
                           void *out)
{
    check_call(handle->is.get(), kinds[o.what]);
    if (open_group.depth > 0) {
        MISUSED("%s in a group of sends and receives", kinds[o.what]);
    }
    return enqueue(handle, s, o, (const char *)in, (char *)out, NULL, NULL);
}

/* -- calls ------------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version)
{
    const char *pretended = getenv("MS_CUDASIM_NCCL");

    *version = pretended != NULL ? atoi(pretended) : 22800;
    return ncclSuccess;
}

/* The memory file, by the process that has made it. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    const int fd = memfd_create("ncclsim", MFD_CLOEXEC);

    *id = {};
    snprintf(id->internal, sizeof(id->internal), "/proc/%d/fd/%d", (int)getpid(), fd);
    return fd >= 0 && ftruncate(fd, (off_t)(sizeof(shared) + MOST * ROOM)) == 0 ? ncclSuccess
                                                                                : ncclSystemError;
}

/* MS_CUDASIM_CONNECT: milliseconds that a communicator takes to connect. */
static std::chrono::milliseconds connecting()
{
    const char *ms = getenv("MS_CUDASIM_CONNECT");

    return std::chrono::milliseconds(ms != NULL ? atoi(ms) : 0);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    const int fd = open(id.internal, O_RDWR | O_CLOEXEC);

    if (config->blocking != 0) {
        MISUSED("a blocking communicator");
    }
    if (fd < 0 || size > MOST) {
        return ncclSystemError;
    }
    void *memory = mmap(NULL, sizeof(shared) + (size_t)size * ROOM, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_NORESERVE, fd, 0);

    close(fd);
    if (memory == MAP_FAILED) {
        return ncclSystemError;
    }
    *out = new ncclsim_comm{std::make_shared<comm>()};
    comm *c = (*out)->is.get();

    c->memory = (shared *)memory;
    c->rank = rank;
    c->size = size;
    c->joining = true;
    c->connected = std::chrono::steady_clock::now() + connecting();
    c->memory->members[rank].joined = 1;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *out)
{
    comm *c = handle->is.get();

    if (open_group.depth > 0) {
        MISUSED("a group is left open");
    }
    c->joining = c->joining &&
                 (std::chrono::steady_clock::now() < c->connected || !all(c, &member::joined, 1));
    *out = c->joining ? ncclInProgress : advance(c);
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t c, int *rank)
{
    *rank = c->is->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t c, int *size)
{
    *size = c->is->size;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    check_call(c->is.get(), "ncclCommFinalize");
    c->is->finalized = true;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    if (c->is->memory->members[c->is->rank].taken < c->is->n_ops) {
        MISUSED("ncclCommDestroy before the communicator's work has run");
    }
    delete c;
    return ncclSuccess;
}

/* As NCCL: its calls end at once, then it waits for all streams of the device, in a group at its
 * end. */
ncclResult_t ncclCommAbort(ncclComm_t c)
{
    const cudaStream_t s = c->is->stream;

    c->is->aborted = true;
    delete c;
    if (open_group.depth > 0) {
        open_group.aborted = s != NULL ? s : open_group.aborted;
    } else if (s != NULL) {
        ((const cudasim_stream_base *)s)->synchronize(s);
    }
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t s)
{
    op o = {};

    o.what = ALL_GATHER;
    o.type = type;
    o.n = n;
    return single(c, s, o, in, out);
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t type,
                               ncclRedOp_t how, ncclComm_t c, cudaStream_t s)
{
    op o = {};

    (void)how;
    o.what = REDUCE_SCATTER;
    o.type = type;
    o.n = n;
    return single(c, s, o, in, out);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t type, int root,
                           ncclComm_t c, cudaStream_t s)
{
    op o = {};

    o.what = BROADCAST;
    o.type = type;
    o.root = root;
    o.n = n;
    return single(c, s, o, in, out);
}

static group *add_part(ncclComm_t c, cudaStream_t s, ncclDataType_t type, int peer,
                       const char *what)
{
    group *g = &open_group;

    if (g->depth == 0 || (g->handle != NULL && (g->handle != c || g->stream != s))) {
        MISUSED("%s outside a group of its communicator and stream", what);
    }
    if (peer < 0 || peer >= c->is->size || (g->handle != NULL && g->parts.type != type)) {
        MISUSED("%s of type %d with rank %d", what, (int)type, peer);
    }
    check_call(c->is.get(), what);
    g->handle = c;
    g->stream = s;
    g->parts.what = PARTS;
    g->parts.type = type;
    return g;
}

ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    group *g = add_part(c, s, type, peer, "ncclSend");

    g->parts.n_send[peer] = n;
    g->send[peer] = (const char *)in;
    return ncclSuccess;
}

ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    group *g = add_part(c, s, type, peer, "ncclRecv");

    g->parts.n_recv[peer] = n;
    g->recv[peer] = (char *)out;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    open_group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    const group g = open_group;

    if (g.depth == 0) {
        MISUSED("ncclGroupEnd without ncclGroupStart");
    }
    open_group.depth--;
    if (open_group.depth > 0) {
        return ncclSuccess;
    }
    open_group = {};
    if (g.aborted != NULL) {
        ((const cudasim_stream_base *)g.aborted)->synchronize(g.aborted);
    }
    return g.handle == NULL ? ncclSuccess
                            : enqueue(g.handle, g.stream, g.parts, NULL, NULL, g.send, g.recv);
}

const char *ncclGetErrorString(ncclResult_t r)
{
    return r == ncclSuccess ? "no error" : r == ncclSystemError ? "system error" : "invalid usage";
}

const char *ncclGetLastError(ncclComm_t c)
{
    (void)c;
    return "";
}
