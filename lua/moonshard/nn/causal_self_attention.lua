--- Causal multi-head self-attention: one packed input projection, attention that does not store the
--- score matrix, and an output projection.
---
--- Shapes: x (B, T, C)  qkv.weight (3 C, C)  proj.weight (C, C)  y (B, T, C)

local Dropout = require 'moonshard.nn.dropout'
local Linear = require 'moonshard.nn.linear'
local Module = require 'moonshard.nn.module'
local attend = require 'moonshard.ops.attend'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@class ms.nn.CausalSelfAttention: ms.nn.Module
---@field heads integer
---@field qkv ms.nn.Linear
---@field proj ms.nn.Linear
---@field drop ms.nn.Dropout
---@overload fun(width: integer, heads: integer, opts?: table): ms.nn.CausalSelfAttention
local CausalSelfAttention = Module.extend('nn.CausalSelfAttention')

CausalSelfAttention._settings = { 'heads' }

---@class ms.nn.CausalSelfAttention.Options
---@field bias? boolean  of both projections (default true)
---@field dropout? number  after the output projection (default 0)
---@field dtype? ms.DType
---@field init? ms.nn.InitRule  of the packed projection's weight
---@field proj_init? ms.nn.InitRule  of the output projection's weight (default: init)
---@field bias_init? ms.nn.InitRule

---@param width integer
---@param heads integer  must divide width
---@param opts? ms.nn.CausalSelfAttention.Options
function CausalSelfAttention:init(width, heads, opts)
  check.sizes(self._name, 1, { 'width', 'heads' }, width, heads)
  opts = errors.options(self._name, opts, {
    bias = 'flag', dropout = 'number', device = 'device', dtype = 'floating', init = 'rule',
    proj_init = 'rule', bias_init = 'rule',
  })
  if width % heads ~= 0 then
    errors.raise('ValueError', 'width %d is not a multiple of %d heads', width, heads)
  end
  self.heads = heads
  self:child('qkv', Linear(width, 3 * width, {
    bias = opts.bias, dtype = opts.dtype, init = opts.init, bias_init = opts.bias_init,
  }))
  self:child('proj', Linear(width, width, {
    bias = opts.bias, dtype = opts.dtype, init = opts.proj_init or opts.init,
    bias_init = opts.bias_init,
  }))
  self:child('drop', Dropout(opts.dropout or 0))
end

-- Attention with a mask on parts of the packed projection.
local function masked(qkv, heads, mask)
  local rows, length, depth = qkv:size(1), qkv:size(2), qkv:size(3) / (3 * heads)
  local parts = qkv:reshape(rows, length, 3 * heads, depth):transpose(2, 3)
  local y = attend.heads(parts:narrow(2, 1, heads), parts:narrow(2, heads + 1, heads),
    parts:narrow(2, 2 * heads + 1, heads), mask, true, 1 / math.sqrt(depth), 0)
  return y:transpose(2, 3):reshape(rows, length, heads * depth)
end

---@param x ms.Tensor  (B, T, C)
---@param mask? ms.Tensor  bool, broadcasts to (B, heads, T, T): true where a query attends to a
---  key, if the key is not after it
---@return ms.Tensor  (B, T, C)
function CausalSelfAttention:forward(x, mask)
  local qkv = self.qkv(x)
  local y = mask and masked(qkv, self.heads, mask)
    or ops.attention_packed(qkv, self.heads, { causal = true })
  return self.drop(self.proj(y))
end

function CausalSelfAttention:extra_repr()
  return ('heads=%d'):format(self.heads)
end

return CausalSelfAttention
