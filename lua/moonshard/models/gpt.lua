--- A decoder-only transformer with learned position embeddings and an output head tied to the token
--- embedding (GPT-2, Radford et al. 2019).
---
--- Shapes: B rows, T <= context tokens, C width, V vocabulary
---         ids (B, T) -> logits (B, T, V), or with targets (B, T) the mean loss ()
--- Init:   weights N(0, init.std), those that write into the residual divided by sqrt(2 layers),
---         biases zero, norms one.

local Dropout = require 'moonshard.nn.dropout'
local Embedding = require 'moonshard.nn.embedding'
local LayerNorm = require 'moonshard.nn.layer_norm'
local Linear = require 'moonshard.nn.linear'
local Module = require 'moonshard.nn.module'
local ModuleList = require 'moonshard.nn.module_list'
local TransformerBlock = require 'moonshard.nn.transformer_block'
local arguments = require 'moonshard_ffi.arguments'
local causal = require 'moonshard.models.causal'
local create = require 'moonshard.base.create'
local dtypes = require 'moonshard.base.dtype'
local errors = require 'moonshard.base.errors'
local generate = require 'moonshard.models.generate'
local machine = require 'moonshard.base.machine'
local ops = require 'moonshard.ops'
local without_jit = require 'moonshard.base.without_jit'
local rules = require 'moonshard.nn.rules'
local scope = require 'moonshard.base.scope'

---@class ms.models.GPT: ms.nn.Module
---@field vocab integer
---@field layers integer
---@field heads integer
---@field width integer
---@field context integer
---@field wte ms.nn.Embedding  (V, C)
---@field wpe ms.nn.Embedding  (context, C)
---@field h ms.nn.ModuleList
---@field ln_f ms.nn.LayerNorm
---@field lm_head ms.nn.Linear  (V, C)
---@overload fun(opts: ms.models.GPT.Options): ms.models.GPT
local GPT = Module.extend('models.GPT')

---@class ms.models.GPT.Options
---@field vocab integer
---@field layers integer
---@field heads integer
---@field width integer
---@field context integer  maximum number of tokens in a row
---@field dropout? number  after the embeddings and in both branches of each block (default 0)
---@field bias? boolean  of linear layers and norms (default true)
---@field tie? boolean  tie the head's weight to the token embedding (default true)
---@field dtype? ms.DType  of the master weights (default 'f32')
---@field init? { std?: number }  standard deviation of the weights (default 0.02)

local DEVIATION = 0.02
local MOST_LAYERS = 4096 -- a sanity limit: layers are allocated as objects first

local function build(self, opts)
  local deviation = errors.options(self._name .. ' init', opts.init, { std = 'number' }).std
    or DEVIATION
  local normal = rules.normal(0, deviation)
  local width, dtype = self.width, opts.dtype

  self:child('wte', Embedding(self.vocab, width, { init = normal, dtype = dtype }))
  self:child('wpe', Embedding(self.context, width, { init = normal, dtype = dtype }))
  self:child('drop', Dropout(opts.dropout or 0))
  local blocks = ModuleList()
  self:child('h', blocks)
  for _ = 1, self.layers do
    blocks:append(TransformerBlock(width, self.heads, {
      bias = opts.bias, dropout = opts.dropout, dtype = dtype, init = normal,
      residual_init = rules.normal(0, deviation / math.sqrt(2 * self.layers)),
      bias_init = rules.zeros(),
    }))
  end
  self:child('ln_f', LayerNorm(width, { bias = opts.bias, dtype = dtype }))
  self:child('lm_head', Linear(width, self.vocab, {
    bias = false, dtype = dtype, init = normal,
    weight = opts.tie ~= false and self.wte.weight or nil,
  }))
  self.lm_head._padded = true
  self._positions = {}
end

local function is_count(value)
  return type(value) == 'number' and value >= 1 and value % 1 == 0
end

---@param opts ms.models.GPT.Options
function GPT:init(opts)
  opts = errors.options(self._name, opts, {
    vocab = 'number', layers = 'number', heads = 'number', width = 'number', context = 'number',
    dropout = 'number', bias = 'flag', tie = 'flag', device = 'device', dtype = 'floating',
    init = 'list',
  })
  for _, name in ipairs { 'vocab', 'layers', 'heads', 'width', 'context' } do
    local value = opts[name]
    if not is_count(value) then
      errors.raise('ValueError', '%s: %s is %s, expected a whole number above 0', self._name,
        name, tostring(value))
    end
    self[name] = value
  end
  if self.layers > MOST_LAYERS then
    errors.raise('ValueError', '%s: layers is %.17g, expected at most %d', self._name, self.layers,
      MOST_LAYERS)
  end
  without_jit.run(build, self, opts)
