/* Ranks that call different things: an error on all of them, naming both, before data moves. */
#include "rank_test.h"

enum { N = 8, MAX_RANKS = 3 };

/* What a call may touch, and must not when ranks disagree. */
typedef struct data {
    ms_tensor *f, *d, *small, *b;
    float f_values[MAX_RANKS * N], small_values[N];
    double d_values[N];
    uint16_t b_values[N];
} data;

typedef struct call {
    const char *text;
    ms_status (*run)(ms_comm *c, data *x, const struct call *call);
    int32_t a;
    const char *unit;
} call;

static ms_status barrier(ms_comm *c, data *x, const call *k)
{
    (void)x;
    (void)k;
    return ms_comm_barrier(c);
}

static ms_status all_gather(ms_comm *c, data *x, const call *k)
{
    (void)k;
    return ms_comm_all_gather(c, x->f, x->small);
}

static ms_status reduce_scatter(ms_comm *c, data *x, const call *k)
{
    return ms_comm_reduce_scatter(c, x->small, x->f, k->a);
}

static ms_status all_reduce_f32(ms_comm *c, data *x, const call *k)
{
    return ms_comm_all_reduce(c, x->small, k->a);
}

/* As many elements in another shape. */
static ms_status all_reduce_square(ms_comm *c, data *x, const call *k)
{
    const int64_t shape[2] = {k->a, N / k->a};
    ms_tensor *t;

    MS_TRY(ms_tensor_borrow(&t, MS_DTYPE_F32, 2, shape, x->small_values));
    ms_status status = ms_comm_all_reduce(c, t, MS_REDUCE_SUM);

    ms_tensor_free(t);
    return status;
}

static ms_status all_reduce_f64(ms_comm *c, data *x, const call *k)
{
    return ms_comm_all_reduce(c, x->d, k->a);
}

static ms_status all_reduce_more(ms_comm *c, data *x, const call *k)
{
    return ms_comm_all_reduce(c, x->f, k->a);
}

static ms_status broadcast_f32(ms_comm *c, data *x, const call *k)
{
    return ms_comm_broadcast(c, x->small, k->a);
}

static ms_status broadcast_bf16(ms_comm *c, data *x, const call *k)
{
    return ms_comm_broadcast(c, x->b, k->a);
}

static ms_status gather_bytes(ms_comm *c, data *x, const call *k)
{
    char mine[16] = {0}, all[MAX_RANKS * 16];

    (void)x;
    return msi_comm_gather_bytes(c, k->unit, mine, k->a, all);
}

static ms_status segment(ms_comm *c, data *x, const call *k)
{
    msi_segment s;

    (void)x;
    MS_TRY(msi_segment_new(&s, c, k->a));
    msi_segment_free(&s);
    return MS_OK;
}

static bool never(void *user)
{
    (void)user;
    return false;
}

/* As units do: say it, wait for words that others would store. */
static ms_status unshard(ms_comm *c, data *x, const call *k)
{
    msi_fingerprint fp = {.kind = MSI_COLL_UNSHARD,
                          .dtype = MS_DTYPE_BF16,
                          .ndim = -1,
                          .count = 64,
                          .slot = k->a / 10,
                          .generation = (uint64_t)k->a % 10};
    uint64_t seq;

    (void)x;
    msi_label_set(&fp.name, k->unit);
    MS_TRY(msi_comm_publish(c, &fp, &seq));
    return msi_comm_wait(c, seq, never, NULL);
}

/* Shapes are those of three ranks. */
static const call calls[] = {
    {"barrier()", barrier, 0, ""},
    {"all_gather(f32 (8))", all_gather, 0, ""},
    {"reduce_scatter(f32 (8), sum)", reduce_scatter, MS_REDUCE_SUM, ""},
    {"reduce_scatter(f32 (8), avg)", reduce_scatter, MS_REDUCE_AVG, ""},
    {"all_reduce(f32 (8), sum)", all_reduce_f32, MS_REDUCE_SUM, ""},
    {"all_reduce(f32 (8), max)", all_reduce_f32, MS_REDUCE_MAX, ""},
    {"all_reduce(f32 (2, 4), sum)", all_reduce_square, 2, ""},
    {"all_reduce(f32 (4, 2), sum)", all_reduce_square, 4, ""},
    {"all_reduce(f64 (8), sum)", all_reduce_f64, MS_REDUCE_SUM, ""},
    {"all_reduce(f32 (24), sum)", all_reduce_more, MS_REDUCE_SUM, ""},
    {"broadcast(f32 (8), root 0)", broadcast_f32, 0, ""},
    {"broadcast(f32 (8), root 2)", broadcast_f32, 2, ""},
    {"broadcast(bf16 (8), root 0)", broadcast_bf16, 0, ""},
    {"all_gather(16 bytes, in plan)", gather_bytes, 16, "plan"},
    {"all_gather(12 bytes, in plan)", gather_bytes, 12, "plan"},
    {"all_gather(16 bytes, in clip)", gather_bytes, 16, "clip"},
    {"segment(4096 bytes)", segment, 4096, ""},
    {"unshard(bf16, 64 elements, unit 'h.0', slot 1, generation 2)", unshard, 12, "h.0"},
    {"unshard(bf16, 64 elements, unit 'h.1', slot 1, generation 2)", unshard, 12, "h.1"},
    {"unshard(bf16, 64 elements, unit 'h.0', slot 2, generation 2)", unshard, 22, "h.0"},
    {"unshard(bf16, 64 elements, unit 'h.0', slot 1, generation 3)", unshard, 13, "h.0"},
};

