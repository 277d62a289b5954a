--- The feed-forward network of a transformer block, applied to each position.
---
--- Shapes: x (..., C)  fc.weight (H, C)  out.weight (C, H)  y (..., C); H is 4 C by default

local Dropout = require 'moonshard.nn.dropout'
local Linear = require 'moonshard.nn.linear'
local LinearGELU = require 'moonshard.nn.linear_gelu'
local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.base.errors'

---@class ms.nn.FeedForward: ms.nn.Module
---@field fc ms.nn.LinearGELU
---@field out ms.nn.Linear
---@field drop ms.nn.Dropout
---@overload fun(width: integer, opts?: ms.nn.FeedForward.Options): ms.nn.FeedForward
local FeedForward = Module.extend('nn.FeedForward')

---@class ms.nn.FeedForward.Options
---@field hidden? integer  default 4 * width
---@field bias? boolean  default true
---@field dropout? number  after the second layer (default 0)
---@field approximate? 'none'|'tanh'  form of GELU (default 'tanh')
---@field dtype? ms.DType
---@field init? ms.nn.InitRule  of the first layer's weight
---@field out_init? ms.nn.InitRule  of the second layer's weight (default: init)
---@field bias_init? ms.nn.InitRule

---@param width integer
---@param opts? ms.nn.FeedForward.Options
function FeedForward:init(width, opts)
  check.sizes(self._name, 0, { 'width' }, width)
  opts = errors.options(self._name, opts, {
    hidden = 'whole', bias = 'flag', dropout = 'number', approximate = { 'none', 'tanh' },
    device = 'device', dtype = 'floating', init = 'rule', out_init = 'rule', bias_init = 'rule',
  })
  local hidden = opts.hidden or 4 * width
  self:child('fc', LinearGELU(width, hidden, {
    bias = opts.bias, dtype = opts.dtype, init = opts.init, bias_init = opts.bias_init,
    approximate = opts.approximate or 'tanh',
  }))
  self:child('out', Linear(hidden, width, {
    bias = opts.bias, dtype = opts.dtype, init = opts.out_init or opts.init,
    bias_init = opts.bias_init,
  }))
  self:child('drop', Dropout(opts.dropout or 0))
end

---@param x ms.Tensor  (..., C)
---@return ms.Tensor  (..., C)
function FeedForward:forward(x)
  return self.drop(self.out(self.fc(x)))
end

return FeedForward
