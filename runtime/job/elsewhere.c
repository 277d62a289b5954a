/* Ranks that another launcher started: torchrun, mpirun, srun, or a person.
 *
 * They meet (rendezvous.h). Of each host, local rank 0 makes the control block, meets the other
 * hosts (agent.h), and forks a process that watches this host's ranks in place of a launcher. It
 * outlives them, so that a rank that dies is reported. Descriptors go to the other local ranks. */
#include "elsewhere.h"

#include "agent.h"
#include "rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAIT_S = 60, GRACE_MS = 1000 };

/* -- watching the ranks of this host ----------------------------------------------------------- */

typedef struct watcher {
    msi_job *job;
    msi_agent *agent; /* NULL: one host */
    int32_t *pidfd;   /* (n_local); -1: it has ended */
    int32_t alive;
} watcher;

static bool has_failed(const watcher *w)
{
    return atomic_load(&w->job->block->abort) != 0;
}

static void note_end(watcher *w, int32_t i)
{
    const int32_t rank = w->job->block->first + i;

    close(w->pidfd[i]);
    w->pidfd[i] = -1;
    w->alive--;
    if (atomic_load(&w->job->block->rank[rank].state) != MSI_RANK_LEFT) {
        msi_job_abort(w->job, w->job->world, rank, MSI_CAUSE_DIED, MS_COMM_ERROR,
                      "rank %d ended without leaving its job", (int)rank);
        msi_job_set_state(w->job, rank, MSI_RANK_DEAD);
    }
}

static void wait_for_events(watcher *w)
{
    const uint32_t n = (uint32_t)w->job->block->n_local;
    struct pollfd fds[2 * MS_MAX_RANKS];
    nfds_t n_fds = n;

    for (uint32_t i = 0; i < n; i++) {
        fds[i] = (struct pollfd){.fd = w->pidfd[i], .events = POLLIN};
    }
    if (w->agent != NULL) {
        n_fds += msi_agent_poll(w->agent, fds + n);
    }
    poll(fds, n_fds, MSI_LOOK_MS);
    for (uint32_t i = 0; i < n; i++) {
        if (w->pidfd[i] >= 0 && fds[i].revents != 0) {
            note_end(w, (int32_t)i);
        }
    }
    if (w->agent != NULL) {
        msi_agent_move(w->agent);
    }
}

static void end_ranks(const watcher *w)
{
    for (int32_t i = 0; i < w->job->block->n_local; i++) {
        if (w->pidfd[i] >= 0) {
            syscall(SYS_pidfd_send_signal, w->pidfd[i], SIGKILL, NULL, 0);
        }
    }
}

/* Ranks that have not left a second after a failure are killed. */
static void watch(watcher *w)
{
    int64_t kill_at = 0;

    while (w->alive > 0) {
        wait_for_events(w);
        if (kill_at == 0 && has_failed(w)) {
            kill_at = msi_now_ns() + GRACE_MS * 1000000LL;
        }
        if (kill_at != 0 && msi_now_ns() >= kill_at) {
            end_ranks(w);
        }
    }
    if (w->agent == NULL) {
        return;
    }
    msi_agent_end(w->agent, 0);
    kill_at = 0;
    while (!msi_agent_has_ended(w->agent) && (kill_at == 0 || msi_now_ns() < kill_at)) {
        wait_for_events(w);
        if (kill_at == 0 && has_failed(w)) {
            kill_at = msi_now_ns() + 2 * GRACE_MS * 1000000LL;
        }
    }
}

/* The first failure, once for the job: by the host that it is about, or the first one. */
static void print_failure(const msi_job *job, const msi_agent *agent)
{
    int32_t subject, cause;
    const char *text;

    if (msi_agent_failure(agent, job, &subject, &cause, &text) &&
        (subject >= 0 ? msi_job_is_local(job, subject) : job->block->host == 0)) {
        fprintf(stderr, "moonshard: %.*s\n", (int)strcspn(text, "\n"), text);
    }
}

