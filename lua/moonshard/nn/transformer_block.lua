--- One pre-norm block: x + attention(norm(x)), then x + feed-forward(norm(x)).
---
--- Shapes: x (B, T, C) -> (B, T, C)

local CausalSelfAttention = require 'moonshard.nn.causal_self_attention'
local FeedForward = require 'moonshard.nn.feed_forward'
local LayerNorm = require 'moonshard.nn.layer_norm'
local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.base.errors'

---@class ms.nn.TransformerBlock: ms.nn.Module
---@field ln_1 ms.nn.LayerNorm
---@field attn ms.nn.CausalSelfAttention
---@field ln_2 ms.nn.LayerNorm
---@field mlp ms.nn.FeedForward
---@overload fun(width: integer, heads: integer, opts?: table): ms.nn.TransformerBlock
local TransformerBlock = Module.extend('nn.TransformerBlock')

---@class ms.nn.TransformerBlock.Options
---@field bias? boolean  of all layers (default true)
---@field dropout? number  of both residual branches (default 0)
---@field dtype? ms.DType
---@field init? ms.nn.InitRule  of weights
---@field residual_init? ms.nn.InitRule  of the weights that write into the residual (default: init)
---@field bias_init? ms.nn.InitRule

---@param width integer
---@param heads integer
---@param opts? ms.nn.TransformerBlock.Options
function TransformerBlock:init(width, heads, opts)
  check.sizes(self._name, 1, { 'width', 'heads' }, width, heads)
  opts = errors.options(self._name, opts, {
    bias = 'flag', dropout = 'number', device = 'device', dtype = 'floating', init = 'rule',
    residual_init = 'rule', bias_init = 'rule',
  })
  local norm = { bias = opts.bias, dtype = opts.dtype }
  self:child('ln_1', LayerNorm(width, norm))
  self:child('attn', CausalSelfAttention(width, heads, {
    bias = opts.bias, dropout = opts.dropout, dtype = opts.dtype, init = opts.init,
    proj_init = opts.residual_init, bias_init = opts.bias_init,
  }))
  self:child('ln_2', LayerNorm(width, norm))
  self:child('mlp', FeedForward(width, {
    bias = opts.bias, dropout = opts.dropout, dtype = opts.dtype, init = opts.init,
    out_init = opts.residual_init, bias_init = opts.bias_init,
  }))
end

---@param x ms.Tensor  (B, T, C)
---@param mask? ms.Tensor  bool, as nn.CausalSelfAttention takes it
---@return ms.Tensor  (B, T, C)
function TransformerBlock:forward(x, mask)
  x = x + self.attn(self.ln_1(x), mask)
  return x + self.mlp(self.ln_2(x))
end

return TransformerBlock
