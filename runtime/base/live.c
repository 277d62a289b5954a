#include "live.h"

#include <pthread.h>
#include <stdatomic.h>

enum { BUCKETS = 256 }; /* a power of two */

/* One list for the process: a rank may be a thread, and a host may use an object from another
 * thread than the one that made it. */
static struct {
    pthread_mutex_t lock;
    msi_live *bucket[BUCKETS];
    /* What was found open: asked for again, nothing is locked. */
    _Atomic(const void *) latest[MSI_LIVE_KINDS];
} live = {.lock = PTHREAD_MUTEX_INITIALIZER};

static msi_live **bucket_of(const void *object)
{
    uintptr_t bits = (uintptr_t)object >> 4; /* what malloc aligns to */

    return &live.bucket[(bits ^ (bits >> 8)) & (BUCKETS - 1)];
}

static void forget_latest(const msi_live *node)
{
    if (atomic_load_explicit(&live.latest[node->kind], memory_order_relaxed) == node->object) {
        atomic_store_explicit(&live.latest[node->kind], NULL, memory_order_release);
    }
}

void msi_live_add(msi_live *node, int32_t kind, const void *object)
{
    msi_live **head = bucket_of(object);

    pthread_mutex_lock(&live.lock);
    *node = (msi_live){.next = *head, .object = object, .kind = kind};
    *head = node;
    pthread_mutex_unlock(&live.lock);
}

void msi_live_remove(msi_live *node)
{
    if (node->object == NULL) {
        return;
    }
    pthread_mutex_lock(&live.lock);
    forget_latest(node);
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
    node->closed = true;
    forget_latest(node);
    pthread_mutex_unlock(&live.lock);
}

bool msi_live_is(int32_t kind, const void *object, bool *closed)
{
    bool found = false;

    if (object != NULL &&
        atomic_load_explicit(&live.latest[kind], memory_order_acquire) == object) {
        return true;
    }
    pthread_mutex_lock(&live.lock);
    for (const msi_live *n = *bucket_of(object); n != NULL && !found; n = n->next) {
        found = n->object == object && n->kind == kind;
        if (found && closed != NULL) {
            *closed = n->closed;
        }
        if (found && !n->closed) {
            atomic_store_explicit(&live.latest[kind], object, memory_order_release);
        }
    }
    pthread_mutex_unlock(&live.lock);
    return found;
}
