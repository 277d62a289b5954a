/* First values of parameters, any stretch of them: element i is a function of (seed, key, i).
 *
 * Elements 2q and 2q + 1 share Philox counter {q, 0} under philox_key(seed, key, 0). Words 0, 1 and
 * 2, 3 make two numbers of 53 bits in [0, 1): one element's each for the uniform distribution;
 * radius and angle of a Box-Muller pair (cosine, then sine) for the normal one. All in f64, rounded
 * once. */
#include "lanes.h"
#include "philox.h"
#include "table.h"

enum { PER_BLOCK = PHILOX_WORDS / 2 };

static double unit(const uint32_t *words)
{
    return (double)(((uint64_t)words[0] << 32 | words[1]) >> 11) * 0x1p-53;
}

/* Values of elements [32 block, 32 block + 32). */
static void values(double *out, const msi_init_args *a, int64_t block)
{
    uint32_t words[PHILOX_WORDS];

    philox(words, (uint64_t)block * LANES, 0, philox_key(a->seed, a->key, 0));
    for (int i = 0; i < LANES; i++) {
        const double u = unit(words + 4 * i), v = unit(words + 4 * i + 2);

        if (a->kind == MS_INIT_UNIFORM) {
            out[2 * i] = a->a + u * (a->b - a->a);
            out[2 * i + 1] = a->a + v * (a->b - a->a);
        } else {
            const double radius = a->b * sqrt(-2 * log(1 - u)), angle = 6.283185307179586477 * v;

            out[2 * i] = a->a + radius * cos(angle);
            out[2 * i + 1] = a->a + radius * sin(angle);
        }
    }
}

#define BODY "init_body.h"
#include "each_register.h"
