/* Assigning cores to ranks. Ranks that share a core slow each other down, so each gets its own: at
 * its start an equal part of the cores that the job may use, and when it has a card an equal part
 * of those of the card's NUMA node. */
#include "job.h"

#include "device.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096, PATH = 512 };

typedef struct core {
    int32_t first; /* of its hardware threads */
    int32_t number;
} core;

int32_t msi_cores_allowed(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int32_t list(const cpu_set_t *set, core *cores)
{
    int32_t n = 0;

    for (int32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, set)) {
            cores[n++] = (core){.first = cpu, .number = cpu};
        }
    }
    return n;
}

/* Part i of n of them, in their order. False, and all: there are fewer than n. */
static bool take_part(cpu_set_t *out, const core *cores, int32_t n_cores, int32_t i, int32_t n)
{
    const bool enough = n <= n_cores;

    CPU_ZERO(out);
    for (int32_t k = enough ? i * n_cores / n : 0; k < (enough ? (i + 1) * n_cores / n : n_cores);
         k++) {
        CPU_SET(cores[k].number, out);
    }
    return enough;
}

static bool part_of(cpu_set_t *out, const cpu_set_t *allowed, int32_t rank, int32_t n)
{
    core cores[CPU_SETSIZE];

    return take_part(out, cores, list(allowed, cores), rank, n);
}

void msi_cores_pin(int32_t rank, int32_t world)
{
    cpu_set_t allowed, mine;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
        part_of(&mine, &allowed, rank, world)) {   /* else leave sharing to the scheduler */
        sched_setaffinity(0, sizeof(mine), &mine); /* optional: only affects speed */
    }
}

/* -- near a card ------------------------------------------------------------------------------- */

static bool read_line(const char *sys, const char *file, char line[LINE])
{
    char path[PATH];

    snprintf(path, sizeof(path), "%s/%s", sys, file);
    FILE *f = fopen(path, "re");

    if (f == NULL) {
        return false;
    }
    const bool found = fgets(line, LINE, f) != NULL;

    fclose(f);
    return found;
}

/* The NUMA node of the card at a PCI address; -1: unknown. */
static int32_t node_of(const char *sys, const char *bus)
{
    char file[128], line[LINE];
    const int n = snprintf(file, sizeof(file), "bus/pci/devices/%.32s/numa_node", bus);

    for (int i = 0; i < n; i++) {
        file[i] = (char)tolower((unsigned char)file[i]); /* drivers write "0000:3B:00.0" */
    }
    return bus[0] != '\0' && read_line(sys, file, line) ? atoi(line) : -1;
}

/* A list such as "0-15,32-47". */
static bool read_node(const char *sys, int32_t node, cpu_set_t *out)
{
    char file[128], line[LINE], *at = line;

    CPU_ZERO(out);
    snprintf(file, sizeof(file), "devices/system/node/node%d/cpulist", (int)node);
    if (!read_line(sys, file, line)) {
        return false;
    }
    do {
        const long first = strtol(at + (*at == ','), &at, 10);
        const long last = *at == '-' ? strtol(at + 1, &at, 10) : first;

        for (long cpu = first; cpu >= 0 && cpu <= last && cpu < CPU_SETSIZE; cpu++) {
            CPU_SET((int)cpu, out);
        }
    } while (*at == ',');
    return true;
}

static int compare(const void *a, const void *b)
{
    const core *x = a, *y = b;

    return x->first != y->first ? (x->first > y->first) - (x->first < y->first)
                                : (x->number > y->number) - (x->number < y->number);
}

/* Hardware threads of one core become neighbours, so that only a core at a cut is shared. */
static void sort_by_core(const char *sys, core *cores, int32_t n)
{
    char file[128], line[LINE];

    for (int32_t k = 0; k < n; k++) {
        snprintf(file, sizeof(file), "devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 (int)cores[k].number);
        cores[k].first = read_line(sys, file, line) ? atoi(line) : cores[k].number;
    }
    qsort(cores, (size_t)n, sizeof(*cores), compare);
}

bool msi_cores_near(cpu_set_t *out, const char *sys, const cpu_set_t *allowed, msi_bus_of bus,
                    int32_t rank, int32_t n)
{
    core cores[CPU_SETSIZE];
    cpu_set_t of_node;
    char text[MSI_BUS_TEXT];
    int32_t node[n], before = 0, sharing = 0;

    for (int32_t q = 0; q < n; q++) {
        node[q] = bus(q, text) ? node_of(sys, text) : -1;
    }
    if (node[rank] < 0 || !read_node(sys, node[rank], &of_node)) {
        return false;
    }
    for (int32_t q = 0; q < n; q++) {
        sharing += node[q] == node[rank];
        before += node[q] == node[rank] && q < rank;
    }
    CPU_AND(&of_node, &of_node, allowed);
    const int32_t n_cores = list(&of_node, cores);

    sort_by_core(sys, cores, n_cores);
    (void)take_part(out, cores, n_cores, before, sharing);
    return n_cores > 0;
}

/* Threads that have the cores `from`: the caller, and those that it has started. */
static void move_threads(const cpu_set_t *from, const cpu_set_t *to)
{
    DIR *tasks = opendir("/proc/self/task");
    cpu_set_t set;

    for (const struct dirent *e; tasks != NULL && (e = readdir(tasks)) != NULL;) {
        const pid_t id = (pid_t)atoi(e->d_name);

        if (id > 0 && sched_getaffinity(id, sizeof(set), &set) == 0 && CPU_EQUAL(&set, from)) {
            sched_setaffinity(id, sizeof(*to), to);
        }
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
}

void msi_cores_follow(const msi_dist *d, const char *sys, msi_bus_of bus, int32_t index)
{
    char own[MSI_BUS_TEXT], usual[MSI_BUS_TEXT];
    cpu_set_t now, pinned, near;

    if (d == NULL || d->job == NULL) {
        return;
    }
    const msi_block *b = d->job->block;
    const int32_t rank = d->rank - b->first;
    const bool is_pinned = d->launcher != MSI_LAUNCHER_NONE &&
                           d->launcher != MSI_LAUNCHER_ELSEWHERE &&
                           part_of(&pinned, &b->allowed, rank, b->n_local) &&
                           sched_getaffinity(0, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &pinned);

    if (is_pinned && bus(index, own) && bus(rank, usual) && strcmp(own, usual) == 0 &&
        msi_cores_near(&near, sys, &b->allowed, bus, rank, b->n_local)) {
        move_threads(&pinned, &near);
    }
}
