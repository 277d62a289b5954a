/* Stopping by signal: signals set a word that ranks check after a step.
 *
 * Signal handling is per process, so this is the one file with globals outside contexts. */
#include "job.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static _Atomic uint32_t caught;               /* stop signals of this process, one bit each */
static _Atomic int64_t asked_at[SIGTERM + 1]; /* by signal: first arrival; 0: none */

static void on_signal(int signal)
{
    int64_t now = msi_now_ns(), first = 0;

    if (!atomic_compare_exchange_strong(&asked_at[signal], &first, now) &&
        (signal == SIGINT || signal == SIGTERM) && now - first >= MSI_AGAIN_MS * 1000000LL) {
        _exit(128 + signal); /* second request: exit unsaved */
    }
    atomic_fetch_or(&caught, 1U << signal);
}

bool msi_stop_has(uint32_t stop, int32_t signal)
{
    return signal <= SIGTERM && (stop >> signal & 1) != 0;
}

int32_t msi_stop_signal(uint32_t stop)
{
    uint32_t requests = stop & ~(1U << SIGUSR1);

    return requests != 0 ? 31 - __builtin_clz(requests) : stop != 0 ? SIGUSR1 : 0;
}

uint32_t msi_stop_look(const msi_dist *d)
{
    atomic_fetch_add(&d->job->block->rank[d->rank].looks, 1);
    return atomic_load(&caught) | atomic_load(&d->job->block->stop);
}

int32_t msi_stop_agreed(const msi_dist *d, uint32_t stop)
{
    if (stop != 0) {
        atomic_fetch_or(&d->job->block->stop, stop);
    }
    return msi_stop_signal(stop);
}

ms_status msi_stop_catch(const msi_dist *d)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    atomic_store(&caught, 0);
    for (int32_t i = 0; i < MSI_COUNT(asked_at); i++) {
        atomic_store(&asked_at[i], 0);
    }
    for (int32_t i = 0; i < MSI_COUNT(signals); i++) {
        struct sigaction old;

        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN) {
            continue; /* keeps nohup effective */
        }
        if (sigaction(signals[i], &action, NULL) != 0) {
            return MS_FAIL(MS_RUNTIME_ERROR, "cannot catch signal %d: %s", signals[i],
                           strerrordesc_np(errno));
        }
    }
    atomic_store(&d->job->block->rank[d->rank].catches, 1);
    return MS_OK;
}