typedef struct match {
    const call *most, *odd; /* what all ranks but `odd_rank` call, and what that one calls */
    int32_t odd_rank;
    report *reports;
    bool *moved;
} match;

static ms_status make_data(data *x)
{
    const int64_t n = N, all = MAX_RANKS * N;

    for (int32_t i = 0; i < MAX_RANKS * N; i++) {
        x->f_values[i] = 7;
        x->small_values[i % N] = 7;
        x->d_values[i % N] = 7;
        x->b_values[i % N] = 0x40e0; /* 7 */
    }
    MS_TRY(ms_tensor_borrow(&x->f, MS_DTYPE_F32, 1, &all, x->f_values));
    MS_TRY(ms_tensor_borrow(&x->small, MS_DTYPE_F32, 1, &n, x->small_values));
    MS_TRY(ms_tensor_borrow(&x->d, MS_DTYPE_F64, 1, &n, x->d_values));
    return ms_tensor_borrow(&x->b, MS_DTYPE_BF16, 1, &n, x->b_values);
}

static bool has_moved(const data *x)
{
    bool moved = false;

    for (int32_t i = 0; i < MAX_RANKS * N; i++) {
        moved = moved || x->f_values[i] != 7 || x->small_values[i % N] != 7 ||
                x->d_values[i % N] != 7 || x->b_values[i % N] != 0x40e0;
    }
    return moved;
}

static ms_status differ(void *user, int32_t rank)
{
    const match *m = user;
    const call *mine = rank == m->odd_rank ? m->odd : m->most;
    ms_comm *world;
    data x;

    MS_TRY(ms_comm_world(&world));
    MS_TRY(make_data(&x));
    MS_TRY(ms_comm_barrier(world));
    MS_TRY(ms_comm_barrier(world));
    double begin = ms_time();

    report_write(&m->reports[rank], mine->run(world, &x, mine), begin);
    m->moved[rank] = has_moved(&x);
    ms_tensor_free(x.f);
    ms_tensor_free(x.small);
    ms_tensor_free(x.d);
    ms_tensor_free(x.b);
    return MS_OK;
}

static void assert_named(const match *m, int32_t n)
{
    for (int32_t r = 0; r < n; r++) {
        const report *told = &m->reports[r];

        if (told->status != MS_COMM_ERROR || told->seconds > SOON_S || m->moved[r] ||
            strstr(told->message, "collective mismatch at sequence 3: rank ") == NULL ||
            strstr(told->message, m->most->text) == NULL ||
            strstr(told->message, m->odd->text) == NULL) {
            fail_msg("%s against %s by rank %d: rank %d got %s after %.3f s%s: '%s'", m->most->text,
                     m->odd->text, (int)m->odd_rank, (int)r, ms_status_name(told->status),
                     told->seconds, m->moved[r] ? ", data moved" : "", told->message);
        }
    }
}

/* Each call against the next one, and the last against the first. */
static void test_comm_mismatch__is_found_before_data_moves(void **state)
{
    match m = {.reports = reports_new(MAX_RANKS)};
    report *shared = reports_new(1);

    (void)state;
    m.moved = (bool *)(void *)shared;
    for (int32_t i = 0; i < MSI_COUNT(calls); i++) {
        for (int32_t processes = 0; processes <= CAN_FORK; processes++) {
            const char *cause = "";

            m.most = &calls[i];
            m.odd = &calls[(i + 1) % MSI_COUNT(calls)];
            m.odd_rank = i % MAX_RANKS;
            memset(m.reports, 0, sizeof(report) * MAX_RANKS);
            if (processes) {
                assert_int_not_equal(run_processes(MAX_RANKS, differ, &m, &cause), 0);
            } else {
                assert_int_equal(ms_dist_threads(MAX_RANKS, differ, &m), MS_COMM_ERROR);
                cause = ms_error_message();
            }
            assert_non_null(strstr(cause, "collective mismatch at sequence 3"));
            assert_named(&m, MAX_RANKS);
        }
    }
    reports_free(shared, 1);
    reports_free(m.reports, MAX_RANKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_mismatch__is_found_before_data_moves),
    };

    return cmocka_run_group_tests_name("comm/mismatch", tests, NULL, NULL);
}
