--- What causal language models share: options of a forward, masks of rows with several documents,
--- and the loss.
---
--- A token's position counts from 0 within its document, so query t sees the keys t - position to t
--- of its row. This holds for packed documents, for padding on the left (position 0) and for rows
--- that continue from a cache.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

local causal = {}

---@class ms.models.ForwardOptions
---@field positions? ms.Tensor  i64 (B, T): of each token in its own document, from 0 (default: a
---  row is one document). A token attends to its own document only
---@field reduction? 'mean'|'sum'  of the losses of the targets that count (default 'mean')

local known = { positions = 'tensor', reduction = { 'mean', 'sum' }, cache = 'list' }

--- Check the arguments of a forward.
---@param what string
---@param ids ms.Tensor
---@param opts ms.models.ForwardOptions?
---@return ms.models.ForwardOptions
function causal.options(what, ids, opts)
  if arguments.tensor(what, 'ids', ids):dim() ~= 2 then
    errors.raise('ValueError', '%s: ids have shape (%s), expected (rows, tokens)', what,
      table.concat(ids:shape(), ', '))
  end
  opts = errors.options(what, opts, known)
  local positions = opts.positions
  if positions then
    local shape = positions:shape()
    if positions:dtype() ~= 'i64' or #shape ~= 2 or shape[1] ~= ids:size(1)
      or shape[2] ~= ids:size(2) then
      errors.raise('ValueError', '%s: positions are %s (%s), expected i64 (%s), the shape of ids',
        what, positions:dtype(), table.concat(shape, ', '), table.concat(ids:shape(), ', '))
    end
  end
  return opts
end

--- Mean or summed cross-entropy of the targets that count.
---@param logits ms.Tensor  (B, T, V)
---@param targets ms.Tensor  i64 (B, T)
---@param reduction? 'mean'|'sum'
---@return ms.Tensor  ()
function causal.loss(logits, targets, reduction)
  return ops.cross_entropy(logits, targets, { reduction = reduction })
end

return causal
