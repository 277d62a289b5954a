/* Every allocation and every system call of saving and loading fails, one after the other, once and
 * from there on, alone and on either of two ranks: an error on all ranks, nothing lost, nothing
 * half loaded, and the next save and load work. Jansson is given the same allocator as
 * everybody. */
#include "ckpt_test.h"
#include "faulty_calls.h"
#include "manifest.h"

#include <errno.h>
#include <jansson.h>
#include <stdatomic.h>

/* -- what is saved and loaded ------------------------------------------------------------------ */

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

static ms_status load_parts(ms_checkpoint_loader *l, part *p)
{
    for (int i = 0; i < N_TENSORS; i++) {
        const ms_status status = ms_checkpoint_load_add(l, keys[i], &p->extent, p->t[i]);

        if (status != MS_OK) {
            ms_checkpoint_load_fail(l, status, ms_error_message());
        }
    }
    return ms_checkpoint_load_commit(l);
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
    return load_parts(l, p);
}

/* -- one try ----------------------------------------------------------------------------------- */

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
            const int step = (world == 1 ? 1 : stride) * (SANITIZED ? 3 : 1);
            const int few = victim == 0 ? least : least / 4;
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

/* -- folders named by steps -------------------------------------------------------------------- */

/* Save, and keep two, as a run does all the time. */
static ms_status save_step(const char *root, int64_t step, const part *p)
{
    char meta[64];
    ms_comm *self;

    snprintf(meta, sizeof(meta), "{\"step\":%lld}", (long long)step);
    MS_TRY(ms_comm_self(&self));
    MS_TRY(save(self, root, ms_checkpoint_step_name(step), p, meta));
    return ms_checkpoint_rotate(root, step, 2);
}

/* What a run would go on from. @return its step */
static int64_t load_step(const char *root, part *seen)
{
    ms_checkpoint_loader *l;
    ms_comm *self;
    int step;

    assert_ok(ms_comm_self(&self));
    assert_ok(ms_checkpoint_load_latest_step(&l, self, root));
    assert_int_equal(
        1, sscanf(ms_checkpoint_meta(ms_checkpoint_load_source(l)), "{\"step\":%d}", &step));
    assert_ok(load_parts(l, seen));
    return step;
}

/* One call after the other fails: the step is saved, or the one before it is there. */
static void try_steps(const char *root, fault f, int stride, const part *p, part *seen)
{
    const ms_status kind = f.kind == ALLOCATIONS ? MS_OUT_OF_MEMORY : MS_IO_ERROR;
    int64_t step = 1;
    int n = 0;

    assert_ok(save_step(root, step, &p[step % 2]));
    for (bool struck = true; struck; n++) {
        assert_true(n < 3000);
        f.countdown = n * stride;
        armed = f;
        const ms_status status = save_step(root, step + 1, &p[(step + 1) % 2]);

        struck = armed.n_struck > 0;
        armed = (fault){0};
        assert_true(status == MS_OK || status == kind);
        assert_true(struck || status == MS_OK);
        const int64_t there = load_step(root, seen);

        /* it may be saved and what is older not removed, which is an error, too */
        if (there != step + 1 && (there != step || status == MS_OK)) {
            fail_msg("kind %d, call %d%s: %s, step %lld is there, expected %lld", f.kind,
                     f.countdown, f.for_good ? " and all later ones" : "", ms_status_name(status),
                     (long long)there, (long long)step + 1);
        }
        assert_true(part_equals(seen, &p[there % 2]));
        step = there;
        if (count_entries(root, "step-") > 2) { /* or each try would have more to look through */
            assert_ok(ms_checkpoint_rotate(root, step, 2));
        }
    }
    assert_true(step > 5 && n * stride > 50);
    assert_ok(save_step(root, step + 1, &p[(step + 1) % 2]));
    assert_int_equal(2, count_entries(root, "step-"));
}

static void test_checkpoint_faults__steps_are_saved_or_the_one_before_is_there(void **state)
{
    ms_comm *self;

    assert_ok(ms_comm_self(&self));
    part p[2] = {part_new(self, SEED_OF_OLD), part_new(self, SEED_OF_NEW)};
    part seen = part_new(self, SEED_OF_NOTHING);

    ms_warnings_capture(true);
    for (int for_good = 0; for_good < 2; for_good++) {
        try_steps(path_of(for_good ? "steps-memory-gone" : "steps-memory"),
                  (fault){ALLOCATIONS, .for_good = for_good, .error = ENOMEM}, for_good ? 7 : 2, p,
                  &seen);
        try_steps(path_of(for_good ? "steps-disk-gone" : "steps-disk"),
                  (fault){CALLS, .for_good = for_good, .error = EIO}, 1, p, &seen);
    }
    ms_warnings_capture(false);
    part_dispose(&p[0]);
    part_dispose(&p[1]);
    part_dispose(&seen);
}

/* -- single files ------------------------------------------------------------------------------ */

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

/* Some file systems say only at a close what they could not keep. */
static void test_checkpoint_faults__a_file_that_closing_loses_is_not_saved(void **state)
{
    const char *root = path_of("lost"), *const some[] = {"rank-00000", MSI_MANIFEST_NAME};
    const char *file = inside(root, "export");
    ms_comm *self;

    assert_ok(ms_comm_self(&self));
    part old = part_new(self, SEED_OF_OLD), new = part_new(self, SEED_OF_NEW);
    part seen = part_new(self, SEED_OF_NOTHING);

    assert_ok(save(self, root, "best", &old, META(1)));
    for (size_t i = 0; i < sizeof(some) / sizeof(*some); i++) {
        lost = some[i];
        assert_fails(MS_IO_ERROR, some[i], save(self, root, "best", &new, META(2)));
        lost = NULL;
        assert_int_equal(0, count_entries(root, ".tmp-"));
        assert_ok(load(self, root, &seen, false));
        assert_true(part_equals(&seen, &old));
    }
    assert_ok(export_one(file, SEED_OF_OLD));
    lost = "export";
    assert_fails(MS_IO_ERROR, "export", export_one(file, SEED_OF_NEW));
    lost = NULL;
    assert_int_equal(0, count_entries(root, ".tmp-"));
    assert_true(holds_bits(file, SEED_OF_OLD, NUMEL));
    part_dispose(&old);
    part_dispose(&new);
    part_dispose(&seen);
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
        cmocka_unit_test(test_checkpoint_faults__steps_are_saved_or_the_one_before_is_there),
        cmocka_unit_test(test_checkpoint_faults__an_export_says_what_is_there),
        cmocka_unit_test(test_checkpoint_faults__a_file_that_closing_loses_is_not_saved),
        cmocka_unit_test(test_checkpoint_faults__calls_that_are_interrupted_or_cut_short),
    };

    json_set_alloc_funcs(allocate, release);
    return cmocka_run_group_tests_name("checkpoint/faults", tests, NULL, NULL);
}