/* In the forked process. The launcher's signals are for the ranks. */
static _Noreturn void watch_ranks(msi_job *job, msi_agent *agent, const int32_t *pids)
{
    watcher w = {.job = job, .agent = agent};
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    prctl(PR_SET_NAME, "moonshard-watch");
    w.pidfd = calloc((size_t)job->block->n_local, sizeof(*w.pidfd));
    if (w.pidfd == NULL) {
        _exit(1);
    }
    for (int32_t i = 0; i < job->block->n_local; i++) {
        w.pidfd[i] = (int32_t)syscall(SYS_pidfd_open, pids[i], 0);
        w.alive++;
        if (w.pidfd[i] < 0) {
            note_end(&w, i);
        }
    }
    watch(&w);
    job->guest->compare_left(job);
    print_failure(job, agent);
    _exit(0);
}

/* -- making the job of this host --------------------------------------------------------------- */

/* Host 0's address for the others: that at which all meet, or this host's name. */
static void address_of_host_0(const msi_place *p, char *buffer, size_t nbytes)
{
    if (p->master[0] != '\0') {
        snprintf(buffer, nbytes, "%s", p->master);
    } else if (gethostname(buffer, nbytes) != 0) {
        snprintf(buffer, nbytes, "127.0.0.1");
    }
}

/* Where launchers meet, from host 0. */
typedef struct meeting {
    char address[256];
    int32_t port;
    int32_t listener; /* in rank 0; 0: elsewhere */
} meeting;

static ms_status agree_on_meeting(msi_rendezvous *r, const msi_place *p, meeting *out)
{
    meeting own = {.port = 0, .listener = 0}, *all = calloc((size_t)p->world, sizeof(*all));
    ms_status status = MS_OK;

    if (all == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to meet %d ranks", (int)p->world);
    }
    if (p->rank == 0 && p->n_hosts > 1) {
        address_of_host_0(p, own.address, sizeof(own.address));
        status = msi_net_listen_anywhere(&own.listener, own.address, &own.port);
    }
    status =
        status == MS_OK ? msi_rendezvous_exchange(r, "launchers", &own, sizeof(own), all) : status;
    *out = all[0];
    out->listener = own.listener;
    free(all);
    return status;
}

/* Descriptors for the local ranks: the block, then of each rank its socket's ends, then on several
 * hosts each rank's listener. */
static int32_t count_fds(const msi_place *p)
{
    return 1 + (p->n_hosts > 1 ? 3 : 2) * p->local_world;
}

static void list_fds(const msi_job *job, const int32_t *listeners, int32_t *fds)
{
    const int32_t n = job->block->n_local;

    fds[0] = job->fd;
    for (int32_t i = 0; i < n; i++) {
        fds[1 + 2 * i] = job->socket[job->block->first + i][0];
        fds[2 + 2 * i] = job->socket[job->block->first + i][1];
        if (job->block->n_hosts > 1) {
            fds[1 + 2 * n + i] = listeners[i];
        }
    }
}

/* Local rank 0. */
static ms_status make_job(msi_job **out, msi_agent **agent, const msi_job_guest *guest,
                          const msi_place *p, const meeting *m, int32_t *listeners)
{
    const msi_job_size size = {p->n_hosts, p->host, p->local_world};
    const ms_hosts hosts = {.n_hosts = p->n_hosts,
                            .host = p->host,
                            .address = m->address,
                            .port = m->port,
                            .secret = msi_switch_text("MOONSHARD_SECRET", p->run),
                            .timeout_s = WAIT_S,
                            .listener = m->listener};

    *agent = NULL;
    MS_TRY(msi_job_new(out, guest, size, false));
    return p->n_hosts > 1 ? msi_agent_meet(agent, *out, &hosts, listeners) : MS_OK;
}

/* The others. */
static ms_status open_job(msi_job **out, const msi_job_guest *guest, const int32_t *fds)
{
    MS_TRY(msi_job_open(out, guest, fds[0]));
    for (int32_t i = 0; i < (*out)->block->n_local; i++) {
        (*out)->socket[(*out)->block->first + i][0] = fds[1 + 2 * i];
        (*out)->socket[(*out)->block->first + i][1] = fds[2 + 2 * i];
    }
    return MS_OK;
}

