#include "pressure.h"

enum {
    LEAST = 256 << 20, /* allowance */
    LOOKS = 32         /* before all is used up that is allowed, or left */
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void msi_pressure_begin(msi_pressure *p, int64_t held, int64_t activations)
{
    p->base = held;
    p->allowance = activations > LEAST ? activations : LEAST;
    p->look_at = held + LEAST / LOOKS;
}

bool msi_pressure_due(msi_pressure *p, int64_t held, int64_t left)
{
    const int64_t come = held - p->base;

    if (come > p->allowance || come > left) {
        return true;
    }
    p->look_at = held + smaller(p->allowance - come, left / LOOKS);
    return false;
}
