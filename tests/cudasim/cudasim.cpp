/* cudasim.h: fibers, streams, and the calls. */
#include "cudasim.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <mutex>
#include <numeric>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

static std::recursive_mutex lock; /* ranks may be threads */
typedef std::lock_guard<std::recursive_mutex> locked;

[[noreturn]] static void misused(const char *how)
{
    fprintf(stderr, "cudasim: %s\n", how);
    abort();
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);

    return value != NULL ? strtoull(value, NULL, 0) : otherwise;
}

static uint64_t roll()
{
    static uint64_t dice = 0;

    if (dice == 0) {
        dice = setting("MS_CUDASIM_SEED", 0) * 2 + 88172645463325253u;
    }
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice;
}

/* -- errors and memory ------------------------------------------------------------------------- */

static thread_local cudaError_t last;
static cudaError_t sticky; /* of a kernel that failed: every later call returns it */

static cudaError_t result(cudaError_t e)
{
    e = sticky != cudaSuccess ? sticky : e;
    last = e != cudaSuccess ? e : last;
    return e;
}

/* What the card can read, by address: its memory, and host memory that is pinned, by each rank that
 * is a thread of this process. */
struct range {
    size_t n;
    int count;
};
static std::map<uintptr_t, range> reachable;

static void add_range(const void *p, size_t n)
{
    locked hold(lock);

    range &r = reachable[(uintptr_t)p];

    r = {r.n > n ? r.n : n, r.count + 1};
}

static void drop_range(const void *p)
{
    locked hold(lock);

    const auto at = reachable.find((uintptr_t)p);

    if (at != reachable.end() && --at->second.count == 0) {
        reachable.erase(at);
    }
}

static bool reaches(const void *p)
{
    locked hold(lock);
    auto after = reachable.upper_bound((uintptr_t)p);

    if (after == reachable.begin()) {
        return false;
    }
    --after;
    return (uintptr_t)p - after->first <= after->second.n; /* or one past its end */
}

static void check_reach(const void *p, const char *what)
{
    if (p != NULL && !reaches(p)) {
        fprintf(stderr, "cudasim: %s at %p, which the card cannot read\n", what, p);
        abort();
    }
}

extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" const char etext[];

static bool is_mapped(uintptr_t p)
{
    unsigned char in_core;

    return mincore((void *)(p & ~(uintptr_t)4095), 1, &in_core) == 0;
}

/* Words that are addresses of this process must be addresses of the card, or of its code. */
void cudasim::check_arguments(const void *args, size_t n)
{
    for (size_t at = 0; at + sizeof(uintptr_t) <= n; at += sizeof(uintptr_t)) {
        uintptr_t word;

        memcpy(&word, (const char *)args + at, sizeof(word));
        if (word >> 32 != 0 && word >> 47 == 0 &&
            !(word >= (uintptr_t)__ehdr_start && word < (uintptr_t)etext) && is_mapped(word)) {
            check_reach((const void *)word, "a kernel's argument points to memory");
        }
    }
}

/* -- fibers ------------------------------------------------------------------------------------ */

