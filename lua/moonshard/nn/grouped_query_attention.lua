--- Self-attention whose query heads share key and value heads (arXiv:2305.13245), with rotary
--- positions, padding and packed documents. Scores are not stored.
---
--- Shapes: x (B, T, C)  q_proj.weight (heads D, C)  k_proj.weight and v_proj.weight (kv_heads D, C)
---         o_proj.weight (C, heads D)  y (B, T, C); D is head_dim

local Linear = require 'moonshard.nn.linear'
local Module = require 'moonshard.nn.module'
local Rotary = require 'moonshard.nn.rotary'
local arguments = require 'moonshard_ffi.arguments'
local attend = require 'moonshard.ops.attend'
local check = require 'moonshard.nn.check'
local dropout_streams = require 'moonshard.base.dropout_streams'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local util = require 'moonshard.base.util'

---@class ms.nn.GroupedQueryAttention: ms.nn.Module
---@field heads integer
---@field kv_heads integer
---@field head_dim integer
---@field causal boolean
---@field dropout number
---@field scale number  of the scores
---@field q_proj ms.nn.Linear
---@field k_proj ms.nn.Linear
---@field v_proj ms.nn.Linear
---@field o_proj ms.nn.Linear
---@overload fun(width: integer, heads: integer, kv_heads: integer,
---  opts?: ms.nn.GroupedQueryAttention.Options): ms.nn.GroupedQueryAttention
local GroupedQueryAttention = Module.extend('nn.GroupedQueryAttention')

GroupedQueryAttention._is_dropout = true -- of the attention weights
GroupedQueryAttention._settings = { 'heads', 'kv_heads', 'head_dim', 'scale', 'dropout', 'causal' }

---@class ms.nn.GroupedQueryAttention.Options
---@field head_dim? integer  default width / heads
---@field bias? boolean  of all projections (default false)
---@field rotary? ms.nn.Rotary|table  of width head_dim, which layers may share, or its parameters
---  (default: no positions)
---@field causal? boolean  a token sees itself and those before it (default true)
---@field dropout? number  of the attention weights (default 0)
---@field dtype? ms.DType
---@field init? ms.nn.InitRule  of the weights
---@field bias_init? ms.nn.InitRule

local OPTIONS = {
  head_dim = 'whole', bias = 'flag', rotary = 'any', causal = 'flag', dropout = 'number',
  device = 'device', dtype = 'floating', init = 'rule', bias_init = 'rule',
}

local function check_heads(self, width, heads, kv_heads, head_dim)
  check.sizes(self._name, 1, { 'width', 'heads', 'kv_heads' }, width, heads, kv_heads)
  if heads % kv_heads ~= 0 then
    errors.raise('ValueError', '%s: the %d heads are not a multiple of the %d key-value heads',
      self._name, heads, kv_heads)
  elseif not head_dim and width % heads ~= 0 then
    errors.raise('ValueError', '%s: width %d is not a multiple of %d heads; give head_dim',
      self._name, width, heads)
  end
  return arguments.whole(self._name, 'head_dim', head_dim, width / heads, 1)
end

