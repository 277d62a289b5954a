/* Memory is taken from one stretch of addresses, side by side, so that what protects it is mostly
 * one call; what finds no room there, and mappings of others, take one each. */
#include "guard.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const int64_t STRETCH = (int64_t)1 << 30;

struct guard_range {
    char *begin;
    int64_t nbytes; /* whole pages */
    int protection; /* while items run */
};

static int64_t whole_pages(int64_t nbytes)
{
    const int64_t page = sysconf(_SC_PAGESIZE);

    return nbytes > 0 ? (nbytes + page - 1) / page * page : page;
}

/* -- what a fault says ------------------------------------------------------------------------- */

static _Thread_local const guard *watching;

static bool holds(const guard *g, const char *p)
{
    for (int32_t i = 0; g != NULL && i < g->n; i++) {
        if (p >= g->ranges[i].begin && p - g->ranges[i].begin < g->ranges[i].nbytes) {
            return true;
        }
    }
    return false;
}

static struct sigaction before;

/* The instruction is tried again, for whoever handled faults before. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    static const char line[] = "fake device: the host touches the device's memory\n";

    (void)context;
    sigaction(number, &before, NULL);
    if (holds(watching, info->si_addr) && write(STDERR_FILENO, line, sizeof(line) - 1) < 0) {
        _exit(128 + number);
    }
}

void guard_begin(guard *g)
{
    const struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    struct sigaction now;

    void *stretch =
        mmap(NULL, (size_t)STRETCH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    *g = (guard){.stretch = stretch != MAP_FAILED ? stretch : NULL};
    watching = g;
    if (sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction != on_fault) {
        before = now;
        sigaction(SIGSEGV, &action, NULL);
    }
}

void guard_end(guard *g)
{
    if (g->stretch != NULL) {
        munmap(g->stretch, (size_t)STRETCH);
    }
    free(g->ranges);
    watching = NULL;
}

/* -- ranges ------------------------------------------------------------------------------------ */

static bool is_inside(const guard *g, const void *p)
{
    return g->stretch != NULL && (const char *)p >= g->stretch &&
           (const char *)p - g->stretch < STRETCH;
}

static void set_protection(void *p, int64_t nbytes, int protection)
{
    if (mprotect(p, (size_t)nbytes, protection) != 0) {
        abort();
    }
}

static void protect(const guard *g)
{
    for (int32_t first = 0, end; first < g->n; first = end) {
        const guard_range *r = &g->ranges[first], *last = r;

        end = first + 1;
        if (is_inside(g, r->begin)) {
            for (; end < g->n && is_inside(g, g->ranges[end].begin); end++) {
                last = &g->ranges[end];
            }
        }
        set_protection(r->begin, last->begin + last->nbytes - r->begin,
                       g->open ? r->protection : PROT_NONE);
    }
}

void guard_open(guard *g)
{
    if (!g->open) {
        g->open = true;
        protect(g);
    }
}

void guard_close(guard *g)
{
    if (g->open) {
        g->open = false;
        protect(g);
    }
}

bool guard_add(guard *g, void *p, int64_t nbytes, bool readonly)
{
    if (g->n == g->room) {
        const int32_t room = g->room > 0 ? 2 * g->room : 64;
        guard_range *ranges = realloc(g->ranges, sizeof(*ranges) * (size_t)room);

        if (ranges == NULL) {
            return false;
        }
        g->ranges = ranges;
        g->room = room;
    }
    int32_t at = g->n;

    for (; at > 0 && g->ranges[at - 1].begin > (char *)p; at--) {
        g->ranges[at] = g->ranges[at - 1];
    }
    g->ranges[at] = (guard_range){.begin = p,
                                  .nbytes = whole_pages(nbytes),
                                  .protection = readonly ? PROT_READ : PROT_READ | PROT_WRITE};
    g->n++;
    return g->open || mprotect(p, (size_t)g->ranges[at].nbytes, PROT_NONE) == 0;
}

void guard_remove(guard *g, const void *p)
{
    int32_t at = 0;

    while (g->ranges[at].begin != p) {
        at++;
    }
    memmove(&g->ranges[at], &g->ranges[at + 1], sizeof(*g->ranges) * (size_t)(g->n - at - 1));
    g->n--;
}

/* -- memory ------------------------------------------------------------------------------------ */

/* The first gap of the stretch that is wide enough, or NULL. */
static char *find_gap(const guard *g, int64_t nbytes)
{
    char *at = g->stretch;

    for (int32_t i = 0; at != NULL && i < g->n; i++) {
        const guard_range *r = &g->ranges[i];

        if (is_inside(g, r->begin)) {
            if (r->begin - at >= nbytes) {
                return at;
            }
            at = r->begin + r->nbytes;
        }
    }
    return at != NULL && g->stretch + STRETCH - at >= nbytes ? at : NULL;
}

static void drop(const guard *g, void *p, int64_t nbytes)
{
    if (!is_inside(g, p)) {
        munmap(p, (size_t)nbytes);
        return;
    }
    set_protection(p, nbytes, PROT_NONE);
    madvise(p, (size_t)nbytes, MADV_DONTNEED);
}

void *guard_take(guard *g, int64_t nbytes)
{
    const int64_t n = whole_pages(nbytes);
    void *p = find_gap(g, n);

    if (p != NULL) {
        set_protection(p, n, PROT_READ | PROT_WRITE);
    } else {
        p = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            return NULL;
        }
    }
    memset(p, 0xff, (size_t)n);
    if (!guard_add(g, p, n, false)) {
        drop(g, p, n);
        return NULL;
    }
    return p;
}

void guard_give(guard *g, void *p)
{
    int32_t at = 0;

    while (g->ranges[at].begin != p) {
        at++;
    }
    const int64_t nbytes = g->ranges[at].nbytes;

    guard_remove(g, p);
    drop(g, p, nbytes);
}
