/* Meeting through PMIx, which mpirun and `srun --mpi=pmix` serve.
 *
 * The library is opened when it is needed. Its functions and structs are declared here, from the
 * PMIx standard 4.1 (github.com/pmix/pmix-standard, chapters 3, 5 and 6, and pmix.h and
 * pmix_common.h of OpenPMIx 4.2): they are its stable binary interface, libpmix.so.2. */
#include "job.h"
#include "rendezvous_meet.h"

#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PMIX_BOOL = 1, PMIX_BYTE_OBJECT = 27, PMIX_GLOBAL = 3 };
enum { NAME_BYTES = 256, KEY_BYTES = 512 };

typedef struct pmix_proc {
    char nspace[NAME_BYTES];
    uint32_t rank;
} pmix_proc;

typedef struct pmix_value {
    uint16_t type;
    union {
        bool flag;
        struct {
            char *bytes;
            size_t size;
        } bo;
        uint64_t whole[3]; /* of the largest member */
    } data;
} pmix_value;

typedef struct pmix_info {
    char key[KEY_BYTES];
    uint32_t flags;
    pmix_value value;
} pmix_info;

typedef struct pmix {
    const msi_place *p;
    void *library;
    bool initialized;
    pmix_proc own;
    int (*Init)(pmix_proc *own, pmix_info *info, size_t n);
    int (*Finalize)(const pmix_info *info, size_t n);
    int (*Put)(uint8_t scope, const char *key, pmix_value *value);
    int (*Commit)(void);
    int (*Fence_nb)(const pmix_proc *procs, size_t n, const pmix_info *info, size_t n_info,
                    void (*done)(int status, void *user), void *user);
    int (*Get)(const pmix_proc *proc, const char *key, const pmix_info *info, size_t n,
               pmix_value **value);
    const char *(*Error_string)(int status);
} pmix;

/* Shared with PMIx's thread, which may end a fence after its time limit: the second one frees. */
typedef struct fence {
    pmix_info collect; /* with the fence, so that no later read needs the network */
    sem_t ended;
    _Atomic int32_t users;
    int status;
} fence;

static ms_status fail_pmix(const pmix *x, const char *call, int status)
{
    return MS_FAIL(MS_COMM_ERROR,
                   "rank %d of %d: PMIx_%s failed: %s; check that %s still runs, and that its PMIx "
                   "and libpmix.so.2 are of compatible versions",
                   (int)x->p->rank, (int)x->p->world, call, x->Error_string(status),
                   x->p->launcher);
}

/* -- opening ----------------------------------------------------------------------------------- */

static ms_status load(pmix *x)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"PMIx_Init", &x->Init},
        {"PMIx_Finalize", &x->Finalize},
        {"PMIx_Put", &x->Put},
        {"PMIx_Commit", &x->Commit},
        {"PMIx_Fence_nb", &x->Fence_nb},
        {"PMIx_Get", &x->Get},
        {"PMIx_Error_string", &x->Error_string},
    };

    x->library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (x->library == NULL) {
        return MS_FAIL(MS_COMM_ERROR,
                       "%s started this process with PMIx, but libpmix.so.2 cannot be opened: %s; "
                       "install the package libpmix2 (Debian, Ubuntu) or pmix (Fedora) on every "
                       "host, or set MS_RANK, MS_WORLD and MS_MASTER",
                       x->p->launcher, dlerror());
    }
    for (int32_t i = 0; i < MSI_COUNT(functions); i++) {
        void *function = dlsym(x->library, functions[i].name);

        if (function == NULL) {
            return MS_FAIL(MS_COMM_ERROR, "libpmix.so.2 has no %s: expected PMIx 3 or later",
                           functions[i].name);
        }
        memcpy(functions[i].to, &function, sizeof(function));
    }
    return MS_OK;
}

static void close_pmix(void *state)
{
    pmix *x = state;

    if (x->initialized) {
        x->Finalize(NULL, 0);
    }
    free(x); /* the library stays open: its thread-local data may outlive it */
}

static ms_status open_pmix(void **state, const msi_place *p, int64_t timeout_ns)
{
    pmix *x = calloc(1, sizeof(*x));
    ms_status status;

    if (x == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a rendezvous");
    }
    x->p = p;
    MS_TRY_GOTO(load(x), failed);
    const int error = x->Init(&x->own, NULL, 0);

    if (error != 0) {
        MS_TRY_GOTO(fail_pmix(x, "Init", error), failed);
    }
    x->initialized = true;
    if (x->own.rank != (uint32_t)p->rank) {
        MS_TRY_GOTO(MS_FAIL(MS_COMM_ERROR, "PMIx has rank %u for this process, but %s says %d",
                            (unsigned)x->own.rank, p->source, (int)p->rank),
                    failed);
    }
    *state = x;
    return MS_OK;
failed:
    close_pmix(x);
    return status;
}

