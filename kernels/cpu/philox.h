/* Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011): word j of counter c under a key is a pure function of the three, so any part
 * of a random tensor can be made anywhere. */
#ifndef MSI_PHILOX_H
#define MSI_PHILOX_H

#include "lanes.h"

#include "base.h"

enum { PHILOX_WORDS = 4 * LANES };

/* The 64-bit key of a stream: three numbers folded by a bijection that spreads every bit. */
LANES_INLINE uint64_t philox_key(uint64_t a, uint64_t b, uint64_t c)
{
    return msi_mix64(msi_mix64(msi_mix64(a) ^ b) ^ c);
}

/* The four words of 16 counters (64-bit low parts first, first + 1, ..., one high part), in order.
 * A state word is the lower half of a 64-bit lane; what gathers in the upper half is never read. */
static inline void philox(uint32_t words[PHILOX_WORDS], uint64_t first, uint64_t high, uint64_t key)
{
    enum { N = LANES_REGISTER / 8 };
    const u64_part m0 = (u64_part){0} + 0xd2511f53, m1 = (u64_part){0} + 0xcd9e8d57;
    u64_part lane;

    for (int i = 0; i < N; i++) {
        lane[i] = (uint64_t)i;
    }
    for (int part = 0; part < LANES; part += N) {
        u64_part c0 = lane + (first + (uint64_t)part), c1 = c0 >> 32;
        u64_part c2 = (u64_part){0} + high, c3 = c2 >> 32;
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

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
        u64_part low = (c0 & 0xffffffff) | c1 << 32, high_words = (c2 & 0xffffffff) | c3 << 32;

        for (int i = 0; i < N; i++) {
            uint64_t two[2] = {low[i], high_words[i]};

            memcpy(words + 4 * (part + i), two, sizeof(two));
        }
    }
}

#endif
