/* Joining a job whose ranks another launcher started. */
#ifndef MSI_JOB_ELSEWHERE_H
#define MSI_JOB_ELSEWHERE_H

#include "job.h"

/* True if another launcher's variables name this process one of several ranks. */
bool msi_is_started_elsewhere(void);
/* Join by the variables of torchrun, mpirun, srun, or MS_RANK. Collective over the job's processes.
 * `*joined` is false if none of them is set, or if they name a job of one rank. */
ms_status msi_join_elsewhere(msi_dist *d, const msi_job_guest *guest, bool *joined);

#endif
