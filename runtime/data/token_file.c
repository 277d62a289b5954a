/* Mapped files of tokens.
 *
 * [Note: files that shrink] Access to a mapped page that the file lost (truncated, disk failure)
 * raises SIGBUS and ends the process. A copy would cost every rank the size of its data; checking
 * the file before each read costs system calls and is still too early. So a handler serves our
 * mappings: it maps zeros over lost pages, sets a flag and prints a warning, since reading ops
 * cannot fail. Other faults go to the previous handler. A truncated last page reads as zeros
 * without a signal. So after taking windows we check the file's last nonzero byte: a truncation
 * that loses more than zeros clears it or raises the signal. */
#include "token_file.h"
#include "moonshard/data.h"
#include "op.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_MAPPINGS = 256 };

/* State that the handler may read. */
typedef struct mapping {
    atomic_bool taken;
    atomic_uintptr_t begin, end; /* end 0: not mapped */
    atomic_bool lost;
    const volatile char *last; /* last nonzero byte of the last page, else its first */
    bool last_is_zero;
    int64_t nbytes;
    char *path; /* while it is mapped */
} mapping;

/* A previous action. Never freed, as a handler may read it. */
typedef struct earlier {
    struct sigaction action;
    struct earlier *next;
} earlier;

static mapping mappings[MAX_MAPPINGS];
static earlier *seen; /* all of them, under the lock */
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(const earlier *) before; /* the process's own action */
/* Threads passing on a fault, 0: free. If it comes back, nobody handles it. Not thread-local, as
 * first use may allocate. */
static atomic_int passing_on[16];

/* -- the handler: async-signal-safe ------------------------------------------------------------ */

/* Print the warning in one write, without unsafe calls. */
static void report_lost(const mapping *m)
{
    static const char before_path[] = "moonshard: UserWarning: '",
                      after_path[] = "' is shorter than when it was mapped, or cannot be read any "
                                     "more: what is lost reads as zeros\n";
    const struct iovec pieces[] = {
        {.iov_base = (void *)(uintptr_t)before_path, .iov_len = sizeof(before_path) - 1},
        {.iov_base = m->path, .iov_len = strlen(m->path)},
        {.iov_base = (void *)(uintptr_t)after_path, .iov_len = sizeof(after_path) - 1},
    };
    const ssize_t written = writev(STDERR_FILENO, pieces, MSI_COUNT(pieces));

    (void)written; /* no other way to report */
}

static bool put_zeros(uintptr_t at)
{
    for (int i = 0; i < MAX_MAPPINGS; i++) {
        mapping *m = &mappings[i];
        const uintptr_t end = atomic_load(&m->end);
        const uintptr_t page = at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);

        /* check again: another thread may be replacing a freed mapping */
        if (at < end && at >= atomic_load(&m->begin) && atomic_load(&m->end) == end) {
            if (!atomic_exchange(&m->lost, true)) {
                report_lost(m);
            }
            return mmap((void *)page, end - page, PROT_READ,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
        }
    }
    return false;
}

