--- The base class of map-style datasets.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'

--- A dataset has `len()` and `get(i)`. It may have `get_batch(indices)`, which returns the collated
--- values of several samples.
---
---   local Squares = ms.data.Dataset.extend 'Squares'
---   function Squares:init(n) self.n = n end
---   function Squares:len() return self.n end
---   function Squares:get(i) return ms.tensor { i }, ms.tensor { i * i } end
---@class ms.data.Dataset
---@field get_batch? fun(self: ms.data.Dataset, indices: integer[]): ...
---@overload fun(...): ms.data.Dataset
local Dataset = class('data.Dataset')

--- A class that inherits from Dataset.
---@param name string  used in printing and errors
---@return ms.data.Dataset
function Dataset.extend(name)
  arguments.text('Dataset.extend', 'name', name)
  return class(name, Dataset)
end

--- Number of samples.
---@return integer
function Dataset:len()
  errors.raise('NotImplementedError', '%s has no len', self._name)
end

--- Sample i. Several return values are collated separately.
---@param i integer  1 to len()
---@return any ...
function Dataset:get(i) -- luacheck: no unused args
  errors.raise('NotImplementedError', '%s has no get', self._name)
end

return Dataset
