/* Choice of CPU kernels: built for three instruction sets; the best one the processor supports is
 * chosen once. MS_CPU_ISA=v2, v3 or v4 selects a lower one. */
#include "backend.h"

#include "moonshard/tensor.h"

#include <stdatomic.h>
#include <string.h>

_Static_assert(MSI_COUNT(((const msi_kernel_table *)0)->fn[0]) == MS_DTYPE_COUNT,
               "a table of kernels has a place for every dtype");

/* Sanitizer builds have one of them (MS_KERNEL_ISAS in CMakeLists.txt). */
extern const msi_kernel_table msi_cpu_table_v2 __attribute__((weak));
extern const msi_kernel_table msi_cpu_table_v3 __attribute__((weak));
extern const msi_kernel_table msi_cpu_table_v4 __attribute__((weak));

const char *msi_kernel_name(int32_t kernel)
{
    static const char *const names[] = {
#define NAME(name, args) #name,
        MSI_KERNELS(NAME)
#undef NAME
    };

    return kernel >= 0 && kernel < MSI_K_COUNT ? names[kernel] : "unknown";
}

/* __builtin_cpu_supports() also checks that the system saves the wide registers. */
const msi_kernel_table *msi_kernels_of(int32_t isa)
{
    __builtin_cpu_init();
    if (isa == 2) {
        return &msi_cpu_table_v2; /* required by the whole library */
    }
    if (isa == 3 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("f16c") && __builtin_cpu_supports("lzcnt") &&
        __builtin_cpu_supports("movbe")) {
        return &msi_cpu_table_v3;
    }
    if (isa == 4 && msi_kernels_of(3) != NULL && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return &msi_cpu_table_v4;
    }
    return NULL;
}

static const msi_kernel_table *best(void)
{
    const msi_kernel_table *table = NULL;

    for (int32_t isa = 4; table == NULL; isa--) {
        table = msi_kernels_of(isa);
    }
    return table;
}

/* The table of MS_CPU_ISA, else the best; *refused: MS_CPU_ISA is unsupported. */
static const msi_kernel_table *choose(bool *refused)
{
    const char *wanted = msi_switch_text("MS_CPU_ISA", "");
    const msi_kernel_table *table = NULL;

    if (wanted[0] == 'v' && wanted[1] >= '2' && wanted[1] <= '4' && wanted[2] == '\0') {
        table = msi_kernels_of(wanted[1] - '0');
    }
    *refused = wanted[0] != '\0' && table == NULL;
    return table != NULL ? table : best();
}

static _Atomic(const msi_kernel_table *) chosen;

static const msi_kernel_table *choose_once(void)
{
    bool refused = false;
    const msi_kernel_table *none = NULL, *table = choose(&refused);

    if (atomic_compare_exchange_strong(&chosen, &none, table) && refused) {
        msi_switch_warn("MS_CPU_ISA=%s: this machine has no such kernels (v2, v3, v4), using %s",
                        msi_switch_text("MS_CPU_ISA", ""), table->isa);
    }
    return table;
}

const msi_kernel_table *msi_kernels(void)
{
    const msi_kernel_table *table = atomic_load_explicit(&chosen, memory_order_acquire);

    return MSI_LIKELY(table != NULL) ? table : choose_once();
}

const char *ms_cpu_isa(void)
{
    return msi_kernels()->isa;
}

/* NULL when the table has none. */
static msi_kernel_fn find(const msi_kernel_table *table, int32_t kernel, int32_t dtype)
{
    bool known = kernel >= 0 && kernel < MSI_K_COUNT && dtype >= 0 && dtype < MS_DTYPE_COUNT;

    return known ? table->fn[kernel][dtype] : NULL;
}

ms_status msi_kernel_missing(const char *op, int32_t dtype, const char *device)
{
    return MS_FAIL(MS_NOT_IMPLEMENTED_ERROR,
                   "%s is not implemented for dtype %s on device '%s' yet", op,
                   ms_dtype_name(dtype), device);
}

ms_status msi_check_host_kernel(const char *op, int32_t kernel, int32_t dtype)
{
    const msi_kernel_table *table = msi_kernels();

    return MSI_LIKELY(find(table, kernel, dtype) != NULL)
               ? MS_OK
               : msi_kernel_missing(op, dtype, table->device);
}