/* A free entry for this thread; NULL if it has one already, or all are taken. */
static atomic_int *take_place(int thread)
{
    atomic_int *place = NULL;

    for (int i = 0; i < MSI_COUNT(passing_on); i++) {
        if (atomic_load(&passing_on[i]) == thread) {
            return NULL;
        }
    }
    for (int i = 0; i < MSI_COUNT(passing_on) && place == NULL; i++) {
        int nobody = 0;

        if (atomic_compare_exchange_strong(&passing_on[i], &nobody, thread)) {
            place = &passing_on[i];
        }
    }
    return place;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    const struct sigaction *action = &atomic_load(&before)->action;
    const bool with_info = (action->sa_flags & SA_SIGINFO) != 0, sent = info->si_code <= 0;

    if (!with_info && action->sa_handler == SIG_IGN && sent) {
        return;
    }
    const bool theirs =
        with_info || (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
    atomic_int *place = theirs ? take_place(gettid()) : NULL;

    if (place == NULL) {
        signal(number, SIG_DFL); /* the fault repeats */
        if (sent) {
            raise(number); /* a sent signal does not repeat */
        }
        return;
    }
    if (with_info) {
        action->sa_sigaction(number, info, context);
    } else {
        action->sa_handler(number);
    }
    atomic_store(place, 0);
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    const int saved = errno;

    if (info->si_code > 0 && put_zeros((uintptr_t)info->si_addr)) {
        errno = saved;
    } else {
        pass_on(number, info, context);
    }
}

/* The record of an action; NULL when memory is out. */
static const earlier *record_of(const struct sigaction *action)
{
    earlier *e = seen;

    while (e != NULL && (e->action.sa_sigaction != action->sa_sigaction ||
                         e->action.sa_flags != action->sa_flags)) {
        e = e->next;
    }
    if (e == NULL && (e = malloc(sizeof(*e))) != NULL) {
        *e = (earlier){.action = *action, .next = seen};
        seen = e;
    }
    return e;
}

/* Install the handler first, again if another was installed since the last mapping. */
static ms_status install_handler(void)
{
    struct sigaction now,
        ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    ms_status status = MS_OK;

    sigemptyset(&ours.sa_mask);
    pthread_mutex_lock(&installing);
    if (sigaction(SIGBUS, NULL, &now) == 0 && now.sa_sigaction != on_bus_error) {
        const earlier *e = record_of(&now);

        if (e == NULL) {
            status = MS_FAIL(MS_OUT_OF_MEMORY, "no memory to map a token file");
        } else {
            atomic_store(&before, e); /* first, as ours reads it */
            sigaction(SIGBUS, &ours, NULL);
        }
    }
    pthread_mutex_unlock(&installing);
    return status;
}

/* -- mapping ----------------------------------------------------------------------------------- */

static void unmap(msi_storage *s, void *user)
{
    mapping *m = user;

    atomic_store(&m->end, 0); /* before the memory is reused */
    munmap(s->host != NULL ? s->host : s->data, (size_t)s->nbytes);
    free(m->path);
    atomic_store(&m->taken, false);
}

static ms_status take_mapping(mapping **out, const char *path)
{
    char *copy = strdup(path);

    if (copy == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to map '%s'", path);
    }
    for (int i = 0; i < MAX_MAPPINGS; i++) {
        if (!atomic_exchange(&mappings[i].taken, true)) {
            *out = &mappings[i];
            (*out)->path = copy;
            return MS_OK;
        }
    }
    free(copy);
    /* garbage collection may free one, as for memory */
    return MS_FAIL(MS_OUT_OF_MEMORY, "'%s' would be token file %d, expected at most %d at a time",
                   path, MAX_MAPPINGS + 1, MAX_MAPPINGS);
}

/* Find the byte that every truncation loses. */
static void find_last(mapping *m, const char *data)
{
    const int64_t page = (m->nbytes - 1) / sysconf(_SC_PAGESIZE) * sysconf(_SC_PAGESIZE);
    int64_t at = m->nbytes - 1;

    while (at > page && data[at] == 0) {
        at--;
    }
    m->last = data + at;
    m->last_is_zero = data[at] == 0;
}

/* Map the open file and register it for the handler. */
static ms_status map_open(int fd, const char *path, int64_t nbytes, mapping **out, void **data)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    MS_TRY(take_mapping(out, path));
    *data = mmap(NULL, (size_t)nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (*data == MAP_FAILED) {
        const int error = errno;

        free((*out)->path);
        atomic_store(&(*out)->taken, false);
        return MS_FAIL(error == ENOMEM ? MS_OUT_OF_MEMORY : MS_IO_ERROR,
                       "cannot map the %lld bytes of '%s': %s", (long long)nbytes, path,
                       strerror(error));
    }
    (*out)->nbytes = nbytes;
    atomic_store(&(*out)->lost, false);
    atomic_store(&(*out)->begin, (uintptr_t)*data);
    atomic_store(&(*out)->end, (uintptr_t)*data + ((uintptr_t)nbytes + page - 1) / page * page);
    find_last(*out, *data);
    return MS_OK;
}

static ms_status map_file(const char *path, int64_t element, mapping **out, void **data)
{
    /* O_NONBLOCK: do not wait for a pipe's writer */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    ms_status status;

    if (fd < 0) {
        return MS_FAIL(MS_IO_ERROR, "cannot open '%s': %s", path, strerror(errno));
    }
    if (fstat(fd, &info) != 0) {
        status = MS_FAIL(MS_IO_ERROR, "cannot read '%s': %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = MS_FAIL(MS_IO_ERROR, "'%s' is no regular file", path);
    } else if (info.st_size == 0 || info.st_size % element != 0) {
        status = MS_FAIL(MS_FORMAT_ERROR, "'%s' has %lld bytes, expected tokens of %lld bytes each",
                         path, (long long)info.st_size, (long long)element);
    } else {
        status = map_open(fd, path, info.st_size, out, data);
    }
    close(fd);
    return status;
}

ms_status ms_data_map(ms_tensor **out, const char *path, int32_t dtype)
{
    ms_context *ctx = msi_context();
    msi_view v = {0};
    void *data = NULL;
    mapping *m = NULL;

    *out = NULL;
    if (ctx == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    msi_op_host(ctx, "a tensor is made from memory of the host");
    if (dtype != MS_DTYPE_U8 && dtype != MS_DTYPE_I64) {
        return MS_FAIL(MS_TYPE_ERROR, "tokens are u8 or i64, got %s", ms_dtype_name(dtype));
    }
    MS_TRY(install_handler());
    MS_TRY(map_file(path, ms_dtype_size(dtype), &m, &data));
    ms_status status = msi_storage_of_host(&v.storage, ctx, data, m->nbytes);

    if (status != MS_OK) {
        unmap(&(msi_storage){.data = data, .nbytes = m->nbytes}, m);
        return status;
    }
    v.storage->dispose = unmap;
    v.storage->user = m;
    v.storage->readonly = "is a map of a file of tokens; write into a clone() of it";
    msi_view_set_contiguous(&v, dtype, 1, &(int64_t){m->nbytes / ms_dtype_size(dtype)});
    status = msi_tensor_new(out, ctx, &v);
    msi_storage_release(v.storage);
    return status;
}

ms_status msi_token_file_check(const msi_storage *s)
{
    mapping *m = s->dispose == unmap ? s->user : NULL;
    struct stat info;

    if (m == NULL) {
        return MS_OK;
    }
    if (*m->last == 0 && !m->last_is_zero) {
        atomic_store(&m->lost, true);
    }
    if (!atomic_load(&m->lost)) { /* after the read, which may raise the signal */
        return MS_OK;
    }
    if (stat(m->path, &info) == 0 && info.st_size < m->nbytes) {
        return MS_FAIL(MS_IO_ERROR, "'%s' has %lld bytes now, expected %lld as when it was mapped",
                       m->path, (long long)info.st_size, (long long)m->nbytes);
    }
    return MS_FAIL(MS_IO_ERROR,
                   "a part of the %lld bytes of '%s' is not there any more, or was overwritten",
                   (long long)m->nbytes, m->path);
}
