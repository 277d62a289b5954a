--- Conversion of state_dict() values and of the config to JSON. Infinite numbers, NaN and tensors
--- become tables with one key. Tensors are stored beside the JSON; each rank stores its own
--- elements of ShardedTensors.

local ShardedTensor = require 'moonshard.dist.sharded_tensor'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local parameter = require 'moonshard_ffi.parameter'
local util = require 'moonshard.base.util'

local state = {}

local NUMBER, TENSOR = '$number', '$tensor'
local NUMBERS = { inf = math.huge, ['-inf'] = -math.huge, nan = 0 / 0 }

local function is_sharded(value)
  return type(value) == 'table' and util.is(value, ShardedTensor)
end

local function number_text(value)
  return value ~= value and 'nan' or value > 0 and 'inf' or '-inf'
end

--- Call state_dict() of a part. TypeError if the result is not a table.
---@param part ms.checkpoint.Part
---@return table
function state.of(part)
  local sd = part.value:state_dict()
  if type(sd) ~= 'table' then
    errors.raise('TypeError', "state_dict() of '%s' returned %s, expected a table", part.label,
      arguments.noun(sd))
  end
  return sd
end

--- Encode a value for JSON.
---@param value any
---@param tensor? fun(value: ms.Tensor|ms.dist.ShardedTensor, path: string)  stores a tensor; nil:
---  tensors are not allowed
---@param path? string  of the value, '' for the root
---@param slash? string  a key on the path that contains '/'
---@return any
function state.encode(value, tensor, path, slash)
  path = path or ''
  if type(value) == 'number' and (value ~= value or math.abs(value) == math.huge) then
    return { [NUMBER] = number_text(value) }
  elseif tensor and (parameter.is_tensor(value) or is_sharded(value)) then
    if slash then
      errors.raise('ValueError', "a state has a tensor below the key '%s', expected a key without "
        .. "'/', which separates keys of nested tables", slash)
    end
    tensor(value, path)
    return { [TENSOR] = path }
  elseif type(value) ~= 'table' or value == json.null then
    return value
  end
  local out = setmetatable({}, getmetatable(value) == json.array and json.array or nil)
  for _, key in ipairs(util.ordered_keys(value)) do -- all ranks store tensors in this order
    local entry, divided = value[key], type(key) == 'string' and key:find('/', 1, true) and key
    out[key] = state.encode(entry, tensor, path == '' and tostring(key) or path .. '/' .. key,
      slash or divided or nil)
  end
  return out
end

--- Decode a value.
---@param value any
---@param tensor? fun(path: string): any
---@return any
function state.decode(value, tensor)
  if type(value) ~= 'table' or value == json.null then
    return value
  elseif value[NUMBER] ~= nil and NUMBERS[value[NUMBER]] then
    return NUMBERS[value[NUMBER]]
  elseif type(value[TENSOR]) == 'string' and tensor then
    return tensor(value[TENSOR])
  end
  local out = setmetatable({}, getmetatable(value))
  for _, key in ipairs(util.ordered_keys(value)) do
    out[key] = state.decode(value[key], tensor)
  end
  return out
end

--- This rank's elements of a tensor as 1-D (nil if empty), and their extent.
---@param value ms.Tensor|ms.dist.ShardedTensor
---@return ms.Tensor?, ms.Extent, boolean sharded, boolean first  first: of the ranks with equal
---  shards
function state.elements(value)
  if is_sharded(value) then
    if not value.start then
      errors.raise('NotImplementedError', 'checkpoint: a %s, expected one that is divided by '
        .. 'Shard(1) along one dimension of its mesh; use full_tensor()', tostring(value))
    end
    return value.local_tensor, parameter.extent(value:shape(), value:dtype(), value.start - 1,
      value.length), true, value.replica == 0
  end
  local part, extent = parameter.whole(value:detach():clone():reshape(-1), value)
  return part, extent, false, true
end

-- The value at a path of keys.
local function at(value, path)
  for key in path:gmatch '[^/]+' do
    value = type(value) == 'table' and (value[key] == nil and value[tonumber(key)] or value[key])
      or nil
  end
  return value
end

--- Tensors to load into, with the shapes of the part's current state: KeyError if it lacks one.
---@param label string  of the part
---@param now table  its state_dict()
---@return fun(path: string): any value, ms.Tensor? part, ms.Extent extent
function state.targets(label, now)
  return function(path)
    local value = at(now, path)
    if not (parameter.is_tensor(value) or is_sharded(value)) then
      errors.raise('KeyError', "the checkpoint has a tensor '%s' of the %s, which has none now",
        path, label)
    end
    local part, extent, sharded = state.elements(value)
    if sharded then
      part = part and create.empty(value.length, { dtype = value:dtype() })
      return value:_with(part), part, extent
    end
    return part and part:reshape(value:shape()) or value:clone(), part, extent
  end
end

return state
