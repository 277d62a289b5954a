/* A device that runs what it is given later, in a random legal order, on the CPU's kernels: what
 * the runtime forgets to order, or reads without waiting, comes out wrong. libmoonshard_fake.so,
 * opened where MS_DEVICE=fake.
 *
 * Streams are queues. Items run in wait(), done() and, by chance, whenever anything is enqueued. Of
 * the streams that may go on one is drawn: uniformly (MS_FAKE_ORDER=uniform), or, else, the one of
 * highest priority, where priorities are drawn and now and then the highest falls to the bottom, so
 * that one stream runs far ahead of the others (Burckhardt et al., ASPLOS 2010). MS_FAKE_SEED=n
 * draws other orders. MS_FAKE_CARDS=each: ranks' memories are apart, as those of cards are. Memory
 * that is taken or shared holds NaN. MS_FAKE_GUARD=on: only items may touch what is not pinned
 * (guard.h), at several times the cost.
 *
 * It ends the process where the runtime gives back what an item still uses, or detaches what it has
 * not attached, or closes before it has detached all. */
#include "device.h"
#include "guard.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef enum item_kind { RUN, GEMM, COPY, SET, AFTER, POST, AWAIT } item_kind;

typedef struct item {
    struct item *next;
    item_kind kind;
    int32_t kernel, dtype; /* RUN */
    void *to;              /* COPY, SET */
    const void *from;
    int64_t n; /* bytes: of memory, or of `args`; or words */
    int32_t byte;
    msi_mark mark;            /* AFTER */
    uint64_t value;           /* POST, AWAIT */
    _Alignas(16) char args[]; /* of a kernel; or words */
} item;

typedef struct stream {
    item *first, **last;
    uint64_t enqueued, done;
    int64_t priority;
} stream;

/* Memory that it shares, or has attached. */
typedef struct shared {
    struct shared *next;
    void *p;
    int64_t nbytes;
} shared;

typedef struct fake_device {
    msi_device base;
    msi_device_host host;
    bool running; /* an item: what is asked for now is part of it */
    bool guarded;
    guard guard;
    stream streams[MSI_STREAMS];
    uint64_t dice;
    bool uniform;
    int64_t lowest; /* priority that was given last */
    int32_t index;
    bool apart; /* other ranks' have memories of their own */
    shared *shared;
} fake_device;

/* -- chance ------------------------------------------------------------------------------------ */

static uint64_t roll(fake_device *d)
{
    d->dice ^= d->dice << 13;
    d->dice ^= d->dice >> 7;
    d->dice ^= d->dice << 17;
    return d->dice;
}

static bool chance(fake_device *d, uint64_t one_of)
{
    return roll(d) % one_of == 0;
}

/* -- running ----------------------------------------------------------------------------------- */

static bool may_run(const fake_device *d, const item *it)
{
    if (it->kind == AFTER) {
        return d->streams[it->mark.stream].done >= it->mark.ticket;
    }
    for (int64_t i = 0; it->kind == AWAIT && i < it->n; i++) {
        _Atomic uint64_t *word;

        memcpy(&word, it->args + i * (int64_t)sizeof(word), sizeof(word));
        if (atomic_load(word) < it->value) {
            return false;
        }
    }
    return true;
}

static void run_item(fake_device *d, const item *it)
{
    d->running = true;
    guard_open(&d->guard);
    switch (it->kind) {
    case RUN:
        d->host.kernel(it->kernel, it->dtype)(it->args);
        break;
    case GEMM: /* whose failure the host keeps */
        (void)d->host.gemm(d->host.user, (const msi_gemm_args *)(const void *)it->args);
        break;
    case COPY:
        memcpy(it->to, it->from, (size_t)it->n);
        break;
    case SET:
        memset(it->to, it->byte, (size_t)it->n);
        break;
    case POST:
        atomic_store((_Atomic uint64_t *)it->to, it->value);
        break;
    default: /* its turn has come */
        break;
    }
    d->running = false;
}

/* The stream to go on with, or NULL: none may. */
static stream *choose(fake_device *d)
{
    stream *chosen = NULL;
    uint64_t n = 0;

    for (int32_t i = 0; i < MSI_STREAMS; i++) {
        stream *s = &d->streams[i];

        if (s->first == NULL || !may_run(d, s->first)) {
            continue;
        }
        if (d->uniform ? chance(d, ++n) : chosen == NULL || s->priority > chosen->priority) {
            chosen = s;
        }
    }
    if (chosen != NULL && !d->uniform && chance(d, 40)) {
        chosen->priority = --d->lowest;
    }
    return chosen;
}

