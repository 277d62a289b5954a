#include "pressure.h"

enum {
    LEAST = 256 << 20, /* may come */
    LOOKS = 32         /* before all is used up that is allowed, or left */
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Look again at more than `above`, or after a fall: of an eighth, as what lies between steps
 * varies, and may be used up a batch at a time. */
static void watch(msi_pressure *p, int64_t above)
{
    const int64_t low = smaller(p->base, p->known);

    p->look_from = low - low / 8 - LEAST / LOOKS;
    p->look_span = (uint64_t)(above - p->look_from);
}

static void start(msi_pressure *p, int64_t held, int64_t activations)
{
    p->base = held;
    p->limit = held + (activations > LEAST ? activations : LEAST);
    watch(p, held + LEAST / LOOKS);
}

void msi_pressure_init(msi_pressure *p)
{
    p->known = INT64_MAX;
    p->fell = false;
    start(p, 0, 0);
}

bool msi_pressure_fall(msi_pressure *p, int64_t held, int64_t activations)
{
    if (held >= p->look_from) {
        return false;
    }
    start(p, held, activations);
    p->fell = true;
    return true;
}

bool msi_pressure_due(msi_pressure *p, int64_t held, int64_t left)
{
    const int64_t come = held - p->base;

    if (held > p->limit || come > left) {
        p->limit = smaller(p->limit, held);
        return true;
    }
    watch(p, held + smaller(p->limit - held, left / LOOKS));
    return false;
}

/* See [Note: falls]. */
void msi_pressure_collected(msi_pressure *p, int64_t held, int64_t activations)
{
    if (held - p->base <= (p->limit - p->base) / 2) {
        p->known = INT64_MAX;
    } else if (p->fell) {
        p->known = p->base; /* which lies below one that was known */
    }
    p->fell = false;
    start(p, held, activations);
}
