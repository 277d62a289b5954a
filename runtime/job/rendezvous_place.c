/* Who this process is, from the variables of launchers. */
#include "job.h"
#include "rendezvous.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Variables of a launcher; NULL: it has none. */
typedef struct source {
    const char *launcher;
    const char *rank, *world, *local_rank, *local_world, *host, *n_hosts;
    const char *also_rank; /* must agree with `rank` where it is set */
    ms_status (*finish)(msi_place *p);
} source;

/* Slurm's numbers of steps that are the job's own scripts (slurm.h, SLURM_MAX_NORMAL_STEP_ID). */
#define LAST_STEP 0xfffffff0LL

static const char *text_of(const char *name)
{
    const char *text = name == NULL ? NULL : getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* -- numbers ----------------------------------------------------------------------------------- */

static bool parse_whole(const char *text, int64_t *out)
{
    char *end = NULL;

    errno = 0;
    *out = strtoll(text, &end, 10);
    return isdigit((unsigned char)text[0]) && errno == 0 && *end == '\0';
}

static ms_status read_number(const char *name, int64_t least, int64_t most, int64_t *out)
{
    const char *text = text_of(name);

    if (text == NULL || !parse_whole(text, out) || *out < least || *out > most) {
        return MS_FAIL(MS_VALUE_ERROR, "%s is '%s', expected a whole number from %lld to %lld",
                       name, text == NULL ? "" : text, (long long)least, (long long)most);
    }
    return MS_OK;
}

/* `with`: the variable that needs this one. */
static ms_status read_required(const char *name, const char *with, int64_t least, int64_t most,
                               int32_t *out)
{
    int64_t value;

    if (text_of(name) == NULL) {
        return MS_FAIL(MS_VALUE_ERROR, "%s is not set, but %s is '%s': set both, or neither", name,
                       with, text_of(with) == NULL ? "" : text_of(with));
    }
    MS_TRY(read_number(name, least, most, &value));
    *out = (int32_t)value;
    return MS_OK;
}

static ms_status read_optional(const char *name, int64_t least, int64_t most, int32_t fallback,
                               int32_t *out)
{
    int64_t value = fallback;

    if (text_of(name) != NULL) {
        MS_TRY(read_number(name, least, most, &value));
    }
    *out = (int32_t)value;
    return MS_OK;
}

/* -- the master -------------------------------------------------------------------------------- */

static ms_status set_master(msi_place *p, const char *from, const char *host, size_t nbytes,
                            int64_t port)
{
    if (nbytes == 0 || nbytes >= sizeof(p->master)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s names a host of %zu bytes, expected 1 to %zu", from,
                       nbytes, sizeof(p->master) - 1);
    }
    snprintf(p->master, sizeof(p->master), "%.*s", (int)nbytes, host);
    snprintf(p->master_from, sizeof(p->master_from), "%s", from);
    p->port = (int32_t)port;
    p->meet = MSI_MEET_MASTER;
    return MS_OK;
}

/* "host:port", "[::1]:port" */
static ms_status read_master(msi_place *p, const char *name)
{
    const char *text = text_of(name), *colon = strrchr(text, ':');
    int64_t port;

    if (colon == NULL || !parse_whole(colon + 1, &port) || port < 1 || port > 65535) {
        return MS_FAIL(MS_VALUE_ERROR, "%s is '%s', expected host:port with a port from 1 to 65535",
                       name, text);
    }
    const bool brackets = text[0] == '[' && colon[-1] == ']';

    return set_master(p, name, text + brackets, (size_t)(colon - text) - 2 * (size_t)brackets,
                      port);
}

/* Text of any length, shortened by a hash. */
static void set_run(msi_place *p, const char *text)
{
    const size_t n = strlen(text);

    if (n < sizeof(p->run)) {
        memcpy(p->run, text, n + 1);
    } else {
        snprintf(p->run, sizeof(p->run), "%.40s~%016llx", text,
                 (unsigned long long)ms_hash_bytes(text, (int64_t)n));
    }
}

/* -- launchers --------------------------------------------------------------------------------- */

static ms_status finish_plain(msi_place *p)
{
    if (text_of("MS_MASTER") == NULL) {
        set_run(p, "plain");
        return p->world == 1 ? MS_OK
                             : MS_FAIL(MS_VALUE_ERROR,
                                       "MS_MASTER is not set, but MS_WORLD is %d: set it to "
                                       "host:port of rank 0 on all ranks",
                                       (int)p->world);
    }
    set_run(p, text_of("MS_MASTER"));
    return read_master(p, "MS_MASTER");
}

