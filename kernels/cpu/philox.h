/* Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1,
 * 2, 3", SC 2011): word j of counter c under a key is a pure function of the three, so any part of
 * a random tensor can be computed on its own. */
#ifndef MSI_PHILOX_H
#define MSI_PHILOX_H

#include "lanes.h"

#include "base.h"

enum { PHILOX_WORDS = 4 * LANES };

/* The 64-bit key of a stream: three numbers combined by a bijection that mixes all bits. */
LANES_INLINE uint64_t philox_key(uint64_t a, uint64_t b, uint64_t c)
{
    return msi_mix64(msi_mix64(msi_mix64(a) ^ b) ^ c);
}

enum { PHILOX_LANES = LANES_REGISTER / 8 };

/* Word j of PHILOX_LANES counters (64-bit low parts first, first + 1, ..., one high part) in c[j].
 * A state word is the lower half of a 64-bit lane; the upper half is garbage. */
LANES_INLINE void philox_rounds(u64_part c[4], uint64_t first, uint64_t high, uint64_t key)
{
    const u64_part m0 = (u64_part){0} + 0xd2511f53, m1 = (u64_part){0} + 0xcd9e8d57;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    u64_part lane;

    for (int i = 0; i < PHILOX_LANES; i++) {
        lane[i] = (uint64_t)i;
    }
    u64_part c0 = lane + first, c1 = c0 >> 32;
    u64_part c2 = (u64_part){0} + high, c3 = c2 >> 32;

#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        u64_part p0 = mul_low32(c0, m0), p1 = mul_low32(c2, m1);

        c0 = (p1 >> 32) ^ c1 ^ (uint64_t)k0;
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ (uint64_t)k1;
        c3 = p0;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    c[0] = c0;
    c[1] = c1;
    c[2] = c2;
    c[3] = c3;
}

/* The four words of 16 counters from `first` on, ordered by counter. */
static inline void philox(uint32_t words[PHILOX_WORDS], uint64_t first, uint64_t high, uint64_t key)
{
    for (int part = 0; part < LANES; part += PHILOX_LANES) {
        u64_part c[4];

        philox_rounds(c, first + (uint64_t)part, high, key);
        u64_part low = (c[0] & 0xffffffff) | c[1] << 32, upper = (c[2] & 0xffffffff) | c[3] << 32;

        for (int i = 0; i < PHILOX_LANES; i++) {
            uint64_t two[2] = {low[i], upper[i]};

            memcpy(words + 4 * (part + i), two, sizeof(two));
        }
    }
}

/* The same, ordered by word: word j of all counters in words[j]. */
static inline void philox_columns(uint32_t words[4][LANES], uint64_t first, uint64_t high,
                                  uint64_t key)
{
    uint64_t wide[4][LANES];

    for (int part = 0; part < LANES; part += PHILOX_LANES) {
        u64_part c[4];

        philox_rounds(c, first + (uint64_t)part, high, key);
        for (int j = 0; j < 4; j++) {
            memcpy(wide[j] + part, &c[j], sizeof(c[j]));
        }
    }
    for (int j = 0; j < 4; j++) {
        for (int i = 0; i < LANES; i++) {
            words[j][i] = (uint32_t)wide[j][i];
        }
    }
}

#endif
