/* Running one kernel on every instruction set this machine has, and checking two things: the bits
 * are the same on all, and each element lies within a bound of what plain code says. */
#ifndef MS_KERNEL_TEST_H
#define MS_KERNEL_TEST_H

#include "backend.h"
#include "typed.h"

enum { N_FLOAT_DTYPES = 4 };
static const int32_t float_dtypes[N_FLOAT_DTYPES] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16,
                                                     MS_DTYPE_F16};

/* Rounding of the type the kernels compute in. */
static inline double compute_epsilon(int32_t dtype)
{
    return dtype == MS_DTYPE_F64 ? 0x1p-53 : 0x1p-24;
}

static inline int64_t dtype_bytes(int32_t dtype)
{
    static const int64_t bytes[MS_DTYPE_COUNT] = {4, 8, 2, 8, 1, 1, 2, 4};

    return bytes[dtype];
}

/* Name the instruction sets that go untested here. */
static inline void report_missing_isas(void)
{
    for (int32_t isa = 2; isa <= 4; isa++) {
        if (msi_kernels_of(isa) == NULL) {
            print_message("SKIPPED: this machine does not run x86-64-v%d\n", (int)isa);
        }
    }
}

/* The case under test, which messages begin with; tests of one case need not name it. */
static char case_name[80];

__attribute__((format(printf, 1, 2))) static inline void name_case(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(case_name, sizeof(case_name) - 2, format, args);
    va_end(args);
    strcat(case_name, ": ");
}

/* A kernel call whose results are the bytes of up to 4 buffers. */
typedef struct kernel_call {
    int32_t kernel, dtype;
    const void *args; /* points at the buffers below */
    void *out[4];
    int64_t nbytes[4];
} kernel_call;

/* Run on the lowest instruction set, leave its results in the buffers, and fail unless every other
 * one, from the same start, gives the same bytes. */
static inline void run_on_all_isas(const kernel_call *c, const char *what)
{
    void *before[4], *first[4];
    const msi_kernel_table *lowest = NULL;

    for (int32_t k = 0; k < 4; k++) {
        before[k] = malloc((size_t)c->nbytes[k] + 1);
        first[k] = malloc((size_t)c->nbytes[k] + 1);
        memcpy(before[k], c->out[k] ? c->out[k] : "", (size_t)c->nbytes[k]);
    }
    for (int32_t isa = 2; isa <= 4; isa++) {
        const msi_kernel_table *table = msi_kernels_of(isa);

        if (table == NULL) {
            continue;
        }
        for (int32_t k = 0; k < 4; k++) {
            if (c->nbytes[k] > 0) {
                memcpy(c->out[k], before[k], (size_t)c->nbytes[k]);
            }
        }
        assert_non_null(table->fn[c->kernel][c->dtype]);
        table->fn[c->kernel][c->dtype](c->args);
        for (int32_t k = 0; k < 4 && c->nbytes[k] > 0; k++) {
            if (lowest == NULL) {
                memcpy(first[k], c->out[k], (size_t)c->nbytes[k]);
            } else if (memcmp(first[k], c->out[k], (size_t)c->nbytes[k]) != 0) {
                fail_msg("%s%s %s: %s differs from %s in buffer %d", case_name, what,
                         msi_kernel_name(c->kernel), table->isa, lowest->isa, (int)k);
            }
        }
        lowest = lowest != NULL ? lowest : table;
    }
    for (int32_t k = 0; k < 4; k++) {
        free(before[k]);
        free(first[k]);
    }
}

/* -- operands from any start ------------------------------------------------------------------- */

/* Row lengths 0 to 130 and first elements 0 to 63 past a 64-byte boundary: every own kernel is
 * tested at all of them. */
enum { N_LENGTHS = 131, N_STARTS = 64, N_GUARDS = 64 };

/* Elements inside a larger block. The bytes around them are 0xff, which is NaN in every dtype: a
 * read that matters shows in the results, a write in check_guards(). */
typedef struct placed {
    typed t;   /* the elements; borrowed from `all` */
    typed all; /* guards, elements, and guards again in operands that are written */
} placed;

/* n elements of filler stream `stream`, the first (start + 11 stream) % 64 elements past a 64-byte
 * boundary, so that the operands of one call start apart. */
static inline placed placed_make(int32_t dtype, int64_t n, int64_t start, uint64_t stream,
                                 int64_t n_behind)
{
    const int64_t n_before = N_GUARDS + (start + 11 * (int64_t)stream) % N_STARTS;
    placed o = {.t = {.dtype = dtype, .n = n},
                .all = {.dtype = dtype, .n = n_before + n + n_behind}};
    const size_t nbytes = (size_t)typed_nbytes(&o.all);

    if (posix_memalign(&o.all.data, 64, nbytes) != 0) {
        abort();
    }
    memset(o.all.data, 0xff, nbytes);
    o.t.data = (char *)o.all.data + n_before * dtype_bytes(dtype);
    for (int64_t i = 0; i < n; i++) {
        typed_set(&o.t, i, filler(stream, i));
    }
    return o;
}

/* What a kernel only reads: its block ends with the last element, so sanitizers see an overrun. */
static inline placed placed_read(int32_t dtype, int64_t n, int64_t start, uint64_t stream)
{
    return placed_make(dtype, n, start, stream, 0);
}

static inline placed placed_written(int32_t dtype, int64_t n, int64_t start, uint64_t stream)
{
    return placed_make(dtype, n, start, stream, N_GUARDS);
}

static inline void placed_free(placed *o)
{
    typed_free(&o->all);
    o->t.data = NULL;
}

/* Bytes [from, to), counted from the first element, are still 0xff. */
static inline void check_guard_bytes(const char *what, const placed *o, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        if (((const unsigned char *)o->t.data)[i] != 0xff) {
            fail_msg("%s%s: byte %lld, outside its %lld elements, was written", case_name, what,
                     (long long)i, (long long)o->t.n);
        }
    }
}

static inline void check_guards(const char *what, const placed *o)
{
    const int64_t before = (const char *)o->t.data - (const char *)o->all.data;

    check_guard_bytes(what, o, -before, 0);
    check_guard_bytes(what, o, typed_nbytes(&o->t), typed_nbytes(&o->all) - before);
}

/* A kernel that writes into n_out operands, on every instruction set; guards stay. */
static inline void run_placed(int32_t kernel, int32_t dtype, const void *args, placed *const out[],
                              int32_t n_out)
{
    kernel_call call = {.kernel = kernel, .dtype = dtype, .args = args};

    for (int32_t k = 0; k < n_out; k++) {
        call.out[k] = out[k]->all.data;
        call.nbytes[k] = typed_nbytes(&out[k]->all);
    }
    run_on_all_isas(&call, ms_dtype_name(dtype));
    for (int32_t k = 0; k < n_out; k++) {
        check_guards(msi_kernel_name(kernel), out[k]);
    }
}

/* |got - want| <= bound; NaN wants NaN, infinity wants the same infinity. */
static inline void check_element(const char *what, int64_t i, double got, double want, double bound)
{
    if (isnan(want) ? !isnan(got) : !(got == want || fabs(got - want) <= bound)) {
        fail_msg("%s%s: element %lld is %.17g, expected %.17g +- %g", case_name, what, (long long)i,
                 got, want, bound);
    }
}

#endif
