--- Multi-head attention (arXiv:1706.03762).
---
--- A mask is bool, true where attention is not allowed, or floating and added to the scores. A
--- key_padding_mask (N, S) masks keys of samples; an attn_mask (L, S) or (N num_heads, L, S) masks
--- pairs of query and key. With need_weights = false the scores are not stored, and a query that
--- attends to no key gives zeros, not NaN.
---
--- Shapes: query (L, N, E)  key (S, N, kdim)  value (S, N, vdim)  output (L, N, E); N comes
---         first with batch_first. One sample may come without N.
---         in_proj_weight (3 E, E), or q_proj_weight (E, E), k_proj_weight (E, kdim) and
---         v_proj_weight (E, vdim) where kdim or vdim is not E; in_proj_bias (3 E); with
---         add_bias_kv bias_k and bias_v (1, 1, E)
--- Init:   Glorot's uniform rule, his normal rule for bias_k and bias_v, other biases 0, and
---         out_proj.weight as nn.Linear.

local Linear = require 'moonshard.nn.linear'
local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local attend = require 'moonshard.ops.attend'
local check = require 'moonshard.nn.check'
local create = require 'moonshard.base.create'
local dtypes = require 'moonshard.base.dtype'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local rules = require 'moonshard.nn.rules'
local dropout_streams = require 'moonshard.base.dropout_streams'
local util = require 'moonshard.base.util'

---@class ms.nn.MultiheadAttention: ms.nn.Module
---@field embed_dim integer
---@field num_heads integer
---@field dropout number
---@field batch_first boolean
---@field out_proj ms.nn.Linear
---@overload fun(embed_dim: integer, num_heads: integer, opts?: table): ms.nn.MultiheadAttention
local MultiheadAttention = Module.extend('nn.MultiheadAttention')

MultiheadAttention._is_dropout = true -- of the attention weights
MultiheadAttention._settings = { 'num_heads', 'dropout', 'batch_first', 'add_zero_attn' }

---@class ms.nn.MultiheadAttention.Options
---@field dropout? number  of the attention weights (default 0)
---@field bias? boolean  of all projections (default true)
---@field kdim? integer  default embed_dim
---@field vdim? integer  default embed_dim
---@field add_bias_kv? boolean  append a learned key and value (default false)
---@field add_zero_attn? boolean  append a key and value of zeros (default false)
---@field batch_first? boolean  default false
---@field dtype? ms.DType

local OPTIONS = {
  dropout = 'number', bias = 'flag', add_bias_kv = 'flag', add_zero_attn = 'flag', kdim = 'whole',
  vdim = 'whole', batch_first = 'flag', device = 'device', dtype = 'floating',
}

---@param embed_dim integer
---@param num_heads integer  must divide embed_dim
---@param opts? ms.nn.MultiheadAttention.Options
function MultiheadAttention:init(embed_dim, num_heads, opts)
  check.sizes(self._name, 1, { 'embed_dim', 'num_heads' }, embed_dim, num_heads)
  opts = errors.options(self._name, opts, OPTIONS)
  if embed_dim % num_heads ~= 0 then
    errors.raise('ValueError', 'embed_dim must be divisible by num_heads, got %d and %d', embed_dim,
      num_heads)
  end
  self.embed_dim, self.num_heads = embed_dim, num_heads
  self.dropout = check.dropout(opts.dropout or 0)
  self.kdim, self.vdim = opts.kdim or embed_dim, opts.vdim or embed_dim
  self.batch_first, self.add_zero_attn = opts.batch_first == true, opts.add_zero_attn == true

  local dtype = { dtype = opts.dtype }
  local function weight(name, out, from)
    self:param(name, { out, from }, rules.xavier_uniform(from, out), dtype)
  end
  if self.kdim == embed_dim and self.vdim == embed_dim then
    weight('in_proj_weight', 3 * embed_dim, embed_dim)
  else
    weight('q_proj_weight', embed_dim, embed_dim)
    weight('k_proj_weight', embed_dim, self.kdim)
    weight('v_proj_weight', embed_dim, self.vdim)
  end
  if opts.bias ~= false then
    self:param('in_proj_bias', { 3 * embed_dim }, rules.zeros(), dtype)
  end
  if opts.add_bias_kv then
    local rule = rules.normal(0, embed_dim ^ -0.5) -- Glorot's
    self:param('bias_k', { 1, 1, embed_dim }, rule, dtype)
    self:param('bias_v', { 1, 1, embed_dim }, rule, dtype)
  end
  self:child('out_proj', Linear(embed_dim, embed_dim, {
    bias = opts.bias, dtype = opts.dtype, bias_init = rules.zeros(),
  }))
end

