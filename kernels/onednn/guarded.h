/* oneDNN's calls, which throw nothing here: guarded.primitive_execute(...) is
 * dnnl_primitive_execute(...), with dnnl_out_of_memory where that throws std::bad_alloc, and
 * dnnl_runtime_error where it throws anything else. Under their own names go only those that
 * destroy or read. */
#ifndef MSI_ONEDNN_GUARDED_H
#define MSI_ONEDNN_GUARDED_H

#include <oneapi/dnnl/dnnl.h>

#define ONEDNN_GUARDED(X)                                                                          \
    X(set_max_cpu_isa)                                                                             \
    X(engine_create)                                                                               \
    X(stream_create)                                                                               \
    X(get_primitive_cache_capacity)                                                                \
    X(set_primitive_cache_capacity)                                                                \
    X(memory_desc_init_by_strides)                                                                 \
    X(matmul_desc_init)                                                                            \
    X(primitive_attr_create)                                                                       \
    X(primitive_attr_set_scratchpad_mode)                                                          \
    X(primitive_attr_set_post_ops)                                                                 \
    X(post_ops_create)                                                                             \
    X(post_ops_append_sum)                                                                         \
    X(primitive_desc_create)                                                                       \
    X(primitive_desc_query)                                                                        \
    X(primitive_create)                                                                            \
    X(primitive_execute)                                                                           \
    X(memory_create)                                                                               \
    X(memory_set_data_handle)

typedef struct onednn_guarded {
#define ONEDNN_MEMBER(call) __typeof__(dnnl_##call) *call;
    ONEDNN_GUARDED(ONEDNN_MEMBER)
#undef ONEDNN_MEMBER
} onednn_guarded;

extern const onednn_guarded guarded;

#endif
