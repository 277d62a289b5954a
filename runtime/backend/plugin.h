/* Interface between the runtime and a matrix library: a struct of function pointers that
 * libmoonshard_onednn.so exports as `msi_onednn_plugin`.
 *
 * The plug-in links nothing of the runtime: memory comes from `msi_plugin_host`, error text goes to
 * the caller's buffer. open() makes the state, one per context, used only by that context's thread;
 * so ranks may be threads. */
#ifndef MSI_PLUGIN_H
#define MSI_PLUGIN_H

#include "base.h"
#include "kernel_args.h"

enum {
    MSI_PLUGIN_VERSION = 6, /**< of the structs in this file and of msi_gemm_args */
    MSI_PLUGIN_ERROR = 192  /**< bytes of an error buffer */
};

/** Results of plug-in calls. */
enum {
    MSI_PLUGIN_OK = 0,
    /** Nothing computed, no error: no good implementation. */
    MSI_PLUGIN_UNSUPPORTED = 1,
    /** A library call failed; the error buffer describes it. */
    MSI_PLUGIN_FAILED = 2,
    /** Out of memory: in the library if the error buffer has a message, else in the host, which has
     * set the error. */
    MSI_PLUGIN_NO_MEMORY = 3
};

/** Calls from a plug-in to the runtime. */
typedef struct msi_plugin_host {
    void *user;
    /** Work space for one product, 64-byte aligned, owned by the host; NULL if memory is out. */
    void *(*room)(void *user, int64_t nbytes);
    /** True if `nbytes` more address space is available for `what`. */
    bool (*probe)(void *user, int64_t nbytes, const char *what);
    const bool *plans; /**< gemm() asks for its work space and computes nothing */
    int32_t isa;       /**< 2 or 3: use no instruction set above x86-64-v2 or -v3; else no limit */
} msi_plugin_host;

typedef struct msi_plugin {
    int32_t version;     /**< MSI_PLUGIN_VERSION the plug-in was built with */
    const char *library; /**< e.g. "oneDNN 2.6.3" */
    /** New state for one context and the calling thread only. Limits the library to one thread
     * there. Copies `host`. */
    int32_t (*open)(void **state, const msi_plugin_host *host, char *error);
    void (*close)(void *state);
    /** Compute. Sizes are at least 1; dtype is f32, or a narrow one for which name() reported
     * products. Primitives and memory objects are cached per shape, so only the first call of a
     * shape, or after its eviction, creates any. */
    int32_t (*gemm)(void *state, const msi_gemm_args *args, char *error);
    /** Implementation of a large product of this dtype; borrowed from the library.
     * @return MSI_PLUGIN_UNSUPPORTED if it is too slow (the name is still set) */
    int32_t (*name)(void *state, int32_t dtype, const char **name, char *error);
    /** Primitives created. */
    int64_t (*created)(const void *state);
    /** Primitives cached. */
    int64_t (*kept)(const void *state);
} msi_plugin;

/**
 * The plug-in, opened on the first call: see msi_library_open(). `*out` is NULL also if MS_ONEDNN
 * is 0. Never unloaded: the library keeps thread-local state.
 */
ms_status msi_plugin_open(ms_context *ctx, const msi_plugin **out, const char **reason);

#endif
