/* Every allocation and every system call of saving and loading fails, one after the other, once and
 * from there on, alone and on either of two ranks: an error on all ranks, nothing lost, nothing
 * half loaded, and the next save and load work. The linker puts the functions below in front of the
 * C library's (see CMakeLists.txt); Jansson is given the same allocator. */
#include "ckpt_test.h"

#include <errno.h>
#include <jansson.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/random.h>

enum { ALLOCATIONS = 1, CALLS, SHORT_TRANSFERS };

/* The fault this thread is to meet. */
typedef struct fault {
    int kind;      /* 0: none */
    int countdown; /* calls of that kind that still pass */
    bool for_good; /* all later ones too */
    int error;
    int n_struck;
} fault;

static _Thread_local fault armed;

static bool strikes(int kind)
{
    if (armed.kind != kind || armed.countdown < 0) {
        return false;
    }
    if (armed.countdown > 0) {
        armed.countdown--;
        return false;
    }
    armed.n_struck++;
    armed.countdown = armed.for_good ? 0 : -1;
    errno = armed.error;
    return true;
}

/* name(params) fails with `failure` when it is its turn. */
#define FAULTY(kind, type, name, params, args, failure)                                            \
    type __real_##name params;                                                                     \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params                                                                      \
    {                                                                                              \
        return strikes(kind) ? (failure) : __real_##name args;                                     \
    }

FAULTY(ALLOCATIONS, void *, malloc, (size_t n), (n), NULL)
FAULTY(ALLOCATIONS, void *, calloc, (size_t n, size_t size), (n, size), NULL)
FAULTY(ALLOCATIONS, void *, realloc, (void *p, size_t n), (p, n), NULL)
FAULTY(ALLOCATIONS, char *, strdup, (const char *s), (s), NULL)
FAULTY(ALLOCATIONS, int, vasprintf, (char **out, const char *format, va_list args),
       (out, format, args), -1)
FAULTY(CALLS, int, fstat, (int fd, struct stat *st), (fd, st), -1)
FAULTY(CALLS, int, stat, (const char *path, struct stat *st), (path, st), -1)
FAULTY(CALLS, int, lstat, (const char *path, struct stat *st), (path, st), -1)
FAULTY(CALLS, int, mkdir, (const char *path, mode_t mode), (path, mode), -1)
FAULTY(CALLS, int, rmdir, (const char *path), (path), -1)
FAULTY(CALLS, int, unlink, (const char *path), (path), -1)
FAULTY(CALLS, int, unlinkat, (int dir, const char *path, int flags), (dir, path, flags), -1)
FAULTY(CALLS, int, symlink, (const char *to, const char *path), (to, path), -1)
FAULTY(CALLS, int, rename, (const char *from, const char *to), (from, to), -1)
FAULTY(CALLS, int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
       (a, from, b, to, flags), -1)
FAULTY(CALLS, int, access, (const char *path, int mode), (path, mode), -1)
FAULTY(CALLS, int, flock, (int fd, int how), (fd, how), -1)
FAULTY(CALLS, ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags), -1)
FAULTY(CALLS, ssize_t, readlink, (const char *path, char *to, size_t n), (path, to, n), -1)
FAULTY(CALLS, DIR *, opendir, (const char *path), (path), NULL)
FAULTY(CALLS, DIR *, fdopendir, (int fd), (fd), NULL)
FAULTY(CALLS, struct dirent *, readdir, (DIR * dir), (dir), NULL)

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;

    va_end(args);
    return strikes(CALLS) ? -1 : __real_open(path, flags, mode);
}

/* What is synced is another test's question; here it would only take time. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    (void)fd;
    return strikes(CALLS) ? -1 : 0;
}

ssize_t __real_pwrite(int fd, const void *from, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t at)
{
    if (strikes(CALLS)) {
        return -1;
    }
    return __real_pwrite(fd, from, strikes(SHORT_TRANSFERS) ? (n + 1) / 2 : n, at);
}

ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
    if (strikes(CALLS)) {
        return -1;
    }
    return __real_pread(fd, to, strikes(SHORT_TRANSFERS) ? (n + 1) / 2 : n, at);
}

/* -- what is saved and loaded -------------------------------------------------------------------
 */

enum {
    NUMEL = 24,
    SEED_OF_OLD = 1,
    SEED_OF_NEW = 2,
    SEED_OF_NOTHING = 3,
    SEED_OF_OLDER = 4,
    N_SEEDS
};

/* One rank's part of three sharded tensors. */
enum { N_TENSORS = 3 };
static const char *const keys[N_TENSORS] = {"model/weight", "model/bias", "optim/exp_avg/weight"};

