--- A table of vectors, looked up by number.
---
--- Shapes: weight (n, width)  ids i64 (...), 0-based  y (..., width)
--- Init:   N(0, 1), as PyTorch.
---
--- Touches: moonshard.nn.module, moonshard.ops.

local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.internal.errors'
local ops = require 'moonshard.ops'
local rules = require 'moonshard.nn.rules'

---@class ms.nn.Embedding: ms.nn.Module
---@field weight ms.Tensor  (n, width)
---@overload fun(n: integer, width: integer, opts?: ms.nn.Embedding.Options): ms.nn.Embedding
local Embedding = Module.extend('nn.Embedding')

---@class ms.nn.Embedding.Options
---@field dtype? ms.DType
---@field init? ms.nn.InitRule

---@param n integer  entries
---@param width integer
---@param opts? ms.nn.Embedding.Options
function Embedding:init(n, width, opts)
  check.sizes(self._name, 0, { 'n', 'width' }, n, width)
  opts = errors.options(self._name, opts,
    { device = 'device', dtype = 'floating', init = 'rule' })
  self.num_embeddings, self.embedding_dim = n, width
  self:param('weight', { n, width }, opts.init or rules.normal(), { dtype = opts.dtype })
end

---@param ids ms.Tensor  i64 (...)
---@return ms.Tensor  (..., width)
function Embedding:forward(ids)
  return ops.embedding(self.weight, ids)
end

function Embedding:extra_repr()
  return ('%d, %d'):format(self.num_embeddings, self.embedding_dim)
end

return Embedding
