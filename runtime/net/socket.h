/* TCP between the hosts of a job: addresses, listening, connecting, whole messages with a deadline.
 * Functions that return int return errno, 0 on success. */
#ifndef MSI_NET_SOCKET_H
#define MSI_NET_SOCKET_H

#include "base.h"

#include <sys/socket.h>

enum { MSI_ADDRESS_TEXT = 64, MSI_SECRET_WORDS = 4 };

/* An address with its port. Zeroed: none. */
typedef struct msi_address {
    struct sockaddr_storage at;
    uint32_t nbytes;
} msi_address;

/* What both ends of a connection know: a stranger does not. */
typedef struct msi_secret {
    uint64_t word[MSI_SECRET_WORDS];
} msi_secret;

/* From any text, e.g. of MOONSHARD_SECRET. */
msi_secret msi_secret_of(const char *text);

/* First message of a connection, in both directions. */
typedef struct msi_hello {
    uint64_t magic, layout; /* of the control block: differs between builds */
    msi_secret secret;
    int32_t from; /* a rank, or a host */
    int32_t to;
} msi_hello;

/* "10.0.0.1:29500" */
const char *msi_address_text(const msi_address *a, char *buffer, size_t nbytes);
uint16_t msi_address_port(const msi_address *a);
/* The same host, any port. */
void msi_address_any_port(msi_address *a);
/* Of a name or number. MS_VALUE_ERROR: unknown. */
ms_status msi_address_find(msi_address *out, const char *host, int32_t port);
/* Listen on exactly `*a`; port 0 becomes the one that the system chose. */
ms_status msi_net_listen(int32_t *fd, msi_address *a);
/* Listen on `host`, at a port that the system chooses. */
ms_status msi_net_listen_anywhere(int32_t *fd, const char *host, int32_t *port);
/* One attempt, with the deadline for its answer. */
int msi_net_connect_once(int32_t *fd, const msi_address *to, int64_t deadline_ns);
/* Connect; while nobody listens, or the host is unreachable, try again until the deadline. */
int msi_net_connect(int32_t *fd, const msi_address *to, int64_t deadline_ns);
/* All of it. */
int msi_net_send(int32_t fd, const void *data, size_t nbytes, int64_t deadline_ns);
/* All of it; ECONNRESET at the end of the stream. */
int msi_net_receive(int32_t fd, void *data, size_t nbytes, int64_t deadline_ns);
/* Send small messages at once; fail when the other end has not acknowledged for five seconds. */
void msi_net_tune(int32_t fd);

#endif
