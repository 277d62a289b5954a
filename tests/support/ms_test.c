#include "ms_test.h"

#include <ftw.h>
#include <sys/types.h>
#include <unistd.h>

void assert_close(const double *actual, const double *expected, int64_t n, double rtol, double atol)
{
    int64_t worst = -1;
    double worst_excess = 0;

    for (int64_t i = 0; i < n; i++) {
        double excess = fabs(actual[i] - expected[i]) - (atol + rtol * fabs(expected[i]));

        if (!(excess <= 0) && !(actual[i] == expected[i]) &&
            !(isnan(actual[i]) && isnan(expected[i])) && (worst < 0 || excess > worst_excess)) {
            worst = i;
            worst_excess = excess;
        }
    }
    if (worst >= 0) {
        fail_msg("element %lld of %lld: %.17g, expected %.17g (rtol %g, atol %g)", (long long)worst,
                 (long long)n, actual[worst], expected[worst], rtol, atol);
    }
}

double filler(uint64_t k, int64_t i)
{
    uint64_t x = k * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;

    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (double)(int64_t)(x >> 11) * (2.0 / 9007199254740992.0) - 1.0;
}

static char folder[64];
static pid_t folder_owner;

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void remove_folder(void)
{
    if (getpid() == folder_owner) { /* not in forked ranks */
        nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
}

const char *temp_path(const char *name)
{
    static char path[256];

    if (folder[0] == '\0') {
        strcpy(folder, "/tmp/moonshard-test-XXXXXX");
        if (mkdtemp(folder) == NULL) {
            abort();
        }
        folder_owner = getpid();
        atexit(remove_folder);
    }
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}
