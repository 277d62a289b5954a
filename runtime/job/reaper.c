/* The reaper: a process between the launcher and its ranks. It starts and reaps them, and becomes
 * the parent of all orphans they leave (subreaper). So it neither depends on nor touches other
 * children of the launching process.
 *
 * They share a socket: the reaper sends which rank ended and how, the launcher which rank gets
 * which signal. The reaper both signals and reaps, so a signal never reaches another process with a
 * reused pid. If the launcher dies or closes its end, the reaper ends everything. */
#include "launch.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Few are sent, so the socket never fills. To the launcher: rank `rank` ended with this waitpid()
 * status. The first one: all ranks have started, or fork() failed with this error at rank `rank`.
 * To the reaper: a signal for a rank. */
typedef struct message {
    int32_t rank, number;
} message;

enum { STARTED = -1 }; /* in place of a rank */

typedef struct reaper {
    ms_launch *launch;
    int32_t line; /* to the launcher; -1: closed */
    int32_t running;
    struct sigaction child_before;
} reaper;

static bool send_to(int32_t line, int32_t rank, int32_t number)
{
    const message m = {rank, number};
    ssize_t n;

    while ((n = send(line, &m, sizeof(m), MSG_NOSIGNAL)) < 0 && errno == EINTR) {
    }
    return n == (ssize_t)sizeof(m);
}

/* 1: a message; 0: none yet; -1: closed. */
static int32_t receive(int32_t line, message *m)
{
    ssize_t n;

    while ((n = recv(line, m, sizeof(*m), MSG_DONTWAIT)) < 0 && errno == EINTR) {
    }
    return n == (ssize_t)sizeof(*m) ? 1 : n < 0 && errno == EAGAIN ? 0 : -1;
}

/* -- starting ---------------------------------------------------------------------------------- */

static void leave_stdin(void)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (null < 0 || dup2(null, STDIN_FILENO) < 0) {
        close(STDIN_FILENO); /* do not share rank 0's */
    }
    if (null >= 0) {
        close(null);
    }
}

/* First steps of a rank: signal mask, die with the parent, cores, stdin only for rank 0.
 * Async-signal-safe, like everything before exec. Failures are ignored: the reaper ends the rank as
 * well. */
static void settle(const reaper *k, pid_t parent, int32_t rank)
{
    sigaction(SIGCHLD, &k->child_before, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(128 + SIGKILL); /* died before prctl() took effect */
    }
    msi_launch_catch_signals(k->launch);
    close(k->line);
    msi_cores_pin(rank, k->launch->n);
    if (k->launch->first + rank > 0) {
        leave_stdin();
    }
}

/* Returns the rank in a rank, -1 in the reaper. If not all can start, those started are ended. */
static int32_t start_ranks(reaper *k)
{
    pid_t self = getpid();

    for (int32_t r = 0; r < k->launch->n; r++) {
        pid_t pid = fork();

        if (pid == 0) {
            settle(k, self, r);
            return r;
        }
        if (pid < 0) {
            send_to(k->line, r, errno);
            _exit(1);
        }
        k->launch->child[r].pid = pid;
        k->running++;
        atomic_store(&k->launch->job->block->rank[k->launch->first + r].pid, (int32_t)pid);
    }
    return -1;
}

/* -- keeping ----------------------------------------------------------------------------------- */

/* A launcher that misses a rank's end would wait forever, so exit on failure. */
static void report(const reaper *k, int32_t rank, int32_t number)
{
    if (k->line >= 0 && !send_to(k->line, rank, number) && errno != EPIPE) {
        _exit(1);
    }
}

static void reap(reaper *k)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (int32_t r = 0; r < k->launch->n; r++) {
            if (k->launch->child[r].pid == pid) {
                k->launch->child[r].pid = 0;
                k->running--;
                report(k, r, status);
            }
        }
    }
}

static void signal_rank(const reaper *k, int32_t rank, int signal)
{
    if (k->launch->child[rank].pid > 0) {
        kill(k->launch->child[rank].pid, signal);
    }
}

/* False: the launcher has closed. */
static bool handle_message(const reaper *k)
{
    int32_t received;
    message m;

    while ((received = receive(k->line, &m)) > 0) {
        signal_rank(k, m.rank, m.number);
    }
    return received == 0 && getppid() == k->launch->host;
}

static void signal_strays(int signal)
{
    DIR *processes = opendir("/proc");
    pid_t self = getpid(), parent;
    char state;

    if (processes == NULL) {
        return;
    }
    for (const struct dirent *e = readdir(processes); e != NULL; e = readdir(processes)) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? atoi(e->d_name) : 0;

        if (pid > 0 && msi_process_look(pid, &state, &parent) && parent == self) {
            kill(pid, signal);
        }
    }
    closedir(processes);
}

/* True: orphans are left. */
static bool reap_strays(void)
{
    pid_t pid;

    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
    }
    return pid == 0;
}

