/* What every cmocka test uses. */
#ifndef MS_TEST_H
#define MS_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "moonshard.h"

/* Sanitizers make everything slow: long tests do a part. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

/* Print the runtime's own message when a call that must pass fails. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        ms_status s_ = (call);                                                                     \
        if (s_ != MS_OK) {                                                                         \
            fail_msg("%s -> %s: %s", #call, ms_status_name(s_), ms_error_message());               \
        }                                                                                          \
    } while (0)

/* The call fails with this kind, and its message contains `text`. */
#define assert_fails(kind, text, call)                                                             \
    do {                                                                                           \
        ms_status s_ = (call);                                                                     \
        if (s_ != (kind)) {                                                                        \
            fail_msg("%s -> %s, expected %s (%s)", #call, ms_status_name(s_),                      \
                     ms_status_name(kind), s_ ? ms_error_message() : "no error");                  \
        }                                                                                          \
        if (strstr(ms_error_message(), (text)) == NULL) {                                          \
            fail_msg("%s: message '%s' does not contain '%s'", #call, ms_error_message(), (text)); \
        }                                                                                          \
    } while (0)

/* |actual - expected| <= atol + rtol |expected| for every element; names the worst. */
void assert_close(const double *actual, const double *expected, int64_t n, double rtol,
                  double atol);
/* Of the CPU alone: MS_DEVICE names another, which ... */
static inline void skip_on_device(const char *why)
{
    const char *device = getenv("MS_DEVICE");

    if (device != NULL && strcmp(device, "cpu") != 0) {
        print_message("skipped: device '%s' %s\n", device, why);
        skip();
    }
}

/* Deterministic filler in [-1, 1): element i of stream k. */
double filler(uint64_t k, int64_t i);
/* A path in a fresh temporary folder that is removed when the process ends. */
const char *temp_path(const char *name);

#endif
