/* The launchers of a job's hosts: they meet before ranks start, and then exchange states of ranks,
 * the first failure and heartbeats. They never compute, so a silent one is unreachable or stopped.
 * Host 0 listens; the others connect to it, and it sends on what each of them reports. */
#ifndef MSI_JOB_AGENT_H
#define MSI_JOB_AGENT_H

#include "job.h"

#include <poll.h>

typedef struct msi_agent msi_agent;

/* Meet the launchers of all hosts, and fill the addresses of all ranks into the block.
 * @param hosts  its listener is closed when all have come
 * @param listeners  (n_local) of this host's ranks: made here
 * @return MS_COMM_ERROR  a host is missing after the time limit, or differs */
ms_status msi_agent_meet(msi_agent **out, msi_job *job, const ms_hosts *hosts, int32_t *listeners);
/* Descriptors to poll before msi_agent_move(): at most one for each host. */
nfds_t msi_agent_poll(const msi_agent *a, struct pollfd *fds);
/* Send what has changed on this host, and apply what others report. */
void msi_agent_move(msi_agent *a);
/* All ranks of this host have ended, with this exit code. */
void msi_agent_end(msi_agent *a, int32_t code);
/* The job's failure as all launchers report it: host 0's first. `text` is borrowed. False: none.
 * @param a  NULL: one host */
bool msi_agent_failure(const msi_agent *a, const msi_job *job, int32_t *subject, int32_t *cause,
                       const char **text);
/* Exit code of another host's ranks; 0: not known. */
int32_t msi_agent_code(const msi_agent *a, int32_t host);
/* All ranks of all hosts have ended, or their hosts are lost. */
bool msi_agent_has_ended(const msi_agent *a);
void msi_agent_free(msi_agent *a);

#endif
