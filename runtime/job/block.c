/* The control block: making and mapping it, and its abort word. */
#include "job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_MAGIC = 0x6d736a31 }; /* "msj1" */

static uint32_t layout_id(const msi_job_guest *guest)
{
    return (uint32_t)msi_mix64(sizeof(msi_block) + 1000003 * sizeof(msi_job_rank) +
                               1000033 * (uint64_t)guest->layout());
}

/* -- making and mapping ------------------------------------------------------------------------ */

static int64_t guest_place(int32_t world)
{
    return msi_round_up((int64_t)(sizeof(msi_block) + sizeof(msi_job_rank) * (size_t)(world + 1)),
                        64);
}

static msi_job *job_shell(const msi_job_guest *guest, int32_t world, bool threads)
{
    msi_job *job = calloc(1, sizeof(*job) + sizeof(job->socket[0]) * (size_t)world);

    if (job == NULL) {
        msi_fail(MS_OUT_OF_MEMORY, "no memory for a job of %d ranks", (int)world);
        return NULL;
    }
    job->guest = guest;
    job->world = world;
    job->fd = -1;
    job->threads = threads;
    for (int32_t r = 0; r < world; r++) {
        job->socket[r][0] = job->socket[r][1] = -1;
    }
    return job;
}

/* Read once, so that ranks do not repeat warnings. */
static void read_switches(msi_block *b)
{
    int64_t us = msi_switch_within("MS_COMM_SPIN_US", 50, 0, 1000000);

    /* Spin only if every rank has its own core. */
    b->spin_ns = b->n_local <= b->cores ? us * 1000 : 0;
    b->timeout_ns = msi_switch_within("MS_COMM_TIMEOUT", 600, 1, MSI_LONGEST_S) * 1000000000;
    b->announce_ns = msi_switch_within("MS_COMM_ANNOUNCE", 15, 0, MSI_LONGEST_S) * 1000000000;
}

/* `verb`: "map the". */
static ms_status refused(const char *verb, int64_t nbytes, msi_bound by)
{
    char there[MSI_BOUND_TEXT];

    return MS_FAIL(msi_error_kind(by.error), "cannot %s control block of %lld bytes: %s%s", verb,
                   (long long)nbytes, strerrordesc_np(by.error),
                   msi_bound_text(by, there, sizeof(there)));
}

static ms_status map_block(msi_block **out, int64_t nbytes, int32_t fd)
{
    const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *map = mmap(NULL, (size_t)nbytes, PROT_READ | PROT_WRITE, flags, fd, 0);

    if (map == MAP_FAILED) {
        return refused("map the", nbytes, msi_bound_of(errno));
    }
    *out = map;
    return MS_OK;
}

static ms_status make_shared(msi_job *job, int64_t nbytes)
{
    msi_bound made = msi_memfd_new(&job->fd, "moonshard-job", nbytes);

    return made.error == 0 ? map_block(&job->block, nbytes, job->fd)
                           : refused("make a", nbytes, made);
}

static void fill(msi_block *b, const msi_job *job, msi_job_size size, int64_t nbytes)
{
    b->world = job->world;
    b->n_hosts = size.n_hosts;
    b->host = size.host;
    b->n_local = size.n_local;
    b->first = size.host * size.n_local;
    b->guest_at = guest_place(job->world);
    b->nbytes = nbytes;
    b->magic = BLOCK_MAGIC;
    b->layout = layout_id(job->guest);
    b->cores = msi_cores_allowed();
    (void)sched_getaffinity(0, sizeof(b->allowed), &b->allowed); /* none: ranks are not moved */
    if (getrandom(&b->nonce, sizeof(b->nonce), 0) < 0) {
        b->nonce = (uint64_t)msi_now_ns();
    }
    read_switches(b);
}

ms_status msi_job_new(msi_job **out, const msi_job_guest *guest, msi_job_size size, bool threads)
{
    ms_status status = MS_OK;

    *out = NULL;
    if (size.n_local < 1 || size.n_local > MS_MAX_RANKS / size.n_hosts) {
        return MS_FAIL(MS_VALUE_ERROR, "number of ranks is %d, expected 1 to %d", (int)size.n_local,
                       MS_MAX_RANKS / (int)size.n_hosts);
    }
    const int32_t world = size.n_hosts * size.n_local;
    const int64_t nbytes = guest_place(world) + guest->nbytes(world);
    msi_job *job = job_shell(guest, world, threads);

    if (job == NULL) {
        return MS_OUT_OF_MEMORY;
    }
    MS_TRY_GOTO(threads ? map_block(&job->block, nbytes, -1) : make_shared(job, nbytes), failed);
    fill(job->block, job, size, nbytes);
    MS_TRY_GOTO(threads ? MS_OK : msi_descriptors_new(job), failed);
    *out = job;
    return MS_OK;
failed:
    msi_job_free(job);
    return status;
}

/* True if it was made by this build with this guest. */
static bool fits(const msi_block *b, const msi_job_guest *guest, int64_t nbytes)
{
    return b->magic == BLOCK_MAGIC && b->layout == layout_id(guest) && b->nbytes == nbytes &&
           b->world >= 1 && b->world <= MS_MAX_RANKS;
}

