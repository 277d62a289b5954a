/* Private part of messages: their state, and moving them. */
#ifndef MSI_CHANNEL_H
#define MSI_CHANNEL_H

#include "group.h"

#include "tensor.h"

enum { MSI_ANY_RANK = -1, MSI_MESSAGE_TEXT = MS_MAX_DIMS * 22 + 16 };

/* At the begin of a message's first chunk. */
typedef struct msi_message_head {
    int64_t numel;
    int64_t shape[MS_MAX_DIMS];
    int32_t dtype, ndim, tag, unused;
} msi_message_head;

struct ms_message {
    ms_message *next; /* pending ones of this rank, in the order of their calls */
    ms_comm *comm;    /* borrowed; valid while pending */
    ms_tensor *t;     /* retained while pending */
    msi_host_view host;
    msi_message_head head;
    int64_t at, nbytes;
    int32_t peer; /* a member; MSI_ANY_RANK: not found yet */
    bool sends, begun, done, freed;
    ms_status status; /* once done */
    char error[512];  /* its text */
};

/* "f32 (2), tag 0" */
const char *msi_message_text(const msi_message_head *h, char *buffer, size_t nbytes);
/* Make it the last pending message of this rank. */
void msi_message_append(ms_message *m);
/* Can it move on now? Loads only. */
bool msi_message_may_move(const ms_message *m);

#endif
