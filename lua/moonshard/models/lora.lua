--- Low-rank adapters of linear layers (LoRA, arXiv:2106.09685), as the `peft` package computes
--- them.

local Dropout = require 'moonshard.nn.dropout'
local Linear = require 'moonshard.nn.linear'
local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local class = require 'moonshard.base.class'
local parts = require 'moonshard.models.decoder_parts'
local rules = require 'moonshard.nn.rules'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

local lora = {}

---@class ms.models.LoRA.Options
---@field r integer  inner width
---@field alpha number
---@field dropout number  of the input, while training
---@field rslora boolean
---@field dtype ms.DType
---@field init? ms.nn.InitRule  of both matrices (default: A as Linear's weight, B zeros)

--- The trained part of a linear layer: x -> scale B A dropout(x), with the scale alpha / r, or with
--- rslora alpha / sqrt(r) (arXiv:2312.03732). It is computed in the dtype of A and B.
---
--- Shapes: x (..., in)  A (r, in)  B (out, r)  y (..., out)
--- Init:   A uniform in [-1/sqrt(in), 1/sqrt(in)), B zeros.
---@class ms.models.LoRA: ms.nn.Module
---@field r integer
---@field alpha number
---@field rslora boolean
---@field scale number
---@field dropout ms.nn.Dropout
---@field lora_A ms.nn.Linear
---@field lora_B ms.nn.Linear
---@overload fun(in_features: integer, out_features: integer, opts: ms.models.LoRA.Options):
---  ms.models.LoRA
local LoRA = Module.extend('models.LoRA')

LoRA._settings = { 'scale' }

---@param in_features integer
---@param out_features integer
---@param opts ms.models.LoRA.Options
function LoRA:init(in_features, out_features, opts)
  local r = opts.r
  self.r, self.alpha, self.rslora = r, opts.alpha, opts.rslora
  self.scale = opts.alpha / (opts.rslora and math.sqrt(r) or r)
  self:child('dropout', Dropout(opts.dropout))
  self:child('lora_A', Linear(in_features, r, { bias = false, dtype = opts.dtype,
    init = opts.init }))
  self:child('lora_B', Linear(r, out_features, { bias = false, dtype = opts.dtype,
    init = opts.init or rules.zeros() }))
end

---@param x ms.Tensor  (..., in)
---@return ms.Tensor  (..., out)
function LoRA:forward(x)
  return self.lora_B(self.lora_A(self.dropout(x:to(self.lora_A.weight:dtype())))) * self.scale
end

function LoRA:extra_repr()
  return ('r=%d, alpha=%g, scale=%g'):format(self.r, self.alpha, self.scale)
end

lora.LoRA = LoRA

-- -- layers with an adapter ----------------------------------------------------------------------

-- The class of linear layers with an adapter, by their own class. The layer keeps its parameters
-- and paths, and the adapter is its child `lora`.
local classes = {}

local function class_of(original)
  if not classes[original] then
    local cls = class('models.LoRA' .. original._name:match '[^.]*$', original)
    -- The sum is rounded to the layer's dtype once.
    function cls:forward(x)
      local y, delta = original.forward(self, x), self.lora(x)
      return (y:to(delta:dtype()) + delta):to(y:dtype())
    end
    classes[original] = cls
  end
  return classes[original]
end

--- Is it a layer that can have an adapter?
---@param module ms.nn.Module
---@return boolean
function lora.fits(module)
  return util.is_any(module, { Linear, parts.Conv1D })
end

---@param linear ms.nn.Linear|ms.models.Conv1D
---@param opts ms.models.LoRA.Options
function lora.attach(linear, opts)
  linear:child('lora', LoRA(linear.in_features, linear.out_features, opts))
  setmetatable(linear, class_of(getmetatable(linear)))
end

---@param linear ms.nn.Linear|ms.models.Conv1D  one with an adapter
function lora.detach(linear)
  linear.lora = nil
  tree.children(linear) -- the entry is removed
  setmetatable(linear, getmetatable(linear)._parent)
end

---@class ms.models.Adapted
---@field path string  of the linear layer
---@field module ms.models.LoRA

--- The adapters below a module, in order of declaration.
---@param module ms.nn.Module
---@return ms.models.Adapted[]
function lora.below(module)
  local list = {}
  for _, entry in ipairs(tree.walk(module)) do
    if util.is(entry.module, LoRA) then
      list[#list + 1] = { path = entry.path:gsub('%.?lora$', ''), module = entry.module }
    end
  end
  return list
end

--- The modules of all adapters below a module, for fully_shard(): their parameters are one group.
---@param module ms.nn.Module
---@return ms.models.LoRA[]
function lora.adapters(module)
  local list = {}
  if not tree.is_module(module) then
    arguments.refuse('adapters', 'module', module, 'a module')
  end
  for i, entry in ipairs(lora.below(module)) do
    list[i] = entry.module
  end
  return list
end

--- The parameters of the adapters below a module: true by name.
---@param module ms.nn.Module
---@return table<string, boolean>
function lora.parameters(module)
  local names = {}
  for _, entry in ipairs(lora.below(module)) do
    for _, matrix in ipairs { 'lora_A', 'lora_B' } do
      names[('%s.lora.%s.weight'):format(entry.path, matrix)] = true
    end
  end
  return names
end

--- Has the layer a weight (in, out)?
---@param linear ms.nn.Module
---@return boolean
function lora.is_transposed(linear)
  return util.is(linear, parts.Conv1D)
end

--- The weight with the adapter's product added: in f32, rounded to the weight's dtype once.
---@param weight ms.Tensor  (out, in), or (in, out) of a transposed layer
---@param a ms.Tensor
---@param b ms.Tensor
---@param adapter ms.models.LoRA
---@param transposed boolean
---@return ms.Tensor
function lora.merged(weight, a, b, adapter, transposed)
  return autograd.no_grad(function()
    local delta = b:to 'f32':matmul(a:to 'f32') * adapter.scale
    return (weight:to 'f32' + (transposed and delta:t() or delta)):to(weight:dtype())
  end)
end

return lora
