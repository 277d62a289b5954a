/* Waits of a host for its device, which waits for a rank that does nothing: whatever asks for them,
 * they are announced, and end. */
#include "rank_test.h"

#include "device.h"
#include "group.h"
#include "moonshard/ops.h"
#include "tensor.h"

#include <time.h>

enum { RANKS = 2, LARGE = 1 << 18 /* floats: a piece of its own */ };

enum { SETTLE, READ, TRIM, RELEASE, LEAVE, CLOSE, WAYS };

typedef struct scene {
    report report[RANKS];
    int32_t way;
    bool gone;             /* the other rank has left; else it stands still */
    _Atomic uint64_t word; /* that rank 0's device awaits, and that nobody posts */
    _Atomic int32_t is_over;
    char warning[1024];
} scene;

static scene *scene_new(void)
{
    void *p = mmap(NULL, sizeof(scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(p != MAP_FAILED);
    return p;
}

static void keep_warning(scene *s)
{
    const char *kind, *message;

    if (ms_warning_take(&kind, &message)) {
        snprintf(s->warning, sizeof(s->warning), "%s", message);
    }
}

static void release_borrowed(void)
{
    static float host[4];
    ms_tensor *t;

    if (ms_tensor_borrow(&t, MS_DTYPE_F32, 1, (const int64_t[]){4}, host) == MS_OK) {
        ms_tensor_free(t);
    }
}

/* Of what is enqueued behind what nobody posts. */
static ms_status read_a_value(void)
{
    ms_tensor *t;
    double value;

    MS_TRY(ms_tensor_full(&t, MS_DTYPE_F32, 0, NULL, 1));
    EXPECT(ms_tensor_to_doubles(t, &value, 1) == MS_COMM_ERROR);
    const ms_status again = ms_tensor_to_doubles(t, &value, 1);

    ms_tensor_free(t);
    return again;
}

/* Wait in that way. Where the wait has no error to give, whoever settles next is told, and again.
 */
static ms_status wait_for_device(int32_t way)
{
    switch (way) {
    case SETTLE:
        break;
    case READ:
        return read_a_value();
    case TRIM:
        ms_memory_trim();
        break;
    case RELEASE:
        release_borrowed();
        break;
    case LEAVE:
        return ms_dist_leave();
    default:
        return ms_close();
    }
    EXPECT(msi_settle(msi_context()) == MS_COMM_ERROR);
    return msi_settle(msi_context());
}

static ms_status stand_still(scene *s)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    while (!s->gone && atomic_load(&s->is_over) == 0) {
        nanosleep(&moment, NULL);
    }
    return MS_OK;
}

static ms_status wait_for_nobody(void *user, int32_t rank)
{
    scene *s = user;
    _Atomic uint64_t *word = &s->word;
    ms_comm *world;
    ms_tensor *t;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_tensor_full(&t, MS_DTYPE_F32, 1, (const int64_t[]){LARGE}, 1));
    MS_TRY(ms_comm_barrier(world));
    if (rank == 1) {
        ms_tensor_free(t);
        return stand_still(s);
    }
    msi_device *d = msi_context()->device;
    const double begin = ms_time();

    ms_warnings_capture(true);
    EXPECT(d->ops->await(d, MSI_STREAM_COMPUTE, &word, 1, 1) == MSI_DEV_OK);
    ms_tensor_free(t);
    report_write(&s->report[0], wait_for_device(s->way), begin);
    keep_warning(s);
    ms_warnings_capture(false);
    atomic_store(&s->is_over, 1);
    return MS_OK;
}

static void run(scene *s)
{
    static const char expected[] = "no progress for 2 s (MS_COMM_TIMEOUT)";

    (void)ms_dist_threads(RANKS, wait_for_nobody, s);
    const report *r = &s->report[0];

    if (r->status != MS_COMM_ERROR || strstr(r->message, expected) == NULL ||
        r->seconds > 2 + SOON_S) {
        fail_msg("way %d: %s after %.3f s: '%s', expected '%s'", (int)s->way,
                 ms_status_name(r->status), r->seconds, r->message, expected);
    }
}

static void test_comm_device_wait__ends_by_the_limit_whatever_waits(void **state)
{
    (void)state;
    for (int32_t i = 0; i < WAYS; i++) {
        scene *s = scene_new();

        s->way = i;
        s->gone = i == TRIM;
        run(s);
        munmap(s, sizeof(*s));
    }
}

static void test_comm_device_wait__is_announced(void **state)
{
    static const char expected[] = "rank 0 has waited 1 s in barrier (sequence 1) for rank 1; last "
                                   "calls: rank 1: barrier() (sequence 1)";
    scene *s = scene_new();

    (void)state;
    setenv("MS_COMM_ANNOUNCE", "1", 1);
    run(s);
    unsetenv("MS_COMM_ANNOUNCE");
    if (strstr(s->warning, expected) == NULL) {
        fail_msg("'%s' does not contain '%s'", s->warning, expected);
    }
    munmap(s, sizeof(*s));
}

/* -- a wait that gets on ------------------------------------------------------------------------
 */

enum { TIMES = 8 };

/* Rank 1 posts now and then what rank 0 awaits: in all that takes longer than the limit. */
static ms_status post_slowly(void *user, int32_t rank)
{
    const struct timespec moment = {.tv_nsec = 400000000};
    scene *s = user;
    _Atomic uint64_t *word = &s->word;
    ms_comm *world;
    ms_tensor *t;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_tensor_full(&t, MS_DTYPE_F32, 0, NULL, 1));
    MS_TRY(ms_comm_barrier(world));
    for (uint64_t i = 1; i <= TIMES; i++) {
        if (rank == 1) {
            nanosleep(&moment, NULL);
            atomic_store(word, i);
        } else {
            msi_device *d = msi_context()->device;

            EXPECT(d->ops->await(d, MSI_STREAM_COMPUTE, &word, 1, i) == MSI_DEV_OK);
        }
    }
    MS_TRY(msi_settle(msi_context()));
    ms_tensor_free(t);
    return ms_comm_barrier(world);
}

static void test_comm_device_wait__has_the_limit_for_each_step_on(void **state)
{
    scene *s = scene_new();

    (void)state;
    if (ms_dist_threads(RANKS, post_slowly, s) != MS_OK) {
        fail_msg("%s", ms_error_message());
    }
    munmap(s, sizeof(*s));
}

static int use_device(void **state)
{
    (void)state;
    return setenv("MS_DEVICE", "fake", 1) | setenv("MS_COMM_TIMEOUT", "2", 1);
}

static int leave_device(void **state)
{
    (void)state;
    return unsetenv("MS_DEVICE") | unsetenv("MS_COMM_TIMEOUT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_device_wait__ends_by_the_limit_whatever_waits),
        cmocka_unit_test(test_comm_device_wait__is_announced),
        cmocka_unit_test(test_comm_device_wait__has_the_limit_for_each_step_on),
    };

    return cmocka_run_group_tests_name("comm/device_wait", tests, use_device, leave_device);
}
