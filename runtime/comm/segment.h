/* Making segments, for transports: of the host's memory (shm_segment.c), of a device's
 * (device_segment.c). */
#ifndef MSI_SEGMENT_H
#define MSI_SEGMENT_H

#include "group.h"

enum { MSI_WHY = 192 };

/* Why a member cannot do its part; MS_OK: it can. */
typedef struct msi_refusal {
    ms_status status;
    char why[MSI_WHY];
} msi_refusal;

/* What failed by `b.error`, if anything did. */
msi_refusal msi_refusal_of(msi_bound b);
/* Every member learns the first refusal of any: "rank 1 cannot map a shared segment of 4096 bytes:
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
