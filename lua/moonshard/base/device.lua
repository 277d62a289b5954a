--- Selection of the process's device, and device names such as 'cuda:0'.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls

local device = {}

--- `moonshard plan` runs a script that chooses its device itself: the choice has no effect.
device._planned = false

local info = B.new('ms_device_info')
local count_out = B.new('int32_t[1]')

--- The kind of the process's device: 'cpu' or 'cuda'. Does not open the device.
---@return string
function device.kind()
  return B.string(C.ms_device_kind())
end

-- 'cuda:1' gives 'cuda', 1; nil if the value is not a device name.
local function parse(value)
  local kind, index = tostring(value):match '^(%a+):?(%d*)$'
  if kind ~= 'cpu' and kind ~= 'cuda' and kind ~= 'plan' and kind ~= 'fake' then
    return nil
  end
  return kind, tonumber(index)
end

--- Is this a valid device name, of this process or another?
---@param value any
---@return boolean
function device.is_name(value)
  return type(value) == 'string' and parse(value) ~= nil
end

--- Can operators compute with a tensor on this device?
---@param what string
---@param value any  'cpu', or the device of this process
---@return boolean  false: 'cpu' beside a device
function device.is_own(what, value)
  local own = device.kind()
  local kind, index = parse(type(value) == 'string' and value or '')
  if value == 'meta' then
    errors.raise('NotImplementedError', "%s: device = 'meta' is not supported yet; parameters take "
      .. 'no memory before a model is first called, and fsdp.FSDP(model):plan { dry_run = true } '
      .. 'takes none', what)
  elseif kind == nil then
    errors.raise('ValueError', "%s: device = %s, expected 'cpu' or 'cuda'", what,
      type(value) == 'string' and ("'%s'"):format(value:sub(1, 80)) or arguments.noun(value))
  elseif device._planned then
    return true
  elseif kind == 'cpu' then
    return own == 'cpu'
  elseif kind ~= own or (index and index ~= device.info().index) then
    errors.raise('RuntimeError', "%s: device = '%s', but the device of this process is '%s'; "
      .. "write ms.device '%s' before any tensor exists, or set MS_DEVICE", what, value,
      own == 'cpu' and own or device.name(), value)
  end
  return true
end

--- Raise unless parameters are to be made on the device of this process.
---@param what string
---@param value any
function device.check(what, value)
  if not device.is_own(what, value) then
    errors.raise('NotImplementedError', "%s: device = 'cpu' beside a device is not supported yet: "
      .. "parameters and buffers are on the process's device; t:to 'cpu' copies values", what)
  end
end

function arguments.device(what, _, value) -- a check of errors.options()
  device.check(what, value)
end

local own_name -- set when the device is open; constant from then on

--- The name of the process's device for tensors: 'cpu', 'cuda:0'. Opens the device.
---@return string
function device.name()
  if own_name == nil or not own_name:find(device.kind(), 1, true) then
    local now = device.info()
    own_name = now.kind == 'cpu' and 'cpu' or ('%s:%d'):format(now.kind, now.index)
  end
  return own_name
end

--- Move a tensor to another device. Returns the same tensor if it is there already.
---@param t ms.Tensor
---@param on_host boolean  the tensor is in host memory beside a device
---@param place string
---@return ms.Tensor
function device.move(t, on_host, place)
  local to_host = not device.is_own('to', place)
  if to_host == on_host then
    return t
  end
  return to_host and calls.tensor_to_host(t) or calls.clone(t)
end

--- Choose the device of this process, before any tensor exists (RuntimeError afterwards). The
--- default is MS_DEVICE, or else the CPU. In a job every rank chooses, before or after dist.init().
---@param kind string  'cpu', 'cuda', or with an index 'cuda:1'; 'plan' computes nothing: a script
---  runs in the time of its host code, with arbitrary values, and ms.memory() counts what it would
---  hold on the CPU
---@param index? integer  from 0; default: the rank on this host, modulo the number of devices
---@return string  a name for `device = ` and t:to(): 'cuda', 'cuda:1'
function device.use(kind, index)
  arguments.text('device', 'kind', kind)
  local word, number = parse(kind)
  if index ~= nil then
    arguments.whole('device', 'index', index, nil, 0)
    number = index
  end
  if device._planned and word then
    return word
  end
  errors.check(C.ms_device_use(word or kind, number or -1))
  own_name = nil
  return number and word ~= 'cpu' and ('%s:%d'):format(word, number) or word
end

--- Is a device of this kind usable? It is not opened: a child process asks the driver, so that this
--- process can still fork ranks.
---@param kind string  'cpu', 'cuda'
---@return boolean
function device.available(kind)
  arguments.text('device.available', 'kind', kind)
  errors.check(C.ms_device_count(kind, count_out))
  return count_out[0] > 0
end

---@class ms.DeviceInfo
---@field kind string  'cpu' or 'cuda'
---@field name string  'NVIDIA H200'; for the CPU the instruction set of its kernels
---@field index integer  from 0
---@field total_bytes integer  device memory; 0 if unknown
---@field free_bytes integer
---@field capability? string  compute capability, '9.0'
---@field waits integer  how often the host has waited for the device

--- Information about the device of this process. Opens the device.
---@return ms.DeviceInfo
function device.info()
  errors.check(C.ms_device_describe(info))
  local capability = info.capability
  return {
    kind = B.string(info.kind),
    name = B.string(info.name),
    index = info.index,
    total_bytes = tonumber(info.total_bytes),
    free_bytes = tonumber(info.free_bytes),
    capability = capability > 0 and ('%d.%d'):format(math.floor(capability / 10), capability % 10)
      or nil,
    waits = tonumber(info.waits),
  }
end

return device
