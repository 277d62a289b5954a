/* Supervising ranks: the launcher sleeps until an event.
 *
 * The reaper reports each rank's end within a millisecond. The first failure sets the abort word,
 * which ends all waits with a message; ranks still running a second later are killed. Later
 * failures are consequences and not reported as cause. At the end of a job the launcher waits for
 * the reader of its output: without limit after success, else MS_STOP_TIMEOUT seconds without
 * progress. */
#include "launch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

enum { STOP_S = 10 };

typedef struct supervisor {
    ms_launch *launch;
    msi_job *job;
    int32_t alive;
    int64_t asked_at[SIGTERM + 1]; /* by signal: first arrival; 0: none */
    int32_t asked_by;              /* first stop signal */
    int64_t stop_ns;               /* MS_STOP_TIMEOUT; 0: none */
    int64_t stop_at;               /* deadline for ranks to check for a stop; 0: no request */
    int32_t ended_by;              /* signal of an immediate end */
    int32_t first_code;            /* of the first rank with a nonzero code */
    int64_t kill_at;               /* 0: no failure */
    bool killed;                   /* by us */
    int64_t looked_at;             /* last check for late ranks */
    int64_t waited_ns;             /* running time since ranks are late */
} supervisor;

static msi_job_rank *block_of(const supervisor *s, int32_t child)
{
    return &s->job->block->rank[s->launch->first + child];
}

static void kill_all(const supervisor *s, int signal)
{
    for (int32_t r = 0; r < s->launch->n; r++) {
        if (s->launch->child[r].running) {
            msi_reaper_signal(s->launch, r, signal);
        }
    }
}

/* The job's failure, or NULL. */
static const char *failure(const supervisor *s)
{
    int32_t subject, cause;
    ms_status kind;
    const char *text;

    return msi_job_aborted(s->job, &subject, &cause, &kind, &text) ? text : NULL;
}

/* -- deaths ------------------------------------------------------------------------------------ */

static const char *signal_name(int signal)
{
    const char *name = sigdescr_np(signal);

    return name != NULL ? name : "unknown";
}

/* Handle the end of child `i`, with its waitpid() `status`. */
static void judge(supervisor *s, int32_t i, int32_t status)
{
    uint32_t stop = atomic_load(&s->job->block->stop);
    const int32_t launcher = s->job->world, rank = s->launch->first + i;
    msi_child *child = &s->launch->child[i];
    bool exited = WIFEXITED(status);
    int32_t error = atomic_load(&block_of(s, i)->exec_error);
    bool has_joined = atomic_load(&block_of(s, i)->state) != MSI_RANK_STARTING;

    child->code = exited ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (child->code != 0 && s->first_code == 0) {
        s->first_code = child->code;
    }
    if (exited &&
        (child->code == 0 || (child->code > 128 && msi_stop_has(stop, child->code - 128)))) {
        msi_job_set_state(s->job, rank, MSI_RANK_LEFT); /* finished, or stopped on request */
        return;
    }
    if (error != 0) {
        msi_job_abort(s->job, launcher, rank, MSI_CAUSE_FAILED, MS_RUNTIME_ERROR,
                      "rank %d failed: cannot run %s: %s", (int)rank, s->launch->program,
                      strerrordesc_np(error));
    } else if (exited) {
        msi_job_abort(s->job, launcher, rank, MSI_CAUSE_DIED, MS_COMM_ERROR,
                      "rank %d exited with code %d%s", (int)rank, (int)child->code,
                      has_joined ? "" : " before it had joined");
    } else if (msi_stop_has(stop, WTERMSIG(status))) { /* relayed; it catches none */
        msi_job_abort(s->job, launcher, rank, MSI_CAUSE_STOPPED, MS_COMM_ERROR,
                      "stopped by signal %d (%s), which ended rank %d", WTERMSIG(status),
                      signal_name(WTERMSIG(status)), (int)rank);
    } else {
        msi_job_abort(s->job, launcher, rank, MSI_CAUSE_DIED, MS_COMM_ERROR,
                      "rank %d died (signal %d, %s)", (int)rank, WTERMSIG(status),
                      signal_name(WTERMSIG(status)));
    }
    msi_job_set_state(s->job, rank, MSI_RANK_DEAD);
}

