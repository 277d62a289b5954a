/* runtime/job/affinity.c: cores near a card, by made folders in place of /sys. */
#include "launch_test.h"

#include "device.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static char sys[256];

static void write_line(const char *text, const char *format, int32_t number)
{
    char path[256];
    int n = snprintf(path, sizeof(path), "%s/", sys);

    snprintf(path + n, sizeof(path) - (size_t)n, format, number);
    for (char *at = path + n - 1; at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        (void)mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fprintf(f, "%s\n", text);
    fclose(f);
}

static void write_card(int32_t index, const char *node)
{
    write_line(node, "bus/pci/devices/0000:a%x:00.0/numa_node", index);
}

static void write_node(int32_t node, const char *cores)
{
    write_line(cores, "devices/system/node/node%d/cpulist", node);
}

static bool bus(int32_t index, char *text)
{
    snprintf(text, MSI_BUS_TEXT, "0000:A%X:00.0", (unsigned)index);
    return index < 5;
}

static uint32_t near(uint32_t allowed, int32_t rank, int32_t n)
{
    cpu_set_t from, to;
    uint32_t found = 0;

    CPU_ZERO(&from);
    for (int32_t cpu = 0; cpu < 32; cpu++) {
        if ((allowed >> cpu & 1) != 0) {
            CPU_SET(cpu, &from);
        }
    }
    if (!msi_cores_near(&to, sys, &from, bus, rank, n)) {
        return 0;
    }
    for (int32_t cpu = 0; cpu < 32; cpu++) {
        found |= CPU_ISSET(cpu, &to) ? 1u << cpu : 0;
    }
    return found;
}

/* Two nodes, each with two cores of two hardware threads. */
static void test_job_affinity__shares_a_node_among_its_cards(void **state)
{
    static const char *const nodes[] = {"1", "0", "1", "-1"};

    (void)state;
    for (int32_t i = 0; i < 4; i++) {
        write_card(i, nodes[i]);
    }
    write_node(0, "0-1,4-5");
    write_node(1, "2-3,6-7");
    for (int32_t cpu = 0; cpu < 8; cpu++) {
        write_line((const char *[]){"0,4", "1,5", "2,6", "3,7"}[cpu % 4],
                   "devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    }
    assert_int_equal(near(0xff, 0, 6), 1 << 2 | 1 << 6);
    assert_int_equal(near(0xff, 2, 6), 1 << 3 | 1 << 7);
    assert_int_equal(near(0xff, 1, 6), 0x33);
    assert_int_equal(near(0x77, 2, 6), 1 << 6); /* of the allowed ones */
    assert_int_equal(near(0x04, 2, 6), 1 << 2); /* too few: both have it */
    assert_int_equal(near(0x33, 0, 6), 0);      /* none */
    assert_int_equal(near(0xff, 3, 6), 0);      /* no node */
    assert_int_equal(near(0xff, 4, 6), 0);      /* no such file */
    assert_int_equal(near(0xff, 5, 6), 0);      /* no address */
}

static void *sleep_on(void *id)
{
    atomic_store((_Atomic int32_t *)id, (int32_t)gettid());
    pause();
    return NULL;
}

static bool has_cores(int32_t id, const cpu_set_t *cores)
{
    cpu_set_t set;

    return sched_getaffinity(id, sizeof(set), &set) == 0 && CPU_EQUAL(&set, cores);
}

/* Both ranks' cards are at the other's cores; the second has chosen its own. */
static ms_status follow(void *user, int32_t rank)
{
    const cpu_set_t *parts = user;
    _Atomic int32_t other = 0;
    pthread_t thread;
    ms_comm *world;

    MS_TRY(ms_comm_world(&world));
    EXPECT(has_cores(0, &parts[rank]));
    EXPECT(pthread_create(&thread, NULL, sleep_on, (void *)&other) == 0);
    while (atomic_load(&other) == 0) {
    }
    msi_cores_follow(msi_dist_peek(), sys, bus, 1 - rank); /* a card that is not its own */
    EXPECT(has_cores(0, &parts[rank]));
    EXPECT(rank == 0 || sched_setaffinity(0, sizeof(parts[2]), &parts[2]) == 0);
    msi_cores_follow(msi_dist_peek(), sys, bus, rank);
    EXPECT(has_cores(0, rank == 0 ? &parts[1] : &parts[2]));
    EXPECT(has_cores(other, &parts[1]));
    return MS_OK;
}

static void write_cores(int32_t node, const cpu_set_t *set)
{
    char text[1024] = "";

    for (int32_t cpu = 0, n = 0; cpu < CPU_SETSIZE && n < 1000; cpu++) {
        if (CPU_ISSET(cpu, set)) {
            n += snprintf(text + n, sizeof(text) - (size_t)n, n > 0 ? ",%d" : "%d", (int)cpu);
        }
    }
    write_node(node, text);
}

static void test_job_affinity__moves_a_rank_and_its_threads(void **state)
{
    cpu_set_t parts[3]; /* of the ranks, and both */
    const char *cause;
    int32_t seen = 0;

    (void)state;
    if (msi_cores_allowed() < 2) {
        skip();
    }
    CPU_ZERO(&parts[0]);
    CPU_ZERO(&parts[1]);
    assert_int_equal(sched_getaffinity(0, sizeof(parts[2]), &parts[2]), 0);
    for (int32_t cpu = 0, n = CPU_COUNT(&parts[2]); cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &parts[2])) {
            CPU_SET(cpu, &parts[seen++ >= n / 2]);
        }
    }
    write_cores(0, &parts[1]);
    write_cores(1, &parts[0]);
    write_card(0, "0");
    write_card(1, "1");
    if (run_processes(2, follow, parts, &cause) != 0) {
        fail_msg("%s", cause);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_affinity__shares_a_node_among_its_cards),
        cmocka_unit_test(test_job_affinity__moves_a_rank_and_its_threads),
    };

    strcpy(sys, temp_path("sys"));
    return cmocka_run_group_tests_name("job/affinity", tests, NULL, NULL);
}
