/* [Note: watching Jansson] While a text is parsed or written, an allocator stands in front of
 * Jansson's own that notes what it did not get. Only meanwhile: a host may use Jansson too, with
 * allocators of its own, and this library may be unloaded. What is allocated through it is the own
 * allocator's, so that it does not matter when it comes and goes.
 *
 * [Note: refused while parsing] Jansson's lexer does not look whether its buffer could grow: it
 * drops the byte, perhaps a closing quote, and later reads and writes past the end of strings, or
 * aborts. So the first request that is refused is served from a reserve, which is taken before the
 * parse; all later ones are refused at once, and the text ends with the bytes that are in
 * Jansson's hands. These are fewer than make the buffer grow once more, and the parser bears that
 * it is refused: one request is all that the reserve has to serve. */
#include "json_whole.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The lexer's buffer begins with 16 bytes, and doubles when it is full: while a token of up to n
 * bytes is read, to no more than 2 n. */
enum { N_AT_A_TIME = 8, SMALL_TEXT = 512 };

/* What a thread does with Jansson meanwhile. */
typedef struct watch {
    char *reserve;
    size_t n_reserve;
    bool refused;
} watch;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int n_watching; /* threads; by `mutex` */
static _Atomic(json_malloc_t) own_malloc;
static _Atomic(json_free_t) own_free;
static _Thread_local watch *watching; /* NULL on threads of a host that uses Jansson itself */

static void *note(size_t n)
{
    watch *w = watching;
    void *p = w != NULL && w->refused ? NULL : atomic_load(&own_malloc)(n);

    if (p == NULL && w != NULL) {
        p = !w->refused && n <= w->n_reserve ? w->reserve : NULL;
        w->refused = true;
    }
    return p;
}

static void release(void *p)
{
    const json_free_t own = atomic_load(&own_free);

    if (watching == NULL || p == NULL || p != watching->reserve) {
        own(p);
    }
}

static void begin_watching(watch *w)
{
    json_malloc_t found_malloc;
    json_free_t found_free;

    watching = w;
    pthread_mutex_lock(&mutex);
    if (n_watching++ == 0) {
        json_get_alloc_funcs(&found_malloc, &found_free);
        atomic_store(&own_malloc, found_malloc);
        atomic_store(&own_free, found_free);
        json_set_alloc_funcs(note, release);
    }
    pthread_mutex_unlock(&mutex);
}

static void end_watching(void)
{
    pthread_mutex_lock(&mutex);
    if (--n_watching == 0) {
        json_set_alloc_funcs(atomic_load(&own_malloc), atomic_load(&own_free));
    }
    pthread_mutex_unlock(&mutex);
    watching = NULL;
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

typedef struct rest {
    const char *at, *end;
} rest;

/* The next bytes for Jansson: none any more once memory was refused. */
static size_t feed(void *buffer, size_t n_buffer, void *user)
{
    rest *r = user;
    const size_t left = watching->refused ? 0 : (size_t)(r->end - r->at);
    const size_t most = n_buffer < N_AT_A_TIME ? n_buffer : N_AT_A_TIME;
    const size_t n = left < most ? left : most;

    memcpy(buffer, r->at, n);
    r->at += n;
    return n;
}

/* What may lie in the reserve is gone when this returns. */
static json_t *parse(watch *w, const char *text, size_t n, size_t flags, json_error_t *error)
{
    rest r = {.at = text, .end = text + n};

    begin_watching(w);
    json_t *value = json_load_callback(feed, &r, flags, error);

    if (w->refused) {
        json_decref(value);
        value = NULL;
    }
    end_watching();
    return value;
}

json_t *ms_json_load(const char *text, size_t n, size_t flags, json_error_t *error, bool *no_memory)
{
    alignas(max_align_t) char small[2 * SMALL_TEXT];
    watch w = {.reserve = small, .n_reserve = 2 * n};

    *no_memory = n > SMALL_TEXT && (n > SIZE_MAX / 2 || (w.reserve = malloc(2 * n)) == NULL);
    if (*no_memory) {
        return NULL;
    }
    json_t *value = parse(&w, text, n, flags, error);

    if (w.reserve != small) {
        free(w.reserve);
    }
    *no_memory = w.refused;
    if (value == NULL && !w.refused && error != NULL) {
        forget_flags(error->text);
    }
    return value;
}

char *ms_json_text(const json_t *value, size_t flags)
{
    watch w = {0};

    begin_watching(&w);
    const size_t n = json_dumpb(value, NULL, 0, flags); /* 0 when memory is out */
    char *text = n > 0 ? malloc(n + 1) : NULL;
    const bool whole = text != NULL && json_dumpb(value, text, n, flags) == n;

    end_watching();
    if (w.refused || !whole) {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    return text;
}