end

-- 0, 1, ..., T - 1 as i64 (T), cached between calls.
function GPT:_positions_of(length)
  local positions = self._positions[length]
  if not positions then
    positions = scope.keep(create.arange(length))
    self._positions[length] = positions
  end
  return positions
end

---@param ids ms.Tensor  i64 (B, T)
---@param targets? ms.Tensor  i64 (B, T); -100 is ignored
---@param opts? ms.models.ForwardOptions
---@return ms.Tensor  loss () with targets, else logits (B, T, V)
function GPT:forward(ids, targets, opts)
  opts = causal.options('GPT', ids, opts)
  local length, positions = ids:size(2), opts.positions
  if length > self.context and not positions then
    errors.raise('ValueError', 'rows have %d tokens, the context is %d', length, self.context)
  end
  local x = self.drop(self.wte(ids) + self.wpe(positions or self:_positions_of(length)))
  local mask = positions and ops.document_mask(positions, { causal = false })
  for i = 1, self.layers do
    x = self.h[i](x, mask)
  end
  local logits = self.lm_head(self.ln_f(x))
  if targets == nil then
    return logits:contiguous()
  end
  return causal.loss(logits, targets, opts.reduction)
end

-- Accepts a GPT or a wrapper around one.
local function check_self(what, model)
  if not model.context then
    arguments.refuse(what, 'self', model, 'a GPT')
  end
end

--- Continue a row of tokens, or several. With sharded parameters every rank calls it; all ranks
--- draw the same tokens if they have the same seed and have drawn the same number before, or pass a
--- seed. Other causal models with fields `context` and `vocab` may borrow it: `Net.generate =
--- ms.models.GPT.generate`.
---@param ids integer[]|integer[][]  tokens from 0; of each row at least one
---@param n integer  number of tokens to add
---@param opts? ms.models.GenerateOptions
---@return integer[]|integer[][]  the new tokens
function GPT:generate(ids, n, opts)
  return generate(self, ids, n, opts, false)
end

--- Floating-point operations of forward and backward for one token: 6 for each parameter that it is
--- multiplied with, and 6 T C per layer for causal attention (half of the full T x T).
---@param length? integer  tokens in a row (default: context)
---@return number
function GPT:flops_per_token(length)
  check_self('flops_per_token', self)
  length = arguments.whole('flops_per_token', 'length', length, self.context, 1)
  local multiplied = self:num_parameters() - self.context * self.width
  if self.lm_head.weight ~= self.wte.weight then
    multiplied = multiplied - self.vocab * self.width
  end
  return 6 * multiplied + 6 * self.layers * length * self.width
end

--- Peak bytes of what forward keeps for backward, for `rows` rows of `length` tokens. Per token and
--- layer 16 C elements (residual, norm, q k v, attention, residual, norm, 4 C before and 4 C after
--- the activation), statistics of two norms and a log-sum-exp for each head; in addition the
--- logits, the temporaries of the last block's backward, and the work space of the largest product.
---@param rows integer
---@param length integer
---@param dtype ms.DType  of the computation
---@return integer
function GPT:activation_bytes(rows, length, dtype)
  check_self('activation_bytes', self)
  arguments.whole('activation_bytes', 'rows', rows, nil, 0)
  arguments.whole('activation_bytes', 'length', length, nil, 0)
  arguments.floating('activation_bytes', 'dtype', dtype)
  local size = dtypes.size(dtype)
  local layer = 16 * self.width * size + 16 + 4 * self.heads
  local rest = (2 * self.width + self.vocab) * size + 20 + 6 * self.width * size
  local function scratch(n, k)
    return machine.matmul_scratch(dtype, rows * length, n, k)
  end
  return rows * length * (self.layers * layer + rest)
    + math.max(scratch(4 * self.width, self.width), scratch(self.width, 4 * self.width),
      scratch(self.vocab, self.width))
end

function GPT:extra_repr()
  return ('vocab=%d, layers=%d, heads=%d, width=%d, context=%d'):format(self.vocab, self.layers,
    self.heads, self.width, self.context)
end

return GPT -- or an FSDP wrapper around one, which borrows its methods
