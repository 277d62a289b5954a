/* Processes that ranks started and left behind: they end with the launch.
 *
 * The launcher is the subreaper of its ranks: what a rank leaves behind becomes its child, however
 * it was started. (A launcher that is killed by SIGKILL takes its ranks along, but not these.) */
#include "launch.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The first child that has ended and waits to be reaped, 0: none has, -1: there are no children. */
static pid_t ended_child(void)
{
    siginfo_t info = {.si_pid = 0};

    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ? info.si_pid : -1;
}

static bool is_rank(const ms_launch *launch, pid_t pid)
{
    for (int32_t r = 0; r < launch->n; r++) {
        if (launch->child[r].running && launch->child[r].pid == pid) {
            return true;
        }
    }
    return false;
}

void msi_strays_adopt(ms_launch *launch)
{
    int adopted = 0;

    if (ended_child() >= 0) {
        return;
    }
    prctl(PR_GET_CHILD_SUBREAPER, &adopted);
    launch->adopted = adopted != 0;
    launch->adopts = prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
}

bool msi_strays_reap(const ms_launch *launch)
{
    pid_t pid = 0;

    while (launch->adopts && (pid = ended_child()) > 0 && !is_rank(launch, pid)) {
        waitpid(pid, NULL, 0);
    }
    return launch->adopts && pid >= 0;
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

void msi_strays_end(ms_launch *launch)
{
    const struct timespec moment = {.tv_nsec = 10000000};
    int64_t begin = msi_now_ns(), waited_ms = 0;

    if (!msi_strays_reap(launch)) {
        return;
    }
    signal_strays(SIGTERM);
    do {
        nanosleep(&moment, NULL);
        waited_ms = (msi_now_ns() - begin) / 1000000;
        if (waited_ms > MSI_GRACE_MS) {
            signal_strays(SIGKILL); /* also what the killed ones leave */
        }
    } while (msi_strays_reap(launch) && waited_ms < 2 * MSI_GRACE_MS);
}
