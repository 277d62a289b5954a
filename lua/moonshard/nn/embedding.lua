--- A table of vectors, indexed by id.
---
--- Shapes: weight (n, width)  ids i64 (...), 0-based  y (..., width)
--- Init:   N(0, 1), as PyTorch; the row of padding_idx 0.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local check = require 'moonshard.nn.check'
local dims = require 'moonshard.base.dims'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local parameter = require 'moonshard_ffi.parameter'
local rules = require 'moonshard.nn.rules'
local scope = require 'moonshard.base.scope'
local util = require 'moonshard.base.util'

---@class ms.nn.Embedding: ms.nn.Module
---@field num_embeddings integer
---@field embedding_dim integer
---@field padding_idx integer?
---@field weight ms.Tensor  (n, width)
---@overload fun(n: integer, width: integer, opts?: ms.nn.Embedding.Options): ms.nn.Embedding
local Embedding = Module.extend('nn.Embedding')

Embedding._settings = { 'padding_idx' }

---@class ms.nn.Embedding.Options
---@field padding_idx? integer  row that is initially 0 and gets no gradient; counted from 0, or
---  from -1 at the end
---@field dtype? ms.DType
---@field init? ms.nn.InitRule

---@param n integer  rows
---@param width integer
---@param opts? ms.nn.Embedding.Options
function Embedding:init(n, width, opts)
  check.sizes(self._name, 0, { 'n', 'width' }, n, width)
  opts = errors.options(self._name, opts,
    { padding_idx = 'whole', device = 'device', dtype = 'floating', init = 'rule' })
  self.num_embeddings, self.embedding_dim = n, width
  local rule = opts.init or rules.normal()
  if opts.padding_idx then
    self.padding_idx = dims.row(self._name, 'padding_idx', opts.padding_idx, n)
    rule = util.merged(rule, { zeros = { self.padding_idx * width, width } })
  end
  self:param('weight', { n, width }, rule, { dtype = opts.dtype })
end

local PRETRAINED = { freeze = 'flag', padding_idx = 'whole' }

--- An Embedding whose weight shares memory and values with a tensor.
---@param weight ms.Tensor  (n, width), floating, not recorded by autograd
---@param opts? { freeze?: boolean, padding_idx?: integer }  freeze: the weight requires no
---  gradient (default true); padding_idx: as above, but the row keeps its values
---@return ms.nn.Embedding
function Embedding.from_pretrained(weight, opts)
  local what = 'nn.Embedding.from_pretrained'
  local shape = arguments.tensor(what, 'weight', weight):shape()
  opts = errors.options(what, opts, PRETRAINED)
  if #shape ~= 2 then
    errors.raise('ValueError', "%s: 'weight' has %d dimensions, expected 2", what, #shape)
  end
  local module = Embedding(shape[1], shape[2],
    { dtype = weight:dtype(), padding_idx = opts.padding_idx })
  parameter.make(scope.keep(weight))
  module.weight = weight:requires_grad_(opts.freeze == false)
  return module
end

---@param ids ms.Tensor  i64 (...)
---@return ms.Tensor  (..., width)
function Embedding:forward(ids)
  local row = self.padding_idx
  return ops.embedding(self.weight, ids, row and { padding_idx = row })
end

function Embedding:extra_repr()
  return ('%d, %d%s'):format(self.num_embeddings, self.embedding_dim,
    self.padding_idx and (', padding_idx=%d'):format(self.padding_idx) or '')
end

return Embedding