/* One item of any stream. False: none may run. The memory stays open for the next, until rest(). */
static bool step(fake_device *d)
{
    stream *s = choose(d);

    if (s == NULL) {
        return false;
    }
    item *it = s->first;

    s->first = it->next;
    if (s->first == NULL) {
        s->last = &s->first;
    }
    run_item(d, it);
    s->done++;
    free(it);
    return true;
}

/* The host goes on. */
static void rest(fake_device *d)
{
    if (!d->running) {
        guard_close(&d->guard);
    }
}

static void run_some(fake_device *d)
{
    for (uint64_t n = roll(d) % 8; n > 0 && step(d); n--) {
    }
    rest(d);
}

/* -- enqueueing -------------------------------------------------------------------------------- */

/* `it` is to be freed or NULL; it goes behind what is in the stream. */
static int32_t enqueue(fake_device *d, int32_t to, item *it)
{
    stream *s = &d->streams[to];

    if (it == NULL) {
        return MSI_DEV_NO_MEMORY;
    }
    if (d->running) { /* asked for by an item: part of it */
        run_item(d, it);
        d->running = true;
        free(it);
        return MSI_DEV_OK;
    }
    *s->last = it;
    s->last = &it->next;
    s->enqueued++;
    if (chance(d, 4)) {
        run_some(d);
    }
    return MSI_DEV_OK;
}

/* Its arguments are those, or the caller's to fill in. */
static item *new_item(item_kind kind, const void *args, int64_t args_bytes)
{
    item *it = calloc(1, sizeof(*it) + (size_t)args_bytes);

    if (it != NULL) {
        it->kind = kind;
        it->n = args_bytes;
        if (args != NULL) {
            memcpy(it->args, args, (size_t)args_bytes);
        }
    }
    return it;
}

static int32_t fake_run(msi_device *base, int32_t to, int32_t kernel, int32_t dtype,
                        const void *args)
{
    fake_device *d = (fake_device *)base;

    if (d->host.kernel(kernel, dtype) == NULL) {
        return MSI_DEV_UNSUPPORTED;
    }
    item *it = new_item(RUN, NULL, d->host.args_bytes(kernel, args));

    if (it != NULL) {
        d->host.args_copy(kernel, it->args, args);
        it->kernel = kernel;
        it->dtype = dtype;
    }
    return enqueue(d, to, it);
}

static int32_t fake_gemm(msi_device *base, int32_t to, const msi_gemm_args *args)
{
    fake_device *d = (fake_device *)base;

    if (d->running) { /* a kernel's, which is to know */
        return d->host.gemm(d->host.user, args) == MS_OK ? MSI_DEV_OK : MSI_DEV_FAILED;
    }
    return enqueue(d, to, new_item(GEMM, args, sizeof(*args)));
}

static int32_t fake_copy(msi_device *base, int32_t to_stream, void *to, const void *from, int64_t n)
{
    item *it = new_item(COPY, NULL, 0);

    if (it != NULL) {
        it->to = to;
        it->from = from;
        it->n = n;
    }
    return enqueue((fake_device *)base, to_stream, it);
}

static int32_t fake_set(msi_device *base, int32_t to_stream, void *to, int32_t byte, int64_t n)
{
    item *it = new_item(SET, NULL, 0);

    if (it != NULL) {
        it->to = to;
        it->byte = byte;
        it->n = n;
    }
    return enqueue((fake_device *)base, to_stream, it);
}

/* -- order ------------------------------------------------------------------------------------- */

static msi_mark fake_mark(msi_device *base, int32_t of)
{
    return (msi_mark){of, ((fake_device *)base)->streams[of].enqueued};
}

static int32_t fake_after(msi_device *base, int32_t to, msi_mark m)
{
    item *it = new_item(AFTER, NULL, 0);

    if (it != NULL) {
        it->mark = m;
    }
    return enqueue((fake_device *)base, to, it);
}

static bool is_done(const fake_device *d, msi_mark m)
{
    return d->streams[m.stream].done >= m.ticket;
}

static int32_t fake_done(msi_device *base, msi_mark m)
{
    fake_device *d = (fake_device *)base;

    while (!d->running && !is_done(d, m) && chance(d, 2) && step(d)) {
    }
    rest(d);
    return !d->running && is_done(d, m) ? MSI_DEV_OK : MSI_DEV_NOT_YET;
}

static int32_t fake_wait(msi_device *base, msi_mark m, msi_go_on go_on, void *user)
{
    const struct timespec moment = {.tv_nsec = 20000};
    fake_device *d = (fake_device *)base;
    bool run = false;

    if (d->running) {
        return MSI_DEV_NOT_YET;
    }
    for (int32_t in_vain = 0; !is_done(d, m); in_vain++) {
        if (step(d)) {
            in_vain = 0;
            run = true;
            continue;
        }
        rest(d);
        if (go_on != NULL && !go_on(user, run)) {
            return MSI_DEV_NOT_YET;
        }
        run = false;
        if (in_vain < 20) { /* words of others */
            sched_yield();
        } else {
            nanosleep(&moment, NULL);
        }
    }
    rest(d);
    return MSI_DEV_OK;
}

