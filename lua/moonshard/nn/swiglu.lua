--- The gated feed-forward network of Llama's blocks (arXiv:2002.05202):
--- y = down(silu(gate(x)) * up(x)).
---
--- Shapes: x (..., C)  gate_proj.weight and up_proj.weight (H, C)  down_proj.weight (C, H)
---         y (..., C)

local Linear = require 'moonshard.nn.linear'
local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@class ms.nn.SwiGLU: ms.nn.Module
---@field activation string
---@field gate_proj ms.nn.Linear
---@field up_proj ms.nn.Linear
---@field down_proj ms.nn.Linear
---@overload fun(width: integer, hidden: integer, opts?: ms.nn.SwiGLU.Options): ms.nn.SwiGLU
local SwiGLU = Module.extend('nn.SwiGLU')

SwiGLU._settings = { 'activation' }

-- By the names that the option takes.
SwiGLU._activations = {
  silu = ops.silu, relu = ops.relu, gelu = function(x) return ops.gelu(x) end,
  gelu_tanh = function(x) return ops.gelu(x, 'tanh') end,
}

---@class ms.nn.SwiGLU.Options
---@field bias? boolean  of all projections (default false)
---@field activation? 'silu'|'relu'|'gelu'|'gelu_tanh'  of the gate (default 'silu')
---@field dtype? ms.DType
---@field init? ms.nn.InitRule  of the weights
---@field bias_init? ms.nn.InitRule

---@param width integer
---@param hidden integer  width between the projections
---@param opts? ms.nn.SwiGLU.Options
function SwiGLU:init(width, hidden, opts)
  check.sizes(self._name, 0, { 'width', 'hidden' }, width, hidden)
  opts = errors.options(self._name, opts, {
    bias = 'flag', activation = { 'silu', 'relu', 'gelu', 'gelu_tanh' },
    device = 'device', dtype = 'floating', init = 'rule', bias_init = 'rule',
  })
  self.activation = opts.activation or 'silu'
  local function projection(name, from, to)
    self:child(name, Linear(from, to, {
      bias = opts.bias == true, dtype = opts.dtype, init = opts.init, bias_init = opts.bias_init,
    }))
  end
  projection('gate_proj', width, hidden)
  projection('up_proj', width, hidden)
  projection('down_proj', hidden, width)
end

---@param x ms.Tensor  (..., C)
---@return ms.Tensor  (..., C)
function SwiGLU:forward(x)
  local activate = self._activations[self.activation]
  return self.down_proj(activate(self.gate_proj(x)) * self.up_proj(x))
end

return SwiGLU
