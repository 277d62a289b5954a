/* A host waits for its device, which waits for a word that no rank posts: every such wait ends with
 * an error after MS_COMM_TIMEOUT. The jobs run side by side. */
#include "rank_test.h"

#include "device.h"
#include "moonshard/ops.h"
#include "tensor.h"

#include <pthread.h>
#include <time.h>

enum { LARGE = 1 << 18 /* floats: an allocation of its own */, TIMES = 4 };

enum { SETTLE, READ, TRIM, RELEASE, LEAVE, CLOSE, SLOW, WAYS };

typedef struct scene {
    pthread_t thread;
    report report;
    int32_t way;
    ms_status status;      /* of the job */
    _Atomic uint64_t word; /* awaited by rank 0's device */
    _Atomic bool is_over;
} scene;

static void sleep_ms(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static ms_status release_borrowed(void)
{
    static float host[4];
    ms_tensor *t;

    MS_TRY(ms_tensor_borrow(&t, MS_DTYPE_F32, 1, (const int64_t[]){4}, host));
    ms_tensor_free(t);
    return MS_OK;
}

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

/* Ways that return no status leave their error to the next settle, and to the one after. */
static ms_status wait_for_device(int32_t way)
{
    switch (way) {
    case READ:
        return read_a_value();
    case TRIM:
        ms_memory_trim();
        break;
    case RELEASE:
        MS_TRY(release_borrowed());
        break;
    case LEAVE:
        return ms_dist_leave();
    case CLOSE:
        return ms_close();
    default:
        break;
    }
    EXPECT(msi_settle(msi_context()) == MS_COMM_ERROR);
    return msi_settle(msi_context());
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
    if (rank == 1) { /* leaves at once in TRIM; else does nothing until rank 0 is done */
        ms_tensor_free(t);
        while (s->way != TRIM && !atomic_load(&s->is_over)) {
            sleep_ms(1);
        }
        return MS_OK;
    }
    msi_device *d = msi_context()->device;
    const double begin = ms_time();

    EXPECT(d->ops->await(d, MSI_STREAM_COMPUTE, &word, 1, 1) == MSI_DEV_OK);
    ms_tensor_free(t);
    report_write(&s->report, wait_for_device(s->way), begin);
    atomic_store(&s->is_over, true);
    return MS_OK;
}

/* Rank 1 posts TIMES words. Together that takes longer than the limit, each alone does not. */
static ms_status post_slowly(void *user, int32_t rank)
{
    scene *s = user;
    _Atomic uint64_t *word = &s->word;
    ms_comm *world;
    ms_tensor *t;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(ms_tensor_full(&t, MS_DTYPE_F32, 0, NULL, 1));
    MS_TRY(ms_comm_barrier(world));
    for (uint64_t i = 1; i <= TIMES; i++) {
        if (rank == 1) {
            sleep_ms(300);
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

static void *run(void *user)
{
    scene *s = user;

    s->status = ms_dist_threads(2, s->way == SLOW ? post_slowly : wait_for_nobody, s);
    ms_close();
    return NULL;
}

static void test_comm_device_wait__ends_by_the_limit_unless_a_step_was_made(void **state)
{
    static scene scenes[WAYS];

    (void)state;
    for (int32_t i = 0; i < WAYS; i++) {
        scenes[i].way = i;
        assert_int_equal(pthread_create(&scenes[i].thread, NULL, run, &scenes[i]), 0);
    }
    for (int32_t i = 0; i < WAYS; i++) {
        pthread_join(scenes[i].thread, NULL);
    }
    for (int32_t i = 0; i < SLOW; i++) {
        const report *r = &scenes[i].report;

        if (r->status != MS_COMM_ERROR || strstr(r->message, "no progress for 1 s") == NULL ||
            r->seconds > 1 + SOON_S) {
            fail_msg("way %d: %s after %.3f s: '%s'", (int)i, ms_status_name(r->status), r->seconds,
                     r->message);
        }
    }
    assert_int_equal(scenes[SLOW].status, MS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_device_wait__ends_by_the_limit_unless_a_step_was_made),
    };

    setenv("MS_DEVICE", "fake", 1);
    setenv("MS_COMM_TIMEOUT", "1", 1);
    return cmocka_run_group_tests_name("comm/device_wait", tests, NULL, NULL);
}
