/* Running a test in a child process: what it opens, loads or breaks goes with it. */
#ifndef CHILD_TEST_H
#define CHILD_TEST_H

#include "ms_test.h"

#include <sys/wait.h>
#include <unistd.h>

/* In the child: fail with the place, the condition and the runtime's own message. */
#define CHILD_CHECK(cond)                                                                          \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s does not hold (%s)\n", __FILE__, __LINE__, #cond,           \
                    ms_error_message());                                                           \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* `body` returns 0 in a child, which leaves with that. */
static inline void in_child(int (*body)(void))
{
    pid_t pid = fork();
    int status = 0;

    if (pid == 0) {
        _exit(body());
    }
    assert_int_equal(pid, waitpid(pid, &status, 0));
    assert_true(WIFEXITED(status));
    assert_int_equal(0, WEXITSTATUS(status));
}

#endif
