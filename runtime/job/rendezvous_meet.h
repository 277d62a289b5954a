/* The ways in which ranks meet, for rendezvous.c. */
#ifndef MSI_RENDEZVOUS_MEET_H
#define MSI_RENDEZVOUS_MEET_H

#include "rendezvous.h"
#include "socket.h"

/* Failures name the ranks that are missing, the address and the time limit. */
typedef struct msi_meeting {
    ms_status (*open)(void **state, const msi_place *p, int64_t timeout_ns);
    ms_status (*exchange)(void *state, const char *key, const void *in, int64_t nbytes, void *all,
                          int64_t timeout_ns);
    void (*close)(void *state);
} msi_meeting;

extern const msi_meeting msi_meet_master, msi_meet_store, msi_meet_pmix;

struct msi_rendezvous {
    msi_place place;
    const msi_meeting *meeting; /* NULL: one rank */
    void *state;
    int64_t timeout_ns;
    uint64_t nonce; /* rank 0's, which no other run has */
};

/* -- rendezvous_reach.c ------------------------------------------------------------------------ */
/* Connect to the place's master. */
ms_status msi_reach_master(int32_t *fd, const msi_place *p, int64_t timeout_ns);
/* Fail: the marked ranks have not come to `at`. */
ms_status msi_fail_missing(const msi_place *p, const bool *missing, const char *at,
                           int64_t timeout_ns);
/* The time limit: "60", "0.5" (seconds) */
const char *msi_seconds_text(int64_t ns);

#endif
