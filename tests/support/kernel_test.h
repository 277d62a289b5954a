/* Running one kernel on every instruction set this machine has, and checking two things: the bits
 * are the same on all, and each element lies within a bound of what plain code says. */
#ifndef MS_KERNEL_TEST_H
#define MS_KERNEL_TEST_H

#include "backend.h"
#include "typed.h"

static const int32_t float_dtypes[] = {MS_DTYPE_F32, MS_DTYPE_F64, MS_DTYPE_BF16};

/* Rounding of the type the kernels compute in. */
static inline double compute_epsilon(int32_t dtype)
{
    return dtype == MS_DTYPE_F64 ? 0x1p-53 : 0x1p-24;
}

static inline int64_t dtype_bytes(int32_t dtype)
{
    static const int64_t bytes[MS_DTYPE_COUNT] = {4, 8, 2, 8, 1, 1};

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
            if (isa == 2) {
                memcpy(first[k], c->out[k], (size_t)c->nbytes[k]);
            } else if (memcmp(first[k], c->out[k], (size_t)c->nbytes[k]) != 0) {
                fail_msg("%s %s: %s differs from x86-64-v2 in buffer %d", what,
                         msi_kernel_name(c->kernel), table->isa, (int)k);
            }
        }
    }
    for (int32_t k = 0; k < 4; k++) {
        free(before[k]);
        free(first[k]);
    }
}

/* |got - want| <= bound; NaN wants NaN, infinity wants the same infinity. */
static inline void check_element(const char *what, int64_t i, double got, double want, double bound)
{
    if (isnan(want) ? !isnan(got) : !(got == want || fabs(got - want) <= bound)) {
        fail_msg("%s: element %lld is %.17g, expected %.17g +- %g", what, (long long)i, got, want,
                 bound);
    }
}

#endif
