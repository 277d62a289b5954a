--- A dataset of some samples of another one.

local Dataset = require 'moonshard.data.dataset'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local collate = require 'moonshard.data.collate'

--- Sample i is sample indices[i] of another dataset.
---@class ms.data.Subset: ms.data.Dataset
---@field dataset ms.data.Dataset
---@field indices integer[]
---@overload fun(dataset: ms.data.Dataset|any[], indices: integer[]): ms.data.Subset
local Subset = class('data.Subset', Dataset)

---@param dataset ms.data.Dataset|any[]
---@param indices integer[]  from 1
function Subset:init(dataset, indices)
  self.dataset = collate.dataset(self._name, dataset)
  self.indices = collate.indices(self._name, arguments.array(self._name, 'indices', indices),
    self.dataset:len())
  self.get_batch = self.dataset.get_batch and self._get_batch or nil
end

--- Number of indices.
---@return integer
function Subset:len()
  return #self.indices
end

---@param i integer
---@return any ...
function Subset:get(i)
  return self.dataset:get(self.indices[i])
end

function Subset:_get_batch(places)
  local indices = {}
  for b, i in ipairs(places) do
    indices[b] = self.indices[i]
  end
  return self.dataset:get_batch(indices)
end

return Subset
