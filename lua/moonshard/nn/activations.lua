--- Activations: elementwise functions, and functions along one dimension.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@class ms.nn._Activation: ms.nn.Module
local Activation = Module.extend('nn._Activation')

function Activation:init(...)
  check.none(self._name, ...)
end

---@param x ms.Tensor
---@return ms.Tensor
function Activation:forward(x)
  return ops[self._operator](x)
end

local classes = {}

--- max(x, 0), elementwise.
---@class ms.nn.ReLU: ms.nn._Activation
---@overload fun(): ms.nn.ReLU
classes.ReLU = Activation.extend('nn.ReLU')
classes.ReLU._operator = 'relu'

--- x sigmoid(x), elementwise (arXiv:1606.08415).
---@class ms.nn.SiLU: ms.nn._Activation
---@overload fun(): ms.nn.SiLU
classes.SiLU = Activation.extend('nn.SiLU')
classes.SiLU._operator = 'silu'

--- 1 / (1 + exp(-x)), elementwise.
---@class ms.nn.Sigmoid: ms.nn._Activation
---@overload fun(): ms.nn.Sigmoid
classes.Sigmoid = Activation.extend('nn.Sigmoid')
classes.Sigmoid._operator = 'sigmoid'

--- Hyperbolic tangent, elementwise.
---@class ms.nn.Tanh: ms.nn._Activation
---@overload fun(): ms.nn.Tanh
classes.Tanh = Activation.extend('nn.Tanh')
classes.Tanh._operator = 'tanh'

--- Gaussian error linear unit (arXiv:1606.08415).
---@class ms.nn.GELU: ms.nn.Module
---@overload fun(opts?: { approximate?: 'none'|'tanh' }): ms.nn.GELU
local GELU = Module.extend('nn.GELU')
classes.GELU = GELU

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

--- x where x > 0, else negative_slope x.
---@class ms.nn.LeakyReLU: ms.nn.Module
---@field negative_slope number
---@overload fun(negative_slope?: number): ms.nn.LeakyReLU
local LeakyReLU = Module.extend('nn.LeakyReLU')
classes.LeakyReLU = LeakyReLU

LeakyReLU._settings = { 'negative_slope' }

---@param negative_slope? number  default 0.01
function LeakyReLU:init(negative_slope)
  self.negative_slope = arguments.number(self._name, 'negative_slope', negative_slope, 0.01)
end

---@param x ms.Tensor
---@return ms.Tensor
function LeakyReLU:forward(x)
  return ops.leaky_relu(x, self.negative_slope)
end

function LeakyReLU:extra_repr()
  return ('negative_slope=%g'):format(self.negative_slope)
end

--- log(1 + exp(beta x)) / beta; x itself where beta x > threshold.
---@class ms.nn.Softplus: ms.nn.Module
---@field beta number
---@field threshold number
---@overload fun(beta?: number, threshold?: number): ms.nn.Softplus
local Softplus = Module.extend('nn.Softplus')
classes.Softplus = Softplus

Softplus._settings = { 'beta', 'threshold' }

---@param beta? number  default 1
---@param threshold? number  default 20
function Softplus:init(beta, threshold)
  self.beta = arguments.number(self._name, 'beta', beta, 1)
  self.threshold = arguments.number(self._name, 'threshold', threshold, 20)
end

---@param x ms.Tensor
---@return ms.Tensor
function Softplus:forward(x)
  return ops.softplus(x, self.beta, self.threshold)
end

function Softplus:extra_repr()
  return ('beta=%g, threshold=%g'):format(self.beta, self.threshold)
end

---@class ms.nn._AlongDimension: ms.nn.Module
---@field dim integer
local AlongDimension = Module.extend('nn._AlongDimension')

AlongDimension._settings = { 'dim' }

---@param dim integer  from 1, or from the end
function AlongDimension:init(dim)
  self.dim = arguments.whole(self._name, 'dim', dim)
end

---@param x ms.Tensor
---@return ms.Tensor
function AlongDimension:forward(x)
  return ops[self._operator](x, self.dim)
end

function AlongDimension:extra_repr()
  return ('dim=%d'):format(self.dim)
end

--- exp(x) / sum(exp(x)), the sum over one dimension.
---@class ms.nn.Softmax: ms.nn._AlongDimension
---@overload fun(dim: integer): ms.nn.Softmax
classes.Softmax = AlongDimension.extend('nn.Softmax')
classes.Softmax._operator = 'softmax'

--- x - log(sum(exp(x))), the sum over one dimension.
---@class ms.nn.LogSoftmax: ms.nn._AlongDimension
---@overload fun(dim: integer): ms.nn.LogSoftmax
classes.LogSoftmax = AlongDimension.extend('nn.LogSoftmax')
classes.LogSoftmax._operator = 'log_softmax'

return classes
