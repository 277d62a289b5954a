/* runtime/comm/device_segment.c: memory of one rank's device that all ranks of a group map, on the
 * device of tests/fakedevice. */
#include "device.h"
#include "group.h"
#include "rank_test.h"

#include <errno.h>
#include <fcntl.h>

enum { PART = 4096, MOST = 4 };

static ms_status open_all(ms_comm **world, msi_device **d)
{
    MS_TRY(ms_comm_world(world));
    MS_TRY(msi_memory_open(msi_context()));
    *d = msi_context()->device;
    EXPECT(*d != NULL);
    return MS_OK;
}

/* Threads are looked at when they have ended. */
static bool has_let_go(const ms_comm *world, held before)
{
    return world->job->threads || holds_no_more(before);
}

/* As threads and as processes, and nothing of it is left. */
static void run_ranks_and_look(int32_t n, rank_fn fn, void *user)
{
    const held before = held_now();

    run_ranks(n, fn, user);
    assert_true(holds_no_more(before));
}

/* -- what is seen ------------------------------------------------------------------------------ */

static bool holds(const char *p, int32_t byte)
{
    for (int32_t i = 0; i < PART; i++) {
        if ((uint8_t)p[i] != byte) {
            return false;
        }
    }
    return true;
}

/* Who may writes its part by its device. */
static ms_status write_and_read(void *user, int32_t rank)
{
    const int32_t owner = *(const int32_t *)user;
    ms_comm *world;
    msi_device *d;
    msi_segment s;

    MS_TRY(open_all(&world, &d));
    const int32_t size = ms_comm_size(world);
    const bool writes = owner == MSI_OWNER_ALL || owner == rank;

    MS_TRY(msi_segment_new_on(&s, world, d, owner, size * PART));
    EXPECT(s.nbytes == size * PART && s.device == d && s.fd == -1);
    EXPECT((s.rw != NULL) == writes);
    EXPECT((s.ro == s.rw) == (owner == rank || size == 1));
    EXPECT(holds(s.ro + rank * PART, 0xff)); /* as the device spoils it */
    MS_TRY(ms_comm_barrier(world));
    if (writes) {
        d->ops->set(d, MSI_STREAM_GATHER, s.rw + rank * PART, rank + 1, PART);
    }
    MS_TRY(msi_settle(msi_context()));
    MS_TRY(ms_comm_barrier(world));
    for (int32_t q = 0; q < size; q++) {
        EXPECT(holds(s.ro + q * PART, owner == MSI_OWNER_ALL || owner == q ? q + 1 : 0xff));
    }
    if (rank == owner) { /* what is mapped stays, whoever goes first */
        msi_segment_free(&s);
    }
    MS_TRY(ms_comm_barrier(world));
    if (rank != owner) {
        EXPECT(holds(s.ro + (owner < 0 ? 0 : owner) * PART, owner < 0 ? 1 : owner + 1));
        msi_segment_free(&s);
    }
    EXPECT(s.rw == NULL && s.ro == NULL);
    msi_segment_free(&s); /* twice is nothing */
    return ms_comm_barrier(world);
}

static void test_comm_device_segment__shows_every_rank_what_its_owner_writes(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= MOST; n++) {
        for (int32_t owner = MSI_OWNER_ALL; owner < n; owner++) {
            run_ranks_and_look(n, write_and_read, &owner);
        }
    }
}

/* Where the others are not there, what they would have written is 0. */
static ms_status read_of_nobody(void *user, int32_t rank)
{
    ms_comm *world, *fake;
    msi_device *d;
    msi_segment s;

    (void)user;
    (void)rank;
    MS_TRY(open_all(&world, &d));
    MS_TRY(ms_comm_fake(&fake, 1, 3));
    MS_TRY(msi_segment_new_on(&s, fake, d, MSI_OWNER_ALL, PART));
    EXPECT(holds(s.ro, 0));
    msi_segment_free(&s);
    ms_comm_free(fake);
    return MS_OK;
}

static void test_comm_device_segment__of_a_fake_group_is_zero(void **state)
{
    (void)state;
    run_ranks_and_look(1, read_of_nobody, NULL);
}

