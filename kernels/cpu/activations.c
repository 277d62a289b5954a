/* Elementwise exp, log, sin, cos and related functions, the activation functions, and their
 * gradients. */
#include "ew.h"
#include "lanes_trig.h"

/* Constants of t and Q in activations_body.h. */
#define GELU_C 0.25f
#define GELU_Q                                                                                     \
    0x1.5536f2p-6f, -0x1.5dfc7p-4f, 0x1.a9a7a8p-4f, -0x1.46c402p-5f, 0x1.180e36p-4f,               \
        0x1.d6417ap-5f, 0x1.4f768ap-4f, 0x1.7eb8eep-4f, 0x1.988656p-4f, 0x1.98845p-4f

#define BODY "activations_body.h"
#include "each_register.h"