/* Some of what may run, as nothing runs by itself. */
static int32_t fake_poll(msi_device *base)
{
    fake_device *d = (fake_device *)base;

    if (d->running) {
        return MSI_DEV_NOT_YET;
    }
    run_some(d);
    for (int32_t i = 0; i < MSI_STREAMS; i++) {
        if (d->streams[i].first != NULL) {
            return MSI_DEV_NOT_YET;
        }
    }
    return MSI_DEV_OK;
}

static int32_t fake_post(msi_device *base, int32_t to, _Atomic uint64_t *word, uint64_t value)
{
    item *it = new_item(POST, NULL, 0);

    if (it != NULL) {
        it->to = (void *)word;
        it->value = value;
    }
    return enqueue((fake_device *)base, to, it);
}

static int32_t fake_await(msi_device *base, int32_t to, _Atomic uint64_t *const *words, int32_t n,
                          uint64_t at_least)
{
    item *it = new_item(AWAIT, words, n * (int64_t)sizeof(*words));

    if (it != NULL) {
        it->n = n;
        it->value = at_least;
    }
    return enqueue((fake_device *)base, to, it);
}

static void fake_abandon(msi_device *base)
{
    fake_device *d = (fake_device *)base;

    for (int32_t i = 0; i < MSI_STREAMS; i++) {
        for (item *it = d->streams[i].first; it != NULL; it = it->next) {
            it->n = it->kind == AWAIT ? 0 : it->n; /* no words */
        }
    }
}

/* -- memory, life ------------------------------------------------------------------------------ */

static int32_t fake_take(msi_device *base, int64_t nbytes, int32_t place, void **out)
{
    fake_device *d = (fake_device *)base;

    if (place == MSI_PLACE_DEVICE && d->guarded) {
        *out = guard_take(&d->guard, nbytes);
        return *out != NULL ? MSI_DEV_OK : MSI_DEV_NO_MEMORY;
    }
    *out = aligned_alloc(64, (size_t)((nbytes + 63) / 64 * 64));
    if (*out == NULL) {
        return MSI_DEV_NO_MEMORY;
    }
    memset(*out, 0xff, (size_t)nbytes);
    return MSI_DEV_OK;
}

static _Noreturn void misused(const char *how)
{
    fprintf(stderr, "device 'fake': %s\n", how);
    abort();
}

static bool is_in(const void *at, const char *p, int64_t nbytes)
{
    return (const char *)at >= p && (const char *)at < p + nbytes;
}

/* What looks like an address among a kernel's arguments is one. */
static bool uses(const item *it, const char *p, int64_t nbytes)
{
    const void *at;

    if (it->kind == COPY || it->kind == SET) {
        return is_in(it->to, p, nbytes) || is_in(it->from, p, nbytes);
    }
    for (int64_t i = 0; (it->kind == RUN || it->kind == GEMM) && i + 8 <= it->n; i += 8) {
        memcpy(&at, it->args + i, sizeof(at));
        if (is_in(at, p, nbytes)) {
            return true;
        }
    }
    return false;
}

static void expect_unused(const fake_device *d, const void *p, int64_t nbytes)
{
    for (int32_t i = 0; i < MSI_STREAMS; i++) {
        for (const item *it = d->streams[i].first; it != NULL; it = it->next) {
            if (uses(it, p, nbytes)) {
                misused("memory is given back that an item uses which has not run");
            }
        }
    }
}

static void fake_give(msi_device *base, void *p, int64_t nbytes, int32_t place)
{
    fake_device *d = (fake_device *)base;

    expect_unused(d, p, nbytes);
    if (place == MSI_PLACE_DEVICE && d->guarded) {
        guard_give(&d->guard, p);
    } else {
        free(p);
    }
}

/* Know what has come of mapping it, and guard it. */
static int32_t keep_shared(fake_device *d, shared *s, int32_t outcome, void *p, int64_t nbytes,
                           bool readonly)
{
    if (outcome == MSI_DEV_OK && d->guarded && !guard_add(&d->guard, p, nbytes, readonly)) {
        d->host.cpu->detach(&d->base, p, nbytes);
        outcome = MSI_DEV_NO_MEMORY;
    }
    if (outcome != MSI_DEV_OK) {
        free(s);
        return outcome;
    }
    *s = (shared){.next = d->shared, .p = p, .nbytes = nbytes};
    d->shared = s;
    return MSI_DEV_OK;
}

