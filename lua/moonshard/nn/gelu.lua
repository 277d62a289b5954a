--- Gaussian error linear unit (arXiv:1606.08415).

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@class ms.nn.GELU: ms.nn.Module
---@overload fun(opts?: { approximate?: 'none'|'tanh' }): ms.nn.GELU
local GELU = Module.extend('nn.GELU')

GELU._settings = { 'approximate' }

---@param opts? { approximate?: 'none'|'tanh' }  'tanh' takes the tanh form (default 'none')
function GELU:init(opts)
  opts = errors.options(self._name, opts, { approximate = { 'none', 'tanh' } })
  self.approximate = opts.approximate or 'none'
end

---@param x ms.Tensor
---@return ms.Tensor
function GELU:forward(x)
  return ops.gelu(x, self.approximate)
end

function GELU:extra_repr()
  return ("approximate='%s'"):format(self.approximate)
end

return GELU
