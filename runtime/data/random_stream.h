/* Random numbers with random access. */
#ifndef MSI_RANDOM_STREAM_H
#define MSI_RANDOM_STREAM_H

#include "base.h"

static const uint64_t MSI_GOLDEN = 0x9e3779b97f4a7c15u; /* splitmix64's step: 2^64 / phi */

/* Number `i` of stream `seed`: splitmix64. */
static inline uint64_t msi_stream(uint64_t seed, uint64_t i)
{
    return msi_mix64(msi_mix64(seed + MSI_GOLDEN) + MSI_GOLDEN * (i + 1));
}

#endif
