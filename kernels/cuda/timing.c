/* MS_CUDA_TIME=1: device time by kernel, dtype and shape of product, by events around each call;
 * of products also the operations in a second. */
#include "cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    cuda_timed what;
    uint64_t calls;
    double ms;
} row;

/* A call between two events that may not have passed. */
typedef struct interval {
    cudaEvent_t begin, end;
    int32_t row;
} interval;

struct cuda_timing {
    row *rows;
    int32_t n_rows, rows_room;
    interval *intervals; /* those behind n are free: their events are reused */
    int32_t n, made;
    bool open; /* the last one has no end yet */
};

cuda_timing *cuda_timing_open(void)
{
    return calloc(1, sizeof(cuda_timing));
}

/* Add what has passed to its rows. */
static void collect(cuda_timing *t)
{
    int32_t n = 0;

    for (int32_t i = 0; i < t->n; i++) {
        interval *each = &t->intervals[i];
        float ms;

        if (cudaEventElapsedTime(&ms, each->begin, each->end) == cudaSuccess) {
            t->rows[each->row].ms += (double)ms;
        } else {
            const interval kept = t->intervals[n];

            t->intervals[n++] = *each;
            *each = kept;
        }
    }
    (void)cudaGetLastError(); /* cudaErrorNotReady, which the next launch would return */
    t->n = n;
}

static bool grow(cuda_timing *t)
{
    const int32_t made = t->made > 0 ? 2 * t->made : 256;
    interval *grown = realloc(t->intervals, (size_t)made * sizeof(*grown));

    if (grown == NULL) {
        return false;
    }
    t->intervals = grown;
    for (; t->made < made; t->made++) {
        interval *each = &t->intervals[t->made];

        if (cudaEventCreateWithFlags(&each->begin, cudaEventDefault) != cudaSuccess) {
            return false;
        }
        if (cudaEventCreateWithFlags(&each->end, cudaEventDefault) != cudaSuccess) {
            (void)cudaEventDestroy(each->begin);
            return false;
        }
    }
    return true;
}

/* -1: no memory. */
static int32_t row_of(cuda_timing *t, const cuda_timed *what)
{
    for (int32_t i = 0; i < t->n_rows; i++) {
        if (memcmp(&t->rows[i].what, what, sizeof(*what)) == 0) {
            return i;
        }
    }
    if (t->n_rows == t->rows_room) {
        const int32_t room = t->rows_room > 0 ? 2 * t->rows_room : 64;
        row *grown = realloc(t->rows, (size_t)room * sizeof(*grown));

        if (grown == NULL) {
            return -1;
        }
        t->rows = grown;
        t->rows_room = room;
    }
    t->rows[t->n_rows] = (row){.what = *what};
    return t->n_rows++;
}

void cuda_timing_begin(cuda_timing *t, cudaStream_t stream)
{
    if (t->n == t->made) {
        collect(t);
        if (2 * t->n >= t->made) {
            (void)grow(t); /* else the call is counted without its time */
        }
    }
    t->open = t->n < t->made && cudaEventRecord(t->intervals[t->n].begin, stream) == cudaSuccess;
}

void cuda_timing_end(cuda_timing *t, cudaStream_t stream, const cuda_timed *what)
{
    const int32_t at = row_of(t, what);

    if (at >= 0) {
        t->rows[at].calls++;
        if (t->open && cudaEventRecord(t->intervals[t->n].end, stream) == cudaSuccess) {
            t->intervals[t->n++].row = at;
        }
    }
    t->open = false;
}

/* -- the table --------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    const row *x = a, *y = b;

    return x->ms != y->ms ? (x->ms < y->ms) - (x->ms > y->ms)
                          : (x->calls < y->calls) - (x->calls > y->calls);
}

static void name(char *to, size_t room, const cuda_timed *w, const char *(*kernel_name)(int32_t))
{
    const char *dtype = cuda_dtype_names[w->dtype];

    if (w->kernel >= MSI_K_COUNT) {
        snprintf(to, room, "%s", w->kernel == CUDA_TIMED_COPY ? "memcpy" : "memset");
    } else if (w->kernel == MSI_K_gemm) {
        snprintf(to, room, "gemm %s -> %s, %lld x %lld x %lld, batch %lld", dtype,
                 cuda_dtype_names[w->c_dtype], (long long)w->m, (long long)w->n, (long long)w->k,
                 (long long)w->batch);
    } else {
        snprintf(to, room, "%s %s%s", kernel_name(w->kernel), dtype,
                 w->many      ? ", many tensors"
                 : w->library ? ", cuDNN"
                              : "");
    }
}

/* In one write, since ranks share stderr. */
static void print(cuda_timing *t, int card, const char *(*kernel_name)(int32_t))
{
    char *text = NULL, label[128];
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    uint64_t calls = 0;
    double ms = 0;

    if (f == NULL) {
        return;
    }
    for (int32_t i = 0; i < t->n_rows; i++) {
        calls += t->rows[i].calls;
        ms += t->rows[i].ms;
    }
    qsort(t->rows, (size_t)t->n_rows, sizeof(*t->rows), by_time);
    fprintf(f, "moonshard: device time by kernel, card %d (MS_CUDA_TIME)\n", card);
    fprintf(f, "%-58s %9s %12s %11s %7s %8s\n", "kernel", "calls", "total ms", "mean us", "share",
            "TFLOP/s");
    for (int32_t i = 0; i < t->n_rows; i++) {
        const row *r = &t->rows[i];
        const cuda_timed *w = &r->what;
        const double flops = 2.0 * (double)w->m * (double)w->n * (double)w->k * (double)w->batch;

        name(label, sizeof(label), w, kernel_name);
        fprintf(f, "%-58s %9llu %12.3f %11.2f %6.1f%%", label, (unsigned long long)r->calls, r->ms,
                1000 * r->ms / (double)r->calls, ms > 0 ? 100 * r->ms / ms : 0);
        if (flops > 0 && r->ms > 0) {
            fprintf(f, " %8.3g", flops * (double)r->calls / r->ms * 1e-9);
        }
        fputc('\n', f);
    }
    fprintf(f, "%-58s %9llu %12.3f\n", "all", (unsigned long long)calls, ms);
    if (fclose(f) == 0) {
        (void)fwrite(text, 1, size, stderr);
    }
    free(text);
}

void cuda_timing_close(cuda_timing *t, int card, const char *(*kernel_name)(int32_t))
{
    if (t == NULL) {
        return;
    }
    collect(t);
    print(t, card, kernel_name);
    for (int32_t i = 0; i < t->made; i++) {
        (void)cudaEventDestroy(t->intervals[i].begin);
        (void)cudaEventDestroy(t->intervals[i].end);
    }
    free(t->intervals);
    free(t->rows);
    free(t);
}