static void note_end(supervisor *s, int32_t i, int32_t status)
{
    msi_child *child = &s->launch->child[i];

    child->running = false;
    s->alive--;
    if (s->launch->output != NULL) {
        msi_output_end(s->launch->output, i);
    }
    judge(s, i, status);
    child->killed = s->killed; /* then its code is ours */
}

static void receive_deaths(supervisor *s)
{
    int32_t child, status;

    while (msi_reaper_read_end(s->launch, &child, &status)) {
        note_end(s, child, status);
    }
    if (s->launch->line < 0 && s->alive > 0) { /* the kernel ends ranks with their parent */
        msi_job_abort(s->job, s->job->world, -1, MSI_CAUSE_DIED, MS_COMM_ERROR,
                      "the process that keeps the ranks (%d) died", (int)s->launch->reaper);
        for (int32_t r = 0; r < s->launch->n; r++) {
            if (s->launch->child[r].running) {
                note_end(s, r, SIGKILL);
            }
        }
    }
}

/* -- signals ----------------------------------------------------------------------------------- */

/* End all ranks without saving. */
static void end_now(supervisor *s, int32_t signal)
{
    s->ended_by = signal;
    s->kill_at = msi_now_ns();
}

/* Handle a request to stop; SIGUSR1 is only for ranks. */
static void ask_to_stop(supervisor *s, int32_t signal)
{
    int64_t now = msi_now_ns(), first = s->asked_at[signal];

    if (first == 0) {
        s->asked_at[signal] = now;
        s->asked_by = s->asked_by == 0 ? signal : s->asked_by;
        if (s->stop_at == 0 && s->stop_ns > 0) {
            s->stop_at = now + s->stop_ns;
        }
    } else if (signal != SIGHUP && now - first >= MSI_AGAIN_MS * 1000000LL) {
        msi_job_abort(s->job, s->job->world, -1, MSI_CAUSE_STOPPED, MS_COMM_ERROR,
                      "stopped by a second signal %d (%s)", (int)signal, signal_name(signal));
        end_now(s, signal);
    }
}

static void on_signal(supervisor *s, int32_t signal)
{
    if (signal != SIGUSR1) {
        ask_to_stop(s, signal);
    }
    atomic_fetch_or(&s->job->block->stop, 1U << signal);
    for (int32_t r = 0; r < s->launch->n && s->ended_by == 0; r++) {
        /* Ranks that catch signals read the word; Ctrl-C of a terminal reaches them, too. */
        if (s->launch->child[r].running && atomic_load(&block_of(s, r)->catches) == 0) {
            msi_reaper_signal(s->launch, r, signal);
        }
    }
}

static void read_signals(supervisor *s)
{
    struct signalfd_siginfo info;

    while (read(s->launch->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        on_signal(s, (int32_t)info.ssi_signo);
    }
}

/* A running child that never checked for a stop, or -1. Prefers one that is not waiting, since
 * those that wait for it cannot check. */
static int32_t never_looked(const supervisor *s)
{
    int32_t found = -1;

    for (int32_t r = 0; r < s->launch->n; r++) {
        msi_job_rank *rank = block_of(s, r);

        if (s->launch->child[r].running && atomic_load(&rank->looks) == 0) {
            if (atomic_load(&rank->waiting) == 0) {
                return r;
            }
            found = found < 0 ? r : found;
        }
    }
    return found;
}

/* Ranks that check every step may take long for a step or a save; a rank that never checked will
 * not start to. */
static void end_ranks_that_never_look(supervisor *s)
{
    int32_t r, stop = msi_stop_signal(atomic_load(&s->job->block->stop));

    if (s->stop_at == 0 || s->kill_at != 0 || msi_now_ns() < s->stop_at) {
        return;
    }
    r = never_looked(s);
    if (r >= 0) {
        msi_job_abort(s->job, s->job->world, -1, MSI_CAUSE_STOPPED, MS_COMM_ERROR,
                      "stopped by signal %d (%s): rank %d never asks whether to stop", (int)stop,
                      signal_name(stop), (int)(s->launch->first + r));
        end_now(s, stop);
    }
}

/* -- ranks that do not end --------------------------------------------------------------------- */

/* Some ranks have ended, others have not. */
static bool somebody_is_late(const supervisor *s)
{
    return s->alive > 0 && s->alive < s->launch->n;
}

/* True if a warning would be printed at once. */
static bool can_warn(void)
{
    struct pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT};

    return poll(&err, 1, 0) == 1;
}