local function rotary_of(self, given)
  local rotary = util.is(given, Rotary) and given or Rotary(self.head_dim, given)
  if 2 * #rotary.frequencies ~= self.head_dim then
    errors.raise('ValueError', '%s: the rotary positions are for heads of width %d, expected %d',
      self._name, 2 * #rotary.frequencies, self.head_dim)
  end
  return rotary
end

---@param width integer
---@param heads integer
---@param kv_heads integer  must divide heads
---@param opts? ms.nn.GroupedQueryAttention.Options
function GroupedQueryAttention:init(width, heads, kv_heads, opts)
  opts = errors.options(self._name, opts, OPTIONS)
  self.head_dim = check_heads(self, width, heads, kv_heads, opts.head_dim)
  self.heads, self.kv_heads, self.causal = heads, kv_heads, opts.causal ~= false
  self.dropout, self.scale = check.dropout(opts.dropout or 0), self.head_dim ^ -0.5
  self._rotary = opts.rotary and rotary_of(self, opts.rotary)
  local function projection(name, from, to)
    self:child(name, Linear(from, to, {
      bias = opts.bias == true, dtype = opts.dtype, init = opts.init, bias_init = opts.bias_init,
    }))
  end
  projection('q_proj', width, heads * self.head_dim)
  projection('k_proj', width, kv_heads * self.head_dim)
  projection('v_proj', width, kv_heads * self.head_dim)
  projection('o_proj', heads * self.head_dim, width)
  self:_take_stream()
end

function GroupedQueryAttention:_materialized(path, stream)
  self._site = dropout_streams.of_module(path, stream, self._site)
end

-- -- the computation, which the decoders of ms.models share --------------------------------------

-- (B, T, n, head_dim). No closure: the trace compiler does not compile functions that make one.
function GroupedQueryAttention:_split(t, n)
  return t:reshape(t:size(1), t:size(2), n, self.head_dim)
end

-- Queries, keys and values, (B, T, heads, head_dim).
function GroupedQueryAttention:_project(x)
  return self:_split(self.q_proj(x), self.heads), self:_split(self.k_proj(x), self.kv_heads),
    self:_split(self.v_proj(x), self.kv_heads)
end

-- What the output projection takes, (B, T, heads head_dim). Keys and values of a cache precede
-- those of x.
function GroupedQueryAttention:_attend(x, cos, sin, mask, cache)
  local q, k, v = self:_project(x)
  if cos then
    q, k = ops.rotary(q, cos, sin), ops.rotary(k, cos, sin)
  end
  q, k, v = q:transpose(2, 3), k:transpose(2, 3), v:transpose(2, 3)
  if cache then
    k, v = cache:extend(self._layer, k, v)
  end
  local p, length = self.training and self.dropout or 0, x:size(2)
  local y = attend.heads(q, k, v, mask, self.causal and length > 1, self.scale, p,
    p > 0 and (self._site or self:materialize()._site) or nil)
  return y:transpose(2, 3):reshape(x:size(1), length, self.heads * self.head_dim)
end

-- -- the module ----------------------------------------------------------------------------------

---@class ms.nn.GroupedQueryAttention.Call
---@field positions? ms.Tensor  i64 (B, T) or (1, T), below T: of each token in its own document,
---  from 0. A token sees its own document only (default: a row is one document). With causal =
---  false it sees the tokens after it, too, also of other documents: give a mask
---@field mask? ms.Tensor  bool (B, T), true for keys that are seen and false for padding, or one
---  that broadcasts to (B, heads, T, T): true where a query sees a key. It is combined with
---  `positions` and `causal`. A query without a key gives zeros

local CALL = { positions = 'tensor', mask = 'tensor' }

local function mask_of(self, mask, x)
  if mask:dtype() ~= 'bool' then
    errors.raise('TypeError', '%s: mask is %s, expected bool', self._name, mask:dtype())
  elseif mask:dim() == 4 then
    return mask
  elseif mask:dim() ~= 2 or mask:size(1) ~= x:size(1) or mask:size(2) ~= x:size(2) then
    errors.raise('ValueError', '%s: mask is (%s), expected (%d, %d), or 4 dimensions that '
      .. 'broadcast to (B, heads, T, T)', self._name, table.concat(mask:shape(), ', '), x:size(1),
      x:size(2))
  end
  return mask:reshape(x:size(1), 1, 1, x:size(2))
end

---@param x ms.Tensor  (B, T, C)
---@param opts? ms.nn.GroupedQueryAttention.Call
---@return ms.Tensor  (B, T, C)
function GroupedQueryAttention:forward(x, opts)
  opts = errors.options(self._name, opts, CALL)
  local positions, cos, sin = opts.positions, nil, nil
  if self._rotary then
    cos, sin = self._rotary:tables(x:size(2), x:dtype(), positions or 0)
  end
  local mask = opts.mask and mask_of(self, opts.mask, x)
  if positions then
    local own = ops.document_mask(positions, { causal = false })
    mask = mask and ops.where(mask, own, mask) or own
  end
  return self.o_proj(self:_attend(x, cos, sin, mask))
end

function GroupedQueryAttention:extra_repr()
  return ('heads=%d, kv_heads=%d, head_dim=%d, causal=%s'):format(self.heads, self.kv_heads,
    self.head_dim, tostring(self.causal))
end

return GroupedQueryAttention