typedef struct part {
    ms_param_extent extent;
    ms_tensor *t[N_TENSORS];
} part;

static part part_new(const ms_comm *comm, uint64_t seed)
{
    part p = {.extent = extent_of(MS_DTYPE_F32, NUMEL)};

    p.extent.numel = NUMEL / ms_comm_size(comm);
    p.extent.start = p.extent.numel * ms_comm_rank(comm);
    for (int i = 0; i < N_TENSORS; i++) {
        p.t[i] =
            bits_tensor(MS_DTYPE_F32, seed + (uint64_t)i * N_SEEDS, p.extent.start, p.extent.numel);
    }
    return p;
}

static bool part_equals(const part *p, const part *q)
{
    return same_bytes(p->t[0], q->t[0]) && same_bytes(p->t[1], q->t[1]) &&
           same_bytes(p->t[2], q->t[2]);
}

static void part_dispose(part *p)
{
    for (int i = 0; i < N_TENSORS; i++) {
        ms_tensor_free(p->t[i]);
    }
}

/* Long enough that Jansson's buffers grow while they read and write it. */
#define META(step)                                                                                 \
    "{\"step\":" #step ",\"a-key-of-more-than-the-sixteen-bytes-a-buffer-begins-with\":"           \
    "\"0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz0123456789\"}"

static ms_status save(ms_comm *comm, const char *root, const char *name, const part *p,
                      const char *meta)
{
    ms_checkpoint_writer *w;

    MS_TRY(ms_checkpoint_begin(&w, comm, root, name));
    for (int i = 0; i < N_TENSORS; i++) {
        const ms_status status = ms_checkpoint_add(w, keys[i], &p->extent, p->t[i]);

        if (status != MS_OK) {
            ms_checkpoint_fail(w, status, ms_error_message());
        }
    }
    return ms_checkpoint_commit(w, meta);
}

static ms_status load(ms_comm *comm, const char *root, part *p, bool by_name)
{
    ms_checkpoint_loader *l;
    char path[300];

    snprintf(path, sizeof(path), "%s/best", root);
    MS_TRY(by_name ? ms_checkpoint_load_begin(&l, comm, path)
                   : ms_checkpoint_load_latest(&l, comm, root));
    if (l == NULL) {
        return MS_FAIL(MS_KEY_ERROR, "no checkpoint is found");
    }
    const char *meta = ms_checkpoint_meta(ms_checkpoint_load_source(l));

    if (strcmp(meta, META(1)) != 0 && strcmp(meta, META(2)) != 0) {
        ms_checkpoint_load_fail(l, MS_KEY_ERROR, meta);
    }
    for (int i = 0; i < N_TENSORS; i++) {
        const ms_status status = ms_checkpoint_load_add(l, keys[i], &p->extent, p->t[i]);

        if (status != MS_OK) {
            ms_checkpoint_load_fail(l, status, ms_error_message());
        }
    }
    return ms_checkpoint_load_commit(l);
}

/* -- one try ------------------------------------------------------------------------------------
 */

typedef struct
try {
    const char *root;
    fault fault;
    int32_t victim;
    bool saving, by_name;
    ms_status status[2];
    atomic_int n_struck;
    atomic_bool wrong;
    char message[400], said[300]; /* what is wrong; rank 0's error */
}
try;

/* A condition that must hold; the first that does not is told. */
static bool expect(try *t, int32_t rank, bool holds, const char *what)
{
    if (!holds && !atomic_exchange(&t->wrong, true)) {
        snprintf(t->message, sizeof(t->message), "rank %d: %s (%s)", (int)rank, what,
                 ms_error_message());
    }
    return holds;
}

static void note_error(try *t, int32_t rank)
{
    if (rank == 0) {
        snprintf(t->said, sizeof(t->said), "%s", ms_error_message());
    }
}

/* Is a temporary folder or link still there, of which no warning speaks? */
static bool has_left_something(const try *t)
{
    const char *kind, *message;

    return count_entries(t->root, ".tmp-") > 0 && !ms_warning_take(&kind, &message);
}

static void try_save(try *t, ms_comm *comm, const part *old, const part *new, part *seen)
{
    const int32_t rank = ms_comm_rank(comm);

    armed = rank == t->victim ? t->fault : (fault){0};
    t->status[rank] = save(comm, t->root, "best", new, META(2));
    note_error(t, rank);
    t->n_struck += armed.n_struck;
    armed = (fault){0};
    if (rank == 0 && !t->fault.for_good) {
        expect(t, rank, !has_left_something(t), "something is left behind in silence");
    }
    if (expect(t, rank, load(comm, t->root, seen, true) == MS_OK, "what is there does not load")) {
        expect(t, rank, part_equals(seen, t->status[rank] == MS_OK ? new : old),
               "another checkpoint is there than the save's outcome says");
    }
    expect(t, rank, save(comm, t->root, "best", old, META(1)) == MS_OK, "the next save fails");
}

