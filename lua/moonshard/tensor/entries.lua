--- Implements `t.name`, `t[i]` and `t[i] = x`.
---
--- Methods are looked up first, because they are the hot path; the cost of an entry is dominated by
--- the call into C.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local dims = require 'moonshard.base.dims'
local errors = require 'moonshard.base.errors'
local namespace = require 'moonshard.base.namespace'
local selected = require 'moonshard.ops.selected'
local util = require 'moonshard.base.util'
local writable = require 'moonshard.base.writable'

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
    arguments.refuse('t[i]', 'i', key, 'an integer (of one entry), a bool tensor or the name of a '
      .. 'method')
  end
  namespace.missing('a tensor', key, util.sorted_keys(methods))
end

-- Fields of PyTorch's tensors, and the methods that replace them.
local SETTERS = {
  data = 't:copy_(x)', grad = 't:set_grad(x)', requires_grad = 't:requires_grad_(on)',
}

local function check_assignable(t, i)
  if type(i) == 'string' then
    errors.raise('KeyError', "a tensor has no field '%s'; %s", i:sub(1, 80),
      SETTERS[i] and 'write ' .. SETTERS[i] or 't[i] = x writes entry i')
  elseif B.is_ref(i) then
    return
  elseif type(i) ~= 'number' then
    arguments.refuse('t[i] = x', 'i', i, 'an integer or a bool tensor')
  end
  writable(t, 't[%s] = x', i)
end

-- The assignment as text, for messages.
local function assignment(i)
  return ('t[%s] = x'):format(B.is_ref(i) and 'mask' or tostring(i))
end

--- Assign to entry i: a number fills it (true is 1, false 0), a tensor is broadcast, cast and
--- copied. If i is a bool tensor, assign the entries where it is true. Not differentiable: values
--- that require grad raise, as in copy_.
local function assign(t, i, value)
  check_assignable(t, i)
  if type(value) == 'boolean' then
    value = value and 1 or 0
  elseif type(value) ~= 'number' and not B.is_ref(value) then
    errors.raise('TypeError', '%s: x is %s, expected a number or a tensor', assignment(i),
      arguments.noun(value))
  end
  calls.tensor_describe(t, info)
  if type(value) == 'number' and C.ms_dtype_check('', info.dtype, value) ~= 0 then
    errors.check(C.ms_dtype_check(assignment(i), info.dtype, value))
  end
  if B.is_ref(i) then
    return selected.write(t, i, value)
  end
  local view = entry(t, i)
  if type(value) == 'number' then
    calls.tensor_fill(view, value)
  else
    calls.tensor_copy(view, value)
  end
  view:release()
end

local function next_entry(t, i)
  calls.tensor_describe(t, info)
  if i < tonumber(info.shape[0]) then
    return i + 1, entry(t, i + 1)
  end
end

local entries = {}

--- Set the index metamethods of a tensor's metatable.
---@param metatable table
---@param methods table<string, function>
function entries.define(metatable, methods)
  function metatable.__index(t, key)
    local method = methods[key]
    if method ~= nil then
      return method
    elseif type(key) == 'number' then
      return entry(t, key)
    elseif B.is_ref(key) then
      return selected.read(t, key)
    end
    return no_method(methods, key)
  end

  metatable.__newindex = assign

  --- `for i, row in ipairs(t)`: each row is a view.
  function metatable.__ipairs(t)
    calls.tensor_describe(t, info)
    if info.ndim == 0 then
      errors.raise('TypeError', 'ipairs(t): the tensor has no dimensions')
    end
    return next_entry, t, 0
  end

  function metatable.__pairs()
    errors.raise('TypeError', 'pairs(t): a tensor has no keys; ipairs(t) gives its entries')
  end
end

return entries
