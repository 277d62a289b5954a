--- What the reference specs share: wrapping without warnings, ranks, a plain model trained on the
--- inputs of all ranks, and a transformer of an encoder and a decoder.

local ms = require 'moonshard'
local nn, fsdp, ops = ms.nn, ms.fsdp, ms.ops
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local reference = { STRATEGIES = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' }, wrap = wrap }

--- Paths of all wrapped modules, as in the model before wrapping.
---@return string[]
function reference.wrapped_paths(model)
  local paths = {}
  for path, module in model:named_modules() do
    if ms.is(module, fsdp.FSDP) then
      paths[#paths + 1] = path
    end
  end
  return paths
end

--- Add the mean gradient over the inputs of `world` ranks to a plain model, as data-parallel
--- training computes it.
---@param loss_of fun(model: ms.nn.Module, rank: integer): ms.Tensor
function reference.backward_all(model, world, loss_of)
  for rank = 0, world - 1 do
    loss_of(model, rank):backward(ms.full({}, 1 / world))
  end
end

--- Fail unless a wrapped model has the plain model's parameters, by name, in order. Collective.
function reference.same_parameters(plain, model)
  fsdp.summon_full_params(model, nil, function()
    local wrapped = model:named_parameters()
    for i, entry in ipairs(plain:named_parameters()) do
      assert(wrapped[i].name == entry.name, wrapped[i].name)
      checks.close(entry.tensor:totable(), wrapped[i].tensor, 1e-5)
    end
  end)
end

-- -- a transformer, until the library has one ----------------------------------------------------

local Attention = nn.Module.extend 'Attention'

function Attention:init(width, heads)
  self.heads = heads
  self:child('in_proj', nn.Linear(width, 3 * width))
  self:child('out_proj', nn.Linear(width, width))
end

function Attention:forward(x, memory)
  local function heads(t, part) -- (length, batch, width) to (batch, head, length, width of a head)
    local shape = t:shape()
    local width = shape[3] / 3
    return t:narrow(3, (part - 1) * width + 1, width)
      :reshape(shape[1], shape[2], self.heads, width / self.heads):permute(2, 3, 1, 4)
  end
  local own, other = self.in_proj(x), self.in_proj(memory)
  local q, k, v = heads(own, 1), heads(other, 2), heads(other, 3)
  local weights = (ops.matmul(q, k:transpose(3, 4)) * q:shape()[4] ^ -0.5):softmax()
  return self.out_proj(ops.matmul(weights, v):permute(3, 1, 2, 4):reshape(x:shape()))
end

local function layer_class(name, n_attention)
  local Layer = nn.Module.extend(name)
  function Layer:init(width, heads, hidden)
    for i = 1, n_attention do
      self:child('attn' .. i, Attention(width, heads))
      self:child('attn_norm' .. i, nn.LayerNorm(width))
    end
    self:child('linear1', nn.Linear(width, hidden))
    self:child('dropout', nn.Dropout(0.1))
    self:child('linear2', nn.Linear(hidden, width))
    self:child('norm', nn.LayerNorm(width))
  end
  function Layer:forward(x, memory)
    x = self.attn_norm1(x + self.dropout(self.attn1(x, x)))
    if memory then
      x = self.attn_norm2(x + self.dropout(self.attn2(x, memory)))
    end
    return self.norm(x + self.dropout(self.linear2(self.linear1(x):relu())))
  end
  return Layer
end

reference.EncoderLayer = layer_class('EncoderLayer', 1)
reference.DecoderLayer = layer_class('DecoderLayer', 2)

local Transformer = nn.Module.extend 'Transformer'

function Transformer:init(width, heads, hidden)
  local function layers(class)
    return nn.ModuleList(class(width, heads, hidden), class(width, heads, hidden))
  end
  self:child('encoder', layers(reference.EncoderLayer))
  self:child('encoder_norm', nn.LayerNorm(width))
  self:child('decoder', layers(reference.DecoderLayer))
  self:child('decoder_norm', nn.LayerNorm(width))
end

function Transformer:forward(src, tgt)
  local memory = self.encoder_norm(self.encoder[2](self.encoder[1](src)))
  return self.decoder_norm(self.decoder[2](self.decoder[1](tgt, memory), memory))
end

--- Two layers of each kind with the parameter counts of torch.nn.Transformer: width 32 and hidden
--- 128 make 59,520.
---@param opts? { width: integer, heads: integer, hidden: integer }
---@return ms.nn.Module  forward(src, tgt), both (length, batch, width)
function reference.transformer(opts)
  opts = opts or { width = 32, heads = 8, hidden = 128 }
  return Transformer(opts.width, opts.heads, opts.hidden)
end

return reference