/* As msi_announce() does for waiting ranks, which are earlier. */
static void announce_wait(supervisor *s)
{
    int64_t now = msi_now_ns(), since = now - s->looked_at;
    int64_t limit = s->job->block->announce_ns, quiet = atomic_load(&s->job->block->quiet_until);
    int32_t ranks[s->launch->n], n = 0;
    char late[MSI_RANKS_TEXT], positions[1024], text[1536];

    if (limit <= 0 || since < MSI_LOOK_MS * 1000000LL) {
        return;
    }
    s->looked_at = now;
    if (s->kill_at != 0 || !somebody_is_late(s)) {
        s->waited_ns = 0;
        return;
    }
    s->waited_ns += msi_looked_ns(since);
    if (s->waited_ns < limit || now < quiet || !can_warn() ||
        !atomic_compare_exchange_strong(&s->job->block->quiet_until, &quiet,
                                        now + 4 * s->waited_ns)) {
        return;
    }
    s->job->guest->positions(s->job, positions, sizeof(positions));
    for (int32_t r = 0; r < s->launch->n; r++) {
        if (s->launch->child[r].running) {
            ranks[n++] = s->launch->first + r;
        }
    }
    msi_ranks_list(ranks, n, late, sizeof(late));
    snprintf(text, sizeof(text), "the launcher has waited %lld s for %s to end; last calls: %s",
             (long long)(s->waited_ns / 1000000000), late, positions);
    ms_warn("UserWarning", text);
}

/* -- the loop ---------------------------------------------------------------------------------- */

static void sleep_for_events(supervisor *s)
{
    struct pollfd fds[2 + 2 * s->launch->n + 2 + s->job->block->n_hosts];
    int64_t left_ms =
        s->kill_at != 0 && !s->killed ? (s->kill_at - msi_now_ns()) / 1000000 + 1 : MSI_LOOK_MS;
    nfds_t n = 0;

    fds[n++] = (struct pollfd){.fd = s->launch->signal_fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = s->launch->line, .events = POLLIN};
    if (s->launch->output != NULL) {
        n += msi_output_poll(s->launch->output, fds + n);
    }
    if (s->launch->agent != NULL) {
        n += msi_agent_poll(s->launch->agent, fds + n);
    }
    poll(fds, n, left_ms < 0 ? 0 : left_ms > MSI_LOOK_MS ? MSI_LOOK_MS : (int)left_ms);
}

/* True: output waits for a reader. */
static bool move_output(const supervisor *s)
{
    return s->launch->output != NULL && msi_output_move(s->launch->output);
}

static void supervise(supervisor *s)
{
    while (s->launch->line >= 0 || s->alive > 0) {
        sleep_for_events(s);
        read_signals(s);
        receive_deaths(s);
        move_output(s);
        if (s->launch->agent != NULL) {
            msi_agent_move(s->launch->agent);
        }
        end_ranks_that_never_look(s);
        announce_wait(s);
        if (s->kill_at == 0 && failure(s) != NULL) {
            s->kill_at = msi_now_ns() + MSI_GRACE_MS * 1000000LL;
        }
        if (s->kill_at != 0 && !s->killed && msi_now_ns() >= s->kill_at) {
            s->killed = true;
            kill_all(s, SIGKILL);
        }
    }
}

/* This host's ranks have ended. Wait until those of the other hosts have; meanwhile a failure is
 * still sent to them. A failed job waits for at most twice MSI_GRACE_MS. */
static void await_hosts(supervisor *s)
{
    msi_agent *agent = s->launch->agent;
    int64_t limit = 0;

    if (agent == NULL) {
        return;
    }
    msi_agent_end(agent, s->first_code);
    while (!msi_agent_has_ended(agent) && (limit == 0 || msi_now_ns() < limit)) {
        sleep_for_events(s);
        read_signals(s);
        move_output(s);
        msi_agent_move(agent);
        if (limit == 0 && failure(s) != NULL) {
            limit = msi_now_ns() + 2 * MSI_GRACE_MS * 1000000LL;
        }
    }
}

