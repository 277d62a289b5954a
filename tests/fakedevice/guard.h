/* A device's memory, which only its items may touch: whoever else does, as the host, has a fault,
 * where a card would have one, too. One device's alone, in its thread. */
#ifndef MS_FAKE_GUARD_H
#define MS_FAKE_GUARD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct guard_range guard_range;

typedef struct guard {
    char *stretch;       /* of addresses, for what is taken; NULL: there was no room */
    guard_range *ranges; /* by address */
    int32_t n, room;
    bool open; /* items run */
} guard;

/* What is guarded from now on in this thread, for the line that tells of a fault. One that is all
 * zeros guards nothing. */
void guard_begin(guard *g);
void guard_end(guard *g);

/* Memory, guarded, that holds NaN. NULL: there is none. */
void *guard_take(guard *g, int64_t nbytes);
void guard_give(guard *g, void *p);

/* Guard a mapping of somebody else's. False: there is no memory for it. */
bool guard_add(guard *g, void *p, int64_t nbytes, bool readonly);
void guard_remove(guard *g, const void *p);

/* Items run from here on; and no more, until the next does. */
void guard_open(guard *g);
void guard_close(guard *g);

#endif
