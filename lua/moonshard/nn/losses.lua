--- Losses: the functions of ms.ops as modules, with their options as fields.

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

--- A loss over operator `_operator`. `_options` lists name, check and default of each option.
--- Options that are tensors become buffers.
---@class ms.nn._Loss: ms.nn.Module
---@field reduction 'mean'|'sum'|'none'
local Loss = Module.extend('nn._Loss')

local WEIGHT = { 'weight', 'tensor' }
local IGNORE_INDEX = { 'ignore_index', 'whole', -100 }
local REDUCTION = { 'reduction', { 'mean', 'sum', 'none' }, 'mean' }
local DIM = { 'dim', 'whole' }

---@param opts? table
function Loss:init(opts)
  local checks = {}
  for _, option in ipairs(self._options) do
    checks[option[1]] = option[2]
  end
  opts = errors.options(self._name, opts, checks)
  for _, option in ipairs(self._options) do
    local name, value = option[1], opts[option[1]]
    if option[2] ~= 'tensor' then
      self[name] = value == nil and option[3] or value
    elseif value then
      self:buffer(name, value)
    end
  end
end

---@param x ms.Tensor
---@param y ms.Tensor  the targets
---@return ms.Tensor  (); with reduction = 'none', one value for each element or target
function Loss:forward(x, y)
  local opts = {}
  for _, option in ipairs(self._options) do
    opts[option[1]] = self[option[1]]
  end
  return ops[self._operator](x, y, opts)
end

local classes = {}

local function loss(name, settings, opts)
  local cls = Loss.extend('nn.' .. name)
  cls._settings, cls._options = settings, opts
  return cls
end

--- Squared difference (x - y)^2.
---@class ms.nn.MSELoss: ms.nn._Loss
---@overload fun(opts?: { reduction?: 'mean'|'sum'|'none' }): ms.nn.MSELoss
classes.MSELoss = loss('MSELoss', { 'reduction' }, { REDUCTION })
classes.MSELoss._operator = 'mse_loss'

--- Absolute difference |x - y|, see ops.l1_loss.
---@class ms.nn.L1Loss: ms.nn._Loss
---@overload fun(opts?: { reduction?: 'mean'|'sum'|'none' }): ms.nn.L1Loss
classes.L1Loss = loss('L1Loss', { 'reduction' }, { REDUCTION })
classes.L1Loss._operator = 'l1_loss'

--- Quadratic for small and linear for large differences, see ops.smooth_l1_loss.
---@class ms.nn.SmoothL1Loss: ms.nn._Loss
---@field beta number
---@overload fun(opts?: { beta?: number, reduction?: 'mean'|'sum'|'none' }): ms.nn.SmoothL1Loss
classes.SmoothL1Loss = loss('SmoothL1Loss', { 'reduction', 'beta' },
  { REDUCTION, { 'beta', 'number', 1 } })
classes.SmoothL1Loss._operator = 'smooth_l1_loss'

--- Quadratic for small and linear for large differences, see ops.huber_loss.
---@class ms.nn.HuberLoss: ms.nn._Loss
---@field delta number
---@overload fun(opts?: { delta?: number, reduction?: 'mean'|'sum'|'none' }): ms.nn.HuberLoss
classes.HuberLoss = loss('HuberLoss', { 'reduction', 'delta' },
  { REDUCTION, { 'delta', 'number', 1 } })
classes.HuberLoss._operator = 'huber_loss'

--- Negative log-likelihood of the targets, see ops.nll_loss.
---
--- Shapes: x (..., C) or (N, C, ...)  targets i64 (...)  weight (C)
---@class ms.nn.NLLLoss: ms.nn._Loss
---@field weight ms.Tensor?  a buffer
---@overload fun(opts?: ms.ops.NLLOptions): ms.nn.NLLLoss
classes.NLLLoss = loss('NLLLoss', { 'ignore_index', 'reduction' },
  { WEIGHT, IGNORE_INDEX, REDUCTION, DIM })
classes.NLLLoss._operator = 'nll_loss'

--- Negative log-likelihood of the targets under softmax(logits), see ops.cross_entropy.
---
--- Shapes: logits (..., V) or (N, V, ...)  targets i64 (...), or probabilities like the logits
---         weight (V)
---@class ms.nn.CrossEntropyLoss: ms.nn._Loss
---@field weight ms.Tensor?  a buffer
---@overload fun(opts?: ms.ops.CrossEntropyOptions): ms.nn.CrossEntropyLoss
classes.CrossEntropyLoss = loss('CrossEntropyLoss',
  { 'ignore_index', 'reduction', 'label_smoothing' },
  { WEIGHT, IGNORE_INDEX, REDUCTION, { 'label_smoothing', 'number', 0 }, DIM })
classes.CrossEntropyLoss._operator = 'cross_entropy'

---@alias ms.nn.BCEOptions
---| { weight?: ms.Tensor, pos_weight?: ms.Tensor, reduction?: 'mean'|'sum'|'none' }

--- Binary cross-entropy of sigmoid(x) and probabilities y of the same shape, see
--- ops.binary_cross_entropy_with_logits.
---@class ms.nn.BCEWithLogitsLoss: ms.nn._Loss
---@field weight ms.Tensor?  a buffer
---@field pos_weight ms.Tensor?  a buffer
---@overload fun(opts?: ms.nn.BCEOptions): ms.nn.BCEWithLogitsLoss
classes.BCEWithLogitsLoss = loss('BCEWithLogitsLoss', { 'reduction' },
  { WEIGHT, { 'pos_weight', 'tensor' }, REDUCTION })
classes.BCEWithLogitsLoss._operator = 'binary_cross_entropy_with_logits'

return classes
