--- An array of parameters. Their names in state dicts are '0', '1', ... and their indices 1, 2,
--- .... Iterate with `for i = 1, list:len()` or `for p in list:parameters()`.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local parameter = require 'moonshard_ffi.parameter'

---@class ms.nn.ParameterList: ms.nn.Module
---@field [integer] ms.Tensor
---@overload fun(tensors?: ms.Tensor[]): ms.nn.ParameterList
local ParameterList = Module.extend('nn.ParameterList')

---@param tensors? ms.Tensor[]  they become parameters
function ParameterList:init(tensors)
  tensors = tensors == nil and {} or arguments.array(self._name, 'tensors', tensors)
  for i = 1, #tensors do
    self:append(arguments.tensor(self._name, ('tensors[%d]'):format(i), tensors[i]))
  end
end

local function is_index(key)
  return type(key) == 'number' and key >= 1 and key % 1 == 0
end

-- Each entry is a field under its name in state dicts.
function ParameterList.__index(self, key)
  if is_index(key) then
    return rawget(self, tostring(key - 1))
  end
  return getmetatable(self)[key]
end

function ParameterList.__newindex(self, key, value)
  if is_index(key) and parameter.is_tensor(value) then
    key = tostring(key - 1)
    if rawget(self, key) ~= nil then -- __newindex of Module ignores existing fields
      rawset(self, key, value)
      return
    end
  end
  Module.__newindex(self, key, value)
end

--- Append a tensor, which becomes a parameter, or declare a parameter as Module:param() does.
---@param tensor ms.Tensor|integer[]  a tensor, or the shape to declare
---@param rule? ms.nn.InitRule  with a shape
---@param opts? ms.nn.ParamOptions  with a shape
---@return self
function ParameterList:append(tensor, rule, opts)
  local name = tostring(self:len())
  if parameter.is_tensor(tensor) then
    self:tie(name, tensor)
  else
    self:param(name, tensor, rule, opts)
  end
  return self
end

---@return integer
function ParameterList:len()
  local n = 0
  while self[n + 1] ~= nil do
    n = n + 1
  end
  return n
end

return ParameterList