function MultiheadAttention:_materialized(path, stream)
  self._site = dropout_streams.of_module(path, stream, self._site)
end

-- -- projections ---------------------------------------------------------------------------------

-- Projections `first` to `last` (of query, key, value) of one input.
local function project(self, x, first, last)
  local width, n = self.embed_dim, last - first + 1
  local function part(t)
    return n == 3 and t or t:narrow(1, (first - 1) * width + 1, n * width)
  end
  return ops.linear(x, part(self.in_proj_weight), self.in_proj_bias and part(self.in_proj_bias))
end

local function project_apart(self, x, i, name)
  local bias = self.in_proj_bias
  return ops.linear(x, self[name],
    bias and bias:narrow(1, (i - 1) * self.embed_dim + 1, self.embed_dim))
end

-- Query, key and value (N, length, E). Inputs that are one tensor share a product.
local function projections(self, query, key, value)
  local width = self.embed_dim
  if not self.in_proj_weight then
    return project_apart(self, query, 1, 'q_proj_weight'),
      project_apart(self, key, 2, 'k_proj_weight'), project_apart(self, value, 3, 'v_proj_weight')
  elseif not rawequal(key, value) then
    return project(self, query, 1, 1), project(self, key, 2, 2), project(self, value, 3, 3)
  elseif not rawequal(query, key) then
    local both = project(self, key, 2, 3)
    return project(self, query, 1, 1), both:narrow(3, 1, width), both:narrow(3, width + 1, width)
  end
  local all = project(self, query, 1, 3)
  return all:narrow(3, 1, width), all:narrow(3, width + 1, width),
    all:narrow(3, 2 * width + 1, width)
end

-- k, v (N, S, E) and the masks, extended by the keys of add_bias_kv and add_zero_attn, which are
-- never masked.
local function extended(self, k, v, opts)
  local n, samples = 0, k:size(1)
  local function append(to_k, to_v)
    k, v, n = ops.cat({ k, to_k }, 2), ops.cat({ v, to_v }, 2), n + 1
  end
  if self.bias_k then
    append(self.bias_k:expand(samples, 1, -1), self.bias_v:expand(samples, 1, -1))
  end
  if self.add_zero_attn then
    local zeros = create.zeros(samples, 1, self.embed_dim, { dtype = k:dtype() })
    append(zeros, zeros)
  end
  if n > 0 then
    opts = util.merged(opts)
    for _, name in ipairs { 'attn_mask', 'key_padding_mask' } do
      opts[name] = opts[name] and ops.pad(opts[name], { 0, n })
    end
  end
  return k, v, opts
end

-- -- scores --------------------------------------------------------------------------------------

local function check_mask(self, name, mask, ...)
  local shape, expected = table.concat(mask:shape(), ', '), table.concat({ ... }, ', ')
  if shape ~= expected then
    errors.raise('ValueError', '%s: %s is (%s), expected (%s)', self._name, name, shape, expected)
  elseif mask:dtype() ~= 'bool' and not dtypes.is_floating(mask:dtype()) then
    errors.raise('TypeError', '%s: %s is %s, expected bool or a floating dtype', self._name, name,
      mask:dtype())
  end
end

-- Check the masks against query (N, L, ...) and key (N, S, ...); N is absent for a single sample.
local function check_masks(self, query, key, opts, is_batch)
  local n, from, to = query:size(1), query:size(2), key:size(2)
  local keys, pairs_of = opts.key_padding_mask, opts.attn_mask
  if keys and is_batch then
    check_mask(self, 'key_padding_mask', keys, n, to)
  elseif keys then
    check_mask(self, 'key_padding_mask', keys, to)
  end
  if pairs_of and pairs_of:dim() == 3 then
    check_mask(self, 'attn_mask', pairs_of, n * self.num_heads, from, to)
  elseif pairs_of then
    check_mask(self, 'attn_mask', pairs_of, from, to)
  end
end

-- The mask of keys (N, 1, 1, S) and that of pairs (L, S) or (N, heads, L, S).
local function masks_of(q, k, opts)
  local keys, pairs_of = opts.key_padding_mask, opts.attn_mask
  if pairs_of and pairs_of:dim() == 3 then
    pairs_of = pairs_of:reshape(q:size(1), q:size(2), q:size(3), k:size(3))
  end
  return keys and keys:reshape(q:size(1), 1, 1, k:size(3)), pairs_of
end

local function masked(scores, mask)
  if mask == nil then
    return scores
  elseif mask:dtype() == 'bool' then
    return scores:masked_fill(mask, -math.huge)
  end
  return scores + mask:to(scores:dtype())
end

