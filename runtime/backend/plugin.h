/* The line between the runtime and a matrix library: one struct of function pointers that
 * libmoonshard_onednn.so exports as `msi_onednn_plugin`, and how the runtime finds it.
 *
 * The plug-in links nothing of the runtime: memory comes through `msi_plugin_host`, error text goes
 * into a buffer of the caller. All state hangs on what open() gives, one per context, used by that
 * context's thread alone; so ranks may be threads. */
#ifndef MSI_PLUGIN_H
#define MSI_PLUGIN_H

#include "base.h"
#include "kernel_args.h"

enum {
    MSI_PLUGIN_VERSION = 4, /**< of the structs in this file and of msi_gemm_args */
    MSI_PLUGIN_ERROR = 192  /**< bytes of an error buffer */
};

/** Outcomes of a plug-in's call. */
enum {
    MSI_PLUGIN_OK = 0,
    /** Nothing was computed and nothing is wrong: the library has no good implementation. */
    MSI_PLUGIN_UNSUPPORTED = 1,
    /** A call of the library failed; the error buffer names it. */
    MSI_PLUGIN_FAILED = 2,
    /** Memory is out: the library's, where the error buffer says so, else the host's, which knows
     * the error. */
    MSI_PLUGIN_NO_MEMORY = 3
};

/** What the runtime offers a plug-in. */
typedef struct msi_plugin_host {
    void *user;
    /** Work space for one product, 64-byte aligned, the host's; NULL when memory is out. */
    void *(*room)(void *user, int64_t nbytes);
    /** Is there address space for `nbytes` more, which `what` may take? */
    bool (*probe)(void *user, int64_t nbytes, const char *what);
    int32_t isa; /**< 2 or 3: use no instruction set above x86-64-v2 or -v3; else no limit */
} msi_plugin_host;

typedef struct msi_plugin {
    int32_t version;     /**< MSI_PLUGIN_VERSION the plug-in was built with */
    const char *library; /**< e.g. "oneDNN 2.6.3" */
    /** New state of one context, to be used by the calling thread only. Limits the library to one
     * thread there. `host` is copied. */
    int32_t (*open)(void **state, const msi_plugin_host *host, char *error);
    void (*close)(void *state);
    /** Compute. Sizes are at least 1; dtype is f32, or a narrow one that name() has
     * said there are products of. Primitives and memory objects are kept
     * per shape, so only the first call of a shape creates any, and the first after so many other
     * shapes that it was given up. */
    int32_t (*gemm)(void *state, const msi_gemm_args *args, char *error);
    /** Implementation that a large product of this dtype would use; borrowed from the library.
     * @return MSI_PLUGIN_UNSUPPORTED when it is none worth using (the name is still given) */
    int32_t (*name)(void *state, int32_t dtype, const char **name, char *error);
    /** Primitives created so far. */
    int64_t (*created)(const void *state);
    /** Primitives kept. */
    int64_t (*kept)(const void *state);
} msi_plugin;

/**
 * The plug-in, opened on the first call of the process: from the folder MS_PLUGIN_DIR, else from
 * beside the object that holds the runtime, else by its plain name. `*out` is NULL when there is
 * none, a library it needs is not there, or MS_ONEDNN is 0; `*reason` then says why (valid until
 * the thread's next call). It is never unloaded: the library keeps thread-local state.
 * @return MS_OUT_OF_MEMORY or MS_DEVICE_ERROR when it is there and cannot be opened: a job must not
 *         run on other kernels, to other bits, because memory or files are short
 */
ms_status msi_plugin_open(ms_context *ctx, const msi_plugin **out, const char **reason);

#endif
