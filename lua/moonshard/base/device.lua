--- The device of this process: choosing it, and names of places such as 'cuda:0'.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls

local device = {}

local info = B.new('ms_device_info')
local count_out = B.new('int32_t[1]')

--- The kind of the process's device: 'cpu', 'cuda'. Opens nothing.
---@return string
function device.kind()
  return B.string(C.ms_device_kind())
end

-- 'cuda:1' is 'cuda', 1; nil for what is no place.
local function parse(value)
  local kind, index = tostring(value):match '^(%a+):?(%d*)$'
  if kind ~= 'cpu' and kind ~= 'cuda' and kind ~= 'fake' then
    return nil
  end
  return kind, tonumber(index)
end

--- Is this the name of a place, of this process or not?
---@param value any
---@return boolean
function device.is_name(value)
  return type(value) == 'string' and parse(value) ~= nil
end

--- Does a tensor's place hold what operators compute with?
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
  elseif kind == 'cpu' then
    return own == 'cpu'
  elseif kind ~= own or (index and index ~= device.info().index) then
    errors.raise('RuntimeError', "%s: device = '%s', but the device of this process is '%s'; "
      .. "write ms.device '%s' before any tensor exists, or set MS_DEVICE", what, value,
      own == 'cpu' and own or device.name(), value)
  end
  return true
end

--- Refuse to make parameters anywhere but on the device of this process, which has them all.
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

local own_name -- of an open device, which does not change

--- The process's device as tensors name it: 'cpu', 'cuda:0'. Opens it.
---@return string
function device.name()
  if own_name == nil or not own_name:find(device.kind(), 1, true) then
    local now = device.info()
    own_name = now.kind == 'cpu' and 'cpu' or ('%s:%d'):format(now.kind, now.index)
  end
  return own_name
end

--- A tensor in another place. Without a device, or where it is, the same tensor.
---@param t ms.Tensor
---@param on_host boolean  it is in host memory beside a device
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
--- default is MS_DEVICE's, and without it the CPU. In a job every rank chooses, before or after
--- dist.init().
---@param kind string    'cpu', 'cuda', or with its index 'cuda:1'
---@param index? integer  from 0; default: the rank on this host, modulo the number of devices
---@return string  a name for `device = ` and t:to(): 'cuda', 'cuda:1'
function device.use(kind, index)
  arguments.text('device', 'kind', kind)
  local word, number = parse(kind)
  if index ~= nil then
    arguments.whole('device', 'index', index, nil, 0)
    number = index
  end
  errors.check(C.ms_device_use(word or kind, number or -1))
  own_name = nil
  return number and word ~= 'cpu' and ('%s:%d'):format(word, number) or word
end

--- Is there a usable device of this kind? Opens none: the driver is asked in a child process, so
--- that this one may still fork ranks.
---@param kind string  'cpu', 'cuda'
---@return boolean
function device.available(kind)
  arguments.text('device.available', 'kind', kind)
  errors.check(C.ms_device_count(kind, count_out))
  return count_out[0] > 0
end

---@class ms.DeviceInfo
---@field kind string          'cpu', 'cuda'
---@field name string          'NVIDIA H200'; of the CPU the instruction set of its kernels
---@field index integer        from 0
---@field total_bytes integer  of device memory; 0 if unknown
---@field free_bytes integer
---@field capability? string   compute capability, '9.0'
---@field waits integer        times that the host waited for the device so far

--- Describe the device of this process; opens it.
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