/* Print the last lines. Waits for the reader, with a limit if the job failed or was stopped. */
static void finish_output(supervisor *s)
{
    int64_t asked = 0;

    if (s->launch->output != NULL) {
        msi_output_finish(s->launch->output);
    }
    while (move_output(s)) {
        if (s->stop_ns > 0 && failure(s) != NULL &&
            msi_output_stuck_ns(s->launch->output) >= s->stop_ns) {
            if (!can_warn()) {
                return;
            }
            msi_warn("UserWarning",
                     "lines of the ranks are lost: nobody has read them for %lld s, which is "
                     "MS_STOP_TIMEOUT",
                     (long long)(s->stop_ns / 1000000000));
            return;
        }
        if (asked == 0 && atomic_load(&s->job->block->stop) != 0) {
            asked = msi_now_ns();
        }
        if (s->ended_by != 0 || (asked != 0 && msi_now_ns() - asked > MSI_GRACE_MS * 1000000LL)) {
            return;
        }
        sleep_for_events(s);
        read_signals(s);
    }
}

static int32_t job_code(const supervisor *s, int32_t subject, int32_t cause)
{
    if (cause == MSI_CAUSE_STOPPED && s->ended_by != 0) {
        return 128 + s->ended_by;
    }
    const int32_t child = subject - s->launch->first;
    const int32_t host = subject >= 0 ? msi_job_host_of(s->job, subject) : -1;

    if (child >= 0 && child < s->launch->n && !s->launch->child[child].killed &&
        s->launch->child[child].code != 0) {
        return s->launch->child[child].code;
    }
    if (host >= 0 && host != s->job->block->host && msi_agent_code(s->launch->agent, host) != 0) {
        return msi_agent_code(s->launch->agent, host);
    }
    if (cause == MSI_CAUSE_DIED && subject < 0) {
        return EX_TEMPFAIL; /* not the program's fault: it may be started again */
    }
    return s->killed || s->first_code == 0 ? 1 : s->first_code;
}

ms_status ms_launch_wait(ms_launch *launch, int32_t *exit_code, const char **cause)
{
    static _Thread_local char line[MSI_TEXT];
    supervisor s = {
        .launch = launch, .job = launch->job, .alive = launch->n, .looked_at = msi_now_ns()};
    struct sigaction pipe_before;
    int32_t subject, why;
    const char *text;

    if (getpid() != launch->host) { /* only the launching process can read the reaper's reports */
        return MS_FAIL(MS_RUNTIME_ERROR,
                       "cannot wait for ranks in a copy (fork) of the process %d that started them",
                       (int)launch->host);
    }
    line[0] = '\0';
    s.stop_ns = msi_switch_within("MS_STOP_TIMEOUT", STOP_S, 0, MSI_LONGEST_S) * 1000000000;
    bool ignores =
        sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &pipe_before) == 0;

    supervise(&s);
    await_hosts(&s);
    if (s.first_code == 0) {
        s.job->guest->compare_left(s.job);
    }
    finish_output(&s);
    if (ignores) {
        sigaction(SIGPIPE, &pipe_before, NULL);
    }
    if (msi_agent_failure(launch->agent, s.job, &subject, &why, &text)) {
        snprintf(line, sizeof(line), "%s%s", text,
                 why == MSI_CAUSE_LEFT ? " while others needed it" : "");
        *exit_code = job_code(&s, subject, why);
    } else {
        *exit_code = s.first_code; /* 0, or the code of stopped ranks */
    }
    const int32_t lost = launch->output != NULL ? msi_output_lost(launch->output) : 0;

    if (lost != 0) {
        const size_t at = *exit_code != 0 ? strlen(line) : 0;

        *exit_code = *exit_code != 0 ? *exit_code : 1;
        snprintf(line + at, sizeof(line) - at,
                 "%slines of the ranks are lost: cannot write them: %s", at > 0 ? "; " : "",
                 strerrordesc_np(lost));
    }
    *cause = line;
    launch->owner->asked = s.asked_by;
    msi_launch_free(launch);
    return MS_OK;
}

void ms_dist_pass_on_stop(void)
{
    msi_dist *d = msi_dist_peek();

    if (d != NULL && d->asked != 0) {
        int32_t signal = d->asked;

        d->asked = 0;
        raise(signal);
    }
}
