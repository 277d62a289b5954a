--- Keys and values of the tokens that generation has computed, so that each step computes one more.

local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local scope = require 'moonshard.base.scope'

---@class ms.models.KeyValueCache
---@field length integer  tokens of each row
---@overload fun(most: integer): ms.models.KeyValueCache
local KeyValueCache = class('models.KeyValueCache')

---@param most integer  tokens of a row
function KeyValueCache:init(most)
  self.length, self._most, self._layers = 0, most, {}
end

local LEAST = 64

-- A tensor with the rows of `old` and room for `length` tokens. Its size doubles, so that tokens
-- are copied once on average.
local function room(self, old, like, length)
  if old and old:size(3) >= length then
    return old
  end
  local shape = like:shape()
  shape[3] = math.max(length, math.min(self._most, math.max(LEAST, 2 * (old and old:size(3) or 0))))
  local new = scope.keep(create.empty(shape, { dtype = like:dtype() }))
  if old then
    new:narrow(3, 1, self.length):copy_(old:narrow(3, 1, self.length))
    old:release()
  end
  return new
end

-- Write x behind the tokens of kept[name]. No closure: the trace compiler does not compile
-- functions that make one.
local function extended(self, kept, name, x)
  local new = x:size(3)
  kept[name] = room(self, kept[name], x, self.length + new)
  kept[name]:narrow(3, self.length + 1, new):copy_(x)
  return kept[name]:narrow(3, 1, self.length + new)
end

--- Add keys and values of the next tokens to a layer's.
---@param layer integer
---@param k ms.Tensor  (B, G, T, D)
---@param v ms.Tensor
---@return ms.Tensor k, ms.Tensor v  (B, G, length + T, D), of all tokens so far
function KeyValueCache:extend(layer, k, v)
  local kept = self._layers[layer] or {}
  self._layers[layer] = kept
  return extended(self, kept, 'k', k), extended(self, kept, 'v', v)
end

--- Count tokens that all layers have got.
---@param n integer
function KeyValueCache:advance(n)
  self.length = self.length + n
end

--- Free the memory.
function KeyValueCache:release()
  for _, kept in next, self._layers do
    kept.k:release()
    kept.v:release()
  end
  self._layers = {}
end

return KeyValueCache
