/* What tests of launchers share: waiting for processes, words in shared memory, and being the
 * ranks' program. */
#ifndef LAUNCH_TEST_H
#define LAUNCH_TEST_H

#include "rank_test.h"

#include "launch.h"

#include <signal.h>
#include <time.h>

static inline void sleep_ms(int64_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

/* Words the launchers and ranks of a test share with it. */
typedef struct scene {
    _Atomic int32_t ready;
    _Atomic int32_t pid[5]; /* of what ranks started, or of ranks */
} scene;

static inline scene *scene_new(void)
{
    return (scene *)(void *)reports_new(1);
}

static inline void scene_free(scene *x)
{
    reports_free((report *)(void *)x, 1);
}

static inline void wait_until_ready(scene *x, int32_t n)
{
    for (int32_t i = 0; i < 10000 && atomic_load(&x->ready) < n; i++) {
        sleep_ms(1);
    }
    assert_int_equal(atomic_load(&x->ready), n);
}

/* Exit code, 1000 + signal, or -1 when it still runs after 20 s. */
static inline int32_t code_of(pid_t pid)
{
    int status = 0;

    for (int32_t i = 0; i < 20000; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        }
        sleep_ms(1);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return -1;
}

static inline bool runs(pid_t pid)
{
    pid_t parent;
    char state = 'X';

    return msi_process_look(pid, &state, &parent) && state != 'Z' && state != 'X';
}

/* Does it end within 5 s? */
static inline bool ends_soon(pid_t pid)
{
    for (int32_t i = 0; i < 5000 && runs(pid); i++) {
        sleep_ms(1);
    }
    return !runs(pid);
}

static char *program
    __attribute__((unused)); /* this executable, which is also the ranks' program */

/* First in main(): as `test rank <what>` this is a rank, and where ranks cannot be forked there is
 * nothing to test. True: leave with `*code`. */
static inline bool is_no_test(int argc, char **argv, int (*rank_program)(const char *what),
                              int *code)
{
    program = argv[0];
    *code = 0;
    if (argc == 3 && strcmp(argv[1], "rank") == 0) {
        *code = rank_program(argv[2]);
        return true;
    }
    if (!CAN_FORK) {
        print_message("no ranks as processes under ThreadSanitizer\n");
    }
    return !CAN_FORK;
}

#endif
