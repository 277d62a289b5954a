/* Memory of the card by the driver's virtual memory management: making and freeing it waits for no
 * stream, unlike cudaMalloc and cudaFree, and ranks on one card share it by file descriptors. A
 * mapping keeps the memory, so handles are released at once. */
#include "cuda_device.h"

#include <stdio.h>
#include <string.h>

/* The driver's calls. */
typedef struct driver {
    CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*export_handle)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                              unsigned long long);
    CUresult (*import_handle)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*free_address)(CUdeviceptr, size_t);
} driver;

static bool find(driver *d)
{
    static const char *const names[] = {"cuDeviceGetAttribute",
                                        "cuMemGetAllocationGranularity",
                                        "cuMemCreate",
                                        "cuMemExportToShareableHandle",
                                        "cuMemImportFromShareableHandle",
                                        "cuMemRelease",
                                        "cuMemAddressReserve",
                                        "cuMemMap",
                                        "cuMemSetAccess",
                                        "cuMemUnmap",
                                        "cuMemAddressFree"};
    char *to = (char *)d;

    _Static_assert(sizeof(*d) == sizeof(names), "a pointer a name");
    for (int32_t i = 0; i < MSI_COUNT(names); i++, to += sizeof(void *)) {
        void *fn = cuda_driver_call(names[i]);

        if (fn == NULL) {
            return false;
        }
        memcpy(to, &fn, sizeof(fn));
    }
    return true;
}

/* NCCL registers only memory made for GPUDirect RDMA with network adapters; else messages between
 * hosts are copied through its own buffers. */
static CUmemAllocationProp prop_of(const driver *d, int index, bool shared)
{
    int direct = 0;

    if (d->attribute(&direct, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, index) !=
        CUDA_SUCCESS) {
        direct = 0;
    }
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes =
                                     shared ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                            : CU_MEM_HANDLE_TYPE_NONE,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = index},
                                 .allocFlags = {.gpuDirectRDMACapable = direct != 0}};
}

/* nbytes in whole pieces of the card. */
static bool whole(const driver *d, int index, int64_t nbytes, size_t *out)
{
    const CUmemAllocationProp prop = prop_of(d, index, true);
    size_t piece = 0;

    if (d->granularity(&piece, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
        piece == 0) {
        return false;
    }
    *out = ((size_t)nbytes + piece - 1) / piece * piece;
    return true;
}

/* `text` (MSI_DEVICE_ERROR bytes): of a failure that is not memory. */
static int32_t outcome(CUresult e, const char *what, char *text)
{
    if (e == CUDA_SUCCESS || e == CUDA_ERROR_OUT_OF_MEMORY) {
        return e == CUDA_SUCCESS ? MSI_DEV_OK : MSI_DEV_NO_MEMORY;
    }
    snprintf(text, MSI_DEVICE_ERROR, "%s of device memory: driver error %d", what, (int)e);
    return MSI_DEV_FAILED;
}

static CUresult map(const driver *d, int index, CUmemGenericAllocationHandle handle, size_t n,
                    bool readonly, void **out)
{
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, index},
                              .flags = readonly ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                : CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = 0;
    CUresult e = d->reserve(&at, n, 0, 0, 0);

    if (e != CUDA_SUCCESS) {
        return e;
    }
    e = d->map(at, n, 0, handle, 0);
    if (e == CUDA_SUCCESS) {
        e = d->access(at, n, &access, 1);
        if (e != CUDA_SUCCESS && readonly) { /* not every driver maps memory read-only */
            access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            e = d->access(at, n, &access, 1);
        }
        if (e != CUDA_SUCCESS) {
            (void)d->unmap(at, n);
        }
    }
    if (e != CUDA_SUCCESS) {
        (void)d->free_address(at, n);
    }
    *out = (void *)(uintptr_t)at;
    return e;
}

int32_t cuda_memory_new(int index, int64_t nbytes, void **out, int32_t *fd, char *text)
{
    CUmemGenericAllocationHandle handle;
    driver d;
    size_t n;

    if (!find(&d) || !whole(&d, index, nbytes, &n)) {
        return MSI_DEV_UNSUPPORTED;
    }
    const CUmemAllocationProp prop = prop_of(&d, index, fd != NULL);
    CUresult e = d.create(&handle, n, &prop, 0);

    if (e != CUDA_SUCCESS) {
        return outcome(e, "allocation", text);
    }
    e = map(&d, index, handle, n, false, out);
    if (e == CUDA_SUCCESS && fd != NULL) {
        e = d.export_handle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (e != CUDA_SUCCESS) {
            cuda_memory_free(index, *out, nbytes);
        }
    }
    (void)d.release(handle);
    return outcome(e, fd != NULL ? "mapping or export" : "mapping", text);
}

int32_t cuda_memory_attach(int index, int32_t fd, int64_t nbytes, bool readonly, void **out,
                           char *text)
{
    CUmemGenericAllocationHandle handle;
    driver d;
    size_t n;

    if (!find(&d) || !whole(&d, index, nbytes, &n)) {
        return MSI_DEV_UNSUPPORTED;
    }
    CUresult e =
        d.import_handle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (e == CUDA_SUCCESS) {
        e = map(&d, index, handle, n, readonly, out);
        (void)d.release(handle);
    }
    return outcome(e, "import", text);
}

void cuda_memory_free(int index, void *p, int64_t nbytes)
{
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    driver d;
    size_t n;

    if (find(&d) && whole(&d, index, nbytes, &n)) {
        (void)d.unmap(at, n);
        (void)d.free_address(at, n);
    }
}