static int32_t fake_share(msi_device *base, int64_t nbytes, void **out, int32_t *fd)
{
    fake_device *d = (fake_device *)base;
    shared *s = malloc(sizeof(*s));
    void *p = NULL;
    const int32_t mapped = s != NULL ? d->host.cpu->share(base, nbytes, &p, fd) : MSI_DEV_NO_MEMORY;

    if (mapped == MSI_DEV_OK) {
        memset(p, 0xff, (size_t)nbytes);
    }
    *out = p;
    const int32_t outcome = keep_shared(d, s, mapped, p, nbytes, false);

    if (mapped == MSI_DEV_OK && outcome != MSI_DEV_OK) {
        close(*fd);
    }
    return outcome;
}

static int32_t fake_attach(msi_device *base, int32_t fd, int64_t nbytes, bool readonly, void **out)
{
    fake_device *d = (fake_device *)base;
    shared *s = malloc(sizeof(*s));
    void *p = NULL;
    const int32_t outcome =
        s != NULL ? d->host.cpu->attach(base, fd, nbytes, readonly, &p) : MSI_DEV_NO_MEMORY;

    *out = p;
    return keep_shared(d, s, outcome, p, nbytes, readonly);
}

static void fake_detach(msi_device *base, void *p, int64_t nbytes)
{
    fake_device *d = (fake_device *)base;
    shared **at = &d->shared;

    while (*at != NULL && (*at)->p != p) {
        at = &(*at)->next;
    }
    shared *s = *at;

    if (s == NULL || s->nbytes != nbytes) {
        misused("memory is detached that was not attached");
    }
    expect_unused(d, p, nbytes);
    if (d->guarded) {
        guard_remove(&d->guard, p);
    }
    d->host.cpu->detach(base, p, nbytes);
    *at = s->next;
    free(s);
}

static void fake_info(msi_device *d, msi_device_info *out)
{
    *out = (msi_device_info){.name = "a device that runs things later",
                             .index = ((fake_device *)d)->index,
                             .spoils = true};
    if (((fake_device *)d)->apart) {
        snprintf(out->uuid, sizeof(out->uuid), "fake %d", (int)((fake_device *)d)->index);
    }
}

static void fake_close(msi_device *base)
{
    fake_device *d = (fake_device *)base;

    if (d->shared != NULL) {
        misused("it is closed before what it shares was detached");
    }
    guard_end(&d->guard);
    free(base);
}

static const msi_device_ops fake_ops;

static bool says(const char *name, const char *word)
{
    const char *value = getenv(name);

    return value != NULL && strcmp(value, word) == 0;
}

static int32_t fake_open(msi_device **out, const msi_device_host *host, int32_t index, char *error)
{
    const char *seed = getenv("MS_FAKE_SEED");

    (void)error;
    fake_device *d = calloc(1, sizeof(*d));

    if (d == NULL) {
        return MSI_DEV_NO_MEMORY;
    }
    d->base.ops = &fake_ops;
    d->host = *host;
    d->guarded = says("MS_FAKE_GUARD", "on");
    if (d->guarded) {
        guard_begin(&d->guard);
    }
    d->index = index;
    d->apart = says("MS_FAKE_CARDS", "each");
    d->uniform = says("MS_FAKE_ORDER", "uniform");
    d->dice =
        0x9e3779b97f4a7c15u * ((seed != NULL ? strtoull(seed, NULL, 10) : 0) + (uint64_t)index + 1);
    for (int32_t i = 0; i < MSI_STREAMS; i++) {
        d->streams[i].last = &d->streams[i].first;
        d->streams[i].priority = (int64_t)(roll(d) >> 8);
    }
    *out = &d->base;
    return MSI_DEV_OK;
}

static const msi_device_ops fake_ops = {.version = MSI_DEVICE_VERSION,
                                        .kind = "fake",
                                        .open = fake_open,
                                        .close = fake_close,
                                        .info = fake_info,
                                        .take = fake_take,
                                        .give = fake_give,
                                        .share = fake_share,
                                        .attach = fake_attach,
                                        .detach = fake_detach,
                                        .run = fake_run,
                                        .gemm = fake_gemm,
                                        .copy = fake_copy,
                                        .set = fake_set,
                                        .mark = fake_mark,
                                        .after = fake_after,
                                        .done = fake_done,
                                        .wait = fake_wait,
                                        .poll = fake_poll,
                                        .post = fake_post,
                                        .await = fake_await,
                                        .abandon = fake_abandon};

__attribute__((visibility("default"))) const msi_device_ops *msi_device_plugin(void);

const msi_device_ops *msi_device_plugin(void)
{
    return &fake_ops;
}