static ms_status finish_torchrun(msi_place *p)
{
    const char *host = text_of("MASTER_ADDR"), *id = msi_switch_text("TORCHELASTIC_RUN_ID", "none");
    const char *restart = msi_switch_text("TORCHELASTIC_RESTART_COUNT", "0");
    char run[512];
    int32_t port;

    if (host == NULL) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "MASTER_ADDR is not set, but RANK is %d: set both, or "
                       "neither",
                       (int)p->rank);
    }
    MS_TRY(read_required("MASTER_PORT", "MASTER_ADDR", 1, 65535, &port));
    MS_TRY(set_master(p, "MASTER_ADDR and MASTER_PORT", host, strlen(host), port));
    if (strcmp(msi_switch_text("TORCHELASTIC_USE_AGENT_STORE", ""), "True") == 0) {
        p->meet = MSI_MEET_STORE;
    }
    snprintf(run, sizeof(run), "%s/%s/%d", id, restart, (int)port); /* the id may be "none" */
    set_run(p, run);
    return MS_OK;
}

static ms_status finish_mpirun(msi_place *p)
{
    if (text_of("PMIX_RANK") == NULL || text_of("PMIX_NAMESPACE") == NULL) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "%s is not set, but OMPI_COMM_WORLD_RANK is %d: use an mpirun with PMIx "
                       "(Open MPI 4 or later)",
                       text_of("PMIX_RANK") == NULL ? "PMIX_RANK" : "PMIX_NAMESPACE", (int)p->rank);
    }
    p->meet = MSI_MEET_PMIX;
    set_run(p, text_of("PMIX_NAMESPACE"));
    return MS_OK;
}

/* "2(x3),1": the number of tasks of each node. Entry `node`, or 0. */
static int32_t tasks_of_node(const char *text, int64_t node)
{
    while (text != NULL && isdigit((unsigned char)text[0])) {
        char *end;
        long tasks = strtol(text, &end, 10), times = 1;

        if (end[0] == '(' && end[1] == 'x') {
            times = strtol(end + 2, &end, 10);
            end += *end == ')';
        }
        if (node < times) {
            return tasks >= 1 && tasks <= MS_MAX_RANKS ? (int32_t)tasks : 0;
        }
        node -= times;
        text = *end == ',' ? end + 1 : NULL;
    }
    return 0;
}

/* The first of "gpu[03-07,9]n[1-2],other": gpu03n1. Returns its length. */
static size_t first_of_nodes(const char *list, char *out, size_t nbytes)
{
    size_t n = 0;

    while (*list != '\0' && *list != ',' && n + 1 < nbytes) {
        if (*list != '[') {
            out[n++] = *list++;
            continue;
        }
        for (list++; isdigit((unsigned char)*list) && n + 1 < nbytes; list++) {
            out[n++] = *list;
        }
        list += strcspn(list, "]");
        list += *list == ']';
    }
    out[n] = '\0';
    return n;
}

static ms_status finish_srun(msi_place *p)
{
    const char *const nodes = "SLURM_STEP_NODELIST", *const tasks = "SLURM_STEP_TASKS_PER_NODE";
    char first[256], run[256];
    int64_t job;

    if (p->host < 0) {
        return MS_FAIL(MS_VALUE_ERROR, "SLURM_NODEID is not set, but SLURM_PROCID is %d",
                       (int)p->rank);
    }
    p->local_world = tasks_of_node(text_of(tasks), p->host);
    if (p->local_world == 0) {
        return MS_FAIL(MS_VALUE_ERROR,
                       "%s is '%s', expected the number of tasks of node %d, as in 4(x2)", tasks,
                       msi_switch_text(tasks, ""), (int)p->host);
    }
    MS_TRY(read_number("SLURM_JOB_ID", 1, INT64_MAX, &job));
    snprintf(run, sizeof(run), "%lld.%s/%s", (long long)job, msi_switch_text("SLURM_STEP_ID", "0"),
             msi_switch_text("SLURM_RESTART_COUNT", "0"));
    set_run(p, run);
    if (text_of("PMIX_RANK") != NULL) {
        p->meet = MSI_MEET_PMIX;
        return MS_OK;
    }
    return set_master(p, nodes, first,
                      first_of_nodes(msi_switch_text(nodes, ""), first, sizeof(first)),
                      20000 + job % 20000);
}

enum { PLAIN, TORCHRUN, MPIRUN, SRUN, SOURCES };