-- Merge both masks into one for ops.scaled_dot_product_attention: bool, true where attention is
-- allowed, or floating.
local function merged(keys, pairs_of, dtype)
  if keys and pairs_of and (keys:dtype() ~= 'bool' or pairs_of:dtype() ~= 'bool') then
    return masked(masked(create.zeros(1, 1, { dtype = dtype }), pairs_of), keys)
  end
  local function allowed(mask)
    return mask and (mask:dtype() == 'bool' and mask:eq(0) or mask:to(dtype))
  end
  if keys and pairs_of then
    return allowed(ops.where(keys, keys, pairs_of))
  end
  return allowed(keys or pairs_of)
end

local function attend_without_weights(self, q, k, v, opts, active)
  local keys, pairs_of = masks_of(q, k, opts)
  local causal = opts.is_causal == true
  if causal then
    pairs_of = nil
  end
  return attend.heads(q, k, v, merged(keys, pairs_of, q:dtype()), causal, q:size(4) ^ -0.5,
    active and self.dropout or 0, active and (self._site or self:materialize()._site))
end

-- Weights (N, heads, L, S) from q and k (N, heads, length, head width).
local function weights_of(self, q, k, opts, active)
  local scores = ops.matmul(q * q:size(4) ^ -0.5, k:transpose(3, 4))
  local keys, pairs_of = masks_of(q, k, opts)
  if pairs_of == nil and opts.is_causal then
    pairs_of = ops.gt(ops.triu(create.ones(q:size(3), k:size(3)), 1), 0)
  end
  local weights = ops.softmax(masked(masked(scores, pairs_of), keys))
  if active then
    weights = ops.dropout(weights, self.dropout, self._site or self:materialize()._site)
  end
  return weights
end

---@class ms.nn.MultiheadAttention.Call
---@field key_padding_mask? ms.Tensor  (N, S), or (S) for a single sample
---@field attn_mask? ms.Tensor  (L, S) or (N num_heads, L, S)
---@field need_weights? boolean  default true
---@field average_attn_weights? boolean  over the heads (default true)
---@field is_causal? boolean  query t attends to keys 1 to t; attn_mask, if given, must be that
---  mask

local CALL = {
  key_padding_mask = 'tensor', attn_mask = 'tensor', need_weights = 'flag',
  average_attn_weights = 'flag', is_causal = 'flag',
}

local function check_inputs(self, query, key, value)
  local n = arguments.tensor(self._name, 'query', query):dim()
  arguments.tensor(self._name, 'key', key)
  arguments.tensor(self._name, 'value', value)
  if (n ~= 2 and n ~= 3) or key:dim() ~= n or value:dim() ~= n then
    errors.raise('ValueError', '%s: query, key and value have %d, %d and %d dimensions, expected '
      .. '3, or 2 for one sample', self._name, n, key:dim(), value:dim())
  end
  return n == 3
end

---@param query ms.Tensor
---@param key ms.Tensor
---@param value ms.Tensor
---@param opts? ms.nn.MultiheadAttention.Call
---@return ms.Tensor output, ms.Tensor? weights  (N, L, S), or (N, num_heads, L, S)
function MultiheadAttention:forward(query, key, value, opts)
  opts = errors.options(self._name, opts, CALL)
  local is_batch = check_inputs(self, query, key, value)
  local function samples_first(x)
    return not is_batch and x:unsqueeze(1) or self.batch_first and x or x:transpose(1, 2)
  end
  local same_kv, same = rawequal(key, value), rawequal(query, key)
  query = samples_first(query)
  key = same and query or samples_first(key)
  value = same_kv and key or samples_first(value)
  check_masks(self, query, key, opts, is_batch)
  local q, k, v = projections(self, query, key, value)
  k, v, opts = extended(self, k, v, opts)
  local depth = self.embed_dim / self.num_heads
  local function split(x)
    return x:reshape(x:size(1), x:size(2), self.num_heads, depth):transpose(2, 3)
  end
  q, k, v = split(q), split(k), split(v)

  local active = self.training and self.dropout > 0
  local y, weights
  if opts.need_weights == false then
    y = attend_without_weights(self, q, k, v, opts, active)
  else
    weights = weights_of(self, q, k, opts, active)
    y = ops.matmul(weights, v)
  end
  y = self.out_proj(y:transpose(2, 3):reshape(query:size(1), query:size(2), self.embed_dim))
  y = not is_batch and y:squeeze(1) or self.batch_first and y or y:transpose(1, 2)
  if opts.need_weights == false then
    return y
  elseif opts.average_attn_weights ~= false then
    weights = weights:mean(2)
  end
  return y, is_batch and weights or weights:squeeze(1)
end

function MultiheadAttention:extra_repr()
  return ('embed_dim=%d, num_heads=%d'):format(self.embed_dim, self.num_heads)
end

return MultiheadAttention
