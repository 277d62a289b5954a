#include "live.h"

#include <pthread.h>
#include <stdatomic.h>

enum { BUCKETS = 256, REMEMBERED = 64 }; /* powers of two */

/* One list for the process: a rank may be a thread, and a host may use an object from another
 * thread than the one that made it. */
static struct {
    pthread_mutex_t lock;
    msi_live *bucket[BUCKETS];
    uint64_t serial;         /* of the latest */
    _Atomic uint64_t goings; /* objects removed or closed so far */
} live = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What this thread found open since the latest going: asked for again, nothing is locked, and no
 * word is written that other threads read. */
static _Thread_local struct {
    uint64_t goings;
    struct {
        const void *object;
        int32_t kind;
    } found[REMEMBERED];
} memory;

static uint32_t hash_of(const void *object)
{
    uintptr_t bits = (uintptr_t)object >> 4; /* what malloc aligns to */

    return (uint32_t)(bits ^ (bits >> 8));
}

static msi_live **bucket_of(const void *object)
{
    return &live.bucket[hash_of(object) & (BUCKETS - 1)];
}

void msi_live_add(msi_live *node, int32_t kind, const void *object)
{
    msi_live **head = bucket_of(object);

    pthread_mutex_lock(&live.lock);
    *node = (msi_live){.next = *head, .object = object, .serial = ++live.serial, .kind = kind};
    *head = node;
    pthread_mutex_unlock(&live.lock);
}

void msi_live_remove(msi_live *node)
{
    if (node->object == NULL) {
        return;
    }
    pthread_mutex_lock(&live.lock);
    atomic_fetch_add(&live.goings, 1);
    for (msi_live **place = bucket_of(node->object); *place != NULL; place = &(*place)->next) {
        if (*place == node) {
            *place = node->next;
            break;
        }
    }
    pthread_mutex_unlock(&live.lock);
    *node = (msi_live){0};
}

void msi_live_close(msi_live *node)
{
    pthread_mutex_lock(&live.lock);
    atomic_fetch_add(&live.goings, 1);
    node->closed = true;
    pthread_mutex_unlock(&live.lock);
}

/* Was it found before? Forgets all that something has gone since. */
static bool is_remembered(int32_t kind, const void *object)
{
    uint64_t goings = atomic_load_explicit(&live.goings, memory_order_acquire);
    uint32_t at = hash_of(object) & (REMEMBERED - 1);

    if (memory.goings != goings) {
        for (int32_t i = 0; i < REMEMBERED; i++) {
            memory.found[i].object = NULL;
        }
        memory.goings = goings;
    }
    return memory.found[at].object == object && memory.found[at].kind == kind;
}

/* Under the lock. */
static const msi_live *find(int32_t kind, const void *object)
{
    const msi_live *n = *bucket_of(object);

    while (n != NULL && (n->object != object || n->kind != kind)) {
        n = n->next;
    }
    return n;
}

bool msi_live_is(int32_t kind, const void *object, bool *closed)
{
    if (object == NULL) {
        return false;
    }
    if (is_remembered(kind, object)) {
        return true;
    }
    pthread_mutex_lock(&live.lock);
    const msi_live *n = find(kind, object);

    if (n != NULL && closed != NULL) {
        *closed = n->closed;
    }
    if (n != NULL && !n->closed && memory.goings == atomic_load(&live.goings)) {
        memory.found[hash_of(object) & (REMEMBERED - 1)].object = object;
        memory.found[hash_of(object) & (REMEMBERED - 1)].kind = kind;
    }
    pthread_mutex_unlock(&live.lock);
    return n != NULL;
}

uint64_t msi_live_serial(int32_t kind, const void *object)
{
    pthread_mutex_lock(&live.lock);
    const msi_live *n = find(kind, object);
    const uint64_t serial = n != NULL && !n->closed ? n->serial : 0;

    pthread_mutex_unlock(&live.lock);
    return serial;
}
