--- Zeroes elements with probability p while training and divides the rest by 1 - p.
---
--- The mask is a function of the seed, the module's path, the number of calls of this module in the
--- micro-batch, the global sample index and the element index. So it does not depend on how samples
--- are assigned to ranks.
---
--- A data.Loader records the global sample indices of each batch, and each batch begins a
--- micro-batch. A module whose first argument is x or y of a batch uses that batch's indices. With
--- any other argument it uses the batch that was loaded or used last. Without a loader, row i of
--- rank r's B rows is sample r B + i, and all forwards since ms.manual_seed() are one micro-batch.
--- So each forward draws new masks, ranks draw different ones, one process with the rows of all
--- ranks draws the same masks, and setting the same seed repeats them. The module's checkpoints
--- contain the number of calls.
---
--- Calls inside a module call or an ms.scope that fails are not counted. Run a step that may be
--- retried as ms.scope(step): the retry draws the same masks. no_sync() and no_grad() are not
--- scopes: calls that returned inside them are counted even if a later call fails.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local check = require 'moonshard.nn.check'
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
  self.p = check.dropout(arguments.number(self._name, 'p', p, 0.5))
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
  elseif training ~= true then -- avoid a metamethod call: the field exists
    arguments.refuse(self._name, 'training', training, 'true or false')
  end
  return ops.dropout(x, self.p, self._site or self:materialize()._site)
end

function Dropout:extra_repr()
  return ('p=%g'):format(self.p)
end

return Dropout
