/* Every allocation and system call that a checkpoint makes, each of which can fail: the linker puts
 * the functions below in front of the C library's (see CMakeLists.txt). For the test program that
 * includes it. */
#ifndef FAULTY_CALLS_H
#define FAULTY_CALLS_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALLOCATIONS = 1, CALLS, SHORT_TRANSFERS };

/* The fault this thread is to meet. */
typedef struct fault {
    int kind;      /* 0: none */
    int countdown; /* calls of that kind that still pass */
    bool for_good; /* all later ones too */
    int error;
    int n_struck;
} fault;

static _Thread_local fault armed;

static bool strikes(int kind)
{
    if (armed.kind != kind || armed.countdown < 0) {
        return false;
    }
    if (armed.countdown > 0) {
        armed.countdown--;
        return false;
    }
    armed.n_struck++;
    armed.countdown = armed.for_good ? 0 : -1;
    errno = armed.error;
    return true;
}

/* name(params) fails with `failure` when it is its turn. */
#define FAULTY(kind, type, name, params, args, failure)                                            \
    type __real_##name params;                                                                     \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params                                                                      \
    {                                                                                              \
        return strikes(kind) ? (failure) : __real_##name args;                                     \
    }

FAULTY(ALLOCATIONS, void *, malloc, (size_t n), (n), NULL)
FAULTY(ALLOCATIONS, void *, calloc, (size_t n, size_t size), (n, size), NULL)
FAULTY(ALLOCATIONS, void *, realloc, (void *p, size_t n), (p, n), NULL)
FAULTY(ALLOCATIONS, char *, strdup, (const char *s), (s), NULL)
FAULTY(ALLOCATIONS, int, vasprintf, (char **out, const char *format, va_list args),
       (out, format, args), -1)
FAULTY(CALLS, int, fstat, (int fd, struct stat *st), (fd, st), -1)
FAULTY(CALLS, int, stat, (const char *path, struct stat *st), (path, st), -1)
FAULTY(CALLS, int, lstat, (const char *path, struct stat *st), (path, st), -1)
FAULTY(CALLS, int, mkdir, (const char *path, mode_t mode), (path, mode), -1)
FAULTY(CALLS, int, rmdir, (const char *path), (path), -1)
FAULTY(CALLS, int, unlink, (const char *path), (path), -1)
FAULTY(CALLS, int, unlinkat, (int dir, const char *path, int flags), (dir, path, flags), -1)
FAULTY(CALLS, int, symlink, (const char *to, const char *path), (to, path), -1)
FAULTY(CALLS, int, rename, (const char *from, const char *to), (from, to), -1)
FAULTY(CALLS, int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
       (a, from, b, to, flags), -1)
FAULTY(CALLS, int, access, (const char *path, int mode), (path, mode), -1)
FAULTY(CALLS, int, flock, (int fd, int how), (fd, how), -1)
FAULTY(CALLS, ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags), -1)
FAULTY(CALLS, ssize_t, readlink, (const char *path, char *to, size_t n), (path, to, n), -1)
FAULTY(CALLS, DIR *, opendir, (const char *path), (path), NULL)
FAULTY(CALLS, DIR *, fdopendir, (int fd), (fd), NULL)
FAULTY(CALLS, struct dirent *, readdir, (DIR * dir), (dir), NULL)
FAULTY(CALLS, char *, realpath, (const char *path, char *to), (path, to), NULL)

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
    va_list args;

    va_start(args, command);
    const int at_least = va_arg(args, int); /* F_DUPFD_CLOEXEC's; no other command is used */

    va_end(args);
    return strikes(CALLS) ? -1 : __real_fcntl(fd, command, at_least);
}

/* Files with this in their path are never kept, which only closing them tells. NULL: none. */
static _Thread_local const char *lost;

static bool is_lost(int fd)
{
    char link[64], path[512];

    if (lost == NULL) {
        return false;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t n = __real_readlink(link, path, sizeof(path) - 1);

    path[n > 0 ? n : 0] = '\0';
    return strstr(path, lost) != NULL;
}

/* One that fails has closed all the same. */
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    const bool fails = is_lost(fd);
    const int result = __real_close(fd);

    if (fails) {
        errno = EDQUOT;
    }
    return fails || strikes(CALLS) ? -1 : result;
}

int __real_closedir(DIR *dir);
int __wrap_closedir(DIR *dir);
int __wrap_closedir(DIR *dir)
{
    const int result = __real_closedir(dir);

    return strikes(CALLS) ? -1 : result;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;

    va_end(args);
    return strikes(CALLS) ? -1 : __real_open(path, flags, mode);
}

/* What is synced is another test's question; here it would only take time. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    (void)fd;
    return strikes(CALLS) ? -1 : 0;
}

ssize_t __real_pwrite(int fd, const void *from, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t at)
{
    if (strikes(CALLS)) {
        return -1;
    }
    return __real_pwrite(fd, from, strikes(SHORT_TRANSFERS) ? (n + 1) / 2 : n, at);
}

ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
    if (strikes(CALLS)) {
        return -1;
    }
    return __real_pread(fd, to, strikes(SHORT_TRANSFERS) ? (n + 1) / 2 : n, at);
}

#endif
