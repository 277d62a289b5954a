/* Blocking relayed signals in the launcher and in starting ranks. */
#include "launch.h"

#include <errno.h>
#include <sys/signalfd.h>

static const int relayed[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

ms_status msi_launch_block_signals(ms_launch *launch)
{
    sigemptyset(&launch->held);
    for (int32_t i = 0; i < MSI_COUNT(relayed); i++) {
        struct sigaction now;

        if (sigaction(relayed[i], NULL, &now) != 0 || now.sa_handler != SIG_IGN) {
            sigaddset(&launch->held, relayed[i]);
        }
    }
    pthread_sigmask(SIG_BLOCK, &launch->held, &launch->before);
    launch->signal_fd = signalfd(-1, &launch->held, SFD_CLOEXEC | SFD_NONBLOCK);
    if (launch->signal_fd < 0) {
        int error = errno;

        msi_launch_catch_signals(launch);
        return msi_fail_call("signalfd", error, "cannot start %d ranks", (int)launch->n);
    }
    return MS_OK;
}

void msi_launch_catch_signals(const ms_launch *launch)
{
    pthread_sigmask(SIG_SETMASK, &launch->before, NULL);
}
