/* Supervising ranks: the launcher sleeps until something happens, and then decides what it means.
 *
 * Processes are watched by pidfd, so a death is known within a millisecond. The first failure sets
 * the abort word, which ends everybody's waits with a message; ranks that have not left a second
 * later are killed. What ranks fail with after that is a consequence and never reported as cause.
 */
#include "launch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_MS = 1000, LOOK_MS = 100 };

static const int relayed[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

typedef struct supervisor {
    ms_launch *launch;
    msi_job *job;
    int32_t alive, signal_fd;
    int32_t interrupts;
    int32_t first_code; /* of the first rank that left with another code than 0 */
    int64_t kill_at;    /* 0: nothing has failed */
    bool killed;        /* by us */
} supervisor;

static void kill_all(supervisor *s, int signal)
{
    for (int32_t r = 0; r < s->launch->n; r++) {
        if (s->launch->child[r].pidfd >= 0) {
            kill(s->launch->child[r].pid, signal);
        }
    }
}

/* -- output with prefixes ---------------------------------------------------------------------- */

static void write_all(int32_t fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, text, n);

        if (done < 0 && errno != EINTR) {
            return; /* nobody reads us any more */
        }
        text += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
}

/* One write per line, so that lines of ranks never mix. */
static void emit(msi_outlet *o, int32_t rank, int32_t n, bool complete)
{
    char text[MSI_LINE + 32];
    int at = snprintf(text, sizeof(text), "[rank %d] ", (int)rank);

    memcpy(text + at, o->line, (size_t)n);
    at += n;
    if (!complete) {
        text[at++] = '\n';
    }
    write_all(o->to, text, (size_t)at);
    memmove(o->line, o->line + n, (size_t)(o->n - n));
    o->n -= n;
}

/* Print what has come. `last`: the rank is gone, so what stands there without an end is a line. */
static void drain(msi_outlet *o, int32_t rank, bool last)
{
    while (o->from >= 0) {
        ssize_t n = read(o->from, o->line + o->n, (size_t)(MSI_LINE - o->n));

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            break; /* nothing more for now */
        }
        if (n == 0) {
            close(o->from);
            o->from = -1;
            break;
        }
        o->n += (int32_t)n;
        for (const char *end; (end = memchr(o->line, '\n', (size_t)o->n)) != NULL;) {
            emit(o, rank, (int32_t)(end - o->line) + 1, true);
        }
        if (o->n == MSI_LINE) {
            emit(o, rank, o->n, false);
        }
    }
    if (o->n > 0 && (last || o->from < 0)) {
        emit(o, rank, o->n, false);
    }
}

static void drain_rank(ms_launch *launch, int32_t rank, bool last)
{
    msi_outlet *outlet = launch->child[rank].outlet;

    for (int32_t i = 0; outlet != NULL && i < 2; i++) {
        drain(&outlet[i], rank, last);
    }
}

/* -- deaths ------------------------------------------------------------------------------------ */

static void judge(supervisor *s, int32_t rank, const siginfo_t *info)
{
    int32_t stop = atomic_load(&s->job->block->stop), launcher = s->launch->n;
    msi_child *child = &s->launch->child[rank];
    bool exited = info->si_code == CLD_EXITED;
    const char *name = exited ? NULL : sigdescr_np(info->si_status);

    child->code = exited ? info->si_status : 128 + info->si_status;
    if (child->code != 0 && s->first_code == 0) {
        s->first_code = child->code;
    }
    if (exited && (child->code == 0 || (stop != 0 && child->code == 128 + stop))) {
        msi_job_set_state(s->job, rank, MSI_RANK_LEFT); /* finished, or stopped as asked */
        return;
    }
    if (exited) {
        msi_job_abort(s->job, launcher, rank, MSI_CAUSE_DIED, MS_COMM_ERROR,
                      "rank %d exited with code %d", (int)rank, (int)child->code);
    } else {
        msi_job_abort(s->job, launcher, rank,
                      info->si_status == stop ? MSI_CAUSE_STOPPED : MSI_CAUSE_DIED, MS_COMM_ERROR,
                      "rank %d died (signal %d, %s)", (int)rank, info->si_status,
                      name != NULL ? name : "unknown");
    }
    msi_job_set_state(s->job, rank, MSI_RANK_DEAD);
}

static void reap(supervisor *s, int32_t rank)
{
    msi_child *child = &s->launch->child[rank];
    siginfo_t info = {.si_code = CLD_EXITED};
    int error;

    while ((error = waitid(P_PID, (id_t)child->pid, &info, WEXITED)) != 0 && errno == EINTR) {
    }
    if (error != 0) { /* the host ignores SIGCHLD: all we know is whether the rank has left */
        info.si_status = atomic_load(&s->job->block->slot[rank].state) != MSI_RANK_LEFT;
    }
    close(child->pidfd);
    child->pidfd = -1;
    s->alive--;
    drain_rank(s->launch, rank, true);
    judge(s, rank, &info);
    child->killed = s->killed; /* its code is our doing */
}