/* The first one that applies is used. */
static const source sources[SOURCES] = {
    [PLAIN] = {"plain", "MS_RANK", "MS_WORLD", "MS_LOCAL_RANK", "MS_LOCAL_WORLD", NULL, NULL, NULL,
               finish_plain},
    [TORCHRUN] = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                  "GROUP_WORLD_SIZE", NULL, finish_torchrun},
    [MPIRUN] = {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL, "PMIX_RANK",
                finish_mpirun},
    [SRUN] = {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "SLURM_NODEID",
              "SLURM_STEP_NUM_NODES", "PMIX_RANK", finish_srun},
};

static bool is_task_of_srun(void)
{
    int64_t step;

    return text_of("SLURM_PROCID") != NULL && text_of("SLURM_STEP_ID") != NULL &&
           (!parse_whole(text_of("SLURM_STEP_ID"), &step) || step < LAST_STEP);
}

/* Launchers nest: srun and mpirun start the agents of torchrun, and srun those of mpirun. The outer
 * one's variables then number the agents. */
static void find_sources(bool applies[SOURCES])
{
    const bool torchrun = text_of("TORCHELASTIC_RUN_ID") != NULL;
    const bool mpirun = text_of("OMPI_COMM_WORLD_RANK") != NULL;
    const bool srun = is_task_of_srun();

    applies[PLAIN] = text_of("MS_RANK") != NULL || text_of("MS_WORLD") != NULL;
    /* The names are common: they count only together. */
    applies[TORCHRUN] = torchrun || (text_of("RANK") != NULL && text_of("WORLD_SIZE") != NULL &&
                                     text_of("MASTER_ADDR") != NULL);
    applies[MPIRUN] = !torchrun && (mpirun || (text_of("PMIX_RANK") != NULL && !srun));
    applies[SRUN] = srun && !torchrun && !mpirun;
}

/* -- one place --------------------------------------------------------------------------------- */

static ms_status disagree(const char *ours, const char *theirs)
{
    return MS_FAIL(MS_VALUE_ERROR,
                   "%s is %s, but %s is %s: both describe this process; unset the one that does "
                   "not",
                   ours, text_of(ours), theirs, text_of(theirs));
}

static ms_status read_rank(const source *s, msi_place *p)
{
    const bool unset = text_of(s->rank) == NULL && text_of(s->world) == NULL;
    int32_t also;

    *p = (msi_place){.host = -1, .n_hosts = -1};
    MS_TRY(read_required(s->world, unset ? s->also_rank : s->rank, 1, MS_MAX_RANKS, &p->world));
    MS_TRY(read_required(s->rank, s->world, 0, p->world - 1, &p->rank));
    MS_TRY(read_optional(s->also_rank, 0, INT32_MAX, p->rank, &also));
    return also == p->rank ? MS_OK : disagree(s->rank, s->also_rank);
}

static ms_status read_place(const source *s, msi_place *p)
{
    MS_TRY(read_rank(s, p));
    MS_TRY(read_optional(s->local_world, 1, p->world, 1, &p->local_world));
    MS_TRY(read_optional(s->n_hosts, 1, p->world, -1, &p->n_hosts));
    MS_TRY(read_optional(s->host, 0, (p->n_hosts < 0 ? p->world : p->n_hosts) - 1, -1, &p->host));
    snprintf(p->launcher, sizeof(p->launcher), "%s", s->launcher);
    snprintf(p->source, sizeof(p->source), "%s, %s", s->rank, s->world);
    MS_TRY(s->finish(p));
    return p->local_world > 1
               ? read_required(s->local_rank, s->rank, 0, p->local_world - 1, &p->local_rank)
               : read_optional(s->local_rank, 0, 0, 0, &p->local_rank);
}

ms_status msi_place_find(msi_place *out, bool *found)
{
    bool applies[SOURCES];
    const source *first = NULL;
    msi_place other;

    *found = false;
    find_sources(applies);
    for (int32_t i = 0; i < SOURCES; i++) {
        if (!applies[i]) {
            continue;
        }
        if (first == NULL) {
            first = &sources[i];
            MS_TRY(read_place(first, out));
            continue;
        }
        MS_TRY(read_rank(&sources[i], &other));
        if (other.rank != out->rank) {
            return disagree(first->rank, sources[i].rank);
        }
        if (other.world != out->world) {
            return disagree(first->world, sources[i].world);
        }
    }
    *found = first != NULL;
    return MS_OK;
}

bool msi_place_is_contiguous(const msi_place *all)
{
    for (int32_t r = 0; r < all[0].world; r++) {
        if (all[r].local_world != all[0].local_world || all[r].host != r / all[0].local_world ||
            all[r].local_rank != r % all[0].local_world) {
            return false;
        }
    }
    return true;
}
