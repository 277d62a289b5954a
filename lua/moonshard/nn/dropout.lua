--- Zeroes elements with probability p while training and divides the rest by 1 - p.
---
--- The mask is a function of seed, this module's path, how many times it ran on this micro-batch,
--- the global sample and the element: how samples are dealt to ranks does not change it.
---
--- A data.Loader says which samples a batch holds, and begins a micro-batch with each: a module
--- that is called with the batch (x or y itself, its first argument) draws for those, whatever was
--- dealt, run or seeded meanwhile; one that is called with anything else goes on with the batch
--- that was dealt or run last. Without a loader, ranks are taken to have different samples, rank
--- r's B rows being the samples r B .. r B + B - 1, and all forwards since ms.manual_seed() are
--- one micro-batch: so every forward draws new masks, ranks draw different ones, one process that
--- has all ranks' rows as one batch draws the same, and the same seed begins the same masks anew.
--- Checkpoints of the module say how many those were.
---
--- What ran in a module call that fails, or in an ms.scope that does, has not run. So a step that
--- is to be tried again runs in one, ms.scope(step), and then draws the masks of one that never
--- failed. no_sync() and no_grad() are no scopes: what returned inside them has run, though they
--- fail later.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local dropout_streams = require 'moonshard.base.dropout_streams'

---@class ms.nn.Dropout: ms.nn.Module
---@field p number
---@overload fun(p?: number): ms.nn.Dropout
local Dropout = Module.extend('nn.Dropout')

Dropout._is_dropout = true
Dropout._settings = { 'p' }

---@param p? number  probability of a zero (default 0.5)
function Dropout:init(p)
  self.p = arguments.number(self._name, 'p', p, 0.5)
  if not (self.p >= 0 and self.p <= 1) then
    errors.raise('ValueError', 'dropout probability has to be between 0 and 1, but got %g', p)
  end
  self:_take_stream()
end

function Dropout:_materialized(path, stream)
  self._site = dropout_streams.of_module(path, stream, self._site)
end

---@param x ms.Tensor  (samples, ...)
---@return ms.Tensor
function Dropout:forward(x)
  local training = self.training
  if training == false or self.p == 0 then
    return x
  elseif training ~= true then -- a field that exists is assigned without a look
    arguments.refuse(self._name, 'training', training, 'true or false')
  end
  return ops.dropout(x, self.p, self._site or self:materialize()._site)
end

function Dropout:extra_repr()
  return ('p=%g'):format(self.p)
end

return Dropout