/* -- signals ----------------------------------------------------------------------------------- */

static void on_signal(supervisor *s, int32_t signal)
{
    int32_t none = 0;

    if (signal == SIGINT && ++s->interrupts > 1) {
        msi_job_abort(s->job, s->launch->n, -1, MSI_CAUSE_STOPPED, MS_COMM_ERROR,
                      "interrupted twice");
        s->kill_at = msi_now_ns();
        return;
    }
    atomic_compare_exchange_strong(&s->job->block->stop, &none, signal);
    for (int32_t r = 0; r < s->launch->n; r++) {
        const msi_child *child = &s->launch->child[r];

        /* Ranks that catch signals read the word; a terminal's Ctrl-C has reached them besides. */
        if (child->pidfd >= 0 && atomic_load(&s->job->block->slot[r].catches) == 0) {
            kill(child->pid, signal);
        }
    }
}

static void read_signals(supervisor *s)
{
    struct signalfd_siginfo info;

    while (read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        on_signal(s, (int32_t)info.ssi_signo);
    }
}

void msi_launch_hold_signals(ms_launch *launch)
{
    sigemptyset(&launch->relayed);
    for (int32_t i = 0; i < MSI_COUNT(relayed); i++) {
        struct sigaction now;

        if (sigaction(relayed[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) {
            sigaddset(&launch->relayed, relayed[i]);
        }
    }
    sigprocmask(SIG_BLOCK, &launch->relayed, &launch->before);
}

/* -- the loop ---------------------------------------------------------------------------------- */

static void sleep_for_events(supervisor *s)
{
    struct pollfd fds[1 + 3 * MSI_MAX_RANKS];
    int64_t left_ms =
        s->kill_at != 0 && !s->killed ? (s->kill_at - msi_now_ns()) / 1000000 + 1 : LOOK_MS;
    nfds_t n = 0;

    fds[n++] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
    for (int32_t r = 0; r < s->launch->n; r++) {
        const msi_child *child = &s->launch->child[r];

        fds[n++] = (struct pollfd){.fd = child->pidfd, .events = POLLIN};
        for (int32_t i = 0; child->outlet != NULL && i < 2; i++) {
            fds[n++] = (struct pollfd){.fd = child->outlet[i].from, .events = POLLIN};
        }
    }
    poll(fds, n, left_ms < 0 ? 0 : left_ms > LOOK_MS ? LOOK_MS : (int)left_ms);
}

static bool has_ended(const msi_child *child)
{
    struct pollfd fd = {.fd = child->pidfd, .events = POLLIN};

    return child->pidfd >= 0 && poll(&fd, 1, 0) == 1;
}

static void supervise(supervisor *s)
{
    while (s->alive > 0) {
        int32_t subject, cause;
        ms_status kind;
        const char *text;

        sleep_for_events(s);
        read_signals(s);
        for (int32_t r = 0; r < s->launch->n; r++) {
            if (has_ended(&s->launch->child[r])) {
                reap(s, r);
            }
            drain_rank(s->launch, r, false);
        }
        if (s->kill_at == 0 && msi_job_aborted(s->job, &subject, &cause, &kind, &text)) {
            s->kill_at = msi_now_ns() + GRACE_MS * 1000000LL;
        }
        if (s->kill_at != 0 && !s->killed && msi_now_ns() >= s->kill_at) {
            s->killed = true;
            kill_all(s, SIGKILL);
        }
    }
}

static int32_t job_code(const supervisor *s, int32_t subject, int32_t cause)
{
    int32_t stop = atomic_load(&s->job->block->stop);

    if (cause == MSI_CAUSE_STOPPED) {
        return 128 + (s->interrupts > 1 ? SIGINT : stop);
    }
    if (subject >= 0 && !s->launch->child[subject].killed && s->launch->child[subject].code != 0) {
        return s->launch->child[subject].code;
    }
    return s->killed || s->first_code == 0 ? 1 : s->first_code;
}

ms_status ms_launch_wait(ms_launch *launch, int32_t *exit_code, const char **cause)
{
    static _Thread_local char line[MSI_TEXT];
    supervisor s = {.launch = launch, .job = launch->job, .alive = launch->n};
    int32_t subject, why;
    ms_status kind;
    const char *text;

    line[0] = '\0';
    s.signal_fd = signalfd(-1, &launch->relayed, SFD_CLOEXEC | SFD_NONBLOCK);
    supervise(&s);
    if (msi_job_aborted(s.job, &subject, &why, &kind, &text)) {
        snprintf(line, sizeof(line), "%s", text);
        *exit_code = job_code(&s, subject, why);
    } else {
        *exit_code = s.first_code; /* 0, or the code of ranks that stopped as asked */
    }
    *cause = line;
    if (s.signal_fd >= 0) {
        close(s.signal_fd);
    }
    msi_launch_free(launch);
    return MS_OK;
}