ms_status msi_job_open(msi_job **out, const msi_job_guest *guest, int32_t fd)
{
    msi_block *block;
    struct stat st;

    *out = NULL;
    if (fstat(fd, &st) != 0) {
        return MS_FAIL(MS_COMM_ERROR, "file descriptor %d is no control block of a job: %s",
                       (int)fd, strerrordesc_np(errno));
    }
    if (st.st_size < (off_t)sizeof(msi_block)) {
        return MS_FAIL(MS_COMM_ERROR, "file descriptor %d is no control block of a job", (int)fd);
    }
    MS_TRY(map_block(&block, st.st_size, fd));
    msi_job *job = NULL;
    ms_status status = MS_OUT_OF_MEMORY;

    if (!fits(block, guest, st.st_size)) {
        status = MS_FAIL(MS_COMM_ERROR,
                         "the control block of this job was made by another build of the library");
    } else {
        job = job_shell(guest, block->world, false);
    }
    if (job == NULL) {
        munmap(block, (size_t)st.st_size);
        return status;
    }
    job->block = block;
    job->fd = fd;
    *out = job;
    return MS_OK;
}

void msi_job_free(msi_job *job)
{
    if (job == NULL) {
        return;
    }
    msi_mirror_free(job->mirror);
    msi_maps_sweep(job);
    if (job->block != NULL) {
        munmap(job->block, (size_t)job->block->nbytes);
    }
    if (job->fd >= 0) {
        close(job->fd);
    }
    msi_descriptors_free(job);
    free(job);
}

void *msi_job_guest_memory(const msi_job *job)
{
    return (char *)job->block + job->block->guest_at;
}

void msi_job_make_private(const msi_job *job)
{
    if (!job->threads) {
        msi_maps_make_private(job);
        msi_make_private(job->block, (size_t)job->block->nbytes, PROT_READ | PROT_WRITE, job->fd);
    }
}

/* -- the abort word ---------------------------------------------------------------------------- */

/* Wake all ranks. */
static void ring_all(msi_job *job)
{
    for (int32_t r = 0; r < job->block->n_local; r++) {
        msi_wake(&job->block->rank[job->block->first + r]);
    }
}

static uint64_t abort_pack(int32_t own, int32_t subject, int32_t cause)
{
    return (uint64_t)cause << 32 | (uint64_t)(subject + 1) << 16 | (uint64_t)(own + 1);
}

static int32_t abort_subject(uint64_t word)
{
    return (int32_t)(word >> 16 & 0xffff) - 1;
}

static int32_t abort_cause(uint64_t word)
{
    return (int32_t)(word >> 32);
}

/* Insert " (pid N)" after the first line of a failure. */
static void name_process(const msi_job *job, int32_t subject, char *text, size_t nbytes)
{
    char rest[MSI_TEXT];
    size_t line = strcspn(text, "\n");

    snprintf(rest, sizeof(rest), "%s", text + line);
    snprintf(text + line, nbytes - line, " (pid %d)%s",
             (int)atomic_load(&job->block->rank[subject].pid), rest);
}

/* True if `own` may replace the abort word. The first one stays, unless it reports that `own` had
 * left: then its own failure is the cause. */
static bool may_replace(uint64_t word, int32_t own, int32_t subject, int32_t cause)
{
    return word == 0 || (subject == own && cause == MSI_CAUSE_FAILED &&
                         abort_subject(word) == own && abort_cause(word) == MSI_CAUSE_LEFT);
}

bool msi_job_abort_text(msi_job *job, int32_t own, int32_t subject, int32_t cause, ms_status kind,
                        const char *text)
{
    msi_job_rank *mine = &job->block->rank[own];
    uint64_t word = atomic_load(&job->block->abort);

    if (!may_replace(word, own, subject, cause)) {
        return false; /* keeps a text that may be being read */
    }
    msi_printable(mine->text, sizeof(mine->text), text);
    mine->kind = kind;
    while (!atomic_compare_exchange_strong(&job->block->abort, &word,
                                           abort_pack(own, subject, cause))) {
        if (!may_replace(word, own, subject, cause)) {
            return false;
        }
    }
    ring_all(job);
    return true;
}

bool msi_job_abort(msi_job *job, int32_t own, int32_t subject, int32_t cause, ms_status kind,
                   const char *format, ...)
{
    char text[MSI_TEXT];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (subject >= 0 && !job->threads && cause >= MSI_CAUSE_FAILED && cause <= MSI_CAUSE_LEFT) {
        name_process(job, subject, text, sizeof(text));
    }
    return msi_job_abort_text(job, own, subject, cause, kind, text);
}

bool msi_job_aborted(const msi_job *job, int32_t *subject, int32_t *cause, ms_status *kind,
                     const char **text)
{
    uint64_t word = atomic_load_explicit(&job->block->abort, memory_order_acquire);

    if (word == 0) {
        return false;
    }
    const msi_job_rank *writer = &job->block->rank[(word & 0xffff) - 1];

    *subject = abort_subject(word);
    *cause = abort_cause(word);
    *kind = writer->kind;
    *text = writer->text;
    return true;
}

void msi_job_set_state(msi_job *job, int32_t rank, int32_t state)
{
    atomic_store(&job->block->rank[rank].state, state);
    ring_all(job);
}
