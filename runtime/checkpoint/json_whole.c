/* [Note: watching Jansson] While a text is parsed or written, an allocator stands in front of
 * Jansson's own that notes what it did not get. Only meanwhile: a host may use Jansson too, with
 * allocators of its own, and this library may be unloaded. What is allocated through it is the own
 * allocator's, so that it does not matter when it comes and goes. */
#include "json_whole.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int n_watching; /* threads; by `mutex` */
static _Atomic(json_malloc_t) own_malloc;
static json_free_t own_free; /* by `mutex` */
static _Thread_local bool refused;

static void *note(size_t n)
{
    void *p = atomic_load(&own_malloc)(n);

    refused = refused || p == NULL;
    return p;
}

static void watch(void)
{
    json_malloc_t found;

    refused = false;
    pthread_mutex_lock(&mutex);
    if (n_watching++ == 0) {
        json_get_alloc_funcs(&found, &own_free);
        atomic_store(&own_malloc, found);
        json_set_alloc_funcs(note, own_free);
    }
    pthread_mutex_unlock(&mutex);
}

/* @return whether this thread was refused memory since watch() */
static bool unwatch(void)
{
    pthread_mutex_lock(&mutex);
    if (--n_watching == 0) {
        json_set_alloc_funcs(atomic_load(&own_malloc), own_free);
    }
    pthread_mutex_unlock(&mutex);
    return refused;
}

/* Jansson tells its callers which flag they would need; who wrote the text has none. */
static void forget_flags(char *text)
{
    static const char advice[] = " without JSON_ALLOW_NUL";
    char *at = strstr(text, advice);

    if (at != NULL) {
        memmove(at, at + strlen(advice), strlen(at + strlen(advice)) + 1);
    }
}

json_t *ms_json_load(const char *text, size_t n, size_t flags, json_error_t *error, bool *no_memory)
{
    watch();
    json_t *value = json_loadb(text, n, flags, error);

    *no_memory = unwatch();
    if (*no_memory) {
        json_decref(value);
        return NULL;
    }
    if (value == NULL && error != NULL) {
        forget_flags(error->text);
    }
    return value;
}

char *ms_json_text(const json_t *value, size_t flags)
{
    watch();
    const size_t n = json_dumpb(value, NULL, 0, flags); /* 0 when memory is out */
    char *text = n > 0 ? malloc(n + 1) : NULL;
    const bool whole = text != NULL && json_dumpb(value, text, n, flags) == n;

    if (unwatch() || !whole) {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    return text;
}
