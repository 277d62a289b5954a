/* Running one function as ranks, threads or processes, and what each rank has to tell afterwards.
 */
#ifndef RANK_TEST_H
#define RANK_TEST_H

#include "ms_test.h"

#include "comm.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ThreadSanitizer's own thread forbids forking ranks. */
#ifdef __SANITIZE_THREAD__
#define CAN_FORK false
#else
#define CAN_FORK true
#endif

/* In a rank: fail with the place and the condition. */
#define EXPECT(cond)                                                                               \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            return msi_fail(MS_ASSERTION_ERROR, "%s:%d: '%s' does not hold", __FILE__, __LINE__,   \
                            #cond);                                                                \
        }                                                                                          \
    } while (0)

/* Errors come within a second; but tests share their machine, which may stop them for longer, the
 * more so the slower they are. What waits in vain takes MS_COMM_TIMEOUT: minutes. */
enum { SOON_S = SANITIZED ? 20 : 5 };

/* Seconds in which a virtual machine was not run by its host, a mean of its cores: nothing comes
 * meanwhile. 0 where nobody counts them. */
static inline double stolen_seconds(void)
{
    double user, nice, system, idle, iowait, irq, softirq, steal = 0;
    FILE *f = fopen("/proc/stat", "r");

    if (f == NULL || fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle,
                            &iowait, &irq, &softirq, &steal) != 8) {
        steal = 0;
    }
    if (f != NULL) {
        fclose(f);
    }
    return steal / (double)(sysconf(_SC_CLK_TCK) * sysconf(_SC_NPROCESSORS_ONLN));
}

/* Seconds that this machine has run: what is to come soon is measured in them. */
static inline double run_seconds(void)
{
    return ms_time() - stolen_seconds();
}

typedef ms_status (*rank_fn)(void *user, int32_t rank);

/* What a rank leaves in memory that the test can read: private to threads' process, or shared. */
typedef struct report {
    ms_status status;
    double seconds;
    int64_t value;
    char message[1024];
} report;

static inline report *reports_new(int32_t n)
{
    void *p = mmap(NULL, sizeof(report) * (size_t)n, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(p != MAP_FAILED);
    return p;
}

static inline void reports_free(report *r, int32_t n)
{
    munmap(r, sizeof(report) * (size_t)n);
}

static inline void report_write(report *r, ms_status status, double since)
{
    r->status = status;
    r->seconds = ms_time() - since;
    snprintf(r->message, sizeof(r->message), "%s", status != MS_OK ? ms_error_message() : "");
}

/* Start `n` forked ranks; the calling test goes on as the launcher. */
static inline ms_launch *launch_processes(int32_t n, rank_fn fn, void *user)
{
    ms_launch *launch = NULL;
    int32_t rank = -1;

    assert_ok(ms_launch_fork(&launch, n, &rank));
    if (rank >= 0) {
        ms_status status = fn(user, rank);

        if (status != MS_OK) {
            ms_dist_abort(status, ms_error_message());
        }
        ms_close();
        ms_dist_exit(status == MS_OK ? 0 : 1);
    }
    return launch;
}

/* Exit code of a job of `n` processes; `*cause` as ms_launch_wait() gives it. */
static inline int32_t run_processes(int32_t n, rank_fn fn, void *user, const char **cause)
{
    ms_launch *launch = launch_processes(n, fn, user);
    int32_t code = -1;

    assert_ok(ms_launch_wait(launch, &code, cause));
    return code;
}

/* Every rank must succeed, as threads and as processes. */
static inline void run_ranks(int32_t n, rank_fn fn, void *user)
{
    const char *cause;

    assert_ok(ms_dist_threads(n, fn, user));
    if (CAN_FORK && run_processes(n, fn, user, &cause) != 0) {
        fail_msg("%d processes: %s", (int)n, cause);
    }
}

/* What a job says of a rank that failed ends in "(pid N)", which no test knows before. */
static inline const char *without_pid(const char *cause)
{
    static char text[1024];
    const char *pid = strstr(cause, " (pid ");
    const char *end = pid != NULL ? strchr(pid, ')') : NULL;

    assert_non_null(end);
    snprintf(text, sizeof(text), "%.*s%s", (int)(pid - cause), cause, end + 1);
    return text;
}

static inline int32_t count_entries(const char *folder)
{
    DIR *d = opendir(folder);
    int32_t n = 0;

    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        n += e->d_name[0] != '.';
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

/* What this process has open, and has mapped of memory that ranks share. */
typedef struct held {
    int32_t descriptors, maps;
} held;

static inline held held_now(void)
{
    held h = {.descriptors = count_entries("/proc/self/fd")};
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];

    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        h.maps += strstr(line, "/memfd:moonshard") != NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    return h;
}

/* No more than then, soon: a sanitizer opens files of its own now and then. */
static inline bool holds_no_more(held before)
{
    bool more = true;

    for (int32_t k = 0; k < 100 && more; k++) {
        const held now = held_now();

        more = now.descriptors > before.descriptors || now.maps > before.maps;
        if (more) {
            usleep(1000);
        }
    }
    return !more;
}

/* Ranks that are processes, where there may be some, all go well. */
static inline void run_only_processes(int32_t n, rank_fn fn, void *user)
{
    const char *cause;

    if (!CAN_FORK) {
        skip();
    }
    if (run_processes(n, fn, user, &cause) != 0) {
        fail_msg("%s", cause);
    }
}

static inline bool has_children(void)
{
    return waitpid(-1, NULL, WNOHANG) >= 0;
}

#endif