/* Forked twice: it is no child that this process would have to wait for. */
static ms_status start_watcher(msi_job *job, msi_agent *agent, const int32_t *pids)
{
    fflush(NULL); /* else the copy prints it again */
    const pid_t pid = fork();

    if (pid == 0) {
        if (fork() == 0) {
            watch_ranks(job, agent, pids);
        }
        _exit(0);
    }
    if (pid < 0) {
        return msi_fail_call("fork", errno, "cannot watch this host's ranks");
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return MS_OK;
}

/* Make this host's job, or take part in it. */
static ms_status share_job(msi_job **out, msi_rendezvous *r, const msi_job_guest *guest,
                           const msi_place *p, const meeting *m)
{
    const int32_t n_fds = count_fds(p), pid = (int32_t)getpid();
    int32_t fds[n_fds], listeners[p->local_world], pids[p->world];
    msi_agent *agent = NULL;

    *out = NULL;
    for (int32_t i = 0; i < p->local_world; i++) {
        listeners[i] = -1;
    }
    MS_TRY(msi_rendezvous_exchange(r, "pids", &pid, sizeof(pid), pids));
    if (p->local_rank == 0) {
        MS_TRY(make_job(out, &agent, guest, p, m, listeners));
        list_fds(*out, listeners, fds);
        MS_TRY(start_watcher(*out, agent, pids + (*out)->block->first));
        msi_agent_free(agent); /* it is the watcher's */
    }
    MS_TRY(msi_rendezvous_share(r, p, fds, n_fds));
    if (p->local_rank != 0) {
        MS_TRY(open_job(out, guest, fds));
    }
    msi_descriptors_keep(*out, p->rank);
    if (p->n_hosts == 1) {
        return MS_OK;
    }
    for (int32_t i = 0; i < p->local_world; i++) {
        if (i != p->local_rank) {
            close(fds[1 + 2 * p->local_world + i]);
        }
    }
    return msi_job_mirror(*out, p->rank, fds[1 + 2 * p->local_world + p->local_rank]);
}

static ms_status meet(msi_job **out, msi_rendezvous *r, const msi_job_guest *guest, msi_place *p)
{
    msi_place *all = calloc((size_t)p->world, sizeof(*all));
    meeting m;
    ms_status status;

    if (all == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory to meet %d ranks", (int)p->world);
    }
    MS_TRY_GOTO(msi_rendezvous_places(r, p, all), done);
    if (!msi_place_is_contiguous(all)) {
        MS_TRY_GOTO(MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                            "%s numbers ranks across hosts, expected those of a host in a row",
                            p->launcher),
                    done);
    }
    MS_TRY_GOTO(agree_on_meeting(r, p, &m), done);
    MS_TRY_GOTO(share_job(out, r, guest, p, &m), done);
done:
    free(all);
    return status;
}

bool msi_is_started_elsewhere(void)
{
    msi_place p;
    bool found;

    return msi_place_find(&p, &found) != MS_OK || (found && p.world > 1); /* joining reports it */
}

ms_status msi_join_elsewhere(msi_dist *d, const msi_job_guest *guest, bool *joined)
{
    const int64_t limit =
        msi_switch_within("MS_JOIN_TIMEOUT", WAIT_S, 1, MSI_LONGEST_S) * 1000000000;
    msi_rendezvous *r;
    msi_job *job = NULL;
    msi_place p;

    MS_TRY(msi_place_find(&p, joined));
    *joined = *joined && p.world > 1;
    if (!*joined) {
        return MS_OK;
    }
    MS_TRY(msi_rendezvous_open(&r, &p, limit));
    ms_status status = meet(&job, r, guest, &p);

    msi_rendezvous_close(r);
    status =
        status == MS_OK ? msi_dist_enter(d, job, p.rank, MSI_LAUNCHER_ELSEWHERE, true) : status;
    if (status != MS_OK) {
        msi_job_free(job);
        return status;
    }
    if (p.rank == 0) {
        fprintf(stderr, "moonshard: %d ranks on %d host%s (%s), started by %s\n", (int)p.world,
                (int)p.n_hosts, p.n_hosts > 1 ? "s" : "",
                p.n_hosts > 1 ? msi_job_between_hosts(job) : "shm", p.launcher);
    }
    return MS_OK;
}
