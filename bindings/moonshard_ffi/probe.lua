--- System information for `moonshard doctor`: file systems, and libraries that the runtime does not
--- link, opened by name.

local ffi = require 'ffi'

local probe = {}

ffi.cdef [[
struct ms_probe_statvfs { // glibc's statvfs on x86-64
  unsigned long bsize, frsize, blocks, bfree, bavail, files, ffree, favail, fsid, flag, namemax;
  int spare[8];
};
int statvfs(const char *path, struct ms_probe_statvfs *out);

size_t cublasLtGetVersion(void);
size_t cudnnGetVersion(void);
int ncclGetVersion(int *version);

int cuInit(unsigned flags);
int cuGetErrorString(int error, const char **text);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetName(char *name, int size, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device);
]]

local MAJOR, MINOR = 75, 76 -- CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

--- Size and free space of a file system in bytes, or nil.
---@param path string
---@return number? total
---@return number? free
function probe.file_system(path)
  local out = ffi.new 'struct ms_probe_statvfs'
  if ffi.C.statvfs(path, out) == 0 then
    return tonumber(out.blocks * out.frsize), tonumber(out.bavail * out.frsize)
  end
end

--- Open the first of these libraries that the loader finds.
---@param names string[]  sonames or paths
---@return ffi.namespace*? library
---@return string name_or_reason
function probe.library(names)
  local reason
  for _, name in ipairs(names) do
    local ok, library = pcall(ffi.load, name)
    if ok then
      return library, name
    end
    reason = reason or library
  end
  return nil, reason
end

local function int_from(call, ...)
  local out = ffi.new 'int[1]'
  return call(out, ...) == 0 and out[0] or nil
end

local function dotted(number, unit_of_major)
  return ('%d.%d.%d'):format(number / unit_of_major, number % unit_of_major / 100, number % 100)
end

--- GPU libraries: name, sonames from the newest on, and the version that the library reports.
---@type { name: string, sonames: string[], version: fun(library: ffi.namespace*): string }[]
probe.libraries = {
  { name = 'cuBLASLt', sonames = { 'libcublasLt.so.13', 'libcublasLt.so.12' },
    version = function(library) return dotted(tonumber(library.cublasLtGetVersion()), 10000) end },
  { name = 'cuDNN', sonames = { 'libcudnn.so.9', 'libcudnn.so.8' }, version = function(library)
    local number = tonumber(library.cudnnGetVersion())
    return dotted(number, number >= 90000 and 10000 or 1000)
  end },
  { name = 'NCCL', sonames = { 'libnccl.so.2' }, version = function(library)
    return dotted(int_from(library.ncclGetVersion) or 0, 10000)
  end },
}

local function card(driver, ordinal)
  local device = int_from(driver.cuDeviceGet, ordinal)
  local name, bytes = ffi.new 'char[96]', ffi.new 'size_t[1]'
  if device and driver.cuDeviceGetName(name, 96, device) == 0
    and driver.cuDeviceTotalMem_v2(bytes, device) == 0 then
    return {
      name = ffi.string(name),
      bytes = tonumber(bytes[0]),
      capability = ('%d.%d'):format(int_from(driver.cuDeviceGetAttribute, MAJOR, device) or 0,
        int_from(driver.cuDeviceGetAttribute, MINOR, device) or 0),
    }
  end
end

--- The GPU driver and its devices.
---@return { cuda: string, cards: { name: string, bytes: number, capability: string }[] }?
---@return string? reason  why there is no driver
function probe.driver()
  local driver, reason = probe.library { 'libcuda.so.1' }
  if not driver then
    return nil, reason
  end
  local version = int_from(driver.cuDriverGetVersion) or 0
  local found = { cuda = ('%d.%d'):format(version / 1000, version % 1000 / 10), cards = {} }
  local error_code = driver.cuInit(0)
  if error_code ~= 0 then
    local text = ffi.new 'const char *[1]'
    driver.cuGetErrorString(error_code, text)
    found.failed = text[0] ~= nil and ffi.string(text[0]) or 'error ' .. error_code
    return found
  end
  for ordinal = 0, (int_from(driver.cuDeviceGetCount) or 0) - 1 do
    found.cards[#found.cards + 1] = card(driver, ordinal)
  end
  return found
end

return probe
