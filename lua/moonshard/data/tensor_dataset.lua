--- A dataset of rows of tensors.

local Dataset = require 'moonshard.data.dataset'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

--- Sample i is row i of each tensor.
---@class ms.data.TensorDataset: ms.data.Dataset
---@field tensors ms.Tensor[]
---@overload fun(...: ms.Tensor): ms.data.TensorDataset
local TensorDataset = class('data.TensorDataset', Dataset)

---@param ... ms.Tensor  with equal sizes of dimension 1 (ValueError)
function TensorDataset:init(...)
  self.tensors = { ... }
  for k = 1, math.max(1, select('#', ...)) do
    local tensor = arguments.tensor(self._name, 'tensor ' .. k, (select(k, ...)))
    if tensor:dim() == 0 or tensor:size(1) ~= self.tensors[1]:size(1) then
      errors.raise('ValueError', '%s: tensor %d has shape (%s), expected %s', self._name, k,
        table.concat(tensor:shape(), ', '), k == 1 and 'a dimension of samples'
          or ('dimension 1 to be %d as in the first'):format(self.tensors[1]:size(1)))
    end
  end
end

--- Size of dimension 1.
---@return integer
function TensorDataset:len()
  return self.tensors[1]:size(1)
end

--- Row i of each tensor, as views.
---@param i integer
---@return ms.Tensor ...
function TensorDataset:get(i)
  local rows = {}
  for k, tensor in ipairs(self.tensors) do
    rows[k] = tensor[i]
  end
  return unpack(rows)
end

--- Rows of each tensor, as new tensors.
---@param indices integer[]
---@return ms.Tensor ...
function TensorDataset:get_batch(indices)
  local batch, places = {}, create.tensor(indices, { dtype = 'i64' })
  for k, tensor in ipairs(self.tensors) do
    batch[k] = ops.index_select(tensor, 1, places)
  end
  places:release()
  return unpack(batch)
end

return TensorDataset
