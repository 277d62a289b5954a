/* Sockets: one per rank process, into which others send file descriptors.
 *
 * A rank may be in several groups, so a message may arrive before it is needed: it is kept.
 * Messages of earlier calls of the same group belong to failed attempts and are discarded. */
#include "job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct msi_descriptor_kept {
    struct msi_descriptor_kept *next;
    msi_purpose purpose;
    int32_t fd;
} msi_descriptor_kept;

ms_status msi_descriptors_new(msi_job *job)
{
    const int32_t first = job->block->first;

    for (int32_t r = first; r < first + job->block->n_local; r++) {
        if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, job->socket[r]) != 0) {
            return msi_fail_call("socketpair", errno, "cannot make the socket of rank %d", (int)r);
        }
    }
    return MS_OK;
}

static void close_fd(int32_t *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

void msi_descriptors_keep(msi_job *job, int32_t rank)
{
    for (int32_t r = 0; r < job->world; r++) {
        close_fd(&job->socket[r][r == rank ? 1 : 0]);
    }
}

void msi_descriptors_free(msi_job *job)
{
    for (int32_t r = 0; r < job->world; r++) {
        close_fd(&job->socket[r][0]);
        close_fd(&job->socket[r][1]);
    }
    while (job->kept != NULL) {
        msi_descriptor_kept *first = job->kept;

        job->kept = first->next;
        close(first->fd);
        free(first);
    }
}

int msi_descriptors_send(const msi_job *job, int32_t rank, msi_purpose purpose, int32_t fd)
{
    struct iovec part = {.iov_base = &purpose, .iov_len = sizeof(purpose)};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

    purpose.nonce = job->block->nonce;
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    while (sendmsg(job->socket[rank][1], &message, MSG_NOSIGNAL) < 0) {
        if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* Read the next message. Returns errno; `*fd` is -1 if it has no descriptor. */
static int take_message(const msi_job *job, int32_t rank, msi_purpose *purpose, int32_t *fd)
{
    struct iovec part = {.iov_base = purpose, .iov_len = sizeof(*purpose)};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    ssize_t n;

    *fd = -1;
    while ((n = recvmsg(job->socket[rank][0], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0 &&
           errno == EINTR) {
    }
    if (n < 0) {
        return errno;
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) { /* descriptor limit reached */
        return EMFILE;
    }
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

    if (rights != NULL && rights->cmsg_type == SCM_RIGHTS) {
        memcpy(fd, CMSG_DATA(rights), sizeof(*fd));
    }
    if (n != sizeof(*purpose) || purpose->nonce != job->block->nonce) { /* not of this job */
        close_fd(fd);
    }
    return 0;
}

/* Index of a kept message; -1: none. */
static int32_t find_kept(msi_job *job, msi_purpose purpose)
{
    int32_t found = -1;

    for (msi_descriptor_kept **at = &job->kept; *at != NULL;) {
        msi_descriptor_kept *k = *at;

        if (k->purpose.group != purpose.group) {
            at = &k->next;
            continue;
        }
        if (k->purpose.seq == purpose.seq) {
            found = k->fd;
        } else {
            close(k->fd);
        }
        *at = k->next;
        free(k);
    }
    return found;
}

/* Returns errno. */
static int keep_message(msi_job *job, msi_purpose purpose, int32_t fd)
{
    msi_descriptor_kept *k = malloc(sizeof(*k));

    if (k == NULL) {
        close(fd);
        return ENOMEM;
    }
    *k = (msi_descriptor_kept){.next = job->kept, .purpose = purpose, .fd = fd};
    job->kept = k;
    return 0;
}

int msi_descriptors_receive(msi_job *job, int32_t rank, msi_purpose purpose, int32_t *fd)
{
    *fd = find_kept(job, purpose);
    while (*fd < 0) {
        msi_purpose got = {0};
        int32_t its;
        int error = take_message(job, rank, &got, &its);

        if (error == 0 && its >= 0) {
            if (got.group != purpose.group) {
                error = keep_message(job, got, its);
            } else if (got.seq == purpose.seq) {
                *fd = its;
            } else {
                close(its);
            }
        }
        if (error != 0) {
            return error;
        }
    }
    return 0;
}