/* Ranks that are ahead begin the next while others end this one. */
static ms_status make_in_turn(void *user, int32_t rank)
{
    ms_comm *world;
    msi_device *d;
    msi_segment s;

    (void)user;
    (void)rank;
    MS_TRY(open_all(&world, &d));
    for (int32_t i = 0; i < (SANITIZED ? 200 : 2000); i++) {
        MS_TRY(i % 5 == 4 ? msi_segment_new(&s, world, PART)
                          : msi_segment_new_on(&s, world, d, i % 4 - 1, PART));
        msi_segment_free(&s);
    }
    return MS_OK;
}

static void test_comm_device_segment__follows_another_at_once(void **state)
{
    (void)state;
    run_ranks_and_look(3, make_in_turn, NULL);
}

/* A peer's map is one that it cannot write. */
static ms_status write_read_only(void *user, int32_t rank)
{
    ms_comm *world;
    msi_device *d;
    msi_segment s;

    (void)user;
    MS_TRY(open_all(&world, &d));
    for (int32_t owner = MSI_OWNER_ALL; owner < 2; owner++) {
        MS_TRY(msi_segment_new_on(&s, world, d, owner, PART));
        const int zero = open("/dev/zero", O_RDONLY);
        const ssize_t into_ro = read(zero, s.ro, 1);
        const int error = errno;

        close(zero);
        EXPECT(into_ro == (owner == rank ? 1 : -1));
        EXPECT(owner == rank || error == EFAULT);
        msi_segment_free(&s);
    }
    return MS_OK;
}

static void test_comm_device_segment__has_a_map_nobody_can_write(void **state)
{
    (void)state;
    run_ranks(2, write_read_only, NULL);
}

/* -- refusals ---------------------------------------------------------------------------------- */

/* Calls until the device refuses one; -1: it does not. */
static _Thread_local int32_t shares_left, attaches_left, takes_left;
static _Thread_local const msi_device_ops *real;
static _Thread_local msi_device_ops patched;

static bool refuses(int32_t *left)
{
    return *left >= 0 && (*left)-- == 0;
}

static int32_t share(msi_device *d, int64_t nbytes, void **out, int32_t *fd)
{
    return refuses(&shares_left) ? MSI_DEV_FAILED : real->share(d, nbytes, out, fd);
}

static int32_t attach(msi_device *d, int32_t fd, int64_t nbytes, bool readonly, void **out)
{
    return refuses(&attaches_left) ? MSI_DEV_NO_MEMORY : real->attach(d, fd, nbytes, readonly, out);
}

static int32_t take(msi_device *d, int64_t nbytes, int32_t place, void **out)
{
    return takes_left > 0 && takes_left-- > 0 ? MSI_DEV_NO_MEMORY
                                              : real->take(d, nbytes, place, out);
}

/* This rank's device, with functions of this test in its table. */
static void patch(msi_device *d)
{
    real = d->ops;
    patched = *real;
    patched.share = share;
    patched.attach = attach;
    patched.take = take;
    shares_left = attaches_left = -1;
    takes_left = 0;
    d->ops = &patched;
}

typedef struct refusal {
    int32_t owner, victim;
    bool shares; /* what is refused; else the n-th attach() */
    int32_t nth;
} refusal;

static ms_status be_refused(const refusal *r, ms_comm *world, msi_device *d, int32_t rank)
{
    const held before = held_now();
    msi_segment s;
    char expected[256];

    if (rank == r->victim) {
        *(r->shares ? &shares_left : &attaches_left) = r->nth;
    }
    snprintf(expected, sizeof(expected), "rank %d cannot %s a shared segment of %d bytes: %s",
             (int)r->victim, r->shares ? "reserve" : "map", 3 * PART,
             r->shares ? "device 'fake' refuses it (4)" : "device 'fake' has no memory left");
    EXPECT(msi_segment_new_on(&s, world, d, r->owner, 3 * PART) ==
           (r->shares ? MS_DEVICE_ERROR : MS_OUT_OF_MEMORY));
    EXPECT(strcmp(ms_error_message(), expected) == 0);
    EXPECT(s.rw == NULL && s.ro == NULL && s.fd == -1);
    EXPECT(has_let_go(world, before));
    MS_TRY(msi_segment_new_on(&s, world, d, r->owner, PART)); /* the group is as good as before */
    msi_segment_free(&s);
    return ms_comm_barrier(world);
}

static ms_status refuse(void *user, int32_t rank)
{
    ms_comm *world;
    msi_device *d;

    MS_TRY(open_all(&world, &d));
    patch(d);
    ms_status status = be_refused(user, world, d, rank);

    d->ops = real;
    return status;
}

