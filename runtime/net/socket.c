#include "socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 256, AGAIN_NS = 20000000, UNACKNOWLEDGED_MS = 5000 };

msi_secret msi_secret_of(const char *text)
{
    msi_secret s;
    uint64_t hash = (uint64_t)strlen(text);

    for (int32_t i = 0; i < MSI_SECRET_WORDS; i++) {
        hash = msi_mix64(hash ^ ms_hash_bytes(text, (int64_t)strlen(text)));
        s.word[i] = hash;
    }
    return s;
}

/* -- addresses --------------------------------------------------------------------------------- */

uint16_t msi_address_port(const msi_address *a)
{
    const struct sockaddr_in *v4 = (const void *)&a->at;
    const struct sockaddr_in6 *v6 = (const void *)&a->at;

    return ntohs(a->at.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

void msi_address_any_port(msi_address *a)
{
    struct sockaddr_in *v4 = (void *)&a->at;
    struct sockaddr_in6 *v6 = (void *)&a->at;

    *(a->at.ss_family == AF_INET6 ? &v6->sin6_port : &v4->sin_port) = 0;
}

const char *msi_address_text(const msi_address *a, char *buffer, size_t nbytes)
{
    const struct sockaddr_in *v4 = (const void *)&a->at;
    const struct sockaddr_in6 *v6 = (const void *)&a->at;
    const bool is_v6 = a->at.ss_family == AF_INET6;
    char host[INET6_ADDRSTRLEN] = "unknown";

    if (a->nbytes > 0) {
        inet_ntop(a->at.ss_family, is_v6 ? (const void *)&v6->sin6_addr : &v4->sin_addr, host,
                  sizeof(host));
    }
    snprintf(buffer, nbytes, is_v6 ? "[%s]:%d" : "%s:%d", host, (int)msi_address_port(a));
    return buffer;
}

ms_status msi_address_find(msi_address *out, const char *host, int32_t port)
{
    const struct addrinfo wanted = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[16];

    snprintf(service, sizeof(service), "%d", (int)port);
    const int error = getaddrinfo(host, service, &wanted, &found);

    if (error != 0) {
        return MS_FAIL(MS_VALUE_ERROR, "host '%s' has no address: %s", host, gai_strerror(error));
    }
    *out = (msi_address){.nbytes = found->ai_addrlen};
    memcpy(&out->at, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return MS_OK;
}

/* -- connections ------------------------------------------------------------------------------- */

void msi_net_tune(int32_t fd)
{
    const int on = 1, limit_ms = UNACKNOWLEDGED_MS;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms));
}

ms_status msi_net_listen(int32_t *fd, msi_address *a)
{
    const int on = 1;
    char text[MSI_ADDRESS_TEXT];

    *fd = socket(a->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd >= 0) {
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    }
    if (*fd < 0 || bind(*fd, (const struct sockaddr *)&a->at, a->nbytes) != 0 ||
        listen(*fd, BACKLOG) != 0 || getsockname(*fd, (struct sockaddr *)&a->at, &a->nbytes) != 0) {
        const int error = errno;

        if (*fd >= 0) {
            close(*fd);
        }
        *fd = -1;
        return MS_FAIL(MS_COMM_ERROR, "cannot listen on %s: %s",
                       msi_address_text(a, text, sizeof(text)), strerrordesc_np(error));
    }
    return MS_OK;
}

ms_status msi_net_listen_anywhere(int32_t *fd, const char *host, int32_t *port)
{
    msi_address a;

    MS_TRY(msi_address_find(&a, host, 0));
    MS_TRY(msi_net_listen(fd, &a));
    *port = msi_address_port(&a);
    if (*fd <= STDERR_FILENO) { /* closed by who started this process */
        const int32_t low = *fd;

        *fd = fcntl(low, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        close(low);
    }
    return *fd >= 0
               ? MS_OK
               : MS_FAIL(MS_COMM_ERROR, "cannot listen on %s: %s", host, strerrordesc_np(errno));
}

/* Wait for `events`. Returns errno. */
static int wait_for(int32_t fd, short events, int64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = events};

    for (;;) {
        const int64_t left_ms = (deadline_ns - msi_now_ns()) / 1000000;
        const int n = left_ms < 0 ? 0 : poll(&p, 1, left_ms > 1000 ? 1000 : (int)left_ms + 1);

        if (n > 0) {
            return 0;
        }
        if (n < 0 && errno != EINTR) {
            return errno;
        }
        if (left_ms < 0) {
            return ETIMEDOUT;
        }
    }
}

int msi_net_connect_once(int32_t *fd, const msi_address *to, int64_t deadline_ns)
{
    int error = 0;
    socklen_t n = sizeof(error);

    *fd = socket(to->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) {
        return errno;
    }
    if (connect(*fd, (const struct sockaddr *)&to->at, to->nbytes) != 0) {
        error = errno == EINPROGRESS ? wait_for(*fd, POLLOUT, deadline_ns) : errno;
        if (error == 0) {
            getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &n);
        }
    }
    if (error != 0) {
        close(*fd);
        *fd = -1;
        return error;
    }
    msi_net_tune(*fd);
    return 0;
}

int msi_net_connect(int32_t *fd, const msi_address *to, int64_t deadline_ns)
{
    const struct timespec moment = {.tv_nsec = AGAIN_NS};
    int error;

    while ((error = msi_net_connect_once(fd, to, deadline_ns)) != 0 && error != ETIMEDOUT &&
           msi_now_ns() < deadline_ns) {
        if (error != ECONNREFUSED && error != EHOSTUNREACH && error != ENETUNREACH) {
            return error;
        }
        nanosleep(&moment, NULL);
    }
    return error;
}

int msi_net_send(int32_t fd, const void *data, size_t nbytes, int64_t deadline_ns)
{
    const char *at = data;

    while (nbytes > 0) {
        const ssize_t n = send(fd, at, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n >= 0) {
            at += n;
            nbytes -= (size_t)n;
            continue;
        }
        const int error = errno == EAGAIN  ? wait_for(fd, POLLOUT, deadline_ns)
                          : errno == EINTR ? 0
                                           : errno;

        if (error != 0) {
            return error;
        }
    }
    return 0;
}

int msi_net_receive(int32_t fd, void *data, size_t nbytes, int64_t deadline_ns)
{
    char *at = data;

    while (nbytes > 0) {
        const ssize_t n = recv(fd, at, nbytes, MSG_DONTWAIT);

        if (n > 0) {
            at += n;
            nbytes -= (size_t)n;
            continue;
        }
        const int error = n == 0            ? ECONNRESET
                          : errno == EAGAIN ? wait_for(fd, POLLIN, deadline_ns)
                          : errno == EINTR  ? 0
                                            : errno;

        if (error != 0) {
            return error;
        }
    }
    return 0;
}
