/* When a host's garbage collector should run: what it will let go of still holds memory.
 *
 * A collector sees a ref of a few bytes, and not the megabytes behind it: a tensor, or the graph of
 * a forward that nobody differentiated. So what is held is compared with what was held when it ran
 * last, all of which was needed. It runs again when as much has come as the larger of 256 MiB and
 * the activations it left; when less memory than that is left, before what came exceeds what is
 * left, however many ranks share it.
 *
 * [Note: falls] What was needed then may have gone since. So what is held is compared with what a
 * fall left, too, and a climb from there is looked into again: where the collector leaves most of
 * what came, the climb is that of a step, and later falls to where it began change nothing. Where
 * the collector lets go of most of it, no step is known any more. So a step that holds the same
 * again asks for nothing from its third round on, whatever its size; and what is leaked is no more
 * than what is needed, or than what the known step needs.
 */
#ifndef MSI_PRESSURE_H
#define MSI_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct msi_pressure {
    int64_t base;      /* bytes held when the collector had run, or after a fall since */
    int64_t limit;     /* it runs again when more than that is held */
    int64_t known;     /* a step climbs from here; INT64_MAX: none is known */
    bool fell;         /* base was lowered since the collector ran */
    int64_t look_from; /* between here and look_span above it nothing needs to be looked at */
    uint64_t look_span;
} msi_pressure;

/* Nothing is held yet. */
void msi_pressure_init(msi_pressure *p);

/* Is there nothing to look at, now that `held` bytes are held? */
static inline bool msi_pressure_is_calm(const msi_pressure *p, int64_t held)
{
    return (uint64_t)held - (uint64_t)p->look_from <= p->look_span;
}

/* Where `held` bytes are so few that what was needed has gone: start from these, `activations` of
 * them in activations. Returns whether it did. */
bool msi_pressure_fall(msi_pressure *p, int64_t held, int64_t activations);

/* Should the collector run, as `held` bytes are held and `left` can still be taken? */
bool msi_pressure_due(msi_pressure *p, int64_t held, int64_t left);

/* The collector has left `held` bytes, `activations` of them in activations. */
void msi_pressure_collected(msi_pressure *p, int64_t held, int64_t activations);

#endif