static void test_comm_device_segment__fails_everywhere_when_one_device_refuses(void **state)
{
    (void)state;
    for (int32_t owner = MSI_OWNER_ALL; owner < 3; owner++) {
        refusal r = {.owner = owner, .victim = owner < 0 ? 0 : owner, .shares = true};

        run_ranks_and_look(3, refuse, &r);
        r.shares = false;
        for (r.victim = 0; r.victim < 3; r.victim++) {
            const int32_t attaches = owner >= 0      ? r.victim != owner
                                     : r.victim == 0 ? 1
                                                     : 2; /* read-only, and writable */

            for (r.nth = 0; r.nth < attaches; r.nth++) {
                run_ranks_and_look(3, refuse, &r);
            }
        }
    }
}

/* Free blocks of the heap are given back, and the device is asked once more. */
static ms_status run_short_of_memory(void *user, int32_t rank)
{
    ms_context *ctx = msi_context();
    ms_memory_stats stats;
    msi_mem_block *block;
    ms_comm *world;
    msi_device *d;
    msi_segment s;

    (void)user;
    (void)rank;
    MS_TRY(open_all(&world, &d));
    patch(d);
    MS_TRY(msi_alloc(ctx, 100 * PART, MS_MEM_SCRATCH, &block));
    msi_release(block);
    takes_left = 1;
    ms_status status = msi_segment_new_on(&s, world, d, MSI_OWNER_ALL, PART);

    msi_segment_free(&s);
    msi_memory_stats(ctx, &stats);
    takes_left = 2;
    const ms_status again = msi_segment_new_on(&s, world, d, MSI_OWNER_ALL, PART);

    d->ops = real;
    EXPECT(status == MS_OK && stats.cached == 0);
    EXPECT(again == MS_OUT_OF_MEMORY && s.rw == NULL);
    return MS_OK;
}

static void test_comm_device_segment__gives_back_what_is_free_where_memory_is_short(void **state)
{
    (void)state;
    run_ranks_and_look(1, run_short_of_memory, NULL);
}

/* -- peers that are gone ----------------------------------------------------------------------- */

/* Rank 2 fails while the others make a segment. */
static ms_status leave_the_others(void *user, int32_t rank)
{
    report *r = user;
    const double begin = ms_time();
    ms_comm *world;
    msi_device *d;
    msi_segment s;

    MS_TRY(open_all(&world, &d));
    MS_TRY(ms_comm_barrier(world));
    const held before = held_now();

    if (rank == 2) {
        return MS_FAIL(MS_VALUE_ERROR, "a mistake of its own");
    }
    report_write(&r[rank], msi_segment_new_on(&s, world, d, 0, PART), begin);
    r[rank].value = s.ro == NULL && has_let_go(world, before);
    return MS_OK;
}

static void test_comm_device_segment__is_let_go_where_a_peer_is_gone(void **state)
{
    report *r = reports_new(3);
    const char *cause;

    (void)state;
    for (int32_t forks = 0; forks <= CAN_FORK; forks++) {
        const held before = held_now();

        if (forks) {
            assert_int_equal(run_processes(3, leave_the_others, r, &cause), 1);
        } else {
            assert_int_equal(ms_dist_threads(3, leave_the_others, r), MS_VALUE_ERROR);
        }
        for (int32_t q = 0; q < 2; q++) {
            assert_int_equal(r[q].status, MS_COMM_ERROR);
            assert_non_null(strstr(r[q].message, "a mistake of its own"));
            assert_int_equal(r[q].value, 1);
        }
        assert_true(holds_no_more(before));
    }
    reports_free(r, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_device_segment__shows_every_rank_what_its_owner_writes),
        cmocka_unit_test(test_comm_device_segment__of_a_fake_group_is_zero),
        cmocka_unit_test(test_comm_device_segment__follows_another_at_once),
        cmocka_unit_test(test_comm_device_segment__has_a_map_nobody_can_write),
        cmocka_unit_test(test_comm_device_segment__fails_everywhere_when_one_device_refuses),
        cmocka_unit_test(test_comm_device_segment__gives_back_what_is_free_where_memory_is_short),
        cmocka_unit_test(test_comm_device_segment__is_let_go_where_a_peer_is_gone),
    };

    unsetenv("MS_FAKE_GUARD"); /* memory is looked at as the devices see it */
    setenv("MS_DEVICE", "fake", 1);
    return cmocka_run_group_tests_name("comm/device_segment", tests, NULL, NULL);
}
