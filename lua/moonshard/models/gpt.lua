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
local autograd = require 'moonshard.autograd'
local causal = require 'moonshard.models.causal'
local create = require 'moonshard.base.create'
local data = require 'moonshard_ffi.data'
local dtypes = require 'moonshard.base.dtype'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local machine = require 'moonshard.base.machine'
local without_jit = require 'moonshard.base.without_jit'
local parameter = require 'moonshard_ffi.parameter'
local random = require 'moonshard.base.random'
local rules = require 'moonshard.nn.rules'
local scope = require 'moonshard.base.scope'
local util = require 'moonshard.base.util'

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
  local mask = positions and causal.mask(positions, 0)
  for i = 1, self.layers do
    x = self.h[i](x, mask)
  end
  local logits = self.lm_head(self.ln_f(x))
  if targets == nil then
    return logits
  end
  return causal.loss(logits, targets, opts.reduction)
end

-- Accepts a GPT or a wrapper around one.
local function check_self(what, model)
  if not model.context then
    arguments.refuse(what, 'self', model, 'a GPT')
  end
end

---@class ms.models.GPT.GenerateOptions
---@field temperature? number  default 1; 0 selects the most likely token
---@field top_k? integer  sample only from the k most likely tokens (default: all)
---@field seed? integer  for this call; equal seeds give equal text (default: random numbers
---  continue from call to call, starting at ms.manual_seed())
---@field on_token? fun(token: integer)  called with each new token

-- Rows are padded to multiples of this, so that few shapes occur. Attention is causal, so padding
-- does not affect earlier tokens.
local PAD = 32

-- Logits (V) for the token that follows `tokens`.
local function next_logits(model, tokens)
  local first = math.max(1, #tokens - model.context + 1)
  local row = util.slice(tokens, first)
  local length = #row
  local padded = math.min(math.ceil(length / PAD) * PAD, model.context)
  for i = length + 1, padded do
    row[i] = 0
  end
  local logits = model(create.tensor({ row }, { dtype = 'i64' }))
  return logits:narrow(2, length, 1):reshape(model.vocab)
end

-- Draw the i-th token of a call.
local function drawn(logits, opts, i)
  local temperature, seed = opts.temperature or 1, opts.seed
  if seed == nil and temperature > 0 then
    seed, i = parameter.seed_bits(), random.next_token()
  end
  return data.sample(logits, temperature, opts.top_k or 0, seed or 0, i)
end

-- Checks other models that borrow generate, too.
local function check_can_continue(model)
  for _, name in ipairs { 'context', 'vocab' } do
    local value = model[name]
    if not is_count(value) then
      errors.raise('TypeError', "generate: field '%s' of %s is %s, expected a whole number above "
        .. "0: it continues a GPT, or a causal model with the fields 'context' (most tokens in a "
        .. "row) and 'vocab' that gives logits (1, T, vocab) for ids (1, T)", name, model._name,
        type(value) == 'number' and ('%.17g'):format(value) or arguments.noun(value))
    end
  end
end

--- Continue a row of tokens. With sharded parameters every rank calls it; all ranks draw the same
--- tokens if they have the same seed and have drawn the same number before, or pass a seed. Other
--- causal models with fields `context` and `vocab` may borrow it: `Net.generate =
--- ms.models.GPT.generate`.
---@param ids integer[]  at least one token, from 0
---@param n integer  number of tokens to add
---@param opts? ms.models.GPT.GenerateOptions
---@return integer[]  the new tokens
function GPT:generate(ids, n, opts)
  check_can_continue(self)
  opts = errors.options('generate', opts,
    { temperature = 'number', top_k = 'whole', seed = 'whole', on_token = 'fn' })
  if #arguments.array('generate', 'ids', ids) == 0 then
    errors.raise('ValueError', 'generate begins with an array of at least one token')
  end
  for i, token in ipairs(ids) do
    arguments.whole('generate', ('ids[%d]'):format(i), token, nil, 0)
  end
  arguments.whole('generate', 'n', n, nil, 0)
  local tokens, new = util.slice(ids, 1), {}
  local modules, training = self:modules(), {}
  for i, module in ipairs(modules) do
    training[i] = module.training
  end
  return finally.run(function()
    for i, module in ipairs(modules) do
      rawset(module, 'training', training[i])
    end
  end, nil, function()
    self:eval()
    autograd.no_grad(function()
      for i = 1, n do
        local token = scope.run('generate', function()
          return drawn(next_logits(self, tokens), opts, i)
        end)
        new[i], tokens[#tokens + 1] = token, token
        if opts.on_token then
          opts.on_token(token)
        end
      end
    end)
    return new
  end)
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