/* Save callee-saved registers and the stack pointer in *save, continue at `to`. */
extern "C" void cudasim_switch(void **save, void *to);
__asm__(".text\n.globl cudasim_switch\n.hidden cudasim_switch\n.type cudasim_switch,@function\n"
        "cudasim_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

namespace cudasim
{

enum { STACK = 64 * 1024, WARP = 32, MOST = 1024 };
enum state { READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct fiber {
    void *sp;
    char *stack;
    state is;
    uint3 thread;
    uint64_t offered[2];
    uint32_t words[2][6];
    unsigned round;
};

place here;
static fiber fibers[MOST];
static fiber *current;
static int n_fibers;
static void *scheduler;
static const std::function<void()> *body;
static int any_value, any_last;

static void yield(state why)
{
    current->is = why;
    cudasim_switch(&current->sp, scheduler);
}

static void enter()
{
    for (;;) {
        (*body)();
        yield(DONE);
    }
}

void barrier()
{
    yield(AT_BARRIER);
}

int any(int mine)
{
    any_value |= mine;
    yield(AT_BARRIER);
    return any_last;
}

uint64_t exchange(uint64_t mine, unsigned source)
{
    fiber *me = current;
    const unsigned round = me->round++ & 1;

    me->offered[round] = mine;
    yield(AT_EXCHANGE);
    return fibers[(me - fibers) / WARP * WARP + source].offered[round];
}

void offer(const uint32_t mine[6])
{
    memcpy(current->words[current->round++ & 1], mine, sizeof(current->words[0]));
    yield(AT_EXCHANGE);
}

const uint32_t *words_of(unsigned source)
{
    return fibers[(current - fibers) / WARP * WARP + source].words[(current->round - 1) & 1];
}

static void make(int i)
{
    fiber *f = &fibers[i];

    if (f->stack != NULL) {
        return;
    }
    f->stack = (char *)mmap(NULL, STACK, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void **sp = (void **)(f->stack + STACK);

    *--sp = NULL;
    *--sp = (void *)enter;
    f->sp = sp - 6;
}

/* Let fibers go on whose barrier is complete. False: all are done. */
static bool release()
{
    int at_barrier = 0, done = 0, freed = 0;

    for (int i = 0; i < n_fibers; i++) {
        at_barrier += fibers[i].is == AT_BARRIER;
        done += fibers[i].is == DONE;
    }
    if (done == n_fibers) {
        return false;
    }
    if (at_barrier == n_fibers) {
        any_last = any_value;
        any_value = 0;
        for (int i = 0; i < n_fibers; i++) {
            fibers[i].is = READY;
        }
        return true;
    }
    for (int w = 0; w < n_fibers; w += WARP) {
        int n = 0;

        for (int i = w; i < w + WARP && i < n_fibers; i++) {
            n += fibers[i].is == AT_EXCHANGE;
        }
        for (int i = w; n == WARP && i < w + WARP; i++) {
            fibers[i].is = READY;
            freed++;
        }
    }
    if (freed == 0) {
        misused("threads wait at a barrier that others never reach");
    }
    return true;
}

static void run_block()
{
    for (int i = 0; i < n_fibers; i++) {
        fibers[i].is = READY;
        fibers[i].round = 0;
    }
    any_value = 0;
    do {
        const int first = (int)(roll() % (uint64_t)n_fibers);

        for (int k = 0; k < n_fibers; k++) {
            fiber *f = &fibers[first + k < n_fibers ? first + k : first + k - n_fibers];

            if (f->is == READY) {
                current = f;
                here.thread = f->thread;
                here.lane = (unsigned)(f - fibers) % WARP;
                cudasim_switch(&scheduler, f->sp);
            }
        }
    } while (release());
}

/* __shared__ variables are this library's thread-local ones that have no first value. NaN. */
static void poison_static()
{
    struct block {
        uintptr_t function; /* of the library */
        size_t from, to;    /* bytes from `last` */
        bool found;
    };
    static const block of_library = [] {
        block found = {(uintptr_t)&poison_static, 0, 0, false};

        last = cudaSuccess; /* the thread has its block */
        (void)dl_iterate_phdr(
            [](dl_phdr_info *library, size_t, void *user) {
                block *b = (block *)user;
                const ElfW(Phdr) *tls = NULL;
                bool is_ours = false;

                for (int i = 0; i < library->dlpi_phnum; i++) {
                    const ElfW(Phdr) *h = &library->dlpi_phdr[i];

                    tls = h->p_type == PT_TLS ? h : tls;
                    is_ours |= h->p_type == PT_LOAD &&
                               b->function - library->dlpi_addr - h->p_vaddr < h->p_memsz;
                }
                if (is_ours && tls != NULL && library->dlpi_tls_data != NULL) {
                    const size_t base = (size_t)library->dlpi_tls_data - (size_t)&last;

                    b->from = base + tls->p_filesz;
                    b->to = base + tls->p_memsz;
                    b->found = true;
                }
                return (int)is_ours;
            },
            &found);
        return found;
    }();
    const cudaError_t kept = last;

    if (!of_library.found) {
        misused("the library's thread-local block is not found");
    }
    memset((char *)&last + of_library.from, 0xff, of_library.to - of_library.from);
    last = kept;
}

static void run_kernel(dim3 grid, dim3 block, size_t shared, const std::function<void()> &kernel)
{
    static std::vector<char> memory;

    n_fibers = (int)(block.x * block.y * block.z);
    memory.resize(shared + 64);
    body = &kernel;
    here.block_dim = block;
    here.grid_dim = grid;
    here.shared = (char *)(((uintptr_t)memory.data() + 63) & ~(uintptr_t)63);
    for (int i = 0; i < n_fibers; i++) {
        make(i);
        fibers[i].thread = {(unsigned)i % block.x, (unsigned)i / block.x % block.y,
                            (unsigned)i / (block.x * block.y)};
    }
    const uint64_t n = (uint64_t)grid.x * grid.y;
    static const bool shuffles = setting("MS_CUDASIM_SHUFFLE", 0) != 0;
    uint64_t at = shuffles ? roll() % n : 0, step = 1;

    while (shuffles && std::gcd(step = roll() % n + 1, n) != 1) {
    }
    for (uint64_t k = 0; k < n; k++, at = (at + step) % n) {
        here.block = {(unsigned)(at % grid.x), (unsigned)(at / grid.x), 0};
        memset(here.shared, 0xff, shared);
        poison_static();
        run_block();
    }
}

} // namespace cudasim

/* -- streams ----------------------------------------------------------------------------------- */

struct item {
    std::function<bool()> may_run; /* NULL: always */
    std::function<void()> run;
};

struct cudasim_stream : cudasim_stream_base {
    std::deque<item> items;
    uint64_t enqueued, done;
    std::thread::id rank; /* ranks may be threads */
};

struct cudasim_event {
    cudasim_stream *stream;
    uint64_t ticket;
    bool timed;
    std::chrono::steady_clock::time_point at; /* timed: when the stream has passed it */
};

static std::vector<cudasim_stream *> streams;

static cudaError_t enqueue(cudaStream_t s, std::function<void()> run,
                           std::function<bool()> may_run = nullptr)
{
    locked hold(lock);

    if (sticky == cudaSuccess) {
        s->items.push_back({std::move(may_run), std::move(run)});
        s->enqueued++;
    }
    return result(cudaSuccess);
}

void cudasim::later(cudaStream_t s, std::function<void()> run)
{
    (void)enqueue(s, std::move(run));
}

/* What a GPU does while the host asks once: a few items, more of a long queue. */
static int64_t some(const cudasim_stream *s)
{
    return (int64_t)(roll() % (8 + s->items.size() / 16));
}

/* Run up to n items of random streams. */
static void run_some(int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        const size_t first = roll() % streams.size();
        bool found = false;

        for (size_t i = 0; i < streams.size() && !found; i++) {
            cudasim_stream *s = streams[(first + i) % streams.size()];

            if (!s->items.empty() && (!s->items.front().may_run || s->items.front().may_run())) {
                s->items.front().run();
                s->items.pop_front();
                s->done++;
                found = true;
            }
        }
        for (size_t i = 0; i < streams.size() && sticky != cudaSuccess; i++) {
            streams[i]->items.clear(); /* a kernel has failed: nothing runs any more */
        }
        if (!found) {
            return;
        }
    }
}

static bool has_run(const cudasim_stream *of)
{
    locked hold(lock);

    run_some(64);
    for (const cudasim_stream *s : streams) {
        if (s->rank == of->rank && !s->items.empty()) {
            return false;
        }
    }
    return true;
}

static void synchronize(cudaStream_t s)
{
    while (!has_run(s)) {
        std::this_thread::yield();
    }
}

cudaError_t cudasim::enqueue_kernel(dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                                    std::function<void()> kernel)
{
    static uint64_t started;
    const unsigned n = block.x * block.y * block.z;

    if (n < 1 || n > MOST || n % WARP != 0 || grid.x < 1 || grid.x > 0x7fffffff || grid.y < 1 ||
        grid.y > 65535 || shared > 200 * 1024) {
        return result(cudaErrorInvalidConfiguration);
    }
    return enqueue(stream, [=] {
        if (++started >= setting("MS_CUDASIM_FAULT", UINT64_MAX)) {
            sticky = cudaErrorLaunchFailure;
        } else {
            run_kernel(grid, block, shared, kernel);
        }
    });
}

/* -- runtime calls ----------------------------------------------------------------------------- */

static int n_cards()
{
    return (int)setting("MS_CUDASIM_CARDS", 1);
}

/* Of the card, and those that this process has taken. */
static size_t card_bytes()
{
    return setting("MS_CUDASIM_MEMORY", 1 << 14) << 20;
}
static std::atomic<size_t> taken_bytes;

static bool take(size_t n)
{
    if (taken_bytes.fetch_add(n) + n <= card_bytes()) {
        return true;
    }
    taken_bytes -= n;
    return false;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = n_cards();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index)
{
    return result(index >= 0 && index < n_cards() ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int index)
{
    *out = {};
    snprintf(out->name, sizeof(out->name), "cudasim");
    out->uuid.bytes[0] = (char)index; /* any byte may be zero */
    snprintf(out->uuid.bytes + 1, sizeof(out->uuid.bytes) - 1, "cudasim");
    out->totalGlobalMem = card_bytes();
    out->major = 9;
    out->multiProcessorCount = 2;
    out->sharedMemPerBlockOptin = 160 * 1024;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int index)
{
    snprintf(text, (size_t)room, "FFFF:%02X:00.0", index + 1);
    return result(index < n_cards() ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = card_bytes();
    *free_bytes = *total - taken_bytes;
    return result(cudaSuccess);
}

cudaError_t cudaMalloc(void **out, size_t n)
{
    *out = aligned_alloc(256, (n + 255) / 256 * 256);
    if (*out == NULL) {
        return result(cudaErrorMemoryAllocation);
    }
    memset(*out, 0xff, n);
    add_range(*out, n);
    return result(cudaSuccess);
}

/* As on a GPU, it waits for the device. */
cudaError_t cudaFree(void *p)
{
    locked hold(lock);

    run_some(INT64_MAX);
    drop_range(p);
    free(p);
    return result(cudaSuccess);
}

cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags)
{
    (void)flags;
    return cudaMalloc(out, n);
}

cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}

cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags)
{
    (void)flags;
    if (p == NULL || n == 0) {
        return result(cudaErrorInvalidValue);
    }
    add_range(p, n);
    return result(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *p)
{
    drop_range(p);
    return result(p != NULL ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags)
{
    (void)flags;
    *out = host;
    return cudaSuccess;
}

enum { LOWEST = 0, HIGHEST = -5 }; /* priorities */

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest)
{
    *lowest = LOWEST;
    *highest = HIGHEST;
    return cudaSuccess;
}

/* A priority outside the range is an error here; a card would take the nearest one. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    locked hold(lock);

    (void)flags;
    if (priority > LOWEST || priority < HIGHEST) {
        misused("a stream's priority is outside the range of the card");
    }
    *out = new cudasim_stream();
    (*out)->enqueue = enqueue;
    (*out)->check_reach = check_reach;
    (*out)->synchronize = synchronize;
    (*out)->rank = std::this_thread::get_id();
    streams.push_back(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    locked hold(lock);

    if (!s->items.empty()) {
        misused("a stream is destroyed before its work has run");
    }
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] == s) {
            streams.erase(streams.begin() + (long)i);
            break;
        }
    }
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    locked hold(lock);

    run_some(some(s));
    return sticky != cudaSuccess ? result(sticky)
           : s->items.empty()    ? cudaSuccess
                                 : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    cudasim_stream *of = e->stream;
    const uint64_t ticket = e->ticket;

    (void)flags;
    return of == NULL ? result(cudaSuccess)
                      : enqueue(
                            s, [] {}, [of, ticket] { return of->done >= ticket; });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = new cudasim_event();
    (*out)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    locked hold(lock);

    if (e->timed) {
        (void)enqueue(s, [=] { e->at = std::chrono::steady_clock::now(); });
    }
    e->stream = s;
    e->ticket = s->enqueued;
    return result(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    locked hold(lock);

    if (e->stream != NULL) {
        run_some(some(e->stream));
    }
    return sticky != cudaSuccess                               ? result(sticky)
           : e->stream == NULL || e->stream->done >= e->ticket ? cudaSuccess
                                                               : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    locked hold(lock);

    for (const cudasim_event *e : {begin, end}) {
        if (!e->timed || e->stream == NULL) {
            return result(cudaErrorInvalidValue);
        }
        if (e->stream->done < e->ticket) {
            return result(cudaErrorNotReady);
        }
    }
    *ms = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
    return result(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    (void)kind;
    check_reach(to, "a copy goes to memory");
    check_reach(from, "a copy comes from memory");
    return enqueue(s, [=] { memcpy(to, from, n); });
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t n, cudaStream_t s)
{
    check_reach(to, "a set is of memory");
    return enqueue(s, [=] { memset(to, byte, n); });
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = sticky != cudaSuccess ? sticky : last;

    last = cudaSuccess;
    return e;
}

const char *cudaGetErrorName(cudaError_t e)
{
    return e == cudaSuccess                     ? "cudaSuccess"
           : e == cudaErrorMemoryAllocation     ? "cudaErrorMemoryAllocation"
           : e == cudaErrorInvalidConfiguration ? "cudaErrorInvalidConfiguration"
           : e == cudaErrorLaunchFailure        ? "cudaErrorLaunchFailure"
           : e == cudaErrorNotSupported         ? "cudaErrorNotSupported"
                                                : "cudaErrorInvalidValue";
}

const char *cudaGetErrorString(cudaError_t e)
{
    return cudaGetErrorName(e);
}

/* -- driver calls ------------------------------------------------------------------------------ */

static CUresult write_value(CUstream s, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    (void)flags;
    check_reach((void *)at, "a word to write is");
    return (CUresult)enqueue(s, [=] { __atomic_store_n((uint64_t *)at, value, __ATOMIC_SEQ_CST); });
}

static CUresult wait_value(CUstream s, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    if (flags != CU_STREAM_WAIT_VALUE_GEQ) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    check_reach((void *)at, "a word to await is");
    return (CUresult)enqueue(
        s, [] {},
        [=] { return (int64_t)(__atomic_load_n((uint64_t *)at, __ATOMIC_SEQ_CST) - value) >= 0; });
}

static CUresult attribute(int *out, CUdevice_attribute which, CUdevice device)
{
    (void)device;
    *out = which == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS ||
           which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
           which == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    return CUDA_SUCCESS;
}

/* A handle is a descriptor of a memory file, and one more. Memory of this process is taken until
 * its mapping ends. */
static std::map<CUmemGenericAllocationHandle, size_t> made;
static std::map<CUdeviceptr, size_t> mapped;

static CUresult granularity(size_t *out, const CUmemAllocationProp *prop,
                            CUmemAllocationGranularity_flags flags)
{
    (void)prop;
    (void)flags;
    *out = 1 << 16;
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t n, const CUmemAllocationProp *prop,
                       unsigned long long flags)
{
    const int fd = memfd_create("cudasim", MFD_CLOEXEC);

    (void)flags;
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || n % (1 << 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (prop->allocFlags.gpuDirectRDMACapable != 1) {
        misused("memory is made that network adapters cannot read, which the card allows");
    }
    if (!take(n)) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    void *p = fd >= 0 && ftruncate(fd, (off_t)n) == 0
                  ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                  : MAP_FAILED;

    if (p == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memset(p, 0xff, n); /* NaN */
    munmap(p, n);
    *out = (CUmemGenericAllocationHandle)fd + 1;
    locked hold(lock);

    made[*out] = n;
    return CUDA_SUCCESS;
}

static CUresult share_handle(void *out, CUmemGenericAllocationHandle h,
                             CUmemAllocationHandleType type, unsigned long long flags)
{
    (void)type;
    (void)flags;
    *(int *)out = fcntl((int)h - 1, F_DUPFD_CLOEXEC, 0);
    return CUDA_SUCCESS;
}

static CUresult import_handle(CUmemGenericAllocationHandle *out, void *handle,
                              CUmemAllocationHandleType type)
{
    (void)type;
    *out = (CUmemGenericAllocationHandle)fcntl((int)(intptr_t)handle, F_DUPFD_CLOEXEC, 0) + 1;
    return *out > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult release_handle(CUmemGenericAllocationHandle h)
{
    locked hold(lock);
    const auto it = made.find(h);

    if (it != made.end()) { /* not mapped */
        taken_bytes -= it->second;
        made.erase(it);
    }
    close((int)h - 1);
    return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *out, size_t n, size_t alignment, CUdeviceptr at,
                        unsigned long long flags)
{
    void *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    (void)alignment;
    (void)at;
    (void)flags;
    *out = (CUdeviceptr)p;
    return p != MAP_FAILED ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult map_handle(CUdeviceptr at, size_t n, size_t offset, CUmemGenericAllocationHandle h,
                           unsigned long long flags)
{
    locked hold(lock);

    (void)flags;
    if (mmap((void *)at, n, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)h - 1, (off_t)offset) ==
        MAP_FAILED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    add_range((void *)at, n);
    mapped[at] = made.erase(h) > 0 ? n : 0;
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr at, size_t n, const CUmemAccessDesc *access, size_t count)
{
    const bool writes = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

    (void)count;
    return mprotect((void *)at, n, writes ? PROT_READ | PROT_WRITE : PROT_READ) == 0
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static CUresult unmap(CUdeviceptr at, size_t n)
{
    locked hold(lock);

    drop_range((void *)at);
    taken_bytes -= mapped[at];
    mapped.erase(at);
    return munmap((void *)at, n) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_address(CUdeviceptr at, size_t n)
{
    (void)at;
    (void)n;
    return CUDA_SUCCESS; /* unmap() has */
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)version;
    (void)flags;
    static const struct {
        const char *name;
        void *fn;
    } calls[] = {{"cuStreamWriteValue64", (void *)write_value},
                 {"cuStreamWaitValue64", (void *)wait_value},
                 {"cuDeviceGetAttribute", (void *)attribute},
                 {"cuMemGetAllocationGranularity", (void *)granularity},
                 {"cuMemCreate", (void *)create},
                 {"cuMemExportToShareableHandle", (void *)share_handle},
                 {"cuMemImportFromShareableHandle", (void *)import_handle},
                 {"cuMemRelease", (void *)release_handle},
                 {"cuMemAddressReserve", (void *)reserve},
                 {"cuMemMap", (void *)map_handle},
                 {"cuMemSetAccess", (void *)set_access},
                 {"cuMemUnmap", (void *)unmap},
                 {"cuMemAddressFree", (void *)free_address}};

    *fn = NULL;
    for (const auto &call : calls) {
        *fn = strcmp(symbol, call.name) == 0 ? call.fn : *fn;
    }
    *found = cudaDriverEntryPointSuccess;
    return result(*fn != NULL ? cudaSuccess : cudaErrorInvalidValue);
}

/* -- cuBLASLt ---------------------------------------------------------------------------------- */

struct cudasim_matmul {
    cublasComputeType_t compute;
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    void *bias; /* or its gradient */
    void *aux;
    int64_t aux_ld;
    bool has(int bits) const
    {
        return (epilogue & bits) == bits;
    }
};

enum { OF_BIAS = 4, OF_GELU = 32, OF_AUX = 128, OF_BGRADB = 512 }; /* bits of an epilogue */

struct cudasim_layout {
    cudaDataType type;
    int64_t rows, cols, ld, offset;
    int batch;
};

struct cudasim_preference {
    uint32_t schemes;
    uint32_t alignment[4]; /* of A, B, C, D in bytes */
    uint64_t work_bytes;
};

size_t cublasLtGetVersion(void)
{
    return 130000;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    (void)h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if ((compute == CUBLAS_COMPUTE_64F) != (scale == CUDA_R_64F)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *out = new cudasim_matmul{
        compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t n)
{
    void *to = which == CUBLASLT_MATMUL_DESC_TRANSA                 ? (void *)&d->trans_a
               : which == CUBLASLT_MATMUL_DESC_TRANSB               ? (void *)&d->trans_b
               : which == CUBLASLT_MATMUL_DESC_EPILOGUE             ? (void *)&d->epilogue
               : which == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ? (void *)&d->aux
               : which == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD      ? (void *)&d->aux_ld
                                                                    : (void *)&d->bias;

    memcpy(to, value, n);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    if (rows == 0 || cols == 0 || ld < (int64_t)rows) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *out = new cudasim_layout{type, (int64_t)rows, (int64_t)cols, ld, 0, 1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void *value, size_t n)
{
    memcpy(which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? (void *)&l->batch : (void *)&l->offset,
           value, n);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = new cudasim_preference{~0u, {256, 256, 256, 256}, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t n)
{
    memcpy(which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? (void *)&p->schemes
           : which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
               ? (void *)&p->work_bytes
               : (void *)&p->alignment[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
           value, n);
    return CUBLAS_STATUS_SUCCESS;
}

/* What an algorithm has been chosen for. */
struct chosen {
    uint64_t shape, work_bytes;
    uint32_t alignment[4];
};

static uint64_t hash_of(const cudasim_matmul *d, const cudasim_layout *a, const cudasim_layout *b,
                        const cudasim_layout *c)
{
    uint64_t hash = (uint64_t)d->compute;
    const auto add = [&](int64_t x) { hash = (hash ^ (uint64_t)x) * 0x9e3779b97f4a7c15u >> 3; };

    add(d->trans_a * 2 + d->trans_b);
    add(d->epilogue);
    add(d->aux_ld);
    for (const cudasim_layout *l : {a, b, c}) {
        for (const int64_t x :
             {(int64_t)l->type, l->rows, l->cols, l->ld, l->offset, (int64_t)l->batch}) {
            add(x);
        }
    }
    return hash;
}

/* The library's table of types, with and without an epilogue. */
static bool has_types(const cudasim_matmul *d, cudaDataType a, cudaDataType b, cudaDataType c)
{
    const bool narrow = a == CUDA_R_16F || a == CUDA_R_16BF;

    if (d->compute == CUBLAS_COMPUTE_64F) {
        return a == CUDA_R_64F && b == a && c == a && d->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    }
    return a == b && (c == a || (narrow && c == CUDA_R_32F)) && a != CUDA_R_64F;
}

/* GELU's input is a matrix whose columns are multiples of 8 elements apart and, in this library's
 * tiles, of 16 bytes; bias gradients of a batch have no place. */
static bool has_epilogue(const cudasim_matmul *d, const cudasim_layout *out)
{
    const bool narrow = out->type == CUDA_R_16F || out->type == CUDA_R_16BF;

    if (d->has(OF_GELU) && !narrow) {
        return false;
    }
    if (d->has(OF_AUX) && (d->aux == NULL || d->aux_ld % 8 != 0 || d->aux_ld < out->rows ||
                           (uintptr_t)d->aux % 16 != 0 || out->batch > 1)) {
        return false;
    }
    return !(d->has(OF_BGRADB) || d->has(OF_BIAS)) ||
           (d->bias != NULL && (!d->has(OF_BGRADB) || out->batch == 1));
}

/* Refuses what the library refuses: shapes and types that do not match, other schemes than repeat;
 * and of MS_CUDASIM_REFUSE shapes one, as it has no algorithm for some. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *n)
{
    const int64_t rows = d->trans_a == CUBLAS_OP_T ? a->cols : a->rows;
    const int64_t inner = d->trans_a == CUBLAS_OP_T ? a->rows : a->cols;
    const int64_t cols = d->trans_b == CUBLAS_OP_T ? b->rows : b->cols;
    const int64_t inner_b = d->trans_b == CUBLAS_OP_T ? b->cols : b->rows;

    (void)h;
    (void)wanted;
    if (inner != inner_b || rows != out->rows || cols != out->cols || c->ld != out->ld ||
        (p->schemes & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const uint64_t hash = hash_of(d, a, b, out), refused = setting("MS_CUDASIM_REFUSE", 0);

    *n = 0;
    if (!has_types(d, a->type, b->type, out->type) || !has_epilogue(d, out) ||
        c->type != out->type || (refused > 0 && hash % refused == 0)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    chosen algo = {hash, inner > 32 && p->work_bytes >= 8192 ? 8192u : 0u, {}};

    memcpy(algo.alignment, p->alignment, sizeof(algo.alignment));
    results[0] = {};
    results[0].workspaceSize = algo.work_bytes;
    memcpy(&results[0].algo, &algo, sizeof(algo));
    *n = 1;
    return CUBLAS_STATUS_SUCCESS;
}

double cudasim::number(const void *p, cudaDataType type, int64_t i)
{
    uint32_t bits;
    float x;
    _Float16 half;

    switch (type) {
    case CUDA_R_64F:
        return ((const double *)p)[i];
    case CUDA_R_32F:
        return ((const float *)p)[i];
    case CUDA_R_16F:
        memcpy(&half, (const uint16_t *)p + i, sizeof(half));
        return (double)half;
    default:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&x, &bits, sizeof(x));
        return x;
    }
}

void cudasim::set_number(void *p, cudaDataType type, int64_t i, double value)
{
    float x = (float)value;
    _Float16 half = (_Float16)x;
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    switch (type) {
    case CUDA_R_64F:
        ((double *)p)[i] = value;
        break;
    case CUDA_R_32F:
        ((float *)p)[i] = x;
        break;
    case CUDA_R_16F:
        memcpy((uint16_t *)p + i, &half, sizeof(half));
        break;
    default:
        ((uint16_t *)p)[i] =
            (uint16_t)(x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

/* `aligned`: by the algorithm for operands at 16 bytes; the other adds in another order, in f32. */
static void multiply(const cudasim_matmul &d, bool aligned, double alpha, const void *a,
                     const cudasim_layout &la, const void *b, const cudasim_layout &lb, double beta,
                     const void *c, const cudasim_layout &lc, void *out, const cudasim_layout &lout)
{
    const bool ta = d.trans_a == CUBLAS_OP_T, tb = d.trans_b == CUBLAS_OP_T;
    const int64_t k = ta ? la.rows : la.cols, m = lout.rows;
    const bool rounds = !aligned && d.compute != CUBLAS_COMPUTE_64F;
    std::vector<double> column((size_t)m);

    for (int64_t p = 0; p < lout.batch; p++) {
        for (int64_t j = 0; j < lout.cols; j++) {
            double sum = 0;

            for (int64_t i = 0; i < m; i++) {
                column[(size_t)i] = 0;
            }
            for (int64_t at = 0; at < k; at++) {
                const int64_t l = rounds ? k - 1 - at : at;
                const double y = cudasim::number(
                    b, lb.type, p * lb.offset + (tb ? j + l * lb.ld : l + j * lb.ld));

                sum += y;
                for (int64_t i = 0; i < m; i++) {
                    column[(size_t)i] +=
                        y * cudasim::number(a, la.type,
                                            p * la.offset + (ta ? l + i * la.ld : i + l * la.ld));
                    column[(size_t)i] =
                        rounds ? (double)(float)column[(size_t)i] : column[(size_t)i];
                }
            }
            if (d.has(OF_BGRADB)) {
                cudasim::set_number(d.bias, lout.type, j, sum);
            }
            for (int64_t i = 0; i < m; i++) {
                double x = alpha * column[(size_t)i];

                x += beta != 0 ? beta * cudasim::number(c, lc.type, p * lc.offset + i + j * lc.ld)
                               : 0;
                x += d.has(OF_BIAS) ? cudasim::number(d.bias, lout.type, i) : 0;
                if (d.has(OF_AUX)) {
                    cudasim::set_number(d.aux, lout.type, i + j * d.aux_ld, x);
                }
                x = d.has(OF_GELU) ? gelu_tanh(x) : x;
                cudasim::set_number(out, lout.type, p * lout.offset + i + j * lout.ld, x);
            }
        }
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *out, cublasLtMatrixLayout_t lout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t s)
{
    const cudasim_matmul desc = *d;
    const cudasim_layout ca = *la, cb = *lb, cc = *lc, cout = *lout;
    const bool wide = d->compute == CUBLAS_COMPUTE_64F;
    const double x = wide ? *(const double *)alpha : *(const float *)alpha;
    const double y = wide ? *(const double *)beta : *(const float *)beta;

    const void *const operands[] = {a,
                                    b,
                                    c,
                                    out,
                                    d->has(OF_BIAS) || d->has(OF_BGRADB) ? d->bias : NULL,
                                    d->has(OF_AUX) ? d->aux : NULL};
    chosen by;

    (void)h;
    memcpy(&by, algo, sizeof(by));
    if ((uintptr_t)workspace % 256 != 0 || workspace_bytes < by.work_bytes ||
        by.shape != hash_of(d, la, lb, lout)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    for (int i = 0; i < 6; i++) {
        if ((uintptr_t)operands[i] % by.alignment[i < 4 ? i : 3] != 0) {
            misused("an operand of a product has less than the alignment its algorithm needs");
        }
        check_reach(operands[i], "an operand of a product is");
    }
    check_reach(by.work_bytes > 0 ? workspace : NULL, "the work space of a product is");
    (void)enqueue(s, [=] {
        if (workspace_bytes > 0) {
            memset(workspace, 0xff, workspace_bytes);
        }
        multiply(desc, by.alignment[0] >= 16, x, a, ca, b, cb, y, c, cc, out, cout);
    });
    return CUBLAS_STATUS_SUCCESS;
}