static void try_load(try *t, ms_comm *comm, const part *old, const part *nothing, part *seen)
{
    const int32_t rank = ms_comm_rank(comm);

    armed = rank == t->victim ? t->fault : (fault){0};
    t->status[rank] = load(comm, t->root, seen, t->by_name);
    note_error(t, rank);
    t->n_struck += armed.n_struck;
    armed = (fault){0};
    expect(t, rank, part_equals(seen, t->status[rank] == MS_OK ? old : nothing),
           "other values than the load's outcome says");
    expect(t, rank, load(comm, t->root, seen, true) == MS_OK && part_equals(seen, old),
           "the next load fails");
}

static ms_status try_as_rank(void *user, int32_t rank)
{
    try *t = user;
    ms_comm *comm;

    MS_TRY(ms_comm_world(&comm));
    part old = part_new(comm, SEED_OF_OLD), new = part_new(comm, SEED_OF_NEW);
    part nothing = part_new(comm, SEED_OF_NOTHING), seen = part_new(comm, SEED_OF_NOTHING);

    ms_warnings_capture(true);
    if (t->saving) {
        try_save(t, comm, &old, &new, &seen);
    } else {
        try_load(t, comm, &old, &nothing, &seen);
    }
    ms_warnings_capture(false);
    part_dispose(&old);
    part_dispose(&new);
    part_dispose(&nothing);
    part_dispose(&seen);
    return MS_OK;
}

/* Let call number 0, `stride`, ... fail, until the fault comes too late to strike. */
static void try_all(const char *name, int32_t world, try t, int stride, int least)
{
    int n = 0, failed = 0;

    t.root = path_of(name);
    for (bool struck = true; struck; n++) {
        assert_true(n < 3000);
        t.fault.countdown = n * stride;
        t.n_struck = 0;
        t.wrong = false;
        assert_ok(ms_dist_threads(world, try_as_rank, &t));
        if (t.wrong) {
            fail_msg("%s: %d ranks, victim %d, kind %d, call %d%s: %s", name, (int)world,
                     (int)t.victim, t.fault.kind, t.fault.countdown,
                     t.fault.for_good ? " and all later ones" : "", t.message);
        }
        for (int r = 1; r < world; r++) {
            assert_int_equal(t.status[0], t.status[r]);
        }
        const ms_status kind = t.fault.kind == ALLOCATIONS ? MS_OUT_OF_MEMORY : MS_IO_ERROR;

        if (t.status[0] != MS_OK && t.status[0] != kind) {
            fail_msg("%s: %d ranks, victim %d, call %d: %s, found no %s", name, (int)world,
                     (int)t.victim, t.fault.countdown, t.said, ms_status_name(kind));
        }
        struck = t.n_struck > 0;
        assert_true(struck || t.status[0] == MS_OK);
        failed += t.status[0] != MS_OK;
    }
    assert_true(n * stride >= least);
    assert_true(failed > 0 || t.fault.kind == SHORT_TRANSFERS || t.fault.error == EINTR);
    assert_ok(ms_checkpoint_prune(t.root, 2)); /* `latest` on its way may have been left */
    assert_int_equal(0, count_entries(t.root, ".tmp-"));
}

/* Two that are whole: want of memory or a bad moment of the disk must not let the older one pass
 * for the newest. */
static ms_status save_old(void *user, int32_t rank)
{
    ms_comm *comm;

    MS_TRY(ms_comm_world(&comm));
    part old = part_new(comm, SEED_OF_OLD), older = part_new(comm, SEED_OF_OLDER);
    ms_status status = save(comm, user, "older", &older, META(0));

    if (status == MS_OK) {
        status = save(comm, user, "best", &old, META(1));
    }
    part_dispose(&old);
    part_dispose(&older);
    return status;
}