/* After all ranks ended: SIGTERM to their orphans, SIGKILL a second later. */
static void end_strays(void)
{
    const struct timespec moment = {.tv_nsec = 10000000};
    int64_t begin = msi_now_ns(), waited_ms = 0;

    if (!reap_strays()) {
        return;
    }
    signal_strays(SIGTERM);
    do {
        nanosleep(&moment, NULL);
        waited_ms = (msi_now_ns() - begin) / 1000000;
        if (waited_ms > MSI_GRACE_MS) {
            signal_strays(SIGKILL); /* also orphans of killed ones */
        }
    } while (reap_strays() && waited_ms < 2 * MSI_GRACE_MS);
}

static void on_child(int signal)
{
    (void)signal; /* only interrupts ppoll() */
}

/* Ignore signals of the terminal. SIGCHLD also comes when the launcher has died. */
static void take_no_signals(reaper *k)
{
    struct sigaction wake = {.sa_handler = on_child};
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    prctl(PR_SET_PDEATHSIG, SIGCHLD);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigaction(SIGCHLD, &wake, &k->child_before);
}

static _Noreturn void keep(reaper *k)
{
    sigset_t all_but_child;

    sigfillset(&all_but_child);
    sigdelset(&all_but_child, SIGCHLD);
    while (k->running > 0) {
        struct pollfd line = {.fd = k->line, .events = POLLIN};

        ppoll(&line, 1, NULL, &all_but_child);
        reap(k);
        if (k->line >= 0 && !handle_message(k)) {
            for (int32_t r = 0; r < k->launch->n; r++) {
                signal_rank(k, r, SIGKILL);
            }
            close(k->line);
            k->line = -1;
        }
    }
    end_strays();
    _exit(0);
}

/* Returns in ranks only. */
static int32_t become_reaper(ms_launch *launch, int32_t line)
{
    reaper k = {.launch = launch, .line = line};

    take_no_signals(&k);
    close(launch->signal_fd);
    launch->signal_fd = -1;
    int32_t rank = start_ranks(&k);

    if (rank >= 0) {
        return rank;
    }
    prctl(PR_SET_NAME, "moonshard-reap"); /* name in `ps` */
    for (int32_t i = 0; launch->listeners != NULL && i < launch->n; i++) {
        close(launch->listeners[i]); /* so that nobody connects to a rank that has ended */
    }
    msi_output_free(launch->output); /* so ranks notice if the launcher stops reading */
    report(&k, STARTED, 0);
    keep(&k);
}

/* -- for the launcher -------------------------------------------------------------------------- */

static void hang_up(ms_launch *launch)
{
    close(launch->line);
    launch->line = -1;
    while (waitpid(launch->reaper, NULL, 0) < 0 && errno == EINTR) {
    }
}

/* The reaper's first message. False: it died. */
static bool receive_start(const ms_launch *launch, message *m)
{
    struct pollfd line = {.fd = launch->line, .events = POLLIN};
    int32_t received;

    while ((received = receive(launch->line, m)) == 0) {
        poll(&line, 1, -1);
    }
    return received > 0;
}

ms_status msi_reaper_start(ms_launch *launch, int32_t *rank)
{
    int32_t line[2];
    message m;

    *rank = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line) != 0) {
        return msi_fail_call("socketpair", errno, "cannot start %d ranks", (int)launch->n);
    }
    launch->reaper = fork();
    if (launch->reaper == 0) {
        close(line[0]);
        *rank = become_reaper(launch, line[1]);
        return MS_OK;
    }
    int error = errno;

    close(line[1]);
    if (launch->reaper < 0) {
        close(line[0]);
        return msi_fail_call("fork", error, "cannot start %d ranks", (int)launch->n);
    }
    launch->line = line[0];
    if (!receive_start(launch, &m)) {
        hang_up(launch);
        return MS_FAIL(MS_RUNTIME_ERROR, "cannot start %d ranks: the process to keep them died",
                       (int)launch->n);
    }
    if (m.rank != STARTED) {
        hang_up(launch);
        return msi_fail_call("fork", m.number, "cannot start rank %d",
                             (int)(launch->first + m.rank));
    }
    for (int32_t r = 0; r < launch->n; r++) {
        launch->child[r].running = true;
    }
    return MS_OK;
}

void msi_reaper_signal(const ms_launch *launch, int32_t rank, int32_t signal)
{
    if (launch->line >= 0 && !send_to(launch->line, rank, signal) && signal == SIGKILL) {
        kill(launch->reaper, SIGKILL); /* its ranks die with it */
    }
}

bool msi_reaper_read_end(ms_launch *launch, int32_t *rank, int32_t *status)
{
    message m;

    if (launch->line < 0) {
        return false;
    }
    int32_t received = receive(launch->line, &m);

    if (received < 0) {
        hang_up(launch);
    } else if (received > 0) {
        *rank = m.rank;
        *status = m.number;
    }
    return received > 0;
}

void msi_reaper_end(ms_launch *launch)
{
    if (launch->line >= 0) {
        hang_up(launch);
    }
}
