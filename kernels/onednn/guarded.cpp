/* The one file in C++, as C cannot catch. oneDNN is written in C++ and throws through its C
 * interface: std::bad_alloc from nearly everywhere. That ends a program in C; one that has frames
 * which catch goes on, with all that the frames in between had begun. */
extern "C" {
#include "guarded.h"
}

#include <new>

template <auto call, typename... Args> static dnnl_status_t answered(Args... args) noexcept
{
    try {
        return call(args...);
    } catch (const std::bad_alloc &) {
        return dnnl_out_of_memory;
    } catch (...) {
        return dnnl_runtime_error;
    }
}

#define ONEDNN_ANSWERED(call) answered<dnnl_##call>,
const onednn_guarded guarded = {ONEDNN_GUARDED(ONEDNN_ANSWERED)};
