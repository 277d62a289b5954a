/* Philox4x32-10 in plain C, word by word: what the vectorised generator is compared with. */
#ifndef MS_PHILOX_ORACLE_H
#define MS_PHILOX_ORACLE_H

#include <stdint.h>

static inline void philox_oracle(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53 * c[0], b = (uint64_t)0xcd9e8d57 * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};

        for (int i = 0; i < 4; i++) {
            c[i] = next[i];
        }
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
}

/* The key of a stream, from its definition in kernels/cpu/philox.h, with splitmix64's finalizer. */
static inline uint64_t oracle_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t oracle_key(uint64_t a, uint64_t b, uint64_t c)
{
    return oracle_mix(oracle_mix(oracle_mix(a) ^ b) ^ c);
}

/* Word j of counter {low, high} under a 64-bit key. */
static inline uint32_t oracle_word(uint64_t low, uint64_t high, uint64_t key, int j)
{
    uint32_t c[4] = {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)};

    philox_oracle(c, (uint32_t)key, (uint32_t)(key >> 32));
    return c[j];
}

#endif
