--- The normalized_shape of LayerNorm and RMSNorm: the last dimensions of x.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'

local normalized = {}

--- Check one size or a list of sizes.
---@param what string  the class
---@param given integer|integer[]
---@return integer[]
function normalized.shape(what, given)
  if type(given) ~= 'table' then
    return { arguments.whole(what, 'normalized_shape', given, nil, 0) }
  end
  local shape = {}
  for i, size in ipairs(arguments.array(what, 'normalized_shape', given)) do
    shape[i] = arguments.whole(what, ('normalized_shape[%d]'):format(i), size, nil, 0)
  end
  if #shape == 0 then
    errors.raise('ValueError', "%s: 'normalized_shape' is empty, expected one size at least", what)
  end
  return shape
end

--- x (..., normalized_shape) with its last dimensions merged into one.
---@param module ms.nn.LayerNorm|ms.nn.RMSNorm
---@param x ms.Tensor
---@return ms.Tensor
function normalized.flat(module, x)
  local shape, found = module.normalized_shape, arguments.tensor(module._name, 'x', x):shape()
  local lead, width = #found - #shape, 1
  for i, size in ipairs(shape) do
    if found[lead + i] ~= size then
      errors.raise('ValueError', '%s: x is (%s), expected (..., %s)', module._name,
        table.concat(found, ', '), table.concat(shape, ', '))
    end
    width = width * size
  end
  if #shape == 1 then
    return x
  end
  found[lead + 1] = width
  return x:reshape(unpack(found, 1, lead + 1))
end

--- The shape in PyTorch's format.
---@param shape integer[]
---@return string
function normalized.text(shape)
  return ('(%s%s)'):format(table.concat(shape, ', '), #shape == 1 and ',' or '')
end

return normalized