/* Saving and loading, alone and by two, with each of them the victim. */
static void try_everywhere(const char *name, fault f, int stride, int least)
{
    char folder[64];

    for (int32_t world = 1; world <= 2; world++) {
        snprintf(folder, sizeof(folder), "%s-%d", name, (int)world);
        assert_ok(ms_dist_threads(world, save_old, (void *)(uintptr_t)path_of(folder)));
        for (int32_t victim = 0; victim < world; victim++) {
            const int step = world == 1 ? 1 : stride, few = victim == 0 ? least : least / 4;
            try t = {.fault = f, .victim = victim, .saving = true};

            try_all(folder, world, t, step, few);
            t.saving = false;
            t.by_name = true;
            try_all(folder, world, t, step, few / 3);
            t.by_name = false;
            try_all(folder, world, t, step, few / 3);
        }
    }
}

static void test_checkpoint_faults__an_allocation_that_fails_once(void **state)
{
    try_everywhere("alloc", (fault){.kind = ALLOCATIONS, .error = ENOMEM}, 3, 100);
}

static void test_checkpoint_faults__allocations_that_fail_for_good(void **state)
{
    try_everywhere("allocs", (fault){.kind = ALLOCATIONS, .error = ENOMEM, .for_good = true}, 3,
                   100);
}

static void test_checkpoint_faults__a_call_that_fails_once(void **state)
{
    try_everywhere("eio", (fault){.kind = CALLS, .error = EIO}, 2, 30);
}

static void test_checkpoint_faults__a_disk_that_is_full_from_then_on(void **state)
{
    try_everywhere("enospc", (fault){.kind = CALLS, .error = ENOSPC, .for_good = true}, 2, 30);
}

static void test_checkpoint_faults__calls_that_are_interrupted_or_cut_short(void **state)
{
    try_everywhere("eintr", (fault){.kind = CALLS, .error = EINTR}, 1, 30);
    try_everywhere("short", (fault){.kind = SHORT_TRANSFERS, .for_good = true}, 1, 0);
}

/* -- single files --------------------------------------------------------------------------------
 */

static ms_status export_one(const char *path, uint64_t seed)
{
    const char *const name = "a-name-of-more-than-the-sixteen-bytes-a-buffer-begins-with";
    ms_tensor *t = bits_tensor(MS_DTYPE_F32, seed, 0, NUMEL);
    const ms_status status = ms_safetensors_save(path, &t, 1, &name);

    ms_tensor_free(t);
    return status;
}

/* What is there is what the outcome says, and nothing else. */
static void try_export(const char *folder, const char *path, fault f, int least)
{
    const ms_status kind = f.kind == ALLOCATIONS ? MS_OUT_OF_MEMORY : MS_IO_ERROR;
    int n = 0;

    for (bool struck = true; struck; n++) {
        assert_ok(export_one(path, SEED_OF_OLD));
        assert_int_equal(2, count_entries(folder, "")); /* the file, a link to it */
        f.countdown = n;
        armed = f;
        const ms_status status = export_one(path, SEED_OF_NEW);

        struck = armed.n_struck > 0;
        armed = (fault){0};
        assert_true(status == MS_OK || status == kind);
        assert_true(struck || status == MS_OK);
        assert_true(holds_bits(path, status == MS_OK ? SEED_OF_NEW : SEED_OF_OLD, NUMEL));
        if (!f.for_good) {
            assert_int_equal(2, count_entries(folder, ""));
        }
    }
    assert_true(n >= least);
}

static void test_checkpoint_faults__an_export_says_what_is_there(void **state)
{
    const char *folder = path_of("exports");
    const char *path = inside(folder, "link");

    assert_int_equal(0, mkdir(folder, 0777));
    assert_int_equal(0, symlink("file", path));
    spill(inside(folder, "file"), "", 0);
    ms_warnings_capture(true);
    for (int for_good = 0; for_good < 2; for_good++) {
        try_export(folder, path, (fault){ALLOCATIONS, .for_good = for_good, .error = ENOMEM}, 10);
        try_export(folder, path, (fault){CALLS, .for_good = for_good, .error = EIO}, 10);
    }
    ms_warnings_capture(false);
}

static void *allocate(size_t n)
{
    return malloc(n);
}

static void release(void *p)
{
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_faults__an_allocation_that_fails_once),
        cmocka_unit_test(test_checkpoint_faults__allocations_that_fail_for_good),
        cmocka_unit_test(test_checkpoint_faults__a_call_that_fails_once),
        cmocka_unit_test(test_checkpoint_faults__a_disk_that_is_full_from_then_on),
        cmocka_unit_test(test_checkpoint_faults__an_export_says_what_is_there),
        cmocka_unit_test(test_checkpoint_faults__calls_that_are_interrupted_or_cut_short),
    };

    json_set_alloc_funcs(allocate, release);
    return cmocka_run_group_tests_name("checkpoint/faults", tests, NULL, NULL);
}
