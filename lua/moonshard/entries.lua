--- What `t.name`, `t[i]` and `t[i] = x` mean.
---
--- Methods are found first: they are the hot path, and what an entry costs is the call into C.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local dims = require 'moonshard.dims'
local errors = require 'moonshard.errors'
local planned = require 'moonshard.planned'
local util = require 'moonshard.util'

local C, calls = B.C, B.calls
local type = type

local info = B.new('ms_tensor_info')

--- Entry i along the first dimension, as a view.
local function entry(t, i)
  calls.tensor_describe(t, info)
  if info.ndim == 0 then
    errors.raise('IndexError', 't[%s]: the tensor has no dimensions', tostring(i))
  end
  return calls.select(t, 0, dims.entry(i, tonumber(info.shape[0]), 1, 't[i]'))
end

local function no_method(methods, key)
  if type(key) ~= 'string' then
    arguments.refuse('t[i]', 'i', key, 'an integer (of one entry) or the name of a method')
  elseif planned.functions[key] or planned.places[key] then
    errors.raise('NotImplementedError', "a tensor has no method '%s' yet: %s is not supported", key,
      planned.functions[key] or planned.places[key])
  end
  local near = errors.nearest(key, util.sorted_keys(methods))
  errors.raise('KeyError', "a tensor has no method '%s'%s", key,
    near and (", did you mean '%s'?"):format(near) or '')
end

local function check_assignable(t, i)
  if type(i) == 'string' then
    errors.raise('KeyError', "a tensor has no field '%s'; t[i] = x writes entry i", i)
  elseif type(i) ~= 'number' then
    arguments.refuse('t[i] = x', 'i', i, 'an integer')
  end
  calls.tensor_describe(t, info)
  if info.requires_grad and C.ms_grad_enabled() then
    errors.raise('RuntimeError', 't[%s] = x: the tensor requires grad, and writing into it is not '
      .. 'differentiable; write to t:detach(), or inside ms.no_grad', tostring(i))
  end
end

--- A number fills entry i; a tensor is copied there, broadcast and cast. Never differentiated.
local function assign(t, i, value)
  check_assignable(t, i)
  if type(value) == 'boolean' then
    value = value and 1 or 0
  elseif type(value) ~= 'number' and not B.is_ref(value) then
    errors.raise('TypeError', 't[%s] = x: x is %s, expected a number or a tensor', tostring(i),
      arguments.noun(value))
  end
  local view = entry(t, i)
  if type(value) == 'number' then
    calls.tensor_fill(view, value)
  else
    calls.tensor_copy(view, value)
  end
  view:release()
end

local entries = {}

--- Give a tensor's metatable its indexing.
---@param metatable table
---@param methods table<string, function>
function entries.define(metatable, methods)
  function metatable.__index(t, key)
    local method = methods[key]
    if method ~= nil then
      return method
    elseif type(key) == 'number' then
      return entry(t, key)
    end
    return no_method(methods, key)
  end

  metatable.__newindex = assign
end

return entries