/* -- exchange ---------------------------------------------------------------------------------- */

static void drop_fence(fence *f)
{
    if (atomic_fetch_sub(&f->users, 1) == 1) {
        sem_destroy(&f->ended);
        free(f);
    }
}

static void fence_ended(int status, void *user)
{
    fence *f = user;

    f->status = status;
    sem_post(&f->ended);
    drop_fence(f);
}

/* Returns a status of PMIx; `*ended` false: not within the time limit. */
static int wait_fence(fence *f, int64_t timeout_ns, bool *ended)
{
    const int64_t deadline_ns = msi_now_ns() + timeout_ns;
    const struct timespec until = {.tv_sec = deadline_ns / 1000000000,
                                   .tv_nsec = deadline_ns % 1000000000};
    int error;

    do {
        error = sem_clockwait(&f->ended, CLOCK_MONOTONIC, &until);
    } while (error != 0 && errno == EINTR);
    *ended = error == 0;
    return *ended ? f->status : 0;
}

static ms_status meet(const pmix *x, int64_t timeout_ns)
{
    fence *f = calloc(1, sizeof(*f));
    bool ended = true;

    if (f == NULL || sem_init(&f->ended, 0, 0) != 0) {
        free(f);
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for a rendezvous");
    }
    snprintf(f->collect.key, sizeof(f->collect.key), "pmix.collect");
    f->collect.value = (pmix_value){.type = PMIX_BOOL, .data.flag = true};
    f->users = 2;
    int status = x->Fence_nb(NULL, 0, &f->collect, 1, fence_ended, f);

    if (status == 0) {
        status = wait_fence(f, timeout_ns, &ended);
    } else {
        drop_fence(f);
    }
    drop_fence(f);
    if (!ended) {
        return MS_FAIL(MS_COMM_ERROR,
                       "rank %d of %d waited %s s for the others in run %s: some have not come; "
                       "check that every process of %s runs the same program",
                       (int)x->p->rank, (int)x->p->world, msi_seconds_text(timeout_ns),
                       msi_foreign_name(x->p->run), x->p->launcher);
    }
    return status == 0 ? MS_OK : fail_pmix(x, "Fence", status);
}

static ms_status get(const pmix *x, int32_t rank, const char *key, char *to, int64_t nbytes)
{
    pmix_proc from = x->own;
    pmix_value *value = NULL;

    from.rank = (uint32_t)rank;
    const int status = x->Get(&from, key, NULL, 0, &value);

    if (status != 0 || value == NULL) {
        return fail_pmix(x, "Get", status);
    }
    const bool fits = value->type == PMIX_BYTE_OBJECT && value->data.bo.size == (size_t)nbytes;
    const size_t size = value->type == PMIX_BYTE_OBJECT ? value->data.bo.size : 0;

    if (fits) {
        memcpy(to, value->data.bo.bytes, (size_t)nbytes);
    }
    if (value->type == PMIX_BYTE_OBJECT) {
        free(value->data.bo.bytes);
    }
    free(value);
    return fits ? MS_OK
                : MS_FAIL(MS_COMM_ERROR,
                          "rank %d exchanges '%s' of %zu bytes, but rank %d of %lld bytes: all "
                          "ranks need the same program and version",
                          (int)rank, key, size, (int)x->p->rank, (long long)nbytes);
}

static ms_status exchange_pmix(void *state, const char *key, const void *in, int64_t nbytes,
                               void *all, int64_t timeout_ns)
{
    const pmix *x = state;
    char own[MSI_RENDEZVOUS_BYTES + 1], name[KEY_BYTES];
    pmix_value value = {.type = PMIX_BYTE_OBJECT, .data.bo = {own, (size_t)nbytes}};

    memcpy(own, in, (size_t)nbytes); /* Put takes a pointer to changeable bytes, and copies them */
    snprintf(name, sizeof(name), "moonshard.%s", key);
    int status = x->Put(PMIX_GLOBAL, name, &value);

    if (status != 0) {
        return fail_pmix(x, "Put", status);
    }
    status = x->Commit();
    if (status != 0) {
        return fail_pmix(x, "Commit", status);
    }
    MS_TRY(meet(x, timeout_ns));
    for (int32_t r = 0; r < x->p->world; r++) {
        MS_TRY(get(x, r, name, (char *)all + r * nbytes, nbytes));
    }
    return MS_OK;
}

const msi_meeting msi_meet_pmix = {open_pmix, exchange_pmix, close_pmix};
