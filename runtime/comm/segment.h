/* Making segments, for transports: in host memory (shm_segment.c) and device memory
 * (device_segment.c). */
#ifndef MSI_SEGMENT_H
#define MSI_SEGMENT_H

#include "group.h"

enum { MSI_WHY = 192 };

/* Why a member failed; MS_OK: it did not. */
typedef struct msi_refusal {
    ms_status status;
    char why[MSI_WHY];
} msi_refusal;

/* From `b.error`. */
msi_refusal msi_refusal_of(msi_bound b);
/* Exchange the first failure of any member: "rank 1 cannot map a shared segment of 4096 bytes:
 * ...", where `verb` is "map". */
ms_status msi_segment_agree(const msi_segment *s, uint64_t seq, const msi_refusal *mine,
                            const char *verb);
ms_status msi_shm_map(msi_segment *s, uint64_t seq);

/* -- device_segment.c -------------------------------------------------------------------------- */
ms_status msi_device_segment_map(msi_segment *s, uint64_t seq);
/* Without peers. */
ms_status msi_device_segment_take(msi_segment *s, uint64_t seq);
void msi_device_segment_free(const msi_segment *s);

#endif
